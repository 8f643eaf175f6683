"""Operations of `hamlyn.aio` that wait on threads of their own: they do not delay other tasks, keep
their order, and end with their task."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hamlyn
import pytest
from conftest import LIMIT, names_of_threads
from hamlyn import _threads, aio

WAITING = 40
"""More than the event loop's own executor has threads."""
LONG = bytes(30_000)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        # Tasks of the loop's executor stand still, and are awaited at the end.
        asyncio.get_running_loop().set_default_executor(busy := ThreadPoolExecutor(1))
        go_on = threading.Event()
        busy.submit(go_on.wait, 2 * LIMIT)
        try:
            await asyncio.wait_for(main, LIMIT)
        finally:
            go_on.set()

    asyncio.run(limited())


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def connects(manager: hamlyn.Manager, name: str) -> list[Coroutine[Any, Any, Any]]:
    """Every way to connect."""
    again = aio.ReconnectingClient(manager, name, hamlyn.ReconnectPolicy(attempt_limit=LIMIT))
    return [
        aio.Client.connect(manager, name, None),
        aio.StreamSender.connect(manager, name, None),
        aio.Subscriber.connect(manager, name, None),
        aio.ReconnectingClient.connect(manager, name, None),
        aio.Manager(manager).connect(name, None, None),
        aio.open_connection(name, manager=manager, timeout=None),
        again.call(b"nobody answers"),
    ]


def test_connects_to_absent_names_hold_up_nobody(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("there")
    listener = hamlyn.ByteListener(manager)
    listener.serve("bytes")
    manager.start_progress()

    async def main() -> None:
        absent = [
            asyncio.create_task(connect)
            for i in range(WAITING // 7 + 1)
            for connect in connects(other, f"absent{i}")
        ]
        await asyncio.sleep(0.05)
        for _ in range(3):
            async with await aio.Client.connect(other, "there", LIMIT):
                _, writer = await aio.open_connection("bytes", manager=other, timeout=LIMIT)
                writer.close()
        # Their own limits hold as well.
        with pytest.raises((hamlyn.TimedOut, hamlyn.Unreachable)):
            await aio.Client.connect(other, "absent", 0.02)
        assert not any(task.done() for task in absent)
        for task in absent:
            await ended(task)
        # The threads come back, though nothing else has ended their waits.
        library = {"hamlyn-work", "hamlyn-connect"}
        while _threads.alone.is_busy or library & names_of_threads():
            await asyncio.sleep(0.01)

    run(main())


def test_of_more_connects_than_there_may_be_threads_each_holds_its_limit(
    monkeypatch: pytest.MonkeyPatch, other: hamlyn.Manager
) -> None:
    monkeypatch.setattr(_threads.alone, "_most", 2)

    async def main() -> None:
        first = [asyncio.create_task(aio.Client.connect(other, "absent", None)) for _ in range(2)]
        await asyncio.sleep(0.02)
        with pytest.raises(hamlyn.TimedOut, match="others wait for theirs"):
            await aio.Client.connect(other, "absent", 0.05)
        cancelled = asyncio.create_task(aio.Client.connect(other, "absent", None))
        await asyncio.sleep(0.02)
        await ended(cancelled)
        for task in first:
            await ended(task)

    # No thread of another test's is idle.
    while _threads.alone._count:
        threading.Event().wait(0.02)
    run(main())


INTERRUPTED = """
import asyncio, os, signal, sys, threading
import hamlyn
from hamlyn import aio

async def connects(manager, other):
    await aio.Client.connect(other, "absent", None)

async def sends(manager, other):
    receiver = hamlyn.StreamReceiver(manager)
    receiver.serve("stream")
    async with await aio.StreamSender.connect(other, "stream") as sender:
        while True:
            await sender.send(bytes(30_000))

async def requests(manager, other):
    server = hamlyn.Server(manager)
    server.serve("server")
    async with await aio.Client.connect(other, "server") as client:
        await client.call(bytes(1_000_000))

async def drains(manager, other):
    server = hamlyn.Server(manager)
    server.serve("server")
    async with await aio.Client.connect(other, "server") as client:
        call = await client.start(b"never answered")
        while not server.ready:
            await asyncio.sleep(0.01)
        await aio.Server(server).drain(None)

async def replies(manager, other):
    server = hamlyn.Server(manager)
    server.serve("server")
    async with await aio.Client.connect(other, "server") as client:
        call = await client.start(b"to be answered")
        await aio.reply(await aio.Server(server).receive(), bytes(1_000_000), None)

async def interrupted(what, manager, other):
    asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGINT)
    await what(manager, other)

manager, other = hamlyn.Manager(), hamlyn.Manager()
manager.start_progress()
try:
    asyncio.run(interrupted(globals()[sys.argv[1]], manager, other))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("what", ["connects", "sends", "requests", "drains", "replies"])
def test_an_interrupted_program_ends_though_a_thread_waits_without_a_limit(what: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_receiver_that_takes_nothing_holds_up_no_other(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    stuck = [hamlyn.StreamReceiver(manager, buffers_max=8) for _ in range(WAITING)]
    receiver = hamlyn.StreamReceiver(manager)
    manager.start_progress()

    async def fill(sender: aio.StreamSender) -> None:
        while True:
            await sender.send(LONG)

    async def main() -> None:
        senders = [hamlyn.StreamSender.grow(other, stream.seed()) for stream in stuck]
        filling = [asyncio.create_task(fill(aio.StreamSender(sender))) for sender in senders]
        good = aio.StreamSender(hamlyn.StreamSender.grow(other, receiver.seed()))
        for _ in range(20):
            sending = asyncio.create_task(good.send(LONG, LIMIT))
            assert bytes(await aio.StreamReceiver(receiver).receive(LIMIT)) == LONG
            await sending
        await good.close(LIMIT)
        for task in filling:
            await ended(task)

    run(main())


def test_a_cancelled_send_is_whole_or_nothing_and_what_follows_comes_after_it(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    receiver = hamlyn.StreamReceiver(manager, buffers_max=8)
    manager.start_progress()
    cancelled, sent = set[int](), list[int]()

    async def main() -> None:
        sender = aio.StreamSender(hamlyn.StreamSender.grow(other, receiver.seed()))
        record = bytearray(60_000)
        numbers = itertools.count()
        while len(cancelled) < 5:
            number = next(numbers)
            record[:] = bytes([number]) * len(record)
            try:
                await asyncio.wait_for(sender.send(record), 0.02)
            except TimeoutError:
                cancelled.add(number)
            sent.append(number)
        # From now on there is room, and the next ones are short, too.
        for number in itertools.islice(numbers, 10):
            sent.append(number)
            sending = asyncio.create_task(sender.send(bytes([number]) * (60_000 if number % 2 else 10)))
            await asyncio.sleep(0)
            if number % 3 == 0:
                cancelled.add(number)
                sending.cancel()
            while not sending.done():
                try:
                    take(await aio.StreamReceiver(receiver).receive(0.01))
                except hamlyn.TimedOut:
                    pass
        closing = asyncio.create_task(sender.close(LIMIT))
        async for last in aio.StreamReceiver(receiver):
            take(last)
        await closing

    taken: list[int] = []

    def take(record: hamlyn.Record) -> None:
        with record:
            data = bytes(record)
        assert data == data[:1] * len(data) and len(data) in (10, 60_000)
        taken.append(data[0])

    run(main())
    assert taken == sorted(set(taken)), "out of order, or twice"
    assert set(sent) - cancelled <= set(taken) <= set(sent)


def test_a_forked_child_has_threads_of_its_own(other: hamlyn.Manager) -> None:
    async def main() -> None:
        waits = asyncio.create_task(aio.Client.connect(other, "absent", None))
        await asyncio.sleep(0.02)
        child = os.fork()
        if child == 0:
            # As one that has left the parent's loop behind.
            asyncio._set_running_loop(None)
            os._exit(in_child())
        _, status = await asyncio.get_running_loop().run_in_executor(
            ThreadPoolExecutor(1), os.waitpid, child, 0
        )
        assert os.waitstatus_to_exitcode(status) == 0
        await ended(waits)

    def in_child() -> int:
        async def connect() -> None:
            with hamlyn.Manager() as manager:
                with pytest.raises((hamlyn.TimedOut, hamlyn.Unreachable)):
                    await aio.Client.connect(manager, "absent", 0.02)

        loop = asyncio.new_event_loop()
        signal.alarm(int(LIMIT))
        loop.run_until_complete(connect())
        return 0 if not _threads.alone.is_busy else 1

    run(main())


INTERRUPTED_CALLS = """
import os, signal, sys, threading
import hamlyn

manager, other = hamlyn.Manager(), hamlyn.Manager()
manager.start_progress()
server = hamlyn.Server(manager)
server.serve("server")
client = hamlyn.Client.connect(other, "server")
call = client.start(b"to be answered")
request = server.receive()
calls = {
    "drain": lambda: server.drain(None),
    "reply": lambda: request.reply(bytes(1_000_000), None),
}
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    calls[sys.argv[1]]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
other.close()
manager.close()
"""


@pytest.mark.parametrize("what", ["drain", "reply"])
def test_ctrl_c_ends_what_a_server_waits_for_without_a_limit(what: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_CALLS, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_client_that_takes_no_errors_holds_up_no_other(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = aio.Server(hamlyn.Server(manager))
    server.serve("fails")
    manager.start_progress()

    async def main() -> None:
        with hamlyn.Manager() as takes_nothing:
            stuck = await aio.Client.connect(takes_nothing, "fails", LIMIT)
            waiting = list[asyncio.Task[None]]()

            async def fail_next() -> None:
                request = await server.receive(LIMIT)
                waiting.append(asyncio.create_task(aio.fail(request, 1, "x" * 1000, LIMIT)))
                await asyncio.sleep(0)

            # Until the way to it is full.
            calls = list[hamlyn.Call]()
            while not any(not task.done() for task in waiting):
                for _ in range(stuck.sync.outstanding_max - len(calls)):
                    calls.append(stuck.sync.start(b"never taken"))
                    await fail_next()
                calls.clear()
            async with await aio.Client.connect(other, "fails", LIMIT) as good:
                calling = asyncio.create_task(good.call(b"taken", LIMIT))
                await fail_next()
                with pytest.raises(hamlyn.ApplicationError):
                    await calling
            assert not all(task.done() for task in waiting)
        await asyncio.gather(*waiting, return_exceptions=True)

    run(main())
