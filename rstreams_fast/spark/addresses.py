"""Finds the addresses of the driver's server for ``Limit(scope="job")``."""

from __future__ import annotations

import socket
from typing import Any

from rstreams_fast._third_parties import pyspark_for

__all__ = ["own_addresses"]


def own_addresses() -> tuple[str, str]:
    """Return the address to listen at, and the address at which executors reach this process.

    Without a Spark session, both are the loopback address.
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
    # With Spark Connect this process is a client, not the driver. Executors can probably connect to
    # the local address that this client uses for its connection to the Spark Connect server.
    host = _address_towards(_without_brackets(session.client.host))
    return host, host


def _without_brackets(host: str) -> str:
    """Return ``host`` without the brackets that Spark puts around an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _address_towards(server: str) -> str:
    """Return the local address that this machine uses to reach ``server``; IPv4 if possible."""
    refused: OSError | None = None
    try:
        found = socket.getaddrinfo(server, 9, type=socket.SOCK_DGRAM)
    except OSError as unknown:
        found, refused = [], unknown
    found.sort(key=lambda address: address[0] != socket.AF_INET)
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)  # UDP: sends nothing, but sets the local address
                return str(sock.getsockname()[0])
        except OSError as raised:
            refused = raised
    raise RuntimeError(
        f"Limit(scope='job'): {server}, where Spark Connect is, has no address by which "
        "executors could come back to this process; scope='executor' needs none"
    ) from refused
