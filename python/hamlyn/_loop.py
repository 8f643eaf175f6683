"""The tasks, transports and servers of an event loop that wait on a manager, and their wake-ups."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from . import _hamlyn
from ._errors import HamlynError, TimedOut

T = TypeVar("T")

# Looks in a row while packets for others arrive; then the loop's other tasks run.
_LOOKS = 64
# The number of spins left out, after spins were in vain more often than not.
_LUCK_MAX = 16


class Watcher(Protocol):
    """An object that looks in turns of the loop, if tasks would be too many: a transport, a server."""

    @property
    def end(self) -> _hamlyn.ByteStream | _hamlyn.ByteListener:
        """The object whose arrivals make it look."""

    def look(self) -> bool:
        """Does as much as is possible now; returns whether that was anything. When it has nothing more
        to wait for, it has called `Loop.unwatch`."""

    def is_sending(self) -> bool:
        """Whether it waits for room, too, and so looks in each turn."""

    def fail(self, error: BaseException) -> None:
        """Its look has raised this error, which must not affect others: reports it, and ends."""


class Loop:
    """The tasks and watchers of one event loop that wait on one manager."""

    def __init__(
        self, manager: _hamlyn.Manager, loop: asyncio.AbstractEventLoop, key: tuple[int, int]
    ) -> None:
        self.manager = manager
        self.loop = loop
        self.key = key
        self.descriptor = -1
        self.sleepers: set[asyncio.Future[None]] = set()
        # In the order of their coming; and the same with the objects that each looks at, until that
        # changes.
        self.watchers: dict[Watcher, None] = {}
        self.listed: tuple[list[Watcher], list[_hamlyn.ByteStream | _hamlyn.ByteListener]] | None = None
        # Watchers that look in the next turn, whatever has come.
        self.eager: dict[Watcher, None] = {}
        self.is_due = False
        # After they found something, watchers look again for a while before they sleep, unless that was
        # in vain the last times.
        self.spin: float | None = None
        # Something was sent in this turn, as an answer to an arrival.
        self.has_sent = False
        # The next turn begins by preparing to wait, before a last look.
        self.waits_next = False
        self.spins_until = 0.0
        self.luck = 0

    async def sleep(self, look: Callable[[], T | None]) -> T | None:
        """Sleeps until something may have come, or the last look has found it."""
        sleeper: asyncio.Future[None] = self.loop.create_future()
        self.begin(sleeper)
        try:
            # Before the last look, so that any later arrival wakes this task.
            if self.manager.prepare_to_wait():
                found = look()
                if found is not None:
                    return found
                await sleeper
            return None
        finally:
            self.end(sleeper)

    def begin(self, sleeper: asyncio.Future[None]) -> None:
        self.watch_descriptor()
        self.sleepers.add(sleeper)

    def end(self, sleeper: asyncio.Future[None]) -> None:
        self.sleepers.discard(sleeper)
        self.leave_descriptor()

    def watch(self, watcher: Watcher) -> None:
        """Makes it look in the loop's next turn, and whenever something may have come."""
        # Both raise an error if the manager is closed; then nothing was done.
        if self.spin is None:
            self.spin = self.manager._spin
        self.watch_descriptor()
        self.watchers[watcher], self.listed = None, None
        self.soon(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            del self.watchers[watcher]
            self.listed = None
            self.leave_descriptor()

    def soon(self, watcher: Watcher | None = None) -> None:
        """To be called when a watcher has something new to wait for, such as room."""
        if watcher is not None:
            self.eager[watcher] = None
        if not self.is_due:
            self.is_due = True
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        self.is_due = False
        # Unless there is certainly nothing, so that no error leaves the others waiting.
        found = True
        try:
            waits_next, self.waits_next, self.has_sent = self.waits_next, False, False
            if waits_next:
                found = False
            elif self.look():
                if self.spins_until:
                    self.luck = min(self.luck + 2, _LUCK_MAX)
                self.spins_until = self.spin_from_now()
                # If no spin follows: an answer has left, and the peer needs time, so everything is
                # prepared in this turn; else tasks may be about to make an answer, and run first.
                found = bool(self.spins_until) or not self.has_sent
                self.waits_next = not self.spins_until and found
            elif time.monotonic() < self.spins_until:
                found = True
            else:
                if self.spins_until:
                    self.luck -= 1
                    self.spins_until = 0.0
                found = False
            if not found:
                # Before the last look, as in `sleep`.
                found = True
                found = not self.manager.prepare_to_wait()
                if not found and self.look():
                    found, self.spins_until = True, self.spin_from_now()
        except HamlynError:
            # The manager is closed: the watchers look once more, find it closed, and end.
            found = self.look_at_all()
        finally:
            if found and self.watchers:
                self.soon()

    def spin_from_now(self) -> float:
        if self.luck < 0 and self.luck > -_LUCK_MAX:
            # Not this time; after a few, once more.
            self.luck -= 1
            return 0.0
        self.luck = max(self.luck, 0)
        return time.monotonic() + self.spin if self.spin else 0.0

    def look(self) -> bool:
        """Makes those watchers look that wait for room, and those for which something has come."""
        found = bool(self.eager) and self.have_look(list(self.eager))
        if self.listed is None:
            watchers = list(self.watchers)
            self.listed = (watchers, [watcher.end for watcher in watchers])
        watchers, ends = self.listed
        due = [watchers[at] for at in self.manager._ready(ends)]
        return self.have_look(due) or found

    def look_at_all(self) -> bool:
        return self.have_look(list(self.watchers))

    def have_look(self, due: list[Watcher]) -> bool:
        found = False
        for watcher in due:
            self.eager.pop(watcher, None)
            # An earlier watcher has ended this one.
            if watcher in self.watchers:
                try:
                    found = watcher.look() or found
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    # As in asyncio's own: an error of one connection, and no reason for others to wait.
                    watcher.fail(error)
                    found = True
                if watcher in self.watchers and watcher.is_sending():
                    self.eager[watcher] = None
        return found

    def watch_descriptor(self) -> None:
        if self.sleepers or self.watchers:
            return
        self.descriptor = self.manager.fileno()
        self.loop.add_reader(self.descriptor, self.readable)

    def leave_descriptor(self) -> None:
        if not self.sleepers and not self.watchers:
            self.loop.remove_reader(self.descriptor)

    def readable(self) -> None:
        with _lock:
            others = [other for other in _loops.values() if other.key[0] == self.key[0]]
            if len(others) == 1:
                # No other task begins meanwhile.
                self.manager._awake()
        if len(others) == 1:
            self.wake()
            return
        # The signal may have been for tasks of other loops as well, and comes only once.
        self.manager.silence()
        for other in others:
            if other is self:
                self.wake()
            elif other.sleepers or other.watchers:
                try:
                    other.loop.call_soon_threadsafe(other.wake)
                except RuntimeError:
                    pass  # That loop is closed.

    def wake(self) -> None:
        for sleeper in self.sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
        if self.watchers and not self.is_due:
            self.turn()


# Weak: otherwise the table would keep every manager that was ever waited on. The waiters keep each one,
# which keeps its event loop, so that no other loop has that one's id.
_loops: WeakValueDictionary[tuple[int, int], Loop] = WeakValueDictionary()
_lock = threading.Lock()


def loop_of(manager: _hamlyn.Manager) -> Loop:
    """The `Loop` of the running event loop. There is one, since a descriptor has one reader."""
    loop = asyncio.get_running_loop()
    key = (manager._key, id(loop))
    with _lock:
        found = _loops.get(key)
        if found is None:
            found = _loops[key] = Loop(manager, loop, key)
        return found


async def until(
    manager: _hamlyn.Manager,
    attempt: Callable[[], T | None],
    timeout: float | None = None,
    last: Callable[[float], T] | None = None,
) -> T:
    """Waits until `attempt()` returns something; after `timeout` seconds raises `TimedOut`, or calls
    `last(0)`.

    `attempt` is called whenever something may have come. Its result is returned before anything else
    can happen, so that a cancelled task has taken nothing.
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
            if last is not None:
                return last(0)
            raise TimedOut("nothing came within the time limit")
        try:
            async with asyncio.timeout(left):
                found = await loop_of(manager).sleep(attempt)
            if found is not None:
                return found
        except TimeoutError:
            if end is None or loop.time() < end:
                raise


async def until_done(
    manager: _hamlyn.Manager, call: Callable[[float], T], timeout: float | None
) -> T:
    """Waits until `call(0)` returns something; it raises `TimedOut` as long as it would have to wait.
    Raises `TimedOut` when `timeout` seconds have passed."""

    def attempt() -> T | None:
        try:
            return call(0)
        except TimedOut:
            return None

    return await until(manager, attempt, timeout, call)
