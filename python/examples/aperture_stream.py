"""A stream through an aperture: long arrays go straight into this process's memory, and are copied
out of it, because their sender can still change them. Who may send is decided by a function."""

from __future__ import annotations

import os

import hamlyn
import numpy as np
from common import second_process, when_served

COUNT = 1 << 17


def sender() -> None:
    with hamlyn.Manager() as manager:
        stream = when_served(lambda: hamlyn.ApertureStreamSender.connect(manager, "frames"))
        with stream:
            for i in range(20):
                stream.send(np.full(COUNT, i, dtype=np.float32), 30)


def main() -> None:
    with second_process(sender), hamlyn.Manager() as manager:
        frames = hamlyn.ApertureStreamReceiver(manager, 4 * 4 * COUNT)
        frames.set_admission(lambda peer: peer.uid == os.getuid() or "this user's programs only")
        frames.serve("frames")
        array = np.empty(COUNT, dtype=np.float32)
        copied = 0
        for i, record in enumerate(frames):
            # Copied first, then looked at.
            with record:
                record.copy_into(array)
                copied += isinstance(record, hamlyn.VolatileRecord)
            assert (array == i).all()
        print(f"{i + 1} arrays of {array.nbytes} bytes, {copied} through the aperture")
        print(frames.explain())


if __name__ == "__main__":
    main()
