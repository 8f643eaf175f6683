"""Events of links, as records of the logger `hamlyn`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import hamlyn
import pytest
from conftest import LIMIT


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO, "hamlyn")
    hamlyn.log_events()
    yield caplog
    hamlyn.log_events(False)


def wait_for(records: pytest.LogCaptureFixture, kind: str) -> logging.LogRecord:
    end = time.monotonic() + LIMIT
    while True:
        for record in records.records:
            if record.name == "hamlyn" and getattr(record, "hamlyn_kind", None) == kind:
                return record
        assert time.monotonic() < end, [record.getMessage() for record in records.records]
        time.sleep(0.001)


def test_links_that_come_and_go_are_records_with_who_and_why(
    records: pytest.LogCaptureFixture, manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    manager.serve("logged", b"")
    link = other.connect("logged")
    record = wait_for(records, "connected")
    assert record.levelno == logging.INFO and record.threadName == "hamlyn-log"
    assert getattr(record, "hamlyn_process") == os.getpid()
    assert getattr(record, "hamlyn_user") == os.geteuid()
    assert getattr(record, "hamlyn_service") == "logged"
    link.close()
    wait_for(records, "closed")


def test_who_could_not_connect_is_told_why(
    records: pytest.LogCaptureFixture, other: hamlyn.Manager
) -> None:
    with pytest.raises(hamlyn.HamlynError):
        other.connect("nobody", timeout=0.01)
    record = wait_for(records, "failed")
    assert record.levelno == logging.WARNING and "nobody" in record.getMessage()


def test_when_it_is_off_nothing_is_told(
    caplog: pytest.LogCaptureFixture, manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    caplog.set_level(logging.INFO, "hamlyn")
    hamlyn.log_events()
    hamlyn.log_events()
    hamlyn.log_events(False)
    hamlyn.log_events(False)
    manager.serve("silent", b"")
    other.connect("silent").close()
    assert not [record for record in caplog.records if record.name == "hamlyn"]


def test_an_interpreter_that_logs_ends_as_any_other() -> None:
    program = (
        "import hamlyn, logging\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "hamlyn.log_events()\n"
        "manager = hamlyn.Manager()\n"
        "manager.serve('ending', b'')\n"
        "hamlyn.Manager().connect('ending')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=LIMIT, capture_output=True)
    assert ended.returncode == 0, ended.stderr
