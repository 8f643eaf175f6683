"""Figures of one run, as rows of JSON: the round trip of 16 bytes between two processes, both
polling, and the bandwidth of a 64 MiB array between them, through the ring and through an aperture,
beside that of `numpy.copyto`.

    python python/bench/bench.py [--runs N] [--rounds N] [--mib N]

A figure means nothing without the other things that run and where the cores are; so each row holds
the spread, and the copy is measured right before and after each transfer.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from typing import Any

import hamlyn
import numpy as np

LIMIT = 60.0
SPAWN = multiprocessing.get_context("spawn")


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


def answer(core: int, rounds: int) -> None:
    """The second process of the round trips."""
    pin(core)
    with hamlyn.Manager(wait_mode="polled") as manager:
        area, queue = manager.area(64), manager.queue(4)
        slot = manager.slot(area, queue)
        to = hamlyn.Ticket.from_bytes(connect(manager, "round").greeting)
        manager.send(to, bytes(slot.ticket()))
        data = bytes(16)
        for _ in range(rounds):
            queue.receive()
            manager.send(to, data)


def round_trips(rounds: int) -> list[int]:
    """Nanoseconds of each."""
    with hamlyn.Manager(wait_mode="polled") as manager:
        area, queue = manager.area(64), manager.queue(4)
        manager.serve("round", bytes(manager.slot(area, queue).ticket()))
        process = SPAWN.Process(target=answer, args=(second_core(), rounds))
        process.start()
        queue.receive(LIMIT)
        to = hamlyn.Ticket.from_bytes(memoryview(area)[:44])
        data, clock, times = bytes(16), time.perf_counter_ns, []
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


def row(what: str, unit: str, values: list[float], **more: Any) -> None:
    values = sorted(values)

    def at(share: float) -> float:
        return values[min(len(values) - 1, int(len(values) * share))]

    found = {"what": what, "unit": unit, "median": round(statistics.median(values), 3)}
    found |= {"least": round(values[0], 3), "most": round(values[-1], 3)}
    found |= {"p10": round(at(0.1), 3), "p90": round(at(0.9), 3), "count": len(values)}
    found |= more | {"kernel": platform.release(), "python": platform.python_version()}
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    pin(CORES[0])
    with tempfile.TemporaryDirectory(prefix="hamlyn-") as directory:
        os.chmod(directory, 0o700)
        os.environ["HAMLYN_DIR"] = directory
        for run in range(options.runs):
            times = round_trips(options.rounds)
            # The first ones find cold caches.
            row("round trip, 16 bytes", "ns", [float(t) for t in times[len(times) // 10 :]], run=run)
            ring, aperture, copy = transfers(options.mib << 20, 10)
            row(f"{options.mib} MiB array, numpy.copyto", "GB/s", copy[1:], run=run)
            for name, rates in [("ring", ring), ("aperture", aperture)]:
                row(f"{options.mib} MiB array, {name}", "GB/s", rates[1:], run=run)
                # Of the medians, and of the best of each: where other things run, these differ.
                share = statistics.median(rates[1:]) / statistics.median(copy[1:])
                best = max(rates[1:]) / max(copy[1:])
                row(f"{name}, share of numpy.copyto", "", [share], best=round(best, 3), run=run)


if __name__ == "__main__":
    main()
