"""The messages between a worker and the server that grants the permits of a job.

The server is in the driver's process. A worker has one connection for each running stage: one
function, in one Spark task or on one event loop. First the worker proves that it knows the token (a
secret in the ``Address`` of the limit), and names the limit. Then it declares (``d``) its identity,
how many permits its running calls hold, and how many units the limit has. The server answers with
``w``, and ends any other connection of this identity. From then on the worker requests a permit
(``a``, and the cost of the call in each unit), gives a permit back (``r``), or stops all grants for
some time (``h``, and the seconds). A stage that ends before its threads keeps the permits of these
threads (``k``, and their number). The server grants a permit by ``g``.

**Units.** The server charges the cost of a call when it grants the permit. Later the worker reports
by how much the real cost differs (``e``; a negative number gives units back). It also reports how
many units the service has left, and the cost of the call that learned this (``v``).

**Rate.** The worker reports when it has sent a granted call to the service (``l``). The server
bounds the number of granted, unsent calls: if many of them started late, they would exceed the
rate. A worker that reports nothing for ``SILENT_SECONDS`` is silent: its unsent calls delay no
other worker, and it gets no more grants until it has reported all of them.

**Concurrency.** A worker gets at most a share of the permits (``UNACKNOWLEDGED``) before its next
message. The server sends a probe (``p``) to a worker that has got its share, or that holds permits
while others wait. The worker answers (``s``). If it does not answer for ``LOST_SECONDS``, the
server disconnects it.

**Numbers.** The numbers of the newest limit apply while any worker uses the limit. The server says
whether each call needs a new permit (``+``), or one permit may serve several calls (``-``).

**Ends.** When a connection ends, the server takes its permits back. The kernel ends the connections
of a killed process. ``TCP_USER_TIMEOUT`` ends a connection whose other host is silent. A worker
that is still alive connects again, and declares the permits of its running calls.

**Hosts.** The workers of a host share one connection to the server. It belongs to a process, the
host's relay (see ``relay``). The relay answers the server's challenge with the number ``RELAY`` in
place of the number of a limit. Then each worker has a channel within this connection, for the
messages above. Without a relay, each worker connects to the server directly.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from typing import Final, NamedTuple

__all__ = [
    "ALIVE",
    "ANSWER",
    "ASK",
    "CHALLENGE_BYTES",
    "COUNT",
    "DECLARE",
    "DECLARED",
    "GIVE_BACK",
    "GRANT",
    "HOLD",
    "KEEP",
    "NUMBERS",
    "PACED",
    "PROBE",
    "REFUSED",
    "RELAY",
    "REMAINING",
    "SECONDS",
    "SENT",
    "SIZES",
    "SPEND",
    "UNPACED",
    "WELCOME",
    "Address",
    "answer_to",
    "keep_alive",
    "listening_at",
    "pack_units",
]

ASK: Final = b"a"
GIVE_BACK: Final = b"r"
HOLD: Final = b"h"
KEEP: Final = b"k"
GRANT: Final = b"g"
SENT: Final = b"l"
DECLARE: Final = b"d"
WELCOME: Final = b"w"
REFUSED: Final = b"n"
PACED: Final = b"+"
UNPACED: Final = b"-"
SPEND: Final = b"e"
REMAINING: Final = b"v"
PROBE: Final = b"p"
ALIVE: Final = b"s"
SECONDS: Final = struct.Struct("!d")
COUNT: Final = struct.Struct("!I")
# The data of ``DECLARE``: the identity, the number of permits in use, and the number of units.
DECLARED: Final = struct.Struct("!16sIB")
CHALLENGE_BYTES: Final = 32
SIZES: Final = {HOLD: SECONDS.size, KEEP: COUNT.size, DECLARE: DECLARED.size}
"""How many bytes of data follow a message of each of these kinds."""
NUMBERS: Final = {ASK: 1, SPEND: 1, REMAINING: 2}
"""How many numbers for each unit of the limit follow a message of each of these kinds."""
# The answer to the server's challenge: a digest, and the server's number for the limit.
ANSWER: Final = struct.Struct("!32sI")
RELAY: Final = (1 << 32) - 1
"""The number that a relay sends in place of the number of a limit."""


SILENT_HOST_SECONDS: Final = 5.0
"""After this many seconds without a sign of the other host, the connection ends."""


class Address(NamedTuple):
    """Where a client finds a limit: the server's address, the secret token, the limit's number."""

    host: str
    port: int
    token: bytes
    number: int


def answer_to(challenge: bytes, address: Address) -> bytes:
    """Return the answer to the server's challenge: a digest, and the number of the limit."""
    return ANSWER.pack(hmac.digest(address.token, challenge, "sha256"), address.number)


def pack_units(units: tuple[float, ...]) -> bytes:
    """Return ``units`` as the bytes that follow a message."""
    return struct.pack(f"!{len(units)}d", *units)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel end the connection within seconds when the other host is gone."""
    found: socket.socket = transport.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Keep-alive probes do not end a connection with unacknowledged data; TCP_USER_TIMEOUT does.
    milliseconds = int(SILENT_HOST_SECONDS * 1000)
    for option, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", int(SILENT_HOST_SECONDS) - 1),
        ("TCP_USER_TIMEOUT", milliseconds),
    ):
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def listening_at(host: str, backlog: int) -> socket.socket:
    """Return a socket that listens at an address or name of this machine, on IPv4 if possible."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    found.sort(key=lambda address: address[0] != socket.AF_INET)
    for family, _, _, _, address in found:
        both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        try:
            return socket.create_server(
                address, family=family, backlog=backlog, dualstack_ipv6=both
            )
        except OSError as raised:
            refused = raised
    raise refused
