"""Clients that connect again, and calls whose servers know when the caller gives up."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT
from hamlyn import aio

Answer = Callable[[hamlyn.Request], None]
SOON = hamlyn.ReconnectPolicy(first_delay=0.001, delay_max=0.01)


def serve(*answers: Answer) -> threading.Thread:
    """Servers of one name after another, a manager each: each takes one request, and is gone when it
    has answered."""

    def run() -> None:
        for answer in answers:
            with hamlyn.Manager() as manager:
                server = hamlyn.Server(manager)
                server.serve("again")
                answer(server.receive(LIMIT))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def reply(text: bytes) -> Answer:
    return lambda request: request.reply(text)


def die(request: hamlyn.Request) -> None:
    """It has taken the request, and its manager is closed before anything becomes of that."""
    taken.append(request)


taken: list[hamlyn.Request] = []


def test_calls_go_on_with_the_next_server(other: hamlyn.Manager) -> None:
    servers = serve(reply(b"first"), reply(b"second"), reply(b"third"))
    with hamlyn.ReconnectingClient.connect(other, "again", LIMIT, policy=SOON) as client:
        # Whether a sent request was carried out is unknown, but an idempotent one may be sent
        # again.
        answers = [client.call(b"who", LIMIT, is_idempotent=True) for _ in range(3)]
        assert answers == [b"first", b"second", b"third"]
        assert client.connections == 3 and "connection 3" in repr(client)
        servers.join()
    with pytest.raises(hamlyn.Closed, match="is closed"):
        client.call(b"who", LIMIT)


def test_a_request_that_a_server_may_have_is_sent_again_only_if_that_does_no_harm(
    other: hamlyn.Manager,
) -> None:
    servers = serve(die, reply(b"next"), die, reply(b"last"))
    client = hamlyn.ReconnectingClient(other, "again", SOON)
    with pytest.raises(hamlyn.Closed):
        client.call(b"once", LIMIT)
    assert client.call_within(b"then", LIMIT, is_idempotent=True) == b"next"
    assert client.call(b"twice", LIMIT, is_idempotent=True) == b"last"
    servers.join()


def test_a_request_that_a_draining_server_did_not_take_is_the_next_ones(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("again")
    manager.start_progress()
    client = hamlyn.ReconnectingClient.connect(other, "again", LIMIT, policy=SOON)
    pending = hamlyn.Client.connect(other, "again").start(b"keeps it draining")
    held = server.receive(LIMIT)
    draining = threading.Thread(target=server.drain, args=(LIMIT,))
    draining.start()
    with pytest.raises(hamlyn.Draining):
        server.receive(LIMIT)
    servers = serve(reply(b"the next"))
    assert client.call(b"who", LIMIT) == b"the next"
    servers.join()
    held.reply(b"done")
    assert pending.finish(LIMIT) == b"done"
    draining.join()


def test_an_outage_that_one_thread_waits_through_holds_up_no_other(other: hamlyn.Manager) -> None:
    has_both = threading.Event()
    may_go = threading.Event()

    def die_with_two() -> None:
        with hamlyn.Manager() as manager:
            server = hamlyn.Server(manager)
            server.serve("again")
            requests = [server.receive(LIMIT) for _ in range(2)]
            has_both.set()
            assert may_go.wait(LIMIT)
            taken.extend(requests)

    dying = threading.Thread(target=die_with_two)
    dying.start()
    # The outage does not end within this test.
    policy = hamlyn.ReconnectPolicy(first_delay=10 * LIMIT, delay_max=10 * LIMIT)
    client = hamlyn.ReconnectingClient.connect(other, "again", LIMIT, policy=policy)

    def failure(timeout: float | None, is_idempotent: bool) -> type[Exception]:
        with pytest.raises(hamlyn.HamlynError) as raised:
            client.call(b"who", timeout, is_idempotent=is_idempotent)
        return raised.type

    with ThreadPoolExecutor() as threads:
        once, again = threads.submit(failure, None, False), threads.submit(failure, 5.0, True)
        assert has_both.wait(LIMIT)
        may_go.set()
        assert once.result(LIMIT) is hamlyn.Closed
        assert again.result(LIMIT) is hamlyn.TimedOut
        # Closing ends a wait without a limit.
        waiting = threads.submit(failure, None, True)
        assert failure(0.05, True) is hamlyn.TimedOut
        client.close()
        assert waiting.result(LIMIT) is hamlyn.Closed
    assert client.connections == 1 and "closed" in repr(client)
    dying.join()


def test_calls_that_do_not_wait_raise_at_once_and_their_attempt_goes_on(
    other: hamlyn.Manager,
) -> None:
    policy = hamlyn.ReconnectPolicy(first_delay=0.001, delay_max=0.01, calls_wait=False)
    client = hamlyn.ReconnectingClient(other, "again", policy)
    with pytest.raises(hamlyn.Unreachable, match="the request was not sent"):
        client.call(b"who")
    servers = serve(die, reply(b"second"))
    answer = None
    while answer is None:
        # The first server takes a request, and is gone.
        with contextlib.suppress(hamlyn.Unreachable, hamlyn.Closed):
            answer = client.call(b"who", LIMIT)
    assert answer == b"second" and client.connections == 2
    servers.join()

    async def main() -> None:
        async with aio.ReconnectingClient(other, "again", policy) as client:
            with pytest.raises(hamlyn.Unreachable, match="the request was not sent"):
                await client.call(b"who")

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_task_that_waits_for_a_connection_hears_of_it_and_of_the_end_of_attempts(
    other: hamlyn.Manager,
) -> None:
    few = hamlyn.ReconnectPolicy(first_delay=0.001, attempt_limit=0.01, attempts_max=2)
    # Its outage ends while nothing arrives.
    short = hamlyn.ReconnectPolicy(first_delay=LIMIT, attempt_limit=0.01, outage_max=0.1)

    async def main() -> None:
        # No time limit wakes these tasks.
        for policy in (few, short):
            async with aio.ReconnectingClient(other, "nobody-serves-this", policy) as client:
                with pytest.raises(hamlyn.Unreachable, match="no more attempts"):
                    await client.call(b"who")
        patient = hamlyn.ReconnectPolicy(first_delay=0.001, attempt_limit=0.2)
        async with aio.ReconnectingClient(other, "again", patient) as client:
            calling = asyncio.create_task(client.call(b"who"))
            # Not before an attempt has failed.
            while "cannot be reached" not in repr(client):
                await asyncio.sleep(0)
            servers = serve(reply(b"first"))
            assert await calling == b"first"
            servers.join()
        # Nor does closing leave one waiting.
        client = aio.ReconnectingClient(other, "again", SOON)
        calling = asyncio.create_task(client.call(b"who"))
        await asyncio.sleep(0)
        client.close()
        with pytest.raises(hamlyn.Closed):
            await calling

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_long_requests_and_replies_go_through_outages(other: hamlyn.Manager) -> None:
    long = bytes(300_000)

    def echo(request: hamlyn.Request) -> None:
        request.reply(request.data)

    servers = serve(die, echo, die, echo)
    with hamlyn.ReconnectingClient(other, "again", SOON) as client:
        assert client.call(long, LIMIT, is_idempotent=True) == long

    async def main() -> None:
        async with aio.ReconnectingClient(other, "again", SOON) as client:
            assert await client.call_within(long, LIMIT, is_idempotent=True) == long

    asyncio.run(asyncio.wait_for(main(), LIMIT))
    servers.join()


@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_a_time_limit_that_never_comes_is_none(other: hamlyn.Manager, timeout: float) -> None:
    servers = serve(reply(b"first"), reply(b"second"))
    with hamlyn.ReconnectingClient(other, "again", SOON) as client:
        assert client.call(b"who", timeout) == b"first"

    async def main() -> None:
        async with aio.ReconnectingClient(other, "again", SOON) as client:
            assert await client.call(b"who", timeout) == b"second"

    asyncio.run(asyncio.wait_for(main(), LIMIT))
    servers.join()


def test_whoever_gives_up_says_why_and_stays_so(other: hamlyn.Manager) -> None:
    policy = hamlyn.ReconnectPolicy(first_delay=0.001, attempt_limit=0.01, attempts_max=2)
    client = hamlyn.ReconnectingClient(other, "nobody-serves-this", policy)
    for _ in range(2):
        with pytest.raises(hamlyn.Unreachable, match="no more attempts: .*nobody-serves-this"):
            client.call(b"who", LIMIT)
    assert "given up" in repr(client)
    patient = hamlyn.ReconnectingClient(other, "nobody-serves-this", SOON)
    with pytest.raises(hamlyn.TimedOut, match="none came within the time limit"):
        patient.call(b"who", 0.05)
    with pytest.raises(hamlyn.Misuse, match="factor"):
        hamlyn.ReconnectPolicy(factor=0.5)
    with pytest.raises(hamlyn.Misuse):
        hamlyn.ReconnectingClient(other, "no/name").call(b"who", LIMIT)


def test_tasks_go_on_with_the_next_server(other: hamlyn.Manager) -> None:
    servers = serve(die, reply(b"second"), die, reply(b"fourth"))

    async def main() -> None:
        connecting = aio.ReconnectingClient.connect(other, "again", LIMIT, policy=SOON)
        async with await connecting as client:
            with pytest.raises(hamlyn.Closed):
                await client.call(b"once", LIMIT)
            assert await client.call(b"who", LIMIT, is_idempotent=True) == b"second"
            assert await client.call_within(b"who", LIMIT, is_idempotent=True) == b"fourth"
            assert client.connections == 4
            servers.join()
            ask = functools.partial(client.call, b"nobody is left", 0.05, is_idempotent=True)
            with pytest.raises(hamlyn.TimedOut, match="none came within"):
                await asyncio.gather(*(ask() for _ in range(3)))
        with pytest.raises(hamlyn.Closed):
            await client.call(b"who", LIMIT)

    asyncio.run(main())


def echo_array(request: hamlyn.Request) -> None:
    request.reply_array(request.array() + 1)


def test_arrays_are_asked_for_through_outages(other: hamlyn.Manager) -> None:
    servers = serve(die, echo_array, die, echo_array)
    with hamlyn.ReconnectingClient(other, "again", SOON) as client:
        assert list(client.call_array(np.arange(3), LIMIT, is_idempotent=True)) == [1, 2, 3]

    async def main() -> None:
        async with aio.ReconnectingClient(other, "again", SOON) as client:
            assert list(await client.call_array(np.arange(2), LIMIT, is_idempotent=True)) == [1, 2]

    asyncio.run(main())
    servers.join()


def test_the_handler_is_told_when_its_caller_gives_up(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()
    client = hamlyn.Client.connect(other, "calls")
    call = client.start_within(b"within", LIMIT)
    request = server.receive(LIMIT)
    left = request.time_left
    assert left is not None and 0 < left <= LIMIT and not request.is_cancelled()
    request.reply(b"in time")
    assert call.finish(LIMIT) == b"in time"
    with pytest.raises(hamlyn.Misuse, match="already"):
        request.is_cancelled()
    # Longer than the bytes sent at once.
    long = bytes(100_000)
    calling = threading.Thread(target=lambda: assert_timed_out(client, long))
    calling.start()
    request = server.receive(LIMIT)
    calling.join()
    assert len(request.data) == len(long) and request.is_cancelled()
    # One that says nothing of a limit, and is let go of.
    call = client.start(b"let go")
    request = server.receive(LIMIT)
    assert request.time_left is None and not request.is_cancelled()
    del call
    assert any(request.is_cancelled() for _ in itertools.repeat(None, 100_000))
    # A client whose manager is closed waits for no reply.
    client.start(b"gone")
    request = server.receive(LIMIT)
    client.close()
    assert any(request.is_cancelled() for _ in itertools.repeat(None, 100_000))


def assert_timed_out(client: hamlyn.Client, request: bytes) -> None:
    with pytest.raises(hamlyn.TimedOut):
        client.call_within(request, 1)


def test_of_a_task_that_is_cancelled_the_handler_is_told(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("calls")
    manager.start_progress()

    async def main() -> None:
        client = await aio.Client.connect(other, "calls")
        calling = asyncio.create_task(client.call_within(b"nobody waits", LIMIT))
        request = await aio.Server(server).receive(LIMIT)
        assert not request.is_cancelled() and request.time_left is not None
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        while not request.is_cancelled():
            await asyncio.sleep(0)

    asyncio.run(main())
