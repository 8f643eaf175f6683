"""Hamlyn with asyncio: what waits is awaited, and the event loop runs meanwhile.

::

    from hamlyn import Manager, aio

    with Manager() as manager:
        queue = aio.Queue(manager.queue(16))
        message = await queue.receive()

Each class wraps an object of `hamlyn`, which remains usable as `.sync`. Any number of tasks may
wait on the objects of one manager, and any number of managers may be used in one loop. A task that
is cancelled while it waits has taken nothing: what it waited for stays for the next.

How it works: a task looks, and if nothing is there it tells its manager that it is about to wait
(`Manager.prepare_to_wait`), looks once more, and sleeps until the manager's descriptor is readable,
which the loop watches. Each sleeper then looks again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from . import _hamlyn
from ._errors import Closed, TimedOut
from ._types import Buffer, Event

T = TypeVar("T")

# Looks without a rest while packets arrive that are for others; then the loop's other tasks run.
_LOOKS = 64


class _Loop:
    """The tasks of one event loop that wait on one manager."""

    def __init__(self, manager: _hamlyn.Manager, loop: asyncio.AbstractEventLoop) -> None:
        self.manager = manager
        self.loop = loop
        self.key = (manager._key, id(loop))
        self.descriptor = -1
        self.sleepers: set[asyncio.Future[None]] = set()

    async def sleep(self, look: Callable[[], T | None]) -> T | None:
        """Until something may have come, or the last look has found it."""
        sleeper: asyncio.Future[None] = self.loop.create_future()
        self.begin(sleeper)
        try:
            # Said before the last look, so that whatever comes after that look wakes this task.
            if self.manager.prepare_to_wait():
                found = look()
                if found is not None:
                    return found
                await sleeper
            return None
        finally:
            self.end(sleeper)

    def begin(self, sleeper: asyncio.Future[None]) -> None:
        if not self.sleepers:
            self.descriptor = self.manager.fileno()
            self.loop.add_reader(self.descriptor, self.readable)
        self.sleepers.add(sleeper)

    def end(self, sleeper: asyncio.Future[None]) -> None:
        self.sleepers.discard(sleeper)
        if not self.sleepers:
            self.loop.remove_reader(self.descriptor)
            with _lock:
                # Else the table would keep every manager that was ever waited on.
                if _loops.get(self.key) is self:
                    del _loops[self.key]

    def readable(self) -> None:
        # The signal may have been for tasks of other loops as well, and is there only once.
        self.manager.silence()
        key = self.manager._key
        with _lock:
            others = [other for other in _loops.values() if other.manager._key == key]
        for other in others:
            if other is self:
                self.wake()
            elif other.sleepers:
                try:
                    other.loop.call_soon_threadsafe(other.wake)
                except RuntimeError:
                    pass  # That loop is closed.

    def wake(self) -> None:
        for sleeper in self.sleepers:
            if not sleeper.done():
                sleeper.set_result(None)


_loops: dict[tuple[int, int], _Loop] = {}
_lock = threading.Lock()


def _loop_of(manager: _hamlyn.Manager) -> _Loop:
    fresh = _Loop(manager, asyncio.get_running_loop())
    with _lock:
        found = _loops.get(fresh.key)
        if found is None or found.loop is not fresh.loop:
            # None, or that of a loop which was closed while tasks waited in it.
            found = _loops[fresh.key] = fresh
        return found


async def until(
    manager: _hamlyn.Manager, attempt: Callable[[], T | None], timeout: float | None = None
) -> T:
    """Waits until `attempt()` returns something; raises `TimedOut` after `timeout` seconds.

    `attempt` is called whenever something may have come. What it returns is returned before
    anything else can happen, so that a cancelled task has taken nothing.
    """
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    looks = 0
    while True:
        found = attempt()
        if found is not None:
            return found
        looks += 1
        if looks % _LOOKS == 0:
            await asyncio.sleep(0)
        left = None if end is None else end - loop.time()
        if left is not None and left <= 0:
            raise TimedOut("nothing came within the time limit")
        try:
            async with asyncio.timeout(left):
                found = await _loop_of(manager).sleep(attempt)
            if found is not None:
                return found
        except TimeoutError:
            if end is None or loop.time() < end:
                raise


class _Wrapped(Generic[T]):
    """An object of `hamlyn`, as `sync`."""

    sync: T

    def __init__(self, sync: T) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"<hamlyn.aio of {self.sync!r}>"


class Queue(_Wrapped[_hamlyn.Queue]):
    """A notification queue whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Notification:
        """The next notification. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout)


class TaggedReceiver(_Wrapped[_hamlyn.TaggedReceiver]):
    """A receiver of tagged writes whose `get_tag` is awaited."""

    async def get_tag(self, timeout: float | None = None) -> _hamlyn.Tag:
        """The next tag. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_get_tag, timeout)


class DatagramReceiver(_Wrapped[_hamlyn.DatagramReceiver]):
    """A receiver of datagrams whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Datagram:
        """The next datagram. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout)


class StreamReceiver(_Wrapped[_hamlyn.StreamReceiver]):
    """A receiver of a stream: `receive` is awaited, and `async for` takes its records."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Record:
        """The next record. Raises `TimedOut`, and `Closed` after the stream's end."""
        return await until(self.sync._manager, self.sync.try_receive, timeout)

    def __aiter__(self) -> StreamReceiver:
        return self

    async def __anext__(self) -> _hamlyn.Record:
        # `next` ends the iteration where the sender has closed, and raises where it ended
        # otherwise; there it does not wait.
        try:
            return await self.receive()
        except Closed:
            for record in self.sync:
                return record
            raise StopAsyncIteration from None


class ApertureStreamReceiver(_Wrapped[_hamlyn.ApertureStreamReceiver]):
    """A receiver of a stream through an aperture, as a `StreamReceiver`."""

    async def receive(
        self, timeout: float | None = None
    ) -> _hamlyn.Record | _hamlyn.VolatileRecord:
        """The next record. Raises `TimedOut`, and `Closed` after the stream's end."""
        return await until(self.sync._manager, self.sync.try_receive, timeout)

    def __aiter__(self) -> ApertureStreamReceiver:
        return self

    async def __anext__(self) -> _hamlyn.Record | _hamlyn.VolatileRecord:
        try:
            return await self.receive()
        except Closed:
            for record in self.sync:
                return record
            raise StopAsyncIteration from None


class Group(_Wrapped[_hamlyn.Group]):
    """The root of a group, whose members' parts are awaited."""

    async def gather(self, timeout: float | None = None) -> list[_hamlyn.GroupPart]:
        """The parts of all members. Raises `TimedOut`."""
        return await self.wait_for(self.sync.members, timeout)

    async def wait_for(self, k: int, timeout: float | None = None) -> list[_hamlyn.GroupPart]:
        """The parts of `k` members, whichever. Raises `TimedOut`."""

        def attempt() -> list[_hamlyn.GroupPart] | None:
            try:
                return self.sync.wait_for(k, 0)
            except TimedOut:
                return None

        return await until(self.sync._manager, attempt, timeout)


class GroupMember(_Wrapped[_hamlyn.GroupMember]):
    """A member of a group whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> bytes:
        """What the root scatters or broadcasts next. Raises `TimedOut`."""

        def attempt() -> bytes | None:
            try:
                return self.sync.receive(0)
            except TimedOut:
                return None

        return await until(self.sync._manager, attempt, timeout)


class Server(_Wrapped[_hamlyn.Server]):
    """A server whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Request:
        """The next request. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout)


class Client(_Wrapped[_hamlyn.Client]):
    """A client whose calls are awaited; any number of tasks may call."""

    async def call(self, request: Buffer, timeout: float | None = None) -> bytes:
        """Sends a request, and awaits the reply. A task that is cancelled leaves nothing behind:
        the reply will be dropped."""
        call = await self.start(request, timeout)
        return await until(self.sync._manager, call.try_finish, timeout)

    async def start(self, request: Buffer, timeout: float | None = None) -> _hamlyn.Call:
        """Sends a request: at once where a call is free, else on a thread."""
        if len(memoryview(request).cast("B")) <= 4092:
            try:
                return self.sync.start(request, 0)
            except TimedOut:
                pass
        return await asyncio.to_thread(self.sync.start, request, timeout)


class Manager(_Wrapped[_hamlyn.Manager]):
    """A manager whose events are awaited; an asynchronous context manager."""

    async def next_event(self, timeout: float | None = None) -> Event:
        """The next event. Raises `TimedOut`."""
        return await until(self.sync, self.sync.next_event, timeout)

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits until a packet or an event has arrived; says whether one has."""
        # Whoever calls this in a loop lets other tasks run.
        await asyncio.sleep(0)
        try:
            return await until(self.sync, lambda: self.sync.wait(0) or None, timeout)
        except TimedOut:
            return False

    async def connect(
        self, name: str, greeting: Buffer | None = None, timeout: float | None = 10.0
    ) -> _hamlyn.Link:
        """`Manager.connect`, on a thread, since a server may take its time to answer."""
        return await asyncio.to_thread(self.sync.connect, name, greeting, timeout)

    async def send(
        self,
        ticket: _hamlyn.Ticket,
        data: Buffer,
        metadata: Buffer | None = None,
        timeout: float | None = None,
    ) -> None:
        """`Manager.send`: at once where there is room, else on a thread."""
        if len(memoryview(data).cast("B")) <= 4096 and self.sync.try_send(ticket, data, metadata):
            return
        await asyncio.to_thread(self.sync.send, ticket, data, metadata, timeout)

    async def __aenter__(self) -> Manager:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.sync.close)


__all__ = [
    "ApertureStreamReceiver",
    "Client",
    "DatagramReceiver",
    "Group",
    "GroupMember",
    "Manager",
    "Queue",
    "Server",
    "StreamReceiver",
    "TaggedReceiver",
    "until",
]
