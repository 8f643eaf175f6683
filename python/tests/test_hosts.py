"""Links to other hosts, here over loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import hamlyn
import pytest
from conftest import LIMIT


def secret(directory: str, name: str = "secret", digits: str = "7f") -> str:
    path = Path(directory) / name
    path.touch(mode=0o600)
    path.write_text(digits * 32)
    return str(path)


def test_calls_to_another_host_are_answered(directory: str) -> None:
    key = secret(directory)
    with (
        hamlyn.Manager(secret=key, listen="127.0.0.1:0") as there,
        hamlyn.Manager(secret=key, local="tls") as here,
    ):
        server = hamlyn.Server(there)
        server.serve("double")
        # A client's identity is known before it is admitted.
        asked: list[hamlyn.Peer] = []

        def admit(peer: hamlyn.Peer) -> bool:
            asked.append(peer)
            return True

        server.set_admission(admit)

        def serve() -> None:
            for _ in range(10):
                request = server.receive(LIMIT)
                request.reply(request.data * 2)

        thread = threading.Thread(target=serve)
        thread.start()
        assert here.listens_at is None and there.listens_at is not None
        client = hamlyn.Client.connect(here, f"hamlyn://{there.listens_at}/double", LIMIT)
        for length in range(10):
            data = os.urandom(length * 1000)
            assert bytes(client.call(data, timeout=LIMIT)) == data * 2
        thread.join()
        assert [(peer.identity, peer.pid) for peer in asked] == [("secret", None)]
        assert asked[0].address is not None and asked[0].address.startswith("127.0.0.1:")
        assert "host 127.0.0.1:" in repr(asked[0])


def test_a_seed_leads_to_another_host(directory: str) -> None:
    key = secret(directory)
    with (
        hamlyn.Manager(secret=key, listen="127.0.0.1:0") as there,
        hamlyn.Manager(secret=key, local="tls") as here,
    ):
        receiver = hamlyn.TaggedReceiver(there, nbytes=64)
        there.start_progress()
        assert there.listens_at is not None
        seed = receiver.seed().at_host(there.listens_at)
        sender = hamlyn.TaggedSender.grow(here, str(seed), LIMIT)
        sender.send(0, b"far", 7)
        assert receiver.get_tag(LIMIT).tag == 7
        with pytest.raises(hamlyn.Misuse, match="1 to 65535"):
            seed.at_host("x:0")


def test_a_name_that_leads_to_this_host_takes_the_ring(directory: str) -> None:
    key = secret(directory)
    with (
        hamlyn.Manager(secret=key, listen="127.0.0.1:0") as there,
        hamlyn.Manager(secret=key) as here,
    ):
        receiver = hamlyn.TaggedReceiver(there, nbytes=64)
        there.start_progress()
        assert there.listens_at is not None
        seed = receiver.seed().at_host(there.listens_at)
        with hamlyn.TaggedSender.grow(here, seed, LIMIT) as sender:
            assert "shared-memory ring" in sender.explain()
            sender.send(0, b"near", 7)
            assert receiver.get_tag(LIMIT).tag == 7


def test_why_there_is_no_link_is_told(directory: str) -> None:
    key = secret(directory)
    with hamlyn.Manager() as without, pytest.raises(hamlyn.Misuse, match="HAMLYN_SECRET"):
        without.connect("hamlyn://127.0.0.1:1/x")
    with pytest.raises(hamlyn.Misuse, match="HAMLYN_SECRET"):
        hamlyn.Manager(listen="127.0.0.1:0")
    with pytest.raises(hamlyn.SystemRefused, match="nothing-here"):
        hamlyn.Manager(secret="/nothing-here", listen="127.0.0.1:0")
    os.chmod(key, 0o640)
    with pytest.raises(hamlyn.Misuse, match="chmod 600"):
        hamlyn.Manager(secret=key, listen="127.0.0.1:0")
    os.chmod(key, 0o600)
    other = secret(directory, "other", "80")
    with (
        hamlyn.Manager(secret=key, listen="127.0.0.1:0") as there,
        hamlyn.Manager(secret=key, host_timeout_ms=3000) as here,
        hamlyn.Manager(secret=other) as stranger,
    ):
        at = f"hamlyn://{there.listens_at}"
        with pytest.raises(hamlyn.Misuse, match="host:port/service"):
            here.connect("hamlyn://x")
        with pytest.raises(hamlyn.Unreachable, match="refused"):
            here.connect("hamlyn://127.0.0.1:1/x", timeout=0.1)
        with pytest.raises(hamlyn.Unreachable, match="nobody serves"):
            here.connect(f"{at}/x", timeout=0.1)
        with pytest.raises(hamlyn.WrongSecret, match="same secret"):
            stranger.connect(f"{at}/x")


def test_a_directory_of_the_programs_own_says_where_a_service_is(directory: str) -> None:
    key = secret(directory)
    with (
        hamlyn.Manager(secret=key, listen="127.0.0.1:0") as there,
        hamlyn.Manager(secret=key, local="tls") as here,
    ):
        there.serve("far", b"")
        at = there.listens_at
        assert at is not None
        asked: list[str] = []

        def look_up(service: str, timeout: float | None) -> list[str]:
            assert timeout is not None and 0 < timeout <= LIMIT
            asked.append(service)
            # The first look finds no host; the second finds an address without a listener, and then
            # the service.
            return [] if len(asked) == 1 else ["127.0.0.1:1", at]

        here.set_directory(look_up)
        here.connect("hamlyn://far", timeout=LIMIT)
        assert asked == ["far", "far"]
        here.set_directory(None)
        with pytest.raises(hamlyn.Misuse, match="HAMLYN_DIRECTORY"):
            here.connect("hamlyn://far", timeout=LIMIT)


def test_a_directory_that_raises_or_returns_what_it_should_not_ends_the_attempt(
    directory: str,
) -> None:
    with hamlyn.Manager(secret=secret(directory)) as manager:
        with pytest.raises(TypeError, match="it is a function or None"):
            manager.set_directory(7)  # type: ignore[arg-type]

        def shut(service: str, timeout: float | None) -> list[str]:
            raise LookupError(f"{service}: the catalogue is shut")

        wrong: list[tuple[object, str]] = [
            (shut, "LookupError: far: the catalogue is shut"),
            (lambda service, timeout: "a:1", "TypeError: .*list of 'host:port'"),
            (lambda service, timeout: None, "TypeError"),
            (lambda service, timeout: [7], "TypeError: .*each is a str"),
            (lambda service, timeout: ["a"], '"a" is not host:port'),
            (lambda service: ["a:1"], "TypeError"),
        ]
        for look_up, text in wrong:
            manager.set_directory(look_up)  # type: ignore[arg-type]
            with pytest.raises(hamlyn.Unreachable, match=text):
                manager.connect("hamlyn://far", timeout=LIMIT)


def test_so_many_look_ups_that_hang_are_begun_and_no_more(directory: str) -> None:
    goes_on = threading.Event()
    entered = threading.Semaphore(0)

    def hangs(service: str, timeout: float | None) -> list[str]:
        entered.release()
        goes_on.wait()
        return []

    with hamlyn.Manager(secret=secret(directory)) as manager:
        manager.set_directory(hangs)
        try:
            for _ in range(64):
                # Each has been begun when it is given up.
                connecting = threading.Thread(target=lambda: given_up(manager))
                connecting.start()
                assert entered.acquire(timeout=LIMIT)
                connecting.join()
            with pytest.raises(hamlyn.Unreachable, match="64 look-ups have not come back"):
                manager.connect("hamlyn://far", timeout=LIMIT)
            assert not entered.acquire(blocking=False)
        finally:
            goes_on.set()


def given_up(manager: hamlyn.Manager) -> None:
    with pytest.raises((hamlyn.TimedOut, hamlyn.Unreachable)):
        manager.connect("hamlyn://far", timeout=0.05)


def test_a_slow_directory_costs_no_more_than_the_time_limit_and_no_exit(directory: str) -> None:
    program = """
import hamlyn, sys, threading
manager = hamlyn.Manager(secret=sys.argv[1])
entered = threading.Event()
def look_up(service, timeout):
    entered.set()
    threading.Event().wait()
manager.set_directory(look_up)
try:
    manager.connect("hamlyn://far", timeout=0.2)
except (hamlyn.TimedOut, hamlyn.Unreachable):
    entered.wait()
    print("told")
"""
    command = [sys.executable, "-c", program, secret(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")
