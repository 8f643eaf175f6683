"""Halo exchange: a ring of cells, shared out to the ranks of a job, in which heat spreads. In each step
a rank gives the cell at each of its edges to its neighbour there. The result is that of one process
that has all cells.

Run it as `hamlyn run -n 4 -- python job_halo.py`, or under `mpirun`, `srun`, `mpiexec`.
"""

from __future__ import annotations

import hamlyn
import numpy as np

LIMIT = 30.0
CELLS, STEPS = 200, 50


def first() -> np.ndarray:
    cells = np.arange(CELLS, dtype=np.int64)
    cells[::7] = 1 << 40
    return cells


def step(cells: np.ndarray, before: int, behind: int) -> np.ndarray:
    """Whole numbers, so that the order does not matter."""
    around = np.concatenate(([before], cells, [behind]))
    after: np.ndarray = (around[:-2] + 2 * cells + around[2:]) // 4
    return after


def expected() -> np.ndarray:
    """All cells in one process."""
    cells = first()
    for _ in range(STEPS):
        cells = step(cells, cells[-1], cells[0])
    return cells


def give(to: hamlyn.StreamSender, cell: int) -> None:
    to.send(int(cell).to_bytes(8, "little"), LIMIT)
    to.flush(LIMIT)


def take(source: hamlyn.StreamReceiver) -> int:
    with source.receive(LIMIT) as record:
        return int.from_bytes(bytes(record), "little")


def main() -> None:
    with hamlyn.Job() as job:
        rank, size = job.rank, job.size
        begin, end = rank * CELLS // size, (rank + 1) * CELLS // size
        cells = first()[begin:end]
        # Of two ranks each is the other's neighbour on both sides: what goes left and what goes right
        # have names of their own.
        left, right = (rank - 1) % size, (rank + 1) % size
        from_left = hamlyn.StreamReceiver(job.manager)
        from_right = hamlyn.StreamReceiver(job.manager)
        from_left.offer(job, "from-left")
        from_right.offer(job, "from-right")
        to_left = hamlyn.StreamSender.grow_from(job, left, "from-right", LIMIT)
        to_right = hamlyn.StreamSender.grow_from(job, right, "from-left", LIMIT)
        for _ in range(STEPS):
            give(to_left, cells[0])
            give(to_right, cells[-1])
            cells = step(cells, take(from_left), take(from_right))
        if not np.array_equal(cells, expected()[begin:end]):
            raise SystemExit(f"rank {rank}: not what one process computes")
        job.fence(LIMIT)
        if rank == 0:
            print(f"{size} ranks, {CELLS} cells, {STEPS} steps: as one process computes it")


if __name__ == "__main__":
    main()
