"""Arrays with type and shape: they arrive unchanged, and one that does not fit is refused."""

from __future__ import annotations

import array as python_array
import asyncio
import gc
import inspect
import os
import random
import re
import struct
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hamlyn
import numpy as np
import pytest
from conftest import LIMIT
from hamlyn import ArrayError, Loan, Manager, StreamReceiver, StreamSender, aio
from test_apertures import exported

ARRAYS: list[np.ndarray[Any, Any]] = [
    np.arange(12, dtype=np.float64).reshape(3, 4),
    np.array(7, dtype=np.int16),
    np.zeros((0, 3), dtype=np.complex64),
    np.array([True, False]),
    np.array(["2026-01-01", "NaT"], dtype="M8[25s]"),
    np.array(["a", "long"]),
    np.array([b"x", b"yz"]),
    np.arange(3, dtype=">i4"),
    np.arange(300_000, dtype=np.uint8).reshape(100, 30, 100),
    np.zeros(2, dtype="V5"),
    np.zeros((1,) * 32, dtype=np.float16),
]


def message(
    text: str, shape: tuple[int, ...], data: bytes, said: int | None = None, version: int = 1
) -> bytes:
    """A header by hand, and bytes behind it."""
    head = b"hamA" + bytes([version, len(shape) & 0xFF, len(text) & 0xFF, 0])
    head += struct.pack("<Q", len(data) if said is None else said)
    head += b"".join(struct.pack("<q", length) for length in shape) + text.encode()
    return head + bytes(-len(head) % 64) + data


Pair = tuple[StreamReceiver, StreamSender]


@pytest.fixture
def pair(manager: Manager, other: Manager) -> Iterator[Pair]:
    receiver = StreamReceiver(manager)
    receiver.serve("arrays")
    manager.start_progress()
    with StreamSender.connect(other, "arrays", LIMIT) as sender:
        yield receiver, sender


def same(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


@pytest.mark.parametrize("sent", ARRAYS, ids=lambda a: f"{a.dtype.str}{a.shape}")
def test_an_array_arrives_as_it_was_sent(sent: np.ndarray[Any, Any], pair: Pair) -> None:
    receiver, sender = pair
    assert same(hamlyn.unpack_array(hamlyn.pack_array(sent)), sent)
    if sent.nbytes > 65_536:
        return
    sender.send_array(sent, LIMIT)
    sender.flush(LIMIT)
    with receiver.receive(LIMIT) as record:
        found = record.array()
        assert same(found, sent) and not found.flags.writeable
        del found


def test_what_is_no_array_of_numpy_is_sent_too() -> None:
    for sent, text in (
        (b"abc", "u1"),
        (python_array.array("d", [1, 2]), "f8"),
        (memoryview(python_array.array("h", range(6))).cast("B").cast("h", (2, 3)), "i2"),
    ):
        found = hamlyn.unpack_array(hamlyn.pack_array(sent))
        assert found.dtype == np.dtype(text) and found.tobytes() == bytes(sent)


class OfAnother(np.ndarray[Any, Any]):
    """As numpy says it of a type that a package has added, such as bfloat16."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return super().__array_interface__ | {"typestr": "<V2", "descr": [("", "<V2")]}


def test_what_cannot_be_sent_is_refused_by_name(pair: Pair) -> None:
    _, sender = pair
    wrong: list[tuple[Any, str]] = [
        (np.array([object()]), "Python objects"),
        (np.zeros((4, 4))[:, ::2], "one piece"),
        (np.asfortranarray(np.zeros((3, 4))), "one piece"),
        (np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]), "fields"),
        (np.zeros(2, "u2").view(OfAnother), "bfloat16, is not sent: view it as uint16"),
        (np.ma.array([1, 2], mask=[True, False]), "masked array .* mask would be lost"),
    ]
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        wrong.append((np.zeros((1,) * 33), "33 dimensions"))
    for sent, why in wrong:
        for send in (sender.send_array, hamlyn.pack_array):
            with pytest.raises(BufferError, match=why):
                send(sent)
    with pytest.raises(TypeError):
        sender.send_array(3)  # type: ignore[arg-type]
    for dtype, why in (("O", "Python objects"), ("i4,f8", "fields"), ("<f7", "size"), ("|S0", "without bytes")):
        with pytest.raises(BufferError, match=why):
            Loan(dtype, 3)
    for shape, why in ((-1, r"dimension 0 of the shape \(-1,\)"), ((2, -3), r"dimension 1 of the shape \(2, -3\)")):
        for make in (Loan, sender.loan_array):
            with pytest.raises(ValueError, match=why):
                make("<f8", shape)
    with pytest.raises(BufferError, match="more bytes than exist"):
        Loan("<f8", (1 << 40, 1 << 40))


def kinds() -> Iterator[tuple[str, Any]]:
    """Each kind of element that numpy has, and an extension of it, by name: an array of it, or of no
    length where it has none."""
    for code in np.typecodes["All"]:
        yield f"numpy {code}", np.zeros(3, code)
        if np.dtype(code).itemsize > 1 and code not in "VO":
            yield f"numpy >{code}", np.zeros(3, np.dtype(code).newbyteorder(">"))
    if hasattr(np.dtypes, "StringDType"):
        yield "numpy StringDType", np.array(["a", "b" * 99], np.dtypes.StringDType())
    for name in ("ml_dtypes", "numpy_quaddtype"):
        try:
            package = __import__(name)
        except ImportError:
            assert name != "ml_dtypes" or not os.environ.get("HAMLYN_TEST_ALL")
            continue
        for kind in vars(package).values():
            if isinstance(kind, type) and issubclass(kind, np.generic):
                yield f"{name} {kind.__name__}", np.zeros(3, kind)


class OnAnotherDevice:
    """An array that has no bytes in this process, such as that of a GPU."""

    def __dlpack__(self) -> None: ...


def test_an_array_of_each_kind_is_sent_or_refused_with_advice(pair: Pair) -> None:
    receiver, sender = pair
    advice = r"view it as (uint\d+|V\d+), array.view\(|array\.astype|pickle|send "
    refused = set()
    for name, sent in [*kinds(), ("device", OnAnotherDevice())]:
        try:
            sender.send_array(sent, LIMIT)
        except BufferError as error:
            assert re.search(advice, str(error)), (name, error)
            refused.add(name)
            with pytest.raises(BufferError, match=advice):
                hamlyn.pack_array(sent)
            if name != "device" and sent.dtype.itemsize:
                for make in (Loan, sender.loan_array):
                    with pytest.raises(BufferError):
                        make(sent.dtype, 3)
        else:
            sender.flush(LIMIT)
            with receiver.receive(LIMIT) as record:
                found = record.array()
                assert same(found, sent), name
                del found
    of_numpy = {name for name in refused if name.startswith("numpy ")}
    assert of_numpy <= {"numpy O", "numpy V", "numpy StringDType"}
    assert all(name in refused for name, _ in kinds() if not name.startswith("numpy "))


def test_the_advice_for_types_of_others_works() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for kind in (ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, ml_dtypes.complex32):
        sent = np.arange(3).astype(kind)
        with pytest.raises(BufferError, match=sent.dtype.name) as refused:
            hamlyn.pack_array(sent)
        found = re.search(r"array\.view\('(\w+)'\)", str(refused.value))
        assert found is not None
        arrived = hamlyn.unpack_array(hamlyn.pack_array(sent.view(found[1]))).view(kind)
        assert arrived.dtype == sent.dtype and (arrived == sent).all()


def test_an_array_without_elements_keeps_its_shape_if_that_is_small() -> None:
    for shape in ((0,), (0, 3, 224, 224), (1 << 20, 0), (7, 0, 9)):
        sent = np.zeros(shape, np.uint8)
        assert same(hamlyn.unpack_array(hamlyn.pack_array(sent)), sent)
    for shape in ((1 << 20, 0, 2), (0, (1 << 20) + 1)):
        with pytest.raises(BufferError, match="no elements, .* send the shape as numbers"):
            hamlyn.pack_array(np.zeros(shape, np.uint8))
        with pytest.raises(BufferError, match="no elements"):
            Loan("u1", shape)


def test_bytes_that_are_elsewhere_are_not_sent(pair: Pair) -> None:
    _, sender = pair
    for sent in [np.array([object()]), np.array(["a"], np.dtypes.StringDType())]:
        with pytest.raises(BufferError, match="pickle"):
            sender.send(sent, LIMIT)


WRONG = [
    (b"", "no array"),
    (b"x" * 64, "do not begin"),
    (message("<f8", (2,), bytes(16), version=2), "version 2"),
    (message("<f8", (2,), bytes(8)), "the header says 8 bytes"),
    (message("<f8", (2,), bytes(8), 16), "64 bytes of header and 16 of data, and came in 72"),
    (message("<f8", (2,), bytes(17), 16), "came in 81"),
    (message("|O", (2,), bytes(16)), "size|Python objects"),
    (message("|O8", (2,), bytes(16)), "Python objects"),
    (message("<f8", (-1,), b""), "negative length, -1"),
    (message("<f8", (1 << 62, 1 << 62), b""), "more bytes than exist"),
    (message("<f8", (1,) * 33, bytes(8)), "33 dimensions"),
    (message("<f7", (1,), bytes(7)), "size or an order"),
    (message("|f8", (1,), bytes(8)), "size or an order"),
    (message("<i4,<i4", (1,), bytes(8)), "has no size"),
    # In numpy they would have some bytes each, for any message: gigabytes of 64 bytes.
    (message("|S0", (1 << 31,), b""), "elements without bytes"),
    (message("<U0", (1 << 31,), b""), "elements without bytes"),
    (message("|V0", (1 << 31,), b""), "elements without bytes"),
    (message("|S00", (1 << 31,), b""), "has no size"),
    # `sum(axis=1)` of the first would take 2 GiB, and whoever counts through the second does not end.
    (message("|u1", (1 << 28, 0), b""), "no elements, and lengths beside the 0"),
    (message("|u1", (1 << 59, 0), b""), "no elements, and lengths beside the 0"),
    (message("<f8", (0, 1 << 62, 1 << 62), b""), "no elements, and lengths beside the 0"),
    (message("<f8", (1 << 16, 0, 2, 2), b""), "no elements, and lengths beside the 0"),
    (message("float64", (1,), bytes(8)), "kind|order|size"),
    (message("<M8[xx]", (1,), bytes(8)), "unit"),
    (message("<f8[s]", (1,), bytes(8)), "unit"),
    (message("<f8", (1,), bytes(8))[:20], "cut off"),
    (message("\u00e9", (1,), bytes(8)), "text|array interface|has no size|cut"),
    (message("|b1", (3,), bytes([0, 1, 2])), "neither 0 nor 1"),
]


@pytest.mark.parametrize("bad, why", WRONG, ids=[why for _, why in WRONG])
def test_what_does_not_fit_is_refused_on_arrival(bad: bytes, why: str, pair: Pair) -> None:
    with pytest.raises(ArrayError, match=why):
        hamlyn.unpack_array(bad)
    receiver, sender = pair
    sender.send(bad, LIMIT)
    sender.flush(LIMIT)
    with receiver.receive(LIMIT) as record:
        with pytest.raises(ArrayError, match=why):
            record.array()
        # It is a record as any other.
        assert bytes(record) == bad


def test_changed_headers_are_refused_or_are_arrays() -> None:
    rng = random.Random(7)
    good = hamlyn.pack_array(np.arange(24, dtype="<u2").reshape(2, 3, 4))
    refused = 0
    for _ in range(5000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(64)] = rng.choice([0, 1, 2, 8, 127, 128, 255, rng.randrange(256)])
        try:
            found = hamlyn.unpack_array(bytes(bad))
        except ArrayError:
            refused += 1
        else:
            assert found.nbytes == 48
    assert refused > 4000


def test_a_record_is_held_as_long_as_its_array(pair: Pair) -> None:
    receiver, sender = pair
    for i in range(2):
        sender.send_array(np.full(100, i), LIMIT)
    sender.flush(LIMIT)
    record = receiver.receive(LIMIT)
    part = record.array()[5:].reshape(5, 19)
    with pytest.raises(BufferError, match="still use the record: copy what is to outlive it"):
        record.release()
    # It is not told instead of an exception.
    with pytest.raises(KeyError), record:
        raise KeyError
    assert (part == 0).all() and np.asarray(record).dtype == np.uint8
    del part
    record.release()
    with pytest.raises(hamlyn.Closed, match="released"):
        np.asarray(record)
    with pytest.raises(hamlyn.Closed):
        record.array()
    # The array alone keeps it.
    array = receiver.receive(LIMIT).array()
    gc.collect()
    sender.send_array(np.full(100, 9), LIMIT)
    sender.flush(LIMIT)
    assert (array == 1).all() and (receiver.receive(LIMIT).array() == 9).all()


def test_a_loan_is_computed_in_and_sent(pair: Pair) -> None:
    receiver, sender = pair
    loan = Loan(np.float32, (2, 3))
    array = loan.array()
    assert array.flags.writeable and (array == 0).all() and array.ctypes.data % 64 == 0
    assert loan.nbytes == len(loan) == 24
    for i in range(3):
        array[:] = i
        sender.send_array(loan, LIMIT)
    del loan
    gc.collect()
    array[:] = 77
    sender.flush(LIMIT)
    for i in range(3):
        found = receiver.receive(LIMIT).array()
        assert found.dtype == np.float32 and found.shape == (2, 3) and (found == i).all()
    assert hamlyn.unpack_array(hamlyn.pack_array(Loan("<i8", ()))).shape == ()


@pytest.mark.parametrize("through", ["ring", "aperture"])
def test_an_array_of_a_stream_is_computed_in_its_record(
    manager: Manager, other: Manager, through: str
) -> None:
    manager.start_progress()
    receiver: hamlyn.StreamReceiver | hamlyn.ApertureStreamReceiver
    sender: hamlyn.StreamSender | hamlyn.ApertureStreamSender
    if through == "ring":
        receiver = hamlyn.StreamReceiver(manager)
        sender = StreamSender.grow(other, receiver.seed())
    else:
        receiver = hamlyn.ApertureStreamReceiver(manager, 1 << 20)
        sender = hamlyn.ApertureStreamSender.grow(other, receiver.seed())
    for i in range(3):
        loan = sender.loan_array(np.float32, (20, 3))
        array = loan.array()
        assert array.shape == (20, 3) and (array == 0).all() and array.ctypes.data % 64 == 0
        assert len(loan) == memoryview(loan).nbytes == 240
        array[:] = i
        with pytest.raises(BufferError, match="still use"):
            loan.send()
        del array
        with pytest.raises(hamlyn.Misuse, match="has the length of its array"):
            loan.truncate(8)
        loan.send(LIMIT)
        with pytest.raises(hamlyn.Closed):
            loan.array()
        sender.flush(LIMIT)
        assert same(receiver.receive(LIMIT).array(), np.full((20, 3), i, np.float32))
    with pytest.raises(hamlyn.Misuse, match="makes records for arrays"):
        sender.loan(8).array()
    with pytest.raises(BufferError, match="Python objects"):
        sender.loan_array("O", 3)
    with pytest.raises(hamlyn.Misuse, match="longer than"):
        sender.loan_array("u1", sender.nbytes_max)

    async def awaited() -> None:
        wrapped = aio.StreamSender(sender) if isinstance(sender, StreamSender) else aio.ApertureStreamSender(sender)
        loan = wrapped.loan_array("<i4", 2)
        loan.array()[:] = [1, 2]
        await wrapped.send_loan(loan, LIMIT)
        await wrapped.flush(LIMIT)
        assert list(receiver.receive(LIMIT).array()) == [1, 2]

    asyncio.run(awaited())


def test_the_usual_limits_have_room_for_the_header(manager: Manager, other: Manager) -> None:
    manager.start_progress()
    other.start_progress()
    for receiver, grow in (
        (StreamReceiver(manager), StreamSender.grow),
        (hamlyn.ApertureStreamReceiver(manager, 1 << 16), hamlyn.ApertureStreamSender.grow),
    ):
        with grow(other, receiver.seed()) as sender:
            assert len(sender.loan_array("u1", 64 << 20)) == 64 << 20
    server = hamlyn.Server(manager)
    client = hamlyn.Client.grow(other, server.seed(), LIMIT)
    sent = np.zeros((1,) * 31 + (16 << 20,), "u1")

    async def both() -> None:
        calling = asyncio.create_task(aio.Client(client).call_array(sent, LIMIT))
        request = await aio.Server(server).receive(LIMIT)
        await aio.reply_array(request, request.array(), LIMIT)
        assert same(await calling, sent)

    asyncio.run(both())


def test_datagrams_and_calls_have_arrays(manager: Manager, other: Manager) -> None:
    manager.start_progress()
    other.start_progress()
    receiver, answers = hamlyn.DatagramReceiver(manager, 4096), hamlyn.DatagramReceiver(other, 4096)
    sender = hamlyn.DatagramSender.grow(other, receiver.seed(), LIMIT)
    sent = np.arange(6.0).reshape(2, 3)
    sender.send_array(sent, 8, reply=answers.reply_ticket(), timeout=LIMIT)
    datagram = receiver.receive(LIMIT)
    found = datagram.array()
    assert same(found, sent)
    with pytest.raises(BufferError):
        receiver.make_ready()
    datagram.reply_array(found * 2, LIMIT)
    del found
    receiver.make_ready()
    assert same(answers.receive(LIMIT).array(), sent * 2)

    server = hamlyn.Server(manager)
    client = hamlyn.Client.grow(other, server.seed(), LIMIT)

    async def both() -> None:
        calling = asyncio.create_task(asyncio.to_thread(client.call_array, sent, LIMIT))
        request = await aio.Server(server).receive(LIMIT)
        with pytest.raises(BufferError):
            request.reply_array(sent[:, ::2])
        request.reply_array(request.array() + 1)
        assert same(await calling, sent + 1)
        calling = asyncio.create_task(asyncio.to_thread(client.call_array, sent, LIMIT))
        (await aio.Server(server).receive(LIMIT)).reply(b"no array")
        with pytest.raises(ArrayError):
            await calling

    asyncio.run(both())


def test_an_area_is_shown_as_an_array(manager: Manager) -> None:
    area = manager.area(4096)
    whole = area.array(np.float64, (16, 32))
    whole[1, 2] = 5
    assert area.array("<f8", 1, 8 * 34)[0] == 5 and area.array(np.dtype("u1"), ()).shape == ()
    for shape, offset in (((513,), 0), ((1,), 4089), ((-1,), 0)):
        with pytest.raises(ValueError):
            area.array(np.float64, shape, offset)
    with pytest.raises(BufferError, match="still"):
        area.remove()


def test_apertures_hold_arrays(manager: Manager, other: Manager) -> None:
    owned, held = exported(manager, other, 8192)
    sent = np.arange(100, dtype=np.int32).reshape(10, 10)
    assert held.write_array(64, sent) == 464
    found = owned.read_array(64)
    assert same(found, sent) and found.flags.writeable
    with pytest.raises(hamlyn.Misuse):
        held.write_array(8000, sent)
    with pytest.raises(ArrayError, match="do not begin|no array"):
        owned.read_array(0)
    held.write(64, message("<i4", (5000,), b"", 20000))
    with pytest.raises(ArrayError, match="ends at 8192"):
        owned.read_array(64)
    held.write(8192 - 64, message("<i4", (0,), b""))
    assert owned.read_array(8192 - 64).shape == (0,)
    with pytest.raises((ArrayError, hamlyn.Misuse)):
        owned.read_array(9000)
    held.write(8192 - 8, b"hamA\x01\x01\x03\x00")
    with pytest.raises(ArrayError):
        owned.read_array(8192 - 8)


def test_a_volatile_record_is_copied_out(manager: Manager, other: Manager) -> None:
    receiver = hamlyn.ApertureStreamReceiver(manager, 1 << 20)
    manager.start_progress()
    sender = hamlyn.ApertureStreamSender.grow(other, receiver.seed(), LIMIT)
    while not sender.explain().startswith("records of 65536 bytes and more through an aperture"):
        sender.send(b"first", LIMIT)
        sender.flush(LIMIT)
        receiver.receive(LIMIT).release()
        other.wait(0.01)
    sent = np.arange(50_000, dtype=np.int32).reshape(100, 500)
    sender.send_array(sent, LIMIT)
    record = receiver.receive(LIMIT)
    assert isinstance(record, hamlyn.VolatileRecord)
    found = record.array()
    record.release()
    assert same(found, sent) and found.flags.writeable
    sender.send(message("<i4", (50_000,), bytes(100_000), 200_000), LIMIT)
    with pytest.raises(ArrayError, match="came in"):
        receiver.receive(LIMIT).array()


def test_dlpack_holds_the_record(pair: Pair) -> None:
    receiver, sender = pair
    sent = np.arange(6, dtype=np.float32).reshape(2, 3)
    sender.send_array(sent, LIMIT)
    sender.send(b"no array", LIMIT)
    sender.flush(LIMIT)
    record = receiver.receive(LIMIT)
    assert record.__dlpack_device__() == (1, 0)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        shown = np.from_dlpack(record)  # type: ignore[arg-type]
        assert same(shown, sent) and not shown.flags.writeable
        with pytest.raises(BufferError, match="still use"):
            record.release()
        del shown
    # A reader that knows nothing of read-only arrays would write.
    with pytest.raises(BufferError):
        record.__dlpack__()
    gc.collect()
    record.release()
    with pytest.raises(ArrayError):
        receiver.receive(LIMIT).__dlpack__(max_version=(1, 0))


def test_arrow_holds_the_record(pair: Pair) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed: Arrow SKIPPED")
    receiver, sender = pair
    sender.send_array(np.arange(5, dtype=np.int64), LIMIT)
    for other in (np.zeros((2, 2)), np.array([True]), np.arange(3, dtype=">i4")):
        sender.send_array(other, LIMIT)
    sender.flush(LIMIT)
    record = receiver.receive(LIMIT)
    shown = pyarrow.array(record)
    assert shown.type == pyarrow.int64() and shown.to_pylist() == [0, 1, 2, 3, 4]
    with pytest.raises(BufferError, match="still use"):
        record.release()
    del shown
    buffer = pyarrow.py_buffer(record)
    assert len(buffer) == len(record)
    with pytest.raises(BufferError, match="still use"):
        record.release()
    del buffer
    gc.collect()
    record.release()
    for _ in range(3):
        with pytest.raises(BufferError, match="flat arrays of numbers"):
            receiver.receive(LIMIT).__arrow_c_array__()


def test_settings_have_types() -> None:
    from hamlyn import _types

    names = {row[0] for row in hamlyn.settings()}
    assert set(_types.Settings.__annotations__) == names
    # The types contain the values that the library allows, if they name them.
    hints = typing.get_type_hints(_types.Settings)
    for name, _, _, allowed, _ in hamlyn.settings():
        literals: set[object] = set()
        for part in typing.get_args(hints[name]):
            if typing.get_origin(part) is typing.Literal:
                literals |= set(typing.get_args(part))
        if literals:
            assert literals == set(allowed.split(" or ")), name
    with hamlyn.Manager(wait_mode="blocking", wait_for_names=False, ring_bytes="64K"):
        pass


def test_senders_are_awaited(manager: Manager, other: Manager) -> None:
    manager.start_progress()
    stream = StreamReceiver(manager)
    stream.serve("awaited")
    tags = hamlyn.TaggedReceiver(manager, 64, tags=1)
    tags.serve("tags")
    datagrams = hamlyn.DatagramReceiver(manager, 1 << 20)
    datagrams.serve("datagrams")
    wide = hamlyn.ApertureStreamReceiver(manager, 1 << 20)
    wide.serve("wide")

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        count = 50
        big = np.zeros(60_000, dtype=np.uint8)

        async def send() -> None:
            async with await aio.StreamSender.connect(other, "awaited", LIMIT) as sender:
                for i in range(count):
                    await sender.send(b"short", LIMIT)
                    await sender.send_array(big + (i % 100), LIMIT)
                await sender.flush(LIMIT)

        sending = asyncio.create_task(send())
        taken = [bytes(record)[-1] async for record in aio.StreamReceiver(stream)]
        await sending
        assert taken[::2] == [ord("t")] * count and taken[1::2] == [i % 100 for i in range(count)]

        # There is room for one tag: the second waits on a thread, and the loop goes on.
        tagged = await aio.TaggedSender.connect(other, "tags", LIMIT)
        await tagged.send(0, b"a", 1, LIMIT)
        with pytest.raises(hamlyn.TimedOut):
            await tagged.send(0, b"b", 2, 0)
        second = asyncio.create_task(tagged.send(0, b"b", 2, LIMIT))
        before = ticks
        while ticks < before + 10:
            await asyncio.sleep(0)
        assert not second.done()
        receiver = aio.TaggedReceiver(tags)
        assert (await receiver.get_tag(LIMIT)).tag == 1
        await second
        assert (await receiver.get_tag(LIMIT)).tag == 2

        datagram = await aio.DatagramSender.connect(other, "datagrams", LIMIT)
        await datagram.send(bytes(100_000), timeout=LIMIT)
        assert len(await aio.DatagramReceiver(datagrams).receive(LIMIT)) == 100_000
        through = await aio.ApertureStreamSender.connect(other, "wide", LIMIT)
        with pytest.raises(KeyError):
            async with through:
                await through.send(b"sent", LIMIT)
                raise KeyError
        ticking.cancel()

    asyncio.run(asyncio.wait_for(main(), 3 * LIMIT))


def test_the_readme_shows_the_example_as_it_is() -> None:
    python = Path(__file__).parents[1]
    example = (python / "examples" / "pipeline.py").read_text()
    shown = (python / "README.md").read_text().split("<!-- program: pipeline.py -->\n```python\n", 1)[1]
    program = example.split('"""\n\n', 1)[1]
    assert shown.split("```", 1)[0] == program and len(example.splitlines()) < 40


def test_aio_is_imported_either_way() -> None:
    import hamlyn.aio

    assert hamlyn.aio is aio and inspect.iscoroutinefunction(aio.StreamSender.send)
