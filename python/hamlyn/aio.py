"""Hamlyn with asyncio: what waits is awaited, and the event loop runs meanwhile.

::

    from hamlyn import Manager, aio

    with Manager() as manager:
        queue = aio.Queue(manager.queue(16))
        message = await queue.receive()

Each class wraps an object of `hamlyn`, which remains usable as `.sync`. Any number of tasks may
wait on the objects of one manager, and any number of managers may be used in one loop. A task that
is cancelled while it waits has taken nothing: what it waited for stays for the next.

`create_connection`, `create_server`, `open_connection` and `start_server` are asyncio's own, over byte
streams of Hamlyn: existing protocols, and `StreamReader` and `StreamWriter`, run over them as they are.

How it works: a task looks, and if nothing is there it tells its manager that it is about to wait
(`Manager.prepare_to_wait`), looks once more, and sleeps until the manager's descriptor is readable,
which the loop watches. Each sleeper then looks again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from . import _hamlyn
from ._errors import Closed, Draining, HamlynError, Misuse, TimedOut
from ._loop import until, until_done
from ._reconnect import Limit, Outages, ReconnectPolicy, is_final
from ._transports import (
    Server as StreamServer,
)
from ._transports import (
    create_connection,
    create_server,
    open_connection,
    start_server,
)
from ._types import (
    AnyArray,
    Buffer,
    ClientSettings,
    DType,
    Event,
    Shape,
    SubscriberSettings,
)

T = TypeVar("T")


class _Wrapped(Generic[T]):
    """An object of `hamlyn`, as `sync`."""

    sync: T

    def __init__(self, sync: T) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"<hamlyn.aio of {self.sync!r}>"


class _Grown(_Wrapped[T]):
    """What is connected by a name."""

    _connect: ClassVar[Callable[..., Any]]

    @classmethod
    async def connect(
        cls, manager: _hamlyn.Manager, name: str, timeout: float | None = 10.0
    ) -> Self:
        """`connect` of the class of `hamlyn`, on a thread."""
        return cls(await asyncio.to_thread(cls._connect, manager, name, timeout))


class Queue(_Wrapped[_hamlyn.Queue]):
    """A notification queue whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Notification:
        """The next notification. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)


class TaggedReceiver(_Wrapped[_hamlyn.TaggedReceiver]):
    """A receiver of tagged writes whose `get_tag` is awaited."""

    async def get_tag(self, timeout: float | None = None) -> _hamlyn.Tag:
        """The next tag. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_get_tag, timeout, self.sync.get_tag)


class DatagramReceiver(_Wrapped[_hamlyn.DatagramReceiver]):
    """A receiver of datagrams whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Datagram:
        """The next datagram. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)


class StreamReceiver(_Wrapped[_hamlyn.StreamReceiver]):
    """A receiver of a stream: `receive` is awaited, and `async for` takes its records."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Record:
        """The next record. Raises `TimedOut`, and `Closed` after the stream's end."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)

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
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)

    def __aiter__(self) -> ApertureStreamReceiver:
        return self

    async def __anext__(self) -> _hamlyn.Record | _hamlyn.VolatileRecord:
        try:
            return await self.receive()
        except Closed:
            for record in self.sync:
                return record
            raise StopAsyncIteration from None


_AT_ONCE = 16 << 10
"""Bytes up to which a sender tries to send without a thread."""


async def _sent(send: Callable[[float | None], None], size: int, timeout: float | None) -> None:
    """Sends at once where there is room, else on a thread: the loop's other tasks run meanwhile."""
    if size <= _AT_ONCE:
        try:
            return send(0)
        except TimedOut:
            if timeout == 0:
                raise
    await asyncio.to_thread(send, timeout)


def _size(data: Buffer) -> int:
    return memoryview(data).nbytes


class TaggedSender(_Grown[_hamlyn.TaggedSender]):
    """A sender of tagged writes whose `send` is awaited."""

    _connect = _hamlyn.TaggedSender.connect

    async def send(
        self, offset: int, data: Buffer, tag: int, timeout: float | None = None
    ) -> None:
        """`hamlyn.TaggedSender.send`: at once where there is room, else on a thread, which goes on
        where the task is cancelled."""
        await _sent(lambda t: self.sync.send(offset, data, tag, t), _size(data), timeout)


class DatagramSender(_Grown[_hamlyn.DatagramSender]):
    """A sender of datagrams whose `send` is awaited."""

    _connect = _hamlyn.DatagramSender.connect

    async def send(
        self,
        data: Buffer,
        offset: int = 0,
        *,
        reply: _hamlyn.Ticket | None = None,
        timeout: float | None = None,
    ) -> None:
        """`hamlyn.DatagramSender.send`, on a thread: what a time limit of 0 has cut off could not be
        told from what was not sent."""
        await asyncio.to_thread(lambda: self.sync.send(data, offset, reply=reply, timeout=timeout))


class _StreamSender(_Grown[T]):
    """What senders of streams have."""

    def _plain(self) -> _hamlyn.StreamSender | _hamlyn.ApertureStreamSender:
        sync = self.sync
        assert isinstance(sync, (_hamlyn.StreamSender, _hamlyn.ApertureStreamSender))
        return sync

    async def send(self, record: Buffer, timeout: float | None = None) -> None:
        """Sends a record: at once where it is short and there is room, else on a thread, which goes
        on where the task is cancelled. One task at a time, if the order matters."""
        send = self._plain().send
        await _sent(lambda t: send(record, t), _size(record), timeout)

    async def send_array(
        self, array: Buffer | _hamlyn.Loan, timeout: float | None = None
    ) -> None:
        """Sends an array with its type and shape; otherwise as `send`."""
        send = self._plain().send_array
        await _sent(lambda t: send(array, t), _size(array), timeout)

    def loan(self, nbytes: int) -> _hamlyn.RecordLoan:
        """`hamlyn.StreamSender.loan`, which does not wait."""
        return self._plain().loan(nbytes)

    def loan_array(self, dtype: DType, shape: Shape) -> _hamlyn.RecordLoan:
        """`hamlyn.StreamSender.loan_array`, which does not wait."""
        return self._plain().loan_array(dtype, shape)

    async def send_loan(self, loan: _hamlyn.RecordLoan, timeout: float | None = None) -> None:
        """Sends a loan of this sender; otherwise as `send`. Raises `Misuse` for another's."""
        if not loan._is_of(self.sync):
            raise Misuse("the loan is another sender's")
        await _sent(loan.send, len(loan), timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Sends what was coalesced: at once where there is room, else on a thread."""
        await _sent(self._plain().flush, 0, timeout)

    async def close(self, timeout: float | None = 10.0) -> None:
        """Sends what is left and tells the receiver that this was all, on a thread."""
        await asyncio.to_thread(self._plain().close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The receiver is not to take for all what is not.
        if kind is None:
            await self.close()
        else:
            self._plain().__exit__(kind, error, trace)


class StreamSender(_StreamSender[_hamlyn.StreamSender]):
    """A sender of a stream whose `send` is awaited; an asynchronous context manager."""

    _connect = _hamlyn.StreamSender.connect


class ApertureStreamSender(_StreamSender[_hamlyn.ApertureStreamSender]):
    """A sender of a stream through an aperture, as a `StreamSender`."""

    _connect = _hamlyn.ApertureStreamSender.connect


class Publisher(_Wrapped[_hamlyn.Publisher]):
    """A publisher whose `publish` is awaited: it waits only for subscribers of `"wait"`. Any number of
    tasks may publish; one that is cancelled while it waits has published nothing."""

    async def publish(self, sample: Buffer, timeout: float | None = None) -> int:
        """Publishes a sample; returns how many were published before it. Raises `TimedOut`."""
        attempt = functools.partial(self.sync.try_publish, sample)
        last = functools.partial(self.sync.publish, sample)
        return await until(self.sync._manager, attempt, timeout, last)

    async def publish_array(self, array: Buffer, timeout: float | None = None) -> int:
        """`publish` of an array with its type and shape."""
        publish = functools.partial(self.sync.publish_array, array)
        return await until_done(self.sync._manager, publish, timeout)

    async def publish_loan(self, loan: _hamlyn.SampleLoan, timeout: float | None = None) -> int:
        """Publishes a loan of this publisher; after `TimedOut` it may be published again. Raises `Misuse`
        for a loan of another publisher, which stays as it is."""
        publish = functools.partial(self.sync._publish_loan, loan)
        return await until_done(self.sync._manager, publish, timeout)

    def loan(self, nbytes: int) -> _hamlyn.SampleLoan:
        """`hamlyn.Publisher.loan`, which does not wait."""
        return self.sync.loan(nbytes)

    def loan_array(self, dtype: DType, shape: Shape) -> _hamlyn.SampleLoan:
        """`hamlyn.Publisher.loan_array`, which does not wait."""
        return self.sync.loan_array(dtype, shape)

    async def flush(self, timeout: float | None = None) -> None:
        """`hamlyn.Publisher.flush`."""
        await self._until(self.sync.flush, timeout)

    async def drain(self, timeout: float | None = None) -> None:
        """`hamlyn.Publisher.drain`."""
        await self._until(self.sync.drain, timeout)

    async def _until(self, call: Callable[[float], None], timeout: float | None) -> None:
        def done(timeout: float) -> bool:
            call(timeout)
            return True

        await until_done(self.sync._manager, done, timeout)


class Subscriber(_Grown[_hamlyn.Subscriber]):
    """A subscriber: `receive` is awaited, and `async for` takes its samples."""

    _connect = _hamlyn.Subscriber.connect

    @classmethod
    async def connect(
        cls,
        manager: _hamlyn.Manager,
        name: str,
        timeout: float | None = 10.0,
        **settings: Unpack[SubscriberSettings],
    ) -> Self:
        """`hamlyn.Subscriber.connect`, with its settings, on a thread."""
        return cls(await asyncio.to_thread(cls._connect, manager, name, timeout, **settings))

    async def receive(self, timeout: float | None = None) -> _hamlyn.Sample:
        """The next sample. Raises `TimedOut`, and `Closed` after the publisher's end."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _hamlyn.Sample:
        # As of a stream.
        try:
            return await self.receive()
        except Closed:
            for sample in self.sync:
                return sample
            raise StopAsyncIteration from None


class Group(_Wrapped[_hamlyn.Group]):
    """The root of a group, whose members' parts are awaited."""

    async def gather(self, timeout: float | None = None) -> list[_hamlyn.GroupPart]:
        """The parts of all members. Raises `TimedOut`."""
        return await self.wait_for(self.sync.members, timeout)

    async def wait_for(self, k: int, timeout: float | None = None) -> list[_hamlyn.GroupPart]:
        """The parts of `k` members, whichever. Raises `TimedOut`."""
        wait = functools.partial(self.sync.wait_for, k)
        return await until_done(self.sync._manager, wait, timeout)


class GroupMember(_Wrapped[_hamlyn.GroupMember]):
    """A member of a group whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> bytes:
        """What the root scatters or broadcasts next. Raises `TimedOut`."""
        return await until_done(self.sync._manager, self.sync.receive, timeout)


class Server(_Wrapped[_hamlyn.Server]):
    """A server whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Request:
        """The next request. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)

    async def drain(self, timeout: float | None = 10.0) -> int:
        """`hamlyn.Server.drain`, on a thread: tasks go on receiving and replying. It goes on there
        when its task is cancelled, until `timeout`."""
        return await asyncio.to_thread(self.sync.drain, timeout)


_LONG_MAX = 4
"""Long requests of one client that its server takes at a time."""

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
    """`request.reply`: at once where its client has room, else on a thread. Raises what that raises, most
    often because of that client alone; then the client is told that no reply will come, and so it is
    where the task is cancelled before a thread was free."""
    limit = Limit(timeout)
    if not request._try_reply(data):
        with request:
            work = asyncio.to_thread(lambda: request.reply(data, limit.left))
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


class Client(_Grown[_hamlyn.Client]):
    """A client whose calls are awaited; any number of tasks of one event loop may call. An asynchronous
    context manager: leaving it closes the client.

    A time limit is for all of a call. A call that is not free yet is awaited; a request that is longer than
    the server takes at once has a thread, of which one client uses four at most."""

    _connect = _hamlyn.Client.connect

    def __init__(self, sync: _hamlyn.Client) -> None:
        super().__init__(sync)
        self._long = asyncio.Semaphore(_LONG_MAX)

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
        return await self._start(functools.partial(self.sync.start, request), _size(request), limit)

    async def start_within(self, request: Buffer, limit: float) -> _hamlyn.Call:
        """`start` within `limit` seconds, which the server is told."""
        end = Limit(limit)

        def start(timeout: float | None) -> _hamlyn.Call:
            return self.sync.start_within(request, end.left or 0.0, timeout)

        # The limit is sent before the request.
        return await self._start(start, _size(request) + 8, end)

    async def _start(
        self, start: Callable[[float | None], _hamlyn.Call], size: int, limit: Limit
    ) -> _hamlyn.Call:
        if size <= self.sync._at_once_max:
            return await until_done(self.sync._manager, start, limit.left)

        async def on_thread() -> _hamlyn.Call:
            async with self._long:
                return await asyncio.to_thread(lambda: start(limit.left))

        return await _within(limit, on_thread(), _NO_CALL)

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


class ReconnectingClient:
    """`hamlyn.ReconnectingClient` whose calls are awaited; any number of tasks of one event loop may
    call."""

    def __init__(
        self,
        manager: _hamlyn.Manager,
        name: str,
        policy: ReconnectPolicy | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """See `hamlyn.ReconnectingClient`: it is connected by the first call, or by `connect`."""
        self._manager, self._name, self._settings = manager, name, settings
        self._outages: Outages[Client] = Outages(policy or ReconnectPolicy())
        self._lock = asyncio.Lock()
        self._is_closed = False

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
                if self._is_closed or self._manager.closed:
                    raise
                self._outages.is_lost(number, error)
                if call is not None and not is_idempotent and not isinstance(error, Draining):
                    raise
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
                if self._is_closed:
                    raise Closed("the client is closed")
                limit.check(outages.why)
                seconds = limit.at_most(outages.policy.attempt_limit)
                try:
                    client = await Client.connect(
                        self._manager, self._name, seconds, **self._settings
                    )
                except HamlynError as error:
                    if is_final(error, self._manager):
                        raise
                    outages.has_failed(error)
                else:
                    outages.has_connected(client)
            return outages.number, outages.client
        finally:
            self._lock.release()

    @property
    def connections(self) -> int:
        """Connections so far: whoever keeps it sees that there was an outage."""
        return self._outages.number

    def close(self) -> None:
        """Ends the connection; whoever waits for a reply gets `Closed`."""
        self._is_closed = True
        client = self._outages.client
        if client is not None:
            client.sync.close()

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
        return f"<hamlyn.aio.ReconnectingClient of {self._name!r}: {self._outages!r}>"


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
    "ApertureStreamSender",
    "Client",
    "DatagramReceiver",
    "DatagramSender",
    "Group",
    "GroupMember",
    "Manager",
    "Publisher",
    "Queue",
    "ReconnectingClient",
    "Server",
    "StreamReceiver",
    "StreamSender",
    "StreamServer",
    "Subscriber",
    "TaggedReceiver",
    "TaggedSender",
    "cancelled",
    "create_connection",
    "create_server",
    "open_connection",
    "reply",
    "reply_array",
    "start_server",
    "until",
]
