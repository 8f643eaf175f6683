"""Request and reply of `hamlyn.aio`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar, Unpack

from . import _hamlyn
from ._errors import Closed, HamlynError, TimedOut
from ._loop import until, until_done
from ._reconnect import Limit, Reconnecting, ReconnectPolicy
from ._types import AnyArray, Buffer, ClientSettings
from ._wrapped import Grown, Wrapped, size_of

T = TypeVar("T")


class Server(Wrapped[_hamlyn.Server]):
    """A server whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Request:
        """The next request. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)

    async def drain(self, timeout: float | None = 10.0) -> int:
        """`hamlyn.Server.drain`, on a thread: tasks go on receiving and replying. It goes on there
        when its task is cancelled, until `timeout`."""
        return await asyncio.to_thread(self.sync.drain, timeout)


_THREADS = 4
"""Of one client, for its long requests and for its replies: what it keeps waiting holds up no other."""

_of_clients: dict[tuple[int, _hamlyn.Link], tuple[ThreadPoolExecutor, int]] = {}
"""By event loop and link: threads for replies, and how many use them."""


@contextlib.contextmanager
def _threads_for(link: _hamlyn.Link) -> Iterator[ThreadPoolExecutor]:
    key = (id(asyncio.get_running_loop()), link)
    pool, users = _of_clients.get(key) or (ThreadPoolExecutor(_THREADS, "hamlyn-reply"), 0)
    _of_clients[key] = (pool, users + 1)
    try:
        yield pool
    finally:
        pool, users = _of_clients.pop(key)
        if users > 1:
            _of_clients[key] = (pool, users - 1)
        else:
            pool.shutdown(wait=False)

_NO_CALL = (
    "no call was free within the time limit, or the server made no room for a long request; the call was "
    "forgotten"
)


async def _within(limit: Limit, work: Awaitable[T], why: str) -> T:
    """What ends within the limit by itself, once it has a thread."""
    try:
        async with asyncio.timeout(limit.left):
            return await work
    except TimedOut:
        raise
    except TimeoutError:
        raise TimedOut(why) from None


async def reply(
    request: _hamlyn.Request, data: Buffer, timeout: float | None = 10.0
) -> None:
    """`request.reply`: at once where its client has room, else on one of four threads for that client,
    so that one which takes nothing holds up no other. Raises what that raises, most
    often because of that client alone; then the client is told that no reply will come, and so it is
    where the task is cancelled before a thread was free."""
    limit = Limit(timeout)
    if not request._try_reply(data):
        with request, _threads_for(request.link) as threads:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(threads, lambda: request.reply(data, limit.left))
            await _within(limit, work, "the reply did not leave within the time limit")


async def reply_array(
    request: _hamlyn.Request, array: Buffer, timeout: float | None = 10.0
) -> None:
    """`reply` with an array, its type and shape, for `call_array`."""
    await reply(request, _hamlyn.pack_array(array), timeout)


async def cancelled(request: _hamlyn.Request) -> None:
    """Returns when nobody waits for the reply any more: see `Request.is_cancelled`. For a task beside the
    one that makes the reply. Raises `Misuse` where it finds the request replied to."""
    try:
        await until(request._manager, lambda: request.is_cancelled() or None, request.time_left)
    except TimedOut:
        pass


class Client(Grown[_hamlyn.Client]):
    """A client whose calls are awaited; any number of tasks of one event loop may call. An asynchronous
    context manager: leaving it closes the client.

    A time limit is for all of a call. A call that is not free yet is awaited; a request that is longer than
    the server takes at once has one of four threads of this client's own, which it keeps until its time
    is over or the client is closed, also where its task is cancelled."""

    _connect = _hamlyn.Client.connect

    def __init__(self, sync: _hamlyn.Client) -> None:
        super().__init__(sync)
        self._threads = ThreadPoolExecutor(_THREADS, "hamlyn-request")

    @classmethod
    async def connect(
        cls,
        manager: _hamlyn.Manager,
        name: str,
        timeout: float | None = 10.0,
        **settings: Unpack[ClientSettings],
    ) -> Self:
        """`hamlyn.Client.connect`, with its settings, on a thread."""
        return cls(await asyncio.to_thread(cls._connect, manager, name, timeout, **settings))

    async def call(self, request: Buffer, timeout: float | None = None) -> bytes:
        """Sends a request, and awaits the reply, at most `timeout` seconds in all. Raises `TimedOut`, and
        what `hamlyn.Client.call` raises. Then, and where the task is cancelled, the call is forgotten: the
        server's handler can see that, and the reply will be dropped."""
        limit = Limit(timeout)
        return await self._finish(await self.start(request, limit.left), limit)

    async def call_array(self, array: Buffer, timeout: float | None = None) -> AnyArray:
        """`call` with an array, for an array: see `hamlyn.Client.call_array`."""
        return _hamlyn.unpack_array(await self.call(_hamlyn.pack_array(array), timeout))

    async def call_within(self, request: Buffer, limit: float) -> bytes:
        """`call` within `limit` seconds, which the server is told: see `hamlyn.Client.call_within`."""
        end = Limit(limit)
        return await self._finish(await self.start_within(request, limit), end)

    async def _finish(self, call: _hamlyn.Call, limit: Limit) -> bytes:
        try:
            return await until(self.sync._manager, call.try_finish, limit.left, call.finish)
        finally:
            # Its task, or the exception, may be kept for long.
            call.forget()

    async def start(self, request: Buffer, timeout: float | None = None) -> _hamlyn.Call:
        """Sends a request, awaiting a free call, at most `timeout` seconds in all. Raises `TimedOut`."""
        limit = Limit(timeout)
        return await self._start(functools.partial(self.sync.start, request), size_of(request), limit)

    async def start_within(self, request: Buffer, limit: float) -> _hamlyn.Call:
        """`start` within `limit` seconds, which the server is told."""
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

        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, lambda: start(limit.left))
        return await _within(limit, work, _NO_CALL)

    @property
    def peer(self) -> _hamlyn.Peer:
        """Who is at the other end, as the kernel says."""
        return self.sync.peer

    @property
    def ended(self) -> str | None:
        """Why the connection ended; `None` while it has not."""
        return self.sync.ended

    def close(self) -> None:
        """Ends the connection; whoever waits for a reply gets `Closed`."""
        self.sync.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ReconnectingClient(Reconnecting[Client]):
    """`hamlyn.ReconnectingClient` whose calls are awaited; any number of tasks of one event loop may
    call."""

    _title = "hamlyn.aio.ReconnectingClient"

    def __init__(
        self,
        manager: _hamlyn.Manager,
        name: str,
        policy: ReconnectPolicy | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        super().__init__(manager, name, policy, **settings)
        self._lock = asyncio.Lock()

    def _end(self, client: Client) -> None:
        client.sync.close()

    @classmethod
    async def connect(
        cls,
        manager: _hamlyn.Manager,
        name: str,
        timeout: float | None = 10.0,
        *,
        policy: ReconnectPolicy | None = None,
        **settings: Unpack[ClientSettings],
    ) -> Self:
        """One that is connected; waits at most `timeout` seconds."""
        made = cls(manager, name, policy, **settings)
        made._outages.has_connected(await Client.connect(manager, name, timeout, **settings))
        return made

    async def call(
        self, request: Buffer, timeout: float | None = None, *, is_idempotent: bool = False
    ) -> bytes:
        """Sends a request and awaits the reply, through outages: see `hamlyn.ReconnectingClient.call`.
        A task that is cancelled leaves nothing behind."""
        return await self._call(request, timeout, is_idempotent, Client.start)

    async def call_within(
        self, request: Buffer, limit: float, *, is_idempotent: bool = False
    ) -> bytes:
        """`call` within `limit` seconds, of which the server is told what is left."""
        return await self._call(request, limit, is_idempotent, Client.start_within)

    async def _call(
        self,
        request: Buffer,
        timeout: float | None,
        is_idempotent: bool,
        start: Callable[..., Awaitable[_hamlyn.Call]],
    ) -> bytes:
        limit = Limit(timeout)
        while True:
            number, client = await self._connection(limit)
            call = None
            try:
                call = await start(client, request, limit.left)
                reply = await client._finish(call, limit)
            except Closed as error:
                self._is_lost(number, error, call is not None and not is_idempotent)
            else:
                self._outages.has_replied(number)
                return reply

    async def _connection(self, limit: Limit) -> tuple[int, Client]:
        outages = self._outages
        try:
            # Another task may be connecting.
            await asyncio.wait_for(self._lock.acquire(), limit.left)
        except TimeoutError:
            raise TimedOut(f"no connection within the time limit: {outages.why}") from None
        try:
            while outages.client is None or outages.client.sync.ended is not None:
                if outages.client is not None:
                    outages.is_lost(outages.number, Closed(outages.client.sync.ended))
                await asyncio.sleep(limit.at_most(outages.next_delay()))
                seconds = self._begins(limit)
                try:
                    client = await Client.connect(
                        self._manager, self._name, seconds, **self._settings
                    )
                except HamlynError as error:
                    self._has_failed(error)
                else:
                    self._has_connected(client)
            return outages.number, outages.client
        finally:
            self._lock.release()
