"""Threads of `hamlyn.aio`, for what waits in the library where no task can: to connect, to send what
has no room, to reply at length.

They are daemons, and never those of the event loop's own executor: what waits here holds up nothing
else of the program, and neither does the end of the loop wait for it. A task that is cancelled ends
what its thread waits for (`_hamlyn._Work`), within a slice, unless it was said to go on.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from . import _hamlyn
from ._errors import SystemRefused, TimedOut
from ._reconnect import Limit

T = TypeVar("T")

# A thread that has nothing to do ends after so many seconds.
_IDLE_S = 1.0
# When the interpreter ends, threads have so long to come back from the library.
_EXIT_S = 2.0


class _Job(Generic[T]):
    """What a task has a thread do."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.work = _hamlyn._Work()
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[T] = self.loop.create_future()
        # A thread is free for it.
        self.has_thread = False
        self.is_wanted = True

    def run(self) -> Callable[[], None]:
        """Does it; returns what tells the task."""
        result: Any = None
        failed: BaseException | None = None
        try:
            result = self.work.run(self.call)
        except BaseException as error:
            failed = error

        def end() -> None:
            if failed is None:
                self.done.set_result(result)
            elif self.is_wanted:
                self.done.set_exception(failed)
            else:
                self.done.cancel()

        def tell() -> None:
            try:
                self.loop.call_soon_threadsafe(end)
            except RuntimeError:
                pass  # That loop is closed.

        return tell


class Threads:
    """At most so many threads, each begun when it is needed. What they are given begins in its order;
    with one thread it also ends in it."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        """Also in a forked child, whose parent's the threads are."""
        self._lock = threading.Lock()
        self._given, self._ended = threading.Condition(self._lock), threading.Condition(self._lock)
        self._jobs: deque[_Job[Any]] = deque()
        self._running: set[_Job[Any]] = set()
        self._count = self._idle = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way, or waits for a thread."""
        with self._lock:
            return bool(self._running or self._jobs)

    async def run(
        self,
        call: Callable[[Limit], T],
        timeout: float | None = None,
        why: str = "no thread was free within the time limit",
        *,
        goes_on: bool = False,
        settles: bool = False,
    ) -> T:
        """Calls it on a thread with the time limit, which it holds itself; without a thread within
        that, raises `TimedOut`, saying `why`. A task that is cancelled takes back what has not begun,
        and ends what has, unless that `goes_on`; it waits until that has ended where it `settles`."""
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"the timeout is {timeout}; it is None or at least 0 seconds")
        limit = Limit(timeout)
        job: _Job[T] = _Job(lambda: call(limit))
        self._give(job)
        try:
            # Not the future itself, which would then be cancelled with the task.
            if not job.has_thread:
                await asyncio.wait((job.done,), timeout=limit.left)
                if not job.done.done() and self._take_back(job):
                    raise TimedOut(why)
            await asyncio.wait((job.done,))
            return job.done.result()
        except asyncio.CancelledError:
            job.is_wanted = False
            if job.done.done():
                job.done.exception()
            elif not self._take_back(job) and not goes_on:
                job.work.give_up()
                if settles:
                    await asyncio.wait((job.done,))
            raise
        finally:
            # Its exception may be kept for long.
            del job, call

    def _give(self, job: _Job[Any]) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                job.has_thread = True
                self._given.notify()
            elif self._count < self._most:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    if self._count == 0:
                        self._jobs.remove(job)
                        raise SystemRefused(f"no thread to wait on: {error}") from error
                else:
                    self._count += 1
                    job.has_thread = True

    def _take_back(self, job: _Job[Any]) -> bool:
        """Whether it had not begun; then it never will."""
        with self._lock:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def _work(self) -> None:
        while (job := self._next()) is not None:
            tell = job.run()
            with self._lock:
                self._running.discard(job)
                self._ended.notify_all()
            # Whoever is told may send the next at once.
            tell()
            del job, tell

    def _next(self) -> _Job[Any] | None:
        with self._lock:
            end = time.monotonic() + _IDLE_S
            while not self._jobs:
                if time.monotonic() >= end:
                    self._count -= 1
                    return None
                self._idle += 1
                self._given.wait(max(end - time.monotonic(), 0))
                self._idle -= 1
            job = self._jobs.popleft()
            self._running.add(job)
            return job

    def _end(self, end: float) -> None:
        """Takes back everything, and waits a while for what has begun."""
        with self._lock:
            self._jobs.clear()
            for job in self._running:
                job.work.give_up()
            self._ended.wait_for(lambda: not self._running, max(end - time.monotonic(), 0))


_all: WeakSet[Threads] = WeakSet()

THREADS_MAX = 1024

alone = Threads(THREADS_MAX, "hamlyn-aio")
"""A thread for each that waits, up to very many: whatever one waits for, others do not wait for it."""


def _at_exit() -> None:
    end = time.monotonic() + _EXIT_S
    for threads in list(_all):
        threads._end(end)


def _forget_all() -> None:
    for threads in list(_all):
        threads._forget()


# Before the interpreter ends, which would end a thread within a call of the library.
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget_all)
