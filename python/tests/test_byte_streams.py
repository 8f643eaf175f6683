"""Byte streams: bytes both ways, their end, time limits, the peer's identity."""

from __future__ import annotations

import os
import threading

import hamlyn
import pytest
from conftest import LIMIT, Children


def pair(
    manager: hamlyn.Manager, other: hamlyn.Manager, window_nbytes: int = 4096
) -> tuple[hamlyn.ByteStream, hamlyn.ByteStream]:
    """Both sides of a connection, whose managers have threads of their own."""
    manager.start_progress()
    other.start_progress()
    listener = hamlyn.ByteListener(manager, window_nbytes=window_nbytes)
    listener.serve("bytes")
    here = hamlyn.ByteStream.connect(other, "bytes", window_nbytes=window_nbytes)
    there = listener.accept(LIMIT)
    # An accepted stream outlives its listener.
    listener.close()
    return here, there


def test_bytes_come_in_order_and_each_direction_ends_by_itself(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    here, there = pair(manager, other)
    data = os.urandom(300_000)
    received = bytearray()

    def receive() -> None:
        part = bytearray(7000)
        while nbytes := there.recv_into(part, LIMIT):
            received.extend(part[:nbytes])

    thread = threading.Thread(target=receive)
    thread.start()
    here.sendall(data, LIMIT)
    here.shutdown(LIMIT)
    thread.join(LIMIT)
    assert received == data
    with pytest.raises(hamlyn.Misuse):
        here.send(b"more")
    # The other direction goes on.
    there.sendall(b"answer", LIMIT)
    assert here.recv(100, LIMIT) == b"answer"
    there.close()
    assert here.recv(100, LIMIT) == b"" and here.try_recv(1) == b""
    with pytest.raises(hamlyn.Closed):
        there.recv(1)
    assert "closed" in repr(there)


def test_nothing_waits_for_longer_than_its_limit(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    here, there = pair(manager, other)
    assert there.try_recv(10) is None and there.try_recv_into(bytearray(1)) is None
    assert not there.ready
    for wait in (lambda: there.recv(1, 0.01), lambda: there.recv_into(bytearray(1), 0)):
        with pytest.raises(hamlyn.TimedOut):
            wait()
    sent = 0
    while taken := here.try_send(b"x" * 1000):
        sent += taken
    assert 0 < sent <= 4096
    with pytest.raises(hamlyn.TimedOut):
        here.send(b"x", 0.01)
    with pytest.raises(hamlyn.TimedOut, match="0 of 5 bytes were sent"):
        here.sendall(b"12345", 0.01)
    assert hamlyn.wait_any([there], LIMIT) == 0
    assert here.send(b"") == 0
    got = 0
    while got < sent:
        got += len(there.recv(300, LIMIT))
    assert here.try_shutdown()
    assert there.recv(1, LIMIT) == b""
    for nothing in (lambda: there.recv(0), lambda: there.recv_into(bytearray())):
        with pytest.raises(hamlyn.Misuse):
            nothing()


def test_who_connects_and_who_may(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    manager.start_progress()
    listener = hamlyn.ByteListener(manager, connections_max=2)
    asked: list[hamlyn.Peer] = []

    def admit(peer: hamlyn.Peer) -> bool:
        asked.append(peer)
        return True

    listener.set_admission(admit)
    stream = hamlyn.ByteStream.grow(other, listener.seed())
    assert hamlyn.wait_any([listener], LIMIT) == 0
    there = listener.accept(LIMIT)
    assert there.peer.pid == asked[0].pid == os.getpid() and there.peer.uid == os.getuid()
    assert "byte stream" in stream.explain() and stream.ended is None
    assert listener.try_accept() is None and listener.connections == 1 and listener.misbehaved == 0
    second = hamlyn.ByteStream.grow(other, str(listener.seed()))
    with pytest.raises(hamlyn.Refused):
        hamlyn.ByteStream.grow(other, listener.seed())
    listener.set_admission(lambda peer: "not today")
    second.close()
    with pytest.raises(hamlyn.Misuse, match="power of two"):
        hamlyn.ByteListener(manager, window_nbytes=5000)
    with pytest.raises(hamlyn.TimedOut):
        listener.accept(0)  # Of two, one was accepted, and one left.
        listener.accept(0)


def die(name: str) -> None:
    manager = hamlyn.Manager()
    stream = hamlyn.ByteStream.connect(manager, name)
    stream.sendall(b"last words", LIMIT)
    os.kill(os.getpid(), 9)


def test_a_peer_that_dies_is_an_error_behind_what_it_sent(
    manager: hamlyn.Manager, children: Children
) -> None:
    listener = hamlyn.ByteListener(manager)
    listener.serve("bytes")
    process = children.start(die, "bytes")
    stream = listener.accept(LIMIT)
    process.join(LIMIT)
    children.all.clear()
    got = b""
    while len(got) < 10:
        got += stream.recv(100, LIMIT)
    assert got == b"last words"
    with pytest.raises(hamlyn.Closed, match="died"):
        stream.recv(1, LIMIT)
    assert stream.ended == "died"
