"""Programs whose limits, descriptors and processes are unusual: no call ends them by a signal, waits for
ever, or touches what they have made since."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMIT_S = 60.0


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FILE_SIZE = """
import resource, signal, hamlyn
# As a program has it that embeds Python.
signal.signal(signal.SIGXFSZ, DISPOSITION)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
with hamlyn.Manager() as here, hamlyn.Manager() as there:
    there.serve("x", b"")
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        here.connect("x", timeout=20)
        raise SystemExit("it has connected")
    except hamlyn.SystemRefused as error:
        assert "RLIMIT_FSIZE" in str(error), error
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
"""


@pytest.mark.parametrize("disposition", ["SIG_DFL", "SIG_IGN"])
def test_a_limit_on_the_size_of_files_is_an_error_that_names_it(disposition: str) -> None:
    run(FILE_SIZE.replace("DISPOSITION", f"signal.{disposition}"))


LIMITED = """
import os, resource, hamlyn
if os.getuid() == 0:
    # Root is above some of them.
    os.chown(os.environ["HAMLYN_DIR"], 65534, 65534)
    os.setuid(65534)
limit = resource.RLIMIT_NAME
bytes_now = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(limit, (MOST, resource.getrlimit(limit)[1]))
try:
    with hamlyn.Manager(mlock=True) as here, hamlyn.Manager() as there:
        here.area(1 << 20)
        there.serve("x", b"")
        here.connect("x", timeout=20)
except hamlyn.HamlynError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("NOFILE", "3"),
        ("NOFILE", "10"),
        ("NPROC", "0"),
        ("AS", "bytes_now + (2 << 20)"),
        ("DATA", "1 << 20"),
        ("MEMLOCK", "0"),
        ("STACK", "256 << 10"),
    ],
)
def test_no_limit_ends_the_process_and_an_error_names_it(name: str, most: str) -> None:
    said = run(LIMITED.replace("NAME", name).replace("MOST", most))
    assert said == "" or f"RLIMIT_{name}" in said


FORKED = """
import os, hamlyn
manager = hamlyn.Manager()
receiver = hamlyn.StreamReceiver(manager)
receiver.serve("x")
child = os.fork()
if child == 0:
    os.closerange(3, 64)
    files = []
    while not files or files[-1] < 63:
        files.append(os.open("/dev/null", os.O_RDONLY))
    manager.close()
    del receiver, manager
    import gc
    gc.collect()
    for file in files:
        os.fstat(file)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
manager.start_progress()
with hamlyn.Manager() as other:
    sender = hamlyn.StreamSender.connect(other, "x", 20)
    sender.send(b"it lives", timeout=20)
    sender.flush(timeout=20)
    assert bytes(receiver.receive(timeout=20)) == b"it lives"
"""


def test_a_forked_child_that_drops_its_parents_manager_closes_nothing_of_its_own() -> None:
    run(FORKED)


LOST = """
import os, hamlyn
manager = hamlyn.Manager()
manager.serve("x")
null = os.open("/dev/null", os.O_RDWR)
for number in range(3, 64):
    if number != null:
        os.dup2(null, number)
manager.close(timeout=1)
os._exit(0)
"""


def test_a_manager_is_closed_in_time_whose_descriptors_the_program_has_replaced() -> None:
    run(LOST)
