"""What the classes of `hamlyn.aio` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeVar

from . import _hamlyn
from ._types import Buffer

T = TypeVar("T")


class Wrapped(Generic[T]):
    """An object of `hamlyn`, as `sync`."""

    sync: T

    def __init__(self, sync: T) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"<hamlyn.aio of {self.sync!r}>"


class Grown(Wrapped[T]):
    """What is connected by a name."""

    _connect: ClassVar[Callable[..., Any]]

    @classmethod
    async def connect(
        cls, manager: _hamlyn.Manager, name: str, timeout: float | None = 10.0
    ) -> Self:
        """`connect` of the class of `hamlyn`, on a thread."""
        return cls(await asyncio.to_thread(cls._connect, manager, name, timeout))


def size_of(data: Buffer) -> int:
    return memoryview(data).nbytes
