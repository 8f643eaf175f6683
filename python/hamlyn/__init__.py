"""Hamlyn: messages between programs that do not trust one another, at the speed of memory.

The sender names the memory in which a message lands, and holds a key for it; the receiver's own library
checks every packet and makes every deposit. A message needs no system call, no lock and no third
process, and no peer can write a byte outside the memory that it was given.

A receiver makes memory, a slot over it, and a ticket for connecting peers::

    import hamlyn

    with hamlyn.Manager() as manager:
        area, queue = manager.area(4096), manager.queue(16)
        slot = manager.slot(area, queue)
        manager.serve("greeter", bytes(slot.ticket()))
        queue.receive()
        print(bytes(memoryview(area)[:5]))

A sender, usually another process, connects and writes with the ticket::

    with hamlyn.Manager() as manager:
        link = manager.connect("greeter")
        manager.send(hamlyn.Ticket.from_bytes(link.greeting), b"hello")

- Time limits are seconds; `None` is without limit. Waiting never holds the interpreter's lock, and
  Ctrl-C is seen.
- Data to send may be any object with the buffer protocol whose bytes are contiguous: bytes, a
  memoryview, a numpy array. It is not copied first.
- `numpy.frombuffer(area, dtype=..)` shows a message area without a copy.
- `hamlyn.log_events()` makes records of the logger `hamlyn` for links that come, go and are refused.
- `hamlyn.Job` is for the ranks of a parallel program, which find one another.
- `hamlyn.aio` has the same for asyncio.

A manager is for one process: a forked child gets `Forked`, and makes one of its own.
"""

import typing as _typing

from ._errors import (
    ApplicationError,
    ArrayError,
    Closed,
    CutOff,
    Declined,
    Draining,
    Forked,
    HamlynError,
    Misbehaved,
    Misuse,
    OtherVersion,
    Refused,
    SeedError,
    SystemRefused,
    TimedOut,
    UnknownHost,
    Unreachable,
    Untrusted,
    WrongSecret,
)
from ._hamlyn import (
    Aperture,
    ApertureChanged,
    ApertureStreamReceiver,
    ApertureStreamSender,
    Area,
    ByteListener,
    ByteStream,
    Call,
    Client,
    Connected,
    Datagram,
    DatagramReceiver,
    DatagramSender,
    DelegatedPart,
    Group,
    GroupHelper,
    GroupMember,
    GroupPart,
    Job,
    Link,
    LinkClosed,
    LinkRequest,
    LinkRequestGone,
    Loan,
    Manager,
    Notification,
    Peer,
    Publisher,
    Queue,
    ReconnectingClient,
    Record,
    RecordLoan,
    Request,
    Sample,
    SampleLoan,
    Seed,
    Server,
    Slot,
    StreamReceiver,
    StreamSender,
    Subscriber,
    SubscriberState,
    Tag,
    TaggedReceiver,
    TaggedSender,
    Ticket,
    TicketRevoked,
    VolatileRecord,
    __version__,
    pack_array,
    settings,
    unpack_array,
)
from ._log import log_events
from ._reconnect import ReconnectPolicy
from ._types import (
    Access,
    AnyArray,
    Buffer,
    DType,
    Event,
    Setting,
    Settings,
    Shape,
    WhenSlow,
)
from ._wait import Receiver, Waitable, wait_any

if _typing.TYPE_CHECKING:
    from . import aio as aio
else:

    def __getattr__(name):
        # Imported at its first use: with asyncio it takes longer than all the rest.
        if name == "aio":
            from importlib import import_module

            return import_module("hamlyn.aio")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

__all__ = [
    "Access",
    "AnyArray",
    "Aperture",
    "ApertureChanged",
    "ApertureStreamReceiver",
    "ApertureStreamSender",
    "ApplicationError",
    "Area",
    "ArrayError",
    "Buffer",
    "ByteListener",
    "ByteStream",
    "Call",
    "Client",
    "Closed",
    "Connected",
    "CutOff",
    "DType",
    "Datagram",
    "DatagramReceiver",
    "DatagramSender",
    "Declined",
    "DelegatedPart",
    "Draining",
    "Event",
    "Forked",
    "Group",
    "GroupHelper",
    "GroupMember",
    "GroupPart",
    "HamlynError",
    "Job",
    "Link",
    "LinkClosed",
    "LinkRequest",
    "LinkRequestGone",
    "Loan",
    "Manager",
    "Misbehaved",
    "Misuse",
    "Notification",
    "OtherVersion",
    "Peer",
    "Publisher",
    "Queue",
    "Receiver",
    "Record",
    "ReconnectPolicy",
    "ReconnectingClient",
    "RecordLoan",
    "Refused",
    "Request",
    "Sample",
    "SampleLoan",
    "Seed",
    "SeedError",
    "Server",
    "Setting",
    "Settings",
    "Shape",
    "Slot",
    "StreamReceiver",
    "StreamSender",
    "Subscriber",
    "SubscriberState",
    "SystemRefused",
    "Tag",
    "TaggedReceiver",
    "TaggedSender",
    "Ticket",
    "TicketRevoked",
    "TimedOut",
    "UnknownHost",
    "Unreachable",
    "Untrusted",
    "VolatileRecord",
    "Waitable",
    "WhenSlow",
    "WrongSecret",
    "__version__",
    "log_events",
    "pack_array",
    "settings",
    "unpack_array",
    "wait_any",
]
