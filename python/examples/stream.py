"""A stream of arrays, in order, each read where it arrived."""

from __future__ import annotations

import hamlyn
import numpy as np
from common import own_directory, second_process


def sender(seed: str) -> None:
    # A seed is text or bytes: here it came as an argument.
    with hamlyn.Manager() as manager, hamlyn.StreamSender.grow(manager, seed) as stream:
        for i in range(100):
            stream.send(np.full(i + 1, i, dtype=np.float32))


def main() -> None:
    with own_directory(), hamlyn.Manager() as manager:
        stream = hamlyn.StreamReceiver(manager)
        with second_process(sender, str(stream.seed())):
            total = 0
            for record in stream:
                array = np.frombuffer(record, dtype=np.float32)
                assert len(array) == array[0] + 1
                total += len(array)
            print(f"{total} numbers in 100 records; {stream.explain()}")


if __name__ == "__main__":
    main()
