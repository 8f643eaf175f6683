"""asyncio's transports and servers over byte streams: existing protocols run over them as they are.

`hamlyn.aio` exports the public names of this module. A transport is a `Watcher` (`_loop.py`): it looks
for bytes, or for room for waiting ones, whenever something has come from any peer of its manager.
"""

from __future__ import annotations

import asyncio
import warnings
from asyncio import constants, transports
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from . import _hamlyn
from ._errors import Closed, HamlynError, Misbehaved
from ._loop import Loop, loop_of
from ._types import Access
from ._wrapped import AnyManager, connected, plain

P = TypeVar("P", bound=asyncio.BaseProtocol)

# Most bytes of one look, so that the loop's other tasks run.
_RECV_NBYTES = 65_536
# The values of asyncio.
_LIMIT = 65_536
_WRITES_AFTER_LOSS = 5
_FATAL = "Fatal error of a byte stream"


def _as_of_sockets(error: HamlynError) -> Exception:
    """The exception that a protocol for sockets expects."""
    if isinstance(error, Misbehaved):
        made: Exception = ConnectionAbortedError(str(error))
    elif isinstance(error, Closed):
        made = ConnectionResetError(str(error))
    else:
        return error
    made.__cause__ = error
    return made


class StreamTransport(transports._FlowControlMixin):
    """A byte stream as asyncio's transport, with the water marks of asyncio's own. `get_extra_info`
    knows `"peer"` (a `hamlyn.Peer`), `"peercred"` (process, user and group, from the kernel),
    `"peername"`, `"sockname"` and `"hamlyn_stream"`."""

    # `loop.sendfile` reads the file and writes it.
    _sendfile_compatible = constants._SendfileMode.FALLBACK

    def __init__(
        self,
        watch: Loop,
        stream: _hamlyn.ByteStream,
        protocol: asyncio.BaseProtocol,
        extra: dict[str, Any],
        server: Server | None = None,
        waiter: asyncio.Future[None] | None = None,
    ) -> None:
        peer = stream.peer
        extra |= {"peer": peer, "peercred": (peer.pid, peer.uid, peer.gid), "hamlyn_stream": stream}
        super().__init__(extra, watch.loop)
        self._watch, self._loop = watch, watch.loop
        self._stream = stream
        self._server = server
        self._waiting: deque[memoryview] = deque()
        self._waiting_nbytes = 0
        # This side has ended its direction, and the peer knows it.
        self._is_eof_written = self._is_eof_sent = False
        self._is_paused = self._is_eof_received = self._is_closing = False
        self._is_started = False
        self._writes_after_loss = 0
        # The end was seen, and its call is due.
        self._is_lost = False
        # Sending has failed for good; arrived bytes may still be received.
        self._send_error: Exception | None = None
        self.set_protocol(protocol)
        if server is not None:
            server._attach(self)
        self._loop.call_soon(self._start, waiter)

    def _start(self, waiter: asyncio.Future[None] | None) -> None:
        try:
            self._protocol.connection_made(self)
        except Exception as error:
            if waiter is None or waiter.done():
                self._fatal(error, "Error in connection_made()")
            else:
                waiter.set_exception(error)
                self._lose(None)
            return
        self._is_started = True
        try:
            if not self._is_lost:
                self._watch.watch(self)
        except HamlynError as error:
            # The manager was closed meanwhile.
            if waiter is None or waiter.done():
                self._fatal(_as_of_sockets(error), _FATAL)
            else:
                waiter.set_exception(error)
                self._lose(_as_of_sockets(error))
            return
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __repr__(self) -> str:
        state = "closed" if self._is_lost else "closing" if self._is_closing else "open"
        return f"<hamlyn.aio.StreamTransport {state}, of {self._stream!r}>"

    # ---- the protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # ---- looking

    @property
    def end(self) -> _hamlyn.ByteStream:
        return self._stream

    def look(self) -> bool:
        """Receives and sends as much as is possible now; returns whether that was anything."""
        if self._is_lost:
            return False
        try:
            did_send = self._send_waiting()
            if self._is_closing or self._is_paused or self._is_eof_received or self._is_lost:
                return did_send
            return self._receive() or did_send
        except HamlynError as error:
            self._fatal(_as_of_sockets(error), _FATAL)
            return True

    def fail(self, error: BaseException) -> None:
        self._fatal(error, _FATAL)

    def _receive(self) -> bool:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            return self._receive_into(protocol)
        data = self._stream.try_recv(_RECV_NBYTES)
        if data is None:
            return False
        if not data:
            self._end_of_peer()
            return True
        try:
            protocol.data_received(data)  # type: ignore[attr-defined]
        except Exception as error:
            self._fatal(error, "Fatal error: protocol.data_received() call failed.")
        return True

    def _receive_into(self, protocol: asyncio.BufferedProtocol) -> bool:
        try:
            buffer = protocol.get_buffer(-1)
            if not memoryview(buffer).nbytes:
                raise RuntimeError("get_buffer() returned an empty buffer")
        except Exception as error:
            self._fatal(error, "Fatal error: protocol.get_buffer() call failed.")
            return True
        try:
            nbytes = self._stream.try_recv_into(buffer)
        except HamlynError:
            raise
        except Exception as error:
            self._fatal(error, "Fatal error: what protocol.get_buffer() returned cannot be filled.")
            return True
        if nbytes is None:
            return False
        if nbytes == 0:
            self._end_of_peer()
            return True
        try:
            protocol.buffer_updated(nbytes)
        except Exception as error:
            self._fatal(error, "Fatal error: protocol.buffer_updated() call failed.")
        return True

    def _end_of_peer(self) -> None:
        self._is_eof_received = True
        try:
            keeps_open = self._protocol.eof_received()  # type: ignore[attr-defined]
        except Exception as error:
            self._fatal(error, "Fatal error: protocol.eof_received() call failed.")
            return
        if not keeps_open:
            self.close()

    # ---- reading

    def is_reading(self) -> bool:
        return not (self._is_closing or self._is_paused)

    def pause_reading(self) -> None:
        if not self._is_closing:
            self._is_paused = True

    def resume_reading(self) -> None:
        if not self._is_closing and self._is_paused:
            self._is_paused = False
            self._watch.soon(self)

    # ---- writing

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data is {type(data).__name__}; it is bytes, a bytearray or a memoryview")
        if self._is_eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        view = memoryview(data).cast("B") if isinstance(data, memoryview) else memoryview(data)
        if not view.nbytes:
            return
        if self._is_lost or self._send_error is not None:
            self._writes_after_loss += 1
            if self._writes_after_loss == _WRITES_AFTER_LOSS:
                warnings.warn("write() to a transport whose connection is lost", stacklevel=2)
            if self._is_paused or self._is_eof_received:
                # No further receive will report the error to the protocol.
                self._lose(self._send_error)
            return
        if not self._waiting:
            try:
                view = view[self._stream.try_send(view) :]
                self._watch.has_sent = True
            except HamlynError as error:
                self._cannot_send(error)
                return
            if not view.nbytes:
                return
        # The caller may change any object but bytes.
        self._waiting.append(view if isinstance(data, bytes) else memoryview(bytes(view)))
        self._waiting_nbytes += view.nbytes
        self._watch.soon(self)
        self._maybe_pause_protocol()  # type: ignore[attr-defined]

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._is_closing or self._is_eof_written:
            return
        self._is_eof_written = True
        self._watch.soon(self)

    def can_write_eof(self) -> bool:
        return True

    def _send_waiting(self) -> bool:
        """Sends waiting bytes, then the end, as far as there is room."""
        if self._send_error is not None:
            return False
        did_send = False
        try:
            while self._waiting:
                first = self._waiting[0]
                sent = self._stream.try_send(first)
                if sent == 0:
                    break
                did_send = True
                self._waiting_nbytes -= sent
                if sent < first.nbytes:
                    self._waiting[0] = first[sent:]
                else:
                    self._waiting.popleft()
            if did_send:
                self._maybe_resume_protocol()  # type: ignore[attr-defined]
            if not self._waiting and self._is_eof_written and not self._is_eof_sent:
                self._is_eof_sent = self._stream.try_shutdown()
                did_send = did_send or self._is_eof_sent
        except HamlynError as error:
            self._cannot_send(error)
            return True
        if self._is_closing and not self.is_sending():
            self._lose(None)
        return did_send

    def _cannot_send(self, error: HamlynError) -> None:
        """Drops the waiting bytes. Bytes that a peer sent before it was gone are received, and its
        end."""
        made = _as_of_sockets(error)
        if not isinstance(error, Closed) or self._is_closing or self._is_eof_received:
            self._fatal(made, _FATAL)
            return
        self._send_error = made
        self._waiting.clear()
        self._waiting_nbytes = 0
        self._watch.soon(self)
        # Writers must not wait for a peer that is gone.
        self._maybe_resume_protocol()  # type: ignore[attr-defined]

    def is_sending(self) -> bool:
        if self._send_error is not None:
            return False
        return bool(self._waiting) or self._is_eof_written and not self._is_eof_sent

    def get_write_buffer_size(self) -> int:
        return self._waiting_nbytes

    # ---- the end

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Sends waiting bytes; then calls the protocol's `connection_lost(None)`."""
        if self._is_closing:
            return
        self._is_closing = True
        if self.is_sending():
            self._watch.soon(self)
        else:
            self._lose(self._send_error)

    def abort(self) -> None:
        """As `close`, without sending waiting bytes."""
        self._lose(None)

    def _fatal(self, error: BaseException, message: str) -> None:
        # An error that sockets have, too, is not a bug.
        if not isinstance(error, OSError):
            self._tell(error, message)
        self._lose(error)

    def _tell(self, error: BaseException, message: str) -> None:
        context = {"message": message, "exception": error, "transport": self}
        self._loop.call_exception_handler(context | {"protocol": self._protocol})

    def _lose(self, error: BaseException | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._waiting.clear()
        self._waiting_nbytes = 0
        self._watch.unwatch(self)
        self._loop.call_soon(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        try:
            if self._is_started:
                self._protocol.connection_lost(error)  # type: ignore[arg-type]
        finally:
            # The peer receives the sent bytes, and then the end.
            self._stream.close()
            if self._server is not None:
                self._server._detach(self)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if not getattr(self, "_is_lost", True):
            _warn(f"unclosed transport {self!r}", ResourceWarning, source=self)


class Server(asyncio.AbstractServer):
    """A server of byte streams, as of `asyncio.start_server`; an asynchronous context manager."""

    def __init__(
        self,
        watch: Loop,
        listener: _hamlyn.ByteListener,
        name: str,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self.listener = listener
        self._watch, self._loop = watch, watch.loop
        self._name = name
        self._factory = protocol_factory
        self._transports: set[StreamTransport] = set()
        self._is_serving = self._is_closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._forever: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<hamlyn.aio.StreamServer of {self.listener!r}>"

    @property
    def sockets(self) -> tuple[()]:
        """Empty: it has a name, and no socket of the program's."""
        return ()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._is_serving

    @property
    def end(self) -> _hamlyn.ByteListener:
        return self.listener

    def is_sending(self) -> bool:
        return False

    def look(self) -> bool:
        """Accepts one connection; returns whether there was one."""
        try:
            stream = self.listener.try_accept()
        except HamlynError as error:
            # It was closed, perhaps with its manager; otherwise the reason why it stopped would be
            # lost.
            if not isinstance(error, Closed):
                self._tell(error, "Fatal error of a server of byte streams")
            self.close()
            return False
        if stream is None:
            return False
        try:
            protocol = self._factory()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            stream.close()
            self._tell(error, "protocol_factory() failed")
            return True
        try:
            extra = {"sockname": self._name, "peername": ""}
            StreamTransport(self._watch, stream, protocol, extra, self)
        except HamlynError:
            # The peer is gone already.
            stream.close()
        return True

    def fail(self, error: BaseException) -> None:
        self._tell(error, "Fatal error of a server of byte streams")
        self.close()

    def _tell(self, error: BaseException, message: str) -> None:
        self._loop.call_exception_handler({"message": message, "exception": error})

    async def start_serving(self) -> None:
        """Accepts connections from now on; needed only after `start_serving=False`."""
        if not self._is_serving and not self._is_closed:
            self._is_serving = True
            self._watch.watch(self)
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        """Serves until the task is cancelled; then it is closed."""
        if self._forever is not None or self._is_closed:
            raise RuntimeError(f"server {self!r} is served already, or closed")
        await self.start_serving()
        self._forever = self._loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise
        finally:
            self._forever = None

    def close(self) -> None:
        """Gives the name up. Accepted connections go on."""
        if self._is_closed:
            return
        self._is_closed, self._is_serving = True, False
        self._watch.unwatch(self)
        self.listener.close()
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._wake_if_done()

    def close_clients(self) -> None:
        """Closes every connection."""
        for transport in list(self._transports):
            transport.close()

    def abort_clients(self) -> None:
        """Aborts every connection."""
        for transport in list(self._transports):
            transport.abort()

    async def wait_closed(self) -> None:
        """Waits until it is closed and every accepted connection has ended."""
        if self._is_closed and not self._transports:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _attach(self, transport: StreamTransport) -> None:
        self._transports.add(transport)

    def _detach(self, transport: StreamTransport) -> None:
        self._transports.discard(transport)
        self._wake_if_done()

    def _wake_if_done(self) -> None:
        if self._is_closed and not self._transports:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


async def create_connection(
    protocol_factory: Callable[[], P],
    name: str,
    *,
    manager: AnyManager,
    timeout: float | None = 10.0,
    window_nbytes: int = 262_144,
    packets: int = 256,
) -> tuple[StreamTransport, P]:
    """Connects to the byte stream listener `[user@]name`, as `loop.create_connection` does to an
    address: returns a transport and the protocol that `protocol_factory` made. The other arguments are
    those of `hamlyn.ByteStream.connect`, which runs on a thread of its own, and raises its errors:
    `Unreachable`, `Refused` and `TimedOut` are also those of asyncio (`ConnectionError`,
    `TimeoutError`)."""

    def connect(timeout: float | None) -> _hamlyn.ByteStream:
        return _hamlyn.ByteStream.connect(
            plain(manager), name, timeout, window_nbytes=window_nbytes, packets=packets
        )

    stream = await connected(connect, timeout)
    protocol = protocol_factory()
    watch = loop_of(plain(manager))
    waiter: asyncio.Future[None] = watch.loop.create_future()
    extra = {"peername": name, "sockname": ""}
    transport = StreamTransport(watch, stream, protocol, extra, waiter=waiter)
    try:
        await waiter
    except BaseException:
        transport.close()
        raise
    return transport, protocol


async def create_server(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    name: str,
    *,
    manager: AnyManager,
    access: Access | None = None,
    window_nbytes: int = 262_144,
    packets: int = 256,
    connections_max: int = 256,
    start_serving: bool = True,
) -> Server:
    """Serves `name`, as `loop.create_server` does an address: each connection gets a protocol of
    `protocol_factory`. The other arguments are those of `hamlyn.ByteListener` and its `serve`."""
    listener = _hamlyn.ByteListener(
        plain(manager),
        window_nbytes=window_nbytes,
        packets=packets,
        connections_max=connections_max,
    )
    try:
        listener.serve(name, access=access)
    except BaseException:
        listener.close()
        raise
    server = Server(loop_of(plain(manager)), listener, name, protocol_factory)
    if start_serving:
        await server.start_serving()
    return server


async def open_connection(
    name: str, *, manager: AnyManager, limit: int = _LIMIT, **settings: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """`asyncio.open_connection`, for the listener `[user@]name`; `settings`: those of
    `create_connection`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await create_connection(lambda: protocol, name, manager=manager, **settings)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def start_server(
    client_connected_cb: Callable[
        [asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None
    ],
    name: str,
    *,
    manager: AnyManager,
    limit: int = _LIMIT,
    **settings: Any,
) -> Server:
    """`asyncio.start_server`, under a name; `settings`: those of `create_server`."""
    loop = asyncio.get_running_loop()

    def factory() -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return asyncio.StreamReaderProtocol(reader, client_connected_cb, loop=loop)

    return await create_server(factory, name, manager=manager, **settings)
