"""The row `python` of the budgets: a message of 16 bytes there and one back, COUNT times, between
two managers of one process and one thread. The caller runs it twice, with different COUNTs, and
takes the difference, without the cost of start and end."""

import sys

import hamlyn

MESSAGE = b"sixteen bytes .."


def connected(
    there: hamlyn.Manager, here: hamlyn.Manager, name: str
) -> tuple[hamlyn.Queue, hamlyn.Ticket]:
    """A queue of one manager, and the ticket with which the other sends to it."""
    area, queue = there.area(4096), there.queue(64)
    slot = there.slot(area, queue, credit=64)
    there.serve(name, bytes(slot.ticket()))
    link = here.connect(name)
    there.wait(60)
    return queue, hamlyn.Ticket.from_bytes(link.greeting)


def main() -> None:
    with hamlyn.Manager() as there, hamlyn.Manager() as here:
        queue_there, to_there = connected(there, here, "there")
        queue_here, to_here = connected(here, there, "here")
        for _ in range(int(sys.argv[1])):
            here.send(to_there, MESSAGE)
            queue_there.receive()
            there.send(to_here, MESSAGE)
            queue_here.receive()


main()
