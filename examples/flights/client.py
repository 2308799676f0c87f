"""The look-ups, as they run in Spark's Python workers: one HTTP request each.

``OpenSession`` is the ``using`` of a stage: one keep-alive client per partition, opened on the
stage's loop and closed with it. The functions get it first, then the key's values.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from examples.flights.errors import DemoError

__all__ = ["OpenSession", "Session", "fetch_plane", "fetch_weather"]

HTTP_OK = 200
HTTP_NOT_FOUND = 404


class Session:
    """A client of the service, with at most ``connections`` connections, kept alive."""

    def __init__(self, url: str, connections: int) -> None:
        self._url = url
        self._connections = connections

    async def __aenter__(self) -> Self:
        # The stage bounds how many calls run and how long they may take; the client need not.
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def get(self, table: str, *key: str) -> dict[str, Any] | None:
        """Return the row with this key; None when there is none."""
        path = "/".join(quote(part, safe=":") for part in key)
        async with self._client.get(URL(f"{self._url}/{table}/{path}", encoded=True)) as response:
            if response.status == HTTP_OK:
                row: dict[str, Any] = json.loads(await response.read())
                return row
            if response.status == HTTP_NOT_FOUND:
                return None
            raise DemoError(f"{response.url} answered {response.status} {response.reason}")


class OpenSession:
    """The factory given to ``using``: small, and pickled to the workers."""

    def __init__(self, url: str, connections: int) -> None:
        self._url = url
        self._connections = connections

    def __call__(self) -> Session:
        return Session(self._url, self._connections)


async def fetch_weather(
    session: Session, origin: str, time_hour: datetime
) -> dict[str, Any] | None:
    """Look up the weather at an airport in the hour that starts at ``time_hour``."""
    moment = time_hour.astimezone(UTC) if time_hour.tzinfo else time_hour
    return await session.get("weather", origin, moment.strftime("%Y-%m-%dT%H:%M:%SZ"))


async def fetch_plane(session: Session, tailnum: str) -> dict[str, Any] | None:
    """Look up a plane by its tail number."""
    return await session.get("plane", tailnum)
