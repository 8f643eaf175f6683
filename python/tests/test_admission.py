"""The admission of senders: by access, and by a callback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hamlyn
import pytest
from conftest import LIMIT, Children
from hamlyn import Manager, Peer

Grow = Callable[[Manager, str], Any]

RECEIVERS: dict[str, tuple[Callable[[Manager], Any], Grow]] = {
    "tagged": (lambda m: hamlyn.TaggedReceiver(m, 64), hamlyn.TaggedSender.connect),
    "datagram": (lambda m: hamlyn.DatagramReceiver(m, 64), hamlyn.DatagramSender.connect),
    "stream": (hamlyn.StreamReceiver, hamlyn.StreamSender.connect),
    "aperture stream": (
        lambda m: hamlyn.ApertureStreamReceiver(m, 1 << 17),
        hamlyn.ApertureStreamSender.connect,
    ),
    "call": (hamlyn.Server, hamlyn.Client.connect),
    "group": (
        lambda m: hamlyn.Group(m, 2, 64),
        lambda m, name: hamlyn.GroupMember.connect(m, name, 64),
    ),
}


@contextmanager
def answering(manager: Manager) -> Iterator[None]:
    """A thread receives while the block lasts, so that peers are answered."""
    ends = threading.Event()

    def poll() -> None:
        while not ends.is_set():
            manager.wait(0.01)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(LIMIT)
        assert not thread.is_alive()


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_a_callback_decides_who_may_grow_a_sender(
    manager: Manager, other: Manager, protocol: str
) -> None:
    make, connect = RECEIVERS[protocol]
    receiver = make(manager)
    receiver.serve("door")
    asked: list[Peer] = []
    answers: list[bool | str] = [False, "only on weekdays", True]

    def admit(peer: Peer) -> bool | str:
        asked.append(peer)
        return answers[len(asked) - 1]

    receiver.set_admission(admit)
    with answering(manager):
        with pytest.raises(hamlyn.Refused, match="does not let this process in"):
            connect(other, "door")
        with pytest.raises(hamlyn.Refused, match="only on weekdays"):
            connect(other, "door")
        connect(other, "door")
    assert [peer.id for peer in asked] == [other.id] * 3
    assert asked[0].uid is not None and asked[0].service == "door"


def test_a_callback_that_fails_lets_nobody_in(
    manager: Manager, other: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = hamlyn.Server(manager)
    server.serve("door")
    told: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_value))
    # Calls in the callback are refused, and do not wait for ever for a lock that its thread holds.
    uses: list[Callable[[Peer], Any]] = [
        lambda peer: 1 / 0,
        lambda peer: None,
        lambda peer: 1,
        lambda peer: manager.poll(),
        lambda peer: manager.counters(),
        lambda peer: other.links(),
        lambda peer: server.receive(),
        lambda peer: server.close(),
        lambda peer: manager.close(),
        lambda peer: server.set_admission(None),
    ]
    with answering(manager):
        for use in uses:
            server.set_admission(use)
            with pytest.raises(hamlyn.Refused, match="could not decide"):
                hamlyn.Client.connect(other, "door")
        server.set_admission(None)
        hamlyn.Client.connect(other, "door")
    assert [type(error) for error in told] == [ZeroDivisionError, TypeError, TypeError] + [
        hamlyn.Misuse
    ] * 7
    with pytest.raises(TypeError, match="function or None"):
        server.set_admission(5)  # type: ignore[arg-type]
    assert not server.closed and not manager.closed


def test_objects_that_go_away_in_a_callback_do_no_harm(manager: Manager, other: Manager) -> None:
    """The last reference to an end point may go anywhere, also in a callback."""
    server, stream = hamlyn.Server(manager), hamlyn.StreamReceiver(manager)
    server.serve("door")
    stream.serve("stream")
    with answering(manager):
        sender = hamlyn.StreamSender.connect(other, "stream")
        client = hamlyn.Client.connect(other, "door")
        sender.send(b"held")
        sender.flush()
        client.start(b"held")
        kept: list[Any] = [stream.receive(LIMIT), server.receive(LIMIT), hamlyn.Group(manager, 2, 64)]
        kept[2].serve("gone")
        kept += [memoryview(kept[0]), stream]
        del stream

        def admit(peer: Peer) -> bool:
            while kept:
                kept.pop()
            return True

        server.set_admission(admit)
        hamlyn.Client.connect(other, "door")
        assert kept == []
        # The group is withdrawn, by and by.
        gone = threading.Event()
        for _ in range(int(LIMIT * 100)):
            try:
                hamlyn.GroupMember.connect(other, "gone", 64, timeout=0.5)
            except hamlyn.Unreachable:
                break
            except hamlyn.HamlynError:
                pass
            gone.wait(0.01)
        else:
            pytest.fail("the group that went away is still served")


def test_callbacks_and_other_threads_do_not_lock_one_another_out(other: Manager) -> None:
    """A callback holds the manager's lock and wants the interpreter's; threads that use the manager
    hold the interpreter's and want the manager's."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Manager() as manager:
            server, stream = hamlyn.Server(manager), hamlyn.StreamReceiver(manager)
            server.serve("door")
            stream.serve("stream")
            asked = 0

            def admit(peer: Peer) -> bool:
                nonlocal asked
                asked += 1
                # Long enough for other threads to have their turns meanwhile.
                return sum(range(20_000)) > 0

            server.set_admission(admit)
            stream.set_admission(lambda peer: True)
            manager.start_progress()
            ends = threading.Event()
            wrong: list[BaseException] = []

            def use(look: Callable[[], object]) -> None:
                try:
                    while not ends.is_set():
                        look()
                except BaseException as e:
                    wrong.append(e)

            def record() -> None:
                try:
                    stream.receive(0.01)
                except (hamlyn.TimedOut, hamlyn.Closed):
                    pass  # The sender closes at the end.

            looks: list[Callable[[], object]] = [
                manager.poll, manager.counters, manager.links, lambda: manager.wait(0.001),
                server.try_receive, lambda: server.ready, lambda: manager.area(64).remove(),
                record, lambda: hamlyn.DatagramReceiver(manager, 64),
            ]  # fmt: skip
            threads = [threading.Thread(target=use, args=(look,)) for look in looks]
            for thread in threads:
                thread.start()
            with hamlyn.StreamSender.connect(other, "stream", LIMIT) as sender:
                for i in range(40):
                    with hamlyn.Client.connect(other, "door", LIMIT):
                        sender.send(bytes(i))
                        sender.flush()
            ends.set()
            for thread in threads:
                thread.join(LIMIT)
                assert not thread.is_alive(), "a thread waits for ever"
            assert wrong == [] and asked == 40
    finally:
        sys.setswitchinterval(before)


LEAVES = """
import sys, threading, time
import hamlyn
sys.path.insert(0, {tests!r})
manager = hamlyn.Manager()
server = hamlyn.Server(manager)
server.serve("leaving")
asked = threading.Event()
def admit(peer):
    asked.set()
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
    return "not now"
server.set_admission(admit)
manager.start_progress()
print("ready", flush=True)
asked.wait(20)
# It ends here, with a callback running in a thread of the library.
"""


def test_a_process_may_end_while_a_callback_runs(other: Manager) -> None:
    for _ in range(5):
        program = LEAVES.format(tests=str(Path(__file__).parent))
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            by = time.monotonic() + LIMIT
            # With its end a request is refused, fails or times out, as it comes.
            while process.poll() is None and time.monotonic() < by:
                with suppress(hamlyn.HamlynError):
                    hamlyn.Client.connect(other, "leaving", 1.0)
            error = process.communicate(timeout=LIMIT)[1]
            assert process.returncode == 0, error.decode()
        finally:
            process.kill()
            process.wait()


NOBODY = 65534


def grow_as_nobody(seed: bytes, name: str) -> None:
    """As a user that is not the receiver's: by seed, by name; and refused."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with tempfile.TemporaryDirectory(prefix="hamlyn-") as own:
        os.environ["HAMLYN_DIR"] = own
        with Manager() as manager:
            hamlyn.TaggedSender.grow(manager, seed, LIMIT).send(0, b"grown", 7, LIMIT)
            with hamlyn.Client.connect(manager, name, LIMIT) as client:
                assert client.call(b"who am I?", LIMIT) == b"65534"
            for closed, why in [("refused", "not you"), ("group", "")]:
                with pytest.raises(hamlyn.Refused, match=why):
                    hamlyn.Client.connect(manager, name.replace("open", closed), LIMIT)


def test_access_by_group_by_user_and_for_all(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="hamlyn-") as shared:
        os.chmod(shared, 0o1777)
        monkeypatch.setenv("HAMLYN_SHARED_DIR", shared)
        with Manager() as manager:
            with pytest.raises(ValueError, match="'same_user', 'anyone' or the number of a group"):
                manager.set_seed_access("everyone")  # type: ignore[arg-type]
            manager.set_seed_access("anyone")
            receiver, server = hamlyn.TaggedReceiver(manager, 64), hamlyn.Server(manager)
            if os.geteuid() != 0:
                # The directory for others is root's, and only root can be another user here.
                with pytest.raises(hamlyn.SystemRefused, match="shared|root|owne"):
                    receiver.seed()
                return
            refused, group = hamlyn.Server(manager), hamlyn.Server(manager)
            users = {NOBODY}
            server.set_admission(lambda peer: peer.uid in users)
            server.serve("open", access="anyone")
            refused.set_admission(lambda peer: "not you" if peer.uid in users else True)
            refused.serve("refused", access="anyone")
            # A group without members.
            group.serve("group", access=4_000_000)
            child = children.start(grow_as_nobody, bytes(receiver.seed()), "0@open")
            assert receiver.get_tag(LIMIT).tag == 7
            request = server.receive(LIMIT)
            request.reply(str(request.peer.uid).encode(), LIMIT)
            with answering(manager):
                child.join(LIMIT)
