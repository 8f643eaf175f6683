"""What the examples need: a directory of their own for names, and a second process."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import hamlyn

T = TypeVar("T")


@contextmanager
def own_directory() -> Iterator[None]:
    """A directory for names, so that examples do not meet what else runs here."""
    if "HAMLYN_EXAMPLE_DIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="hamlyn-") as directory:
        os.chmod(directory, 0o700)
        os.environ["HAMLYN_DIR"] = os.environ["HAMLYN_EXAMPLE_DIR"] = directory
        yield
        del os.environ["HAMLYN_EXAMPLE_DIR"]


@contextmanager
def second_process(function: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Runs `function` in another process while the block lasts. Programs that are started
    separately need none of this."""
    with own_directory():
        process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
        process.start()
        try:
            yield
            process.join(60)
            if process.exitcode != 0:
                raise SystemExit(f"the second process ended with {process.exitcode}")
        finally:
            process.kill()
            process.join()


def when_served(connect: Callable[[], T]) -> T:
    """Calls `connect` until somebody serves the name: the two processes start together."""
    end = time.monotonic() + 20
    while True:
        try:
            return connect()
        except hamlyn.Unreachable:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
