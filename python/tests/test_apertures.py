"""Apertures: memory that two processes map."""

from __future__ import annotations

import os
import threading
import time

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT, Children

PAGE = 4096


def event_of(manager: hamlyn.Manager, kind: type) -> hamlyn.Event:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        event = manager.next_event()
        if event is None:
            manager.wait(0.05)
        elif isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__} came")


def said(manager: hamlyn.Manager, what: str) -> hamlyn.ApertureChanged:
    event = event_of(manager, hamlyn.ApertureChanged)
    assert isinstance(event, hamlyn.ApertureChanged) and event.what == what, event
    return event


def linked(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> tuple[hamlyn.Link, hamlyn.Link]:
    manager.serve("apertures", b"")
    there = other.connect("apertures")
    connected = event_of(manager, hamlyn.Connected)
    assert isinstance(connected, hamlyn.Connected)
    return connected.link, there


def exported(
    manager: hamlyn.Manager, other: hamlyn.Manager, nbytes: int, *, writable: bool = True
) -> tuple[hamlyn.Aperture, hamlyn.Aperture]:
    here, there = linked(manager, other)
    owned = here.export(nbytes, writable=writable)
    number = said(other, "held").number
    said(manager, "ready")
    assert owned.number == number
    return owned, there.aperture(number)


def hold() -> None:
    with hamlyn.Manager() as manager:
        link = manager.connect("apertures")
        aperture = link.aperture(said(manager, "held").number)
        assert aperture.nbytes == 16 * PAGE and aperture.writable and not aperture.owned
        array = np.arange(16 * PAGE // 8, dtype=np.float64)
        aperture.write(0, array)
        manager.send(hamlyn.Ticket.from_bytes(link.greeting), b"written")
        said(manager, "revoked")
        with pytest.raises(hamlyn.Closed):
            aperture.write(0, b"too late")


def test_an_array_written_by_another_process(
    manager: hamlyn.Manager, children: Children
) -> None:
    area, queue = manager.area(64), manager.queue(4)
    manager.serve("apertures", bytes(manager.slot(area, queue).ticket()))
    children.start(hold)
    connected = event_of(manager, hamlyn.Connected)
    assert isinstance(connected, hamlyn.Connected)
    aperture = connected.link.export(16 * PAGE)
    queue.receive(LIMIT)
    array = np.empty(16 * PAGE // 8)
    aperture.read_into(0, array)
    assert np.array_equal(array, np.arange(len(array)))
    assert "apertures exported: 1" in connected.link.explain()
    # Its bytes stand still now, where they are an area.
    reclaimed = aperture.reclaim()
    assert np.array_equal(np.frombuffer(reclaimed, dtype=np.float64), array)
    with pytest.raises(hamlyn.Closed):
        aperture.reclaim()


def test_both_sides_read_what_the_other_wrote(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    owned, held = exported(manager, other, 2 * PAGE)
    held.write(100, b"from the holder")
    assert owned.read(100, 15) == b"from the holder"
    owned.write_word(8, (1 << 64) - 1)
    assert held.read_word(8) == (1 << 64) - 1
    target = bytearray(4)
    held.read_into(100, target)
    assert target == b"from"
    assert owned.owned and repr(owned).endswith("owned>") and not owned.revoked
    held.release()
    said(manager, "released")
    with pytest.raises(hamlyn.Misuse, match="holder"):
        owned.release()
    with pytest.raises(hamlyn.Misuse, match="owner"):
        held.revoke()


def test_a_read_only_aperture_is_not_written(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    owned, held = exported(manager, other, PAGE, writable=False)
    owned.write(0, b"to be read")
    assert held.read(0, 10) == b"to be read" and not held.writable
    with pytest.raises(hamlyn.Misuse, match="read-only"):
        held.write(0, b"no")
    owned.revoke()
    said(other, "revoked")
    assert held.revoked
    with pytest.raises(hamlyn.Closed):
        held.read(0, 1)


def test_a_read_only_aperture_has_several_holders(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    first, held = exported(manager, other, PAGE, writable=False)
    with hamlyn.Manager() as third:
        there = third.connect("apertures")
        connected = event_of(manager, hamlyn.Connected)
        assert isinstance(connected, hamlyn.Connected)
        second = connected.link.export_also(first)
        seen = there.aperture(said(third, "held").number)
        assert second.link == connected.link and second.owned and not second.writable
        first.write(0, b"for all")
        assert held.read(0, 7) == seen.read(0, 7) == second.read(0, 7) == b"for all"
        # Revoked for the one, and there for the other.
        first.revoke()
        said(other, "revoked")
        second.write(0, b"for one")
        assert held.revoked and seen.read(0, 7) == b"for one"
        with pytest.raises(hamlyn.Misuse, match="another manager's"):
            there.export_also(second)
        writable = connected.link.export(PAGE)
        with pytest.raises(hamlyn.HamlynError, match="one holder"):
            connected.link.export_also(writable)


def test_what_is_outside_is_refused(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    owned, held = exported(manager, other, PAGE)
    top = (1 << 64) - 1
    for aperture in (owned, held):
        for offset, nbytes in [(0, PAGE + 1), (PAGE, 1), (top, 1), (1, 1 << 62)]:
            with pytest.raises(hamlyn.Misuse, match="outside"):
                aperture.read(offset, nbytes)
        with pytest.raises(hamlyn.Misuse, match="outside"):
            aperture.write(PAGE - 1, b"12")
        with pytest.raises(hamlyn.Misuse, match="outside"):
            aperture.read_into(1, bytearray(PAGE))
        for offset in (4, PAGE, top):
            with pytest.raises(hamlyn.Misuse):
                aperture.read_word(offset)
    with pytest.raises(BufferError):
        held.read_into(0, b"read-only")
    with pytest.raises(TypeError):
        held.write(0, 17)  # type: ignore[arg-type]
    for nbytes in (0, 1, PAGE + 1, 1 << 60):
        with pytest.raises(hamlyn.Misuse):
            owned.link.export(nbytes)
    with pytest.raises(hamlyn.Closed):
        owned.link.aperture(12345)


def test_a_forked_child_is_refused(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    owned, held = exported(manager, other, PAGE)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for aperture in (owned, held):
                with pytest.raises(hamlyn.Forked):
                    aperture.read(0, 1)
                with pytest.raises(hamlyn.Forked):
                    aperture.write(0, b"x")
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_revoking_while_another_thread_writes(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    owned, held = exported(manager, other, 256 * PAGE)
    data = bytes(256 * PAGE)
    raised: list[BaseException] = []

    def write() -> None:
        try:
            while True:
                held.write(0, data)
        except hamlyn.Closed as e:
            raised.append(e)

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(0.02)
    owned.revoke()
    said(other, "revoked")
    thread.join(LIMIT)
    assert raised


@pytest.mark.parametrize("how", ["revoke", "reclaim"])
def test_an_owner_that_never_looked_at_an_aperture_hears_that_it_is_revoked(
    manager: hamlyn.Manager, other: hamlyn.Manager, how: str
) -> None:
    owned, _held = exported(manager, other, PAGE)
    getattr(owned, how)()
    assert owned.revoked
    with pytest.raises(hamlyn.Closed):
        owned.write(0, b"late")


def test_an_owner_hears_that_an_aperture_whose_holder_has_gone_is_revoked(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    owned, _held = exported(manager, other, PAGE)
    assert not owned.revoked
    other.close()
    event_of(manager, hamlyn.LinkClosed)
    assert owned.revoked
