"""The common base of the classes of `hamlyn.aio`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from . import _hamlyn
from ._threads import THREADS_MAX, alone
from ._types import Access, Buffer

T = TypeVar("T")


class Wrapped(Generic[T]):
    """An object of `hamlyn`, as `sync`."""

    sync: T
    _of_manager: ClassVar[bool] = False

    def __init__(self, sync: T) -> None:
        if isinstance(sync, _hamlyn.Manager) and not self._of_manager:
            name = type(self).__name__
            raise TypeError(
                f"hamlyn.aio.{name} is made of a hamlyn.{name}, and was given a Manager: make one with it "
                f"first, or call connect"
            )
        self.sync = sync

    def __repr__(self) -> str:
        return f"<hamlyn.aio of {self.sync!r}>"


AnyManager = _hamlyn.Manager | Wrapped[_hamlyn.Manager]
"""A manager, or the same as `hamlyn.aio.Manager`."""


def plain(manager: AnyManager) -> _hamlyn.Manager:
    return manager.sync if isinstance(manager, Wrapped) else manager


class Closes(Wrapped[T]):
    """An object that is an asynchronous context manager: leaving it closes it."""

    def close(self) -> None:
        """Closes it and its connections. Closing twice is allowed."""
        self.sync.close()  # type: ignore[attr-defined]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Offered(Closes[T]):
    """An object that is found by a name."""

    def serve(self, name: str, *, access: Access | None = None) -> None:
        """`serve` of the class of `hamlyn`: lets others find it by name."""
        self.sync.serve(name, access=access)  # type: ignore[attr-defined]

    def stop_serving(self) -> None:
        """`stop_serving` of the class of `hamlyn`: its names are free at once, and connected peers stay
        so."""
        self.sync.stop_serving()  # type: ignore[attr-defined]


class Grown(Wrapped[T]):
    """An object that connects by a name."""

    _connect: ClassVar[Callable[..., Any]]

    @classmethod
    async def connect(
        cls, manager: AnyManager, name: str, timeout: float | None = 10.0
    ) -> Self:
        """`connect` of the class of `hamlyn`, on a thread of its own; cancelling the task gives the
        attempt up."""
        made_of = plain(manager)
        return cls(await connected(lambda t: cls._connect(made_of, name, t), timeout))


async def connected(connect: Callable[[float | None], T], timeout: float | None) -> T:
    """The result of `connect`, on a thread for connecting: other waits do not delay it."""
    why = f"no connection within the time limit: {THREADS_MAX} others wait for theirs"
    return await alone.run(lambda limit: connect(limit.left), timeout, why)


def size_of(data: Buffer) -> int:
    return memoryview(data).nbytes
