"""The first message: a numpy array lands in another process's array."""

from __future__ import annotations

import hamlyn
import numpy as np
from common import second_process, when_served

COUNT = 1000


def sender() -> None:
    with hamlyn.Manager() as manager:
        link = when_served(lambda: manager.connect("hello"))
        ticket = hamlyn.Ticket.from_bytes(link.greeting)
        manager.send(ticket, np.arange(COUNT, dtype=np.float64), b"counting")


def main() -> None:
    with second_process(sender), hamlyn.Manager() as manager:
        area, queue = manager.area(8 * COUNT), manager.queue(16)
        slot = manager.slot(area, queue)
        manager.serve("hello", bytes(slot.ticket()))
        array = np.frombuffer(area, dtype=np.float64)
        message = queue.receive(30)
        about = slot.metadata().decode()
        print(f"process {message.link.peer.pid} sent {about!r}: {array[:4]} .. {array[-1]}")
        assert array.sum() == COUNT * (COUNT - 1) / 2


if __name__ == "__main__":
    main()
