"""Where the driver listens, and the address by which executors know it."""

from __future__ import annotations

import socket
from typing import Any

from rstreams_fast._third_parties import pyspark_for

__all__ = ["own_addresses"]


def own_addresses() -> tuple[str, str]:
    """Return where to listen, and the address that executors know this process by; loopback
    without a session.
    """
    pyspark_for("Limit(scope='job')")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session: Any = SparkSession.active()
    except PySparkException:
        return "127.0.0.1", "127.0.0.1"
    if "connect" not in type(session).__module__:
        host = str(session.conf.get("spark.driver.host", "127.0.0.1"))
        here = str(session.conf.get("spark.driver.bindAddress", host))
        return _without_brackets(here), _without_brackets(host)
    # There the driver is elsewhere. What leads to its server may lead back from its executors.
    host = _way_to(_without_brackets(session.client.host))
    return host, host


def _without_brackets(host: str) -> str:
    """Return an address of IPv6 as sockets take it; Spark writes ``[::1]``."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _way_to(server: str) -> str:
    """Return the address from which this process goes to ``server``; of IPv4 if it has both."""
    refused: OSError | None = None
    try:
        found = socket.getaddrinfo(server, 9, type=socket.SOCK_DGRAM)
    except OSError as unknown:
        found, refused = [], unknown
    found.sort(key=lambda address: address[0] != socket.AF_INET)
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as way:
                way.connect(address)  # sends nothing
                return str(way.getsockname()[0])
        except OSError as raised:
            refused = raised
    raise RuntimeError(
        f"Limit(scope='job'): {server}, where Spark Connect is, has no address by which "
        "executors could come back to this process; scope='executor' needs none"
    ) from refused
