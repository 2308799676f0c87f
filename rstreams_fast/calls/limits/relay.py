"""The relay of a host: passes bytes between its workers and the driver, over one connection.

A worker runs this file as a script. The script inherits three open files: the connection to the
driver, the socket at which it listens for workers, and the locked lock file. The kernel frees the
lock when the relay ends. The relay passes messages on without reading them: only the workers and
the driver know the limits. It ends when the driver's connection ends, or when it has had no worker
for ``IDLE_SECONDS``.

**Frames.** In the driver's connection each worker has a channel with a number. A frame consists of
this number, a length, and bytes of the channel. A frame without bytes opens a new channel, and ends
an open one.

The script imports only a few modules of the standard library, to start within some 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import sys
import time
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final

__all__ = ["FRAME", "LOCK", "Relay", "remove"]

FRAME: Final = struct.Struct("!II")
"""The head of a frame: the number of the channel, and how many bytes follow."""

LOCK: Final = ".lock"
"""The suffix of the lock file: its path is the path of the relay's socket plus this suffix."""

IDLE_SECONDS: Final = 5.0
"""After this many seconds without a worker, the relay ends."""

ACCEPT_AGAIN_SECONDS: Final = 0.05
MOST_BYTES: Final = 1 << 18


class _Peer:
    """A connection to a worker or to the driver, with the bytes that are not sent yet."""

    def __init__(self, connection: socket.socket, number: int = 0) -> None:
        self.connection = connection
        self.number = number
        self.unsent = bytearray()
        self.events = EVENT_READ

    def received(self) -> bytes | None:
        """Return received bytes; ``None`` if none have come; ``b""`` if the connection has ended.

        If a worker was killed, the kernel still returns its last bytes first.
        """
        try:
            return self.connection.recv(MOST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self) -> None:
        """Send as many of the unsent bytes as the kernel takes."""
        try:
            sent = self.connection.send(self.unsent)
        except BlockingIOError:
            return
        except OSError:  # the connection has ended; the next ``received`` reports this
            sent = len(self.unsent)
        del self.unsent[:sent]


class Relay:
    """Passes bytes between the driver and the workers that connect to the socket ``listening``."""

    def __init__(self, driver: socket.socket, listening: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._driver = _Peer(driver)
        self._listening = listening
        self._workers: dict[int, _Peer] = {}
        self._newest = 0
        self._received = bytearray()
        self._changed: set[_Peer] = set()
        for connection in (driver, listening):
            connection.setblocking(False)
        self._selector.register(driver, EVENT_READ, self._driver)
        self._selector.register(listening, EVENT_READ)

    def run(self) -> None:
        """Pass bytes on until the driver's connection ends, or no worker comes for a while."""
        while ready := self._selector.select(None if self._workers else IDLE_SECONDS):
            for key, events in ready:
                peer = key.data
                if peer is None:
                    self._accept()
                    continue
                self._changed.add(peer)
                if not events & EVENT_READ:
                    continue
                if (data := peer.received()) is None:
                    continue
                if peer is not self._driver:
                    self._pass_to_driver(peer, data)
                elif data:
                    self._pass_to_workers(data)
                else:
                    return
            self._send()

    def _send(self) -> None:
        for peer in self._changed:
            if peer.unsent:
                peer.send()
            events = EVENT_READ | EVENT_WRITE if peer.unsent else EVENT_READ
            if events != peer.events and peer.connection.fileno() >= 0:
                peer.events = events
                self._selector.modify(peer.connection, events, peer)
        self._changed.clear()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError:  # too many open files: wait until some workers have ended
            time.sleep(ACCEPT_AGAIN_SECONDS)
            return
        connection.setblocking(False)
        self._newest += 1
        worker = self._workers[self._newest] = _Peer(connection, self._newest)
        self._selector.register(connection, EVENT_READ, worker)
        self._add_frame(worker, b"")

    def _add_frame(self, worker: _Peer, data: bytes) -> None:
        self._driver.unsent += FRAME.pack(worker.number, len(data)) + data
        self._changed.add(self._driver)

    def _pass_to_driver(self, worker: _Peer, data: bytes) -> None:
        # Earlier in this loop pass, a frame from the driver may have ended the channel.
        if worker.number in self._workers:
            self._add_frame(worker, data)
            if not data:
                self._end(worker)

    def _pass_to_workers(self, data: bytes) -> None:
        self._received += data
        at, received = 0, self._received
        while at + FRAME.size <= len(received):
            number, size = FRAME.unpack_from(received, at)
            start = at + FRAME.size
            if len(received) < start + size:
                break
            worker = self._workers.get(number)
            if worker is not None and size:
                worker.unsent += received[start : start + size]
                self._changed.add(worker)
            elif worker is not None:
                worker.send()  # the channel ends after these bytes
                self._end(worker)
            at = start + size
        del received[:at]

    def _end(self, worker: _Peer) -> None:
        del self._workers[worker.number]
        worker.unsent.clear()
        self._selector.unregister(worker.connection)
        worker.connection.close()


def remove(path: str) -> None:
    """Remove the socket and the lock file of a relay. The caller holds the lock."""
    for name in (path, path + LOCK):
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - pathlib doubles the time that the script needs to start


def _main() -> None:
    driver, listening = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    Relay(driver, listening).run()
    remove(sys.argv[3])


if __name__ == "__main__":
    _main()
