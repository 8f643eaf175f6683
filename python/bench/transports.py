"""asyncio over Hamlyn's byte streams and over a Unix socket: the same programs, in turn, each of two
processes on a processor of its own. A round trip of 16 bytes, of bare protocols and of asyncio's
streams.

    python python/bench/transports.py [--runs N] [--rounds N] [--modes blocking,adaptive] [--idle N]
        [--pause MS] [--cores 0,1] [--json]

`--idle`: connections of the same manager, or sockets, that say nothing. `--pause`: milliseconds
between round trips, so that both sides sleep; they are not counted. A row is the median of the
runs, in microseconds, and the least and the most of them. A pair waits as its mode says; the Unix
socket always sleeps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hamlyn
import hamlyn.aio

SIZE = 16
NAME = "transports"


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Ask(Echo):
    def __init__(self, rounds: int) -> None:
        self.left = rounds
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.left -= 1
        if self.left > 0:
            self.transport.write(data)
        elif not self.done.done():
            self.done.set_result(None)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            writer.write(await reader.readexactly(SIZE))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(transport: str, api: str, path: str) -> None:
    manager = hamlyn.Manager() if transport == "hamlyn" else None
    loop = asyncio.get_running_loop()
    made: Any
    match transport, api:
        case "unix", "protocol":
            made = await loop.create_unix_server(Echo, path)
        case "unix", _:
            made = await asyncio.start_unix_server(answer, path)
        case _, "protocol":
            assert manager is not None
            made = await hamlyn.aio.create_server(Echo, NAME, manager=manager)
        case _:
            assert manager is not None
            made = await hamlyn.aio.start_server(answer, NAME, manager=manager)
    print("ready", flush=True)
    # Until the other process closes this one's input.
    await asyncio.to_thread(sys.stdin.read)
    made.close()
    os._exit(0)


async def connect_protocol(
    transport: str, path: str, manager: hamlyn.Manager | None, factory: Callable[[], Ask]
) -> tuple[Any, Ask]:
    if manager is not None:
        return await hamlyn.aio.create_connection(factory, NAME, manager=manager)
    return await asyncio.get_running_loop().create_unix_connection(factory, path)


async def ask(transport: str, api: str, path: str, rounds: int, idle: int, pause: float) -> float:
    """Microseconds of a round trip."""
    manager = hamlyn.Manager() if transport == "hamlyn" else None
    warm = rounds // 10 + 1
    keep = [await connect_protocol(transport, path, manager, lambda: Ask(1)) for _ in range(idle)]
    if api == "protocol":
        elapsed = 0.0
        to, protocol = await connect_protocol(transport, path, manager, lambda: Ask(warm))
        for count in (warm, *([1] * rounds if pause else [rounds])):
            protocol.left, protocol.done = count, asyncio.get_running_loop().create_future()
            if pause:
                await asyncio.sleep(pause)
            began = time.perf_counter()
            to.write(bytes(SIZE))
            await protocol.done
            elapsed += time.perf_counter() - began if count != warm else 0.0
        to.close()
    else:
        if manager is not None:
            reader, writer = await hamlyn.aio.open_connection(NAME, manager=manager)
        else:
            reader, writer = await asyncio.open_unix_connection(path)
        data, elapsed = bytes(SIZE), 0.0
        for i in range(warm + rounds):
            if pause:
                await asyncio.sleep(pause)
            began = time.perf_counter()
            writer.write(data)
            await reader.readexactly(SIZE)
            elapsed += time.perf_counter() - began if i >= warm else 0.0
        writer.close()
    for to, _ in keep:
        to.close()
    await asyncio.sleep(0)
    return elapsed / rounds * 1e6


def run(transport: str, api: str, options: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory(prefix="hamlyn-") as directory:
        path = str(Path(directory) / "socket")
        os.environ["HAMLYN_DIR"] = directory
        words = [sys.executable, __file__, "--serve", f"{transport},{api},{path}"]
        with subprocess.Popen(
            [*words, "--cores", options.cores], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as server:
            assert server.stdin is not None and server.stdout is not None
            server.stdout.readline()
            pause = options.pause / 1000
            asking = ask(transport, api, path, options.rounds, options.idle, pause)
            try:
                return asyncio.run(asking)
            finally:
                server.stdin.close()
                server.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures asyncio over byte streams.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--modes", default="blocking,adaptive")
    parser.add_argument("--idle", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    near, far = map(int, options.cores.split(","))
    if options.serve:
        os.sched_setaffinity(0, {far})
        asyncio.run(serve(*options.serve.split(",")))
        return
    os.sched_setaffinity(0, {near})
    for mode in options.modes.split(","):
        os.environ["HAMLYN_WAIT_MODE"] = mode
        for api in ("protocol", "streams"):
            runs: dict[str, list[float]] = {"hamlyn": [], "unix": []}
            for _ in range(options.runs):
                for transport, found in runs.items():
                    found.append(run(transport, api, options))
            row: dict[str, Any] = {"test": "asyncio", "api": api, "mode": mode, "size": SIZE}
            for transport, found in runs.items():
                row[transport] = statistics.median(found)
                row[f"{transport}_spread"] = [min(found), max(found)]
            row["ratio"] = row["hamlyn"] / row["unix"]
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            spread = [f"{a:.0f} to {b:.0f}" for a, b in (row["hamlyn_spread"], row["unix_spread"])]
            print(
                f"{api:9} {mode:9} {SIZE} bytes there and back: {row['hamlyn']:6.1f} us ({spread[0]}),"
                f" Unix socket {row['unix']:6.1f} us ({spread[1]}): {row['ratio']:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
