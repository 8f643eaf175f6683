"""Figures of Hamlyn for Python: the round trip of 16, 64 and 256 bytes between two processes, both
polling, and the bandwidth of a 64 MiB array between them, through the ring and through an aperture, beside that
of `numpy.copyto`.

    python python/bench/bench.py [--json] [--runs N] [--rounds N] [--mib N]

With `--json` it prints rows like those of `bench/results`, first one that says on which machine: the
median of the runs, their spread, and the raw cache line's time, as the command `hamlyn` measures it
(`make build`) before and after each run. A run during which the line moved by more than a quarter
is thrown away and made again, up to three times for each that is kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import hamlyn
import numpy as np

LIMIT = 60.0
SPAWN = multiprocessing.get_context("spawn")
ROOT = Path(__file__).parents[2]
REPEATS_MAX = 3
# Of round trips; all stand beside the first.
SIZES = (16, 64, 256)

T = TypeVar("T")


CORES = sorted(os.sched_getaffinity(0))


def pin(core: int) -> None:
    os.sched_setaffinity(0, {core})


def second_core() -> int:
    return CORES[1 % len(CORES)]


def connect(manager: hamlyn.Manager, name: str) -> hamlyn.Link:
    end = time.monotonic() + LIMIT
    while True:
        try:
            return manager.connect(name)
        except hamlyn.Unreachable:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def answer(core: int, rounds: int, size: int) -> None:
    """The second process of the round trips."""
    pin(core)
    with hamlyn.Manager(wait_mode="polled") as manager:
        area, queue = manager.area(size), manager.queue(4)
        slot = manager.slot(area, queue)
        to = hamlyn.Ticket.from_bytes(connect(manager, "round").greeting)
        manager.send(to, bytes(slot.ticket()))
        data = bytes(size)
        for _ in range(rounds):
            queue.receive()
            manager.send(to, data)


def round_trips(rounds: int, size: int) -> list[int]:
    """Nanoseconds of each."""
    with hamlyn.Manager(wait_mode="polled") as manager:
        area, queue = manager.area(max(size, 64)), manager.queue(4)
        manager.serve("round", bytes(manager.slot(area, queue).ticket()))
        process = SPAWN.Process(target=answer, args=(second_core(), rounds, size))
        process.start()
        queue.receive(LIMIT)
        to = hamlyn.Ticket.from_bytes(memoryview(area)[:44])
        data, clock, times = bytes(size), time.perf_counter_ns, []
        send, receive = manager.send, queue.receive
        for _ in range(rounds):
            begin = clock()
            send(to, data)
            receive()
            times.append(clock() - begin)
        process.join(LIMIT)
        return times


def take(core: int, nbytes: int, transfers: int) -> None:
    """The second process of the transfers: the receiver."""
    pin(core)
    with hamlyn.Manager(wait_mode="polled", aperture_link_bytes_max=nbytes) as manager:
        area, queue = manager.area(nbytes), manager.queue(4)
        slot = manager.slot(area, queue)
        link = connect(manager, "bulk")
        to = hamlyn.Ticket.from_bytes(link.greeting)
        np.frombuffer(area, dtype=np.uint8)[:] = 1  # The pages are there before the first one.
        aperture = link.export(nbytes)
        while True:
            event = manager.next_event()
            if isinstance(event, hamlyn.ApertureChanged):
                assert event.what == "ready", event
                break
        aperture.write(0, np.ones(nbytes, dtype=np.uint8))
        manager.send(to, bytes(slot.ticket()), aperture.number.to_bytes(4, "little"))
        for _ in range(2 * transfers):
            queue.receive()
            manager.send(to, b"")


def transfers(nbytes: int, count: int) -> tuple[list[float], list[float], list[float]]:
    """GB/s of each transfer, until the receiver has said that it has been told; through the ring
    into an area, through an aperture; and of a copy of as many bytes right after them."""
    with hamlyn.Manager(wait_mode="polled") as manager:
        area, queue = manager.area(64), manager.queue(4)
        slot = manager.slot(area, queue)
        manager.serve("bulk", bytes(slot.ticket()))
        process = SPAWN.Process(target=take, args=(second_core(), nbytes, count))
        process.start()
        link = queue.receive(LIMIT).link
        to = hamlyn.Ticket.from_bytes(memoryview(area)[:44])
        aperture = link.aperture(int.from_bytes(slot.metadata(), "little"))
        source = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
        target = np.ones(nbytes, dtype=np.uint8)
        rings, apertures, copies = [], [], []
        for _ in range(count):
            began = time.perf_counter_ns()
            manager.send(to, source)
            queue.receive()
            rings.append(nbytes / (time.perf_counter_ns() - began))
            began = time.perf_counter_ns()
            aperture.write(0, source)
            manager.send(to, b"")
            queue.receive()
            apertures.append(nbytes / (time.perf_counter_ns() - began))
            began = time.perf_counter_ns()
            np.copyto(target, source)
            copies.append(nbytes / (time.perf_counter_ns() - began))
        process.join(LIMIT)
        return rings, apertures, copies


def command() -> str:
    """The command `hamlyn`, which measures the raw line."""
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "hamlyn"
    found = str(built) if built.exists() else shutil.which("hamlyn")
    if found is None:
        raise SystemExit(f"there is no {built}: `make build` makes it; it measures the raw line")
    return found


def raw_line(hamlyn_command: str) -> float:
    """The raw cache line's time one way, in nanoseconds, between the cores that are measured."""
    cores = {CORES[0], second_core()}
    words = "perf latency --size 16 --count 500 --runs 1 --json"
    said = subprocess.run(
        [hamlyn_command, *words.split()],
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        stdout=subprocess.PIPE,
        check=True,
        timeout=LIMIT,
    )
    return float(json.loads(said.stdout.splitlines()[-1])["raw_line_one_way_ns"])


def agree(a: float, b: float) -> bool:
    """Whether two raw lines differ by at most a quarter of the shorter one: runs beside them
    compare. As tools/src/perf/placement.rs has it."""
    return abs(a - b) <= min(a, b) / 4


def commonest_line(lines: list[float]) -> float:
    """The raw line with which most of these agree, the shortest of several."""
    return max(sorted(lines), key=lambda line: sum(agree(line, other) for other in lines))


def placement(ns: float) -> str:
    """A word for the raw line, which decides nothing: tools/src/perf/placement.rs."""
    if ns < 46:
        return "shared"
    return "near" if ns <= 66 else "far" if ns > 200 else "other"


def runs_of(measure: Callable[[], T], wanted: int) -> tuple[list[T], dict[str, Any]]:
    """What each run found, and what a row says about all of them."""
    hamlyn_command = command()
    kept: list[T] = []
    lines: list[float] = []
    repeats = 0
    steady = True
    while len(kept) < wanted:
        before = raw_line(hamlyn_command)
        found = measure()
        after = raw_line(hamlyn_command)
        moved = not agree(before, after)
        if moved and repeats < REPEATS_MAX * wanted:
            repeats += 1
            continue
        steady = steady and not moved
        kept.append(found)
        lines.append((before + after) / 2)
    # Runs compare whose raw lines agree: those count that agree with the line of most.
    common = commonest_line(lines)
    kept = [found for found, its in zip(kept, lines) if agree(common, its)]
    line = statistics.median(its for its in lines if agree(common, its))
    about = {"raw_line_one_way_ns": line, "placement": placement(line), "runs": len(kept)}
    return kept, about | {"repeats": repeats, "steady": steady}


def output_of(*words: str) -> str:
    try:
        return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    except OSError:
        return ""


def machine() -> dict[str, Any]:
    """As the first row of each file in bench/results, and Python's and numpy's versions."""
    text = Path("/proc/cpuinfo").read_text()

    def field(name: str) -> str:
        found = re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE)
        return found[1] if found else "unknown"

    cores = f"{len(CORES)} cores"
    return {
        "machine": f"{field('model name')}, family {field('cpu family')}, {cores}",
        "kernel": platform.release(),
        "compiler": output_of("rustc", "--version"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": output_of("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows."""

    def round_trip(size: int) -> dict[str, float]:
        times = round_trips(options.rounds, size)
        # The first ones find cold caches.
        times = sorted(times[len(times) // 10 :])
        return {
            name: times[min(len(times) - 1, int(len(times) * share))]
            for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
        }

    def bandwidths() -> list[float]:
        return [statistics.median(rates[1:]) * 1e9 for rates in transfers(nbytes, 10)]

    polled = {"mode": "polled", "links": 0}
    trips, about = runs_of(lambda: [round_trip(size) for size in SIZES], options.runs)
    rows: list[dict[str, Any]] = []
    for i, size in enumerate(SIZES):
        found = [run[i] for run in trips]
        middle = {name: statistics.median(run[name] for run in found) for name in found[0]}
        spread = [min(run["p50"] for run in found), max(run["p50"] for run in found)]
        head: dict[str, Any] = {"test": "round-trip", "protocol": "python", "size": size} | polled
        rows.append(head | {"round_trip_ns": middle} | about | {"spread": spread})
        if i > 0:
            short = rows[0]["round_trip_ns"]["p50"]
            rows[i] |= {"beside_bytes": SIZES[0], "beside": short}
            rows[i] |= {"of_beside": middle["p50"] / short}
    nbytes = options.mib << 20
    rates, about = runs_of(bandwidths, options.runs)
    for i, protocol in enumerate(("python-ring", "python-aperture", "numpy-copyto")):
        these = [run[i] for run in rates]
        # Each beside the copies that were made between its transfers.
        shares = [run[i] / run[2] for run in rates]
        head = {"test": "bandwidth", "protocol": protocol, "size": nbytes} | polled
        figures = {"bytes_per_s": statistics.median(these), "of_memcpy": statistics.median(shares)}
        rows.append(head | figures | about | {"spread": [min(these), max(these)]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures Hamlyn for Python.")
    parser.add_argument("--json", action="store_true", help="rows like those of bench/results")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    pin(CORES[0])
    with tempfile.TemporaryDirectory(prefix="hamlyn-") as directory:
        os.chmod(directory, 0o700)
        os.environ["HAMLYN_DIR"] = directory
        rows = measured(options)
    if options.json:
        for row in [machine(), *rows]:
            print(json.dumps(row), flush=True)
        return
    for row in rows:
        if "round_trip_ns" in row:
            figure = f"{row['round_trip_ns']['p50']:.0f} ns, p99 {row['round_trip_ns']['p99']:.0f}"
            if "of_beside" in row:
                figure += f", {row['of_beside']:.2f} of {row['beside_bytes']} bytes"
        else:
            share = f"{row['of_memcpy']:.2f} of numpy.copyto"
            figure = f"{row['bytes_per_s'] / 1e9:.1f} GB/s, {share}"
        where = f"raw line {row['raw_line_one_way_ns']:.0f} ns, {row['placement']}"
        print(f"{row['protocol']:16} {row['test']:11} {row['size']:9} bytes: {figure}; {where}")


if __name__ == "__main__":
    main()
