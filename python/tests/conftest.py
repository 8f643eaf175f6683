"""A private directory for each test, managers that are closed, and second processes."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hamlyn
import pytest

LIMIT = 20.0
"""Seconds after which a test that waits has failed. Nothing is asserted about how long it takes."""


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # Short: the name of a socket has some hundred bytes.
    with tempfile.TemporaryDirectory(prefix="hamlyn-") as path:
        os.chmod(path, 0o700)
        monkeypatch.setenv("HAMLYN_DIR", path)
        # Small apertures, too, which are full soon.
        monkeypatch.setenv("HAMLYN_APERTURE_STREAM_BYTES_MIN", "1")
        yield path


@pytest.fixture
def manager() -> Iterator[hamlyn.Manager]:
    with hamlyn.Manager() as manager:
        yield manager


@pytest.fixture
def other() -> Iterator[hamlyn.Manager]:
    """A second manager in the same process: a peer like any other."""
    with hamlyn.Manager() as manager:
        yield manager


def names_of_threads() -> set[str]:
    """The threads of this process: the library's by the kernel's names, Python's by their own."""
    names = {thread.name for thread in threading.enumerate()}
    for comm in Path("/proc/self/task").glob("*/comm"):
        try:
            names.add(comm.read_text().strip())
        except OSError:
            pass  # It has ended meanwhile.
    return names


class Children:
    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.all: list[Any] = []

    def start(self, function: Callable[..., None], *arguments: object) -> Any:
        """Calls a function of a test module in a new process."""
        process = self.context.Process(target=function, args=arguments)
        process.start()
        self.all.append(process)
        return process

    def join(self) -> None:
        for process in self.all:
            process.join(LIMIT)
            assert process.exitcode == 0, f"a second process ended with {process.exitcode}"


@pytest.fixture
def children() -> Iterator[Children]:
    """Second processes, which must all end well."""
    children = Children()
    try:
        yield children
        children.join()
    finally:
        for process in children.all:
            if process.is_alive():
                process.kill()
            process.join()
