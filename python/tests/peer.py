"""One side of a conversation that is the same in every language.

    peer.py recv PROTOCOL NAME [COUNT]     serves NAME, prints "ready", receives, checks, ends
    peer.py send PROTOCOL NAME [COUNT]     connects to NAME, sends, ends

capi/tests/peer.c describes both sides, and message i. Exit status 0: everything was as it should
be. Everything has a time limit.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TypeVar

import hamlyn
from hamlyn import Manager

LIMIT = 40.0
BLOCK = 2048
PAGE = 4096

T = TypeVar("T")


def message(i: int) -> bytes:
    length = i * 37 % 1500 + 8
    return i.to_bytes(8, "little") + bytes((i + j) % 251 for j in range(8, length))


def must_be(i: int, found: bytes) -> None:
    if found != message(i):
        raise SystemExit(f"message {i} is not as it should be: {len(found)} bytes")


def ready() -> None:
    print("ready", flush=True)


def raw_recv(manager: Manager, name: str, count: int) -> None:
    area, queue = manager.area(count * BLOCK), manager.queue(count)
    slot = manager.slot(area, queue, credit=count)
    manager.serve(name, bytes(slot.ticket()))
    ready()
    for _ in range(count):
        queue.receive(LIMIT)
    view = memoryview(area)
    for i in range(count):
        must_be(i, bytes(view[i * BLOCK :][: len(message(i))]))
    assert int.from_bytes(slot.metadata(), "little") == len(message(count - 1))


def raw_send(manager: Manager, name: str, count: int) -> None:
    ticket = hamlyn.Ticket.from_bytes(manager.connect(name).greeting)
    for i in range(count):
        data = message(i)
        manager.send(ticket.at(i * BLOCK), data, len(data).to_bytes(8, "little"), LIMIT)


def tagged_recv(manager: Manager, name: str, count: int) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 32 * BLOCK, tags=16)
    receiver.serve(name)
    ready()
    for i in range(count):
        assert receiver.get_tag(LIMIT).tag == i
        must_be(i, receiver.read(i % 32 * BLOCK, len(message(i))))


def tagged_send(manager: Manager, name: str, count: int) -> None:
    sender = hamlyn.TaggedSender.connect(manager, name)
    for i in range(count):
        sender.send(i % 32 * BLOCK, message(i), i, LIMIT)


def datagram_recv(manager: Manager, name: str, count: int) -> None:
    receiver = hamlyn.DatagramReceiver(manager, BLOCK)
    receiver.serve(name)
    ready()
    for i in range(count):
        datagram = receiver.receive(LIMIT)
        must_be(i, bytes(datagram))
        receiver.make_ready()
        datagram.reply(i.to_bytes(8, "little"), LIMIT)


def datagram_send(manager: Manager, name: str, count: int) -> None:
    answers = hamlyn.DatagramReceiver(manager, BLOCK)
    sender = hamlyn.DatagramSender.connect(manager, name)
    for i in range(count):
        sender.send(message(i), reply=answers.reply_ticket(), timeout=LIMIT)
        assert bytes(answers.receive(LIMIT)) == i.to_bytes(8, "little")
        answers.make_ready()


def stream_recv(manager: Manager, name: str, count: int) -> None:
    receiver = hamlyn.StreamReceiver(manager)
    receiver.serve(name)
    ready()
    for i in range(count):
        with receiver.receive(LIMIT) as record:
            must_be(i, bytes(record))
    assert list(receiver) == []


def stream_send(manager: Manager, name: str, count: int) -> None:
    with hamlyn.StreamSender.connect(manager, name) as sender:
        for i in range(count):
            sender.send(message(i), LIMIT)


def call_recv(manager: Manager, name: str, count: int) -> None:
    server = hamlyn.Server(manager)
    server.serve(name)
    ready()
    for i in range(count):
        request = server.receive(LIMIT)
        must_be(i, request.data)
        request.reply(message(i + 1), LIMIT)


def call_send(manager: Manager, name: str, count: int) -> None:
    client = hamlyn.Client.connect(manager, name)
    for i in range(count):
        must_be(i + 1, client.call(message(i), LIMIT))


def group_recv(manager: Manager, name: str, count: int) -> None:
    group = hamlyn.Group(manager, 1, BLOCK)
    group.serve(name)
    ready()
    for i in range(count):
        (part,) = group.gather(LIMIT)
        must_be(i, bytes(part))
        group.next_round()
        group.broadcast(message(i + 1), LIMIT)
    group.barrier(LIMIT)


def group_send(manager: Manager, name: str, count: int) -> None:
    member = hamlyn.GroupMember.connect(manager, name, BLOCK)
    for i in range(count):
        member.send(message(i), LIMIT)
        must_be(i + 1, member.receive(LIMIT))
    member.barrier(LIMIT)


def wait_for(manager: Manager, kind: type[T]) -> T:
    """The next event of this kind; others are passed over."""
    while not isinstance(event := manager.next_event(), kind):
        if event is None and not manager.wait(LIMIT):
            raise SystemExit(f"no {kind.__name__} came")
    return event


def wait_for_aperture(manager: Manager, what: str) -> None:
    while (event := wait_for(manager, hamlyn.ApertureChanged)).what != what:
        assert event.what == "held", event.what


def aperture_recv(manager: Manager, name: str, count: int) -> None:
    area, queue = manager.area(64), manager.queue(4)
    manager.serve(name, bytes(manager.slot(area, queue, credit=4).ticket()))
    ready()
    link = wait_for(manager, hamlyn.Connected).link
    to = hamlyn.Ticket.from_bytes(link.greeting)
    aperture = link.export(count * PAGE)
    wait_for_aperture(manager, "ready")
    for i in range(count):
        aperture.write(i * PAGE, message(i))
    manager.send(to, aperture.number.to_bytes(8, "little"), timeout=LIMIT)
    queue.receive(LIMIT)
    for i in range(count):
        must_be(i + 1, aperture.read(i * PAGE, len(message(i + 1))))
    aperture.revoke()
    queue.receive(LIMIT)


def aperture_send(manager: Manager, name: str, count: int) -> None:
    area, queue = manager.area(64), manager.queue(4)
    link = manager.connect(name, bytes(manager.slot(area, queue, credit=4).ticket()))
    to = hamlyn.Ticket.from_bytes(link.greeting)
    queue.receive(LIMIT)
    aperture = link.aperture(int.from_bytes(memoryview(area)[:8], "little"))
    for i in range(count):
        must_be(i, aperture.read(i * PAGE, len(message(i))))
        aperture.write(i * PAGE, message(i + 1))
    manager.send(to, bytes(8), timeout=LIMIT)
    wait_for_aperture(manager, "revoked")
    try:
        aperture.write(0, b"x")
    except hamlyn.Closed:
        manager.send(to, bytes(8), timeout=LIMIT)
    else:
        raise SystemExit("an aperture that was revoked was written")


def close_recv(manager: Manager, name: str, count: int) -> None:
    receiver = hamlyn.StreamReceiver(manager)
    receiver.serve(name)
    manager.serve(f"{name}-after", b"")
    ready()
    wait_for(manager, hamlyn.Connected)
    taken = 0
    for taken, record in enumerate(receiver, 1):
        must_be(taken - 1, bytes(record))
    assert taken == count, f"{taken} records came before the end"


def close_send(manager: Manager, name: str, count: int) -> None:
    stream_send(manager, name, count)
    manager.connect(f"{name}-after", timeout=LIMIT)


def publish_recv(manager: Manager, name: str, count: int) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 8)
    receiver.serve(name)
    ready()
    receiver.get_tag(LIMIT)
    subscriber = hamlyn.Subscriber.connect(manager, f"{name}-samples", LIMIT)
    taken = 0
    for taken, sample in enumerate(subscriber, 1):
        assert (sample.number, sample.missed) == (taken - 1, 0)
        must_be(taken - 1, bytes(sample))
        sample.release()
    assert taken == count, f"{taken} samples came before the end"


def publish_send(manager: Manager, name: str, count: int) -> None:
    publisher = hamlyn.Publisher(
        manager, short_nbytes_max=512, sample_nbytes_max=BLOCK, when_slow="wait"
    )
    publisher.serve(f"{name}-samples")
    sender = hamlyn.TaggedSender.connect(manager, name, LIMIT)
    sender.send(0, b"", 0, LIMIT)
    while not any(state.is_served for state in publisher.subscribers):
        manager.poll()
    for i in range(count):
        assert publisher.publish(message(i), LIMIT) == i
    publisher.drain(LIMIT)
    publisher.close()


def bytes_recv(manager: Manager, name: str, _count: int) -> None:
    listener = hamlyn.ByteListener(manager)
    listener.serve(name)
    ready()
    with listener.accept(LIMIT) as stream:
        while data := stream.recv(BLOCK, LIMIT):
            stream.sendall(data, LIMIT)
        stream.shutdown(LIMIT)


def bytes_send(manager: Manager, name: str, count: int) -> None:
    def back(i: int) -> None:
        left = memoryview(bytearray(len(message(i))))
        found = left
        while left:
            nbytes = stream.recv_into(left, LIMIT)
            assert nbytes, f"the end came within message {i}"
            left = left[nbytes:]
        must_be(i, bytes(found))

    with hamlyn.ByteStream.connect(manager, name, LIMIT) as stream:
        for i in range(count):
            stream.sendall(message(i), LIMIT)
            if i >= count // 2:
                back(i - count // 2)
        stream.shutdown(LIMIT)
        for i in range(count - count // 2, count):
            back(i)
        assert stream.recv(1, LIMIT) == b""


SIDES: dict[str, dict[str, Callable[[Manager, str, int], None]]] = {
    "raw": {"recv": raw_recv, "send": raw_send},
    "tagged": {"recv": tagged_recv, "send": tagged_send},
    "datagram": {"recv": datagram_recv, "send": datagram_send},
    "stream": {"recv": stream_recv, "send": stream_send},
    "call": {"recv": call_recv, "send": call_send},
    "group": {"recv": group_recv, "send": group_send},
    "aperture": {"recv": aperture_recv, "send": aperture_send},
    "close": {"recv": close_recv, "send": close_send},
    "publish": {"recv": publish_recv, "send": publish_send},
    "bytes": {"recv": bytes_recv, "send": bytes_send},
}


def main() -> None:
    signal.alarm(60)
    if len(sys.argv) not in (4, 5):
        raise SystemExit("usage: peer.py recv|send PROTOCOL NAME [COUNT]")
    role, protocol, name = sys.argv[1:4]
    try:
        side = SIDES[protocol][role]
    except KeyError:
        raise SystemExit(f"no side is called {role} {protocol}") from None
    with Manager() as manager:
        side(manager, name, int(sys.argv[4]) if len(sys.argv) > 4 else 200)
        manager.flush(LIMIT)


if __name__ == "__main__":
    main()
