"""asyncio's own readers and writers, and with them existing protocols, over shared memory."""

from __future__ import annotations

import asyncio

import hamlyn
from common import own_directory, second_process
from hamlyn import aio


async def ask() -> None:
    with hamlyn.Manager() as manager:
        reader, writer = await aio.open_connection("upper", manager=manager)
        for line in ("as over a socket", "by the kernel's word on who connects"):
            writer.write(f"{line}\n".encode())
            print((await reader.readline()).decode().rstrip())
        writer.close()
        await writer.wait_closed()


def client() -> None:
    asyncio.run(ask())


async def serve(manager: hamlyn.Manager) -> None:
    done = asyncio.Event()

    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        print(f"process {writer.get_extra_info('peercred')[0]} connects")
        async for line in reader:
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        done.set()

    async with await aio.start_server(upper, "upper", manager=manager):
        await done.wait()


def main() -> None:
    with own_directory(), hamlyn.Manager() as manager, second_process(client):
        asyncio.run(serve(manager))


if __name__ == "__main__":
    main()
