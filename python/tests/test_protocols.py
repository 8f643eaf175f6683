"""The end points: tagged remote write, datagrams, streams, calls, groups; seeds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT, Children
from hamlyn import aio

# ---- seeds


def test_a_seed_travels_as_bytes_and_as_text(manager: hamlyn.Manager) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64)
    seed = receiver.seed()
    assert hamlyn.Seed(bytes(seed)) == seed == hamlyn.Seed(str(seed)) == hamlyn.Seed(seed)
    assert pickle.loads(pickle.dumps(seed)) == seed and len({seed, hamlyn.Seed(seed)}) == 1
    assert len(bytes(seed)) <= 129
    assert seed.kind == "tagged remote write" and seed.manager_id == manager.id
    assert bytes(seed)[12:28].hex() not in repr(seed), "the token is printed"


@pytest.mark.parametrize("bad", [b"", b"HSd1", b"\0" * 200, "", "zz", "é", "48" * 300, b"\xff" * 64])
def test_what_is_no_seed_is_refused(manager: hamlyn.Manager, bad: bytes | str) -> None:
    with pytest.raises(ValueError) as raised:
        hamlyn.Seed(bad)
    assert isinstance(raised.value, hamlyn.SeedError)
    with pytest.raises(hamlyn.SeedError):
        hamlyn.TaggedSender.grow(manager, bad)


@pytest.mark.parametrize("bad", [None, 7, [1, 2], 1.5])
def test_what_cannot_be_a_seed_is_a_type_error(manager: hamlyn.Manager, bad: object) -> None:
    with pytest.raises(TypeError):
        hamlyn.Seed(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hamlyn.TaggedSender.grow(manager, bad)  # type: ignore[arg-type]


def test_a_changed_cut_or_old_seed_is_refused(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64)
    seed = bytes(receiver.seed())
    for i in range(len(seed)):
        with pytest.raises(hamlyn.SeedError):
            hamlyn.Seed(seed[:i])
        with pytest.raises(hamlyn.SeedError):
            hamlyn.Seed(seed[:i] + bytes([seed[i] ^ 1]) + seed[i + 1 :])
    receiver.close()
    manager.start_progress()
    with pytest.raises(hamlyn.Refused, match="no longer"):
        hamlyn.TaggedSender.grow(other, seed, LIMIT)
    manager.close()
    with pytest.raises(hamlyn.Unreachable):
        hamlyn.TaggedSender.grow(other, seed, LIMIT)


# ---- tagged remote write


def send_tags(seed: bytes, count: int) -> None:
    with hamlyn.Manager() as manager, hamlyn.TaggedSender.grow(manager, seed) as sender:
        assert sender.peer.uid == os.getuid() and sender.ended is None
        assert "tagged remote write" in sender.explain()
        for i in range(count):
            sender.send(8 * (i % 8), i.to_bytes(8, "little"), i, LIMIT)
        # The receiver has taken the last one before this process ends.
        manager.flush(LIMIT)


def test_tags_arrive_with_their_data(manager: hamlyn.Manager, children: Children) -> None:
    with hamlyn.TaggedReceiver(manager, 64, tags=8) as receiver:
        children.start(send_tags, bytes(receiver.seed()), 1000)
        for i in range(1000):
            tag = receiver.get_tag(LIMIT)
            assert tag.tag == int(tag) == i
            # Eight are outstanding at most, and each has a word of its own.
            assert int.from_bytes(receiver.read(8 * (i % 8), 8), "little") == i


def test_a_tag_is_waited_for_out_of_turn(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64)
    receiver.serve("tags")
    manager.start_progress()
    sender = hamlyn.TaggedSender.connect(other, "tags")
    for tag in [5, 6, 7]:
        sender.send(0, b"", tag)
    assert receiver.get_specific_tag(6, LIMIT).tag == 6
    assert receiver.senders == 1
    with pytest.raises(hamlyn.TimedOut):
        receiver.get_specific_tag(99, 0.02)
    assert receiver.ready
    assert [receiver.get_tag(LIMIT).tag, receiver.get_tag(LIMIT).tag] == [5, 7]
    assert receiver.try_get_tag() is None and not receiver.ready


def test_tagged_writes_outside_are_refused(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 1 << 20)
    receiver.serve("tags")
    manager.start_progress()
    sender = hamlyn.TaggedSender.connect(other, "tags")
    assert sender.capacity == 1 << 20
    with pytest.raises(hamlyn.Misuse, match=str(sender.nbytes_max)):
        sender.send(0, bytes(sender.nbytes_max + 1), 0)
    for offset in [(1 << 20) - 1, (1 << 64) - 1]:
        with pytest.raises(hamlyn.Misuse):
            sender.send(offset, b"12", 0)
    for wrong in [-1, 1 << 64]:
        with pytest.raises(OverflowError):
            sender.send(wrong, b"", 0)
    with pytest.raises(OverflowError):
        sender.send(0, b"", 1 << 32)
    for offset, length in [(1 << 20, 1), (0, (1 << 20) + 1), ((1 << 64) - 1, 1), (1, (1 << 64) - 1)]:
        with pytest.raises(hamlyn.Misuse, match="not inside"):
            receiver.read(offset, length)


def test_a_sender_waits_for_credit(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64, tags=4)
    receiver.serve("tags")
    manager.start_progress()
    sender = hamlyn.TaggedSender.connect(other, "tags")
    while sender.try_send(0, b"x", 1):
        pass
    with pytest.raises(hamlyn.TimedOut):
        sender.send(0, b"x", 1, timeout=0.1)
    for _ in range(4):
        receiver.get_tag(LIMIT)
    sender.send(0, b"x", 2, timeout=LIMIT)


# ---- datagrams


def datagrams(
    manager: hamlyn.Manager, other: hamlyn.Manager, nbytes: int
) -> tuple[hamlyn.DatagramReceiver, hamlyn.DatagramSender]:
    receiver = hamlyn.DatagramReceiver(manager, nbytes)
    receiver.serve("datagrams")
    manager.start_progress()
    return receiver, hamlyn.DatagramSender.connect(other, "datagrams")


def send_arrays(seed: str) -> None:
    with hamlyn.Manager() as manager:
        answers = hamlyn.DatagramReceiver(manager, 64)
        sender = hamlyn.DatagramSender.grow(manager, seed)
        for i in range(10):
            array = np.arange(i * 10_000, dtype=np.int64)
            sender.send(array, reply=answers.reply_ticket(), timeout=LIMIT)
            answer = answers.receive(LIMIT)
            assert int.from_bytes(answer, "little") == int(array.sum())
            del answer
            answers.make_ready()


def test_arrays_come_as_datagrams_and_are_answered(
    manager: hamlyn.Manager, children: Children
) -> None:
    receiver = hamlyn.DatagramReceiver(manager, 1 << 20)
    child = children.start(send_arrays, str(receiver.seed()))
    for i in range(10):
        datagram = receiver.receive(LIMIT)
        assert datagram.offset == 0 and datagram.wants_reply
        assert datagram.link.peer.pid == child.pid
        array = np.frombuffer(datagram, dtype=np.int64)
        assert len(datagram) == array.nbytes and np.array_equal(array, np.arange(i * 10_000))
        assert not array.flags.writeable
        datagram.reply(int(array.sum()).to_bytes(8, "little"), LIMIT)
        assert not receiver.takes_one
        del array
        receiver.make_ready()
        assert receiver.takes_one


def test_a_datagram_stands_still_while_it_is_shown(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver, sender = datagrams(manager, other, 4096)
    sender.send(b"first", 100)
    datagram = receiver.receive(LIMIT)
    assert datagram.offset == 100 and bytes(datagram) == b"first"
    view = memoryview(datagram)
    with pytest.raises(BufferError, match="1 view"):
        receiver.make_ready()
    sender.send(b"second", 100, timeout=LIMIT)
    end = time.monotonic() + LIMIT
    while manager.counters()["refused_entry_closed"] == 0 and time.monotonic() < end:
        time.sleep(0.001)
    assert bytes(view) == b"first"
    view.release()
    receiver.make_ready()
    with pytest.raises(hamlyn.Misuse, match="ready since"):
        memoryview(datagram)
    with pytest.raises(hamlyn.Misuse, match="without a ticket"):
        datagram.reply(b"no")


def test_a_view_of_a_datagram_outlives_everything(other: hamlyn.Manager) -> None:
    manager = hamlyn.Manager()
    receiver, sender = datagrams(manager, other, 1 << 16)
    sender.send(b"x" * 65536)
    array = np.frombuffer(receiver.receive(LIMIT), dtype=np.uint8)
    receiver.close()
    assert array.sum() == 65536 * ord("x")
    manager.close()
    del manager, receiver
    gc.collect()
    assert array.sum() == 65536 * ord("x")


def test_a_long_datagram_that_is_cut_off_leaves_later(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    nbytes = 8 << 20
    receiver, sender = datagrams(manager, other, nbytes)
    manager.stop_progress()
    with pytest.raises(hamlyn.TimedOut, match="cut"):
        sender.send(bytes(nbytes), timeout=0.15)
    assert sender.flush(0.01) is False
    manager.start_progress()
    assert sender.flush(LIMIT) is True
    assert len(receiver.receive(LIMIT)) == nbytes


def test_an_answer_that_waits_lets_others_use_the_receiver(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    nbytes = 8 << 20
    receiver, sender = datagrams(manager, other, 64)
    answers = hamlyn.DatagramReceiver(other, nbytes)
    sender.send(b"?", reply=answers.reply_ticket())
    datagram = receiver.receive(LIMIT)
    # `other` is not polled, so that at most a part of it leaves.
    with pytest.raises(hamlyn.TimedOut, match="cut"):
        datagram.reply(bytes(nbytes), 0.15)
    # It was kept, so nothing of the next one leaves; a call without a limit does not keep the
    # receiver.
    failed: list[BaseException] = []

    def reply() -> None:
        try:
            datagram.reply(b"never")
        except BaseException as e:
            failed.append(e)

    replying = threading.Thread(target=reply)
    replying.start()
    time.sleep(0.1)
    assert replying.is_alive()
    receiver.make_ready()
    assert receiver.takes_one
    receiver.close()
    replying.join(LIMIT)
    assert not replying.is_alive()
    assert isinstance(failed[0], hamlyn.Closed)


def test_a_long_answer_is_finished_however_long_that_takes(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    nbytes = 8 << 20
    receiver, sender = datagrams(manager, other, 64)
    answers = hamlyn.DatagramReceiver(other, nbytes)
    sender.send(b"?", reply=answers.reply_ticket())
    datagram = receiver.receive(LIMIT)
    array = np.arange(nbytes // 8, dtype=np.int64)
    replying = threading.Thread(target=datagram.reply, args=(array,))
    replying.start()
    # For longer than one slice of its wait the receiver takes nothing.
    time.sleep(0.2)
    assert replying.is_alive()
    found = answers.receive(LIMIT)
    assert np.array_equal(np.frombuffer(found, dtype=np.int64), array)
    replying.join(LIMIT)
    assert not replying.is_alive()


class Rung(Exception):
    pass


@contextlib.contextmanager
def rung() -> Iterator[None]:
    """The exception of a signal's handler, in half a second."""

    def ring(*_: object) -> None:
        raise Rung

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_datagram_that_a_signal_handler_ends_half_way_says_so(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    # More than all rings between them hold, and the receiver takes nothing.
    nbytes = 12 << 20
    receiver, sender = datagrams(manager, other, nbytes)
    manager.stop_progress()
    with rung(), pytest.raises(Rung) as raised:
        sender.send(b"head" + bytes(nbytes - 8) + b"tail", timeout=LIMIT)
    assert "a part of the datagram" in raised.value.__notes__[0]
    rest = threading.Thread(target=sender.flush, args=(LIMIT,))
    rest.start()
    try:
        received = bytes(receiver.receive(LIMIT))
        assert len(received) == nbytes and received[:4] + received[-4:] == b"headtail"
    finally:
        rest.join(2 * LIMIT)


def test_datagrams_outside_are_refused(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    _, sender = datagrams(manager, other, 64)
    assert sender.capacity == 64
    for data, offset in [(bytes(65), 0), (b"1", 64), (b"", 65), (b"1", (1 << 64) - 1)]:
        with pytest.raises(hamlyn.Misuse):
            sender.send(data, offset)
    with pytest.raises(hamlyn.Misuse, match="reply ticket"):
        sender.send(b"", reply=hamlyn.DatagramReceiver(manager, 64).reply_ticket())


# ---- streams


def stream(
    manager: hamlyn.Manager, other: hamlyn.Manager, **settings: int
) -> tuple[hamlyn.StreamReceiver, hamlyn.StreamSender]:
    receiver = hamlyn.StreamReceiver(manager, **settings)
    receiver.serve("stream")
    manager.start_progress()
    return receiver, hamlyn.StreamSender.connect(other, "stream")


def record_of(i: int) -> bytes:
    return bytes((i + j) % 251 for j in range((i * 37) % 1500))


def send_records(seed: bytes, count: int) -> None:
    with hamlyn.Manager() as manager, hamlyn.StreamSender.grow(manager, seed) as sender:
        for i in range(count):
            sender.send(record_of(i), LIMIT)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_stream_that_an_exception_ends_is_not_complete(
    manager: hamlyn.Manager, other: hamlyn.Manager, by_hand: bool
) -> None:
    receiver, sender = stream(manager, other)
    if by_hand:
        sender.send(b"arrives")
        sender.flush(LIMIT)
        sender.abandon()
        sender.abandon()
    else:
        with pytest.raises(ValueError, match="as wanted"), sender:
            sender.send(b"arrives")
            sender.flush(LIMIT)
            raise ValueError("as wanted")
    received = []
    with pytest.raises(hamlyn.Closed):
        for record in receiver:
            received.append(bytes(record))
    assert received == [b"arrives"]


def test_a_stream_is_whole_and_in_order(manager: hamlyn.Manager, children: Children) -> None:
    receiver = hamlyn.StreamReceiver(manager)
    assert receiver.peer is None and "no sender" in receiver.explain()
    child = children.start(send_records, bytes(receiver.seed()), 2000)
    count = 0
    for record in receiver:
        assert record.number == count and bytes(record) == record_of(count)
        count += 1
    assert count == 2000
    assert receiver.peer and receiver.peer.pid == child.pid
    with pytest.raises(hamlyn.Closed):
        receiver.receive(0)


def test_large_arrays_in_a_stream(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    receiver, sender = stream(manager, other)
    sent = [np.random.default_rng(i).random(200_000) for i in range(4)]

    def send() -> None:
        for array in sent:
            sender.send(array, LIMIT)
        sender.close(LIMIT)

    thread = threading.Thread(target=send)
    thread.start()
    for array in sent:
        with receiver.receive(LIMIT) as record:
            assert np.array_equal(np.frombuffer(record), array)
    thread.join(LIMIT)
    assert list(receiver) == []


def test_a_record_stays_while_anything_shows_it(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver, sender = stream(manager, other, buffer_nbytes=4096, buffers=2, buffers_max=4)
    sender.send(b"to be kept")
    sender.flush(LIMIT)
    kept = receiver.receive(LIMIT)
    view = memoryview(kept)
    assert view.readonly and bytes(view) == b"to be kept"
    with pytest.raises(BufferError, match="1 view"):
        kept.release()

    # Its buffer is never used again, though everything behind it has gone.
    def send() -> None:
        for _ in range(2000):
            try:
                sender.send(b"\xff" * 1000, 0.5)
            except hamlyn.TimedOut:
                return

    thread = threading.Thread(target=send)
    thread.start()
    while thread.is_alive():
        try:
            receiver.receive(0.2).release()
        except hamlyn.TimedOut:
            pass
    thread.join()
    assert bytes(view) == b"to be kept"
    view.release()
    kept.release()
    kept.release()
    with pytest.raises(hamlyn.Closed):
        memoryview(kept)
    # Now there is room again.
    sender.send(b"after", LIMIT)
    sender.flush(LIMIT)
    while bytes(receiver.receive(LIMIT)) != b"after":
        pass


def test_a_view_of_a_record_outlives_everything(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver, sender = stream(manager, other)
    sender.send(b"x" * 10_000)
    sender.flush(LIMIT)
    array = np.frombuffer(receiver.receive(LIMIT), dtype=np.uint8)
    receiver.close()
    manager.close()
    del receiver
    gc.collect()
    assert array.sum() == 10_000 * ord("x")


@pytest.mark.parametrize("through", ["ring", "aperture"])
def test_a_loan_of_a_stream_is_written_and_sent_once_and_shows_nothing_afterwards(
    manager: hamlyn.Manager, other: hamlyn.Manager, through: str
) -> None:
    manager.start_progress()
    receiver: hamlyn.StreamReceiver | hamlyn.ApertureStreamReceiver
    sender: hamlyn.StreamSender | hamlyn.ApertureStreamSender
    if through == "ring":
        receiver = hamlyn.StreamReceiver(manager)
        sender = hamlyn.StreamSender.grow(other, receiver.seed())
    else:
        receiver = hamlyn.ApertureStreamReceiver(manager, 1 << 20)
        sender = hamlyn.ApertureStreamSender.grow(other, receiver.seed())
    received: list[bytes] = []
    takes = threading.Thread(
        target=lambda: received.extend(bytes(receiver.receive(LIMIT)) for _ in range(4))
    )
    takes.start()
    for nbytes in (0, 5, 5000, 300_000):
        with sender.loan(nbytes) as record:
            assert bytes(record) == bytes(nbytes) and len(record) == nbytes
            view = memoryview(record)
            # An object that shows it could be taken for the sent bytes.
            for early in (record.send, record.release):
                with pytest.raises(BufferError, match="1 views or arrays"):
                    early()
            view[:] = bytes([nbytes % 251]) * nbytes
            view.release()
            if nbytes == 5000:
                record.truncate(4000)
            record.send(LIMIT)
            for late in (lambda: memoryview(record), record.send, lambda: record.truncate(1)):
                with pytest.raises(hamlyn.Closed, match="sent or released"):
                    late()
    # A loan that is given back, or dropped, is not sent; a view keeps its memory.
    sender.loan(100).release()
    with sender.loan(100):
        pass
    kept = memoryview(sender.loan(100_000))
    gc.collect()
    kept[:] = b"x" * 100_000
    with pytest.raises(BufferError, match="1 views or arrays"):
        with sender.loan(10) as record:
            view = memoryview(record)
    assert "RecordLoan of 10 bytes>" in repr(record)
    sender.flush(LIMIT)
    takes.join()
    assert [len(record) for record in received] == [0, 5, 4000, 300_000]
    assert received[1] == b"\x05" * 5 and received[2] == bytes([5000 % 251]) * 4000
    assert received[3] == bytes([300_000 % 251]) * 300_000
    assert receiver.try_receive() is None
    with pytest.raises(hamlyn.Misuse, match="longer than"):
        sender.loan(sender.nbytes_max + 1)
    last = sender.loan(1)
    sender.close(LIMIT)
    with pytest.raises(hamlyn.Closed):
        last.send()
    # It was not sent, and can be written.
    memoryview(last)[:] = b"x"
    assert kept[0] == ord("x")


def test_a_loan_that_was_taken_is_over_whatever_a_signal_handler_raises(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    # More than all rings between them hold, and so large a buffer that nothing has to be asked for.
    nbytes = 12 << 20
    receiver, sender = stream(
        manager, other, buffer_nbytes=nbytes, buffers=1, buffers_max=2, record_nbytes_max=nbytes
    )
    # From here on the receiver takes nothing: a part of the record fills the ring, the rest waits.
    manager.stop_progress()
    record = sender.loan(nbytes)
    view = memoryview(record)
    view[:4], view[-4:] = b"head", b"tail"
    view.release()
    with rung(), pytest.raises(Rung):
        record.send(LIMIT)
    # It was taken: another attempt is an error that says so.
    assert "gone" in repr(record)
    for late in (lambda: memoryview(record), lambda: record.send(0)):
        with pytest.raises(hamlyn.Closed, match="sent or released"):
            late()
    record.release()

    def send_the_rest() -> None:
        sender.send(b"last", LIMIT)
        sender.close(LIMIT)

    rest = threading.Thread(target=send_the_rest)
    rest.start()
    try:
        received = bytes(receiver.receive(LIMIT))
        assert len(received) == nbytes and received[:4] + received[-4:] == b"headtail"
        del received
        assert bytes(receiver.receive(LIMIT)) == b"last"
        with pytest.raises(hamlyn.Closed):
            receiver.receive(LIMIT)
    finally:
        rest.join(2 * LIMIT)


def test_a_program_that_holds_all_buffers_is_told(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver, sender = stream(manager, other, buffer_nbytes=4096, buffers=2, buffers_max=4)
    with pytest.raises(hamlyn.TimedOut, match="within the time limit$"):
        receiver.receive(0)
    kept = []
    for _ in range(4):
        sender.send(bytes(4000), LIMIT)
        kept.append(receiver.receive(LIMIT))
    why = "holds all 4 buffers .*: release records, or copy them, or raise buffers_max"
    with pytest.raises(hamlyn.TimedOut, match=why):
        receiver.receive(0.02)
    with pytest.raises(hamlyn.TimedOut, match=why):
        asyncio.run(aio.StreamReceiver(receiver).receive(0.02))
    assert "holds all 4 buffers" in receiver.explain()
    with pytest.raises(hamlyn.TimedOut, match="made no room within the time limit"):
        sender.send(bytes(4000), 0.02)
    kept.clear()
    with pytest.raises(hamlyn.TimedOut, match="within the time limit$"):
        receiver.receive(0)
    sender.send(bytes(4000), LIMIT)
    assert len(receiver.receive(LIMIT)) == 4000 and "holds" not in receiver.explain()


def test_a_long_record_waits_until_the_program_receives(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver, sender = stream(manager, other, buffer_nbytes=4096)
    manager.start_progress()
    with pytest.raises(hamlyn.TimedOut, match="longer than its buffers, comes when the program rec"):
        sender.send(bytes(5000), 0.02)
    sending = threading.Thread(target=sender.send, args=(bytes(5000), LIMIT))
    sending.start()
    assert len(receiver.receive(LIMIT)) == 5000
    sending.join()


def test_errors_have_the_names_that_python_has(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    _, sender = stream(manager, other, record_nbytes_max=1000)
    with pytest.raises(hamlyn.Misuse, match="the receiver's record_nbytes_max"):
        sender.send(bytes(1001))
    with pytest.raises(hamlyn.Misuse, match="its header included.*record_nbytes_max"):
        sender.loan_array("u1", 1000)
    for settings, name in (
        ({"record_nbytes_max": 0}, "record_nbytes_max is 0"),
        ({"buffer_nbytes": 0}, "buffer_nbytes is 0"),
    ):
        with pytest.raises(hamlyn.Misuse, match=name):
            hamlyn.StreamReceiver(manager, **settings)
    server = hamlyn.Server(manager, request_nbytes_max=100_000)
    server.serve("calls")
    client = hamlyn.Client.connect(other, "calls", reply_nbytes=100, reply_nbytes_max=100_000)
    with pytest.raises(hamlyn.Misuse, match="the server's request_nbytes_max"):
        client.call(bytes(100_001), LIMIT)
    call = client.start(b"long")
    other.start_progress()
    replying = threading.Thread(target=reply_too_long, args=(server,))
    replying.start()
    with pytest.raises(hamlyn.Misuse, match="the client's reply_nbytes_max"):
        call.finish(LIMIT)
    replying.join()
    # An application's error text is not changed.
    call = client.start(b"fails")
    server.receive(LIMIT).fail(1, "raise record_bytes_max")
    with pytest.raises(hamlyn.ApplicationError, match="raise record_bytes_max"):
        call.finish(LIMIT)
    publisher = hamlyn.Publisher(manager)
    with pytest.raises(hamlyn.Misuse, match="short_nbytes_max, without a pool .sample_nbytes_max"):
        publisher.publish(bytes(2000))
    with pytest.raises(hamlyn.Misuse, match="loans_max is 0"):
        hamlyn.Publisher(manager, loans_max=0, sample_nbytes_max=1)


def test_exceptions_have_the_name_by_which_programs_catch_them() -> None:
    errors = [getattr(hamlyn, name) for name in hamlyn.__all__]
    errors = [e for e in errors if isinstance(e, type) and issubclass(e, Exception)]
    assert len(errors) == 19
    for error in errors:
        assert error.__module__ == "hamlyn" and type(pickle.loads(pickle.dumps(error("text")))) is error


def reply_too_long(server: hamlyn.Server) -> None:
    with pytest.raises(hamlyn.Misuse, match="the client's reply_nbytes_max"):
        server.receive(LIMIT).reply(bytes(100_001), LIMIT)


def test_a_record_that_is_too_long_is_refused(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    _, sender = stream(manager, other, record_nbytes_max=1000)
    assert sender.nbytes_max == 1000
    with pytest.raises(hamlyn.Misuse, match="1001"):
        sender.send(bytes(1001))
    with pytest.raises(hamlyn.Misuse):
        hamlyn.StreamReceiver(manager, buffers=0)


def die_in_a_stream(seed: bytes) -> None:
    manager = hamlyn.Manager()
    sender = hamlyn.StreamSender.grow(manager, seed)
    sender.send(b"the last word")
    sender.flush(LIMIT)
    os._exit(0)


def test_a_stream_whose_sender_died_is_not_taken_for_whole(
    manager: hamlyn.Manager, children: Children
) -> None:
    receiver = hamlyn.StreamReceiver(manager)
    children.start(die_in_a_stream, bytes(receiver.seed()))
    records = iter(receiver)
    assert bytes(next(records)) == b"the last word"
    with pytest.raises(hamlyn.Closed, match="its process died"):
        next(records)


# ---- request and reply


def serve_calls(threads: int, calls: int) -> None:
    with hamlyn.Manager() as manager, hamlyn.Server(manager) as server:
        server.serve("calls")
        done = threading.Event()

        def answer() -> None:
            while not done.is_set():
                try:
                    request = server.receive(0.1)
                except hamlyn.TimedOut:
                    continue
                if request.data == b"stop":
                    done.set()
                if request.data == b"decline":
                    request.decline()
                elif request.data != b"forget":
                    request.reply(request.data[::-1])
                del request

        workers = [threading.Thread(target=answer) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def client_of(manager: hamlyn.Manager, name: str, **settings: int) -> hamlyn.Client:
    # The process that serves it has only been started: the name is waited for.
    return hamlyn.Client.connect(manager, name, timeout=LIMIT, **settings)


def test_calls_are_answered_by_several_threads(
    manager: hamlyn.Manager, children: Children
) -> None:
    children.start(serve_calls, 3, 0)
    client = client_of(manager, "calls")
    for i in range(200):
        assert client.call(i.to_bytes(8, "little"), LIMIT) == i.to_bytes(8, "big")
    calls = [client.start(i.to_bytes(8, "little")) for i in range(client.outstanding_max)]
    with pytest.raises(hamlyn.TimedOut):
        client.start(b"one too many", 0.05)
    for i, call in reversed(list(enumerate(calls))):
        assert call.finish(LIMIT) == i.to_bytes(8, "big")
        with pytest.raises(hamlyn.Misuse):
            call.finish(0)
    long = np.random.default_rng(3).integers(0, 256, 3 << 20, dtype=np.uint8)
    assert client.call(long, LIMIT) == long.tobytes()[::-1]
    with pytest.raises(hamlyn.Declined):
        client.call(b"decline", LIMIT)
    with pytest.raises(hamlyn.Declined):
        client.call(b"forget", LIMIT)
    assert "request and reply" in client.explain()
    client.call(b"stop", LIMIT)


def test_a_server_that_drains_answers_what_it_has_and_takes_nothing_new(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    before, late = client.start(b"before"), client.start(b"never answered")
    requests = [server.receive(LIMIT) for _ in range(2)]
    left: list[int] = []
    draining = threading.Thread(target=lambda: left.append(server.drain(5)))
    draining.start()
    # It has begun: messages that arrived are received, and no more will come.
    with pytest.raises(hamlyn.Closed):
        server.receive(LIMIT)
    hamlyn.Server(other).serve("calls")
    with pytest.raises(hamlyn.Closed, match="about to close"):
        client.call(b"new", LIMIT)
    requests[0].reply(b"answered")
    assert before.finish(LIMIT) == b"answered"
    draining.join(LIMIT)
    # One had no reply within the limit.
    assert left == [1]
    with pytest.raises(hamlyn.Closed):
        late.finish(LIMIT)
    with pytest.raises(hamlyn.Draining):
        server.receive(LIMIT)


def test_an_error_of_the_application_is_an_exception_with_its_code(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    call = client.start(b"get")
    request = server.receive(LIMIT)
    assert request.time_left is None
    request.fail(404, "no such key")
    with pytest.raises(hamlyn.ApplicationError, match="no such key") as raised:
        call.finish(LIMIT)
    assert raised.value.code == 404


def test_what_an_end_point_explains_has_the_names_of_python(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.StreamReceiver(manager, record_nbytes_max=200_000, buffers=1, buffers_max=1)
    manager.start_progress()
    sender = hamlyn.StreamSender.grow(other, receiver.seed())

    def send() -> None:
        with pytest.raises(hamlyn.HamlynError), sender:
            while True:
                sender.send(bytes(200_000))

    sending = threading.Thread(target=send)
    sending.start()
    held: list[hamlyn.Record] = []
    with pytest.raises(hamlyn.TimedOut, match="record_nbytes_max"):
        while True:
            held.append(receiver.receive(0.2))
    assert "raise record_nbytes_max" in receiver.explain()
    receiver.close()
    sending.join()


def test_a_long_text_of_an_error_is_cut_off_behind_a_character(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()
    usual = hamlyn.Client.connect(other, "calls")
    small = hamlyn.Client.connect(other, "calls", reply_nbytes=100)

    async def fail(request: hamlyn.Request, text: str) -> None:
        await aio.fail(request, 1, text, LIMIT)

    ways: list[Callable[[hamlyn.Request, str], object]] = [
        lambda request, text: request.fail(1, text, LIMIT),
        lambda request, text: asyncio.run(fail(request, text)),
    ]

    def told(client: hamlyn.Client, way: Callable[[hamlyn.Request, str], object], text: str) -> str:
        call = client.start(b"fails")
        way(server.receive(LIMIT), text)
        with pytest.raises(hamlyn.ApplicationError) as failed:
            call.finish(LIMIT)
        return str(failed.value)

    for way in ways:
        assert len(told(usual, way, "x" * 2000).encode()) == 1024
        # That of a client which has less room for replies, which is rounded up.
        assert 92 <= len(told(small, way, "x" * 2000).encode()) < 200
        for client in (usual, small):
            most = len(told(client, way, "x" * 2000).encode())
            assert told(client, way, "x" * most) == "x" * most
            assert told(client, way, "x" * (most + 1)) == "x" * (most - 3) + "…"
            assert told(client, way, "x" + "ä" * most) == "x" + "ä" * ((most - 4) // 2) + "…"


def test_calls_that_nobody_waits_for_are_free_again(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager, outstanding=2)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls", outstanding=8)
    assert client.outstanding_max == 2 and server.clients == 1
    for _ in range(10):
        with pytest.raises(hamlyn.TimedOut):
            client.call(b"no answer", 0.01)
        server.receive(LIMIT).reply(b"too late")
    call = client.start(b"in time")
    assert call.try_finish() is None
    server.receive(LIMIT).reply(b"here")
    assert call.finish(LIMIT) == b"here" and "finished" in repr(call)


def test_long_requests_of_a_user_wait_for_one_another(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager, long_nbytes_max=10_000)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    with ThreadPoolExecutor() as threads:
        calls = [threads.submit(client.call, bytes([i]) * 8000, LIMIT) for i in range(3)]
        for _ in calls:
            request = server.receive(LIMIT)
            # Two would be more than that.
            assert all(server.try_receive() is None for _ in range(100))
            request.reply(request.data[:1])
        assert [call.result(LIMIT) for call in calls] == [b"\0", b"\1", b"\2"]


def test_a_request_is_replied_to_once(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    call = client.start(b"once")
    request = server.receive(LIMIT)
    assert request.peer.pid == os.getpid()
    request.reply(b"first")
    with pytest.raises(hamlyn.Misuse, match="already"):
        request.reply(b"second")
    assert call.finish(LIMIT) == b"first"
    with pytest.raises(hamlyn.Misuse):
        client.call(bytes((16 << 20) + 4097), LIMIT)


def call_and_go() -> None:
    with hamlyn.Manager() as manager:
        call = hamlyn.Client.connect(manager, "calls").start(b"and away")
        assert call.try_finish() is None


def test_a_request_names_its_caller_also_when_that_has_gone(
    manager: hamlyn.Manager, children: Children
) -> None:
    server = hamlyn.Server(manager, clients_max=1)
    server.serve("calls")
    requests = []
    for _ in range(2):
        child = children.start(call_and_go)
        request = server.receive(LIMIT)
        child.join(LIMIT)
        while server.clients:
            manager.wait(0.01)
        assert request.peer.pid == child.pid
        requests.append(request)
    # As many as there may be at a time have gone after it.
    with pytest.raises(hamlyn.Closed, match="gone"):
        _ = requests[0].peer


def test_a_request_that_is_asked_for_first_is_asked_for_once(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager, request_nbytes=1024)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    manager.stop_progress()
    at_once = client._at_once_max
    assert 1024 <= at_once < 2000

    def packets(start: Callable[[], hamlyn.Call]) -> int:
        before = other.counters()["packets_sent"]
        with pytest.raises(hamlyn.TimedOut):
            start()
        return other.counters()["packets_sent"] - before

    # The server does not answer.
    longest = packets(lambda: client.start(bytes(5000), 0.2))
    assert packets(lambda: client.start(bytes(2000), 0.2)) == longest
    assert packets(lambda: client.start_within(bytes(2000), 0.2)) == longest
    # The limit is sent before the request.
    assert packets(lambda: client.start_within(bytes(at_once - 7), 0.2)) == longest
    client.start(bytes(at_once), 0)
    client.start_within(bytes(at_once - 8), LIMIT, 0)


def test_a_request_is_declined_at_the_end_of_its_block(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    call = client.start(b"fails")
    with pytest.raises(ZeroDivisionError):
        with server.receive(LIMIT) as failed:
            1 / 0
    # The name is still there.
    assert failed.data == b"fails"
    with pytest.raises(hamlyn.Declined):
        call.finish(LIMIT)
    call = client.start(b"replied to")
    with server.receive(LIMIT) as request:
        request.reply(b"reply")
    assert call.finish(LIMIT) == b"reply"
    client.start(b"closed meanwhile")
    with server.receive(LIMIT) as request:
        manager.close()


def test_a_call_is_forgotten_though_it_has_a_name(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager, outstanding=1)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    call = client.start(b"not wanted")
    request = server.receive(LIMIT)
    call.forget()
    call.forget()
    assert any(request.is_cancelled() for _ in range(100_000)) and "forgotten" in repr(call)
    with pytest.raises(hamlyn.Misuse, match="forgotten"):
        call.finish(0)
    request.reply(b"dropped")
    call = client.start(b"the next", LIMIT)
    server.receive(LIMIT).reply(b"reply")
    assert call.finish(LIMIT) == b"reply"
    call.forget()
    # Neither is one kept by the exception of its time limit.
    again = hamlyn.ReconnectingClient(other, "calls")
    # It is connected before it has little time.
    first = threading.Thread(target=lambda: again.call(b"first", LIMIT))
    first.start()
    server.receive(LIMIT).reply(b"connected")
    first.join()
    for late in (client, again):
        with pytest.raises(hamlyn.TimedOut) as kept:
            late.call(b"late", 0.02)
        with server.receive(LIMIT) as request:
            assert any(request.is_cancelled() for _ in range(100_000))
        assert kept.value.__traceback__


def test_calls_of_a_server_that_goes_fail_at_once(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    calls = [client.start(b"never answered") for _ in range(5)]
    manager.close()
    for call in calls:
        with pytest.raises(hamlyn.Closed):
            call.finish(LIMIT)


# ---- groups


def be_a_member(seed: bytes, rounds: int) -> None:
    with hamlyn.Manager() as manager, hamlyn.GroupMember.grow(manager, seed, 1024) as member:
        assert member.members == 3 and member.part_nbytes == 80_000
        for i in range(rounds):
            member.send(np.full(10_000, member.number * 100 + i, dtype=np.int64), LIMIT)
            assert member.receive(LIMIT) == b"to %d in %d" % (member.number, i)
        member.barrier(LIMIT)


def test_a_group_gathers_and_scatters_arrays(manager: hamlyn.Manager, children: Children) -> None:
    group = hamlyn.Group(manager, 3, 80_000, scatter_nbytes=64)
    for i in range(3):
        children.start(be_a_member, bytes(group.seed_of(i)), 4)
    for i in range(4):
        parts = group.gather(LIMIT)
        assert [part.member for part in parts] == [0, 1, 2] and group.joined == 3
        for part in parts:
            array = np.frombuffer(part, dtype=np.int64)
            assert len(array) == 10_000 and (array == part.member * 100 + i).all()
        with pytest.raises(BufferError, match="1 views"):
            group.next_round()
        del array
        group.next_round()
        with pytest.raises(hamlyn.Closed, match="round"):
            memoryview(parts[0])
        group.scatter([b"to %d in %d" % (member, i) for member in range(3)], LIMIT)
    group.barrier(LIMIT)
    with pytest.raises(hamlyn.Misuse, match="2 parts"):
        group.scatter([b"", b""])
    with pytest.raises(hamlyn.Misuse):
        group.broadcast(bytes(65))


def scatter_to_many(members: int) -> None:
    parts: list[Any] = [bytearray(1) for _ in range(members)]
    raised: list[BaseException] = []

    def scatter(group: hamlyn.Group) -> None:
        try:
            group.scatter(parts, 0)
        except BaseException as error:
            raised.append(error)

    with hamlyn.Manager() as manager:
        group = hamlyn.Group(manager, members, 1)
        threading.stack_size(256 << 10)
        for middle, expected in ((parts[0], hamlyn.TimedOut), (None, TypeError)):
            parts[members // 2] = middle
            thread = threading.Thread(target=scatter, args=(group,))
            thread.start()
            thread.join()
            assert isinstance(raised.pop(), expected)
            # No view is left.
            parts[0].append(1)
            parts[0].pop()


def test_what_a_group_scatters_takes_no_more_stack_for_more_members(children: Children) -> None:
    # In a process of its own, which a stack that is used up would end.
    children.start(scatter_to_many, 2000)


def be_a_helper(seed: bytes, part: bytes, data: bytes) -> None:
    with hamlyn.Manager() as manager, hamlyn.GroupHelper.grow(manager, seed, LIMIT) as helper:
        assert helper.peer.pid == os.getppid() and helper.ended is None
        piece = hamlyn.DelegatedPart.from_bytes(part)
        with pytest.raises(hamlyn.Misuse, match="bytes"):
            helper.send(piece, data[1:], LIMIT)
        helper.send(piece, data, LIMIT)
        manager.flush(LIMIT)


def test_a_part_that_was_delegated_arrives_when_every_helper_has_sent(
    manager: hamlyn.Manager, other: hamlyn.Manager, children: Children
) -> None:
    group = hamlyn.Group(manager, 2, 8192, scatter_nbytes=64)
    group.serve("group")
    manager.start_progress()
    first = hamlyn.GroupMember.connect(other, "group", 64, LIMIT)
    second = hamlyn.GroupMember.connect(other, "group", 64, LIMIT)
    second.send(b"whole", LIMIT)
    whole = np.arange(1000, dtype=np.float64)
    with pytest.raises(hamlyn.Misuse, match="8193"):
        first.delegate(8193, 2, LIMIT)
    pieces = first.delegate(whole.nbytes, 3, LIMIT)
    assert sum(map(len, pieces)) == whole.nbytes
    # The round's right to send is given away.
    with pytest.raises(hamlyn.TimedOut):
        first.delegate(8, 2, 0)
    data, sent = whole.tobytes(), 0
    for i, piece in enumerate(pieces):
        # In a helper's process, by another member, by a helper here.
        mine = data[sent : sent + len(piece)]
        sent += len(piece)
        if i == 0:
            children.start(be_a_helper, bytes(group.seed()), bytes(piece), mine)
        elif i == 1:
            second.send_part(piece, mine, LIMIT)
        else:
            with pytest.raises(hamlyn.TimedOut):
                group.gather(0.05)
            helper = hamlyn.GroupHelper.connect(other, "group", LIMIT)
            helper.send(piece, mine, LIMIT)
    parts = {part.member: bytes(part) for part in group.gather(LIMIT)}
    assert parts == {first.number: data, second.number: b"whole"}
    # A piece is good once: the root refuses a repetition, which changes nothing.
    helper.send(pieces[2], bytes(len(pieces[2])), LIMIT)
    other.flush(LIMIT)
    children.join()
    assert {part.member: bytes(part) for part in group.parts()} == parts
    with pytest.raises(hamlyn.Misuse):
        hamlyn.DelegatedPart.from_bytes(b"no piece")


def die_as_a_member(seed: bytes) -> None:
    manager = hamlyn.Manager()
    hamlyn.GroupMember.grow(manager, seed, 64)
    os._exit(0)


def test_a_member_that_dies_is_named(manager: hamlyn.Manager, children: Children) -> None:
    group = hamlyn.Group(manager, 2, 64)
    child = children.start(die_as_a_member, bytes(group.seed_of(1)))
    with pytest.raises(hamlyn.Closed, match=rf"member 1 \(process {child.pid} .*is lost"):
        group.gather(LIMIT)


def test_some_of_a_group_are_enough(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    group = hamlyn.Group(manager, 3, 64)
    group.serve("group")
    manager.start_progress()
    members = [hamlyn.GroupMember.connect(other, "group", 64) for _ in range(2)]
    with pytest.raises(hamlyn.TimedOut, match="arrived"):
        group.gather(0.05)
    for member in members:
        member.send(b"part of %d" % member.number)
    assert [bytes(part) for part in group.wait_for(2, LIMIT)] == [b"part of 0", b"part of 1"]
    with pytest.raises(hamlyn.Misuse):
        members[0].send(bytes(65))
    with pytest.raises(hamlyn.TimedOut):
        members[0].receive(0.05)
    group.close()
    with pytest.raises(hamlyn.Closed):
        members[0].receive(LIMIT)


# ---- the common parts of all end points


def test_an_end_point_tells_its_names_its_peer_and_its_state(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.StreamReceiver(manager)
    assert repr(receiver) == "<hamlyn.StreamReceiver>"
    receiver.serve("told")
    assert repr(receiver) == '<hamlyn.StreamReceiver "told">'
    manager.start_progress()
    sender = hamlyn.StreamSender.connect(other, "told", LIMIT)
    peer = f', peer process {os.getpid()} of user {os.getuid()} by "told"'
    assert repr(sender) == f"<hamlyn.StreamSender{peer}>"
    sender.send(b"first", LIMIT)
    sender.flush(LIMIT)
    assert bytes(receiver.receive(LIMIT)) == b"first"
    assert repr(receiver).startswith('<hamlyn.StreamReceiver "told", peer process ')
    sender.close()
    assert repr(sender) == "<hamlyn.StreamSender closed>"
    with pytest.raises(hamlyn.Closed):
        receiver.receive(LIMIT)
    # The sender's last message says that there is no more; that the connection has ended comes behind.
    end = time.monotonic() + LIMIT
    while not repr(receiver).endswith(", ended: closed>"):
        assert time.monotonic() < end, repr(receiver)
        time.sleep(0.001)


def test_an_end_point_that_another_thread_uses_says_what_it_can(manager: hamlyn.Manager) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64)
    receiver.serve("busy")
    thread = threading.Thread(target=lambda: receiver.get_specific_tag(7, LIMIT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _: None)
        thread.start()
        for _ in range(100):
            assert repr(receiver) == '<hamlyn.TaggedReceiver "busy">'
        receiver.close()
        thread.join(LIMIT)
    assert not thread.is_alive() and repr(receiver) == '<hamlyn.TaggedReceiver "busy" closed>'


def test_a_closed_end_point_says_so(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64)
    receiver.serve("tags")
    manager.start_progress()
    sender = hamlyn.TaggedSender.connect(other, "tags")
    sender.close()
    sender.close()
    assert sender.closed and "closed" in repr(sender)
    with pytest.raises(hamlyn.Closed):
        sender.send(0, b"", 0)
    receiver.close()
    with pytest.raises(hamlyn.Closed):
        receiver.get_tag(0)
    with pytest.raises(hamlyn.Unreachable):
        hamlyn.TaggedSender.connect(other, "tags", timeout=0.01)


def test_the_sender_learns_that_the_receiver_is_gone(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64)
    receiver.serve("tags")
    manager.start_progress()
    sender = hamlyn.TaggedSender.connect(other, "tags")
    receiver.close()
    end = time.monotonic() + LIMIT
    with pytest.raises(hamlyn.Closed):
        while time.monotonic() < end:
            sender.send(0, b"x", 1, LIMIT)
    assert sender.ended == "closed"


def test_a_manager_closes_its_end_points(manager: hamlyn.Manager) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64)
    waiting: list[BaseException] = []

    def wait() -> None:
        try:
            receiver.get_tag()
        except hamlyn.Closed as e:
            waiting.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    manager.close()
    thread.join(LIMIT)
    assert waiting and receiver.closed


def test_end_points_of_a_forked_parent_are_refused(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64)
    receiver.serve("tags")
    manager.start_progress()
    sender = hamlyn.TaggedSender.connect(other, "tags")
    group = hamlyn.Group(manager, 1, 64)
    member = hamlyn.GroupMember.grow(other, group.seed(), 64)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(hamlyn.Forked):
                sender.send(0, b"x", 1)
            with pytest.raises(hamlyn.Forked):
                receiver.get_tag(0)
            with pytest.raises(hamlyn.Forked):
                receiver.seed()
            with pytest.raises(hamlyn.Forked):
                member.send(b"x")
            sender.close()
            receiver.close()
            del sender, receiver
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    sender.send(0, b"x", 1)
    assert receiver.get_tag(LIMIT).tag == 1


def test_two_threads_share_a_sender_and_a_receiver(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.TaggedReceiver(manager, 64, tags=16)
    receiver.serve("tags")
    manager.start_progress()
    sender = hamlyn.TaggedSender.connect(other, "tags")
    got: list[int] = []

    def take() -> None:
        for _ in range(100):
            got.append(receiver.get_tag(LIMIT).tag)

    def give(first: int) -> None:
        for i in range(100):
            sender.send(0, b"x", first + i, LIMIT)

    threads = [threading.Thread(target=take) for _ in range(2)]
    threads += [threading.Thread(target=give, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(got) == list(range(200))


def test_any_of_several_receivers_is_waited_for(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    tags = hamlyn.TaggedReceiver(manager, 64)
    stream = hamlyn.StreamReceiver(manager)
    server = hamlyn.Server(manager)
    ends: list[hamlyn.Receiver] = [tags, stream, server]
    for name, end in zip(["tags", "stream", "calls"], ends, strict=True):
        end.serve(name)
    manager.start_progress()
    tagged = hamlyn.TaggedSender.connect(other, "tags")
    records = hamlyn.StreamSender.connect(other, "stream")
    client = hamlyn.Client.connect(other, "calls")
    manager.stop_progress()
    with pytest.raises(hamlyn.TimedOut):
        hamlyn.wait_any(ends, 0.02)

    def send_record() -> None:
        records.send(b"record")
        records.flush()

    timers = []
    for i in range(10):
        acts: list[Callable[[], object]] = [
            lambda tag=i: tagged.send(0, b"", tag),  # type: ignore[misc]
            send_record,
            lambda: client.start(b"call"),
        ]
        for wanted, act in enumerate(acts):
            timers.append(threading.Timer(0.002, act))
            timers[-1].start()
            assert hamlyn.wait_any(ends, LIMIT) == wanted
            if wanted == 0:
                assert tags.get_tag(0).tag == i
            elif wanted == 1:
                assert bytes(stream.receive(LIMIT)) == b"record"
            else:
                server.receive(LIMIT).reply(b"")
    with pytest.raises(hamlyn.Misuse, match="another manager"):
        hamlyn.wait_any([tags, hamlyn.Server(other)], 0)
    with pytest.raises(hamlyn.Misuse):
        hamlyn.wait_any([], 0)


# ---- several threads


def test_a_long_record_has_left_when_send_returns(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.StreamReceiver(manager)
    receiver.serve("stream")
    manager.start_progress()
    sender = hamlyn.StreamSender.connect(other, "stream", LIMIT)
    manager.stop_progress()
    data = bytes(range(256)) * (16 << 10)
    thread = threading.Thread(target=sender.send, args=(data, LIMIT))
    thread.start()
    # Longer than one look at the clock, and at Ctrl-C, takes.
    time.sleep(0.3)
    # The sender makes no other call.
    with receiver.receive(LIMIT) as record:
        assert bytes(record) == data
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_closing_ends_a_wait_also_while_a_view_is_out(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.StreamReceiver(manager)
    receiver.serve("stream")
    manager.start_progress()
    sender = hamlyn.StreamSender.connect(other, "stream", LIMIT)
    sender.send(b"shown", LIMIT)
    sender.flush(LIMIT)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            receiver.receive()
        except BaseException as e:
            ended.append(e)

    with memoryview(receiver.receive(LIMIT)) as view:
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        receiver.close()
        thread.join(LIMIT)
        assert not thread.is_alive() and isinstance(ended[0], hamlyn.Closed)
        assert bytes(view) == b"shown"


def test_a_record_that_another_thread_releases_makes_room_while_one_waits(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    # One buffer, so that each record has to be released before the next can be sent.
    receiver = hamlyn.StreamReceiver(manager, buffer_nbytes=4096, buffers=1, buffers_max=1)
    receiver.serve("stream")
    manager.start_progress()
    sender = hamlyn.StreamSender.connect(other, "stream", LIMIT)
    rounds = 100
    records: queue.SimpleQueue[hamlyn.Record | None] = queue.SimpleQueue()

    def release() -> None:
        while (record := records.get()) is not None:
            # Meanwhile the other thread is back in its wait.
            time.sleep(0.001)
            record.release()

    def send() -> None:
        for i in range(rounds):
            sender.send(record_of(i) + bytes(3000), LIMIT)
            sender.flush(LIMIT)

    threads = [threading.Thread(target=release), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    # A wait is cut into slices, so that Ctrl-C is seen. These do not end before the time limit:
    # bytes not sent before the end of one are too late.
    hamlyn._hamlyn._set_slice(int(2000 * LIMIT))
    try:
        for i in range(rounds):
            record = receiver.receive(LIMIT)
            assert bytes(record) == record_of(i) + bytes(3000)
            records.put(record)
            del record
    finally:
        hamlyn._hamlyn._set_slice(50)
    records.put(None)
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_an_event_that_nobody_reads_does_not_keep_wait_any_busy(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    manager.serve("service", b"")
    other.connect("service", timeout=LIMIT)
    assert manager.wait(LIMIT)

    class Counting:
        _manager = manager
        looks = 0

        @property
        def ready(self) -> bool:
            self.looks += 1
            return False

    counting = Counting()
    with pytest.raises(hamlyn.TimedOut):
        hamlyn.wait_any([counting], 0.5)  # type: ignore[list-item]
    # One for each slice, not one after the other.
    assert counting.looks < 100
    assert isinstance(manager.next_event(), hamlyn.Connected)


def test_a_request_that_goes_away_is_declined_whatever_other_threads_do(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls", LIMIT)
    ends = threading.Event()

    def use() -> None:
        while not ends.is_set():
            try:
                # In hand for as long as nothing comes, and dropped at once.
                server.receive(0.001)
            except hamlyn.TimedOut:
                pass

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            with pytest.raises(hamlyn.Declined):
                client.call(b"?", LIMIT)
    finally:
        ends.set()
        for thread in threads:
            thread.join(LIMIT)
