"""Connects a worker to the driver through the relay of its host; starts a relay if none runs.

A relay is a process that joins the connections of all workers of a host into one connection to the
driver. If a worker finds no relay, it locks the relay's lock file, and listens at the relay's
socket. Then it connects to the driver, proves that it knows the token (a secret that the limit
contains), and starts the relay process, which inherits the open sockets and the lock. Other workers
connect meanwhile: the kernel keeps their connections until the relay accepts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rstreams_fast.calls.limits import relay
from rstreams_fast.calls.limits.host_folder import private_folder
from rstreams_fast.calls.limits.messages import (
    CHALLENGE_BYTES,
    RELAY,
    WELCOME,
    Address,
    answer_to,
    keep_alive,
)

if sys.platform != "win32":
    import fcntl

__all__ = ["connect_by_relay"]

FOLDER: Final = "relays"

START_SECONDS: Final = 2.0
"""How long, in seconds, a worker waits for a relay that another worker starts."""

POLL_SECONDS: Final = 0.01
BACKLOG: Final = 4096
LONGEST_PATH: Final = 100
"""The most bytes in the path of a Unix socket: Linux allows 107, and other systems fewer."""

_started: Final[list[int]] = []
"""The process ids of the relays that this process has started."""


async def connect_by_relay(
    make: Callable[[], asyncio.Protocol], address: Address, connect_seconds: float
) -> None:
    """Connect to the driver at ``address`` through the host's relay; start a relay if none runs.

    Raises ``OSError`` if the relay cannot be used. Then the caller connects to the driver directly.
    """
    if os.name != "posix" or not sys.executable:
        raise ConnectionError("a relay needs sockets of Unix")
    loop = asyncio.get_running_loop()
    identity = f"{address.host} {address.port} ".encode() + address.token
    path = private_folder(FOLDER) / hashlib.sha256(identity).hexdigest()[:32]
    until, is_started = loop.time() + START_SECONDS, False
    while (connection := _connection_to(path)) is None:
        if not is_started and (lock := _lock_file(path)) is not None:
            is_started = True
            try:
                await _start(path, lock, address, connect_seconds)
                _remove_left_files(path.parent)
            finally:
                os.close(lock)
        elif loop.time() >= until:
            raise ConnectionError("the relay of this host does not start")
        else:
            await asyncio.sleep(POLL_SECONDS)
    try:
        await loop.create_unix_connection(make, sock=connection)
    except BaseException:
        # uvloop has closed the descriptor already. A second close by the socket could close an
        # unrelated file that has the same number by now.
        if not isinstance(loop, asyncio.BaseEventLoop):
            connection.detach()
        raise


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield a path to the socket at ``path`` that is short enough for the kernel."""
    if len(os.fsencode(path)) <= LONGEST_PATH or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _connection_to(path: Path) -> socket.socket | None:
    """Return a connection to the relay's socket, or ``None`` if no process listens there."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        with _short_path(path) as short:
            connection.connect(short)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:  # BlockingIOError, for example, if too many workers wait
        connection.close()
        raise
    return connection


def _lock_file(path: Path) -> int | None:
    """Lock the relay's lock file; return it, or ``None`` if a relay runs or is being started."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{path}{relay.LOCK}", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A relay that ended may have removed the file before it was locked: the lock is useless.
        if os.fstat(lock).st_nlink:
            return lock
    except BlockingIOError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


async def _start(path: Path, lock: int, address: Address, connect_seconds: float) -> None:
    """Listen at ``path``, connect to the driver, and start the relay process with both sockets."""
    try:
        with _listening_at(path) as listening:
            driver = await _connection_to_driver(address, connect_seconds)
            try:
                _start_script(path, driver, listening.fileno(), lock)
            finally:
                os.close(driver)
    except BaseException:
        relay.remove(str(path))
        raise


def _listening_at(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        with _short_path(path) as short:
            listening.bind(short)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _start_script(path: Path, driver: int, listening: int, lock: int) -> None:
    # -I and -S: the script needs neither installed packages nor the user's Python settings.
    command = [sys.executable, "-I", "-S", relay.__file__, str(driver), str(listening), str(path)]
    nothing = subprocess.DEVNULL
    started = subprocess.Popen(
        command,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        pass_fds=(driver, listening, lock),
        start_new_session=True,
    )
    # The relay may outlive this process. So mark the object as done: otherwise Python would warn at
    # exit that the relay still runs. ``_is_running`` does what ``poll`` would do.
    started.returncode = 0
    _started[:] = [*filter(_is_running, _started), started.pid]


def _remove_left_files(folder: Path) -> None:
    """Remove the files of relays that were killed while they ran, or while they were started."""
    with contextlib.suppress(OSError):
        for file in folder.glob(f"*{relay.LOCK}"):
            path = file.with_suffix("")
            if (lock := _lock_file(path)) is not None:
                relay.remove(str(path))
                os.close(lock)


def _is_running(relay_id: int) -> bool:
    """Return whether a relay that this process has started runs. Remove the entry of an ended one.

    Without the removal, the ended relay would stay in the system's table of processes.
    """
    try:
        return os.waitpid(relay_id, os.WNOHANG)[0] == 0
    except ChildProcessError:  # other code has removed the entry, or this is a forked child
        return False


async def _connection_to_driver(address: Address, connect_seconds: float) -> int:
    """Connect to the driver as a relay, and authenticate; return the connection's descriptor."""
    async with asyncio.timeout(connect_seconds):
        reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        keep_alive(writer.transport)
        challenge = await reader.readexactly(CHALLENGE_BYTES)
        writer.write(answer_to(challenge, address._replace(number=RELAY)))
        if await reader.readexactly(len(WELCOME)) != WELCOME:
            raise ConnectionError("the driver does not know this job")
        # The abort below closes only the original descriptor: this copy keeps the connection open.
        return os.dup(writer.get_extra_info("socket").fileno())
    except EOFError as raised:
        raise ConnectionError("the connection has ended") from raised
    finally:
        writer.transport.abort()
