"""An aperture: another process writes an array into memory that it was lent, and says so."""

from __future__ import annotations

import hamlyn
import numpy as np
from common import own_directory, second_process, when_served

COUNT = 1 << 18


def next_event(manager: hamlyn.Manager, what: str) -> hamlyn.ApertureChanged:
    while True:
        event = manager.next_event()
        if isinstance(event, hamlyn.ApertureChanged):
            assert event.what == what, event
            return event
        if event is None:
            manager.wait(30)


def holder() -> None:
    with hamlyn.Manager() as manager:
        link = when_served(lambda: manager.connect("aperture"))
        aperture = link.aperture(next_event(manager, "held").number)
        aperture.write(0, np.arange(COUNT, dtype=np.float64))
        # Data and notification are separate: the message says that the data is there.
        manager.send(hamlyn.Ticket.from_bytes(link.greeting), b"written")
        next_event(manager, "revoked")


def main() -> None:
    with own_directory(), hamlyn.Manager() as manager:
        area, queue = manager.area(64), manager.queue(4)
        manager.serve("aperture", bytes(manager.slot(area, queue).ticket()))
        with second_process(holder):
            while not isinstance(event := manager.next_event(), hamlyn.Connected):
                manager.wait(30)
            aperture = event.link.export(8 * COUNT)
            link = queue.receive(30).link
            print(link.explain())
            # Taken back, its bytes stand still, and are a message area.
            array = np.frombuffer(aperture.reclaim(), dtype=np.float64)
            assert array.sum() == COUNT * (COUNT - 1) / 2
            print(f"{array.nbytes} bytes without a ring in between")


if __name__ == "__main__":
    main()
