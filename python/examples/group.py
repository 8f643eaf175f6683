"""A group: three processes compute a part each, and the root has them all at once."""

from __future__ import annotations

import hamlyn
import numpy as np
from common import own_directory, second_process

MEMBERS, COUNT = 3, 1000


def member(seed: bytes) -> None:
    with hamlyn.Manager() as manager:
        member = hamlyn.GroupMember.grow(manager, seed, 8 * COUNT)
        share = np.frombuffer(member.receive(30), dtype=np.float64)
        member.send(np.sqrt(share), 30)
        member.barrier(30)


def main() -> None:
    with own_directory(), hamlyn.Manager() as manager:
        group = hamlyn.Group(manager, MEMBERS, 8 * COUNT)
        numbers = np.arange(MEMBERS * COUNT, dtype=np.float64)
        seed = bytes(group.seed())
        with second_process(member, seed), second_process(member, seed):
            with second_process(member, seed):
                group.scatter(np.split(numbers, MEMBERS), 30)
                parts = [np.frombuffer(part, dtype=np.float64) for part in group.gather(30)]
                assert np.allclose(np.concatenate(parts) ** 2, numbers)
                print(f"{MEMBERS} parts, the sum of the roots is {sum(p.sum() for p in parts):.1f}")
                del parts
                group.barrier(30)


if __name__ == "__main__":
    main()
