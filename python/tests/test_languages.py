"""Messages between Python and every other language, in each direction, over each protocol.

capi/tests/languages tests C with Rust; this file tests all pairs with Python. `HAMLYN_PEERS` names
more peers, one to a line or separated by semicolons.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from peer import SIDES

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PYTHON = [sys.executable, str(Path(__file__).parent / "peer.py")]


def built(*names: str) -> Path | None:
    """The newest of cargo's artifacts with one of these names."""
    found = [TARGET / profile / name for profile in ("debug", "release") for name in names]
    there = [path for path in found if path.exists()]
    return max(there, key=lambda path: path.stat().st_mtime, default=None)


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str] | str]:
    """The command of each other peer, or the reason for its absence."""
    found: dict[str, list[str] | str] = {}
    rust = built("examples/rust_peer")
    found["Rust"] = [str(rust)] if rust else "cargo build -p hamlyn-capi --examples"
    library, compiler = built("libhamlyn_c.so"), shutil.which("cc")
    if library and compiler:
        work = tmp_path_factory.mktemp("c")
        # The names that the linker, and then the program, look for.
        for name in ("libhamlyn.so", "libhamlyn.so.0"):
            (work / name).symlink_to(library)
        program = work / "peer"
        command = f"{compiler} -o {program} {ROOT}/capi/tests/peer.c -I{ROOT}/capi/include"
        subprocess.run(
            [*command.split(), f"-L{work}", f"-Wl,-rpath,{work}", "-lhamlyn"], check=True
        )
        found["C"] = [str(program)]
    else:
        found["C"] = "cargo build -p hamlyn-capi, and a C compiler"
    for named in os.environ.get("HAMLYN_PEERS", "").replace(";", "\n").splitlines():
        if words := named.split():
            found[named.strip()] = words
    return found


def converse(receive: list[str], send: list[str], protocol: str) -> None:
    receiving = subprocess.Popen(
        [*receive, "recv", protocol, "conversation"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert receiving.stdout and receiving.stderr
    try:
        said = receiving.stdout.readline()
        if said != "ready\n":
            pytest.fail(f"the receiver said {said!r}: {receiving.communicate(timeout=60)[1]}")
        sent = subprocess.run(
            [*send, "send", protocol, "conversation"], stderr=subprocess.PIPE, text=True, timeout=70
        )
        assert sent.returncode == 0, sent.stderr
        error = receiving.communicate(timeout=70)[1]
        assert receiving.returncode == 0, error
    finally:
        receiving.kill()
        receiving.wait()


@pytest.mark.parametrize("protocol", SIDES)
def test_python_understands_itself(protocol: str) -> None:
    converse(PYTHON, PYTHON, protocol)


@pytest.mark.parametrize("language", ["Rust", "C"])
@pytest.mark.parametrize("protocol", SIDES)
@pytest.mark.parametrize("python", ["receives", "sends"])
def test_python_and_another_language(
    others: dict[str, list[str] | str], language: str, protocol: str, python: str
) -> None:
    other = others[language]
    if isinstance(other, str):
        # `make test` builds them; a developer who runs these tests by hand need not.
        missing = f"NOT TESTED: {language} is not built ({other})"
        if os.environ.get("HAMLYN_TEST_ALL"):
            pytest.fail(missing)
        pytest.skip(missing)
    if python == "receives":
        converse(PYTHON, other, protocol)
    else:
        converse(other, PYTHON, protocol)


def test_python_and_the_peers_that_are_named(others: dict[str, list[str] | str]) -> None:
    for name, command in others.items():
        if name in ("Rust", "C") or isinstance(command, str):
            continue
        for protocol in SIDES:
            converse(PYTHON, command, protocol)
            converse(command, PYTHON, protocol)
