"""Publish and subscribe: samples, loans, arrays, slow subscribers; and its tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT, Children
from hamlyn import aio


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def ends(
    manager: hamlyn.Manager, other: hamlyn.Manager, **settings: object
) -> tuple[hamlyn.Publisher, hamlyn.Subscriber]:
    """A publisher with a pool, and a subscriber that it serves; each with a thread of its own."""
    manager.start_progress()
    other.start_progress()
    publisher = hamlyn.Publisher(manager, sample_nbytes_max=1 << 20, **settings)  # type: ignore[arg-type]
    publisher.serve("samples")
    subscriber = hamlyn.Subscriber.connect(other, "samples")
    until(lambda: [state for state in publisher.subscribers if state.is_served])
    return publisher, subscriber


def test_short_and_long_samples_come_in_order(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    publisher, subscriber = ends(manager, other)
    samples = [b"", b"short", b"x" * 1024, b"y" * 1025, b"z" * (1 << 20)]
    for number, data in enumerate(samples):
        assert publisher.publish(data, LIMIT) == number
        with subscriber.receive(LIMIT) as sample:
            assert (sample.number, sample.missed, len(sample)) == (number, 0, len(data))
            assert bytes(sample) == data
            if len(data) > 10:
                part = bytearray(4)
                sample.copy_into(part, len(data) - 4)
                assert part == data[-4:]
                with pytest.raises(hamlyn.Misuse):
                    sample.copy_into(part, len(data) - 3)
    with pytest.raises(hamlyn.Closed):
        bytes(sample)
    publisher.drain(LIMIT)
    assert (publisher.published, publisher.dropped, subscriber.missed) == (5, 0, 0)
    assert (publisher.sent_away, publisher.misbehaved) == (0, 0)
    (state,) = publisher.subscribers
    assert state.peer.pid == os.getpid() and state.when_slow == "drop_oldest"
    assert state.sent == 5 and state.outstanding == state.behind == state.dropped == 0
    assert subscriber.try_receive() is None and not subscriber.ready
    with pytest.raises(hamlyn.TimedOut):
        subscriber.receive(0.01)
    assert "pool" in subscriber.explain() and subscriber.peer.pid == os.getpid()
    assert "samples" in repr(publisher) and "SubscriberState" in repr(state)
    with pytest.raises(hamlyn.Misuse):
        publisher.publish(b"x" * ((1 << 20) + 1))


def test_a_loan_is_written_in_place_and_published_once(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    publisher, subscriber = ends(manager, other)
    loan = publisher.loan(5000)
    array = np.frombuffer(loan, np.uint8)
    array[:] = 7
    # An object that shows it could change the bytes that subscribers read.
    with pytest.raises(BufferError, match="1 views or arrays"):
        loan.publish()
    with pytest.raises(BufferError):
        loan.release()
    del array
    gc.collect()
    loan.truncate(4000)
    assert len(loan) == 4000 and len(memoryview(loan)) == 4000
    assert loan.publish(LIMIT) == 0
    assert bytes(subscriber.receive(LIMIT)) == b"\x07" * 4000
    for gone in (lambda: memoryview(loan), loan.publish, lambda: loan.truncate(1)):
        with pytest.raises(hamlyn.Closed):
            gone()
    loan.release()
    # As many as may be; a released or dropped loan is free again.
    with publisher.loan(1), publisher.loan(2) as second:
        with pytest.raises(hamlyn.Misuse, match="as many as may be .loans_max.$"):
            publisher.loan(3)
        with pytest.raises(hamlyn.Misuse):
            second.array()
    publisher.loan(1)
    publisher.loan(1)
    publisher.loan(1)
    assert "gone" in repr(second)
    publisher.close()
    with pytest.raises(hamlyn.Closed):
        publisher.loan(1)


def test_arrays_keep_type_and_shape(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    publisher, subscriber = ends(manager, other)
    small, large = np.arange(12, dtype=">u2").reshape(3, 4), np.random.default_rng(1).random((50, 99))
    for sent in (small, large, np.zeros((0, 3))):
        publisher.publish_array(sent, LIMIT)
        found = subscriber.receive(LIMIT).array()
        assert found.dtype == sent.dtype and found.shape == sent.shape and (found == sent).all()
    loan = publisher.loan_array(np.float32, (100, 100))
    loan.array()[:] = np.arange(100)
    with pytest.raises(hamlyn.Misuse):
        loan.truncate(10)
    loan.publish(LIMIT)
    found = subscriber.receive(LIMIT).array()
    assert found.dtype == np.float32 and (found == np.arange(100)).all()
    with pytest.raises(BufferError):
        publisher.publish_array(np.array([object()]))
    publisher.publish(b"no array", LIMIT)
    with pytest.raises(hamlyn.ArrayError):
        subscriber.receive(LIMIT).array()


def test_a_header_that_does_not_fit_is_no_array(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    publisher, subscriber = ends(manager, other)
    message = hamlyn.pack_array(np.arange(4000.0))
    for wrong in (message[:-1], message + b"x", message[:20], b"hamA" + b"\xff" * 2000):
        publisher.publish(wrong, LIMIT)
        with pytest.raises(hamlyn.ArrayError):
            subscriber.receive(LIMIT).array()


def test_slow_subscribers_miss_or_hold_as_they_asked(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    publisher, subscriber = ends(manager, other, when_slow="wait", history=3, subscribers_max=2)
    newest = hamlyn.Subscriber.grow(
        other, publisher.seed(), depth=4, when_slow="drop_newest", history=0, outstanding=1
    )
    number = 0
    while (published := publisher.try_publish(b"much")) is not None:
        number = published
    with pytest.raises(hamlyn.TimedOut):
        publisher.publish(b"more", 0.01)
    loan = publisher.loan(2000)
    with pytest.raises(hamlyn.TimedOut):
        loan.publish(0)
    for i in range(number + 1):
        assert subscriber.receive(LIMIT).number == i
    # It is as it was.
    memoryview(loan)[:4] = b"last"
    assert loan.publish(LIMIT) == number + 1
    assert bytes(subscriber.receive(LIMIT))[:4] == b"last"
    # It gets the samples for which it has room again.
    late = None
    while not late or bytes(late) != b"late":
        publisher.publish(b"late", LIMIT)
        subscriber.receive(LIMIT)
        late = newest.try_receive()
    assert newest.missed > 0 and publisher.dropped >= newest.missed
    with pytest.raises(hamlyn.Refused):
        hamlyn.Subscriber.connect(other, "samples")
    newest.close()
    until(lambda: len(publisher.subscribers) == 1)
    again = hamlyn.Subscriber.connect(other, "samples", when_slow="send_away", depth=1)
    assert again.receive(LIMIT).number == publisher.published - 3
    with pytest.raises(ValueError, match="'send_away'"):
        hamlyn.Publisher(manager, when_slow="never")  # type: ignore[arg-type]
    with pytest.raises(hamlyn.Misuse):
        hamlyn.Publisher(manager, outstanding_max=65)


def test_iteration_ends_with_the_publisher(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    publisher, subscriber = ends(manager, other)
    for i in range(10):
        publisher.publish(bytes([i]), LIMIT)
    publisher.flush(LIMIT)
    publisher.close()
    assert [bytes(sample)[0] for sample in subscriber] == list(range(10))
    with pytest.raises(hamlyn.Closed):
        subscriber.receive(LIMIT)


def test_a_sample_outlives_its_subscriber_and_managers(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    publisher, subscriber = ends(manager, other)
    publisher.publish(b"short", LIMIT)
    publisher.publish(b"x" * 5000, LIMIT)
    short, long = subscriber.receive(LIMIT), subscriber.receive(LIMIT)
    loan = publisher.loan(5000)
    view = memoryview(loan)
    subscriber.close()
    other.close()
    manager.close()
    assert bytes(short) == b"short"
    view[:] = b"y" * 5000
    try:
        assert len(bytes(long)) == 5000
    except hamlyn.Closed:
        pass
    short.release()
    long.release()
    long.release()


def test_a_forked_child_is_told(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    publisher, subscriber = ends(manager, other)
    publisher.publish(b"short", LIMIT)
    publisher.publish(b"x" * 5000, LIMIT)
    short, long = subscriber.receive(LIMIT), subscriber.receive(LIMIT)
    loan = publisher.loan(5000)
    listener = hamlyn.ByteListener(manager)
    stream = hamlyn.ByteStream.grow(other, listener.seed())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            calls: list[Callable[[], object]] = [
                lambda: publisher.publish(b"from the child"),
                lambda: publisher.loan(1),
                lambda: publisher.subscribers,
                lambda: memoryview(loan),
                lambda: loan.publish(),
                lambda: subscriber.receive(),
                lambda: bytes(short),
                lambda: bytes(long),
                lambda: listener.accept(),
                lambda: stream.send(b"from the child"),
                lambda: stream.recv(1),
            ]
            for call in calls:
                with pytest.raises(hamlyn.Forked):
                    call()
            assert "parent" in repr(publisher) and "Sample" in repr(long)
            del publisher, subscriber, short, long, loan, listener, stream, call, calls
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert bytes(short) == b"short" and bytes(long) == b"x" * 5000
    long.release()
    assert loan.publish(LIMIT) == 2
    stream.sendall(b"from the parent", LIMIT)
    assert listener.accept(LIMIT).recv(100, LIMIT) == b"from the parent"


def subscribe(name: str, count: int) -> None:
    with hamlyn.Manager() as manager:
        subscriber = hamlyn.Subscriber.connect(manager, name)
        total = 0
        for sample in subscriber:
            total += int(sample.array()[0])
        assert total == sum(range(count))


def test_a_loop_over_the_samples_of_a_publisher_that_went_too_soon_raises(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    manager.start_progress()
    other.start_progress()
    publisher = hamlyn.Publisher(manager, backlog=200)
    publisher.serve("too-soon")
    taken = hamlyn.Subscriber.connect(other, "too-soon", depth=4)
    until(lambda: [state for state in publisher.subscribers if state.is_served])
    for _ in range(100):
        publisher.publish(b"x", LIMIT)
    publisher.close()
    count = 0
    with pytest.raises(hamlyn.Closed, match="too slow"):
        for _ in taken:
            count += 1
    assert count < 100


def test_a_with_that_is_left_has_sent_all_and_got_the_pool_back(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    publisher, subscriber = ends(manager, other, when_slow="wait", backlog=2)
    with ThreadPoolExecutor() as threads:

        def take() -> list[int]:
            # The loop's variable has a sample while the next is waited for.
            return [len(bytes(sample)) for sample in subscriber]

        taking = threads.submit(take)
        with publisher:
            for i in range(50):
                publisher.publish(b"x" * (5000 + i), LIMIT)
        assert publisher.closed
        assert taking.result(LIMIT) == [5000 + i for i in range(50)]


def test_an_exception_that_leaves_a_with_waits_for_no_subscriber(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    publisher, subscriber = ends(manager, other)
    work = hamlyn._hamlyn._Work()
    samples = []

    def leave() -> None:
        with publisher:
            publisher.publish(b"x" * 5000, LIMIT)
            samples.append(subscriber.receive(LIMIT))
            # Every later wait raises `Closed`.
            work.give_up()
            raise KeyError

    with pytest.raises(KeyError):
        work.run(leave)
    assert publisher.closed
    samples[0].release()


def test_a_loop_that_asks_for_the_next_sample_releases_the_one_before(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    publisher, subscriber = ends(manager, other)
    for i in range(3):
        publisher.publish(bytes([i]), LIMIT)
    loop = iter(subscriber)
    first, second = next(loop), next(loop)
    with pytest.raises(hamlyn.Closed, match="asked for the next"):
        bytes(first)
    assert bytes(second) == b"\1"
    # By itself nothing is released.
    third = next(subscriber)
    assert (bytes(second), bytes(third)) == (b"\1", b"\2")
    with pytest.raises(TypeError, match="copied"):
        np.asarray(third)


def test_tasks_publish_and_subscribe(
    manager: hamlyn.Manager, other: hamlyn.Manager, children: Children
) -> None:
    publisher = aio.Publisher(
        hamlyn.Publisher(manager, sample_nbytes_max=1 << 16, when_slow="wait", backlog=2)
    )
    publisher.serve("tasks")
    children.start(subscribe, "tasks", 300)
    children.start(subscribe, "tasks", 300)

    async def take() -> int:
        subscriber = await aio.Subscriber.connect(other, "tasks", depth=8)
        missed = number = 0
        async for sample in subscriber:
            missed += sample.missed
            number = sample.number
            if number % 100 == 0:
                await asyncio.sleep(0.01)
        assert missed == 0
        return number

    async def main() -> None:
        taking = asyncio.create_task(take())
        while len([s for s in publisher.sync.subscribers if s.is_served]) < 3:
            manager.poll()
            await asyncio.sleep(0.001)
        for i in range(300):
            array = np.full(3000, i, np.int64)
            if i % 3 == 0:
                await publisher.publish_array(array, LIMIT)
            elif i % 3 == 1:
                loan = publisher.loan_array("<i8", 3000)
                loan.array()[:] = i
                await publisher.publish_loan(loan, LIMIT)
            else:
                await publisher.publish(hamlyn.pack_array(array[:10]), LIMIT)
        await publisher.flush(LIMIT)
        async with publisher:
            await publisher.publish_array(np.zeros(3000, np.int64), LIMIT)
        assert await taking == 300
        with pytest.raises(hamlyn.Closed):
            await publisher.publish(b"late")

    async def limited() -> None:
        await asyncio.wait_for(main(), LIMIT)

    asyncio.run(limited())


def test_a_task_publishes_no_loan_of_another_publisher(manager: hamlyn.Manager) -> None:
    config = {"sample_nbytes_max": 4096}
    other = hamlyn.Publisher(manager, **config)  # type: ignore[arg-type]
    own = hamlyn.Publisher(manager, **config)  # type: ignore[arg-type]

    async def main() -> None:
        publisher = aio.Publisher(own)
        loan = other.loan(2000)
        with pytest.raises(hamlyn.Misuse, match="on loan from another publisher"):
            await publisher.publish_loan(loan, LIMIT)
        assert own.published == other.published == 0
        # It is as it was.
        assert len(memoryview(loan)) == 2000
        assert loan.publish(LIMIT) == 0 and other.published == 1
        assert await publisher.publish_loan(own.loan(2000), LIMIT) == 0 and own.published == 1

    asyncio.run(main())


def test_a_publisher_says_how_much_memory_its_pool_has_taken(manager: hamlyn.Manager) -> None:
    with hamlyn.Publisher(manager) as publisher:
        assert publisher.pool_nbytes == 0
    with hamlyn.Publisher(manager, sample_nbytes_max=4000, history=20, loans_max=1) as publisher:
        assert publisher.pool_nbytes == -(-4032 * (16 * 4 + 20 + 1) // 4096) * 4096
