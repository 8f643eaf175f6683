"""asyncio: many tasks, one manager; cancelling; more than one loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT, Children
from hamlyn import aio
from hamlyn._threads import Threads


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(main, LIMIT)

    asyncio.run(limited())


def slots(
    manager: hamlyn.Manager, count: int, entries: int = 256
) -> tuple[list[aio.Queue], list[hamlyn.Slot]]:
    area = manager.area(4096)
    queues = [manager.queue(entries) for _ in range(count)]
    made = [
        manager.slot(area, queue, start=i * 8, stop=i * 8 + 8, entries=1, credit=entries)
        for i, queue in enumerate(queues)
    ]
    manager.serve("service", b"".join(bytes(slot.ticket()) for slot in made))
    return [aio.Queue(queue) for queue in queues], made


def tickets(link: hamlyn.Link) -> list[hamlyn.Ticket]:
    raw = link.greeting
    return [hamlyn.Ticket.from_bytes(raw[i : i + 44]) for i in range(0, len(raw), 44)]


def send_slowly(rounds: int) -> None:
    import time

    with hamlyn.Manager() as manager:
        to = tickets(manager.connect("service"))
        for n in range(rounds):
            for ticket in to:
                manager.send(ticket, n.to_bytes(8, "little"))
            if n % 10 == 0:
                time.sleep(0.005)


def test_many_tasks_wait_on_one_manager(manager: hamlyn.Manager, children: Children) -> None:
    queues, _ = slots(manager, 8)
    children.start(send_slowly, 100)

    async def take(queue: aio.Queue) -> None:
        for _ in range(100):
            await queue.receive()

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        await asyncio.gather(*map(take, queues))
        ticking.cancel()
        assert ticks > 5, "the loop stood still"

    run(main())
    assert manager.counters()["notifications"] == 800


def test_a_message_that_another_call_took_wakes_its_task(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    queues, _ = slots(manager, 2)
    to = tickets(other.connect("service"))

    async def main() -> None:
        waiting = asyncio.create_task(queues[0].receive())
        for _ in range(3):
            await asyncio.sleep(0.01)
        other.send(to[0], b"for task")
        # A call for the other queue takes the message from the link before the loop can see it.
        assert queues[1].sync.try_receive() is None
        await waiting

    run(main())


def test_a_thread_and_a_loop_wait_on_one_manager(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    queues, _ = slots(manager, 2)
    to = tickets(other.connect("service"))
    taken = 0

    def take() -> None:
        nonlocal taken
        for _ in range(50):
            queues[1].sync.receive(LIMIT)
            taken += 1

    async def main() -> None:
        thread = threading.Thread(target=take)
        thread.start()
        for _ in range(50):
            receiving = asyncio.create_task(queues[0].receive())
            await asyncio.sleep(0.002)
            other.send(to[0], b"for loop")
            other.send(to[1], b"for both")
            await receiving
        await asyncio.to_thread(thread.join, LIMIT)

    run(main())
    assert taken == 50


def test_two_loops_wait_on_one_manager(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    queues, _ = slots(manager, 2)
    to = tickets(other.connect("service"))
    failed: list[BaseException] = []

    async def take(queue: aio.Queue) -> None:
        for _ in range(50):
            await queue.receive()

    def loop(queue: aio.Queue) -> None:
        try:
            run(take(queue))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=loop, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for _ in range(50):
        for ticket in to:
            other.send(ticket, b"for both")
        threading.Event().wait(0.001)
    for thread in threads:
        thread.join(LIMIT)
    assert not failed


def test_a_cancelled_task_has_taken_nothing(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    queues, _ = slots(manager, 1)
    to = tickets(other.connect("service"))

    async def main() -> None:
        for _ in range(100):
            receiving = asyncio.create_task(queues[0].receive())
            await asyncio.sleep(0)
            other.send(to[0], b"to stay ")
            receiving.cancel()
            try:
                await receiving
            except asyncio.CancelledError:
                await queues[0].receive()
        assert queues[0].sync.try_receive() is None

    run(main())
    assert manager.counters()["notifications"] == 100


def test_a_time_limit(manager: hamlyn.Manager) -> None:
    queue = aio.Queue(manager.queue(1))

    async def main() -> None:
        for timeout in [0, 0.02]:
            with pytest.raises(hamlyn.TimedOut):
                await queue.receive(timeout)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await queue.receive()
        assert await aio.Manager(manager).wait(0.01) is False

    run(main())


def test_events_are_awaited(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    slots(manager, 1)

    async def main() -> None:
        async with aio.Manager(other) as connecting:
            awaited = asyncio.create_task(aio.Manager(manager).next_event())
            link = await connecting.connect("service")
            assert isinstance(await awaited, hamlyn.Connected)
            await connecting.send(tickets(link)[0], b"to wake.")
            assert await aio.Manager(manager).wait()
        closed = await aio.Manager(manager).next_event()
        assert isinstance(closed, hamlyn.LinkClosed)

    run(main())


def test_an_event_that_nobody_takes_does_not_keep_the_loop_busy(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    queues, _ = slots(manager, 1)
    other.connect("service")

    async def main() -> None:
        with pytest.raises(hamlyn.TimedOut):
            await queues[0].receive(0.2)

    before = manager.counters()
    run(main())
    assert isinstance(manager.next_event(), hamlyn.Connected)
    assert before["notifications"] == 0


def test_closing_ends_what_is_awaited(manager: hamlyn.Manager) -> None:
    queue = aio.Queue(manager.queue(1))

    async def main() -> None:
        receiving = asyncio.create_task(queue.receive())
        await asyncio.sleep(0.01)
        manager.close()
        with pytest.raises(hamlyn.Closed):
            await receiving

    run(main())


def test_it_is_a_closed_object_from_the_start(manager: hamlyn.Manager) -> None:
    queue = aio.Queue(manager.queue(1))
    manager.close()

    async def main() -> None:
        with pytest.raises(hamlyn.Closed):
            await queue.receive()

    run(main())
    assert repr(queue).startswith("<hamlyn.aio of <hamlyn.Queue")


def echo(calls: int) -> None:
    async def main() -> None:
        async with aio.Manager(hamlyn.Manager()) as manager:
            server = aio.Server(hamlyn.Server(manager.sync))
            server.sync.serve("echo")
            for _ in range(calls):
                request = await server.receive()
                request.reply(request.data[::-1])
            assert await server.drain(LIMIT) == 0

    run(main())


def test_whatever_connects_takes_an_aio_manager_too(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(other)
    server.serve("either")
    records = hamlyn.StreamReceiver(other)
    records.serve("records")
    other.start_progress()

    async def main() -> None:
        wrapped = aio.Manager(manager)
        client = await aio.Client.connect(wrapped, "either", LIMIT)
        calling = asyncio.create_task(client.call(b"ab", LIMIT))
        request = await aio.Server(server).receive(LIMIT)
        request.reply(request.data)
        assert await calling == b"ab"
        async with await aio.StreamSender.connect(wrapped, "records", LIMIT) as sender:
            await sender.send(b"cd", LIMIT)
        assert bytes(await aio.StreamReceiver(records).receive(LIMIT)) == b"cd"
        made = aio.ReconnectingClient(wrapped, "either")
        made.close()

    run(main())


def test_calls_of_many_tasks(manager: hamlyn.Manager, children: Children) -> None:
    children.start(echo, 302)

    async def main() -> None:
        client = aio.Client(hamlyn.Client.connect(manager, "echo", outstanding=16))

        async def call(n: int) -> None:
            data = n.to_bytes(8, "little")
            assert await client.call(data, LIMIT) == data[::-1]

        await asyncio.gather(*map(call, range(300)))
        # A task that is cancelled gives its call back.
        cancelled = asyncio.create_task(client.call(b"nobody waits"))
        await asyncio.sleep(0)
        cancelled.cancel()
        try:
            assert await cancelled == b"stiaw ydobon"
        except asyncio.CancelledError:
            pass
        assert await client.call(b"and on", LIMIT) == b"no dna"

    run(main())


def test_a_client_that_takes_no_long_replies_holds_up_no_other(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = hamlyn.Server(manager)
    server.serve("long")

    async def main() -> None:
        with hamlyn.Manager() as takes_nothing:
            async def answer(request: hamlyn.Request) -> None:
                await aio.reply(request, bytes(100_000), LIMIT)

            serving = aio.Server(server)
            connecting = asyncio.create_task(aio.Client.connect(takes_nothing, "long"))
            while not connecting.done():
                await aio.Manager(manager).wait(0.05)
            # More than the event loop's own executor has threads.
            calls = [connecting.result().sync.start(b"never taken") for _ in range(60)]
            waiting = [asyncio.create_task(answer(await serving.receive(LIMIT))) for _ in calls]
            connecting = asyncio.create_task(aio.Client.connect(other, "long"))
            while not connecting.done():
                await aio.Manager(manager).wait(0.05)
            calling = asyncio.create_task(connecting.result().call(b"taken", LIMIT))
            await answer(await serving.receive(LIMIT))
            assert len(await calling) == 100_000
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            takes_nothing.close()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(main())


def test_a_stream_is_awaited_to_its_end(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    receiver = aio.StreamReceiver(hamlyn.StreamReceiver(manager))
    receiver.sync.serve("stream")

    async def main() -> None:
        growing = asyncio.to_thread(hamlyn.StreamSender.connect, other, "stream")
        task = asyncio.create_task(growing)
        while not task.done():
            await aio.Manager(manager).wait(0.1)
        sender = await task
        counted = 0

        async def count() -> None:
            nonlocal counted
            async for record in receiver:
                assert bytes(record) == counted.to_bytes(4, "little")
                counted += 1

        counting = asyncio.create_task(count())
        for i in range(100):
            sender.send(i.to_bytes(4, "little"))
            if i % 10 == 0:
                sender.flush(LIMIT)
                await asyncio.sleep(0.001)
        sender.close(LIMIT)
        await counting
        assert counted == 100

    run(main())


@pytest.mark.parametrize("timeout", [0, 0.05, LIMIT])
@pytest.mark.parametrize("lends", [False, True])
def test_a_record_that_was_cut_off_is_sent_once(
    manager: hamlyn.Manager, other: hamlyn.Manager, lends: bool, timeout: float
) -> None:
    manager.start_progress()
    receiver = hamlyn.StreamReceiver(manager, buffers=2, buffers_max=2)
    sender = aio.StreamSender(hamlyn.StreamSender.grow(other, receiver.seed()))
    # From here on there is room for one, and a part of the next.
    manager.stop_progress()

    async def send(number: int, timeout: float) -> None:
        # With its header it is longer than a message that leaves either as a whole, or not at all.
        array = np.full(16_330, number, np.uint8)
        if not lends:
            return await sender.send_array(array, timeout)
        loan = sender.loan_array(array.dtype, array.shape)
        loan.array()[:] = array
        await sender.send_loan(loan, timeout)

    async def send_all() -> None:
        if timeout == LIMIT:
            await send(1, timeout)
        await send(2, LIMIT)
        await sender.close(LIMIT)

    async def main() -> None:
        await send(0, LIMIT)
        if timeout < LIMIT:
            with pytest.raises(hamlyn.CutOff, match="not to be sent again"):
                await send(1, timeout)
        sending = asyncio.create_task(send_all())
        # It begins before anything is received.
        await asyncio.sleep(0)
        numbers = [record.array()[0] async for record in aio.StreamReceiver(receiver)]
        await sending
        assert numbers == [0, 1, 2]

    run(main())


def test_a_loan_waits_for_no_send_of_another_task(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    manager.start_progress()
    receiver = hamlyn.StreamReceiver(manager, buffers=2, buffers_max=2)
    sender = aio.StreamSender(hamlyn.StreamSender.grow(other, receiver.seed()))

    async def main() -> None:
        # A wait is cut into slices, between which others may have the sender; these do not end in
        # time. They are not received, so that one of these waits on the sender's thread.
        sends = [asyncio.create_task(sender.send(bytes(60_000), LIMIT)) for _ in range(8)]
        await asyncio.sleep(0.2)
        assert not all(task.done() for task in sends)
        before = asyncio.get_running_loop().time()
        loan = sender.loan(3)
        assert asyncio.get_running_loop().time() - before < LIMIT / 2
        loan.release()
        for _ in sends:
            (await aio.StreamReceiver(receiver).receive(LIMIT)).release()
        await asyncio.gather(*sends)

    hamlyn._hamlyn._set_slice(int(2000 * LIMIT))
    try:
        run(main())
    finally:
        hamlyn._hamlyn._set_slice(50)


@pytest.mark.parametrize("wrapper", [aio.Server, aio.StreamReceiver, aio.Publisher])
def test_a_manager_is_not_taken_for_an_end_point(
    manager: hamlyn.Manager, wrapper: Callable[[Any], object]
) -> None:
    with pytest.raises(TypeError, match="was given a Manager: make one with it first"):
        wrapper(manager)


def test_a_loan_is_sent_by_its_own_sender_alone(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    manager.start_progress()
    receivers = [hamlyn.StreamReceiver(manager) for _ in range(2)]
    first, second = [
        aio.StreamSender(hamlyn.StreamSender.grow(other, receiver.seed())) for receiver in receivers
    ]

    async def main() -> None:
        loan = second.loan(3)
        memoryview(loan)[:] = b"own"
        with pytest.raises(hamlyn.Misuse, match="another sender's"):
            await first.send_loan(loan, LIMIT)
        await second.send_loan(loan, LIMIT)
        await second.flush(LIMIT)
        assert bytes(await aio.StreamReceiver(receivers[1]).receive(LIMIT)) == b"own"
        assert receivers[0].try_receive() is None

    run(main())


def test_datagrams_and_tags_are_awaited_together(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    datagrams = aio.DatagramReceiver(hamlyn.DatagramReceiver(manager, 64))
    tags = aio.TaggedReceiver(hamlyn.TaggedReceiver(manager, 64))
    datagrams.sync.serve("datagrams")
    tags.sync.serve("tags")
    manager.start_progress()
    first = hamlyn.DatagramSender.connect(other, "datagrams")
    second = hamlyn.TaggedSender.connect(other, "tags")

    async def main() -> None:
        for i in range(50):
            waiting = [
                asyncio.create_task(datagrams.receive()),
                asyncio.create_task(tags.get_tag()),
            ]
            await asyncio.sleep(0.001)
            first.send(b"datagram")
            second.send(0, b"", i)
            datagram, tag = await asyncio.gather(*waiting)
            assert bytes(datagram) == b"datagram" and tag.tag == i  # type: ignore
            datagrams.sync.make_ready()

    run(main())


def test_a_group_is_awaited(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    group = aio.Group(hamlyn.Group(manager, 2, 64))
    group.sync.serve("group")
    manager.start_progress()
    members = [hamlyn.GroupMember.connect(other, "group", 64) for _ in range(2)]

    async def main() -> None:
        with pytest.raises(hamlyn.TimedOut):
            await group.gather(0.02)
        for i in range(10):
            gathering = asyncio.create_task(group.gather())
            receiving = [asyncio.create_task(aio.GroupMember(m).receive()) for m in members]
            await asyncio.sleep(0.001)
            for member in members:
                member.send(b"part %d" % i)
            assert [bytes(part) for part in await gathering] == [b"part %d" % i] * 2
            group.sync.next_round()
            group.sync.broadcast(b"all %d" % i)
            assert await asyncio.gather(*receiving) == [b"all %d" % i] * 2

    run(main())


def test_what_a_group_does_is_awaited_and_holds_up_nobody(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    # Parts of more than a link holds, so that they are cut off, and go on.
    size = 1 << 20
    group = aio.Group(hamlyn.Group(manager, 2, size))
    group.serve("group")
    manager.start_progress()

    async def main() -> None:
        async with (
            await aio.GroupMember.connect(other, "group", size, LIMIT) as first,
            await aio.GroupMember.connect(other, "group", size, LIMIT) as second,
            await aio.GroupHelper.connect(other, "group", LIMIT) as helper,
        ):
            members = sorted((first, second), key=lambda member: member.sync.number)
            for i in range(3):
                ticks = 0

                async def tick() -> None:
                    nonlocal ticks
                    while True:
                        ticks += 1
                        await asyncio.sleep(0)

                ticking = asyncio.create_task(tick())
                # One part as a whole, one in pieces: of the helper's and the member's own.
                part = bytes([i]) * size

                async def in_pieces(member: aio.GroupMember) -> None:
                    pieces = await member.delegate(size, 2, LIMIT)
                    half = len(pieces[0])
                    await asyncio.gather(
                        helper.send(pieces[0], part[:half], LIMIT),
                        member.send_part(pieces[1], part[half:], LIMIT),
                    )

                _, _, parts = await asyncio.gather(
                    members[0].send(part, LIMIT), in_pieces(members[1]), group.gather(LIMIT)
                )
                assert [bytes(one) for one in parts] == [part, part]
                del parts
                group.sync.next_round()
                down = [bytes([member]) * size for member in range(2)]
                _, *came = await asyncio.gather(
                    group.scatter(down, LIMIT), *(member.receive(LIMIT) for member in members)
                )
                assert came == down
                _, *came = await asyncio.gather(
                    group.broadcast(part, LIMIT), *(member.receive(LIMIT) for member in members)
                )
                assert came == [part, part]
                with pytest.raises(hamlyn.TimedOut):
                    await members[0].barrier(0.01)
                await asyncio.gather(
                    group.barrier(LIMIT), *(member.barrier(LIMIT) for member in members)
                )
                assert ticks > 10
                ticking.cancel()
        with pytest.raises(hamlyn.Misuse, match="1 parts for 2 members"):
            await group.scatter([b""], LIMIT)

    run(main())


def test_a_groups_root_that_waits_for_a_member_names_it(manager: hamlyn.Manager) -> None:
    group = aio.Group(hamlyn.Group(manager, 2, 64))

    async def main() -> None:
        for timeout in (0, 0.02):
            with pytest.raises(hamlyn.TimedOut) as found:
                await group.broadcast(b"all", timeout)
            with pytest.raises(hamlyn.TimedOut) as expected:
                group.sync.broadcast(b"all", timeout)
            assert str(found.value) == str(expected.value)
            assert "missing: 0, 1" in str(found.value)

    run(main())


def test_closing_wakes_the_task_that_waits(manager: hamlyn.Manager) -> None:
    receiver = hamlyn.StreamReceiver(manager)

    async def main() -> None:
        task = asyncio.create_task(aio.StreamReceiver(receiver).receive())
        await asyncio.sleep(0.05)
        receiver.close()
        with pytest.raises(hamlyn.Closed):
            await asyncio.wait_for(task, LIMIT)

    asyncio.run(main())


def calls(manager: hamlyn.Manager, **settings: int) -> aio.Server:
    server = hamlyn.Server(manager, **settings)
    server.serve("calls")
    manager.start_progress()
    return aio.Server(server)


def count_threads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The functions called on threads from now on."""
    called: list[object] = []
    loop = asyncio.BaseEventLoop
    in_executor, on_thread = loop.run_in_executor, Threads.run

    def run_in_executor(*arguments: Any) -> Any:
        called.append(arguments)
        return in_executor(*arguments)

    def run(*arguments: Any, **more: Any) -> Any:
        called.append(arguments)
        return on_thread(*arguments, **more)

    # By the first `asyncio.to_thread` goes, too.
    monkeypatch.setattr(loop, "run_in_executor", run_in_executor)
    monkeypatch.setattr(Threads, "run", run)
    return called


def test_a_call_that_waits_for_a_free_one_takes_no_thread(
    manager: hamlyn.Manager, other: hamlyn.Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = calls(manager, outstanding=2)

    async def main() -> None:
        client = await aio.Client.connect(other, "calls")
        threads = count_threads(monkeypatch)
        first = [asyncio.create_task(client.call(b"first", LIMIT)) for _ in range(2)]
        requests = [await server.receive(LIMIT) for _ in first]
        # Each of these would have waited for a thread, and then for a call.
        more = [client.call(b"one too many", 0.05) for _ in range(50)]
        more += [client.call_within(b"one too many", 0.05) for _ in range(50)]
        for result in await asyncio.gather(*more, return_exceptions=True):
            assert isinstance(result, hamlyn.TimedOut) and "no call was free" in str(result)
        waiting = asyncio.create_task(client.call(b"waits", LIMIT))
        await asyncio.sleep(0.01)
        for request in requests:
            await aio.reply(request, b"done")
        request = await server.receive(LIMIT)
        assert request.data == b"waits"
        await aio.reply(request, b"waited")
        assert await asyncio.gather(*first, waiting) == [b"done", b"done", b"waited"]
        assert not threads

    run(main())


def test_the_limit_of_a_long_request_holds_before_a_thread_is_free(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = calls(manager)

    async def main() -> None:
        client = await aio.Client.connect(other, "calls")
        go_on = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            asyncio.get_running_loop().set_default_executor(executor)
            busy = asyncio.create_task(asyncio.to_thread(go_on.wait, LIMIT))
            await asyncio.sleep(0)
            try:
                with pytest.raises(hamlyn.TimedOut, match="no call was free"):
                    await client.call(bytes(100_000), 0.05)
                with pytest.raises(hamlyn.TimedOut, match="no call was free"):
                    await client.call_within(bytes(100_000), 0.05)
            finally:
                assert not busy.done() and server.sync.clients == 1
                go_on.set()
            await busy

    run(main())


def test_a_call_is_forgotten_though_its_exception_is_kept(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = calls(manager, outstanding=1)

    async def until_cancelled(request: hamlyn.Request) -> None:
        while not request.is_cancelled():
            await asyncio.sleep(0)

    async def main() -> None:
        client = await aio.Client.connect(other, "calls")
        again = aio.ReconnectingClient(other, "calls")
        # It is connected before it has little time.
        first = asyncio.create_task(again.call(b"first", LIMIT))
        with await server.receive(LIMIT) as request:
            await aio.reply(request, b"connected")
        assert await first == b"connected"
        kept: list[BaseException] = []
        for calling in (client.call, again.call):
            # The same words as of a call that is not awaited.
            with pytest.raises(hamlyn.TimedOut, match="no reply came within the time limit") as late:
                await calling(b"late", 0.02)
            kept.append(late.value)
            with await server.receive(LIMIT) as request:
                await until_cancelled(request)
            task = asyncio.create_task(calling(b"cancelled", LIMIT))
            with await server.receive(LIMIT) as request:
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError as error:
                    kept.append(error)
                await until_cancelled(request)
        assert len(kept) == 4 and all(error.__traceback__ for error in kept)

    run(main())


def test_that_a_caller_has_given_up_is_awaited(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    server = calls(manager)

    async def main() -> None:
        client = await aio.Client.connect(other, "calls")
        call = await client.start(b"to be forgotten")
        with await server.receive(LIMIT) as request:
            waiting = asyncio.create_task(aio.cancelled(request))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            call.forget()
            await waiting
        # Only its limit cancels it, in any state of the caller.
        await client.start_within(b"within", 0.05)
        with await server.receive(LIMIT) as request:
            await aio.cancelled(request)
        await client.start(b"gone")
        with await server.receive(LIMIT) as request:
            waiting = asyncio.create_task(aio.cancelled(request))
            await asyncio.sleep(0.01)
            client.close()
            await waiting
        call = (await aio.Client.connect(other, "calls")).sync.start(b"answered")
        request = await server.receive(LIMIT)
        await aio.reply(request, b"done")
        with pytest.raises(hamlyn.Misuse, match="already"):
            await aio.cancelled(request)

    run(main())


def test_replies_are_awaited_and_only_long_ones_have_a_thread(
    manager: hamlyn.Manager, other: hamlyn.Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = calls(manager)
    other.start_progress()

    async def main() -> None:
        async with await aio.Client.connect(other, "calls", reply_nbytes=100) as client:
            assert client.peer.pid == os.getpid() and client.ended is None
            threads = count_threads(monkeypatch)
            for size, expected in ((100, 0), (100_000, 1)):
                calling = asyncio.create_task(client.call(b"to be answered", LIMIT))
                await aio.reply(await server.receive(LIMIT), bytes(size), LIMIT)
                assert await calling == bytes(size)
                assert len(threads) == expected
            asking = asyncio.create_task(client.call_array(np.arange(3), LIMIT))
            request = await server.receive(LIMIT)
            with pytest.raises(BufferError):
                await aio.reply_array(request, np.arange(9)[::2])
            await aio.reply_array(request, request.array() + 1)
            assert list(await asking) == [1, 2, 3]
            # A long one is not taken: the client gets the error, though the request is still here.
            call = await client.start(b"not taken")
            request = await server.receive(LIMIT)
            with pytest.raises(hamlyn.TimedOut, match="the reply did not leave"):
                await aio.reply(request, bytes(100_000), 0.02)
            with pytest.raises(hamlyn.Misuse, match="already"):
                await aio.reply(request, b"again")
            receiving = asyncio.create_task(server.receive(LIMIT))
            with pytest.raises(hamlyn.Declined):
                await asyncio.to_thread(call.finish, LIMIT)
            receiving.cancel()
        assert client.sync.closed
        # Type checkers find it, too.
        with pytest.raises(TypeError):
            await aio.Client.connect(other, "calls", nosuch=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            await aio.StreamSender.connect(other, "calls", nosuch=1)  # type: ignore[call-arg]

    run(main())


def test_time_limits_say_what_those_of_objects_say_that_are_not_awaited(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    group = hamlyn.Group(manager, 2, 64)
    stream = hamlyn.StreamReceiver(manager)

    async def main() -> None:
        pairs: list[tuple[Any, Any]] = [
            (aio.Group(group).gather, group.gather),
            (aio.StreamReceiver(stream).receive, stream.receive),
            (aio.Queue(manager.queue(1)).receive, manager.queue(1).receive),
        ]
        for awaited, called in pairs:
            with pytest.raises(hamlyn.TimedOut) as expected:
                called(0)
            for timeout in (0, 0.02):
                with pytest.raises(hamlyn.TimedOut) as found:
                    await awaited(timeout)
                assert str(found.value) == str(expected.value)

    run(main())


def test_what_aio_wraps_has_what_programs_use_of_it(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    manager.start_progress()

    async def main() -> None:
        publisher = aio.Publisher(hamlyn.Publisher(manager))
        publisher.sync.serve("news")
        async with aio.Server(hamlyn.Server(manager)) as server:
            server.serve("calls")
            async with await aio.Client.connect(other, "calls"):
                assert server.clients == 1
            server.stop_serving()
            server.serve("calls", access="same_user")
            async with await aio.Subscriber.connect(other, "news") as subscriber:
                await publisher.publish(b"first", LIMIT)
                assert bytes(await subscriber.receive(LIMIT)) == b"first"
                assert subscriber.missed == 0 and {"missed", "close"} <= set(dir(subscriber))
            assert subscriber.sync.closed and not server.sync.closed
        assert server.sync.closed

    run(main())


def test_aio_is_there_once_it_is_asked_for() -> None:
    asks = "import sys, hamlyn; assert 'asyncio' not in sys.modules; print(hamlyn.aio.Server)"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True)
    assert done.stdout == "<class 'hamlyn._aio_calls.Server'>\n", done.stderr
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        hamlyn.nosuch  # type: ignore[attr-defined]
