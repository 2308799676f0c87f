"""The messages between a worker and the process that serves the permits of a job.

A worker has a connection for each stage at work. The worker proves that it knows the token, and
names the limit. Then it declares (``d``) an identity, how many permits its calls have, and how many
units a call has. The server answers with ``w``, and ends any other connection of this identity. The
worker asks for a permit (``a`` and the units of the call), gives a permit back (``r``), or stops
all grants for some time (``h`` and the seconds). A stage that ends before its threads keeps the
permits of these threads (``k`` and the number). The server grants a permit by ``g``.

**Units.** The server charges the units of a call when it grants the permit. The worker reports
further units spent (``e``; a number < 0 gives units back). It also reports how many units the
service has left, with the units of the call that learned this (``v``).

**Rate.** The worker reports when a call was sent (``l``). Until then its grant is under way. The
server bounds the number of grants under way: if many calls started late, they would exceed the
rate. A worker without a report for ``SILENT_SECONDS`` delays no other worker, and gets no more
grants until it reports.

**Concurrency.** A worker gets a share of the limit (``UNACKNOWLEDGED``), and more only after its
next message. The server probes a worker (``p``) that waits for permits, or keeps others waiting.
The worker answers (``s``). A worker without an answer for ``LOST_SECONDS`` is disconnected.

**Numbers.** The numbers of the newest limit apply while any worker uses them. The server sends
whether each call needs a permit of its own (``+``), or a permit may serve several calls (``-``).

**Ends.** When a connection ends, the server takes its permits back. The kernel ends the connections
of a killed process. ``TCP_USER_TIMEOUT`` ends a connection when the other host is silent. A worker
that is still alive connects again, and declares the permits of its calls.

**Hosts.** The workers of a host share one connection to the server, the connection of the host's
``relay``. The relay answers the challenge with the number ``RELAY``, not with the number of a
limit. Then each worker has a channel, with the messages above. Without a relay, each worker
connects itself.
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
# The identity, the number of permits in use, and how many units a call has.
DECLARED: Final = struct.Struct("!16sIB")
CHALLENGE_BYTES: Final = 32
SIZES: Final = {HOLD: SECONDS.size, KEEP: COUNT.size, DECLARE: DECLARED.size}
"""How many bytes of data follow a message of this kind."""
NUMBERS: Final = {ASK: 1, SPEND: 1, REMAINING: 2}
"""How many numbers for each unit follow a message of this kind."""
# The answer to the challenge: a digest, and the number by which the server knows the limit.
ANSWER: Final = struct.Struct("!32sI")
RELAY: Final = (1 << 32) - 1
"""The number that a relay sends instead of the number of a limit."""


SILENT_HOST_SECONDS: Final = 5.0
"""How long the other host may be silent before the connection ends."""


class Address(NamedTuple):
    """The address of the server of a limit, with the token that a client needs."""

    host: str
    port: int
    token: bytes
    number: int


def answer_to(challenge: bytes, address: Address) -> bytes:
    """Return a digest of the challenge, and the number by which the server knows the limit."""
    return ANSWER.pack(hmac.digest(address.token, challenge, "sha256"), address.number)


def pack_units(units: tuple[float, ...]) -> bytes:
    """Return the bytes of ``units``, which follow a message."""
    return struct.pack(f"!{len(units)}d", *units)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Make the connection end within seconds when the other host is gone."""
    found: socket.socket = transport.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Keep-alive alone does not end a connection with unconfirmed data.
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
    """Return a socket that listens at an address or a name of this machine; IPv4 if possible."""
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
