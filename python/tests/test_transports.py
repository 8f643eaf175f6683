"""asyncio's transports over byte streams: the guarantees that asyncio's protocols rely on, with
protocols of asyncio's own and of others."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import hamlyn
import pytest
from conftest import LIMIT, Children
from hamlyn import _transports, aio


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(main, LIMIT)

    asyncio.run(limited())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(10_000):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    writer.close()
    await writer.wait_closed()


class Recorder(asyncio.Protocol):
    """Records the calls of its transport."""

    def __init__(self, keeps_open: bool = False) -> None:
        self.told: list[str] = []
        self.data = bytearray()
        self.keeps_open = keeps_open
        self.error: Exception | None = None
        self.transport: asyncio.Transport
        self.changed = asyncio.Event()

    def tell(self, what: str) -> None:
        self.told.append(what)
        self.changed.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.tell("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.tell("data")

    def eof_received(self) -> bool:
        self.tell("eof")
        return self.keeps_open

    def connection_lost(self, error: Exception | None) -> None:
        self.error = error
        self.tell("lost")

    def pause_writing(self) -> None:
        self.tell("pause")

    def resume_writing(self) -> None:
        self.tell("resume")

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


Ends = tuple[aio.StreamServer, Recorder, Recorder]


async def ends(
    manager: hamlyn.Manager, other: hamlyn.Manager, keeps_open: bool = False, window_nbytes: int = 65_536
) -> Ends:
    """A server, its one protocol, and that of the client."""
    made: list[Recorder] = []

    def factory() -> Recorder:
        made.append(Recorder(keeps_open))
        return made[-1]

    server = await aio.create_server(
        factory, "ends", manager=manager, window_nbytes=window_nbytes
    )
    _, client = await aio.create_connection(
        lambda: Recorder(keeps_open), "ends", manager=other, window_nbytes=window_nbytes
    )
    while not made or "made" not in made[0].told:
        await asyncio.sleep(0.001)
    return server, made[0], client


def test_stream_readers_and_writers_run_over_it(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    async def main() -> None:
        async with await aio.start_server(echo, "echo", manager=manager) as server:
            assert server.is_serving() and server.sockets == ()

            async def client(number: int) -> None:
                reader, writer = await aio.open_connection("echo", manager=other)
                data = os.urandom(200_000) + bytes([number])
                writer.write(data[:10])
                writer.writelines([data[10:100], bytearray(data[100:1000]), memoryview(data)[1000:]])
                writer.write_eof()
                assert await reader.read() == data
                writer.close()
                await writer.wait_closed()

            await asyncio.gather(*map(client, range(10)))
            reader, writer = await aio.open_connection("echo", manager=other, limit=2**20)
            writer.write(b"a line\nand another\n")
            assert await reader.readline() == b"a line\n"
            assert await reader.readuntil(b"ther\n") == b"and another\n"
            peer = writer.get_extra_info("peer")
            assert isinstance(peer, hamlyn.Peer) and peer.pid == os.getpid()
            assert writer.get_extra_info("peercred") == (os.getpid(), os.getuid(), os.getgid())
            assert writer.get_extra_info("peername") == "echo"
            assert writer.get_extra_info("socket") is None
            writer.close()
        await server.wait_closed()
        assert not server.is_serving()
        with pytest.raises(ConnectionError):
            await aio.open_connection("echo", manager=other, timeout=0.05)

    run(main())


def test_a_writer_is_paused_at_the_high_water_mark_and_goes_on_at_the_low_one(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    async def main() -> None:
        server, there, here = await ends(manager, other, window_nbytes=4096)
        there.transport.pause_reading()
        assert not there.transport.is_reading()
        transport = here.transport
        transport.set_write_buffer_limits(high=10_000, low=1_000)
        assert transport.get_write_buffer_limits() == (1_000, 10_000)
        changing = bytearray(b"x" * 9_000)
        transport.write(changing)
        changing[:] = b"y" * 9_000
        assert "pause" not in here.told and 0 < transport.get_write_buffer_size() < 10_000
        transport.write(b"z" * 50_000)
        assert here.told[-1] == "pause"
        for _ in range(20):
            await asyncio.sleep(0.001)
        # A read that was on its way when it was paused is all that comes.
        assert len(there.data) <= 65_536 and "resume" not in here.told
        there.transport.resume_reading()
        await there.until(lambda: len(there.data) == 59_000)
        await here.until(lambda: "resume" in here.told)
        assert there.data == b"x" * 9_000 + b"z" * 50_000
        assert transport.get_write_buffer_size() == 0
        with pytest.raises(ValueError):
            transport.set_write_buffer_limits(high=1, low=2)
        with pytest.raises(TypeError):
            transport.write("text")  # type: ignore[arg-type]
        # Waiting bytes are sent before it is closed.
        transport.write(b"w" * 50_000)
        transport.write_eof()
        with pytest.raises(RuntimeError):
            transport.write(b"more")
        transport.close()
        assert transport.is_closing() and "lost" not in here.told
        await there.until(lambda: "lost" in there.told)
        await here.until(lambda: "lost" in here.told)
        assert len(there.data) == 109_000 and there.told[-2:] == ["eof", "lost"]
        assert here.error is None and there.error is None
        server.close()
        await server.wait_closed()

    run(main())


def test_each_direction_ends_by_itself(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    async def main() -> None:
        server, there, here = await ends(manager, other, keeps_open=True)
        assert here.transport.can_write_eof()
        here.transport.write(b"all of it")
        here.transport.write_eof()
        await there.until(lambda: "eof" in there.told)
        assert there.data == b"all of it" and "lost" not in there.told
        there.transport.write(b"answer")
        there.transport.close()
        await here.until(lambda: "eof" in here.told)
        assert here.data == b"answer" and "lost" not in here.told
        here.transport.close()
        await here.until(lambda: "lost" in here.told)
        assert server.get_loop() is asyncio.get_running_loop()
        server.close()

    run(main())


def test_what_is_aborted_is_lost_at_once(manager: hamlyn.Manager, other: hamlyn.Manager) -> None:
    async def main() -> None:
        server, there, here = await ends(manager, other, window_nbytes=4096)
        there.transport.pause_reading()
        here.transport.write(b"x" * 100_000)
        here.transport.abort()
        here.transport.abort()
        here.transport.close()
        await here.until(lambda: "lost" in here.told)
        assert here.error is None and here.told.count("lost") == 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(6):
                here.transport.write(b"late")
        assert len(caught) == 1
        there.transport.resume_reading()
        await there.until(lambda: "lost" in there.told)
        server.close_clients()
        server.abort_clients()
        server.close()
        await server.wait_closed()

    run(main())


class Filler(asyncio.BufferedProtocol):
    """Is given memory to fill."""

    def __init__(self) -> None:
        self.memory = bytearray(100)
        self.data = bytearray()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.memory

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.memory[:nbytes]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)


class Answer(asyncio.Protocol):
    """Sends each piece that comes back, so often."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds
        self.done = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.left -= 1
        if self.left >= 0:
            self.transport.write(data)
        else:
            self.done.set()


@pytest.mark.parametrize("mode", ["blocking", "adaptive"])
def test_transports_look_when_something_has_come_for_them(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: dict[int, int] = {}
    look = _transports.StreamTransport.look

    def counted(transport: _transports.StreamTransport) -> bool:
        looks[id(transport)] = looks.get(id(transport), 0) + 1
        return look(transport)

    async def main() -> None:
        connect = aio.create_connection
        settings: Any = {"wait_mode": mode}
        with hamlyn.Manager(**settings) as manager, hamlyn.Manager(**settings) as other:
            server = await aio.create_server(lambda: Answer(10**9), "busy", manager=manager)
            idle = [await connect(lambda: Recorder(), "busy", manager=other) for _ in range(20)]
            to, busy = await connect(lambda: Answer(200), "busy", manager=other)
            monkeypatch.setattr(_transports.StreamTransport, "look", counted)
            to.write(b"x")
            await busy.done.wait()
            assert looks[id(to)] >= 200
            # Those that have nothing; each may still have its first look to come.
            assert sum(looks.get(id(silent), 0) for silent, _ in idle) <= 2 * len(idle)
            server.close()
            to.abort()
            for silent, _ in idle:
                silent.abort()

    run(main())


def test_a_buffered_protocol_gets_its_own_memory_filled(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    async def main() -> None:
        fillers: list[Filler] = []

        def factory() -> Filler:
            fillers.append(Filler())
            return fillers[-1]

        server = await aio.create_server(factory, "filled", manager=manager)
        transport, _ = await aio.create_connection(asyncio.Protocol, "filled", manager=other)
        data = os.urandom(10_000)
        transport.write(data)
        transport.close()
        while not fillers:
            await asyncio.sleep(0.001)
        await fillers[0].lost
        assert fillers[0].data == data
        server.close()

    run(main())


class ReadOnly(asyncio.BufferedProtocol):
    """Has memory that cannot be filled."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytes:
        return b"not to be written to"

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


def test_memory_that_cannot_be_filled_ends_its_connection_alone(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        made: list[ReadOnly] = []

        def factory() -> ReadOnly:
            made.append(ReadOnly())
            return made[-1]

        wrong = await aio.create_server(factory, "wrong", manager=manager)
        echoing = await aio.start_server(echo, "echo", manager=manager)
        transport, _ = await aio.create_connection(asyncio.Protocol, "wrong", manager=other)
        reader, writer = await aio.open_connection("echo", manager=other)
        transport.write(b"x")
        while not made:
            await asyncio.sleep(0.001)
        error = await made[0].lost
        assert error is not None and not isinstance(error, hamlyn.HamlynError)
        assert [context["exception"] for context in told] == [error]
        # The others of the same manager go on.
        writer.write(b"goes on")
        assert await reader.readexactly(7) == b"goes on"
        writer.close()
        transport.close()
        wrong.close()
        echoing.close()

    run(main())


@pytest.mark.parametrize("then", ["reads", "keeps it open", "writes"])
def test_the_answer_of_a_peer_that_takes_no_more_is_received(
    manager: hamlyn.Manager, other: hamlyn.Manager, then: str
) -> None:
    async def main() -> None:
        server, there, here = await ends(manager, other, keeps_open=then == "keeps it open")
        # Both are there, the answer and the end, when the client looks again.
        here.transport.pause_reading()
        there.transport.pause_reading()
        here.transport.write(b"x" * 300_000)
        assert here.transport.get_write_buffer_size() > 0 and here.told[-1] == "pause"
        answer = os.urandom(50_000)
        there.transport.write(answer)
        there.transport.close()
        await there.until(lambda: "lost" in there.told)
        while here.transport.get_write_buffer_size() > 0:
            await asyncio.sleep(0.001)
        # No writer waits for a peer that is gone.
        assert here.told[-1] == "resume" and "lost" not in here.told
        if then == "writes":
            here.transport.write(b"more")
        else:
            here.transport.resume_reading()
            await here.until(lambda: "eof" in here.told)
            assert here.data == answer
        if then == "keeps it open":
            assert "lost" not in here.told
            here.transport.write(b"more")
        await here.until(lambda: "lost" in here.told)
        # Not all that it wrote was received.
        assert isinstance(here.error, ConnectionResetError)
        server.close()

    run(main())


def test_a_connection_whose_manager_is_closed_before_it_begins_is_lost(
    manager: hamlyn.Manager,
) -> None:
    gone = hamlyn.Manager()

    class Closer(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            gone.close()

    async def main() -> None:
        server = await aio.create_server(Recorder, "begins", manager=manager)
        here = Closer()
        with pytest.raises(hamlyn.Closed):
            await aio.create_connection(lambda: here, "begins", manager=gone)
        await here.until(lambda: "lost" in here.told)
        assert here.told == ["made", "lost"] and isinstance(here.error, ConnectionResetError)
        server.close()

    run(main())


class Broken:
    """A listener that cannot accept."""

    def try_accept(self) -> None:
        raise hamlyn.HamlynError("out of order")

    def close(self) -> None:
        pass


def test_a_server_that_accepts_no_more_says_why(manager: hamlyn.Manager) -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        server = await aio.create_server(
            Recorder, "broken", manager=manager, start_serving=False
        )
        server.listener.close()
        server.listener = Broken()  # type: ignore[assignment]
        await server.start_serving()
        await server.wait_closed()
        assert [str(context["exception"]) for context in told] == ["out of order"]

    run(main())


class Thrower(asyncio.Protocol):
    def __init__(self, where: str) -> None:
        self.where = where

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.where == "connection_made":
            raise ArithmeticError(self.where)

    def data_received(self, data: bytes) -> None:
        raise ArithmeticError(self.where)


def test_what_a_protocol_raises_ends_its_connection_alone(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        server = await aio.create_server(lambda: Thrower("data"), "throws", manager=manager)
        _, here = await aio.create_connection(Recorder, "throws", manager=other)
        here.transport.write(b"x")
        await here.until(lambda: "lost" in here.told)
        assert isinstance(told[0]["exception"], ArithmeticError) and "transport" in told[0]
        with pytest.raises(ArithmeticError):
            await aio.create_connection(
                lambda: Thrower("connection_made"), "throws", manager=other
            )
        assert server.is_serving()
        server.close()
        await server.wait_closed()

    run(main())


def die(name: str) -> None:
    async def main() -> None:
        with hamlyn.Manager() as manager:
            reader, writer = await aio.open_connection(name, manager=manager)
            writer.write(b"last words")
            await reader.readexactly(2)
            os.kill(os.getpid(), 9)

    asyncio.run(main())


def test_a_peer_that_dies_is_a_reset_connection(
    manager: hamlyn.Manager, children: Children
) -> None:
    async def main() -> None:
        made = Recorder()
        server = await aio.create_server(lambda: made, "dies", manager=manager)
        children.start(die, "dies")
        await made.until(lambda: made.data == b"last words")
        made.transport.write(b"ok")
        await made.until(lambda: "lost" in made.told)
        assert isinstance(made.error, ConnectionResetError)
        assert isinstance(made.error.__cause__, hamlyn.Closed)
        server.close()

    run(main())
    children.all.clear()


def test_a_manager_that_is_closed_ends_its_connections(other: hamlyn.Manager) -> None:
    async def main() -> None:
        manager = hamlyn.Manager()
        server, there, here = await ends(manager, other)
        await asyncio.to_thread(manager.close)
        await there.until(lambda: "lost" in there.told)
        await here.until(lambda: "lost" in here.told)
        assert isinstance(there.error, ConnectionResetError)
        await server.wait_closed()
        with pytest.raises(hamlyn.Closed):
            await aio.create_server(Recorder, "late", manager=manager)

    run(main())


def test_a_server_serves_until_it_is_cancelled(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    async def main() -> None:
        server = await aio.start_server(echo, "for-ever", manager=manager, start_serving=False)
        serving = asyncio.create_task(server.serve_forever())
        reader, writer = await aio.open_connection("for-ever", manager=other)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        writer.close()
        await writer.wait_closed()
        with pytest.raises(RuntimeError):
            await server.serve_forever()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert not server.is_serving()

    run(main())


def test_a_transport_that_is_forgotten_says_so(
    manager: hamlyn.Manager, other: hamlyn.Manager
) -> None:
    async def main() -> None:
        server, there, here = await ends(manager, other)
        assert "open" in repr(here.transport) and "StreamServer" in repr(server)
        here.transport.close()
        await there.until(lambda: "lost" in there.told)
        assert "closed" in repr(there.transport)
        server.close()

    run(main())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert not [w for w in caught if "unclosed" in str(w.message)]


def test_a_file_is_sent_by_the_loop(
    manager: hamlyn.Manager, other: hamlyn.Manager, directory: str
) -> None:
    data = os.urandom(1_000_000)
    path = f"{directory}/data"
    with open(path, "wb") as file:
        file.write(data)

    async def main() -> None:
        async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with open(path, "rb") as file:
                await asyncio.get_running_loop().sendfile(writer.transport, file)
            writer.close()

        server = await aio.start_server(send, "file", manager=manager)
        reader, writer = await aio.open_connection("file", manager=other)
        assert await reader.read() == data
        writer.close()
        server.close()

    run(main())


def test_aiohttp_runs_over_it(
    manager: hamlyn.Manager, other: hamlyn.Manager, directory: str
) -> None:
    try:
        import aiohttp
        from aiohttp import web
    except ImportError:
        missing = "NOT TESTED: aiohttp is not installed (pip install aiohttp)"
        if os.environ.get("HAMLYN_TEST_ALL") and not os.environ.get("HAMLYN_NO_AIOHTTP"):
            pytest.fail(missing)
        pytest.skip(missing)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        return web.Response(text=f"{request.path} {len(body)}", headers={"X-Kind": "plain"})

    async def parts(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for i in range(100):
            await response.write(bytes([i]) * 5000)
        return response

    async def talk(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data.upper())
        return socket

    async def page(_: web.Request) -> web.StreamResponse:
        return web.FileResponse(f"{directory}/page.txt")

    class Connector(aiohttp.BaseConnector):  # type: ignore[misc, unused-ignore]
        async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
            made = await aio.create_connection(self._factory, "http", manager=other)
            return made[1]

    async def main() -> None:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/post", answer)
        app.router.add_get("/parts", parts)
        app.router.add_get("/talk", talk)
        with open(f"{directory}/page.txt", "w") as file:
            file.write("a page " * 50_000)
        app.router.add_get("/page", page)
        runner = web.AppRunner(app)
        await runner.setup()
        assert runner.server is not None
        server = await aio.create_server(runner.server, "http", manager=manager)
        async with aiohttp.ClientSession(connector=Connector()) as session:

            async def post(size: int) -> None:
                async with session.post("http://any/post", data=b"x" * size) as response:
                    assert response.status == 200 and response.headers["X-Kind"] == "plain"
                    assert await response.text() == f"/post {size}"

            await asyncio.gather(*(post(size) for size in (0, 1, 100, 70_000, 3_000_000)))
            async with session.get("http://any/parts") as response:
                body = await response.read()
                assert len(body) == 500_000 and body[-1] == 99
            async with session.get("http://any/page") as response:
                assert await response.text() == "a page " * 50_000
            async with session.ws_connect("http://any/talk") as socket:
                for word in ("over", "shared", "memory"):
                    await socket.send_str(word)
                    assert (await socket.receive()).data == word.upper()
        server.close()
        await runner.cleanup()
        await server.wait_closed()

    run(main())


