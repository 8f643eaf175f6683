"""Links to other hosts, here over loopback."""

from __future__ import annotations

import os
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
        hamlyn.Manager(secret=key) as here,
    ):
        server = hamlyn.Server(there)
        server.serve("double")

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


def test_a_seed_leads_to_another_host(directory: str) -> None:
    key = secret(directory)
    with (
        hamlyn.Manager(secret=key, listen="127.0.0.1:0") as there,
        hamlyn.Manager(secret=key) as here,
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
        with pytest.raises(hamlyn.Refused, match="same secret"):
            stranger.connect(f"{at}/x")
