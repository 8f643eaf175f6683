"""Streams through an aperture: volatile bytes are copied, stable ones are returned as views."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT, Children
from hamlyn import ApertureStreamReceiver, ApertureStreamSender, Manager, aio

LONG = 100_000
"""Bytes of a record that goes through the aperture."""


def content(i: int, length: int = LONG) -> bytes:
    return np.arange(i, i + length, dtype=np.uint64).astype(np.uint8).tobytes()


Pair = tuple[ApertureStreamReceiver, ApertureStreamSender]


@pytest.fixture
def pair(manager: Manager, other: Manager) -> Iterator[Pair]:
    """A stream whose aperture is there."""
    receiver = ApertureStreamReceiver(manager, 4 * LONG)
    receiver.serve("stream")
    manager.start_progress()
    with ApertureStreamSender.connect(other, "stream", LIMIT) as sender:
        # The receiver exports with the first message; long records go through the link till then.
        for i in range(10_000):
            sender.send(b"first", LIMIT)
            sender.flush(LIMIT)
            with receiver.receive(LIMIT) as record:
                assert isinstance(record, hamlyn.Record) and bytes(record) == b"first"
            if sender.explain().startswith("records of 65536 bytes and more through an aperture"):
                break
            other.wait(0.01)
        else:
            pytest.fail(f"there is no aperture: {sender.explain()}")
        yield receiver, sender


def test_a_long_record_is_copied_out_and_a_short_one_is_shown(pair: Pair) -> None:
    receiver, sender = pair
    assert receiver.explain().startswith("records of 65536 bytes and more through an aperture")
    sender.send(content(1), LIMIT)
    sender.send(content(2, 100), LIMIT)
    sender.flush(LIMIT)
    with receiver.receive(LIMIT) as long, receiver.receive(LIMIT) as short:
        assert isinstance(long, hamlyn.VolatileRecord)
        assert isinstance(short, hamlyn.Record)
        assert (len(long), len(short), short.number) == (LONG, 100, long.number + 1)
        assert bytes(long) == content(1)
        with pytest.raises(TypeError, match="bytes-like|buffer"):
            memoryview(long)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            np.frombuffer(long, dtype=np.uint8)  # type: ignore[call-overload]
        with memoryview(short) as view:
            assert view.readonly and bytes(view) == content(2, 100)
        # The same call for both, from anywhere in the record, small or large.
        for record, wanted in ((long, content(1)), (short, content(2, 100))):
            for start, length in ((0, len(record)), (7, 50), (len(record), 0)):
                array = np.zeros(length, dtype=np.uint8)
                record.copy_into(array, start)
                assert array.tobytes() == wanted[start : start + length]
        words = np.zeros(LONG // 8)
        long.copy_into(words)
        assert words.tobytes() == content(1)


def test_what_is_outside_of_a_record_is_not_copied(pair: Pair) -> None:
    receiver, sender = pair
    for data in (content(1), b"short"):
        sender.send(data, LIMIT)
        sender.flush(LIMIT)
        record = receiver.receive(LIMIT)
        target = bytearray(b"x" * (len(data) + 1))
        with pytest.raises(hamlyn.Misuse, match=rf"{len(data) + 1} bytes from 0 on .* 0\.\.{len(data)}"):
            record.copy_into(target)
        with pytest.raises(hamlyn.Misuse, match="nothing was copied"):
            record.copy_into(bytearray(1), len(data))
        with pytest.raises(hamlyn.Misuse):
            record.copy_into(bytearray(0), len(data) + 1)
        with pytest.raises(OverflowError):
            record.copy_into(bytearray(1), -1)
        assert target == b"x" * (len(data) + 1)
        with pytest.raises((BufferError, TypeError)):
            record.copy_into(b"not writable")
        record.release()
        with pytest.raises(hamlyn.Closed, match="the record was released"):
            record.copy_into(bytearray(1))
        with pytest.raises(hamlyn.Closed, match="the record was released"):
            memoryview(record) if isinstance(record, hamlyn.Record) else bytes(record)


def test_records_are_freed_in_their_order_and_the_sender_waits_for_room(pair: Pair) -> None:
    receiver, sender = pair
    for i in range(3):
        sender.send(content(i), LIMIT)
    with pytest.raises(hamlyn.TimedOut):
        for i in range(3, 6):
            sender.send(content(i), 0.05)
    records = [receiver.receive(LIMIT)]
    while (found := receiver.try_receive()) is not None:
        records.append(found)
    sent = len(records)
    assert sent >= 3
    for record in reversed(records[1:]):
        record.release()
    # The first one holds all that came after it.
    with pytest.raises(hamlyn.TimedOut):
        sender.send(content(sent), 0.05)
    assert bytes(records[0]) == content(0)
    records[0].release()
    sender.send(content(sent), LIMIT)
    with receiver.receive(LIMIT) as record:
        assert bytes(record) == content(sent)


def test_after_a_graceful_close_every_record_can_be_read(pair: Pair) -> None:
    receiver, sender = pair
    for i in range(3):
        sender.send(content(i), LIMIT)
        sender.send(content(i, 10), LIMIT)
    sender.close(LIMIT)
    assert [bytes(record) for record in receiver] == [
        content(i, length) for i in range(3) for length in (LONG, 10)
    ]
    with pytest.raises(hamlyn.Closed):
        receiver.receive(LIMIT)


def test_threads_may_copy_while_another_receives(pair: Pair) -> None:
    receiver, sender = pair
    rounds = 30

    def send() -> None:
        for i in range(rounds):
            sender.send(content(i), LIMIT)
        sender.close(LIMIT)

    wrong: list[int] = []

    def copy(record: hamlyn.VolatileRecord, i: int) -> None:
        array = np.empty(LONG, dtype=np.uint8)
        record.copy_into(array)
        if array.tobytes() != content(i):
            wrong.append(i)
        record.release()

    threads = [threading.Thread(target=send)]
    threads[0].start()
    for i, record in enumerate(receiver):
        assert isinstance(record, hamlyn.VolatileRecord)
        threads.append(threading.Thread(target=copy, args=(record, i)))
        threads[-1].start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(threads) == 1 + rounds and wrong == []


def test_a_plain_sender_and_a_receiver_without_room_use_the_link(
    manager: Manager, other: Manager
) -> None:
    receiver = ApertureStreamReceiver(manager, 1 << 20)
    seed = receiver.seed()
    manager.start_progress()

    def send(sender: hamlyn.StreamSender | ApertureStreamSender, count: int) -> None:
        for i in range(count):
            sender.send(content(i), LIMIT)
        sender.close(LIMIT)

    plain = hamlyn.StreamSender.grow(other, seed, LIMIT)
    thread = threading.Thread(target=send, args=(plain, 3))
    thread.start()
    for i, record in enumerate(receiver):
        assert isinstance(record, hamlyn.Record) and bytes(record) == content(i)
    thread.join(LIMIT)
    assert i == 2 and receiver.explain().startswith("no aperture")
    # A record that is longer than the aperture.
    receiver = ApertureStreamReceiver(manager, 4096)
    receiver.serve("small")
    thread = threading.Thread(
        target=send, args=(ApertureStreamSender.connect(other, "small", LIMIT), 4)
    )
    thread.start()
    for i, record in enumerate(receiver):
        assert isinstance(record, hamlyn.Record) and bytes(record) == content(i)
    thread.join(LIMIT)
    assert i == 3


def test_records_are_awaited(pair: Pair) -> None:
    receiver, sender = pair

    async def main() -> None:
        stream = aio.ApertureStreamReceiver(receiver)
        sender.send(content(0), LIMIT)
        assert bytes(await stream.receive(LIMIT)) == content(0)
        sender.send(content(1), LIMIT)
        await asyncio.to_thread(sender.close, LIMIT)
        assert [bytes(record) async for record in stream] == [content(1)]

    asyncio.run(main())


def test_several_kinds_of_receiver_are_waited_for(pair: Pair, manager: Manager) -> None:
    receiver, sender = pair
    tags = hamlyn.TaggedReceiver(manager, 64)
    sender.send(content(0), LIMIT)
    assert hamlyn.wait_any([tags, receiver], LIMIT) == 1
    assert receiver.ready


def numbered(link: hamlyn.Link) -> hamlyn.Aperture:
    """The aperture that is held over a link; its receiver has announced it to the stream only."""
    for number in range(100):
        try:
            return link.aperture(number)
        except hamlyn.Closed:
            pass
    raise AssertionError("no aperture has a number below 100")


def scribble(seed: bytes) -> None:
    """A sender that changes bytes after their announcement, and dies."""
    with Manager() as manager:
        sender = ApertureStreamSender.grow(manager, seed, LIMIT)
        sender.send(b"first", LIMIT)
        sender.flush(LIMIT)
        while not sender.explain().startswith("records"):
            manager.wait(0.01)
        (link,) = manager.links()
        held = numbered(link)
        sender.send(b"a" * LONG, LIMIT)
        for i in range(2000):
            held.write(0, bytes([98 + i % 2]) * LONG)


def test_a_sender_that_scribbles_harms_nothing_but_the_record(
    manager: Manager, children: Children
) -> None:
    receiver = ApertureStreamReceiver(manager, LONG)
    children.start(scribble, bytes(receiver.seed()))
    with receiver.receive(LIMIT) as record:
        assert bytes(record) == b"first"
    record = receiver.receive(LIMIT)
    assert isinstance(record, hamlyn.VolatileRecord)
    seen = set()
    while True:
        copy = bytes(record)
        assert len(copy) == LONG and set(copy) <= set(b"abc")
        # Copied bytes are stable, for any fate of the record.
        assert copy == bytes(bytearray(copy))
        seen.add(copy[0])
        try:
            receiver.try_receive()
        except hamlyn.Closed:
            break
    assert seen & {98, 99}
