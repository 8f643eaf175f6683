"""A barrier of a job's ranks by group receive: rank 0 is told once when all others have come, and lets
them go on. Behind each barrier every rank tells which step it has come to.

Run it as `hamlyn run -n 4 -- python job_barrier.py`, or under `mpirun`, `srun`, `mpiexec`.
"""

from __future__ import annotations

import hamlyn

LIMIT = 30.0
STEPS = 5


def root(job: hamlyn.Job) -> None:
    group = hamlyn.Group(job.manager, job.size - 1, 4)
    group.offer(job, "barrier")
    for step in range(STEPS):
        group.barrier(LIMIT)
        # Each says which step it has come to, with the next message of the group.
        for member, part in enumerate(group.gather(LIMIT)):
            if bytes(part) != step.to_bytes(4, "little"):
                raise SystemExit(f"member {member} was not at step {step}")
            del part
        group.next_round()
    job.fence(LIMIT)
    print(f"{job.size} ranks met {STEPS} times")


def other(job: hamlyn.Job) -> None:
    member = hamlyn.GroupMember.grow_from(job, 0, "barrier", 4, LIMIT)
    for step in range(STEPS):
        member.barrier(LIMIT)
        member.send(step.to_bytes(4, "little"), LIMIT)
    job.fence(LIMIT)


def main() -> None:
    with hamlyn.Job() as job:
        if job.size == 1:
            print("one rank has nobody to wait for; hamlyn run -n 4 starts four")
        elif job.rank == 0:
            root(job)
        else:
            other(job)


if __name__ == "__main__":
    main()
