"""Clients that connect again when their server goes.

::

    connected --the connection ends, or the server drains--> outage
    outage --delay, try; each delay longer, as the policy says--> connected, or given up for good

A connection that brought no reply and did not last belongs to the outage before it. Nothing happens
between calls: the first call in an outage connects, and others wait for it within their own time
limits.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar, Unpack

from . import _hamlyn
from ._errors import (
    ApplicationError,
    Closed,
    Declined,
    Draining,
    Forked,
    HamlynError,
    Misuse,
    TimedOut,
    Unreachable,
)
from ._types import AnyArray, Buffer, ClientSettings

C = TypeVar("C")

# Between two attempts of one outage, for every policy.
_DELAY_LEAST = 0.001


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """The times and number of attempts of a `ReconnectingClient`. Times are seconds.

    `first_delay` is before the first attempt of an outage; each further one is `factor` times as long,
    `delay_max` at most. A random part of up to its own length is added to each delay, so that not all
    clients of a server come back at once. `attempt_limit` is the time limit of one attempt, also for a
    name without a server. `attempts_max` and `outage_max` end an outage: then the client has given up
    for good. `None` is without limit."""

    first_delay: float = 0.01
    factor: float = 2.0
    delay_max: float = 5.0
    attempt_limit: float = 1.0
    attempts_max: int | None = None
    outage_max: float | None = None

    def __post_init__(self) -> None:
        if not (self.first_delay >= 0 and self.delay_max >= 0 and self.attempt_limit > 0):
            raise Misuse(f"{self}: delays are at least 0 seconds, and an attempt takes more")
        if not self.factor >= 1:
            raise Misuse(f"factor={self.factor}: it is at least 1")


class Outages(Generic[C]):
    """A client's state of its connections and attempts. `C`: the type of a connection. For any number
    of threads, none of which waits for a thread that connects."""

    def __init__(self, policy: ReconnectPolicy, now: Callable[[], float] = time.monotonic) -> None:
        # Held for moments: a thread that waits or connects does not hold it.
        self._lock = threading.RLock()
        self.policy = policy
        self.now = now
        self.client: C | None = None
        #: The connection's number: 1 is the first.
        self.number = 0
        #: The reason why there was no connection; final if `given_up`.
        self.why = "it has not been connected yet"
        self.given_up = False
        self._has_tried = False
        self._began = 0.0
        self._has_replied = False
        self._outage_began: float | None = None
        #: The time when the next attempt may begin; `None` once it has.
        self._next_at: float | None = None
        self._delays = self._all_delays()

    def _all_delays(self) -> Iterator[float]:
        delay, attempts = self.policy.first_delay, 0
        while self.policy.attempts_max is None or attempts < self.policy.attempts_max:
            delay = min(delay, self.policy.delay_max)
            yield delay + random.uniform(0, delay)
            # So that a server that refuses at once does not get attempts without a pause.
            delay, attempts = max(delay * self.policy.factor, _DELAY_LEAST), attempts + 1

    @property
    def connection(self) -> tuple[int, C | None]:
        """The number of the connection, and the connection, if there is one."""
        with self._lock:
            return self.number, self.client

    def has_connected(self, client: C) -> None:
        with self._lock:
            self.client, self.number = client, self.number + 1
            self._began, self._has_replied = self.now(), False

    def has_replied(self, number: int) -> None:
        with self._lock:
            self._has_replied |= number == self.number

    def has_failed(self, error: HamlynError) -> None:
        self.why = str(error)

    def is_lost(self, number: int, error: HamlynError) -> None:
        """Connection `number` is no longer usable."""
        with self._lock:
            if number != self.number or self.client is None:
                return
            self.client, self.why, self._next_at = None, str(error), None
            if self._has_replied or self.now() - self._began >= self.policy.delay_max:
                self._delays, self._outage_began = self._all_delays(), None

    def next_delay(self) -> float:
        """The delay before the next attempt, in any thread; there is none before the very first. Raises
        `Unreachable` if the policy allows no more attempts."""
        with self._lock:
            if self.number == 0 and not self._has_tried:
                self._has_tried = True
                return 0.0
            if self._outage_began is None:
                self._outage_began = self.now()
            is_over = (
                self.policy.outage_max is not None
                and self.now() - self._outage_began >= self.policy.outage_max
            )
            if self._next_at is None or is_over or self.given_up:
                delay = None if is_over or self.given_up else next(self._delays, None)
                if delay is None:
                    self.given_up = True
                    raise Unreachable(f"no connection, and no more attempts: {self.why}")
                self._next_at = self.now() + delay
                if self.policy.outage_max is not None:
                    # At the outage's end this is called once more, and there is no further attempt.
                    self._next_at = min(self._next_at, self._outage_began + self.policy.outage_max)
            return max(self._next_at - self.now(), 0.0)

    def check_end(self) -> None:
        """After the delay: raises `Unreachable` if the outage has lasted as long as the policy
        allows."""
        with self._lock:
            if self._outage_began is not None and self.policy.outage_max is not None:
                if self.now() - self._outage_began >= self.policy.outage_max:
                    self.next_delay()

    def begins(self) -> None:
        """An attempt begins: calls without time to wait for it have not used one up."""
        with self._lock:
            self._next_at = None

    def __repr__(self) -> str:
        client = self.client
        if client is not None:
            return f"connection {self.number}, {client!r}"
        return f"{'given up' if self.given_up else 'not connected'}: {self.why}"


class Limit:
    """A time limit of a call, in all."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float | None:
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def at_most(self, seconds: float) -> float:
        left = self.left
        return seconds if left is None else min(seconds, left)

    def check(self, why: str) -> None:
        if self.left == 0:
            raise TimedOut(f"no connection within the time limit: {why}")


class Reconnecting(Generic[C]):
    """The common part of clients that connect again, for awaited calls and others."""

    _title: ClassVar[str]

    def __init__(
        self,
        manager: _hamlyn.Manager,
        name: str,
        policy: ReconnectPolicy | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """A client of `[user@]name`; `settings` are those of `Client.connect`. The first call connects
        it, or `connect`."""
        self._manager, self._name, self._settings = manager, name, settings
        self._outages: Outages[C] = Outages(policy or ReconnectPolicy())
        self._closing = threading.Event()

    def _end(self, client: C) -> None:
        raise NotImplementedError

    def _begins(self, limit: Limit) -> float:
        """Begins an attempt to connect, for at most the returned number of seconds."""
        if self._closing.is_set():
            raise Closed("the client is closed")
        limit.check(self._outages.why)
        self._outages.begins()
        return limit.at_most(self._outages.policy.attempt_limit)

    def _has_connected(self, client: C) -> None:
        if self._closing.is_set():
            self._end(client)
            raise Closed("the client is closed")
        self._outages.has_connected(client)

    def _has_failed(self, error: HamlynError) -> None:
        """Raises the error if further attempts are of no use."""
        if isinstance(error, (Forked, Misuse)) or self._manager.closed:
            raise error
        self._outages.has_failed(error)

    def _is_lost(self, number: int, error: Closed, may_be_there: bool) -> None:
        """A call has failed with its connection. Raises the error if the call must not be made
        again."""
        if self._closing.is_set() or self._manager.closed:
            raise error
        self._outages.is_lost(number, error)
        if may_be_there and not isinstance(error, Draining):
            raise error

    @property
    def connections(self) -> int:
        """Connections so far: a change means that there was an outage."""
        return self._outages.number

    def close(self) -> None:
        """Ends the connection; waiting calls raise `Closed`."""
        self._closing.set()
        client = self._outages.client
        if client is not None:
            self._end(client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self._title} of {self._name!r}: {self._outages!r}>"


class ReconnectingClient(Reconnecting[_hamlyn.Client]):
    """A client of a named service that connects again when the server is gone or drains. Any number of
    threads may call.

    A request is sent to one server once. If the connection ends before the reply has come, this side
    cannot know whether the request was carried out: the call raises `Closed`, unless it is idempotent,
    that is, does no harm twice; then it is sent again over the next connection. A request that
    certainly reached no server is sent over the next connection in any case. Calls wait for a
    connection within their own time limits."""

    _title = "hamlyn.ReconnectingClient"

    def __init__(
        self,
        manager: _hamlyn.Manager,
        name: str,
        policy: ReconnectPolicy | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        super().__init__(manager, name, policy, **settings)
        # Held by the thread that connects, while it does.
        self._lock = threading.Lock()

    def _end(self, client: _hamlyn.Client) -> None:
        client.close()

    @classmethod
    def connect(
        cls,
        manager: _hamlyn.Manager,
        name: str,
        timeout: float | None = 10.0,
        *,
        policy: ReconnectPolicy | None = None,
        **settings: Unpack[ClientSettings],
    ) -> Self:
        """Makes a client that is connected; waits at most `timeout` seconds. Raises the errors of
        `Client.connect`."""
        made = cls(manager, name, policy, **settings)
        made._outages.has_connected(_hamlyn.Client.connect(manager, name, timeout, **settings))
        return made

    def call(
        self, request: Buffer, timeout: float | None = None, *, is_idempotent: bool = False
    ) -> bytes:
        """Sends a request and waits for the reply, through outages, at most `timeout` seconds in all.
        Raises `TimedOut`; `Closed` if the connection ended when the server may have had the request;
        `Unreachable` if the policy allows no more attempts; and the errors of `Client.call`."""
        return self._call(request, timeout, is_idempotent, _hamlyn.Client.start)

    def call_array(
        self, array: Buffer, timeout: float | None = None, *, is_idempotent: bool = False
    ) -> AnyArray:
        """`call` with an array, for an array: see `Client.call_array`."""
        message = _hamlyn.pack_array(array)
        return _hamlyn.unpack_array(self.call(message, timeout, is_idempotent=is_idempotent))

    def call_within(
        self, request: Buffer, limit: float, *, is_idempotent: bool = False
    ) -> bytes:
        """`call` within `limit` seconds; the server gets the rest of that limit."""
        return self._call(request, limit, is_idempotent, _hamlyn.Client.start_within)

    def _call(
        self,
        request: Buffer,
        timeout: float | None,
        is_idempotent: bool,
        start: Callable[..., _hamlyn.Call],
    ) -> bytes:
        limit = Limit(timeout)
        while True:
            number, client = self._connection(limit)
            call = None
            try:
                call = start(client, request, limit.left)
                reply = call.finish(limit.left)
            except Closed as error:
                self._is_lost(number, error, call is not None and not is_idempotent)
            except (ApplicationError, Declined):
                self._outages.has_replied(number)
                raise
            else:
                self._outages.has_replied(number)
                return reply
            finally:
                if call is not None:
                    call.forget()

    def _connection(self, limit: Limit) -> tuple[int, _hamlyn.Client]:
        outages = self._outages
        # Another thread may be connecting.
        if not self._lock.acquire(timeout=limit.at_most(threading.TIMEOUT_MAX)):
            raise TimedOut(f"no connection within the time limit: {outages.why}")
        try:
            while True:
                # Another thread's call may find it to be lost at any time.
                number, client = outages.connection
                if client is not None:
                    if (ended := client.ended) is None:
                        return number, client
                    outages.is_lost(number, Closed(ended))
                self._closing.wait(limit.at_most(outages.next_delay()))
                outages.check_end()
                seconds = self._begins(limit)
                try:
                    client = _hamlyn.Client.connect(
                        self._manager, self._name, seconds, **self._settings
                    )
                except HamlynError as error:
                    self._has_failed(error)
                else:
                    self._has_connected(client)
        finally:
            self._lock.release()
