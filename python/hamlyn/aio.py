"""Hamlyn with asyncio: waits are awaited, and the event loop runs meanwhile.

::

    from hamlyn import Manager, aio

    with Manager() as manager:
        queue = aio.Queue(manager.queue(16))
        message = await queue.receive()

Each class wraps an object of `hamlyn`, which remains usable as `.sync`. Any number of tasks may wait on
the objects of one manager, and any number of managers may be used in one loop. A task that is cancelled
while it waits has taken nothing: the message stays for the next. Operations that need threads, such as
connecting, use threads of this module's own, not those of `asyncio.to_thread`.

`create_connection`, `create_server`, `open_connection` and `start_server` are asyncio's own, over byte
streams of Hamlyn: existing protocols, and `StreamReader` and `StreamWriter`, run over them as they are.

How it works: a task looks, and if nothing is there it tells its manager that it is about to wait
(`Manager.prepare_to_wait`), looks once more, and sleeps until the manager's descriptor is readable,
which the loop watches. Each sleeping task then looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

from . import _hamlyn
from ._aio_calls import Client, ReconnectingClient, Server, cancelled, fail, reply, reply_array
from ._errors import Closed, CutOff, Misuse, TimedOut
from ._loop import until, until_done
from ._threads import Limit, Threads, alone
from ._transports import (
    Server as StreamServer,
)
from ._transports import (
    create_connection,
    create_server,
    open_connection,
    start_server,
)
from ._types import Buffer, DType, Event, Shape, SubscriberSettings
from ._wrapped import AnyManager, Closes, Grown, Offered, Wrapped, connected, plain, size_of

T = TypeVar("T")


class Queue(Wrapped[_hamlyn.Queue]):
    """A notification queue whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Notification:
        """The next notification. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)


class TaggedReceiver(Offered[_hamlyn.TaggedReceiver]):
    """A receiver of tagged writes whose `get_tag` is awaited."""

    async def get_tag(self, timeout: float | None = None) -> _hamlyn.Tag:
        """The next tag. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_get_tag, timeout, self.sync.get_tag)


class DatagramReceiver(Offered[_hamlyn.DatagramReceiver]):
    """A receiver of datagrams whose `receive` is awaited."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Datagram:
        """The next datagram. Raises `TimedOut`."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)


class StreamReceiver(Offered[_hamlyn.StreamReceiver]):
    """A receiver of a stream: `receive` is awaited, and `async for` takes its records."""

    async def receive(self, timeout: float | None = None) -> _hamlyn.Record:
        """The next record. Raises `TimedOut`, and `Closed` after the stream's end."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)

    def __aiter__(self) -> StreamReceiver:
        return self

    async def __anext__(self) -> _hamlyn.Record:
        # `next` ends the iteration if the sender has closed, and raises if it ended otherwise; it does
        # not wait then.
        try:
            return await self.receive()
        except Closed:
            for record in self.sync:
                return record
            raise StopAsyncIteration from None


class ApertureStreamReceiver(Offered[_hamlyn.ApertureStreamReceiver]):
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


_NO_ROOM = "there was no room within the time limit; nothing was sent"

S = TypeVar("S")


class _Sender(Grown[S]):
    """A sender that sends in order: at once if there is room and no earlier message waits for room,
    else on a thread of this sender's own."""

    def __init__(self, sync: S) -> None:
        super().__init__(sync)
        self._threads = Threads(1, "hamlyn-send")

    async def _sent(
        self, send: Callable[[float | None], None], size: int, timeout: float | None
    ) -> None:
        if size <= _AT_ONCE and not self._threads.is_busy:
            try:
                return send(0)
            except CutOff as error:
                if timeout == 0:
                    raise
                cut_off = str(error)
            except TimedOut:
                if timeout == 0:
                    raise
                cut_off = None
            if cut_off is not None:
                # It was taken, and must not be sent again.
                try:
                    return await self._on_thread(self._send_rest, timeout, settles=True)
                except TimedOut:
                    raise CutOff(cut_off) from None
        await self._on_thread(send, timeout, settles=True)

    def _send_rest(self, timeout: float | None) -> None:
        """Sends the rest of a message that was cut off."""
        raise NotImplementedError

    async def _on_thread(
        self, send: Callable[[float | None], None], timeout: float | None, **how: bool
    ) -> None:
        await self._threads.run(lambda limit: send(limit.left), timeout, _NO_ROOM, **how)


class TaggedSender(_Sender[_hamlyn.TaggedSender]):
    """A sender of tagged writes whose `send` is awaited. Writes of several tasks leave in the order of
    their calls; a `send` whose task is cancelled has sent its write, or nothing."""

    _connect = _hamlyn.TaggedSender.connect

    async def send(
        self, offset: int, data: Buffer, tag: int, timeout: float | None = None
    ) -> None:
        """`hamlyn.TaggedSender.send`: at once if there is room, else on this sender's thread."""
        await self._sent(lambda t: self.sync.send(offset, data, tag, t), size_of(data), timeout)


class DatagramSender(_Sender[_hamlyn.DatagramSender]):
    """A sender of datagrams whose `send` is awaited. They leave in the order of the calls."""

    _connect = _hamlyn.DatagramSender.connect

    async def send(
        self,
        data: Buffer,
        offset: int = 0,
        *,
        reply: _hamlyn.Ticket | None = None,
        timeout: float | None = None,
    ) -> None:
        """`hamlyn.DatagramSender.send`, on this sender's thread: with a time limit of 0 a cut-off
        datagram would look like an unsent one. If its task is cancelled, a datagram that has begun to
        leave goes on."""

        def send(timeout: float | None) -> None:
            self.sync.send(data, offset, reply=reply, timeout=timeout)

        await self._on_thread(send, timeout, goes_on=True)


class _StreamSender(_Sender[T]):
    """The common part of senders of streams. Records leave in the order of the calls; a `send` whose
    task is cancelled has sent its record, or nothing: if the record is above 16 KiB and was taken, the
    rest leaves with the next call."""

    def __init__(self, sync: T) -> None:
        super().__init__(sync)
        # Asked for once, here, so that `loan` does not wait for a `send`.
        with contextlib.suppress(Closed):
            _ = self._plain().nbytes_max

    def _plain(self) -> _hamlyn.StreamSender | _hamlyn.ApertureStreamSender:
        sync = self.sync
        assert isinstance(sync, (_hamlyn.StreamSender, _hamlyn.ApertureStreamSender))
        return sync

    def _send_rest(self, timeout: float | None) -> None:
        self._plain().flush(timeout)

    async def send(self, record: Buffer, timeout: float | None = None) -> None:
        """Sends a record: at once if it is short and there is room, else on this sender's thread."""
        send = self._plain().send
        await self._sent(lambda t: send(record, t), size_of(record), timeout)

    async def send_array(
        self, array: Buffer | _hamlyn.Loan, timeout: float | None = None
    ) -> None:
        """Sends an array with its type and shape; otherwise as `send`."""
        send = self._plain().send_array
        await self._sent(lambda t: send(array, t), size_of(array), timeout)

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
        await self._sent(loan.send, len(loan), timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Sends coalesced records: at once if there is room, else on this sender's thread."""
        await self._sent(self._plain().flush, 0, timeout)

    async def close(self, timeout: float | None = 10.0) -> None:
        """Sends the rest and tells the receiver that this was all, on this sender's thread. If its task
        is cancelled it goes on there, until `timeout`."""
        await self._on_thread(self._plain().close, timeout, goes_on=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The receiver must not take this for the complete stream.
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


class Publisher(Offered[_hamlyn.Publisher]):
    """A publisher whose `publish` is awaited: it waits only for subscribers of `"wait"`. Any number of
    tasks may publish; a task that is cancelled while it waits has published nothing. An asynchronous
    context manager: leaving it without an exception drains it for at most 10 s, and then closes it."""

    async def publish(self, sample: Buffer, timeout: float | None = None) -> int:
        """Publishes a sample; returns the number of samples published before it. Raises `TimedOut`."""
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self.sync.closed:
                # Subscribers that have not had all samples by then get an error; none makes this raise.
                with contextlib.suppress(Closed, TimedOut):
                    await self.drain(10.0)
        finally:
            self.close()

    async def _until(self, call: Callable[[float], None], timeout: float | None) -> None:
        await _done(self.sync._manager, call, timeout)


class Subscriber(Grown[_hamlyn.Subscriber], Closes[_hamlyn.Subscriber]):
    """A subscriber: `receive` is awaited, and `async for` takes its samples. An asynchronous context
    manager: leaving it closes it."""

    _connect = _hamlyn.Subscriber.connect

    @classmethod
    async def connect(
        cls,
        manager: AnyManager,
        name: str,
        timeout: float | None = 10.0,
        **settings: Unpack[SubscriberSettings],
    ) -> Self:
        """`hamlyn.Subscriber.connect`, with its settings, on a thread of its own; cancelling the task
        gives the attempt up."""

        def connect(timeout: float | None) -> _hamlyn.Subscriber:
            return cls._connect(plain(manager), name, timeout, **settings)

        return cls(await connected(connect, timeout))

    @property
    def missed(self) -> int:
        """The number of samples left out so far, before the received ones."""
        return self.sync.missed

    async def receive(self, timeout: float | None = None) -> _hamlyn.Sample:
        """The next sample. Raises `TimedOut`, and `Closed` after the publisher's end."""
        return await until(self.sync._manager, self.sync.try_receive, timeout, self.sync.receive)

    def __aiter__(self) -> AsyncIterator[_hamlyn.Sample]:
        return _Samples(self)

    async def __anext__(self) -> _hamlyn.Sample:
        # As for a stream.
        try:
            return await self.receive()
        except Closed:
            for sample in self.sync:
                return sample
            raise StopAsyncIteration from None


class _Samples:
    """The samples of one loop: asking for the next sample releases the one before."""

    def __init__(self, of: Subscriber) -> None:
        self._of = of
        self._last: _hamlyn.Sample | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _hamlyn.Sample:
        if self._last is not None:
            self._last.release()
            self._last = None
        self._last = await self._of.__anext__()
        return self._last


class Group(Offered[_hamlyn.Group]):
    """The root of a group: waits for members' parts, and sends, are awaited."""

    async def gather(self, timeout: float | None = None) -> list[_hamlyn.GroupPart]:
        """The parts of all members. Raises `TimedOut`."""
        return await self.wait_for(self.sync.members, timeout)

    async def wait_for(self, k: int, timeout: float | None = None) -> list[_hamlyn.GroupPart]:
        """The parts of any `k` members. Raises `TimedOut`."""
        wait = functools.partial(self.sync.wait_for, k)
        return await until_done(self.sync._manager, wait, timeout)

    async def scatter(self, parts: Sequence[Buffer], timeout: float | None = 10.0) -> None:
        """`hamlyn.Group.scatter`. If its task is cancelled, some members have been sent their bytes;
        the rest of those leaves in the group's next call."""
        await self._send(functools.partial(self.sync._scatter_to, parts), timeout)

    async def broadcast(self, data: Buffer, timeout: float | None = 10.0) -> None:
        """`hamlyn.Group.broadcast`, as `scatter`."""
        await self._send(functools.partial(self.sync._broadcast_to, data), timeout)

    async def _send(self, send: Callable[[list[int]], list[int]], timeout: float | None) -> None:
        """Sends to all members with `send`, which returns those without room yet."""
        limit, members = Limit(timeout), self.sync.members
        missing = list(range(members))

        def attempt() -> bool | None:
            nonlocal missing
            missing = send(missing)
            return None if missing else True

        def late(_: float) -> bool:
            raise TimedOut(
                f"{members - len(missing)} of {members} members were done within the time limit; "
                f"missing: {', '.join(map(str, missing))}"
            )

        await until(self.sync._manager, attempt, limit.left, late)
        await _flushed(self.sync._manager, self.sync._try_flush, limit)

    async def barrier(self, timeout: float | None = None) -> None:
        """`hamlyn.Group.barrier`. After `TimedOut`, or if its task was cancelled, it may be
        repeated."""
        await _done(self.sync._manager, self.sync.barrier, timeout)


_CUT_OFF = "the time limit cut the message off; the rest of it leaves in the next call"


class GroupMember(Closes[_hamlyn.GroupMember]):
    """A member of a group, whose calls are awaited. If a call has begun to send when its task is
    cancelled, the rest leaves with the next call; otherwise it has sent nothing."""

    @classmethod
    async def connect(
        cls, manager: AnyManager, name: str, receive_nbytes: int, timeout: float | None = 10.0
    ) -> Self:
        """`hamlyn.GroupMember.connect`, on a thread of its own; cancelling the task gives the attempt
        up."""
        of = plain(manager)

        def connect(timeout: float | None) -> _hamlyn.GroupMember:
            return _hamlyn.GroupMember.connect(of, name, receive_nbytes, timeout)

        return cls(await connected(connect, timeout))

    async def receive(self, timeout: float | None = None) -> bytes:
        """Receives the root's next scatter or broadcast. Raises `TimedOut`."""
        return await until_done(self.sync._manager, self.sync.receive, timeout)

    async def send(self, part: Buffer, timeout: float | None = None) -> None:
        """`hamlyn.GroupMember.send`."""
        sync = self.sync
        send = functools.partial(sync._try_send, part)
        await _sent(sync._manager, send, sync._try_flush, lambda t: sync.send(part, t), timeout)

    async def delegate(
        self, nbytes: int, n: int, timeout: float | None = None
    ) -> list[_hamlyn.DelegatedPart]:
        """`hamlyn.GroupMember.delegate`."""
        delegate = functools.partial(self.sync.delegate, nbytes, n)
        return await until_done(self.sync._manager, delegate, timeout)

    async def send_part(
        self, part: _hamlyn.DelegatedPart, data: Buffer, timeout: float | None = None
    ) -> None:
        """`hamlyn.GroupMember.send_part`."""
        sync = self.sync
        send = functools.partial(sync._try_send_part, part, data)
        last = functools.partial(sync.send_part, part, data)
        await _sent(sync._manager, send, sync._try_flush, last, timeout)

    async def barrier(self, timeout: float | None = None) -> None:
        """`hamlyn.GroupMember.barrier`. After `TimedOut`, or if its task was cancelled, repeat it."""
        await _done(self.sync._manager, self.sync.barrier, timeout)


class GroupHelper(Grown[_hamlyn.GroupHelper], Closes[_hamlyn.GroupHelper]):
    """A helper of members of a group, whose `send` is awaited, as for a member."""

    _connect = _hamlyn.GroupHelper.connect

    async def send(
        self, part: _hamlyn.DelegatedPart, data: Buffer, timeout: float | None = None
    ) -> None:
        """`hamlyn.GroupHelper.send`."""
        sync = self.sync
        send = functools.partial(sync._try_send, part, data)
        last = functools.partial(sync.send, part, data)
        await _sent(sync._manager, send, sync._try_flush, last, timeout)


async def _done(
    manager: _hamlyn.Manager, call: Callable[[float], None], timeout: float | None
) -> None:
    def done(timeout: float) -> bool:
        call(timeout)
        return True

    await until_done(manager, done, timeout)


async def _sent(
    manager: _hamlyn.Manager,
    send: Callable[[], bool | None],
    flush: Callable[[], bool],
    last: Callable[[float], None],
    timeout: float | None,
) -> None:
    """Waits until `send` has sent all (`True`), or has begun (`False`) and `flush` has sent the rest."""
    limit = Limit(timeout)

    def late(timeout: float) -> bool:
        last(timeout)
        return True

    if not await until(manager, send, limit.left, late):
        await _flushed(manager, flush, limit)


async def _flushed(manager: _hamlyn.Manager, flush: Callable[[], bool], limit: Limit) -> None:
    def cut_off(_: float) -> bool:
        raise CutOff(_CUT_OFF)

    await until(manager, lambda: flush() or None, limit.left, cut_off)


class Manager(Wrapped[_hamlyn.Manager]):
    """A manager whose events are awaited; an asynchronous context manager."""

    _of_manager = True

    def __init__(self, sync: _hamlyn.Manager) -> None:
        super().__init__(sync)
        # By destination: threads for messages that wait for room.
        self._senders: dict[int, Threads] = {}

    async def next_event(self, timeout: float | None = None) -> Event:
        """The next event. Raises `TimedOut`."""
        return await until(self.sync, self.sync.next_event, timeout)

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits until a packet or an event has arrived; returns whether one has."""
        # A loop that calls this lets other tasks run.
        await asyncio.sleep(0)
        try:
            return await until(self.sync, lambda: self.sync.wait(0) or None, timeout)
        except TimedOut:
            return False

    async def connect(
        self, name: str, greeting: Buffer | None = None, timeout: float | None = 10.0
    ) -> _hamlyn.Link:
        """`Manager.connect`, on a thread of its own, since a server may take its time to answer;
        cancelling the task gives the attempt up."""
        return await connected(lambda t: self.sync.connect(name, greeting, t), timeout)

    async def send(
        self,
        ticket: _hamlyn.Ticket,
        data: Buffer,
        metadata: Buffer | None = None,
        timeout: float | None = None,
    ) -> None:
        """`Manager.send`: at once if there is room, else on a thread for each destination, in order. If
        its task is cancelled, a message that has begun to leave goes on."""
        threads = self._senders.get(ticket.destination)
        if threads is None or not threads.is_busy:
            if size_of(data) <= 4096 and self.sync.try_send(ticket, data, metadata):
                return
            if threads is None:
                # Threads without waiting messages need not be kept.
                self._senders = {to: kept for to, kept in self._senders.items() if kept.is_busy}
                threads = self._senders[ticket.destination] = Threads(1, "hamlyn-send")

        def send(limit: Limit) -> None:
            self.sync.send(ticket, data, metadata, limit.left)

        await threads.run(send, timeout, _NO_ROOM, goes_on=True)

    async def __aenter__(self) -> Manager:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await alone.run(lambda _: self.sync.close(), settles=True)


__all__ = [
    "ApertureStreamReceiver",
    "ApertureStreamSender",
    "Client",
    "DatagramReceiver",
    "DatagramSender",
    "Group",
    "GroupHelper",
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
    "fail",
    "open_connection",
    "reply",
    "reply_array",
    "start_server",
    "until",
]
