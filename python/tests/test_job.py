"""The ranks of a job: one in this process, several under `hamlyn run`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import hamlyn
import pytest
from conftest import LIMIT

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    """`hamlyn run`, built beside this package; without it the test is skipped, loudly."""
    target = os.environ.get("CARGO_TARGET_DIR")
    program = Path(target or "target") / "debug" / "hamlyn"
    if not program.exists():
        if os.environ.get("HAMLYN_TEST_ALL"):
            pytest.fail(f"there is no {program}")
        pytest.skip(f"there is no {program}: jobs of several ranks are not tried")
    line = [str(program), "run", "-n", str(ranks), "--", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def test_a_job_of_one_rank_says_what_it_is() -> None:
    with hamlyn.Job(ring_bytes="64K") as job:
        assert (job.rank, job.size, job.launcher) == (0, 1, None)
        assert job.is_local(0) and "rank 0 of 1" in job.explain()
        assert repr(job) == "<hamlyn.Job rank 0 of 1>"
        with pytest.raises(hamlyn.Misuse, match="rank 1"):
            job.is_local(1)
        # The same job, if it is asked for again.
        again = hamlyn.Job()
        assert again.manager.id == job.manager.id
    assert job.closed and again.closed
    with pytest.raises(hamlyn.Closed):
        job.fence(LIMIT)
    job.close()


def test_a_job_can_be_opened_again_when_it_is_closed() -> None:
    with hamlyn.Job() as first:
        was = first.manager.id
    with hamlyn.Job() as second:
        assert second.manager.id != was and first.closed


def test_bytes_go_through_the_launcher() -> None:
    with hamlyn.Job() as job:
        job.put("x", b"four")
        job.put("none", b"")
        with pytest.raises(hamlyn.Misuse, match='"x" already'):
            job.put("x", b"five")
        with pytest.raises(hamlyn.Misuse, match="a-z A-Z"):
            job.put("a b", b"")
        with pytest.raises(hamlyn.Misuse, match="40000"):
            job.put("long", bytes(40_000))
        job.fence(LIMIT)
        assert job.get(0, "x") == b"four" and job.get(0, "none") == b""
        assert job.get(0, "y") is None
        with pytest.raises(hamlyn.Misuse, match="rank 7"):
            job.get(7, "x")


def test_streams_and_calls_between_ranks() -> None:
    with hamlyn.Job() as job:
        receiver = job.stream_from(0)
        with pytest.raises(hamlyn.Misuse, match="from-0"):
            job.stream_from(0)
        sender = job.stream_to(0, LIMIT)
        sender.send(b"hello")
        sender.flush(LIMIT)
        assert bytes(receiver.receive(LIMIT)) == b"hello"
        with pytest.raises(hamlyn.TimedOut, match="calls"):
            job.client(0, 0.5)
        server = job.server()
        client = job.client(0, LIMIT)

        def serve() -> None:
            request = server.receive(LIMIT)
            request.reply(request.data.upper())

        thread = threading.Thread(target=serve)
        thread.start()
        assert client.call(b"hello", LIMIT) == b"HELLO"
        thread.join()


def test_every_kind_is_offered_and_grown() -> None:
    with hamlyn.Job() as job:
        manager = job.manager
        tagged, datagrams = hamlyn.TaggedReceiver(manager, 64), hamlyn.DatagramReceiver(manager, 64)
        stream, server = hamlyn.StreamReceiver(manager), hamlyn.Server(manager)
        group, publisher = hamlyn.Group(manager, 1, 8), hamlyn.Publisher(manager)
        listener = hamlyn.ByteListener(manager)
        offers = [tagged.offer, datagrams.offer, stream.offer, server.offer, group.offer]
        for offer in [*offers, publisher.offer, listener.offer]:
            offer(job, "all")
            with pytest.raises(hamlyn.Misuse, match='"all"'):
                offer(job, "all")
        hamlyn.TaggedSender.grow_from(job, 0, "all", LIMIT)
        hamlyn.DatagramSender.grow_from(job, 0, "all", LIMIT)
        hamlyn.StreamSender.grow_from(job, 0, "all", LIMIT)
        hamlyn.Client.grow_from(job, 0, "all", LIMIT, outstanding=2)
        member = hamlyn.GroupMember.grow_from(job, 0, "all", 8, LIMIT)
        hamlyn.GroupHelper.grow_from(job, 0, "all", LIMIT)
        hamlyn.Subscriber.grow_from(job, 0, "all", LIMIT, depth=2)
        hamlyn.ByteStream.grow_from(job, 0, "all", LIMIT)
        member.close()
        aperture = hamlyn.ApertureStreamReceiver(manager, 65_536)
        aperture.offer(job, "aperture")
        hamlyn.ApertureStreamSender.grow_from(job, 0, "aperture", LIMIT)


def test_what_is_refused_changes_nothing() -> None:
    with hamlyn.Job() as job, hamlyn.Manager() as other:
        seed = job.seed_of(0, "stream", "seed")
        with pytest.raises(ValueError, match="one of datagram"):
            job.seed_of(0, "streams", "seed")
        with pytest.raises(hamlyn.Refused):
            hamlyn.StreamSender.grow(job.manager, seed, LIMIT)
        receiver = hamlyn.StreamReceiver(job.manager)
        receiver.offer(job, "seed")
        hamlyn.StreamSender.grow(job.manager, seed, LIMIT).close()
        with pytest.raises(hamlyn.TimedOut, match='"none"'):
            hamlyn.StreamSender.grow_from(job, 0, "none", 0.5)
        with pytest.raises(hamlyn.Misuse, match="rank 3"):
            hamlyn.StreamSender.grow_from(job, 3, "seed", LIMIT)
        with pytest.raises(hamlyn.Misuse, match="job's manager"):
            hamlyn.StreamReceiver(other).offer(job, "other")


def test_a_launcher_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMLYN_JOB_FD", "x")
    with pytest.raises(hamlyn.Misuse, match="HAMLYN_JOB_FD"):
        hamlyn.Job()


def test_a_signal_is_seen_while_ranks_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rung(Exception):
        pass

    def ring(*_: object) -> None:
        raise Rung

    own, launcher = socket.socketpair()
    # A launcher that never answers.
    for name, value in [("PMI_FD", own.fileno()), ("PMI_RANK", 0), ("PMI_SIZE", 2)]:
        monkeypatch.setenv(name, str(value))
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Rung):
            hamlyn.Job()
    finally:
        signal.signal(signal.SIGALRM, before)
        launcher.close()
        own.close()


class Launcher:
    """One that speaks PMI-1, for rank 0 of two, of which the other is a picture. It is a thread of
    this process: whoever asks it with the interpreter's lock held gets no answer."""

    SAYS = {
        "init": "response_to_init rc=0 pmi_version=1 pmi_subversion=1",
        "get_maxes": "maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
        "get_my_kvsname": "my_kvsname kvsname=k",
        "put": "put_result rc=0",
        "barrier_in": "barrier_out",
        "finalize": "finalize_ack",
    }

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own, self.ranks = socket.socketpair()
        self.heard: list[str] = []
        for name, value in [("PMI_FD", self.ranks.fileno()), ("PMI_RANK", 0), ("PMI_SIZE", 2)]:
            monkeypatch.setenv(name, str(value))
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self) -> None:
        values: dict[str, str] = {}
        for line in self.own.makefile("r"):
            words = dict(word.split("=", 1) for word in line.split())
            command, key = words["cmd"], words.get("key", "").replace("hm-1-", "hm-0-")
            self.heard.append(command)
            if command == "put":
                values[key] = words["value"]
            if command == "get":
                says = f"get_result rc=0 value={values[key]}"
            else:
                says = self.SAYS[command]
            self.own.sendall(f"cmd={says}\n".encode())


def test_the_launcher_is_asked_without_pythons_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(monkeypatch)
    job = hamlyn.Job()
    assert job.launcher == "PMI-1" and job.size == 2
    launcher.heard.clear()
    # Where the rank is the launcher is asked once.
    assert job.seed_of(1, "stream", "x") and launcher.heard == ["get"]
    assert job.seed_of(1, "stream", "y") and launcher.heard == ["get"]
    launcher.heard.clear()
    # It was not closed: when the object is gone, the launcher has the message, and has answered.
    del job
    assert launcher.heard == ["finalize"]


def test_a_forked_child_is_no_rank() -> None:
    with hamlyn.Job() as job:
        pid = os.fork()
        if pid == 0:
            try:
                job.fence(LIMIT)
            except hamlyn.Forked:
                job.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("job_all_to_all", "4 ranks, 3 rounds"),
        ("job_barrier", "4 ranks met 5 times"),
        ("job_halo", "4 ranks, 200 cells"),
    ],
)
def test_four_ranks_under_hamlyn_run(example: str, says: str) -> None:
    done = run(4, sys.executable, str(EXAMPLES / f"{example}.py"))
    assert done.returncode == 0 and says in done.stdout, done


@pytest.mark.parametrize("example", ["job_barrier", "job_halo"])
def test_ranks_of_one_job_are_of_two_languages(example: str, tmp_path: Path) -> None:
    target = os.environ.get("CARGO_TARGET_DIR")
    rust = Path(target or "target") / "debug" / "examples" / example
    if not rust.exists():
        pytest.skip(f"there is no {rust}")
    # Two of Rust, whichever ranks they are, and two of Python.
    script = 'for i in 1 2; do mkdir "$1/$i" 2>/dev/null && exec "$2"; done; exec "$3" "$4"'
    words = [str(tmp_path), str(rust), sys.executable, str(EXAMPLES / f"{example}.py")]
    done = run(4, "sh", "-c", script, "sh", *words)
    assert done.returncode == 0 and "4 ranks" in done.stdout, done
    assert len(list(tmp_path.iterdir())) == 2


LATE = """
import hamlyn
with hamlyn.Job() as job:
    assert job.launcher == "hamlyn run"
    job.put("x", bytes([job.rank]))
    if job.rank == 2:
        for rank in range(2):
            job.stream_from(rank).receive(30)
    else:
        try:
            job.fence(0.2)
        except hamlyn.TimedOut as e:
            assert "2" in str(e), e
        to = job.stream_to(2, 30)
        to.send(b"come")
        to.flush(30)
    job.fence(30)
    assert [job.get(rank, "x") for rank in range(3)] == [b"\\0", b"\\1", b"\\2"]
"""


def test_a_fence_that_timed_out_goes_on() -> None:
    done = run(3, sys.executable, "-c", LATE)
    assert done.returncode == 0, done
