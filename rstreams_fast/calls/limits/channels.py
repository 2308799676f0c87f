"""The driver's end of a relay's connection, which carries a channel for each worker of a host.

A relay is a process that joins the connections of a host's workers to the driver. The module
``relay`` describes the frames on the joint connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any, Final, cast

from rstreams_fast.calls.limits.messages import WELCOME
from rstreams_fast.calls.limits.relay import FRAME

__all__ = ["Channel", "Channels", "last_bytes"]

END: Final = b""


class Channel(asyncio.Transport):
    """The transport to one worker. Its bytes travel over the shared connection of a relay."""

    def __init__(self, channels: Channels, number: int, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._channels = channels
        self._number = number
        self.protocol = protocol
        self._closing = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.Protocol, protocol)

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._channels.send(self._number, bytes(data))

    def close(self) -> None:
        """End the channel after all written bytes are sent."""
        if not self._closing:
            self._channels.end(self._number)
            asyncio.get_running_loop().call_soon(self.lost, None)

    abort = close

    def lost(self, exc: Exception | None) -> None:
        """Call ``connection_lost`` of the worker's protocol, unless that was done before."""
        if not self._closing:
            self._closing = True
            self.protocol.connection_lost(exc)


class Channels(asyncio.Protocol):
    """Protocol of a relay's connection: passes the bytes of each frame to the worker's protocol."""

    def __init__(self, transport: asyncio.Transport, make: Callable[[], asyncio.Protocol]) -> None:
        self._transport = transport
        self._make = make
        self._received = b""
        self._open: dict[int, Channel] = {}
        self._newest = 0
        self._unsent: dict[int, bytes] = {}
        self._ended: list[int] = []
        self._is_send_scheduled = False
        transport.write(WELCOME)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        at = 0
        while at + FRAME.size <= len(received):
            number, size = FRAME.unpack_from(received, at)
            start = at + FRAME.size
            if len(received) < start + size:
                break
            at = start + size
            channel = self._open.get(number)
            if channel is None:
                # The number of a channel that the driver has ended: ignore its last frames.
                if number > self._newest:
                    self._newest = number
                    channel = self._open[number] = Channel(self, number, self._make())
                    channel.protocol.connection_made(channel)
            elif size:
                channel.protocol.data_received(received[start:at])
            else:
                del self._open[number]
                channel.lost(None)
        self._received = received[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.data_received(last_bytes(self._transport))
        for channel in self._open.values():
            channel.lost(exc or ConnectionResetError("the relay has ended"))
        self._open.clear()

    def send(self, number: int, data: bytes) -> None:
        """Send ``data`` to a channel, in one write with all other data of this loop iteration."""
        self._unsent[number] = self._unsent.get(number, b"") + data
        self._send_soon()

    def end(self, number: int) -> None:
        """Send the unsent data of a channel, then end the channel."""
        if self._open.pop(number, None) is not None:
            self._ended.append(number)
            self._send_soon()

    def _send_soon(self) -> None:
        if not self._is_send_scheduled:
            self._is_send_scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_send_scheduled = False
        frames = [FRAME.pack(number, len(data)) + data for number, data in self._unsent.items()]
        frames += [FRAME.pack(number, 0) for number in self._ended]
        self._unsent.clear()
        self._ended.clear()
        if not self._transport.is_closing():
            self._transport.write(b"".join(frames))


def last_bytes(transport: asyncio.BaseTransport) -> bytes:
    """Return the last bytes of a broken connection, which the event loop has not read.

    After a failed write, an event loop reads nothing more from a connection.
    """
    connection: Any = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        return os.read(connection.fileno(), 1 << 16)
    return b""
