"""The end points: tagged remote write, datagrams, streams, calls, groups; seeds."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT, Children

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
    assert receiver.senders == 1
    for tag in [5, 6, 7]:
        sender.send(0, b"", tag)
    assert receiver.get_specific_tag(6, LIMIT).tag == 6
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


def test_datagrams_outside_are_refused(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    _, sender = datagrams(manager, other, 64)
    assert sender.capacity == 64
    for data, offset in [(bytes(65), 0), (b"1", 64), (b"", 65), (b"1", (1 << 64) - 1)]:
        with pytest.raises(hamlyn.Misuse):
            sender.send(data, offset)
    with pytest.raises(hamlyn.Misuse, match="reply ticket"):
        sender.send(b"", reply=hamlyn.DatagramReceiver(manager, 64).reply_ticket())


# ---- what all end points have in common


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
        hamlyn.TaggedSender.connect(other, "tags")


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
