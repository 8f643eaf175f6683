"""Hamlyn's objects; see the package `hamlyn`. Made from the source: do not edit."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Unpack

from ._reconnect import ReconnectPolicy
from ._types import Access, AnyArray, Buffer, DType, Event, Settings, Shape, WhenSlow
from _typeshed import SupportsGetItem
from typing import Final, SupportsFloat, SupportsIndex, final

__all__ = ["__version__", "Aperture", "ApertureChanged", "ApertureStreamReceiver", "ApertureStreamSender", "Area", "ByteListener", "ByteStream", "Call", "Client", "Connected", "Datagram", "DatagramReceiver", "DatagramSender", "DelegatedPart", "Group", "GroupHelper", "GroupMember", "GroupPart", "Job", "Link", "LinkClosed", "LinkRequest", "LinkRequestGone", "Loan", "Manager", "Notification", "Peer", "Publisher", "Queue", "ReconnectingClient", "Record", "RecordLoan", "Request", "Sample", "SampleLoan", "Samples", "Seed", "Server", "Slot", "StreamReceiver", "StreamSender", "Subscriber", "SubscriberState", "Tag", "TaggedReceiver", "TaggedSender", "Ticket", "TicketRevoked", "VolatileRecord", "_Answer", "_ReconnectingCall", "_Work", "_close_log", "_next_entry", "_open_log", "_set_slice", "pack_array", "settings", "unpack_array"]

__version__: Final[str]
"""
The version of this package and of the library in it.
"""

@final
class Aperture:
    """
    An aperture: memory of its owner, mapped into a holder at the other end of a link; a read-only
    one may have several holders, each over a link of its own (`Link.export_also`). Announce written
    bytes with a message; copy bytes out that have to be stable.
    """
    def __repr__(self, /) -> str: ...
    @property
    def link(self, /) -> Link:
        """
        The link between owner and holder.
        """
    @property
    def nbytes(self, /) -> int:
        """
        Its size in bytes. At its owner raises `Unreachable` before the event `"ready"`.
        """
    @property
    def number(self, /) -> int:
        """
        Its number on its link, the same at both ends: messages refer to the aperture by it.
        """
    @property
    def owned(self, /) -> bool:
        """
        Whether this side owns it.
        """
    def read(self, /, offset: SupportsIndex, nbytes: SupportsIndex) -> bytes:
        """
        Copies `nbytes` bytes out, from `offset` on.
        """
    def read_array(self, /, offset: SupportsIndex) -> AnyArray:
        """
        Copies the array at `offset` out: its header first, which is checked, then the rest. Raises
        `ArrayError` if there is no array there, or it reaches outside. Needs numpy.
        """
    def read_into(self, /, offset: SupportsIndex, target: Buffer) -> None:
        """
        Copies from `offset` into `target`, a numpy array or another writable buffer, all of it.
        """
    def read_word(self, /, offset: SupportsIndex) -> int:
        """
        Reads the word of 8 bytes at `offset`, a multiple of 8, atomically; later reads see all that
        the writer wrote before it.
        """
    def reclaim(self, /) -> Area:
        """
        Owner: revokes it, at once, for all holders, and makes a message area of its bytes,
        unchanged.
        """
    def release(self, /) -> None:
        """
        Holder: releases it, and notifies its owner.
        """
    def revoke(self, /) -> None:
        """
        Owner: revokes it, at once; later writes of the holder reach no other process. If it has
        other holders (`Link.export_also`), only this holder is notified: the pages stay, and can
        still be read and written here, if that was done before.
        """
    @property
    def revoked(self, /) -> bool:
        """
        Whether it was revoked, or, at its holder, its link has ended. At an owner with several
        holders (`Link.export_also`), `False` until it was revoked for the last of them, or
        reclaimed.
        """
    @property
    def writable(self, /) -> bool:
        """
        Whether the holder may write.
        """
    def write(self, /, offset: SupportsIndex, data: Buffer) -> None:
        """
        Copies `data` to `offset`. A message sent afterwards makes the bytes visible to its
        receiver.
        """
    def write_array(self, /, offset: SupportsIndex, array: Buffer) -> int:
        """
        Copies an array to `offset`, with its type and shape, for `read_array` at the other end.
        Returns the number of bytes written. Raises `BufferError` as `pack_array`.
        """
    def write_word(self, /, offset: SupportsIndex, value: SupportsIndex) -> None:
        """
        Stores the word at `offset`, atomically, after all earlier writes.
        """

@final
class ApertureChanged:
    """
    An aperture's state has changed.
    """
    def __repr__(self, /) -> str: ...
    @property
    def link(self, /) -> Link:
        """
        The link between its owner and its holder.
        """
    @property
    def number(self, /) -> int:
        """
        Its number on that link.
        """
    @property
    def what(self, /) -> str:
        """
        At its owner `"ready"`, `"refused: "` and the reason, or `"released"`; at its holder
        `"held"` or `"revoked"`.
        """

@final
class ApertureStreamReceiver:
    """
    Receives a stream whose long records, of 64 KiB and more, go straight into memory of this
    process that its sender has mapped too: `VolatileRecord`. Short records, the first long ones,
    which are sent before the sender has mapped that memory, and all records of a sender without it,
    are `Record`s, as for a `StreamReceiver`.
    """
    def __enter__(self, /) -> ApertureStreamReceiver: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __iter__(self, /) -> ApertureStreamReceiver:
        """
        The records, until the sender has closed the stream. Raises `Closed` if it ended in
        any other way.
        """
    def __new__(cls, /, manager: Manager, aperture_nbytes: SupportsIndex, *, buffer_nbytes: SupportsIndex = 65536, buffers: SupportsIndex = 8, buffers_max: SupportsIndex = 64, record_nbytes_max: SupportsIndex = 67112960) -> ApertureStreamReceiver:
        """
        A receiver that will export an aperture of `aperture_nbytes`, rounded up to whole pages, to
        its sender: a few times the longest record, so that one is written while another is read. A
        record that is longer than the aperture goes through the link. For the other arguments see
        `StreamReceiver`.
        """
    def __next__(self, /) -> Record | VolatileRecord: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def explain(self, /) -> str:
        """
        The path that the records take, and the reason.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. End points of one
        kind have different names; closing an end point frees its names.
        """
    @property
    def peer(self, /) -> Peer | None:
        """
        The identity of the sender, from the kernel; `None` before there is a sender.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Record | VolatileRecord:
        """
        Receives the next record, in the order of sending; waits at most `timeout` seconds.
        After the sender has ended, all records that it had committed come first; then
        raises `Closed`. Raises `TimedOut`, whose text says so if this program holds all
        buffers, so that nothing can come.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which any process that may connect can grow the other end.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
        the number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Calls `callback` for each peer that wants to grow the other end and that `access`
        permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
        so does an exception. `None`: every permitted peer is let in. The callback runs in
        any thread that receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Ends its offers: its names are free at once for another, its seeds are worthless,
        and connected peers stay so.
        """
    def try_receive(self, /) -> Record | VolatileRecord | None:
        """
        Receives the next record if one is there or comes in one turn, else `None`.
        """

@final
class ApertureStreamSender:
    """
    Sends a stream whose records of 64 KiB and more go straight into the receiver's memory, if the
    receiver exports an aperture, which it does with the first message; they leave at once. Earlier
    records, and all others, go as for a `StreamSender`.
    """
    def __enter__(self, /) -> ApertureStreamSender: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def abandon(self, /) -> None:
        """
        Ends the stream before its end, and closes: records that have left arrive, and then
        the receiver raises `Closed`, as it does when this process dies; its loop over the
        records does not just end. Coalesced records do not leave. An exception that leaves
        a `with` does the same.
        """
    def close(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Sends the rest and tells the receiver that this was all, waiting at most `timeout`
        seconds; then closes. After `TimedOut` the sender is not closed, and `close` may be
        called again.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> ApertureStreamSender:
        """
        Grows it for the receiver served as `[user@]name`, waiting at most `timeout` seconds
        for a server of that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        The path that the data takes, and the reason.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends coalesced records, waiting at most `timeout` seconds for room: when it
        returns, every record is on its way, and arrives even if this process ends. Raises
        `TimedOut`.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> ApertureStreamSender:
        """
        Grows it from a receiver's seed (a `Seed`, or the bytes or text of one), waiting at
        most `timeout` seconds for the receiver's answer.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> ApertureStreamSender:
        """
        Grows it from the end point that a job's rank offers under `name`, waiting for it at
        most `timeout` seconds.
        """
    def loan(self, /, nbytes: SupportsIndex) -> RecordLoan:
        """
        Lends a record of `nbytes` bytes, all zero, to be written before it is sent: with
        `memoryview(loan)`, `numpy.frombuffer(loan, ..)` and the like, and then
        `loan.send()`, which copies it once, into the link or the aperture, as `send` does
        with other bytes. Never waits; there may be several. Raises `Misuse` if it is longer
        than the receiver's longest record.
        """
    def loan_array(self, /, dtype: DType, shape: Shape) -> RecordLoan:
        """
        Lends a record for an array of this type ("<f8", or any argument of `numpy.dtype`)
        and shape, all zero, to be computed in place, `loan.array()[:] = ..`, and then sent
        by `loan.send()`, for the receiver's `record.array()`. Otherwise as `loan`. Raises
        `BufferError` for types that cannot be sent, `ValueError` for impossible shapes.
        """
    @property
    def nbytes_max(self, /) -> int:
        """
        Longest record.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    def send(self, /, record: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one record, waiting at most `timeout` seconds for room. A small one leaves
        with others, at the latest with the next `flush()`; a record above 16 KiB has left
        when the call returns. Raises `TimedOut` if nothing was taken; or `CutOff` if the
        record was taken.
        """
    def send_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends an array with its type and shape, for the receiver's `record.array()`.
        Otherwise as `send`. To put the header before it costs one copy more than `send`; a
        `Loan`, or `loan_array`, saves it. Raises `BufferError` if the array holds Python
        objects, has fields or a mask, or is not contiguous.
        """

@final
class Area:
    """
    A message area: the memory for arriving messages. It has the buffer protocol, so
    `numpy.frombuffer(area, dtype=..)` and `memoryview(area)` show it without copying.

    Bytes change only while the manager receives: in calls that receive, send, wait or poll, on any
    thread, or at any time with a progress thread; and only those for which a ticket was made. A
    one-shot slot's bytes are stable from the notification until the entry is armed.
    """
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /, dtype: DType, shape: Shape, offset: SupportsIndex = 0) -> AnyArray:
        """
        Bytes of it from `offset` on as a numpy array that can be written, without a copy; the array
        keeps the memory. Raises `ValueError` if they are not inside. Needs numpy.
        """
    @property
    def nbytes(self, /) -> int:
        """
        Its size in bytes.
        """
    def remove(self, /) -> None:
        """
        Frees the memory. Raises `Misuse` while slots name it, and `BufferError` while an array or a
        view shows it.
        """
    def report(self, /) -> tuple[str, str]:
        """
        Whether huge pages and wiring were granted: two texts, `"not asked"`, `"granted"`, or a
        description of the substitute.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class ByteListener:
    """
    Accepts byte streams. Any number of threads may accept.
    """
    def __enter__(self, /) -> ByteListener: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, manager: Manager, *, window_nbytes: SupportsIndex = 262144, packets: SupportsIndex = 256, connections_max: SupportsIndex = 256) -> ByteListener:
        """
        A listener; streams find it by name or grow from its seed. `window_nbytes`: bytes that each
        peer may send before they are received, a power of two from 4 KiB to 16 MiB; `packets`:
        packets, from 8 to 1,024. `connections_max`: connections at one time, accepted or not.
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def accept(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> ByteStream:
        """
        Accepts the next connection; waits at most `timeout` seconds. It outlives the listener, and
        its bytes may be there already. Raises `TimedOut`.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @property
    def connections(self, /) -> int:
        """
        The number of connections: accepted and not closed, waiting to be accepted, or on their way.
        """
    @property
    def misbehaved(self, /) -> int:
        """
        Peers that were disconnected because they broke the rules.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. End points of one
        kind have different names; closing an end point frees its names.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which any process that may connect can grow the other end.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
        the number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Calls `callback` for each peer that wants to grow the other end and that `access`
        permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
        so does an exception. `None`: every permitted peer is let in. The callback runs in
        any thread that receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Ends its offers: its names are free at once for another, its seeds are worthless,
        and connected peers stay so.
        """
    def try_accept(self, /) -> ByteStream | None:
        """
        Accepts the next connection if one is there or comes in one turn, else `None`.
        """

@final
class ByteStream:
    """
    One side of a connection: bytes in both directions, in order. One thread may receive while
    another sends. Bytes that a send took arrive even if this process ends. After a close, too, the
    peer receives the sent bytes, and then the end.
    """
    def __enter__(self, /) -> ByteStream: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, window_nbytes: SupportsIndex = 262144, packets: SupportsIndex = 256) -> ByteStream:
        """
        Connects to the listener served as `[user@]name`, waiting at most `timeout` seconds for a
        server of that name and for its answer. `window_nbytes` and `packets`: limits for the
        listener's bytes, as those of a `ByteListener` for its peers.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        The path that the data takes, and the reason.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, window_nbytes: SupportsIndex = 262144, packets: SupportsIndex = 256) -> ByteStream:
        """
        Connects by a listener's seed (a `Seed`, or the bytes or text of one); otherwise as
        `connect`.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, window_nbytes: SupportsIndex = 262144, packets: SupportsIndex = 256) -> ByteStream:
        """
        Connects to the listener that a job's rank offers under `name`, waiting for it at most
        `timeout` seconds; otherwise as `connect`.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def recv(self, /, nbytes: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> bytes:
        """
        Receives up to `nbytes` bytes, waiting at most `timeout` seconds for the first of them.
        Empty: the peer has shut down its direction, and all of its bytes were received. Raises
        `TimedOut`, and `Closed` if the peer is gone without a shutdown.
        """
    def recv_into(self, /, target: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Receives into `target`, a bytearray or another writable buffer, at most as much as it holds;
        returns the number of bytes. Otherwise as `recv`.
        """
    def send(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Sends as much of `data` as there is room for, waiting at most `timeout` seconds for room for
        the first byte; returns the number of bytes taken. Raises `TimedOut`, and `Closed` if the
        peer is gone; then no bytes were taken.
        """
    def sendall(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends all of `data`, waiting at most `timeout` seconds altogether. `TimedOut` gives the
        number of bytes that were sent; do not send these again.
        """
    def shutdown(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Ends this side's direction, waiting at most `timeout` seconds for room: the peer receives
        the sent bytes, and then the end. Receiving goes on. Raises `TimedOut`; then the direction
        is still open.
        """
    def try_recv(self, /, nbytes: SupportsIndex) -> bytes | None:
        """
        `recv` without waiting: `None` if nothing has come.
        """
    def try_recv_into(self, /, target: Buffer) -> int | None:
        """
        `recv_into` without waiting: `None` if nothing has come.
        """
    def try_send(self, /, data: Buffer) -> int:
        """
        `send` without waiting: 0 if there is no room now.
        """
    def try_shutdown(self, /) -> bool:
        """
        `shutdown` without waiting: `False` if there is no room now.
        """

@final
class Call:
    """
    A call that was started. Dropping this object forgets the call, as `forget()` does. It is not
    dropped while a name refers to it, or an exception's traceback.
    """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def finish(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bytes:
        """
        Waits for the reply, at most `timeout` seconds. After `TimedOut` it may be finished later.
        """
    def forget(self, /) -> None:
        """
        Forgets the call: its reply will be dropped, and only then another call has its place. The
        server's handler can see that (`request.is_cancelled()`). Does nothing if the call was
        finished or forgotten.
        """
    def try_finish(self, /) -> bytes | None:
        """
        The reply if it is there or comes in one turn, else `None`.
        """

@final
class Client:
    """
    Calls a server. Any number of threads may call.
    """
    def __enter__(self, /) -> Client: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _at_once_max(self, /) -> int: ...
    @property
    def _manager(self, /) -> Manager: ...
    def call(self, /, request: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> bytes:
        """
        Sends a request and waits for the reply, at most `timeout` seconds in all.
        """
    def call_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> AnyArray:
        """
        `call` with an array, its type and shape; the reply is an array, too, from `reply_array`.
        Raises `BufferError` as `pack_array`, and `ArrayError` if the reply is not an array.
        """
    def call_within(self, /, request: Buffer, limit: SupportsFloat | SupportsIndex) -> bytes:
        """
        `call` within `limit` seconds, which the server knows: its handler sees when the caller
        gives up (`request.time_left`, `request.is_cancelled()`). Costs 8 bytes of the request.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, outstanding: SupportsIndex = 64, reply_nbytes: SupportsIndex = 4088, reply_nbytes_max: SupportsIndex = 16781312) -> Client:
        """
        Connects to the server of `[user@]name`. `outstanding`: calls that may be outstanding, if
        the server allows that many. `reply_nbytes`: longest reply that is sent at once, at most
        4,088 bytes; longer ones, up to `reply_nbytes_max`, cost another round trip.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        The path that the data takes, and the reason.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, outstanding: SupportsIndex = 64, reply_nbytes: SupportsIndex = 4088, reply_nbytes_max: SupportsIndex = 16781312) -> Client:
        """
        Grows a client from a server's seed (a `Seed`, or the bytes or text of one). See `connect`.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, outstanding: SupportsIndex = 64, reply_nbytes: SupportsIndex = 4088, reply_nbytes_max: SupportsIndex = 16781312) -> Client:
        """
        Grows a client of the server that a job's rank offers under `name`, waiting for it at most
        `timeout` seconds. See `connect`.
        """
    @property
    def outstanding_max(self, /) -> int:
        """
        Calls that may be outstanding.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    def start(self, /, request: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> Call:
        """
        Sends a request, waiting at most `timeout` seconds for a free call and, if it is long, for
        the server to make room for it. The returned `Call` gets the reply.
        """
    def start_within(self, /, request: Buffer, limit: SupportsFloat | SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> Call:
        """
        `start`, waiting at most `timeout` seconds, or as long as `limit`; sends the server the
        caller's limit, `limit` seconds from now: see `call_within`. A caller that gives up drops
        the `Call`.
        """

@final
class Connected:
    """
    Another manager has made a link.
    """
    def __repr__(self, /) -> str: ...
    @property
    def link(self, /) -> Link:
        """
        The link.
        """
    @property
    def request(self, /) -> int | None:
        """
        The number of the request that it comes from, if it was asked for.
        """

@final
class Datagram:
    """
    A datagram. It has the buffer protocol, read-only, without a copy: its bytes are stable until
    its receiver is made ready for the next one, which is refused while any view shows them.
    """
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array sent by `send_array`: checked, then shown in place, read-only. While the array
        exists, the receiver cannot be made ready. Raises `ArrayError` if the datagram is not an
        array, or does not fit. Needs numpy.
        """
    @property
    def link(self, /) -> Link:
        """
        The link over which it came.
        """
    @property
    def offset(self, /) -> int:
        """
        Where its bytes begin in the receiver's area.
        """
    def reply(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Answers it with the ticket that came with it; waits at most `timeout` seconds for room. Does
        not report whether the other end was ready. If the time limit passes (`TimedOut` says so) or
        Ctrl-C ends the call, part of a long answer may have left: the rest is then kept, and leaves
        first in the next answer over this link; if the receiver or the link is closed before, the
        answer is never complete. Otherwise nothing of it was sent.
        """
    def reply_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        `reply` with an array, its type and shape. Raises `BufferError` as `pack_array`.
        """
    @property
    def wants_reply(self, /) -> bool:
        """
        Whether its sender wants an answer.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class DatagramReceiver:
    """
    Receives datagrams, one at a time: a message lands in the area, and stays until `ready()`.
    """
    def __enter__(self, /) -> DatagramReceiver: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, manager: Manager, nbytes: SupportsIndex) -> DatagramReceiver:
        """
        A receiver with an area of `nbytes` zero bytes, which is ready for one datagram.
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def make_ready(self, /, *, anew: bool = False) -> None:
        """
        Makes the receiver ready: the bytes of the previous datagram may change from now on. Raises
        `BufferError` while an array or a view shows them. `anew`: with a new key, so that every
        issued ticket is worthless.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. End points of one
        kind have different names; closing an end point frees its names.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Datagram:
        """
        Receives the datagram; waits at most `timeout` seconds. Afterwards the receiver is not ready
        for another: datagrams sent meanwhile are dropped. Raises `TimedOut`.
        """
    def reply_ticket(self, /) -> Ticket:
        """
        A ticket to send one datagram to this receiver whenever it is ready; pass it as the `reply`
        of a datagram.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which any process that may connect can grow the other end.
        """
    @property
    def senders(self, /) -> int:
        """
        Senders that have a connection now.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
        the number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Calls `callback` for each peer that wants to grow the other end and that `access`
        permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
        so does an exception. `None`: every permitted peer is let in. The callback runs in
        any thread that receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Ends its offers: its names are free at once for another, its seeds are worthless,
        and connected peers stay so.
        """
    @property
    def takes_one(self, /) -> bool:
        """
        Whether it is ready for a datagram.
        """
    def try_receive(self, /) -> Datagram | None:
        """
        Receives the datagram if one is there or comes in one turn, else `None`.
        """

@final
class DatagramSender:
    """
    Sends datagrams.
    """
    def __enter__(self, /) -> DatagramSender: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    @property
    def capacity(self, /) -> int:
        """
        The size of the receiver's area, in bytes.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> DatagramSender:
        """
        Grows it for the receiver served as `[user@]name`, waiting at most `timeout` seconds
        for a server of that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        The path that the data takes, and the reason.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
        """
        After a time limit has cut a datagram off: waits at most `timeout` seconds until the rest
        has left; returns whether it has.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> DatagramSender:
        """
        Grows it from a receiver's seed (a `Seed`, or the bytes or text of one), waiting at
        most `timeout` seconds for the receiver's answer.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> DatagramSender:
        """
        Grows it from the end point that a job's rank offers under `name`, waiting for it at
        most `timeout` seconds.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    def send(self, /, data: Buffer, offset: SupportsIndex = 0, *, reply: Ticket | None = None, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends `data`, of any length, to the receiver's area at `offset`, and with it, as `reply`, a
        ticket for the answer (`DatagramReceiver.reply_ticket` of this manager). Waits at most
        `timeout` seconds for room. Does not report whether the receiver was ready.
        """
    def send_array(self, /, array: Buffer, offset: SupportsIndex = 0, *, reply: Ticket | None = None, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        `send` of an array with its type and shape, for the datagram's `array()`. Raises
        `BufferError` as `pack_array`.
        """

@final
class DelegatedPart:
    """
    A delegated piece of a member's part: the right to send that many bytes to the root, once. It
    travels as bytes.
    """
    def __bytes__(self, /) -> bytes: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    @staticmethod
    def from_bytes(data: Buffer) -> DelegatedPart:
        """
        Reads the bytes of `bytes(part)`. The root decides whether it is valid.
        """

@final
class Group:
    """
    The root of a group: many members send a part each, and it gets one notification when all have
    arrived; and it sends to all.
    """
    def __enter__(self, /) -> Group: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, manager: Manager, members: SupportsIndex, part_nbytes: SupportsIndex, *, scatter_nbytes: SupportsIndex | None = None) -> Group:
        """
        A group of `members` places, with parts of up to `part_nbytes` bytes; `scatter_nbytes`: most
        bytes that it sends to a member, the same number unless given.
        """
    def __repr__(self, /) -> str: ...
    def _broadcast_to(self, /, data: Buffer, members: SupportsGetItem[int, SupportsIndex]) -> list[int]: ...
    @property
    def _manager(self, /) -> Manager: ...
    def _scatter_to(self, /, parts: Sequence[Buffer], members: SupportsGetItem[int, SupportsIndex]) -> list[int]: ...
    def _try_flush(self, /) -> bool: ...
    def barrier(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Waits at most `timeout` seconds until every member has come to its barrier, and lets all of
        them continue; the round is over. After `TimedOut` the call may be repeated.
        """
    def broadcast(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Sends the same bytes to each member, as `scatter` does.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def gather(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> list[GroupPart]:
        """
        Waits at most `timeout` seconds until the part of every member has arrived. The parts are
        stable until `next_round()`. If a member dies before its part has arrived, raises `Closed`,
        which names it; parts that have arrived stay.
        """
    @property
    def joined(self, /) -> int:
        """
        Members that have a connection now.
        """
    @property
    def members(self, /) -> int:
        """
        Places of the group.
        """
    def next_round(self, /) -> None:
        """
        Ends the round: the bytes of its parts may change from now on. Raises `BufferError` while an
        array or a view shows them.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. End points of one
        kind have different names; closing an end point frees its names.
        """
    def parts(self, /) -> list[GroupPart]:
        """
        The parts that have arrived, without waiting.
        """
    def peer(self, /, member: SupportsIndex) -> Peer | None:
        """
        The identity of a member, from the kernel; `None` while the place is free.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    @property
    def round(self, /) -> int:
        """
        The number of the round, from 1 on.
        """
    def scatter(self, /, parts: Sequence[Buffer], timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Sends each member its item of `parts`; waits at most `timeout` seconds, and sees Ctrl-C
        after that.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which any process that may connect can grow the other end.
        """
    def seed_of(self, /, member: SupportsIndex) -> Seed:
        """
        A seed from which the member in one place can be grown, and its replacement, if it is lost.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
        the number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Calls `callback` for each peer that wants to grow the other end and that `access`
        permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
        so does an exception. `None`: every permitted peer is let in. The callback runs in
        any thread that receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Ends its offers: its names are free at once for another, its seeds are worthless,
        and connected peers stay so.
        """
    def wait_for(self, /, k: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> list[GroupPart]:
        """
        Waits at most `timeout` seconds until the parts of any `k` members have arrived. A lost
        member is no error while `k` can still be reached.
        """

@final
class GroupHelper:
    """
    Sends pieces that members of a group have delegated. It takes no place in the group.
    """
    def __enter__(self, /) -> GroupHelper: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def _try_flush(self, /) -> bool: ...
    def _try_send(self, /, part: DelegatedPart, data: Buffer) -> bool | None: ...
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> GroupHelper:
        """
        Grows it for the receiver served as `[user@]name`, waiting at most `timeout` seconds
        for a server of that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> GroupHelper:
        """
        Grows it from a receiver's seed (a `Seed`, or the bytes or text of one), waiting at
        most `timeout` seconds for the receiver's answer.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> GroupHelper:
        """
        Grows it from the end point that a job's rank offers under `name`, waiting for it at
        most `timeout` seconds.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the root, from the kernel.
        """
    def send(self, /, part: DelegatedPart, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends `data`, all bytes of a piece, waiting at most `timeout` seconds for room.
        """

@final
class GroupMember:
    """
    A member of a group.
    """
    def __enter__(self, /) -> GroupMember: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def _try_flush(self, /) -> bool: ...
    def _try_send(self, /, part: Buffer) -> bool | None: ...
    def _try_send_part(self, /, part: DelegatedPart, data: Buffer) -> bool | None: ...
    def barrier(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Comes to the barrier: waits at most `timeout` seconds until every member has, and the root
        lets all continue. After `TimedOut` repeat the call.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, receive_nbytes: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> GroupMember:
        """
        Grows a member of the group served as `[user@]name`.
        """
    def delegate(self, /, nbytes: SupportsIndex, n: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> list[DelegatedPart]:
        """
        Delegates this member's part of the round, `nbytes` bytes, in `n` nearly equal pieces; a
        `GroupHelper`, or another member, sends each, and the part has arrived when all have. Waits
        at most `timeout` seconds for the round to begin. This member is responsible for its
        helpers: if one does not send, the root waits until this member ends.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        The path that the data takes, and the reason.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, receive_nbytes: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> GroupMember:
        """
        Grows a member from a group's seed, waiting at most `timeout` seconds for the root's answer.
        The root may send it up to `receive_nbytes` bytes at once.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, receive_nbytes: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> GroupMember:
        """
        Grows a member of the group that a job's rank offers under `name`, waiting for it at most
        `timeout` seconds.
        """
    @property
    def members(self, /) -> int:
        """
        Places of the group.
        """
    @property
    def number(self, /) -> int:
        """
        Its place in the group, from 0 on.
        """
    @property
    def part_nbytes(self, /) -> int:
        """
        Most bytes of a part.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bytes:
        """
        Receives the root's next scatter or broadcast; waits at most `timeout` seconds.
        """
    def send(self, /, part: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends this member's part of the round, waiting at most `timeout` seconds for the round to
        begin and for room.
        """
    def send_part(self, /, part: DelegatedPart, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends a piece that another member, or this one, has delegated; all of it. Waits at most
        `timeout` seconds for room.
        """

@final
class GroupPart:
    """
    A member's part of a round. It has the buffer protocol, read-only, without a copy: its bytes are
    stable until the next round, which is refused while any view shows them. They begin at a
    multiple of 64 bytes.
    """
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    @property
    def member(self, /) -> int:
        """
        The number of the member.
        """
    @property
    def round(self, /) -> int:
        """
        The round that it belongs to.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Job:
    """
    The job of which this process is a rank: `hamlyn run -n 4 -- python program.py`, or under a
    launcher that speaks PMIx (Open MPI's `mpirun`, Slurm's `srun --mpi=pmix`) or PMI-1 (MPICH's).
    Without a launcher it has one rank. See docs/jobs.md.

    Opening it waits until all ranks have joined, at most the setting `job_timeout_ms`, and raises
    `TimedOut` if they do not. Settings are those of a `Manager`. While it is open, opening it again
    in this process returns the same job. A context manager: leaving it closes it and its `manager`.
    """
    def __enter__(self, /) -> Job: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, **settings: Unpack[Settings]) -> Job: ...
    def __repr__(self, /) -> str: ...
    def client(self, /, rank: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> Client:
        """
        A client of a rank's `server`: waits until the rank has one, at most `timeout` seconds.
        """
    def close(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Closes the job and its manager; queued messages leave first, for at most `timeout` seconds.
        Tells the launcher that this rank has finished with the job. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether the job is closed.
        """
    def explain(self, /) -> str:
        """
        The launcher that was found, why not another, the number of ranks on this host, and those of
        them to which this rank has made links.
        """
    def fence(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Waits until all ranks have called this as often as this one, at most `timeout` seconds.
        Afterwards all ranks can get the bytes put before it. After `TimedOut` it stays begun: the
        next call goes on waiting for it. Concurrent calls of several threads are one fence each, in
        turn: two calls here match two calls of every other rank. A fence goes through the launcher,
        and is for setting up: use a `Group`'s barrier while messages are sent.
        """
    def get(self, /, rank: SupportsIndex, name: str) -> bytes | None:
        """
        The bytes that a rank has put under this name before the last fence, or `None`.
        """
    def is_local(self, /, rank: SupportsIndex) -> bool:
        """
        Whether a rank is on this host, so that messages to it go through a ring.
        """
    @property
    def launcher(self, /) -> str | None:
        """
        The launcher: `"hamlyn run"`, `"PMIx"`, `"PMI-1"`, or `None`.
        """
    @property
    def manager(self, /) -> Manager:
        """
        The manager of the job's end points. It is closed with the job.
        """
    def put(self, /, name: str, data: Buffer) -> None:
        """
        Puts bytes that all other ranks can `get` after the next `fence`. A name is 1 to 32 of `a-z
        A-Z 0-9 . _ -`, and is put once. The launcher carries the bytes, and limits them: Hydra to
        511, `hamlyn run` and PMIx to 32,256.
        """
    @property
    def rank(self, /) -> int:
        """
        The number of this process, from 0 to one less than `size`.
        """
    def seed_of(self, /, rank: SupportsIndex, kind: str, name: str) -> Seed:
        """
        A seed from which a sender grows the end point that a rank offers, now or later, under this
        name and as this kind: `"datagram"`, `"tagged"`, `"stream"`, `"call"`, `"group"`, `"bytes"`
        or `"publish"`: for uses that `grow_from` does not cover. A secret of the job.
        """
    def server(self, /) -> Server:
        """
        This rank's server of calls; every rank may be its `client`. There is one.
        """
    @property
    def size(self, /) -> int:
        """
        How many ranks the job has.
        """
    def stream_from(self, /, rank: SupportsIndex) -> StreamReceiver:
        """
        The stream from a rank, which grows it with `stream_to` at any time. There is one.
        """
    def stream_to(self, /, rank: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> StreamSender:
        """
        The stream to a rank, which receives it with `stream_from`: waits for that, at most
        `timeout` seconds.
        """

@final
class Link:
    """
    A link to another manager.
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def aperture(self, /, number: SupportsIndex) -> Aperture:
        """
        The aperture of this number that this side holds.
        """
    def close(self, /) -> int:
        """
        Ends the link. Returns the number of queued messages that did not leave.
        """
    def explain(self, /) -> str:
        """
        The path that the link takes, and the reason.
        """
    def export(self, /, nbytes: SupportsIndex, *, writable: bool = True) -> Aperture:
        """
        Exports `nbytes` (whole pages of 4,096) of new zeroed memory as an aperture to the other
        end, which may read it and, if `writable`, write it. An `ApertureChanged` event reports that
        the holder has mapped it, or the reason why not.
        """
    def export_also(self, /, aperture: Aperture) -> Aperture:
        """
        Exports a read-only aperture of this manager to the other end of this link as well: both
        holders see the same pages. Each holder is revoked separately, and the memory is freed with
        the last; a revoked holder that keeps its mapping sees further writes as long as the memory
        exists.
        """
    @property
    def greeting(self, /) -> bytes:
        """
        The other end's greeting when the link was made: often a ticket's bytes.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    def send(self, /, ticket: Ticket, data: Buffer, metadata: Buffer | None = None, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one message over this link and no other: so a ticket from this peer is used for this
        peer alone. See `Manager.send`.
        """

@final
class LinkClosed:
    """
    A link is gone. All that its peer had sent before was received.
    """
    def __repr__(self, /) -> str: ...
    @property
    def link(self, /) -> Link:
        """
        The ended link.
        """
    @property
    def reason(self, /) -> str:
        """
        `"closed"`, `"died"`, `"hung up"`, `"expelled"`, or `"misbehaved: "` and the broken rule.
        """
    @property
    def unsent(self, /) -> int:
        """
        Queued messages that did not leave.
        """

@final
class LinkRequest:
    """
    A peer wants to connect to a service that asks. Without an answer the connection times out.
    """
    def __repr__(self, /) -> str: ...
    def accept(self, /, greeting: Buffer | None = None) -> None:
        """
        Accepts the request; the peer gets `greeting`, up to 4 KiB. A `Connected` event reports the
        link.
        """
    @property
    def greeting(self, /) -> bytes:
        """
        The peer's greeting.
        """
    @property
    def id(self, /) -> int:
        """
        A number that `Connected` and `LinkRequestGone` name.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Its identity, from the kernel.
        """
    def refuse(self, /, reason: str = "") -> None:
        """
        Refuses the request; the peer gets `reason`.
        """

@final
class LinkRequestGone:
    """
    A request was withdrawn before it was answered, or did not become a link.
    """
    def __repr__(self, /) -> str: ...
    @property
    def id(self, /) -> int:
        """
        Its number.
        """

@final
class Loan:
    """
    Memory for an array that is computed in place: it has room for the header in front, so that
    `send_array(loan)` copies the array once, into the ring or the aperture, and not twice. It has
    the buffer protocol, writable: the bytes of the array. It may be sent any number of times;
    changes after a send are for the next one.
    """
    def __len__(self, /) -> int: ...
    def __new__(cls, /, dtype: DType, shape: Shape) -> Loan:
        """
        Memory, all zeros, for an array of this type ("<f8", or any argument of `numpy.dtype`) and
        shape. Raises `BufferError` for types that cannot be sent, `ValueError` for impossible
        shapes.
        """
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array, in this memory.
        """
    @property
    def nbytes(self, /) -> int:
        """
        Number of bytes of the array.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Manager:
    """
    A process's part in Hamlyn: its links, names, message areas and waiting.

    Any number of threads may use it. Settings are those of docs/settings.md, by name; the others
    come from the variables `HAMLYN_*`. A context manager: leaving it closes it.
    """
    def __enter__(self, /) -> Manager: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, **settings: Unpack[Settings]) -> Manager: ...
    def __repr__(self, /) -> str: ...
    def _awake(self, /) -> None:
        """
        `silence()` of the only event loop that watches `fileno()`: until it prepares to wait,
        messages received for it by other calls do not make the descriptor readable, since it looks
        before that.
        """
    @property
    def _key(self, /) -> int:
        """
        A key that all objects of this manager have in common.
        """
    def _ready(self, /, ends: list[ByteStream | ByteListener]) -> list[int]:
        """
        Takes a turn, and returns the places in the list of these byte streams and listeners that
        are ready. A closed stream or listener is ready.
        """
    @property
    def _spin(self, /) -> float:
        """
        Seconds for which a waiting event loop polls before it sleeps, from the settings.
        """
    def _wait_for_packet(self, /, timeout: SupportsFloat | SupportsIndex | None) -> bool:
        """
        `wait`, without regard to unread events.
        """
    def area(self, /, nbytes: SupportsIndex) -> Area:
        """
        Makes a message area of `nbytes` zero bytes, beginning on a page. It stays until it is
        removed or the manager is closed.
        """
    def area_of_file(self, /, descriptor: SupportsIndex, nbytes: SupportsIndex, *, offset: SupportsIndex = 0) -> Area:
        """
        Makes a message area of `nbytes` bytes from `offset` on, a multiple of the page size, of a
        memory file. The program may map the file itself, for instance with `mmap`, and protect it
        at any time: the library makes a mapping of its own, and does not keep the descriptor.

        The file comes from `os.memfd_create` with `os.MFD_ALLOW_SEALING`, is sealed with
        `fcntl.F_SEAL_SHRINK` (truncating the file would kill the process), and is not sealed
        against writing; no other process may write these bytes. Raises `Misuse` for any other file.
        """
    def close(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Ends every link and name. Queued messages leave first, for at most `timeout` seconds. Memory
        that arrays still show stays until they are gone. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def connect(self, /, name: str, greeting: Buffer | None = None, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> Link:
        """
        Connects to the service `[user@]name`, waiting at most `timeout` seconds in all: for a
        server of the name, too, unless the setting `wait_for_names` is off. `greeting`, up to 4
        KiB, reaches the server before it decides.
        """
    def counters(self, /) -> dict[str, int]:
        """
        Name and value of each counter of the interface and the control plane. docs/refusals.md explains
        the protection behind each refusal.
        """
    def fileno(self, /) -> int:
        """
        A descriptor for an event loop: readable when something may have arrived after
        `prepare_to_wait()` has returned `True`. `hamlyn.aio` uses it for asyncio.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
        """
        Waits until every queued message has left, at most `timeout` seconds; returns whether they
        have.
        """
    @property
    def id(self, /) -> int:
        """
        The manager's name in tickets.
        """
    def links(self, /) -> list[Link]:
        """
        The present links.
        """
    @property
    def listens_at(self, /) -> str | None:
        """
        The address to which other hosts connect: the setting `listen`, such as `127.0.0.1:7000`,
        with the port that the system chose if the setting's was 0. `None`: the manager does not
        listen.
        """
    def next_event(self, /) -> Event | None:
        """
        The next event, or `None`: a `LinkRequest`, `LinkRequestGone`, `Connected`, `LinkClosed`,
        `TicketRevoked` or `ApertureChanged`.
        """
    def notes(self, /) -> list[str]:
        """
        Fallbacks and missing features because of this system or its limits, in words.
        """
    def poll(self, /) -> int:
        """
        One turn: receives from the links and lets queued packets leave. Returns the number of
        packets received, refused ones included.
        """
    def prepare_to_wait(self, /) -> bool:
        """
        Call this before waiting for `fileno()`, after finding every end point empty. `False`:
        something has come; look again. `True`: any arrival from now on makes the descriptor
        readable; look at every end point once more, because another thread (a progress thread, too)
        may have received something since the look before, then wait. When the descriptor is
        readable, call `silence()` first, or it stays so.
        """
    def queue(self, /, entries: SupportsIndex) -> Queue:
        """
        Makes a notification queue of `entries` entries.
        """
    def reset_watchdog(self, /) -> None:
        """
        Tells the manager that the program is alive: packets are not discarded for another
        `watchdog_ms`. Every call that receives or waits does the same: this is for a program that
        is busy with something else while a progress thread runs.
        """
    def send(self, /, ticket: Ticket, data: Buffer, metadata: Buffer | None = None, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one message: `data`, any object with the buffer protocol, lands at the ticket's bytes.

        `metadata`, up to 60 bytes, goes to the message's metadata entry. Waits for room at most
        `timeout` seconds (`None`: without limit), and receives meanwhile. When it returns, `data`
        may be changed again; until then no other thread may change `data`, or the receiver would
        get a mixture.
        """
    def send_fast(self, /, ticket: Ticket, data: Buffer, word: SupportsIndex = 0, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one packet in fast mode, with a word of 32 bits beside it.
        """
    def serve(self, /, name: str, greeting: Buffer | None = None, *, access: Access | None = None) -> None:
        """
        Offers a service. Every permitted process is accepted with `greeting` (often a ticket's
        bytes), or, if that is `None`, becomes a `LinkRequest` event.

        `access`: `"same_user"`, `"anyone"` or the number of a group.
        """
    def set_directory(self, look_up: Callable[[str, float | None], Sequence[str]] | None, /) -> None:
        """
        Sets the function that finds services of other hosts whose names give no place
        (`hamlyn://service`): `look_up(service, timeout)`, instead of the setting `directory`;
        `None`: the setting applies.

        It returns places, `"host:port"`, in the order in which to try them. No place means that no
        host offers the service yet: a connecting call that waits for names asks again, less and
        less often. An exception ends the attempt. It runs in a thread of its own for each look-up,
        and may wait: a connecting call still returns when its time limit has passed. `timeout` is
        the rest of that limit, in seconds, or `None`. A function that refers to this manager keeps
        it alive.
        """
    def set_seed_access(self, /, access: Access) -> None:
        """
        Sets the processes that may grow senders from this manager's seeds: `"same_user"` (unless
        set), `"anyone"` or the number of a group. To be set before the first seed is made.
        """
    def silence(self, /) -> None:
        """
        Call this when `fileno()` is readable, before looking at the end points.
        """
    def slot(self, /, area: Area, queue: Queue, *, start: SupportsIndex = 0, stop: SupportsIndex | None = None, entries: SupportsIndex = 1, mode: str = "normal", credit: SupportsIndex | None = None) -> Slot:
        """
        Makes a slot over bytes `start` to `stop` of `area`, which notifies through `queue`.

        `entries`: messages that may be on their way at once. `mode`: `"normal"`, `"paranoid"` or
        `"one_shot"` (paranoid, and the bytes of an arrived message are stable). `credit`: entries
        of the queue that it reserves, one for each metadata entry unless given.
        """
    def start_progress(self, /) -> None:
        """
        Starts a thread of the library that receives while the program makes no calls.
        """
    def stop_progress(self, /) -> None:
        """
        Stops that thread.
        """
    def stop_serving(self, /, name: str) -> bool:
        """
        No longer offers a service; links made through it stay. `False`: it was not offered.
        """
    def try_send(self, /, ticket: Ticket, data: Buffer, metadata: Buffer | None = None) -> bool:
        """
        Sends one message if that needs no wait; `False`: not now.
        """
    def wait(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
        """
        Waits until a packet has arrived or an event is there, at most `timeout` seconds; returns
        whether it succeeded. It returns at once as long as `next_event` has an event: in a loop
        that waits, read the events, too.
        """

@final
class Notification:
    """
    A message has arrived.
    """
    def __repr__(self, /) -> str: ...
    @property
    def index(self, /) -> int | None:
        """
        Its metadata entry; `None` for a packet in fast mode.
        """
    @property
    def link(self, /) -> Link:
        """
        The link over which it came.
        """
    @property
    def slot(self, /) -> Slot:
        """
        The slot in which it arrived, for `metadata`, `arm` and the like.
        """
    @property
    def word(self, /) -> int:
        """
        In fast mode the word that the packet carried, else 0.
        """

@final
class Peer:
    """
    The identity of the other end of a link.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def address(self, /) -> str | None:
        """
        For another host: the address that it is connected from, as address:port; `None`: it is on
        this host.
        """
    @property
    def gid(self, /) -> int | None:
        """
        Its group, from the kernel; `None`: of another user namespace.
        """
    @property
    def id(self, /) -> int:
        """
        The id of its manager, by its own account.
        """
    @property
    def identity(self, /) -> str | None:
        """
        For another host, its proven identity: the first name in its certificate; or the
        certificate's hash, if it has no name; or `"secret"`, for a peer that has this process's
        secret and no certificate.
        """
    @property
    def pid(self, /) -> int | None:
        """
        Its process; `None` if it is not visible from here.
        """
    @property
    def service(self, /) -> str:
        """
        The service through which the link was made.
        """
    @property
    def uid(self, /) -> int | None:
        """
        Its user, from the kernel; `None`: of another user namespace.
        """

@final
class Publisher:
    """
    Publishes samples to all its subscribers. Any number of threads may publish.
    """
    def __enter__(self, /) -> Publisher: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """
        Drains it for at most 10 s, unless an exception leaves the `with`, and closes. Subscribers
        that have not had all samples by then get `Closed`; no subscriber makes this raise.
        """
    def __new__(cls, /, manager: Manager, *, short_nbytes_max: SupportsIndex = 1024, sample_nbytes_max: SupportsIndex = 0, loans_max: SupportsIndex = 2, backlog: SupportsIndex = 16, history: SupportsIndex = 0, outstanding_max: SupportsIndex = 4, subscribers_max: SupportsIndex = 16, when_slow: WhenSlow = "drop_oldest") -> Publisher:
        """
        A publisher without subscribers. `short_nbytes_max`: longest sample that is copied to each
        subscriber, at most 2,032; longer ones, of at most `sample_nbytes_max`, lie in a pool, of which
        every subscriber can read everything at any time (0: there is none), and `loans_max` of which may be
        on loan at once. To subscribers on other hosts they go in parts. `backlog`: the newest samples that are kept for subscribers that have no room
        now; `history`: those that whoever subscribes may ask for. `outstanding_max`: samples of the pool
        that a subscriber may have at once, at most 64; `subscribers_max`: how many there may be at one
        time. `when_slow`: what becomes of samples for which a subscriber has no room, unless it asks for
        something that burdens the publisher less: `"wait"`, `"drop_oldest"`, `"drop_newest"` or
        `"send_away"`, in this order.

        The pool is taken at once, and is `pool_nbytes` long: `sample_nbytes_max` (up to a multiple of 64)
        times the sum of `subscribers_max` times `outstanding_max`, the larger of `backlog` and `history`,
        and `loans_max`, in whole pages. With samples of 8 MiB and the other settings as they are, that
        is 656 MiB. Raises `Misuse` where a control group of this process leaves less.
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def _publish_loan(self, /, loan: SampleLoan, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        `SampleLoan.publish` of a loan that must be this publisher's: another's raises `Misuse`, and
        stays as it is.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections, at once: a subscriber that was not sent all samples yet, or
        missed the last, gets the error that it was too slow. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def drain(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        `flush`, and waits until subscribers have released every sample of the pool: call it before
        closing the publisher, which frees the pool. Raises `TimedOut`.
        """
    @property
    def dropped(self, /) -> int:
        """
        Samples that subscribers did not get because they were slow, those that have gone included.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Waits, at most `timeout` seconds, until every subscriber has been sent all samples that are
        kept for it. Raises `TimedOut`.
        """
    def loan(self, /, nbytes: SupportsIndex) -> SampleLoan:
        """
        Lends a sample of `nbytes` bytes of the pool, to be written in place; never waits. Its bytes
        are those of any earlier sample. Raises `Misuse` if it is too long, or every loan is out.
        """
    def loan_array(self, /, dtype: DType, shape: Shape) -> SampleLoan:
        """
        Lends a sample of the pool for an array of this type ("<f8", or any argument of
        `numpy.dtype`) and shape, to be computed in place: `loan.array()`. Otherwise as `loan`.
        Raises `BufferError` for types that cannot be sent, `ValueError` for impossible shapes.
        """
    @property
    def misbehaved(self, /) -> int:
        """
        Subscribers that were disconnected because they broke the rules.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. End points of one
        kind have different names; closing an end point frees its names.
        """
    @property
    def pool_nbytes(self, /) -> int:
        """
        Bytes of memory that the pool has taken, at once, when this was made; 0: there is none.
        """
    def publish(self, /, sample: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Publishes a sample; returns the number of samples published before it. Waits, at most
        `timeout` seconds, only for subscribers of `"wait"`. Raises `TimedOut`, and `Misuse` if the
        sample is too long or every loan of the pool is out; then nothing was published.
        """
    def publish_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        `publish` of an array with its type and shape, for `Sample.array()`. Raises `BufferError` if
        the array holds Python objects, has fields or a mask, or is not contiguous.
        """
    @property
    def published(self, /) -> int:
        """
        Samples that were published.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which any process that may connect can grow the other end.
        """
    @property
    def sent_away(self, /) -> int:
        """
        Subscribers that were disconnected because they were too slow, or cannot receive the
        samples.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
        the number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Calls `callback` for each peer that wants to grow the other end and that `access`
        permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
        so does an exception. `None`: every permitted peer is let in. The callback runs in
        any thread that receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Ends its offers: its names are free at once for another, its seeds are worthless,
        and connected peers stay so.
        """
    @property
    def subscribers(self, /) -> list[SubscriberState]:
        """
        Its subscribers, and how each keeps up.
        """
    def try_publish(self, /, sample: Buffer) -> int | None:
        """
        `publish` without waiting: `None`, and nothing was published, if it would have to wait.
        """

@final
class Queue:
    """
    A notification queue.
    """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Notification:
        """
        Waits for the next notification, at most `timeout` seconds (`None`: without limit). Raises
        `TimedOut`.
        """
    def remove(self, /) -> None:
        """
        Removes the queue. Raises `Misuse` while slots use it.
        """
    def try_receive(self, /) -> Notification | None:
        """
        The next notification if a message has arrived, else `None`. Takes a turn over the links.
        """

@final
class ReconnectingClient:
    """
    A client of a named service that connects again when the server is gone or drains. Any number of
    threads may call.

    A request is sent to one server once. If the connection ends before the reply has come, this
    side cannot know whether the request was carried out: the call raises `Closed`, unless it is
    idempotent, that is, does no harm twice; then it is sent again over the next connection. A
    request that certainly reached no server is sent over the next connection in any case. Calls
    wait for a connection within their own time limits, unless the policy says otherwise.

    An outage without a call is not noticed, and costs nothing. The first call in an outage starts a
    thread of the library, which connects, for all calls, and ends; it goes on as the policy says
    when the calls have given up.
    """
    def __enter__(self, /) -> ReconnectingClient: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, manager: Manager, name: str, policy: ReconnectPolicy | None = None, *, outstanding: SupportsIndex = 64, reply_nbytes: SupportsIndex = 4088, reply_nbytes_max: SupportsIndex = 16781312) -> ReconnectingClient:
        """
        A client of `[user@]name`, with the settings of `Client.connect`. Its first call connects
        it.
        """
    def __repr__(self, /) -> str: ...
    def _begin(self, /, request: Buffer, told: SupportsFloat | SupportsIndex | None, is_idempotent: bool) -> _ReconnectingCall: ...
    @property
    def _manager(self, /) -> Manager: ...
    def call(self, /, request: Buffer, timeout: SupportsFloat | SupportsIndex | None = None, *, is_idempotent: bool = False) -> bytes:
        """
        Sends a request and waits for the reply, through outages, at most `timeout` seconds in all.
        Raises `TimedOut`; `Closed` if the connection ended when the server may have had the
        request; `Unreachable` if the policy allows no more attempts, or says that calls do not
        wait; and the errors of `Client.call`.
        """
    def call_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None, *, is_idempotent: bool = False) -> AnyArray:
        """
        `call` with an array, for an array: see `Client.call_array`.
        """
    def call_within(self, /, request: Buffer, limit: SupportsFloat | SupportsIndex, *, is_idempotent: bool = False) -> bytes:
        """
        `call` within `limit` seconds; the server gets the rest of that limit.
        """
    def close(self, /) -> None:
        """
        Ends the connection, or the attempt to make one; waiting calls raise `Closed`. Closing twice
        is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, policy: ReconnectPolicy | None = None, outstanding: SupportsIndex = 64, reply_nbytes: SupportsIndex = 4088, reply_nbytes_max: SupportsIndex = 16781312) -> ReconnectingClient:
        """
        Makes a client that is connected; waits at most `timeout` seconds. Raises the errors of
        `Client.connect`.
        """
    @property
    def connections(self, /) -> int:
        """
        Connections so far: a change means that there was an outage.
        """

@final
class Record:
    """
    A record of a stream whose bytes are stable. It has the buffer protocol, read-only, without a
    copy: it stays where it arrived until it is released, by `release()`, at the end of a `with`
    block, or when it is dropped. Its memory is reused when all earlier records have been released,
    too: so a record that is kept stops the stream when those behind it fill the receiver's buffers.
    Copy bytes that you want to keep. The buffer of a record from `send_array` includes the header,
    and so does `numpy.asarray(record)`: `record.array()` is the array.
    """
    def __array__(self, /, dtype: object = None, copy: object = None) -> AnyArray:
        """
        For `numpy.asarray(record)`, which shows its bytes. Raises `Closed` after its release, since
        numpy would otherwise make an array of one Python object.
        """
    def __arrow_c_array__(self, /, requested_schema: object | None = None) -> tuple[object, object]:
        """
        Arrow's C data interface, of `array()`, which is one-dimensional and of numbers; its reader
        keeps the record. Raises `BufferError` for other arrays. Needs pyarrow.
        """
    def __dlpack__(self, /, **arguments: object) -> object:
        """
        DLPack, of `array()`: its reader must support read-only arrays (`max_version` 1.0), and
        keeps the record.
        """
    def __dlpack_device__(self, /) -> tuple[int, int]:
        """
        DLPack: memory of the processor.
        """
    def __enter__(self, /) -> Record: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array sent by `send_array`: checked, then shown in place, read-only. While the array
        exists, the record cannot be released. Raises `ArrayError` if the record is not an array, or
        does not fit. Needs numpy.
        """
    def copy_into(self, /, target: Buffer, start: SupportsIndex = 0) -> None:
        """
        Copies bytes, from `start` on, into all of `target`, a numpy array or another
        writable buffer. Raises `Misuse` if the record has fewer.
        """
    @property
    def number(self, /) -> int:
        """
        The number of records before it.
        """
    def release(self, /) -> None:
        """
        Lets its memory be reused. Raises `BufferError` while a view or an array uses it.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class RecordLoan:
    """
    A record that has yet to be sent. It has the buffer protocol, writable; `send()` and `release()`
    raise `BufferError` while a buffer of it exists, such as an array. Dropping the object, or
    leaving its `with` block, releases it without sending it. Its memory is the loan's own; `send()`
    copies it once, into the link or the aperture.
    """
    def __enter__(self, /) -> RecordLoan: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def _is_of(self, /, sender: object) -> bool: ...
    def array(self, /) -> AnyArray:
        """
        The array, in this memory: only for a record of `loan_array`. Needs numpy.
        """
    def release(self, /) -> None:
        """
        Gives it back unsent. Does nothing if it was released or sent.
        """
    def send(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends it, as the sender's `send` does. After an error that took nothing, such as `TimedOut`,
        it may be sent again. Once the record is taken the loan is over, even if the time limit cuts
        the record off (`CutOff`) or a signal handler raises while the rest leaves: the rest leaves
        with the sender's next call.
        """
    def truncate(self, /, nbytes: SupportsIndex) -> None:
        """
        Shortens the record to at most `nbytes` bytes. Earlier views show the cut-off bytes, too.
        Raises `Misuse` for an array.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Request:
    """
    A call to be replied to. If the object is dropped without a reply, the client learns that no
    reply will come. It is not dropped while a name refers to it, such as the variable of a loop
    that waits for the next: `with server.receive() as request:` declines an unanswered request at
    the end of its block, also if an exception leaves the block.
    """
    def __enter__(self, /) -> Request: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def _try_fail(self, /, code: SupportsIndex, text: str) -> bool: ...
    def _try_reply(self, /, data: Buffer) -> bool: ...
    def array(self, /) -> AnyArray:
        """
        The array that the client sent with `call_array`: checked, then shown, read-only. Raises
        `ArrayError` if the request is not an array, or does not fit. Needs numpy.
        """
    @property
    def data(self, /) -> bytes:
        """
        The client's bytes.
        """
    def decline(self, /) -> None:
        """
        Tells the client that no reply will come.
        """
    def fail(self, /, code: SupportsIndex, text: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Answers that the request has failed, waiting at most `timeout` seconds for room: the
        client's call raises `ApplicationError` with this text and `code`. A text of more than 1,024
        bytes, or than the client's `reply_nbytes` less 8, is cut off after a whole character, and
        ends in "…". After Ctrl-C it goes on until `timeout`.
        """
    def is_cancelled(self, /) -> bool:
        """
        Whether no caller waits for the reply any more: it has given up, is gone, or its time limit
        has passed. Takes a turn, so that the answer is up to date. A reply is still allowed, and is
        dropped at the client. Raises `Misuse` if there was a reply already.
        """
    @property
    def link(self, /) -> Link:
        """
        The client's link. After the link ends its name may be reused one day; `peer` never names
        another client.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the caller, from the kernel. Raises `Closed` for a client that has left, if
        the request was replied to, or as many others as the server may have clients have left after
        it.
        """
    def reply(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Replies, waiting at most `timeout` seconds for room, and, if the reply is long, for the
        client to take it; a long reply is copied, and goes on after Ctrl-C. After an error the
        client learns that no reply will come. A second reply raises `Misuse`.
        """
    def reply_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        `reply` with an array, its type and shape. Raises `BufferError` as `pack_array`; then there
        is no reply yet.
        """
    @property
    def time_left(self, /) -> float | None:
        """
        Seconds until the caller gives up, if the server knows its limit; else `None`.
        """

@final
class Sample:
    """
    A sample. A long one stays in its publisher's pool until it is released: by `release()`, at the
    end of a `with` block, or when it is dropped; and the publisher can change it at any time. So
    bytes are only copied out, by `copy_into`, `bytes(sample)` or `array()`; copy first, then check
    the copy.
    """
    def __array__(self, /, *_arguments: object, **_named: object) -> None:
        """
        For `numpy.asarray`: raises an error that names the method to use instead.
        """
    def __bytes__(self, /) -> bytes: ...
    def __enter__(self, /) -> Sample: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array published by `publish_array` or in a `loan_array`, copied: the header first, which
        is checked, then the rest. Raises `ArrayError` if the sample is not an array, or does not
        fit. Needs numpy.
        """
    def copy_into(self, /, target: Buffer, start: SupportsIndex = 0) -> None:
        """
        Copies bytes, from `start` on, into all of `target`, a numpy array or another writable
        buffer. Raises `Misuse` if the sample has fewer, `Closed` if it was released or its
        publisher, in whose pool it is, is gone.
        """
    @property
    def missed(self, /) -> int:
        """
        The number of samples left out between this subscriber's previous one and this one.
        """
    @property
    def number(self, /) -> int:
        """
        The number of samples published before it, to any subscriber.
        """
    def release(self, /) -> None:
        """
        Gives its memory back to the publisher. Releasing twice is allowed.
        """

@final
class SampleLoan:
    """
    A sample of a publisher's pool that has yet to be published. It has the buffer protocol,
    writable; `publish()` and `release()` raise `BufferError` while a buffer of it exists, such as
    an array: that would show a published sample, or another one. Dropping the object releases it. A
    forked child does not have its memory: do not use earlier views there.
    """
    def __enter__(self, /) -> SampleLoan: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array, in this memory: only for a sample of `loan_array`. Needs numpy.
        """
    def publish(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Publishes it: its bytes stay in place, and each subscriber gets a message with their
        position. Otherwise as `Publisher.publish`; after `TimedOut` it may be published again.
        """
    def release(self, /) -> None:
        """
        Gives it back unpublished. Releasing twice is allowed.
        """
    def truncate(self, /, nbytes: SupportsIndex) -> None:
        """
        Shortens the sample to at most `nbytes` bytes. Raises `Misuse` for an array.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Samples:
    """
    The samples of one loop. While the loop waits for the next sample, its variable has the one
    before: this would keep a sample of the pool from its publisher, and would delay a drain.
    """
    def __iter__(self, /) -> Samples: ...
    def __next__(self, /) -> Sample: ...

@final
class Seed:
    """
    A receiver end point's seed, from which its senders grow: bytes or text that may travel in a
    message, in a file or on a command line. A secret: its bearer may grow a sender from it.
    """
    def __bytes__(self, /) -> bytes: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, seed: Seed | Buffer | str) -> Seed:
        """
        Reads a seed from its bytes or its text. Raises `SeedError` if it is not a seed.
        """
    def __reduce__(self, /) -> tuple[object, tuple[bytes]]: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def at_host(self, /, at: str) -> Seed:
        """
        The same for bearers on other hosts, which find the receiver's host at `host:port`; its
        manager has to listen there (the setting `listen`).
        """
    @property
    def kind(self, /) -> str:
        """
        The receiver's protocol.
        """
    @property
    def manager_id(self, /) -> int:
        """
        The id of the manager that the receiver belongs to.
        """

@final
class Server:
    """
    Receives calls. Any number of threads may receive and reply.
    """
    def __enter__(self, /) -> Server: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, manager: Manager, *, outstanding: SupportsIndex = 64, request_nbytes: SupportsIndex = 4088, request_nbytes_max: SupportsIndex = 16781312, long_nbytes_max: SupportsIndex = 67108864, clients_max: SupportsIndex = 64) -> Server:
        """
        A server; clients find it by name or grow from its seed. `outstanding`: calls that each
        client may have outstanding. `request_nbytes`: longest request that is sent at once, at most
        4,088 bytes; longer ones, up to `request_nbytes_max` (an array of 16 MiB, unless given),
        cost another round trip. `long_nbytes_max`: bytes of long requests that one user's clients
        may have here at a time, until each is replied to; further requests wait at the client, but
        one is always accepted. `clients_max`: clients at one time.
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    @property
    def clients(self, /) -> int:
        """
        The number of connected clients.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def drain(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> int:
        """
        Takes no new requests, waits at most `timeout` seconds until other threads have received the
        accepted ones and replied to them, and ends all connections. Returns the number of requests
        without a reply: 0 if all were answered. Its names are free for another server from the
        beginning, and new calls fail with the error that the server is about to close. `receive`
        goes on, and raises `Draining` when no request is left. After Ctrl-C it goes on until
        `timeout`.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. End points of one
        kind have different names; closing an end point frees its names.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Request:
        """
        The next request; waits at most `timeout` seconds. Raises `TimedOut`.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which any process that may connect can grow the other end.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
        the number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Calls `callback` for each peer that wants to grow the other end and that `access`
        permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
        so does an exception. `None`: every permitted peer is let in. The callback runs in
        any thread that receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Ends its offers: its names are free at once for another, its seeds are worthless,
        and connected peers stay so.
        """
    def try_receive(self, /) -> Request | None:
        """
        The next request if one is there or comes in one turn, else `None`.
        """

@final
class Slot:
    """
    A slot: the checks for packets, and the memory where they land.
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def arm(self, /, index: SupportsIndex = 0, start: SupportsIndex | None = None, stop: SupportsIndex | None = None) -> None:
        """
        Arms an entry for the next message. In a paranoid slot the entry gets a new key, and accepts
        bytes `start` to `stop` of the slot only (the whole slot unless given).
        """
    def close_entry(self, /, index: SupportsIndex) -> None:
        """
        Closes a paranoid entry: it accepts nothing until it is armed again.
        """
    def fast_ticket(self, /) -> Ticket:
        """
        A ticket to send single packets in fast mode.
        """
    @property
    def index(self, /) -> int:
        """
        Its index, as tickets give it.
        """
    def metadata(self, /, index: SupportsIndex = 0) -> bytes:
        """
        The metadata, up to 60 bytes, of the message that arrived last in an entry.
        """
    def remove(self, /) -> None:
        """
        Removes the slot. Packets for it are refused from now on.
        """
    def revoke(self, /) -> None:
        """
        Changes the slot's key: all existing tickets are worthless at once.
        """
    def ticket(self, /, index: SupportsIndex = 0) -> Ticket:
        """
        A ticket to send one message to a metadata entry.
        """

@final
class StreamReceiver:
    """
    Receives a stream of records, in order, from one sender, which is grown once. Another sender,
    and one that comes again, needs another receiver.
    """
    def __enter__(self, /) -> StreamReceiver: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __iter__(self, /) -> StreamReceiver:
        """
        The records, until the sender has closed the stream. Raises `Closed` if it ended in
        any other way.
        """
    def __new__(cls, /, manager: Manager, *, buffer_nbytes: SupportsIndex = 65536, buffers: SupportsIndex = 8, buffers_max: SupportsIndex = 64, record_nbytes_max: SupportsIndex = 67112960) -> StreamReceiver:
        """
        A receiver with its first buffers, of `buffer_nbytes` each. `buffers`: buffers that wait for
        messages; `buffers_max`: all buffers, those of unreleased records included;
        `record_nbytes_max`: the longest record; for an array, with its header of 64 bytes or more:
        unless given, 64 MiB and a page.
        """
    def __next__(self, /) -> Record: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    @property
    def buffers(self, /) -> int:
        """
        Buffers of the usual size that exist now.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def explain(self, /) -> str:
        """
        The path that the records take, and the reason.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. End points of one
        kind have different names; closing an end point frees its names.
        """
    @property
    def peer(self, /) -> Peer | None:
        """
        The identity of the sender, from the kernel; `None` before there is a sender.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Record:
        """
        Receives the next record, in the order of sending; waits at most `timeout` seconds.
        After the sender has ended, all records that it had committed come first; then
        raises `Closed`. Raises `TimedOut`, whose text says so if this program holds all
        buffers, so that nothing can come.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which any process that may connect can grow the other end.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
        the number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Calls `callback` for each peer that wants to grow the other end and that `access`
        permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
        so does an exception. `None`: every permitted peer is let in. The callback runs in
        any thread that receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Ends its offers: its names are free at once for another, its seeds are worthless,
        and connected peers stay so.
        """
    def try_receive(self, /) -> Record | None:
        """
        Receives the next record if one is there or comes in one turn, else `None`.
        """

@final
class StreamSender:
    """
    Sends a stream of records. A context manager: leaving it sends the rest and closes. After an
    exception, and if the object is just dropped, it sends only as much as it can without waiting,
    and the receiver's loop raises `Closed`, since records may be missing.
    """
    def __enter__(self, /) -> StreamSender: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def abandon(self, /) -> None:
        """
        Ends the stream before its end, and closes: records that have left arrive, and then
        the receiver raises `Closed`, as it does when this process dies; its loop over the
        records does not just end. Coalesced records do not leave. An exception that leaves
        a `with` does the same.
        """
    def close(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Sends the rest and tells the receiver that this was all, waiting at most `timeout`
        seconds; then closes. After `TimedOut` the sender is not closed, and `close` may be
        called again.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> StreamSender:
        """
        Grows it for the receiver served as `[user@]name`, waiting at most `timeout` seconds
        for a server of that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        The path that the data takes, and the reason.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends coalesced records, waiting at most `timeout` seconds for room: when it
        returns, every record is on its way, and arrives even if this process ends. Raises
        `TimedOut`.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> StreamSender:
        """
        Grows it from a receiver's seed (a `Seed`, or the bytes or text of one), waiting at
        most `timeout` seconds for the receiver's answer.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> StreamSender:
        """
        Grows it from the end point that a job's rank offers under `name`, waiting for it at
        most `timeout` seconds.
        """
    def loan(self, /, nbytes: SupportsIndex) -> RecordLoan:
        """
        Lends a record of `nbytes` bytes, all zero, to be written before it is sent: with
        `memoryview(loan)`, `numpy.frombuffer(loan, ..)` and the like, and then
        `loan.send()`, which copies it once, into the link or the aperture, as `send` does
        with other bytes. Never waits; there may be several. Raises `Misuse` if it is longer
        than the receiver's longest record.
        """
    def loan_array(self, /, dtype: DType, shape: Shape) -> RecordLoan:
        """
        Lends a record for an array of this type ("<f8", or any argument of `numpy.dtype`)
        and shape, all zero, to be computed in place, `loan.array()[:] = ..`, and then sent
        by `loan.send()`, for the receiver's `record.array()`. Otherwise as `loan`. Raises
        `BufferError` for types that cannot be sent, `ValueError` for impossible shapes.
        """
    @property
    def nbytes_max(self, /) -> int:
        """
        Longest record.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    def send(self, /, record: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one record, waiting at most `timeout` seconds for room. A small one leaves
        with others, at the latest with the next `flush()`; a record above 16 KiB has left
        when the call returns. Raises `TimedOut` if nothing was taken; or `CutOff` if the
        record was taken.
        """
    def send_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends an array with its type and shape, for the receiver's `record.array()`.
        Otherwise as `send`. To put the header before it costs one copy more than `send`; a
        `Loan`, or `loan_array`, saves it. Raises `BufferError` if the array holds Python
        objects, has fields or a mask, or is not contiguous.
        """

@final
class Subscriber:
    """
    Receives the samples of one publisher, in the order of publication.
    """
    def __enter__(self, /) -> Subscriber: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __iter__(self, /) -> Samples:
        """
        The samples, until the publisher has closed. Raises `Closed` if it ended in any other way.
        Asking for the next sample releases the one before: copy bytes that you want to keep
        (`bytes(sample)`, `sample.array()`), or take samples by `receive`.
        """
    def __next__(self, /) -> Sample: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, depth: SupportsIndex = 64, when_slow: WhenSlow | None = None, history: SupportsIndex | None = None, outstanding: SupportsIndex | None = None) -> Subscriber:
        """
        Subscribes to the publisher of `[user@]name`, waiting at most `timeout` seconds for a server
        of that name and for its answer. `depth`: samples in this process's memory that wait to be
        received, some 2 KiB each. `when_slow`: the policy if this subscriber is slow: the
        publisher's (`None`), or one that is cheaper for the publisher, which refuses any other.
        `history`: the number of newest samples published before that come first; `outstanding`:
        samples of the pool that it has at once; each at most, and if it is `None` exactly, as many
        as the publisher allows.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        The path that the data takes, and the reason.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, depth: SupportsIndex = 64, when_slow: WhenSlow | None = None, history: SupportsIndex | None = None, outstanding: SupportsIndex | None = None) -> Subscriber:
        """
        Subscribes by a publisher's seed (a `Seed`, or the bytes or text of one); otherwise as
        `connect`.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, depth: SupportsIndex = 64, when_slow: WhenSlow | None = None, history: SupportsIndex | None = None, outstanding: SupportsIndex | None = None) -> Subscriber:
        """
        Subscribes to the publisher that a job's rank offers under `name`, waiting for it at most
        `timeout` seconds. See `connect`.
        """
    @property
    def missed(self, /) -> int:
        """
        The number of samples left out so far, before the received ones.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Sample:
        """
        Receives the next sample; waits at most `timeout` seconds. After the publisher has ended, or
        has disconnected this subscriber, all arrived samples are received first; then raises
        `Closed`. Raises `TimedOut`.
        """
    def try_receive(self, /) -> Sample | None:
        """
        Receives the next sample if one is there or comes in one turn, else `None`.
        """

@final
class SubscriberState:
    """
    A publisher's view of one subscriber, at the time of the call.
    """
    def __repr__(self, /) -> str: ...
    @property
    def behind(self, /) -> int:
        """
        Kept samples that it has yet to be sent.
        """
    @property
    def dropped(self, /) -> int:
        """
        Samples that it will not get, because it was slow.
        """
    @property
    def is_served(self, /) -> bool:
        """
        Whether it can be sent samples: it has mapped the pool, if there is one.
        """
    @property
    def outstanding(self, /) -> int:
        """
        Samples of the pool that were announced to it and that it has not released.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Its identity, from the kernel.
        """
    @property
    def sent(self, /) -> int:
        """
        Samples that were sent to it.
        """
    @property
    def untaken(self, /) -> int:
        """
        Messages in its own memory that it had not taken, by its last report.
        """
    @property
    def when_slow(self, /) -> str:
        """
        The policy for samples for which it has no room.
        """

@final
class Tag:
    """
    A tagged write has arrived.
    """
    def __int__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    @property
    def link(self, /) -> Link:
        """
        The link of the sender.
        """
    @property
    def tag(self, /) -> int:
        """
        The sender's tag.
        """

@final
class TaggedReceiver:
    """
    Receives tagged writes: data at an offset of its area, and a tag in its queue.
    """
    def __enter__(self, /) -> TaggedReceiver: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, manager: Manager, nbytes: SupportsIndex, *, tags: SupportsIndex = 256, senders_max: SupportsIndex = 16) -> TaggedReceiver:
        """
        A receiver with an area of `nbytes` zero bytes. `tags`: tags that each sender may have in
        the queue; `senders_max`: senders at one time.
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def get_specific_tag(self, /, tag: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> Tag:
        """
        Takes the next message with this tag; other tags that come meanwhile are kept for later, in
        their order. Raises `TimedOut`.
        """
    def get_tag(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Tag:
        """
        Takes the next tag, in the order of arrival; waits at most `timeout` seconds. Its data is in
        the area by then. Raises `TimedOut`.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. End points of one
        kind have different names; closing an end point frees its names.
        """
    def read(self, /, offset: SupportsIndex, length: SupportsIndex) -> bytes:
        """
        Copies `length` bytes out of the area, from `offset` on.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which any process that may connect can grow the other end.
        """
    @property
    def senders(self, /) -> int:
        """
        The number of senders that have a connection now.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or
        the number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Calls `callback` for each peer that wants to grow the other end and that `access`
        permits: `True` lets it in; `False`, or a text, which the peer gets, refuses it, and
        so does an exception. `None`: every permitted peer is let in. The callback runs in
        any thread that receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Ends its offers: its names are free at once for another, its seeds are worthless,
        and connected peers stay so.
        """
    def try_get_tag(self, /) -> Tag | None:
        """
        Takes the next tag if one is there or comes in one turn, else `None`.
        """

@final
class TaggedSender:
    """
    Sends tagged writes.
    """
    def __enter__(self, /) -> TaggedSender: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    @property
    def capacity(self, /) -> int:
        """
        The size of the receiver's area, in bytes.
        """
    def close(self, /) -> None:
        """
        Closes it and its connections. Closing twice is allowed.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> TaggedSender:
        """
        Grows it for the receiver served as `[user@]name`, waiting at most `timeout` seconds
        for a server of that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        The reason why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        The path that the data takes, and the reason.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> TaggedSender:
        """
        Grows it from a receiver's seed (a `Seed`, or the bytes or text of one), waiting at
        most `timeout` seconds for the receiver's answer.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> TaggedSender:
        """
        Grows it from the end point that a job's rank offers under `name`, waiting for it at
        most `timeout` seconds.
        """
    @property
    def nbytes_max(self, /) -> int:
        """
        Most bytes of one write: those of a packet.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The identity of the other end, from the kernel.
        """
    def send(self, /, offset: SupportsIndex, data: Buffer, tag: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Writes `data` to the receiver's area at `offset` and `tag` to its queue, waiting at most
        `timeout` seconds for room and for the receiver to take earlier tags.
        """
    def try_send(self, /, offset: SupportsIndex, data: Buffer, tag: SupportsIndex) -> bool:
        """
        `send` without waiting: `False`, and nothing was sent, if it would have to wait.
        """

@final
class Ticket:
    """
    The right to send one message: bytes that may travel anywhere. Their bearer has the right.
    """
    def __bytes__(self, /) -> bytes: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __reduce__(self, /) -> tuple[object, tuple[bytes]]: ...
    def __repr__(self, /) -> str: ...
    def at(self, /, offset: SupportsIndex) -> Ticket:
        """
        The same right for the bytes from `offset` on.
        """
    @property
    def capacity(self, /) -> int:
        """
        The number of bytes that it may write.
        """
    @property
    def destination(self, /) -> int:
        """
        The id of the manager that receives.
        """
    @staticmethod
    def from_bytes(data: Buffer) -> Ticket:
        """
        Reads a ticket. Raises `Misuse` (a `ValueError`) if the bytes are not a ticket.
        """
    def silent(self, /) -> Ticket:
        """
        The same right without a notification: the data arrives silently.
        """
    def split(self, /, parts: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex, SupportsIndex]]) -> list[Ticket]:
        """
        Splits it among helpers: for each part `(start, stop, share)`, with shares that add up to
        2**32.
        """
    def split_evenly(self, /, n: SupportsIndex) -> list[Ticket]:
        """
        Splits it into `n` parts of equal size and share.
        """

@final
class TicketRevoked:
    """
    The peer refused messages because one of its tickets has been revoked.
    """
    def __repr__(self, /) -> str: ...
    @property
    def index(self, /) -> int:
        """
        The ticket's metadata index.
        """
    @property
    def link(self, /) -> Link:
        """
        The link over which they were sent.
        """
    @property
    def slot(self, /) -> int:
        """
        The ticket's slot, at the peer.
        """

@final
class VolatileRecord:
    """
    A record in an aperture: its sender can change its bytes at any time, even while they are read.
    So they are only copied out, by `copy_into` or `bytes(record)`; copy first, then check the copy.
    It is released as a `Record` is.
    """
    def __array__(self, /, *_arguments: object, **_named: object) -> None:
        """
        For `numpy.asarray`: raises an error that names the method to use instead.
        """
    def __bytes__(self, /) -> bytes: ...
    def __enter__(self, /) -> VolatileRecord: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array sent by `send_array`, copied: the header first, which is checked, then the rest.
        Raises `ArrayError` if the record is not an array, or does not fit. Needs numpy.
        """
    def copy_into(self, /, target: Buffer, start: SupportsIndex = 0) -> None:
        """
        Copies bytes, from `start` on, into all of `target`, a numpy array or another
        writable buffer. Raises `Misuse` if the record has fewer.
        """
    @property
    def number(self, /) -> int:
        """
        The number of records before it.
        """
    def release(self, /) -> None:
        """
        Lets its memory be reused. Raises `BufferError` while a view or an array uses it.
        """

@final
class _Answer:
    """
    The place for a look-up's result: once. The look-up counts as running as long as it has this.
    """
    def fail(self, /, why: str) -> None:
        """
        The reason why there are no places.
        """
    def give(self, /, places: SupportsGetItem[int, str]) -> None:
        """
        The places, host:port.
        """

@final
class _ReconnectingCall:
    """
    A call of a `ReconnectingClient` that was begun. Dropping this object forgets it.
    """
    def finish(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bytes: ...
    def forget(self, /) -> None: ...
    def try_finish(self, /) -> bytes | None: ...

@final
class _Work:
    """
    A thread's work for a task, which may give it up: then any wait of the thread ends with the
    slice, and raises `Closed`.
    """
    def __new__(cls, /) -> _Work: ...
    def give_up(self, /) -> None:
        """
        From any thread: gives the work up.
        """
    def run(self, call: Callable[[], object], /) -> object:
        """
        Calls `call` in this thread, and returns its result.
        """

def _close_log() -> None:
    """
    Keeps no entries from now on; running calls of `_next_entry` return `None`.
    """

def _next_entry() -> tuple[str, int, int | None, int | None, str, str, str] | None:
    """
    Waits for the next entry, without the interpreter's lock. `None`: no more will come.
    """

def _open_log() -> None:
    """
    Keeps entries for `_next_entry` from now on.
    """

def _set_slice(milliseconds: SupportsIndex) -> None:
    """
    For tests: a slice so long that work which needs its end does not go on at all.
    """

def pack_array(array: Buffer) -> bytes:
    """
    The message that an array is sent as by `send_array`: a header with its type and shape, and its
    bytes in C order. For whatever sends bytes: a call, a file, an event. Raises `BufferError`, which
    says what to do instead, for every array that cannot be sent: of Python objects, of strings of any
    length, of a type that is not numpy's own (`bfloat16`), with fields or a mask, with elements that
    have no bytes, with more than 32 dimensions, not in one piece, or without elements while its other
    lengths make more than 1 MiB. So does each method that sends an array.
    """

def settings() -> list[tuple[str, str, str, str, str]]:
    """
    The settings: a list of name, variable, default, allowed values, and effect.
    """

def unpack_array(message: Buffer) -> AnyArray:
    """
    The array in a message of `pack_array`, from any source: checked, then shown without a copy, and
    read-only if the message is. Raises `ArrayError` if it is not an array, or does not fit.
    """
