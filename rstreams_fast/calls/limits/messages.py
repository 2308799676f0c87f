"""The messages between a worker and the process that serves the permits of a job.

A worker has a connection for each stage at work. It proves that it knows the token and names the
limit. It declares (``d``) an identity, how many permits its calls have, and how many units a call
has; that is answered by ``w``, and another connection of that identity is over then. The worker
asks for permits (``a`` and the units of the call), gives them back (``r``) or holds all of them
back (``h`` and the seconds). A stage that ends before its threads keeps what those need (``k`` and
how many). The server grants a permit by ``g``.

**Units.** The units of a call are taken when it is granted. The worker says what was spent besides
(``e``; < 0 gives back), and what the service says is left, with the units of a call (``v``).

**Rate.** The worker says when a call has left (``l``): only so many grants may be under way, or
late calls would start beside those that are in time. A worker that has not said so for
``SILENT_SECONDS`` holds nobody up, and is granted nothing until it has.

**Concurrency.** A worker is granted a share of the limit (``UNHEARD``), and more only when it has
sent anything since. The server asks a worker that waits for permits, or keeps others waiting, for a
sign (``p``), which the worker gives (``s``). One that gives none for ``LOST_SECONDS`` is
disconnected.

**Numbers.** Those of the limit that was made last hold, while any worker uses them. The server says
whether each call needs a permit of its own (``+``), or permits may be kept (``-``).

**Ends.** What a connection has comes back when it ends. The kernel ends it when a process is
killed; ``TCP_USER_TIMEOUT`` ends it when the other host is silent. A worker that lives connects
again and declares what its calls have.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from typing import Final, NamedTuple

__all__ = [
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
    "LEFT",
    "NUMBERS",
    "PACED",
    "PROBE",
    "REFUSED",
    "SECONDS",
    "SEE",
    "SIGN",
    "SIZES",
    "SPEND",
    "UNPACED",
    "WELCOME",
    "Address",
    "answer_to",
    "keep_alive",
    "pack_units",
]

ASK: Final = b"a"
GIVE_BACK: Final = b"r"
HOLD: Final = b"h"
KEEP: Final = b"k"
GRANT: Final = b"g"
LEFT: Final = b"l"
DECLARE: Final = b"d"
WELCOME: Final = b"w"
REFUSED: Final = b"n"
PACED: Final = b"+"
UNPACED: Final = b"-"
SPEND: Final = b"e"
SEE: Final = b"v"
PROBE: Final = b"p"
SIGN: Final = b"s"
SECONDS: Final = struct.Struct("!d")
COUNT: Final = struct.Struct("!I")
DECLARED: Final = struct.Struct("!16sIB")  # the identity, the permits in use, the units of a call
CHALLENGE_BYTES: Final = 32
SIZES: Final = {HOLD: SECONDS.size, KEEP: COUNT.size, DECLARE: DECLARED.size}
"""How long what follows a message is."""
NUMBERS: Final = {ASK: 1, SPEND: 1, SEE: 2}
"""How many numbers for each unit follow a message."""
ANSWER: Final = struct.Struct("!32sI")  # the digest, and which limit


SILENT_HOST_SECONDS: Final = 5.0
"""How long the other host may be silent."""


class Address(NamedTuple):
    """Where the permits of a limit are served, and what one must know to be given any."""

    host: str
    port: int
    token: bytes
    number: int


def answer_to(challenge: bytes, address: Address) -> bytes:
    """Return what a client answers."""
    return ANSWER.pack(hmac.digest(address.token, challenge, "sha256"), address.number)


def pack_units(units: tuple[float, ...]) -> bytes:
    """Return what follows a message about units."""
    return struct.pack(f"!{len(units)}d", *units)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the connection end within seconds where the other host is gone."""
    found: socket.socket = transport.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Keep-alive alone does not end a connection on which something was sent and not confirmed.
    milliseconds = int(SILENT_HOST_SECONDS * 1000)
    for option, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", int(SILENT_HOST_SECONDS) - 1),
        ("TCP_USER_TIMEOUT", milliseconds),
    ):
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
