"""Request and reply of `hamlyn.aio`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar, Unpack

from . import _hamlyn
from ._errors import TimedOut
from ._loop import until, until_done
from ._reconnect import ReconnectPolicy
from ._threads import Limit, Threads, alone
from ._types import AnyArray, Buffer, ClientSettings
from ._wrapped import (
    AnyManager,
    Closes,
    Grown,
    Offered,
    connected,
    plain,
    size_of,
)

T = TypeVar("T")


class Server(Offered[_hamlyn.Server]):
    """A server whose `receive` is awaited; an asynchronous context manager: leaving it closes it."""

    @property
    def clients(self) -> int:
        """The number of connected clients."""
        return self.sync.clients

    async def receive(self, timeout: float | None = None) -> _hamlyn.Request:
        """Receives the next request. Raises `TimedOut`, and `Draining` if it drains and no request is
        left."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)

    async def drain(self, timeout: float | None = 10.0) -> int:
        """`hamlyn.Server.drain`, on a thread of its own: tasks go on receiving and replying. If its
        task is cancelled it goes on there, until `timeout`."""
        return await alone.run(lambda limit: self.sync.drain(limit.left), timeout, goes_on=True)


_THREADS = 4
"""For each client, for its long requests and for its replies: a slow client delays no other."""

_of_clients: dict[tuple[int, _hamlyn.Link], tuple[Threads, int]] = {}
"""By event loop and link: threads for replies, and how many use them."""


# The event loops of several threads share them.
_lock = threading.Lock()


@contextlib.contextmanager
def _threads_for(link: _hamlyn.Link) -> Iterator[Threads]:
    key = (id(asyncio.get_running_loop()), link)
    with _lock:
        if key not in _of_clients:
            # Drops unused threads, but not those with a reply that goes on without its task.
            for of, (pool, users) in list(_of_clients.items()):
                if not users and not pool.is_busy:
                    del _of_clients[of]
        pool, users = _of_clients.get(key) or (Threads(_THREADS, "hamlyn-reply"), 0)
        _of_clients[key] = (pool, users + 1)
    try:
        yield pool
    finally:
        with _lock:
            pool, users = _of_clients.pop(key)
            # Also while a reply of a cancelled task goes on.
            if users > 1 or pool.is_busy:
                _of_clients[key] = (pool, users - 1)


_NO_CALL = (
    "no call was free within the time limit, or the server made no room for a long request; the call was "
    "forgotten"
)


async def reply(
    request: _hamlyn.Request, data: Buffer, timeout: float | None = 10.0
) -> None:
    """`request.reply`: at once if its client has room, else on one of four threads for that client, so
    that a client that takes no replies delays no other. Raises the errors of `request.reply`, which
    usually concern that client alone; then the client learns that no reply will come, and also if the
    task is cancelled before a thread was free."""
    limit = Limit(timeout)
    if not request._try_reply(data):
        with request, _threads_for(request.link) as threads:
            late = "the reply did not leave within the time limit"
            await threads.run(lambda t: request.reply(data, t.left), limit.left, late, goes_on=True)


async def reply_array(
    request: _hamlyn.Request, array: Buffer, timeout: float | None = 10.0
) -> None:
    """`reply` with an array, its type and shape, for `call_array`."""
    await reply(request, _hamlyn.pack_array(array), timeout)


async def fail(
    request: _hamlyn.Request, code: int, text: str, timeout: float | None = 10.0
) -> None:
    """`request.fail`, as `reply`: a client that takes no replies delays no other."""
    limit = Limit(timeout)
    if not request._try_fail(code, text):
        with request, _threads_for(request.link) as threads:
            late = "the answer did not leave within the time limit"
            await threads.run(
                lambda t: request.fail(code, text, t.left), limit.left, late, goes_on=True
            )


async def cancelled(request: _hamlyn.Request) -> None:
    """Returns when no caller waits for the reply any more: see `Request.is_cancelled`. For a task
    beside the one that makes the reply. Raises `Misuse` if there was a reply already."""
    try:
        await until(request._manager, lambda: request.is_cancelled() or None, request.time_left)
    except TimedOut:
        pass


class Client(Grown[_hamlyn.Client], Closes[_hamlyn.Client]):
    """A client whose calls are awaited; any number of tasks of one event loop may call. An asynchronous
    context manager: leaving it closes the client.

    A time limit is for all of a call. A call waits, as a task, until a call is free; a request that is
    too long to be sent at once uses one of four threads of this client's own, until it has left, its
    time limit has passed or its task is cancelled."""

    _connect = _hamlyn.Client.connect

    def __init__(self, sync: _hamlyn.Client) -> None:
        super().__init__(sync)
        self._threads = Threads(_THREADS, "hamlyn-request")

    @classmethod
    async def connect(
        cls,
        manager: AnyManager,
        name: str,
        timeout: float | None = 10.0,
        **settings: Unpack[ClientSettings],
    ) -> Self:
        """`hamlyn.Client.connect`, with its settings, on a thread of its own; cancelling the task gives
        the attempt up."""

        def connect(timeout: float | None) -> _hamlyn.Client:
            return cls._connect(plain(manager), name, timeout, **settings)

        return cls(await connected(connect, timeout))

    async def call(self, request: Buffer, timeout: float | None = None) -> bytes:
        """Sends a request, and awaits the reply, at most `timeout` seconds in all. Raises `TimedOut`,
        and the errors of `hamlyn.Client.call`. After an error, and if the task is cancelled, the call
        is forgotten: the server's handler can see that, and the reply will be dropped."""
        limit = Limit(timeout)
        return await self._finish(await self.start(request, limit.left), limit)

    async def call_array(self, array: Buffer, timeout: float | None = None) -> AnyArray:
        """`call` with an array, for an array: see `hamlyn.Client.call_array`."""
        return _hamlyn.unpack_array(await self.call(_hamlyn.pack_array(array), timeout))

    async def call_within(self, request: Buffer, limit: float) -> bytes:
        """`call` within `limit` seconds, which the server knows: see `hamlyn.Client.call_within`."""
        end = Limit(limit)
        return await self._finish(await self.start_within(request, limit), end)

    async def _finish(self, call: _hamlyn.Call, limit: Limit) -> bytes:
        try:
            return await until(self.sync._manager, call.try_finish, limit.left, call.finish)
        finally:
            # The program may keep its task, or the exception, for long.
            call.forget()

    async def start(self, request: Buffer, timeout: float | None = None) -> _hamlyn.Call:
        """Sends a request, awaiting a free call, at most `timeout` seconds in all. Raises `TimedOut`."""
        limit = Limit(timeout)
        return await self._start(functools.partial(self.sync.start, request), size_of(request), limit)

    async def start_within(self, request: Buffer, limit: float) -> _hamlyn.Call:
        """`start` within `limit` seconds, which the server knows."""
        end = Limit(limit)

        def start(timeout: float | None) -> _hamlyn.Call:
            return self.sync.start_within(request, end.left or 0.0, timeout)

        # The limit is sent before the request.
        return await self._start(start, size_of(request) + 8, end)

    async def _start(
        self, start: Callable[[float | None], _hamlyn.Call], size: int, limit: Limit
    ) -> _hamlyn.Call:
        if size <= self.sync._at_once_max:
            return await until_done(self.sync._manager, start, limit.left)

        return await self._threads.run(lambda limit: start(limit.left), limit.left, _NO_CALL)

    @property
    def peer(self) -> _hamlyn.Peer:
        """The identity of the other end, from the kernel."""
        return self.sync.peer

    @property
    def ended(self) -> str | None:
        """The reason why the connection ended; `None` while it has not."""
        return self.sync.ended

    def close(self) -> None:
        """Ends the connection; waiting calls raise `Closed`."""
        self.sync.close()


class ReconnectingClient(Closes[_hamlyn.ReconnectingClient]):
    """`hamlyn.ReconnectingClient` whose calls are awaited; any number of tasks of one event loop may
    call. A context manager, asynchronous or not: leaving it closes the client."""

    def __init__(
        self,
        manager: AnyManager,
        name: str,
        policy: ReconnectPolicy | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """A client of `[user@]name`; `settings` are those of `Client.connect`. The first call connects
        it, or `connect`."""
        super().__init__(_hamlyn.ReconnectingClient(plain(manager), name, policy, **settings))

    @classmethod
    async def connect(
        cls,
        manager: AnyManager,
        name: str,
        timeout: float | None = 10.0,
        *,
        policy: ReconnectPolicy | None = None,
        **settings: Unpack[ClientSettings],
    ) -> Self:
        """Makes a client that is connected; waits at most `timeout` seconds."""

        def connect(timeout: float | None) -> _hamlyn.ReconnectingClient:
            connect = _hamlyn.ReconnectingClient.connect
            return connect(plain(manager), name, timeout, policy=policy, **settings)

        made = cls(manager, name, policy, **settings)
        made.sync = await connected(connect, timeout)
        return made

    async def call(
        self, request: Buffer, timeout: float | None = None, *, is_idempotent: bool = False
    ) -> bytes:
        """Sends a request and awaits the reply, through outages: see `hamlyn.ReconnectingClient.call`.
        A cancelled task leaves nothing behind."""
        return await self._finish(self.sync._begin(request, None, is_idempotent), timeout)

    async def call_array(
        self, array: Buffer, timeout: float | None = None, *, is_idempotent: bool = False
    ) -> AnyArray:
        """`call` with an array, for an array: see `hamlyn.Client.call_array`."""
        message = _hamlyn.pack_array(array)
        return _hamlyn.unpack_array(await self.call(message, timeout, is_idempotent=is_idempotent))

    async def call_within(
        self, request: Buffer, limit: float, *, is_idempotent: bool = False
    ) -> bytes:
        """`call` within `limit` seconds; the server gets the rest of that limit."""
        return await self._finish(self.sync._begin(request, limit, is_idempotent), limit)

    async def _finish(self, call: _hamlyn._ReconnectingCall, timeout: float | None) -> bytes:
        try:
            return await until(self.sync._manager, call.try_finish, timeout, call.finish)
        finally:
            # The program may keep its task, or the exception, for long.
            call.forget()

    @property
    def connections(self) -> int:
        """Connections so far: a change means that there was an outage."""
        return self.sync.connections

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
