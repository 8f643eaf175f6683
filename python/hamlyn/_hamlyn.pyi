"""Hamlyn's objects; see the package `hamlyn`. Made from the source: do not edit."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Unpack

from ._types import Access, AnyArray, Buffer, DType, Event, Settings, Shape, WhenSlow
from _typeshed import SupportsGetItem
from typing import Final, SupportsFloat, SupportsIndex, final

__all__ = ["__version__", "Aperture", "ApertureChanged", "ApertureStreamReceiver", "ApertureStreamSender", "Area", "ByteListener", "ByteStream", "Call", "Client", "Connected", "Datagram", "DatagramReceiver", "DatagramSender", "DelegatedPart", "Group", "GroupHelper", "GroupMember", "GroupPart", "Job", "Link", "LinkClosed", "LinkRequest", "LinkRequestGone", "Loan", "Manager", "Notification", "Peer", "Publisher", "Queue", "Record", "RecordLoan", "Request", "Sample", "SampleLoan", "Samples", "Seed", "Server", "Slot", "StreamReceiver", "StreamSender", "Subscriber", "SubscriberState", "Tag", "TaggedReceiver", "TaggedSender", "Ticket", "TicketRevoked", "VolatileRecord", "_Answer", "_Work", "_close_log", "_next_entry", "_open_log", "_set_slice", "pack_array", "settings", "unpack_array"]

__version__: Final[str]
"""
The version of this package and of the library in it.
"""

@final
class Aperture:
    """
    An aperture: memory of its owner, mapped into a holder at the other end of a link; a read-only one
    may have several, each over a link of its own (`Link.export_also`). Announce what was written by a
    message; copy out what has to stand still.
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
        Bytes. At its owner raises `Unreachable` before the event that says `"ready"`.
        """
    @property
    def number(self, /) -> int:
        """
        Its number on its link, the same at both ends: what a message says to name it.
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
        `ArrayError` where there is none, or it reaches outside. Needs numpy.
        """
    def read_into(self, /, offset: SupportsIndex, target: Buffer) -> None:
        """
        Copies from `offset` into `target`, a numpy array or another writable buffer, all of it.
        """
    def read_word(self, /, offset: SupportsIndex) -> int:
        """
        The word of 8 bytes at `offset`, a multiple of 8, whole; what its writer wrote before it can
        be read after it.
        """
    def reclaim(self, /) -> Area:
        """
        Owner: takes it back, at once, from all who hold it, and makes a message area of its bytes as they
        are.
        """
    def release(self, /) -> None:
        """
        Holder: lets go of it; its owner is told.
        """
    def revoke(self, /) -> None:
        """
        Owner: takes it back, at once; what the holder still writes is seen by nobody. Where others hold
        it as well (`Link.export_also`), only this holder is told: the pages stay, and can still be read
        and written here, if that was done before.
        """
    @property
    def revoked(self, /) -> bool:
        """
        Whether it was revoked, or, at its holder, its link has ended. At its owner, where others hold it
        as well (`Link.export_also`), `False` until it was taken from the last of them, or reclaimed.
        """
    @property
    def writable(self, /) -> bool:
        """
        Whether the holder may write.
        """
    def write(self, /, offset: SupportsIndex, data: Buffer) -> None:
        """
        Copies `data` to `offset`. A message that is sent afterwards finds the bytes there.
        """
    def write_array(self, /, offset: SupportsIndex, array: Buffer) -> int:
        """
        Copies an array to `offset`, with its type and shape, for `read_array` at the other end. Returns
        how many bytes that was. Raises `BufferError` as `pack_array`.
        """
    def write_word(self, /, offset: SupportsIndex, value: SupportsIndex) -> None:
        """
        Stores the word at `offset`, whole, after everything that was written before.
        """

@final
class ApertureChanged:
    """
    Something became of an aperture.
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
        At its owner `"ready"`, `"refused: "` and why, or `"released"`; at its holder `"held"` or
        `"revoked"`.
        """

@final
class ApertureStreamReceiver:
    """
    Receives a stream whose long records, of 64 KiB and more, go straight into memory of this
    process that its sender has mapped too: `VolatileRecord`. Short ones, the first long ones, which are
    sent before the sender has that memory, and all of a sender that has none, are `Record`s, as a
    `StreamReceiver`'s.
    """
    def __enter__(self, /) -> ApertureStreamReceiver: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __iter__(self, /) -> ApertureStreamReceiver:
        """
        The records, until the sender has closed the stream. Raises `Closed` where it ended
        in any other way.
        """
    def __new__(cls, /, manager: Manager, aperture_nbytes: SupportsIndex, *, buffer_nbytes: SupportsIndex = 65536, buffers: SupportsIndex = 8, buffers_max: SupportsIndex = 64, record_nbytes_max: SupportsIndex = 67112960) -> ApertureStreamReceiver:
        """
        A receiver that will export an aperture of `aperture_nbytes`, rounded up to whole pages, to
        its sender: a few times the longest record, so that one is written while another is read. A
        record that is longer than the aperture goes through the link. The others: see
        `StreamReceiver`.
        """
    def __next__(self, /) -> Record | VolatileRecord: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def explain(self, /) -> str:
        """
        Which path the records take, and why.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. One of a kind has a
        name; all names are free again when it is closed.
        """
    @property
    def peer(self, /) -> Peer | None:
        """
        Who sends, as the kernel says; `None` before there is a sender.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Record | VolatileRecord:
        """
        The next record, in the order of sending; waits at most `timeout` seconds. After the
        sender's end everything that it had committed comes first; then `Closed` is raised.
        Raises `TimedOut`, which says so where this program holds all buffers, and so nothing
        can come.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which the other end can be grown, by anybody who may connect.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or the
        number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Asks `callback` about each peer that wants to grow the other end, once `access` has let
        it near: `True` lets it in; `False`, or a text that the peer is told, does not, and
        neither does an exception. `None`: whoever may connect is let in. It is called in
        whichever thread receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Nobody finds it any more: its names are free at once for another, its seeds are
        worthless, and who is connected stays so.
        """
    def try_receive(self, /) -> Record | VolatileRecord | None:
        """
        The next record if one is there or comes in one turn, else `None`.
        """

@final
class ApertureStreamSender:
    """
    Sends a stream whose records of 64 KiB and more go straight into the receiver's memory, where
    that exports an aperture, which it does with the first message; they leave at once. Those before, and
    all others, go as a `StreamSender`'s.
    """
    def __enter__(self, /) -> ApertureStreamSender: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def abandon(self, /) -> None:
        """
        Ends the stream before its end, and closes: what has left arrives, and then the receiver
        raises `Closed`, as it does when this process dies; its loop over the records does not
        just end. What is coalesced does not leave. So it is, too, where an exception leaves a
        `with`.
        """
    def close(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Sends what is left and tells the receiver that this was all, waiting at most `timeout`
        seconds; then it is closed. After `TimedOut` it is not, and may be closed again.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> ApertureStreamSender:
        """
        Grows it for the receiver that is served as `[user@]name`, waiting at most `timeout`
        seconds for somebody to serve that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        Which path the data takes, and why.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends what was coalesced, waiting at most `timeout` seconds for room: when it returns, every
        record is on its way, and arrives also if this process ends. Raises `TimedOut`.
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
        Grows it from what a job's rank offers under `name`, waiting for it at most `timeout`
        seconds.
        """
    def loan(self, /, nbytes: SupportsIndex) -> RecordLoan:
        """
        A record of `nbytes` bytes, all zero, to be written before it is sent: by
        `memoryview(loan)`, `numpy.frombuffer(loan, ..)` and the like, and then
        `loan.send()`, which copies it once, into the link or the aperture, as `send` does with
        other bytes. Never waits; there may be several. Raises `Misuse` where that is longer
        than the receiver takes.
        """
    def loan_array(self, /, dtype: DType, shape: Shape) -> RecordLoan:
        """
        A record for an array of this type ("<f8", or whatever `numpy.dtype` takes) and shape,
        all zero, to be computed in place, `loan.array()[:] = ..`, and then sent by
        `loan.send()`: the receiver's `record.array()` has it. Otherwise as `loan`. Raises
        `BufferError` for types that are not sent, `ValueError` for shapes that cannot be.
        """
    @property
    def nbytes_max(self, /) -> int:
        """
        Longest record.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who is at the other end, as the kernel says.
        """
    def send(self, /, record: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one record, waiting at most `timeout` seconds for room. A small one leaves with
        others, at the latest with the next `flush()`; one above 16 KiB has left when the
        call returns. Raises `TimedOut`, and nothing was taken; or `CutOff`, and it was.
        """
    def send_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends an array with its type and shape, as a record whose `array()` has it again.
        Otherwise as `send`. The header is put before it, which costs a copy more than
        `send`; a `Loan` saves it, or `loan_array`. Raises `BufferError` where the array holds
        Python objects, has fields or a mask, or is not in one piece.
        """

@final
class Area:
    """
    A message area: the memory that messages land in. It has the buffer protocol, so
    `numpy.frombuffer(area, dtype=..)` and `memoryview(area)` show it without copying.

    Bytes change only while the manager takes what has arrived: in calls that receive, send, wait or
    poll, on any thread, or at any time with a progress thread; and only those that a ticket was
    given for. A one-shot slot's bytes stand still from the notification until the entry is armed.
    """
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /, dtype: DType, shape: Shape, offset: SupportsIndex = 0) -> AnyArray:
        """
        Bytes of it from `offset` on as a numpy array that can be written, without a copy; it keeps
        the memory. Raises `ValueError` where they are not inside. Needs numpy.
        """
    @property
    def nbytes(self, /) -> int:
        """
        Bytes.
        """
    def remove(self, /) -> None:
        """
        Gives the memory back. Raises `Misuse` while slots name it, and `BufferError` while an array
        or a view shows it.
        """
    def report(self, /) -> tuple[str, str]:
        """
        Whether huge pages and wiring were granted: two texts, `"not asked"`, `"granted"`, or what
        was given instead.
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
        A listener; streams find it by name or grow from its seed. `window_nbytes`: bytes that each peer
        may send before they are received, a power of two from 4 KiB to 16 MiB; `packets`: packets, from
        8 to 1,024. `connections_max`: how many there may be at one time, accepted or not.
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def accept(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> ByteStream:
        """
        The next connection; waits at most `timeout` seconds. It outlives the listener, and its bytes may
        be there already. Raises `TimedOut`.
        """
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @property
    def connections(self, /) -> int:
        """
        Connections that there are: accepted and not closed, waiting to be accepted, or on their way.
        """
    @property
    def misbehaved(self, /) -> int:
        """
        Peers that were sent away because they broke the rules.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. One of a kind has a
        name; all names are free again when it is closed.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which the other end can be grown, by anybody who may connect.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or the
        number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Asks `callback` about each peer that wants to grow the other end, once `access` has let
        it near: `True` lets it in; `False`, or a text that the peer is told, does not, and
        neither does an exception. `None`: whoever may connect is let in. It is called in
        whichever thread receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Nobody finds it any more: its names are free at once for another, its seeds are
        worthless, and who is connected stays so.
        """
    def try_accept(self, /) -> ByteStream | None:
        """
        The next connection if one is there or comes in one turn, else `None`.
        """

@final
class ByteStream:
    """
    One side of a connection: bytes both ways, in order. One thread may receive while another sends.
    Bytes that a send took are on their way, and arrive also if this process ends. Closing it, too, lets
    the peer receive what was sent, and then the end.
    """
    def __enter__(self, /) -> ByteStream: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, window_nbytes: SupportsIndex = 262144, packets: SupportsIndex = 256) -> ByteStream:
        """
        Connects to the listener that is served as `[user@]name`, waiting at most `timeout` seconds for
        somebody to serve that name and for its answer. `window_nbytes` and `packets`: what the listener
        may send before it is received, as of a `ByteListener`.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        Which path the data takes, and why.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, window_nbytes: SupportsIndex = 262144, packets: SupportsIndex = 256) -> ByteStream:
        """
        Connects by a listener's seed (a `Seed`, or the bytes or text of one); otherwise as `connect`.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, window_nbytes: SupportsIndex = 262144, packets: SupportsIndex = 256) -> ByteStream:
        """
        Connects to the listener that a job's rank offers under `name`, waiting for it at most `timeout`
        seconds; otherwise as `connect`.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who is at the other end, as the kernel says.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def recv(self, /, nbytes: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> bytes:
        """
        Receives what has come, at most `nbytes` bytes, waiting at most `timeout` seconds for the first
        of them. Empty: the peer has said that there is no more, and all of it was received. Raises
        `TimedOut`, and `Closed` where the peer is gone without having said so.
        """
    def recv_into(self, /, target: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Receives into `target`, a bytearray or another writable buffer, at most as much as it holds; says
        how many bytes came. Otherwise as `recv`.
        """
    def send(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Sends as much of `data` as there is room for, waiting at most `timeout` seconds for room for the
        first byte; says how many bytes were taken. Raises `TimedOut`, and `Closed` where the peer is
        gone; then none were.
        """
    def sendall(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends all of `data`, waiting at most `timeout` seconds altogether. `TimedOut` says how many bytes
        were sent, which must not be sent again.
        """
    def shutdown(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Says that this side sends nothing more, waiting at most `timeout` seconds for room for that: the
        peer receives what was sent, and then the end. Receiving goes on. Raises `TimedOut`; then it was
        not said.
        """
    def try_recv(self, /, nbytes: SupportsIndex) -> bytes | None:
        """
        `recv` without waiting: `None`, nothing is there now.
        """
    def try_recv_into(self, /, target: Buffer) -> int | None:
        """
        `recv_into` without waiting: `None`, nothing is there now.
        """
    def try_send(self, /, data: Buffer) -> int:
        """
        `send` without waiting: 0, there is no room now.
        """
    def try_shutdown(self, /) -> bool:
        """
        `shutdown` without waiting: `False`, there is no room now.
        """

@final
class Call:
    """
    A call that was started. Where it goes away, it is forgotten, as by `forget()`. It does not go away
    while a name refers to it, or an exception that has passed by.
    """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def finish(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bytes:
        """
        The reply; waits at most `timeout` seconds. After `TimedOut` it may be finished later.
        """
    def forget(self, /) -> None:
        """
        The reply is not wanted any more: it will be dropped when it comes, and only then another call
        has its place. The server's handler can see that (`request.is_cancelled()`). Of what was finished
        or forgotten nothing is left to forget.
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
        Raises `BufferError` as `pack_array`, and `ArrayError` where the reply is none.
        """
    def call_within(self, /, request: Buffer, limit: SupportsFloat | SupportsIndex) -> bytes:
        """
        `call` within `limit` seconds, which the server is told: its handler sees when the caller gives
        up (`request.time_left`, `request.is_cancelled()`). Costs 8 bytes of the request.
        """
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, outstanding: SupportsIndex = 64, reply_nbytes: SupportsIndex = 4088, reply_nbytes_max: SupportsIndex = 16781312) -> Client:
        """
        Connects to the server that is served as `[user@]name`. `outstanding`: calls that may be
        outstanding, if the server allows as many. `reply_nbytes`: bytes of a reply that are sent at
        once, at most 4,088; longer ones, up to `reply_nbytes_max`, cost a round trip more.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        Which path the data takes, and why.
        """
    @staticmethod
    def grow(manager: Manager, seed: Seed | Buffer | str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, outstanding: SupportsIndex = 64, reply_nbytes: SupportsIndex = 4088, reply_nbytes_max: SupportsIndex = 16781312) -> Client:
        """
        Grows a client from a server's seed (a `Seed`, or the bytes or text of one). See `connect`.
        """
    @staticmethod
    def grow_from(job: Job, rank: SupportsIndex, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, outstanding: SupportsIndex = 64, reply_nbytes: SupportsIndex = 4088, reply_nbytes_max: SupportsIndex = 16781312) -> Client:
        """
        Grows a client of what a job's rank offers under `name`, waiting for it at most `timeout`
        seconds. See `connect`.
        """
    @property
    def outstanding_max(self, /) -> int:
        """
        Calls that may be outstanding.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who is at the other end, as the kernel says.
        """
    def start(self, /, request: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> Call:
        """
        Sends a request, waiting at most `timeout` seconds for a free call and, if it is long, for
        the server to make room for it. The reply is had from the `Call`.
        """
    def start_within(self, /, request: Buffer, limit: SupportsFloat | SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> Call:
        """
        `start`, waiting at most `timeout` seconds, or as long as `limit`; the server is told that the
        reply is waited for until `limit` seconds from now: see `call_within`. Whoever gives up then lets
        the `Call` go.
        """

@final
class Connected:
    """
    A link from another manager is there.
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
    A datagram. It has the buffer protocol, read-only, without a copy: its bytes stand still until
    its receiver is made ready for the next one, which is refused while anything shows them.
    """
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array that was sent by `send_array`: checked, then shown where it arrived, read-only. As
        long as it is there the receiver cannot be made ready. Raises `ArrayError` where the datagram
        is none, or does not fit. Needs numpy.
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
        Answers it with the ticket that came with it; waits at most `timeout` seconds for room.
        Whether the other end was ready is not known. Of a long answer part may have left when the
        time is over (`TimedOut` says so) or Ctrl-C ends the call: the rest is kept then, and leaves
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
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def make_ready(self, /, *, anew: bool = False) -> None:
        """
        Takes datagrams again: the bytes of the one before may change from now on. Raises
        `BufferError` while an array or a view shows them. `anew`: with a new key, so that every
        ticket that is out is worthless.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. One of a kind has a
        name; all names are free again when it is closed.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Datagram:
        """
        The datagram; waits at most `timeout` seconds. After it the receiver is not ready for
        another: what is sent meanwhile is dropped. Raises `TimedOut`.
        """
    def reply_ticket(self, /) -> Ticket:
        """
        The right to send one datagram to this receiver whenever it is ready; to be given as the
        `reply` of a datagram.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which the other end can be grown, by anybody who may connect.
        """
    @property
    def senders(self, /) -> int:
        """
        Senders that have a connection now.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or the
        number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Asks `callback` about each peer that wants to grow the other end, once `access` has let
        it near: `True` lets it in; `False`, or a text that the peer is told, does not, and
        neither does an exception. `None`: whoever may connect is let in. It is called in
        whichever thread receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Nobody finds it any more: its names are free at once for another, its seeds are
        worthless, and who is connected stays so.
        """
    @property
    def takes_one(self, /) -> bool:
        """
        Whether it takes a datagram now.
        """
    def try_receive(self, /) -> Datagram | None:
        """
        The datagram if one is there or comes in one turn, else `None`.
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
        Bytes of the receiver's area.
        """
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> DatagramSender:
        """
        Grows it for the receiver that is served as `[user@]name`, waiting at most `timeout`
        seconds for somebody to serve that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        Which path the data takes, and why.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
        """
        After a time limit has cut a datagram off: waits at most `timeout` seconds until the rest
        has left; says whether it has.
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
        Grows it from what a job's rank offers under `name`, waiting for it at most `timeout`
        seconds.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who is at the other end, as the kernel says.
        """
    def send(self, /, data: Buffer, offset: SupportsIndex = 0, *, reply: Ticket | None = None, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends `data`, of any length, to the receiver's area at `offset`, and with it, as `reply`, a
        ticket for the answer (`DatagramReceiver.reply_ticket` of this manager). Waits at most
        `timeout` seconds for room. Whether the receiver was ready is not known.
        """
    def send_array(self, /, array: Buffer, offset: SupportsIndex = 0, *, reply: Ticket | None = None, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        `send` of an array with its type and shape, for the datagram's `array()`. Raises `BufferError`
        as `pack_array`.
        """

@final
class DelegatedPart:
    """
    A piece of a member's part that was given away: a right to send so many bytes to the root, once.
    It travels as bytes.
    """
    def __bytes__(self, /) -> bytes: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    @staticmethod
    def from_bytes(data: Buffer) -> DelegatedPart:
        """
        Reads what `bytes(part)` made. Whether it is good is decided by the root.
        """

@final
class Group:
    """
    The root of a group: many members send a part each, and it is told once when all are there; and
    it sends to all.
    """
    def __enter__(self, /) -> Group: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, manager: Manager, members: SupportsIndex, part_nbytes: SupportsIndex, *, scatter_nbytes: SupportsIndex | None = None) -> Group:
        """
        A group of `members` places, with parts of up to `part_nbytes` bytes; `scatter_nbytes`: most
        bytes that it sends to a member, as many unless given.
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
        them go on; the round is over. After `TimedOut` the call may be repeated.
        """
    def broadcast(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Sends the same bytes to each member, as `scatter` does.
        """
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def gather(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> list[GroupPart]:
        """
        Waits at most `timeout` seconds until the part of every member has arrived. They stand still
        until `next_round()`. A member that dies before its part has arrived raises `Closed`, which
        names it; what has arrived stays.
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
        The round is over: the bytes of its parts may change from now on. Raises `BufferError` while
        an array or a view shows them.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. One of a kind has a
        name; all names are free again when it is closed.
        """
    def parts(self, /) -> list[GroupPart]:
        """
        The parts that have arrived, without waiting.
        """
    def peer(self, /, member: SupportsIndex) -> Peer | None:
        """
        Who a member is, as the kernel says; `None` while the place is free.
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
        A seed from which the other end can be grown, by anybody who may connect.
        """
    def seed_of(self, /, member: SupportsIndex) -> Seed:
        """
        A seed from which the member in one place can be grown, and another there when that one is
        lost.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or the
        number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Asks `callback` about each peer that wants to grow the other end, once `access` has let
        it near: `True` lets it in; `False`, or a text that the peer is told, does not, and
        neither does an exception. `None`: whoever may connect is let in. It is called in
        whichever thread receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Nobody finds it any more: its names are free at once for another, its seeds are
        worthless, and who is connected stays so.
        """
    def wait_for(self, /, k: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> list[GroupPart]:
        """
        Waits at most `timeout` seconds until the parts of `k` members have arrived, whichever. A
        member that is lost is no error while `k` can still be reached.
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
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> GroupHelper:
        """
        Grows it for the receiver that is served as `[user@]name`, waiting at most `timeout`
        seconds for somebody to serve that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
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
        Grows it from what a job's rank offers under `name`, waiting for it at most `timeout`
        seconds.
        """
    @property
    def peer(self, /) -> Peer:
        """
        The root, as the kernel says.
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
        lets all go on. After `TimedOut` the call is to be repeated.
        """
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, receive_nbytes: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> GroupMember:
        """
        Grows a member of the group that is served as `[user@]name`.
        """
    def delegate(self, /, nbytes: SupportsIndex, n: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> list[DelegatedPart]:
        """
        Gives this member's part of the round, `nbytes` bytes, away in `n` nearly equal pieces; each
        is sent by a `GroupHelper`, or another member, and the part has arrived when all have. Waits
        at most `timeout` seconds for the round to begin. This member answers for its helpers: if
        one does not send, the root waits until this member ends.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        Which path the data takes, and why.
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
        Who is at the other end, as the kernel says.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bytes:
        """
        What the root scatters or broadcasts next; waits at most `timeout` seconds.
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
    A member's part of a round. It has the buffer protocol, read-only, without a copy: its bytes
    stand still until the next round, which is refused while anything shows them. They begin at a
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
    The job that this process is a rank of: `hamlyn run -n 4 -- python program.py`, or under a launcher
    that speaks PMIx (Open MPI's `mpirun`, Slurm's `srun --mpi=pmix`) or PMI-1 (MPICH's). With none of
    them it has one rank. See docs/jobs.md.

    Opening it waits until all ranks have come, at most the setting `job_timeout_ms`, and raises
    `TimedOut` where they do not. Settings are those of a `Manager`. While it is open it is the same
    job for whoever opens it again in this process. A context manager: leaving it closes it, and with
    it its `manager`.
    """
    def __enter__(self, /) -> Job: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, **settings: Unpack[Settings]) -> Job: ...
    def __repr__(self, /) -> str: ...
    def client(self, /, rank: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> Client:
        """
        A client of a rank's `server`: until it has one, this waits, at most `timeout` seconds.
        """
    def close(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Closes the job and its manager; messages that wait leave first, for at most `timeout` seconds.
        The launcher is told that this rank needs it no more. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether the job is closed.
        """
    def explain(self, /) -> str:
        """
        Which launcher it was, why not another, how many ranks are on this host, and to which of them
        this one has made links.
        """
    def fence(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Waits until all ranks have called this as often as this one, at most `timeout` seconds. What
        was put before is there for all. After `TimedOut` it stays begun: the next call goes on waiting
        for it. Threads that call this at once have a fence each, in turn: two calls here are two
        calls of every other rank. It goes through the launcher, and is for setting up: while messages
        are sent a barrier is a `Group`'s.
        """
    def get(self, /, rank: SupportsIndex, name: str) -> bytes | None:
        """
        What a rank has put under this name before the last fence, or `None`.
        """
    def is_local(self, /, rank: SupportsIndex) -> bool:
        """
        Whether a rank is on this host, and messages to it go through a ring.
        """
    @property
    def launcher(self, /) -> str | None:
        """
        Who started it: `"hamlyn run"`, `"PMIx"`, `"PMI-1"`, or `None`.
        """
    @property
    def manager(self, /) -> Manager:
        """
        What end points of the job are made with. It is closed with the job.
        """
    def put(self, /, name: str, data: Buffer) -> None:
        """
        Bytes for all other ranks, which `get` them after the next `fence`. A name is 1 to 32 of
        `a-z A-Z 0-9 . _ -`, and is put once. The launcher carries them, and bounds them: Hydra to 511
        bytes, `hamlyn run` and PMIx to 32,256.
        """
    @property
    def rank(self, /) -> int:
        """
        The number of this process, from 0 to one less than `size`.
        """
    def seed_of(self, /, rank: SupportsIndex, kind: str, name: str) -> Seed:
        """
        A seed from which a sender grows what a rank offers, now or later, under this name and as this
        kind: `"datagram"`, `"tagged"`, `"stream"`, `"call"`, `"group"`, `"bytes"` or `"publish"`: for
        whoever has no use for `grow_from`. A secret of the job.
        """
    def server(self, /) -> Server:
        """
        This rank's server of calls, which every rank may be a `client` of. There is one.
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
        The stream to a rank, which takes it with `stream_from`: until it does, this waits, at most
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
        Ends the link. Returns how many queued messages did not leave.
        """
    def explain(self, /) -> str:
        """
        Which path the link takes, and why.
        """
    def export(self, /, nbytes: SupportsIndex, *, writable: bool = True) -> Aperture:
        """
        Exports `nbytes` (whole pages of 4,096) of new memory, zero, as an aperture to the other end,
        which may read it and, if `writable`, write it. `ApertureChanged` among the events says when
        the holder has it, or why not.
        """
    def export_also(self, /, aperture: Aperture) -> Aperture:
        """
        Exports a read-only aperture of this manager to the other end of this link as well: both
        holders see the same pages. Each is revoked for itself, and the memory goes with the last;
        whoever has been revoked and does not let go sees what is written there as long as it stays.
        """
    @property
    def greeting(self, /) -> bytes:
        """
        What the other end sent along when the link was made: often a ticket's bytes.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who is at the other end, as the kernel says.
        """
    def send(self, /, ticket: Ticket, data: Buffer, metadata: Buffer | None = None, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one message over this link and no other, so that a ticket that came from this peer is
        used towards this peer and nobody else. See `Manager.send`.
        """

@final
class LinkClosed:
    """
    A link is gone. What its peer had sent before has been taken.
    """
    def __repr__(self, /) -> str: ...
    @property
    def link(self, /) -> Link:
        """
        The link that was.
        """
    @property
    def reason(self, /) -> str:
        """
        `"closed"`, `"died"`, `"hung up"`, `"expelled"`, or `"misbehaved: "` and how.
        """
    @property
    def unsent(self, /) -> int:
        """
        Queued messages that did not leave.
        """

@final
class LinkRequest:
    """
    Somebody wants to connect to a service that asks. Without an answer the connection times out.
    """
    def __repr__(self, /) -> str: ...
    def accept(self, /, greeting: Buffer | None = None) -> None:
        """
        Lets it in; `greeting`, up to 4 KiB, reaches it. The link appears as `Connected`.
        """
    @property
    def greeting(self, /) -> bytes:
        """
        What it sent along.
        """
    @property
    def id(self, /) -> int:
        """
        A number that `Connected` and `LinkRequestGone` name.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who, as the kernel says.
        """
    def refuse(self, /, reason: str = "") -> None:
        """
        Turns it away, and says why.
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
    Memory for an array that is computed where it leaves from: with room for the header in front, so
    that `send_array(loan)` copies it once, into the ring or the aperture, and not twice. It has the
    buffer protocol, writable: the bytes of the array. It may be sent any number of times; what is
    written to it after a send is of the next.
    """
    def __len__(self, /) -> int: ...
    def __new__(cls, /, dtype: DType, shape: Shape) -> Loan:
        """
        Memory, all zeros, for an array of this type ("<f8", or whatever `numpy.dtype` takes) and
        shape. Raises `BufferError` for types that are not sent, `ValueError` for shapes that cannot be.
        """
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array, in this memory.
        """
    @property
    def nbytes(self, /) -> int:
        """
        Bytes of the array.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Manager:
    """
    What one process has of Hamlyn: its links, names, message areas and waiting.

    Any number of threads may use it. Settings are those of docs/settings.md, by name; what is not
    given comes from the variables `HAMLYN_*`. A context manager: leaving it closes it.
    """
    def __enter__(self, /) -> Manager: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __new__(cls, /, **settings: Unpack[Settings]) -> Manager: ...
    def __repr__(self, /) -> str: ...
    def _awake(self, /) -> None:
        """
        `silence()` of the only event loop that watches `fileno()`: until it prepares to wait, nothing
        that other calls take for it makes the descriptor readable, for it looks before that.
        """
    @property
    def _key(self, /) -> int:
        """
        What all objects of this manager have in common.
        """
    def _ready(self, /, ends: list[ByteStream | ByteListener]) -> list[int]:
        """
        Takes a turn, and says which of these byte streams and listeners have something: their places in
        the list. A stream or listener that is closed has.
        """
    @property
    def _spin(self, /) -> float:
        """
        Seconds for which whoever waits in an event loop looks, before he sleeps, as the settings say.
        """
    def _wait_for_packet(self, /, timeout: SupportsFloat | SupportsIndex | None) -> bool:
        """
        `wait` for those who are not interested in events that nobody has read.
        """
    def area(self, /, nbytes: SupportsIndex) -> Area:
        """
        A message area of `nbytes` zero bytes, beginning on a page. It stays until it is removed or
        the manager is closed.
        """
    def area_of_file(self, /, descriptor: SupportsIndex, nbytes: SupportsIndex, *, offset: SupportsIndex = 0) -> Area:
        """
        A message area of `nbytes` bytes from `offset` on, a multiple of the page size, of a memory file
        that the program has mapped itself, for instance with `mmap`, and may protect as it likes: the
        library makes a mapping of its own, and does not keep the descriptor.

        The file is one of `os.memfd_create` with `os.MFD_ALLOW_SEALING`, sealed with
        `fcntl.F_SEAL_SHRINK` (a file that can be cut short would kill the process), and not against
        writing; no other process may write these bytes. Raises `Misuse` for any other.
        """
    def close(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Ends every link and name. Messages that wait leave first, for at most `timeout` seconds.
        Memory that arrays still show stays until they are gone. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def connect(self, /, name: str, greeting: Buffer | None = None, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> Link:
        """
        Connects to the service `[user@]name`, waiting at most `timeout` seconds for everything: for
        somebody to serve the name, too, unless the setting `wait_for_names` is off. `greeting`, up to 4 KiB, reaches the server before it decides.
        """
    def counters(self, /) -> dict[str, int]:
        """
        Name and value of each counter of the interface and the control plane. SECURITY.md says
        what each refusal protects.
        """
    def fileno(self, /) -> int:
        """
        A descriptor for an event loop: readable when something may have arrived after
        `prepare_to_wait()` has said `True`. `hamlyn.aio` uses it for asyncio.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
        """
        Waits until every queued message has left, at most `timeout` seconds; says whether they
        have.
        """
    @property
    def id(self, /) -> int:
        """
        The name that tickets for this manager carry.
        """
    def links(self, /) -> list[Link]:
        """
        The links that there are.
        """
    @property
    def listens_at(self, /) -> str | None:
        """
        Where other hosts connect: the setting `listen`, with the port that the system chose where
        that was 0, such as `127.0.0.1:7000`. `None`: nothing listens.
        """
    def next_event(self, /) -> Event | None:
        """
        The next event, or `None`: a `LinkRequest`, `LinkRequestGone`, `Connected`, `LinkClosed`, `TicketRevoked` or
        `ApertureChanged`.
        """
    def notes(self, /) -> list[str]:
        """
        What was done or is missing because of this system or its limits, in words.
        """
    def poll(self, /) -> int:
        """
        One turn: takes what has arrived from the links and lets queued packets leave. Returns how
        many packets were taken, refused ones included.
        """
    def prepare_to_wait(self, /) -> bool:
        """
        To be called before waiting for `fileno()`, after every end point was found empty. `False`:
        something has come; look again. `True`: whatever comes from now on makes the descriptor
        readable; look at every end point once more, because another thread (a progress thread, too)
        may have taken something since the look before, then wait. When the descriptor is readable,
        call `silence()` first, or it stays so.
        """
    def queue(self, /, entries: SupportsIndex) -> Queue:
        """
        A notification queue of `entries` entries.
        """
    def reset_watchdog(self, /) -> None:
        """
        Tells the manager that the program lives: packets are not discarded for another
        `watchdog_ms`. Whatever receives or waits says so, too: this is for a program that is busy
        with something else while a progress thread runs.
        """
    def send(self, /, ticket: Ticket, data: Buffer, metadata: Buffer | None = None, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one message: `data`, any object with the buffer protocol, lands where the ticket says.

        `metadata`, up to 60 bytes, goes to the message's metadata entry. Waits for room at most
        `timeout` seconds (`None`: as long as it takes), and accepts whatever arrives meanwhile.
        When it returns, `data` may be changed again. `data` must not be changed by another thread
        before: the receiver would get a mixture.
        """
    def send_fast(self, /, ticket: Ticket, data: Buffer, word: SupportsIndex = 0, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one packet in fast mode, with a word of 32 bits beside it.
        """
    def serve(self, /, name: str, greeting: Buffer | None = None, *, access: Access | None = None) -> None:
        """
        Offers a service. Whoever connects is accepted with `greeting` (often a ticket's bytes), or,
        where that is `None`, becomes a `LinkRequest` among the events.

        `access`: `"same_user"`, `"anyone"` or the number of a group.
        """
    def set_directory(self, look_up: Callable[[str, float | None], Sequence[str]] | None, /) -> None:
        """
        From now on `look_up(service, timeout)` says where services of other hosts are whose names say
        no place (`hamlyn://service`), in the place of the setting `directory`; `None`: the setting does.

        It returns places, `"host:port"`, in the order in which they are to be tried; none, if nobody
        has the service yet: whoever waits for names asks again, less and less often. What it raises
        ends the attempt. It runs in a thread of its own for each look-up, and may wait: whoever connects
        is told when its time limit is over. `timeout` is what is left of that, in seconds, or `None`. A
        function that has this manager keeps it from going away by itself.
        """
    def set_seed_access(self, /, access: Access) -> None:
        """
        Who may grow senders from this manager's seeds: `"same_user"` (unless set), `"anyone"` or the
        number of a group. To be set before the first seed is made.
        """
    def silence(self, /) -> None:
        """
        To be called when `fileno()` was found readable, before the end points are looked at.
        """
    def slot(self, /, area: Area, queue: Queue, *, start: SupportsIndex = 0, stop: SupportsIndex | None = None, entries: SupportsIndex = 1, mode: str = "normal", credit: SupportsIndex | None = None) -> Slot:
        """
        A slot over bytes `start` to `stop` of `area`, which notifies through `queue`.

        `entries`: messages that may be on their way at once. `mode`: `"normal"`, `"paranoid"` or
        `"one_shot"` (paranoid, and what has arrived can no longer change). `credit`: entries of the
        queue that it reserves, one for each metadata entry unless given.
        """
    def start_progress(self, /) -> None:
        """
        A thread of the library takes what arrives while the program makes no calls.
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
        Sends one message if it can be taken now; `False`: not now.
        """
    def wait(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
        """
        Waits until a packet has arrived or an event is there, at most `timeout` seconds; says
        whether that is so. It returns at once as long as `next_event` has an event to give: whoever
        waits in a loop takes the events in it, too.
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
        The slot that it arrived in, of which `metadata`, `arm` and the like can be asked.
        """
    @property
    def word(self, /) -> int:
        """
        In fast mode the word that the packet carried, else 0.
        """

@final
class Peer:
    """
    Who is at the other end of a link.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def address(self, /) -> str | None:
        """
        Of another host: from where it is connected, as address:port; `None`: it is on this host.
        """
    @property
    def gid(self, /) -> int | None:
        """
        Its group, likewise.
        """
    @property
    def id(self, /) -> int:
        """
        The id of its manager, as it says itself.
        """
    @property
    def identity(self, /) -> str | None:
        """
        Of another host, what it has proved to be: the first name in its certificate; or the hash of one
        that has none; or `"secret"`, for whoever has this process's secret and no certificate.
        """
    @property
    def pid(self, /) -> int | None:
        """
        Its process; `None` if it cannot be seen from here.
        """
    @property
    def service(self, /) -> str:
        """
        The service through which the link was made.
        """
    @property
    def uid(self, /) -> int | None:
        """
        Its user, as the kernel says; `None`: of another user namespace.
        """

@final
class Publisher:
    """
    Publishes samples to all its subscribers. Any number of threads may publish.
    """
    def __enter__(self, /) -> Publisher: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """
        Drains it for at most 10 s, unless an exception leaves the `with`, and closes. Who has not had all by
        then is told so (`Closed`), and no subscriber makes this raise.
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
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def _publish_loan(self, /, loan: SampleLoan, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        `SampleLoan.publish` of a loan that must be this publisher's: another's raises `Misuse`, and stays
        as it is.
        """
    def close(self, /) -> None:
        """
        Ends it, and with it its connections, at once: a subscriber that was not sent all yet, or missed the
        last, is told that it was too slow. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def drain(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        `flush`, and waits until subscribers have released every sample of the pool: before the publisher
        is closed, since the pool goes with it. Raises `TimedOut`.
        """
    @property
    def dropped(self, /) -> int:
        """
        Samples that subscribers did not get because they were slow, those that have gone included.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Waits, at most `timeout` seconds, until every subscriber has been sent all that is kept for it.
        Raises `TimedOut`.
        """
    def loan(self, /, nbytes: SupportsIndex) -> SampleLoan:
        """
        A sample of `nbytes` bytes of the pool, to be written in place; never waits. Its bytes are what
        they last were. Raises `Misuse` where it is too long, or as many are on loan as may be.
        """
    def loan_array(self, /, dtype: DType, shape: Shape) -> SampleLoan:
        """
        A sample of the pool for an array of this type ("<f8", or whatever `numpy.dtype` takes) and
        shape, to be computed in place: `loan.array()`. Otherwise as `loan`. Raises `BufferError` for
        types that are not sent, `ValueError` for shapes that cannot be.
        """
    @property
    def misbehaved(self, /) -> int:
        """
        Subscribers that were sent away because they broke the rules.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. One of a kind has a
        name; all names are free again when it is closed.
        """
    def publish(self, /, sample: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Publishes a sample; returns how many were published before it. Waits, at most `timeout` seconds,
        only for subscribers of `"wait"`. Raises `TimedOut`, and `Misuse` where the sample is too long or
        every loan of the pool is out; then nothing was published.
        """
    def publish_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        `publish` of an array with its type and shape, which `Sample.array()` has again. Raises
        `BufferError` where the array holds Python objects, has fields or a mask, or is not in one piece.
        """
    @property
    def published(self, /) -> int:
        """
        Samples that were published.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which the other end can be grown, by anybody who may connect.
        """
    @property
    def sent_away(self, /) -> int:
        """
        Subscribers that were sent away because they were too slow, or cannot have what is published.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or the
        number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Asks `callback` about each peer that wants to grow the other end, once `access` has let
        it near: `True` lets it in; `False`, or a text that the peer is told, does not, and
        neither does an exception. `None`: whoever may connect is let in. It is called in
        whichever thread receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Nobody finds it any more: its names are free at once for another, its seeds are
        worthless, and who is connected stays so.
        """
    @property
    def subscribers(self, /) -> list[SubscriberState]:
        """
        Its subscribers, and how each keeps up.
        """
    def try_publish(self, /, sample: Buffer) -> int | None:
        """
        `publish` without waiting: `None`, and nothing was published, if that would be needed.
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
        Waits for the next notification, at most `timeout` seconds (`None`: as long as it takes).
        Raises `TimedOut`.
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
class Record:
    """
    A record of a stream whose bytes stand still. It has the buffer protocol, read-only, without a
    copy: it stays where it arrived until it is released: by `release()`, at the end of a `with`
    block, or when it goes away. Its memory is used again when all records before it have been
    released, too: so one that is kept stops the stream when those behind it fill the receiver's
    buffers. Copy what is kept. Of one that was sent by `send_array` the buffer has the header as well,
    and so has `numpy.asarray(record)`: `record.array()` is the array.
    """
    def __array__(self, /, dtype: object = None, copy: object = None) -> AnyArray:
        """
        For `numpy.asarray(record)`, which shows its bytes. Raises `Closed` once it was released, where
        numpy would else make an array of one Python object.
        """
    def __arrow_c_array__(self, /, requested_schema: object | None = None) -> tuple[object, object]:
        """
        Arrow's C data interface, of `array()`, which is flat and of numbers; who reads it holds the
        record. Raises `BufferError` for others. Needs pyarrow.
        """
    def __dlpack__(self, /, **arguments: object) -> object:
        """
        DLPack, of `array()`: what reads it must know of read-only arrays (`max_version` 1.0), and
        holds the record.
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
        The array that was sent by `send_array`: checked, then shown where it arrived, read-only. As
        long as it is there the record cannot be released. Raises `ArrayError` where the record is
        none, or does not fit. Needs numpy.
        """
    def copy_into(self, /, target: Buffer, start: SupportsIndex = 0) -> None:
        """
        Copies bytes, from `start` on, into `target`, a numpy array or another writable
        buffer: as many as it has. Raises `Misuse` where the record has fewer.
        """
    @property
    def number(self, /) -> int:
        """
        How many records came before it.
        """
    def release(self, /) -> None:
        """
        Lets its memory be used again. Raises `BufferError` while something uses it.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class RecordLoan:
    """
    A record that has yet to be sent. It has the buffer protocol, writable; `send()` and `release()`
    raise `BufferError` while something has a buffer of it, such as an array. Where it goes away, and at
    the end of a `with` block, it is released, and nothing is sent that was not. Its memory is the
    loan's own; `send()` copies it once, into the link or the aperture.
    """
    def __enter__(self, /) -> RecordLoan: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def _is_of(self, /, sender: object) -> bool: ...
    def array(self, /) -> AnyArray:
        """
        The array, in this memory: of a record that `loan_array` made. Needs numpy.
        """
    def release(self, /) -> None:
        """
        Gives it back unsent. Releasing twice, or what was sent, does nothing.
        """
    def send(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends it, as the sender's `send` does. After an error that left it as it was it may be sent
        again, as after `TimedOut`. Once it is taken it is over, also where that is cut off (`CutOff`)
        or a signal handler raises while the rest leaves: that goes on with the sender's next call.
        """
    def truncate(self, /, nbytes: SupportsIndex) -> None:
        """
        Makes the record shorter; one of at most `nbytes` bytes stays as it is. Views that were made
        before show what was cut off, too. Raises `Misuse` for one that is an array.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Request:
    """
    A call to be replied to. Where it goes away without a reply, the client is told that none will
    come. It does not go away while a name refers to it, such as that of a loop which waits for the
    next: `with server.receive() as request:` declines what was not replied to at the end of its block,
    also where an exception leaves it.
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
        `ArrayError` where the request is none, or does not fit. Needs numpy.
        """
    @property
    def data(self, /) -> bytes:
        """
        What the client sent.
        """
    def decline(self, /) -> None:
        """
        Tells the client that no reply will come.
        """
    def fail(self, /, code: SupportsIndex, text: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Answers that the request has failed, waiting at most `timeout` seconds for room: the client's
        call raises `ApplicationError` with this text and `code`. A text of more than 1,024 bytes, or than
        the client's `reply_nbytes` less 8, is cut off behind a whole character, and ends in "…". After
        Ctrl-C it goes on until `timeout`.
        """
    def is_cancelled(self, /) -> bool:
        """
        Whether nobody waits for the reply any more: the caller has given up, is gone, or its time is
        over. Takes a turn, so that it sees what has been sent by now. A reply is allowed as ever, and
        is dropped at the client. Raises `Misuse` where it was replied to already.
        """
    @property
    def link(self, /) -> Link:
        """
        The client's link. When that has gone another may have this name one day; `peer` never names
        another.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who calls, as the kernel says. Raises `Closed` of a client that has gone, if the request was
        replied to, or as many others as the server may have clients have gone after it.
        """
    def reply(self, /, data: Buffer, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Replies, waiting at most `timeout` seconds for room, and, where the reply is long, for the
        client to take it; it is copied for that, and goes on after Ctrl-C. On an error the client is told
        that no reply will come. A second reply raises `Misuse`.
        """
    def reply_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        `reply` with an array, its type and shape. Raises `BufferError` as `pack_array`; then it is not
        replied to yet.
        """
    @property
    def time_left(self, /) -> float | None:
        """
        Seconds until its caller gives up, if it said so; else `None`.
        """

@final
class Sample:
    """
    A sample. A long one lies in its publisher's pool until it is released: by `release()`, at the end of
    a `with` block, or when it goes away; and the publisher can change it at any time. So bytes are only
    copied out, by `copy_into`, `bytes(sample)` or `array()`; copy first, then check what was copied.
    """
    def __array__(self, /, *_arguments: object, **_named: object) -> None:
        """
        For `numpy.asarray`, to which it says what to do instead.
        """
    def __bytes__(self, /) -> bytes: ...
    def __enter__(self, /) -> Sample: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array that was published by `publish_array` or in a `loan_array`, copied: the header first,
        which is checked, then the rest. Raises `ArrayError` where the sample is none, or does not fit.
        Needs numpy.
        """
    def copy_into(self, /, target: Buffer, start: SupportsIndex = 0) -> None:
        """
        Copies bytes, from `start` on, into `target`, a numpy array or another writable buffer: as many
        as it has. Raises `Misuse` where the sample has fewer, `Closed` where it was released or lay in
        the pool of a publisher that has gone.
        """
    @property
    def missed(self, /) -> int:
        """
        How many were left out between the one that this subscriber got before and this one.
        """
    @property
    def number(self, /) -> int:
        """
        How many samples were published before it, whoever got them.
        """
    def release(self, /) -> None:
        """
        Lets its publisher use its memory again. Releasing twice is releasing once.
        """

@final
class SampleLoan:
    """
    A sample of a publisher's pool that has yet to be published. It has the buffer protocol, writable;
    `publish()` and `release()` raise `BufferError` while something has a buffer of it, such as an
    array: that would show what others read, or another sample. Where it goes away, it is released. A
    forked child has not got its memory: a view that was made before must not be used there.
    """
    def __enter__(self, /) -> SampleLoan: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array, in this memory: of a sample that `loan_array` made. Needs numpy.
        """
    def publish(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Publishes it: its bytes stay where they are, and each subscriber is told of them. Otherwise as
        `Publisher.publish`; after `TimedOut` it may be published again.
        """
    def release(self, /) -> None:
        """
        Gives it back unpublished. Releasing twice is releasing once.
        """
    def truncate(self, /, nbytes: SupportsIndex) -> None:
        """
        Makes the sample shorter; one of at most `nbytes` bytes stays as it is. Raises `Misuse` for one
        that is an array.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Samples:
    """
    The samples of one loop. While that waits for the next, its variable has the one before: which would
    keep a sample of the pool from its publisher, and one that drains waiting.
    """
    def __iter__(self, /) -> Samples: ...
    def __next__(self, /) -> Sample: ...

@final
class Seed:
    """
    A receiver end point, for whoever is to send to it: bytes or text that may travel in a message,
    in a file or on a command line. A secret: whoever has it may grow a sender from it.
    """
    def __bytes__(self, /) -> bytes: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, seed: Seed | Buffer | str) -> Seed:
        """
        Reads a seed from its bytes or its text. Raises `SeedError` where it is none.
        """
    def __reduce__(self, /) -> tuple[object, tuple[bytes]]: ...
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    def at_host(self, /, at: str) -> Seed:
        """
        The same for bearers on other hosts, who find the receiver's host at `host:port`; its manager
        has to listen there (the setting `listen`).
        """
    @property
    def kind(self, /) -> str:
        """
        What protocol the receiver speaks.
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
        client may have outstanding. `request_nbytes`: bytes of a request that are sent at once, at
        most 4,088; longer ones, up to
        `request_nbytes_max` (an array of 16 MiB, unless given), cost a round trip more.
        `long_nbytes_max`: bytes of long requests that each user's clients may have here at a time, until
        they are replied to; further ones wait at the client, but one is always taken. `clients_max`: how
        many there may be at one time.
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    @property
    def clients(self, /) -> int:
        """
        Clients that are connected.
        """
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def drain(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> int:
        """
        Takes no new requests, waits at most `timeout` seconds until those that are here have been
        received and replied to, by other threads, and ends all connections. Returns how many had no
        reply by then: 0, if all is well. Its names are free for another server from the beginning, and
        whoever calls is told that the server is about to close. `receive` goes on, and raises `Draining`
        when nothing is left to be received. After Ctrl-C it goes on until `timeout`.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. One of a kind has a
        name; all names are free again when it is closed.
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
        A seed from which the other end can be grown, by anybody who may connect.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or the
        number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Asks `callback` about each peer that wants to grow the other end, once `access` has let
        it near: `True` lets it in; `False`, or a text that the peer is told, does not, and
        neither does an exception. `None`: whoever may connect is let in. It is called in
        whichever thread receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Nobody finds it any more: its names are free at once for another, its seeds are
        worthless, and who is connected stays so.
        """
    def try_receive(self, /) -> Request | None:
        """
        The next request if one is there or comes in one turn, else `None`.
        """

@final
class Slot:
    """
    A slot: what packets are checked against, and where they land.
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def arm(self, /, index: SupportsIndex = 0, start: SupportsIndex | None = None, stop: SupportsIndex | None = None) -> None:
        """
        Arms an entry for the next message. In a paranoid slot it gets a new key, and accepts bytes
        `start` to `stop` of the slot only (the whole slot unless given).
        """
    def close_entry(self, /, index: SupportsIndex) -> None:
        """
        A paranoid entry accepts nothing until it is armed again.
        """
    def fast_ticket(self, /) -> Ticket:
        """
        The right to send single packets in fast mode.
        """
    @property
    def index(self, /) -> int:
        """
        The index that tickets name it with.
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
        Changes the slot's key: every ticket made before is worthless at once.
        """
    def ticket(self, /, index: SupportsIndex = 0) -> Ticket:
        """
        The right to send one message to a metadata entry.
        """

@final
class StreamReceiver:
    """
    Receives a stream of records, in order, from the one sender that is grown: once. For each sender, and
    for one that comes again, there is another receiver.
    """
    def __enter__(self, /) -> StreamReceiver: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __iter__(self, /) -> StreamReceiver:
        """
        The records, until the sender has closed the stream. Raises `Closed` where it ended
        in any other way.
        """
    def __new__(cls, /, manager: Manager, *, buffer_nbytes: SupportsIndex = 65536, buffers: SupportsIndex = 8, buffers_max: SupportsIndex = 64, record_nbytes_max: SupportsIndex = 67112960) -> StreamReceiver:
        """
        A receiver with its first buffers, of `buffer_nbytes` each. `buffers`: how many wait for
        messages; `buffers_max`: how many there may be, with those that hold records which were not
        released; `record_nbytes_max`: the longest record; of an array, with its header of 64 bytes or
        more: unless given, 64 MiB and a page.
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
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def explain(self, /) -> str:
        """
        Which path the records take, and why.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. One of a kind has a
        name; all names are free again when it is closed.
        """
    @property
    def peer(self, /) -> Peer | None:
        """
        Who sends, as the kernel says; `None` before there is a sender.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Record:
        """
        The next record, in the order of sending; waits at most `timeout` seconds. After the
        sender's end everything that it had committed comes first; then `Closed` is raised.
        Raises `TimedOut`, which says so where this program holds all buffers, and so nothing
        can come.
        """
    def seed(self, /) -> Seed:
        """
        A seed from which the other end can be grown, by anybody who may connect.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or the
        number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Asks `callback` about each peer that wants to grow the other end, once `access` has let
        it near: `True` lets it in; `False`, or a text that the peer is told, does not, and
        neither does an exception. `None`: whoever may connect is let in. It is called in
        whichever thread receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Nobody finds it any more: its names are free at once for another, its seeds are
        worthless, and who is connected stays so.
        """
    def try_receive(self, /) -> Record | None:
        """
        The next record if one is there or comes in one turn, else `None`.
        """

@final
class StreamSender:
    """
    Sends a stream of records. A context manager: leaving it sends what is left and closes; after an
    exception, and where it just goes away, only what can be sent without waiting, and the receiver's loop
    raises `Closed`, since there may have been more.
    """
    def __enter__(self, /) -> StreamSender: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def abandon(self, /) -> None:
        """
        Ends the stream before its end, and closes: what has left arrives, and then the receiver
        raises `Closed`, as it does when this process dies; its loop over the records does not
        just end. What is coalesced does not leave. So it is, too, where an exception leaves a
        `with`.
        """
    def close(self, /, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> None:
        """
        Sends what is left and tells the receiver that this was all, waiting at most `timeout`
        seconds; then it is closed. After `TimedOut` it is not, and may be closed again.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> StreamSender:
        """
        Grows it for the receiver that is served as `[user@]name`, waiting at most `timeout`
        seconds for somebody to serve that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        Which path the data takes, and why.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends what was coalesced, waiting at most `timeout` seconds for room: when it returns, every
        record is on its way, and arrives also if this process ends. Raises `TimedOut`.
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
        Grows it from what a job's rank offers under `name`, waiting for it at most `timeout`
        seconds.
        """
    def loan(self, /, nbytes: SupportsIndex) -> RecordLoan:
        """
        A record of `nbytes` bytes, all zero, to be written before it is sent: by
        `memoryview(loan)`, `numpy.frombuffer(loan, ..)` and the like, and then
        `loan.send()`, which copies it once, into the link or the aperture, as `send` does with
        other bytes. Never waits; there may be several. Raises `Misuse` where that is longer
        than the receiver takes.
        """
    def loan_array(self, /, dtype: DType, shape: Shape) -> RecordLoan:
        """
        A record for an array of this type ("<f8", or whatever `numpy.dtype` takes) and shape,
        all zero, to be computed in place, `loan.array()[:] = ..`, and then sent by
        `loan.send()`: the receiver's `record.array()` has it. Otherwise as `loan`. Raises
        `BufferError` for types that are not sent, `ValueError` for shapes that cannot be.
        """
    @property
    def nbytes_max(self, /) -> int:
        """
        Longest record.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who is at the other end, as the kernel says.
        """
    def send(self, /, record: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends one record, waiting at most `timeout` seconds for room. A small one leaves with
        others, at the latest with the next `flush()`; one above 16 KiB has left when the
        call returns. Raises `TimedOut`, and nothing was taken; or `CutOff`, and it was.
        """
    def send_array(self, /, array: Buffer, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Sends an array with its type and shape, as a record whose `array()` has it again.
        Otherwise as `send`. The header is put before it, which costs a copy more than
        `send`; a `Loan` saves it, or `loan_array`. Raises `BufferError` where the array holds
        Python objects, has fields or a mask, or is not in one piece.
        """

@final
class Subscriber:
    """
    Receives what one publisher publishes, in the order of publication.
    """
    def __enter__(self, /) -> Subscriber: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def __iter__(self, /) -> Samples:
        """
        The samples, until the publisher has closed. Raises `Closed` where it ended in any other way. Asking
        for the next one releases the one before: copy what is to be kept (`bytes(sample)`,
        `sample.array()`), or take samples by `receive`.
        """
    def __next__(self, /) -> Sample: ...
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0, *, depth: SupportsIndex = 64, when_slow: WhenSlow | None = None, history: SupportsIndex | None = None, outstanding: SupportsIndex | None = None) -> Subscriber:
        """
        Subscribes to what is served as `[user@]name`, waiting at most `timeout` seconds for somebody to
        serve that name and for its answer. `depth`: samples that lie in this process until they are
        received, some 2 KiB each. `when_slow`: what the publisher does where this is slow: what it does
        anyway (`None`), or something that burdens it less; else it refuses. `history`: so many of the
        newest samples that were published before come first; `outstanding`: samples of the pool that it
        has at once; each at most, and where it is `None`, as many as the publisher allows.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        Which path the data takes, and why.
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
        Subscribes to what a job's rank offers under `name`, waiting for it at most `timeout` seconds.
        See `connect`.
        """
    @property
    def missed(self, /) -> int:
        """
        Samples that were left out so far, before those that were received.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who is at the other end, as the kernel says.
        """
    @property
    def ready(self, /) -> bool:
        """
        Whether a receive would return at once.
        """
    def receive(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Sample:
        """
        The next sample; waits at most `timeout` seconds. After the publisher's end, or where it has sent
        this subscriber away, everything that had come is received first; then `Closed` is raised.
        Raises `TimedOut`.
        """
    def try_receive(self, /) -> Sample | None:
        """
        The next sample if one is there or comes in one turn, else `None`.
        """

@final
class SubscriberState:
    """
    What a publisher knows of one subscriber, when it was asked.
    """
    def __repr__(self, /) -> str: ...
    @property
    def behind(self, /) -> int:
        """
        Samples that are kept, and that it has yet to be sent.
        """
    @property
    def dropped(self, /) -> int:
        """
        Samples that it will not get, because it was slow.
        """
    @property
    def is_served(self, /) -> bool:
        """
        Whether it can be sent samples: it holds the pool, where there is one.
        """
    @property
    def outstanding(self, /) -> int:
        """
        Samples of the pool that it was told of and has not released.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who it is, as the kernel says.
        """
    @property
    def sent(self, /) -> int:
        """
        Samples that were sent to it.
        """
    @property
    def untaken(self, /) -> int:
        """
        Messages in its own memory that it had not taken when it last said how many it had.
        """
    @property
    def when_slow(self, /) -> str:
        """
        What becomes of samples for which it has no room.
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
        What the sender gave.
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
        A receiver with an area of `nbytes` zero bytes. `tags`: how many each sender may have in the
        queue; `senders_max`: how many there may be at one time.
        """
    def __repr__(self, /) -> str: ...
    @property
    def _manager(self, /) -> Manager: ...
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    def get_specific_tag(self, /, tag: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> Tag:
        """
        The next message with this tag; others that come meanwhile are kept for later, in their
        order. Raises `TimedOut`.
        """
    def get_tag(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> Tag:
        """
        The next tag, in the order of arrival; waits at most `timeout` seconds. The data that
        belongs to it lies in the area by then. Raises `TimedOut`.
        """
    def offer(self, /, job: Job, name: str) -> None:
        """
        Offers it, which is of the job's manager, to the other ranks under this name: they
        grow the other end with `grow_from`, and wait until it is offered. One of a kind has a
        name; all names are free again when it is closed.
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
        A seed from which the other end can be grown, by anybody who may connect.
        """
    @property
    def senders(self, /) -> int:
        """
        Senders that have a connection now.
        """
    def serve(self, /, name: str, *, access: Access | None = None) -> None:
        """
        Lets others find it by name. `access`: `"same_user"` (unless given), `"anyone"` or the
        number of a group.
        """
    def set_admission(self, callback: Callable[[Peer], bool | str] | None, /) -> None:
        """
        Asks `callback` about each peer that wants to grow the other end, once `access` has let
        it near: `True` lets it in; `False`, or a text that the peer is told, does not, and
        neither does an exception. `None`: whoever may connect is let in. It is called in
        whichever thread receives, waits or polls, with the manager's lock held: it must not
        wait, least of all for a thread that uses the manager, and calling the manager
        raises `Misuse`. It is kept until another is set or this is closed.
        """
    def stop_serving(self, /) -> None:
        """
        Nobody finds it any more: its names are free at once for another, its seeds are
        worthless, and who is connected stays so.
        """
    def try_get_tag(self, /) -> Tag | None:
        """
        The next tag if one is there or comes in one turn, else `None`.
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
        Bytes of the receiver's area.
        """
    def close(self, /) -> None:
        """
        Ends it, and with it its connections. Closing twice is closing once.
        """
    @property
    def closed(self, /) -> bool:
        """
        Whether it is closed.
        """
    @staticmethod
    def connect(manager: Manager, name: str, timeout: SupportsFloat | SupportsIndex | None = 10.0) -> TaggedSender:
        """
        Grows it for the receiver that is served as `[user@]name`, waiting at most `timeout`
        seconds for somebody to serve that name and for its answer.
        """
    @property
    def ended(self, /) -> str | None:
        """
        Why the connection ended; `None` while it has not.
        """
    def explain(self, /) -> str:
        """
        Which path the data takes, and why.
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
        Grows it from what a job's rank offers under `name`, waiting for it at most `timeout`
        seconds.
        """
    @property
    def nbytes_max(self, /) -> int:
        """
        Most bytes of one write: those of a packet.
        """
    @property
    def peer(self, /) -> Peer:
        """
        Who is at the other end, as the kernel says.
        """
    def send(self, /, offset: SupportsIndex, data: Buffer, tag: SupportsIndex, timeout: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Writes `data` to the receiver's area at `offset` and `tag` to its queue, waiting at most
        `timeout` seconds for room and for the receiver to take earlier tags.
        """
    def try_send(self, /, offset: SupportsIndex, data: Buffer, tag: SupportsIndex) -> bool:
        """
        `send` without waiting: `False`, and nothing was sent, if that would be needed.
        """

@final
class Ticket:
    """
    The right to send one message: bytes that may travel anywhere. Whoever has them has the right.
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
        How many bytes it may write.
        """
    @property
    def destination(self, /) -> int:
        """
        The id of the manager that receives.
        """
    @staticmethod
    def from_bytes(data: Buffer) -> Ticket:
        """
        Reads a ticket. Raises `Misuse` (a `ValueError`) where the bytes are no ticket.
        """
    def silent(self, /) -> Ticket:
        """
        The same right without a notification: the data moves and nobody is told.
        """
    def split(self, /, parts: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex, SupportsIndex]]) -> list[Ticket]:
        """
        Splits it among helpers: for each part `(start, stop, share)`, with shares that add to
        2**32.
        """
    def split_evenly(self, /, n: SupportsIndex) -> list[Ticket]:
        """
        Splits it into `n` parts of equal size and share.
        """

@final
class TicketRevoked:
    """
    The peer refused messages because a ticket of its has been revoked.
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
    A record in an aperture: its sender can change its bytes at any time, also while they are read.
    So they are only copied out, by `copy_into` or `bytes(record)`; copy first, then check what was
    copied. It is released as a `Record` is.
    """
    def __array__(self, /, *_arguments: object, **_named: object) -> None:
        """
        For `numpy.asarray`, to which it says what to do instead.
        """
    def __bytes__(self, /) -> bytes: ...
    def __enter__(self, /) -> VolatileRecord: ...
    def __exit__(self, /, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None: ...
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def array(self, /) -> AnyArray:
        """
        The array that was sent by `send_array`, copied: the header first, which is checked, then the
        rest. Raises `ArrayError` where the record is none, or does not fit. Needs numpy.
        """
    def copy_into(self, /, target: Buffer, start: SupportsIndex = 0) -> None:
        """
        Copies bytes, from `start` on, into `target`, a numpy array or another writable
        buffer: as many as it has. Raises `Misuse` where the record has fewer.
        """
    @property
    def number(self, /) -> int:
        """
        How many records came before it.
        """
    def release(self, /) -> None:
        """
        Lets its memory be used again. Raises `BufferError` while something uses it.
        """

@final
class _Answer:
    """
    Where a look-up says what it has found: once. It runs as long as it has this.
    """
    def fail(self, /, why: str) -> None:
        """
        Why there are none.
        """
    def give(self, /, places: SupportsGetItem[int, str]) -> None:
        """
        The places, host:port.
        """

@final
class _Work:
    """
    What a thread does for a task, which may give it up: then whatever the thread waits for ends with
    the slice, and raises `Closed`.
    """
    def __new__(cls, /) -> _Work: ...
    def give_up(self, /) -> None:
        """
        From any thread: nobody wants it any more.
        """
    def run(self, call: Callable[[], object], /) -> object:
        """
        Calls it in this thread, and returns what that returns.
        """

def _close_log() -> None:
    """
    Nothing is kept from now on, and whoever is in `_next_entry` gets `None`.
    """

def _next_entry() -> tuple[str, int, int | None, int | None, str, str, str] | None:
    """
    Waits for the next entry, without the interpreter's lock. `None`: there will be no more.
    """

def _open_log() -> None:
    """
    Entries are kept for `_next_entry` from now on.
    """

def _set_slice(milliseconds: SupportsIndex) -> None:
    """
    For tests: so long that whatever only goes on at the end of a slice does not go on at all.
    """

def pack_array(array: Buffer) -> bytes:
    """
    The message that an array is sent as by `send_array`: a header with its type and shape, and its
    bytes in C order. For whatever sends bytes: a call, a file, an event. Raises `BufferError` where
    the array holds Python objects, has fields or a mask, or is not in one piece.
    """

def settings() -> list[tuple[str, str, str, str, str]]:
    """
    The settings: a list of name, variable, default, what is allowed, and what it does.
    """

def unpack_array(message: Buffer) -> AnyArray:
    """
    The array in a message that `pack_array` made, anywhere: checked, then shown without a copy, and
    read-only where the message is. Raises `ArrayError` where it is none, or does not fit.
    """
