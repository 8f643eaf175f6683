"""Datagrams that want an answer, and tagged writes; both awaited in one event loop."""

from __future__ import annotations

import asyncio

import hamlyn
import numpy as np
from common import second_process, when_served
from hamlyn import aio


def other() -> None:
    with hamlyn.Manager() as manager:
        answers = hamlyn.DatagramReceiver(manager, 64)
        datagrams = when_served(lambda: hamlyn.DatagramSender.connect(manager, "sums"))
        tags = when_served(lambda: hamlyn.TaggedSender.connect(manager, "tags"))
        for i in range(5):
            datagrams.send(np.arange(10 * i), reply=answers.reply_ticket())
            total = int.from_bytes(answers.receive(30), "little")
            answers.make_ready()
            tags.send(8 * i, total.to_bytes(8, "little"), i)


async def serve(manager: hamlyn.Manager) -> None:
    datagrams = aio.DatagramReceiver(hamlyn.DatagramReceiver(manager, 4096))
    tags = aio.TaggedReceiver(hamlyn.TaggedReceiver(manager, 64))
    datagrams.serve("sums")
    tags.serve("tags")

    async def answer() -> None:
        for _ in range(5):
            datagram = await datagrams.receive(30)
            total = int(np.frombuffer(datagram, dtype=np.int64).sum())
            datagram.reply(total.to_bytes(8, "little"), 30)
            datagrams.sync.make_ready()

    async def listen() -> None:
        for _ in range(5):
            tag = (await tags.get_tag(30)).tag
            total = int.from_bytes(tags.sync.read(8 * tag, 8), "little")
            print(f"the sum of {10 * tag} numbers is {total}")

    await asyncio.gather(answer(), listen())


def main() -> None:
    with second_process(other), hamlyn.Manager() as manager:
        asyncio.run(serve(manager))


if __name__ == "__main__":
    main()
