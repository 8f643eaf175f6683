"""Threads of `hamlyn.aio`, for waits in the library that a task cannot do: to connect, to send without
room, to send a long reply.

They are daemons, and not those of the event loop's own executor: a wait here delays no other part of
the program, nor the end of the loop. Cancelling a task ends its thread's wait (`_hamlyn._Work`), within
a slice, unless the work is to go on.
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

T = TypeVar("T")

# A thread without work ends after this many seconds.
_IDLE_S = 1.0
# When the interpreter ends, threads have this many seconds to come back from the library.
_EXIT_S = 2.0


class Limit:
    """A time limit of a call, in all."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float | None:
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)


class _Job(Generic[T]):
    """A thread's work for a task."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.work = _hamlyn._Work()
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[T] = self.loop.create_future()
        # Whether a thread has taken it.
        self.has_thread = False
        self.is_wanted = True

    def run(self) -> Callable[[], None]:
        """Does it; returns a function that passes the result to the task."""
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
    """At most `most` threads, each begun when it is needed. Jobs begin in the order of their coming;
    with one thread they also end in it."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        """Also in a forked child, since the threads are the parent's."""
        self._lock = threading.Lock()
        self._given, self._ended = threading.Condition(self._lock), threading.Condition(self._lock)
        self._jobs: deque[_Job[Any]] = deque()
        self._running: set[_Job[Any]] = set()
        self._count = self._idle = 0

    @property
    def is_busy(self) -> bool:
        """Whether any job is running, or waits for a thread."""
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
        """Calls it on a thread with the time limit, which it observes itself; without a thread within
        the limit, raises `TimedOut` with `why`. Cancelling the task removes a job that has not begun,
        and ends one that has, unless that `goes_on`; it waits for its end if it `settles`."""
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"the timeout is {timeout}; it is None or at least 0 seconds")
        limit = Limit(timeout)
        job: _Job[T] = _Job(lambda: call(limit))
        self._give(job)
        try:
            # Not the future itself, since cancelling the task would cancel it.
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
            # The program may keep its exception for long.
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
        """Removes it; returns whether it had not begun."""
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
            # The task may send the next at once.
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
        """Removes all waiting jobs, and waits a while for the running ones."""
        with self._lock:
            self._jobs.clear()
            for job in self._running:
                job.work.give_up()
            self._ended.wait_for(lambda: not self._running, max(end - time.monotonic(), 0))


_all: WeakSet[Threads] = WeakSet()

THREADS_MAX = 1024

alone = Threads(THREADS_MAX, "hamlyn-aio")
"""A thread for each wait, up to very many: no wait delays another."""


def _at_exit() -> None:
    end = time.monotonic() + _EXIT_S
    for threads in list(_all):
        threads._end(end)


def _forget_all() -> None:
    for threads in list(_all):
        threads._forget()


# Before the interpreter ends, which would kill a thread within a call of the library.
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget_all)
