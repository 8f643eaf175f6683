"""All to all: each rank of a job sends a block to each, and checks what it gets.

Run it as `hamlyn run -n 4 -- python job_all_to_all.py`, or under `mpirun`, `srun`, `mpiexec`; on its own
it is a job of one rank.
"""

from __future__ import annotations

import hamlyn
import numpy as np

LIMIT = 30.0
COUNT, ROUNDS = 2000, 3


def block(source: int, target: int, turn: int) -> np.ndarray:
    return np.arange(COUNT, dtype=np.int64) * (31 * source + 7 * target + 3 * turn + 1)


def main() -> None:
    with hamlyn.Job() as job:
        me, ranks = job.rank, range(job.size)
        receivers = [job.stream_from(rank) for rank in ranks]
        senders = [job.stream_to(rank, LIMIT) for rank in ranks]
        for turn in range(ROUNDS):
            for target, sender in enumerate(senders):
                sender.send(block(me, target, turn), LIMIT)
                sender.flush(LIMIT)
            for source, receiver in enumerate(receivers):
                with receiver.receive(LIMIT) as record:
                    got = np.frombuffer(bytes(record), dtype=np.int64)
                if not np.array_equal(got, block(source, me, turn)):
                    raise SystemExit(f"rank {me}: wrong bytes from rank {source}")
        # What another has not received yet would end with this process.
        job.fence(LIMIT)
        if me == 0:
            print(job.explain())
            print(f"{job.size} ranks, {ROUNDS} rounds: every block is what it should be")


if __name__ == "__main__":
    main()
