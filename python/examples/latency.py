"""The latency of numpy arrays between two processes: measured, and drawn to a file.

To be read like a notebook: each `# %%` begins a cell. Run as a program it needs no display; the
picture goes to `latency.png`, in the directory that HAMLYN_EXAMPLE_OUT names or in this one.
"""

# %% What is measured
#
# An array of float64 goes to another process, straight into an array there; that process sends one
# of the same size back. Half of the time from `send` to the answer is one way. Both sides look
# without sleeping, and the array is not copied on the way but into the ring and out of it.

from __future__ import annotations

import os
import time
from pathlib import Path

import hamlyn
import numpy as np
from common import second_process, when_served

SIZES = [16, 256, 4096, 65536]
ROUNDS = 2000
MANAGER: hamlyn.Settings = {"wait_mode": "adaptive", "spin_ns": 1_000_000}

# %% The other process: what arrives goes back


def echo() -> None:
    with hamlyn.Manager(**MANAGER) as manager:
        area, queue = manager.area(max(SIZES)), manager.queue(4)
        back = manager.slot(area, queue).ticket()
        link = when_served(lambda: manager.connect("latency"))
        ticket = hamlyn.Ticket.from_bytes(link.greeting)
        manager.send(ticket, bytes(back))
        for nbytes in SIZES:
            array = np.frombuffer(area, dtype=np.float64, count=nbytes // 8)
            for _ in range(ROUNDS):
                queue.receive(30)
                manager.send(ticket, array)


# %% This one: it sends, and looks at the clock


def measure() -> dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Microseconds one way of each round, by size."""
    found = {}
    with hamlyn.Manager(**MANAGER) as manager:
        area, queue = manager.area(max(SIZES)), manager.queue(4)
        manager.serve("latency", bytes(manager.slot(area, queue).ticket()))
        queue.receive(30)
        ticket = hamlyn.Ticket.from_bytes(memoryview(area)[:44])
        for nbytes in SIZES:
            sent = np.random.default_rng(nbytes).random(nbytes // 8)
            landed = np.frombuffer(area, dtype=np.float64, count=nbytes // 8)
            times = np.empty(ROUNDS)
            for i in range(ROUNDS):
                began = time.perf_counter_ns()
                manager.send(ticket, sent)
                queue.receive(30)
                times[i] = (time.perf_counter_ns() - began) / 2000
            assert np.array_equal(landed, sent), "what came back is not what was sent"
            found[nbytes] = times
    return found


# %% The picture: how many rounds took at most so long


def draw(found: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for nbytes, times in found.items():
        share = np.arange(1, len(times) + 1) / len(times)
        axes.plot(np.sort(times), 100 * share, label=f"{nbytes} bytes")
    axes.set(xscale="log", xlabel="microseconds, one way", ylabel="% of the rounds")
    axes.set_title("numpy arrays between two processes")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=120)


# %% All of it

if __name__ == "__main__":
    with second_process(echo):
        results = measure()
    for size, row in results.items():
        low, median, high = np.percentile(row, [10, 50, 99])
        print(f"{size:6} bytes: median {median:7.2f} us, p10 {low:7.2f}, p99 {high:9.2f}")
    picture = Path(os.environ.get("HAMLYN_EXAMPLE_OUT", ".")) / "latency.png"
    draw(results, picture)
    print(f"drawn to {picture}")
