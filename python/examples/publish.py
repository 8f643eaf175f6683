"""Frames for whoever subscribes: computed where subscribers read them, copied once by each."""

from __future__ import annotations

import time

import hamlyn
import numpy as np
from common import own_directory, second_process

SHAPE = (480, 640, 3)


def subscriber(name: str) -> None:
    with hamlyn.Manager() as manager:
        frames = 0
        # One that is slow would miss the oldest; `sample.missed` says how many.
        for sample in hamlyn.Subscriber.connect(manager, name):
            with sample:
                frame = sample.array()
            assert frame.shape == SHAPE and (frame == frame[0, 0, 0]).all()
            frames += 1
        print(f"a subscriber got {frames} frames")


def main() -> None:
    with own_directory(), hamlyn.Manager() as manager:
        publisher = hamlyn.Publisher(manager, sample_nbytes_max=1 << 20, backlog=100)
        publisher.serve("frames")
        # It takes requests to subscribe while this program does something else.
        manager.start_progress()
        with second_process(subscriber, "frames"):
            while not any(state.is_served for state in publisher.subscribers):
                time.sleep(0.01)
            for i in range(100):
                frame = publisher.loan_array(np.uint8, SHAPE)
                frame.array()[:] = i
                frame.publish()
            # The memory goes with the publisher.
            publisher.drain(30)
            print(f"{publisher.published} published, {publisher.dropped} missed")
            publisher.close()


if __name__ == "__main__":
    main()
