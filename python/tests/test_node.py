"""The lower level: areas, queues, slots, tickets, links, events."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT, Children, names_of_threads


def receiver(
    manager: hamlyn.Manager, name: str = "service", nbytes: int = 4096
) -> tuple[hamlyn.Area, hamlyn.Queue, hamlyn.Slot]:
    area, queue = manager.area(nbytes), manager.queue(64)
    made = manager.slot(area, queue)
    manager.serve(name, bytes(made.ticket()))
    return area, queue, made


def sender(manager: hamlyn.Manager, name: str = "service") -> tuple[hamlyn.Link, hamlyn.Ticket]:
    link = manager.connect(name)
    return link, hamlyn.Ticket.from_bytes(link.greeting)


def send_hello() -> None:
    with hamlyn.Manager() as manager:
        link, ticket = sender(manager)
        assert "shared-memory ring" in link.explain()
        manager.send(ticket, b"hello", b"about")


def test_a_message_from_another_process_lands_in_the_area(
    manager: hamlyn.Manager, children: Children
) -> None:
    area, queue, slot = receiver(manager)
    child = children.start(send_hello)
    message = queue.receive(LIMIT)
    assert bytes(memoryview(area)[:5]) == b"hello"
    assert slot.metadata() == b"about"
    assert message.slot == slot and message.index == 0 and message.word == 0
    assert message.slot.metadata(message.index) == b"about"
    assert hash(message.slot) == hash(slot) and message.slot != manager.slot(area, manager.queue(1))
    assert message.link.peer.pid == child.pid
    assert message.link.peer.uid == os.getuid()
    assert message.link.peer.service == "service"


def test_a_notification_that_somebody_has_stays_as_it_is(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    """Objects without references are used again, and no others."""
    area, queue = manager.area(4096), manager.queue(64)
    slot = manager.slot(area, queue, credit=64)
    manager.serve("service", bytes(slot.fast_ticket()))
    _, ticket = sender(other)
    takes = [queue.receive, lambda: queue.receive(LIMIT), queue.try_receive]
    kept: list[tuple[int, Any]] = []
    for word in range(30):
        other.send_fast(ticket, b"", word)
        found = takes[word % 3]()
        assert found is not None and found.word == word and found.slot == slot
        if word % 5 < 2:
            kept.append((word, found))
        if word == 20:
            del kept[:3]
    assert [found.word for _, found in kept] == [word for word, _ in kept]
    assert len({id(found) for _, found in kept}) == len(kept)
    assert all(found.index is None and found.link == kept[0][1].link for _, found in kept)


def test_every_kind_of_buffer_is_sent(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area, queue, _ = receiver(manager)
    _, ticket = sender(other)
    whole = np.arange(32, dtype=np.float64)
    every: list[hamlyn.Buffer] = [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"a memoryview"),
        memoryview(bytearray(b"0123456789"))[2:5],
        whole,
        whole.reshape(4, 8),
        whole[8:16],
        np.array(7, dtype=np.int32),
        (ctypes.c_uint16 * 3)(1, 2, 3),
        b"",
        np.zeros((0, 4)),
    ]
    for data in every:
        expected = bytes(memoryview(data)) if not isinstance(data, np.ndarray) else data.tobytes()
        memoryview(area)[:] = b"\xff" * len(area)
        other.send(ticket, data)
        queue.receive(LIMIT)
        assert bytes(memoryview(area)[: len(expected)]) == expected
        assert memoryview(area)[len(expected)] == 0xFF


@pytest.mark.parametrize("data", [None, "text", 17, [1, 2, 3], object()])
def test_what_has_no_bytes_is_refused(
    manager: hamlyn.Manager, other: hamlyn.Manager, data: object
) -> None:
    receiver(manager)
    _, ticket = sender(other)
    with pytest.raises(TypeError):
        other.send(ticket, data)  # type: ignore[arg-type]


def test_bytes_that_are_not_in_one_piece_are_refused(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver(manager)
    _, ticket = sender(other)
    scattered: hamlyn.Buffer
    for scattered in (np.arange(16)[::2], memoryview(b"0123456789")[::2], np.zeros((2, 2)).T):
        with pytest.raises(BufferError, match="not in one piece"):
            other.send(ticket, scattered)


def test_bytes_that_are_addresses_of_this_process_are_refused(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    area, queue, _ = receiver(manager)
    _, ticket = sender(other)
    addresses: list[tuple[Any, str]] = [
        (np.array([{"a": 1}, "text"], dtype=object), "Python objects"),
        (np.zeros(2, dtype=[("number", "i4"), ("what", "O")]), "Python objects"),
        ((ctypes.py_object * 2)(), "Python objects"),
        ((ctypes.c_void_p * 2)(), "pointers"),
        ((ctypes.POINTER(ctypes.c_int) * 1)(), "pointers"),
        ((ctypes.c_char_p * 1)(b"text"), "pointers"),
        ((ctypes.c_wchar_p * 1)("text"), "pointers"),
        ((ctypes.CFUNCTYPE(None) * 1)(), "functions"),
    ]
    for array, what in addresses:
        with pytest.raises(BufferError, match=f"holds {what}"):
            other.send(ticket, array)
    # Of which no format can be told.
    with pytest.raises(BufferError, match="holds objects"):
        other.send(ticket, np.zeros(1, dtype=[("when", "M8[s]"), ("what", "O")]))
    numbers: list[Any] = [
        np.array([1 + 2j], dtype=np.complex64),
        np.array(["2026-01-01"], dtype="M8[s]"),
        np.ones(1, dtype=[("O", "i4"), ("P", "f4")]),
        np.array(["text"]),
        (ctypes.c_int * 2)(1, 2),
    ]
    for array in numbers:
        other.send(ticket, array)
        queue.receive(LIMIT)
        sent = bytes(array) if not isinstance(array, np.ndarray) else array.tobytes()
        assert bytes(memoryview(area)[: len(sent)]) == sent


def test_arrays_land_in_place(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area, queue, _ = receiver(manager, nbytes=8 * 1000)
    _, ticket = sender(other)
    landed = np.frombuffer(area, dtype=np.float64)
    assert landed.shape == (1000,) and landed.flags.writeable
    sent = np.random.default_rng(1).random(1000)
    other.send(ticket, sent)
    queue.receive(LIMIT)
    assert np.array_equal(landed, sent)


def test_a_long_message_arrives_whole(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    nbytes = 8 << 20
    area, queue, _ = receiver(manager, nbytes=nbytes)
    _, ticket = sender(other)
    sent = np.random.default_rng(2).integers(0, 256, nbytes, dtype=np.uint8)
    thread = threading.Thread(target=other.send, args=(ticket, sent, None, LIMIT))
    thread.start()
    queue.receive(LIMIT)
    thread.join()
    assert np.array_equal(np.frombuffer(area, dtype=np.uint8), sent)


# ---- the lifetime of memory


def test_a_view_outlives_every_other_object(other: hamlyn.Manager) -> None:
    manager = hamlyn.Manager()
    area, queue, slot = receiver(manager)
    _, ticket = sender(other)
    other.send(ticket, b"x" * 4096)
    queue.receive(LIMIT)
    view = np.frombuffer(area, dtype=np.uint8)
    manager.close()
    del manager, area, queue, slot
    gc.collect()
    assert view.sum() == 4096 * ord("x")
    view[:] = 1
    assert view.sum() == 4096


def test_an_area_that_is_shown_is_not_removed(manager: hamlyn.Manager) -> None:
    area = manager.area(4096)
    view = memoryview(area)
    with pytest.raises(BufferError, match="1 view"):
        area.remove()
    view.release()
    area.remove()
    area.remove()
    with pytest.raises(hamlyn.Closed):
        memoryview(area)


def test_an_area_that_a_slot_names_is_not_removed(manager: hamlyn.Manager) -> None:
    area, queue = manager.area(4096), manager.queue(4)
    slot = manager.slot(area, queue)
    with pytest.raises(hamlyn.Misuse, match="1 slots"):
        area.remove()
    with pytest.raises(hamlyn.Misuse):
        queue.remove()
    assert len(memoryview(area)) == 4096
    slot.remove()
    queue.remove()
    area.remove()


def test_an_area_of_a_file_is_memory_that_the_program_has_mapped_itself(
    manager: hamlyn.Manager,
) -> None:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 8192)
    with pytest.raises(hamlyn.Misuse, match="F_SEAL_SHRINK"):
        manager.area_of_file(descriptor, 4096)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(hamlyn.Misuse, match="100"):
        manager.area_of_file(descriptor, 4096, offset=100)
    with pytest.raises(hamlyn.Misuse, match="-1"):
        manager.area_of_file(-1, 4096)
    area = manager.area_of_file(descriptor, 4096, offset=4096)
    with mmap.mmap(descriptor, 8192, prot=mmap.PROT_READ) as own:
        queue = manager.queue(1)
        slot = manager.slot(area, queue)
        manager.send(slot.ticket(), b"into its own memory")
        queue.receive(LIMIT)
        assert own[4096 : 4096 + 19] == b"into its own memory"
        memoryview(area)[0] = ord("I")
        assert own[4096:4097] == b"I"
        slot.remove()
        area.remove()
        assert own[4096:4097] == b"I"
    os.close(descriptor)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


ENDING = {"hamlyn-work", "hamlyn-aio", "hamlyn-send", "hamlyn-request", "hamlyn-reply"}


def test_nothing_is_left_of_a_closed_manager() -> None:
    hamlyn.Manager().close()
    # Threads that end by themselves, of other tests.
    end = time.monotonic() + LIMIT
    while names_of_threads() & ENDING and time.monotonic() < end:
        time.sleep(0.01)
    before = descriptors()
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        with hamlyn.Manager() as manager:
            receiver(manager)
            view = memoryview(manager.area(4096))
        view.release()
    end = time.monotonic() + LIMIT
    while len(os.listdir("/proc/self/task")) > threads and time.monotonic() < end:
        time.sleep(0.01)
    # Fewer, if one that another test had left (of a look at names, say) has ended meanwhile: each of
    # these twenty would leave one.
    assert len(os.listdir("/proc/self/task")) <= threads
    # A descriptor for each manager that still lives, none for those that do not: nothing refers
    # to them now but the names of this function.
    del manager, view
    gc.collect()
    assert descriptors() <= before


# ---- closing


def test_a_closed_manager_says_so(manager: hamlyn.Manager) -> None:
    area, queue, slot = receiver(manager)
    manager.close()
    manager.close()
    assert manager.closed and "closed" in repr(manager)
    calls: list[Callable[[], object]] = [
        lambda: manager.area(1),
        lambda: manager.queue(1),
        lambda: manager.connect("service"),
        lambda: manager.poll(),
        lambda: manager.wait(0),
        lambda: manager.counters(),
        lambda: manager.fileno(),
        lambda: queue.receive(0),
        lambda: queue.try_receive(),
        lambda: slot.ticket(),
        lambda: memoryview(area),
        lambda: manager.__enter__().next_event(),
    ]
    for call in calls:
        with pytest.raises(hamlyn.Closed):
            call()


def test_closing_ends_the_wait_of_another_thread(manager: hamlyn.Manager) -> None:
    queue = manager.queue(1)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            queue.receive()
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    manager.close()
    thread.join(LIMIT)
    assert isinstance(raised[0], hamlyn.Closed)


def test_both_ends_learn_of_the_end(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    receiver(manager)
    link, ticket = sender(other)
    connected = wait_for_event(manager)
    assert isinstance(connected, hamlyn.Connected) and connected.request is None
    link.close()
    closed = wait_for_event(manager)
    assert isinstance(closed, hamlyn.LinkClosed)
    assert closed.reason == "closed" and closed.unsent == 0 and closed.link == connected.link
    with pytest.raises(hamlyn.Unreachable):
        other.send(ticket, b"too late")
    with pytest.raises(hamlyn.Closed):
        link.explain()


def wait_for_event(manager: hamlyn.Manager) -> object:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        event = manager.next_event()
        if event is not None:
            return event
        manager.wait(0.05)
    raise AssertionError("no event came")


def die() -> None:
    manager = hamlyn.Manager()
    sender(manager)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_is_told(manager: hamlyn.Manager, children: Children) -> None:
    receiver(manager)
    child = children.start(die)
    assert isinstance(wait_for_event(manager), hamlyn.Connected)
    closed = wait_for_event(manager)
    assert isinstance(closed, hamlyn.LinkClosed) and closed.reason == "died"
    child.join()
    children.all.clear()


# ---- access


def test_a_service_that_asks_decides(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    manager.serve("ask")
    found: list[object] = []
    for answer in [b"welcome", None]:

        def connect() -> None:
            try:
                found.append(other.connect("ask", b"it is me").greeting)
            except hamlyn.Refused as e:
                found.append(e)

        thread = threading.Thread(target=connect)
        thread.start()
        request = wait_for_event(manager)
        assert isinstance(request, hamlyn.LinkRequest)
        assert request.greeting == b"it is me" and request.peer.pid == os.getpid()
        if answer is None:
            request.refuse("not today")
        else:
            request.accept(answer)
            connected = wait_for_event(manager)
            assert isinstance(connected, hamlyn.Connected) and connected.request == request.id
        thread.join(LIMIT)
    assert found[0] == b"welcome"
    assert isinstance(found[1], ConnectionRefusedError) and "not today" in str(found[1])


def test_a_name_is_waited_for(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    found: list[hamlyn.Link] = []
    thread = threading.Thread(target=lambda: found.append(other.connect("later", timeout=LIMIT)))
    thread.start()
    # Whether or not it has looked once by then, it finds the message.
    time.sleep(0.05)
    manager.serve("later", b"")
    thread.join(LIMIT)
    assert len(found) == 1


def test_a_setting_says_that_names_are_not_waited_for(manager: hamlyn.Manager) -> None:
    with hamlyn.Manager(wait_for_names=False) as hasty:
        with pytest.raises(hamlyn.Unreachable, match="is there and has no such name"):
            hasty.connect("nobody", timeout=None)


def test_a_busy_program_says_that_it_lives(manager: hamlyn.Manager) -> None:
    manager.reset_watchdog()


def test_nobody_there(manager: hamlyn.Manager) -> None:
    with pytest.raises(hamlyn.Unreachable) as raised:
        manager.connect("nobody", timeout=0.01)
    assert isinstance(raised.value, ConnectionError)
    with pytest.raises(hamlyn.Misuse):
        manager.connect("../etc")
    with pytest.raises(hamlyn.Misuse):
        manager.serve("no/slashes", b"")
    with pytest.raises(ValueError, match="access"):
        # The ignored error has to exist: type checkers find it, too.
        manager.serve("x", b"", access="somebody")  # type: ignore[arg-type]
    # To Python that is the number 1, which is not a group here.
    with pytest.raises(ValueError, match="access is True"):
        manager.serve("x", b"", access=True)


def test_a_name_is_served_once(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    manager.serve("once", b"")
    with pytest.raises(hamlyn.Refused):
        other.serve("once", b"")
    assert manager.stop_serving("once") and not manager.stop_serving("once")
    other.serve("once", b"")


@pytest.mark.parametrize("act", [hamlyn.Manager.serve, hamlyn.Manager.stop_serving])
def test_a_name_whose_directory_is_locked_holds_up_no_other_thread(
    manager: hamlyn.Manager, directory: str, act: Callable[[hamlyn.Manager, str], object]
) -> None:
    if act is hamlyn.Manager.stop_serving:
        manager.serve("locked")
    order: list[str] = []
    begins = threading.Event()

    def change() -> None:
        begins.set()
        act(manager, "locked")
        order.append("changed")

    thread = threading.Thread(target=change)
    # The interpreter's lock changes hands only when its thread gives it up.
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(LIMIT)
    try:
        with open(Path(directory) / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            thread.start()
            begins.wait(LIMIT)
            assert manager.links() == []
            order.append("has gone on")
    finally:
        sys.setswitchinterval(switch_s)
    thread.join()
    assert order == ["has gone on", "changed"]


# ---- tickets, modes, refusals


def test_a_ticket_is_bytes_that_travel(manager: hamlyn.Manager) -> None:
    _, _, slot = receiver(manager)
    ticket = slot.ticket()
    raw = bytes(ticket)
    assert len(raw) == 44
    again = hamlyn.Ticket.from_bytes(raw)
    assert again == ticket and hash(again) == hash(ticket) and {again, ticket} == {ticket}
    assert pickle.loads(pickle.dumps(ticket)) == ticket
    assert ticket.destination == manager.id and ticket.capacity == 4096
    assert ticket.at(96).capacity == 4000
    assert raw[12:20].hex() not in repr(ticket), "the key is printed"
    assert len(ticket.split_evenly(4)) == 4
    halves = ticket.split([(0, 10, 1 << 31), (10, 20, 1 << 31)])
    assert [half.capacity for half in halves] == [10, 10]
    assert ticket.silent() != ticket


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"\xff" * 44, bytes(43), bytes(45), bytes(28) + b"\xff" * 7 + bytes(9)]
)
def test_bytes_that_are_no_ticket_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        hamlyn.Ticket.from_bytes(raw)


def test_what_is_not_allowed_is_refused(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area, queue, slot = receiver(manager)
    _, ticket = sender(other)
    with pytest.raises(hamlyn.Misuse, match="4097"):
        other.send(ticket, bytes(4097))
    with pytest.raises(hamlyn.Misuse, match="61"):
        other.send(ticket, b"", bytes(61))
    with pytest.raises(hamlyn.Misuse):
        ticket.at(4097)
    with pytest.raises(hamlyn.Misuse):
        ticket.split([(0, 10, 1)])
    with pytest.raises(hamlyn.Misuse):
        manager.area(0)
    with pytest.raises(hamlyn.Misuse):
        manager.queue(0)
    with pytest.raises(hamlyn.Misuse):
        manager.slot(area, queue, start=10, stop=5000)
    with pytest.raises(ValueError, match="mode"):
        manager.slot(area, queue, mode="careless")
    with pytest.raises(hamlyn.Misuse, match="another manager"):
        other.slot(area, queue)
    with pytest.raises(hamlyn.Misuse):
        slot.ticket(1)
    with pytest.raises(hamlyn.Misuse):
        slot.metadata(1)
    for number in [-1, 1 << 80]:
        with pytest.raises(OverflowError):
            manager.area(number)
        with pytest.raises(OverflowError):
            slot.ticket(number)


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("-inf")])
def test_a_timeout_that_is_none_is_refused(manager: hamlyn.Manager, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        manager.queue(1).receive(timeout)


def test_a_time_limit_is_an_error_of_two_kinds(manager: hamlyn.Manager) -> None:
    queue = manager.queue(1)
    for timeout in [0, 0.0, 0.001, 0.12]:
        with pytest.raises(hamlyn.TimedOut) as raised:
            queue.receive(timeout)
        assert isinstance(raised.value, TimeoutError)
    assert queue.try_receive() is None
    assert manager.wait(0.01) is False


def test_a_revoked_key_changes_nothing(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area, queue, slot = receiver(manager)
    _, ticket = sender(other)
    slot.revoke()
    other.send(ticket, b"forged")
    end = time.monotonic() + LIMIT
    while manager.counters()["refused_stale_key"] == 0 and time.monotonic() < end:
        manager.poll()
    assert manager.counters()["refused_stale_key"] == 1
    assert queue.try_receive() is None and not any(memoryview(area))


def test_one_shot_bytes_stand_still(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area, queue = manager.area(64), manager.queue(2)
    slot = manager.slot(area, queue, entries=2, mode="one_shot")
    with pytest.raises(hamlyn.Misuse, match="arm"):
        slot.ticket(0)
    slot.arm(0, 0, 32)
    slot.arm(1)
    manager.serve("service", bytes(slot.ticket(0)))
    assert slot.ticket(0).capacity == 32 and slot.ticket(1).capacity == 64
    _, ticket = sender(other)
    other.send(ticket, b"first")
    assert queue.receive(LIMIT).index == 0
    other.send(ticket, b"again")
    end = time.monotonic() + LIMIT
    while manager.counters()["refused_entry_closed"] == 0 and time.monotonic() < end:
        manager.poll()
    assert bytes(memoryview(area)[:5]) == b"first"


def test_fast_mode_carries_a_word(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area, queue = manager.area(64), manager.queue(4)
    slot = manager.slot(area, queue, credit=4)
    manager.serve("service", bytes(slot.fast_ticket()))
    _, ticket = sender(other)
    other.send_fast(ticket, b"fast", 0xDEADBEEF)
    message = queue.receive(LIMIT)
    assert message.index is None and message.word == 0xDEADBEEF
    assert "0xdeadbeef" in repr(message)
    with pytest.raises(hamlyn.Misuse):
        other.send_fast(ticket, bytes(65))


def test_a_full_link_says_not_now(manager: hamlyn.Manager) -> None:
    # The receiver takes nothing, so its ring of the least size fills.
    with hamlyn.Manager(ring_bytes=512, work_queue_entries=1) as small:
        area, queue = manager.area(64), manager.queue(64)
        manager.serve("service", bytes(manager.slot(area, queue, entries=64).ticket()))
        _, ticket = sender(small)
        sent = 0
        while small.try_send(ticket, b"16 bytes of data"):
            sent += 1
        assert sent > 0
        with pytest.raises(hamlyn.TimedOut):
            small.send(ticket, b"16 bytes of data", timeout=0.1)
        with pytest.raises(hamlyn.TimedOut):
            small.close(timeout=0.05)
        assert small.closed


# ---- settings


def test_settings_are_named_and_checked(directory: str) -> None:
    names = {row[0] for row in hamlyn.settings()}
    assert {"dir", "wait_mode", "ring_bytes"} <= names
    hamlyn.Manager(dir=Path(directory), ring_bytes="64K", mlock=False, links_max=3).close()
    with pytest.raises(TypeError, match='no setting "colour"'):
        hamlyn.Manager(colour="red")  # type: ignore[call-arg]
    with pytest.raises(hamlyn.Misuse, match="power of two"):
        hamlyn.Manager(ring_bytes=1000)
    with pytest.raises(TypeError):
        hamlyn.Manager(ring_bytes=[1])  # type: ignore[arg-type]
    with hamlyn.Manager(huge_pages=True) as manager:
        huge, locked = manager.area(1 << 21).report()
        assert huge != "not asked" and locked == "not asked"
        assert all(isinstance(note, str) for note in manager.notes())


# ---- threads, signals, forks


def test_waiting_lets_other_threads_run(manager: hamlyn.Manager) -> None:
    queue = manager.queue(1)
    started, turns = threading.Event(), 0

    def wait() -> None:
        started.set()
        with pytest.raises(hamlyn.TimedOut):
            queue.receive(0.5)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait(LIMIT)
    while thread.is_alive():
        turns += 1
    # With the interpreter's lock held, this thread could have made no turn, or a few.
    assert turns > 1000


def test_many_threads_wait_at_once(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area = manager.area(4096)
    queues, tickets = [], []
    for i in range(8):
        queues.append(manager.queue(64))
        tickets.append(manager.slot(area, queues[i], start=i * 8, stop=i * 8 + 8, entries=64))
    manager.serve("service", b"")
    sender_link = other.connect("service")
    counts = [0] * 8

    def take(i: int) -> None:
        while counts[i] < 50:
            queues[i].receive(LIMIT)
            counts[i] += 1

    threads = [threading.Thread(target=take, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for n in range(50):
        for slot in tickets:
            sender_link.send(slot.ticket(n), b"12345678", timeout=LIMIT)
    for thread in threads:
        thread.join(LIMIT)
    assert counts == [50] * 8


def test_ctrl_c_ends_a_wait(directory: str) -> None:
    program = """
import hamlyn, sys
manager = hamlyn.Manager()
manager.serve("silent")
what = sys.argv[1]
print("waiting", flush=True)
try:
    if what == "receive":
        manager.queue(1).receive()
    elif what == "wait":
        while True:
            manager.wait()
    elif what == "connect":
        hamlyn.Manager().connect("silent", timeout=None)
    elif what == "stream":
        hamlyn.StreamReceiver(manager).receive()
    elif what == "gather":
        hamlyn.Group(manager, 1, 64).gather()
    elif what == "any":
        hamlyn.wait_any([hamlyn.Server(manager), hamlyn.TaggedReceiver(manager, 64)])
    elif what == "call":
        server = hamlyn.Server(manager)
        server.serve("never-answers")
        manager.start_progress()
        hamlyn.Client.connect(hamlyn.Manager(), "never-answers").call(b"")
    elif what == "reply":
        # Nobody takes the answer: there is room for a part of it at most.
        other = hamlyn.Manager()
        receiver = hamlyn.DatagramReceiver(manager, 8)
        receiver.serve("asked")
        manager.start_progress()
        answers = hamlyn.DatagramReceiver(other, 64 << 20)
        asking = hamlyn.DatagramSender.connect(other, "asked")
        asking.send(b"?", reply=answers.reply_ticket())
        receiver.receive().reply(bytes(64 << 20))
    elif what == "send":
        # Nobody takes what is sent, so there is no room in the end.
        area, queue = manager.area(64 << 20), manager.queue(1)
        manager.serve("full", bytes(manager.slot(area, queue).ticket()))
        other = hamlyn.Manager()
        link = other.connect("full")
        ticket = hamlyn.Ticket.from_bytes(link.greeting)
        (link if len(sys.argv) > 2 else other).send(ticket, bytes(64 << 20))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    import os; os._exit(0)
"""
    waits = ["receive", "wait", "connect", "stream", "gather", "any", "call", "reply"]
    waits += ["send", "send over"]
    for what in waits:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *what.split()], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout and process.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT)
        assert output == "interrupted\n" and process.returncode == 0, what


def test_a_forked_child_is_told(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area, queue, slot = receiver(manager)
    _, ticket = sender(other)
    view = np.frombuffer(area, dtype=np.uint8)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            calls: list[Callable[[], object]] = [
                lambda: manager.area(1),
                lambda: queue.receive(),
                lambda: other.send(ticket, b"from the child"),
                lambda: slot.ticket(),
                lambda: memoryview(area),
                lambda: manager.next_event(),
                lambda: manager.prepare_to_wait(),
            ]
            for call in calls:
                with pytest.raises(hamlyn.Forked, match="make a Manager here"):
                    call()
            assert view.sum() == 0
            manager.close()
            del manager, other, area, queue, slot, call, calls
            gc.collect()
            with hamlyn.Manager() as own:
                own.area(64)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    other.send(ticket, b"from the parent")
    queue.receive(LIMIT)
    assert bytes(view[:15]) == b"from the parent"


def test_the_interpreter_ends_while_a_thread_waits() -> None:
    program = """
import hamlyn, threading, numpy, time
manager = hamlyn.Manager()
area = manager.area(4096)
view = numpy.frombuffer(area, dtype="u1")
manager.start_progress()
threading.Thread(target=manager.queue(1).receive, daemon=True).start()
time.sleep(0.1)
"""
    subprocess.run([sys.executable, "-c", program], timeout=LIMIT, check=True)


def test_a_progress_thread_takes_what_arrives(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    area, _, _ = receiver(manager)
    manager.start_progress()
    _, ticket = sender(other)
    other.send(ticket, b"no call")
    end = time.monotonic() + LIMIT
    while not any(memoryview(area)) and time.monotonic() < end:
        time.sleep(0.001)
    assert bytes(memoryview(area)[:7]) == b"no call"
    manager.stop_progress()


def test_every_object_says_what_it_is(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    area, queue, slot = receiver(manager)
    link, ticket = sender(other)
    other.send(ticket, b"x")
    message = queue.receive(LIMIT)
    for thing in [manager, area, queue, slot, ticket, link, link.peer, message]:
        assert repr(thing).startswith("<hamlyn."), repr(thing)
        assert type(thing).__doc__
    assert f"to process {os.getpid()} of user" in repr(link)
    assert other.links() == [link] and len({link, link}) == 1


def test_the_package_tells_its_version() -> None:
    root = Path(__file__).parents[2]
    cargo = tomllib.loads((root / "Cargo.toml").read_text())
    assert hamlyn.__version__ == cargo["workspace"]["package"]["version"]
