"""The look-up service: a process of its own on loopback, asyncio HTTP over SQLite.

    GET /weather/EWR/2013-01-01T10:00:00Z    the weather, as JSON, or 404
    GET /plane/N14228                        the plane, as JSON, or 404
    GET /stats                               what the service has counted itself

It behaves as such a service does in a data centre: it takes ``latency`` seconds for an answer, and
``slow`` seconds for a share of them. It counts how many requests it holds at once: evidence, from
the other side of the wire, that a bound was kept. It listens on a port the system chooses, which it
prints, and ends when its standard input is closed: it cannot outlive the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sqlite3
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from examples.flights.data import PLANE, WEATHER, Table

__all__ = ["Behaviour", "Service", "main"]

GRACE_SECONDS: Final = 1.0
"""How long requests in flight may still take when the service is stopped."""

_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Behaviour:
    """How fast the service answers. Times are seconds."""

    latency: float = 0.002
    slow: float = 0.050
    slow_share: float = 0.02
    stall_after: int = 0
    """After so many look-ups none is answered for ``stall`` seconds; 0: never."""
    stall: float = 0.0
    seed: int = 2013


@dataclass
class Stats:
    """What the service counted. ``held`` and ``max_held`` are requests not yet answered."""

    requests: int = 0
    held: int = 0
    max_held: int = 0
    hits: int = 0
    misses: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    """Requests per table."""


class Service:
    """The handler of all requests, for one event loop."""

    def __init__(self, database: str, behaviour: Behaviour) -> None:
        self._database = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        self._behaviour = behaviour
        self._random = random.Random(behaviour.seed)
        self._queries = {table.name: _query(table) for table in (WEATHER, PLANE)}
        self._stalled_until = 0.0
        self.stats = Stats(tables=dict.fromkeys(self._queries, 0))

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer one request."""
        _, name, *key = request.raw_path.split("/")
        if name == "stats":
            return web.json_response(asdict(self.stats))
        if name not in self._queries or request.method != "GET":
            return web.Response(status=400, text=f"no such table: {name}")
        stats = self.stats
        stats.requests += 1
        stats.tables[name] += 1
        stats.held += 1
        stats.max_held = max(stats.max_held, stats.held)
        try:
            await asyncio.sleep(self._delay())
            body = self._look_up(name, tuple(map(unquote, key)))
        finally:
            stats.held -= 1
        if body is None:
            stats.misses += 1
            return web.Response(status=404)
        stats.hits += 1
        return web.Response(body=body, headers=_JSON)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _delay(self) -> float:
        behaviour = self._behaviour
        now = asyncio.get_running_loop().time()
        if self.stats.requests == behaviour.stall_after:
            self._stalled_until = now + behaviour.stall
        slow = self._random.random() < behaviour.slow_share
        return max(behaviour.slow if slow else behaviour.latency, self._stalled_until - now)

    def _look_up(self, name: str, key: tuple[str, ...]) -> bytes | None:
        query, columns = self._queries[name]
        try:
            row = self._database.execute(query, key).fetchone()
        except sqlite3.ProgrammingError:  # a key with too many or too few parts
            return None
        return None if row is None else json.dumps(dict(zip(columns, row, strict=True))).encode()


def _query(table: Table) -> tuple[str, list[str]]:
    wanted = ", ".join(f'"{name}"' for name in table.values)
    where = " AND ".join(f'"{name}" = ?' for name in table.key)
    query = f'SELECT {wanted} FROM "{table.name}" WHERE {where}'
    return query, [table.answer_name(name) for name in table.values]


async def _serve(database: str, behaviour: Behaviour) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Nobody writes to it: readable means that its other end was closed, by will or by death.
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    service = Service(database, behaviour)
    server = web.Server(service.handle, access_log=None)
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=GRACE_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        host, port = runner.addresses[0][:2]
        print(json.dumps({"url": f"http://{host}:{port}"}), flush=True)
        await stopped.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
        await runner.cleanup()
        service.close()


def main(argv: list[str] | None = None) -> int:
    """Run the service until standard input is closed or SIGTERM arrives."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.service")
    parser.add_argument("database", help="the SQLite file")
    for name, value in asdict(Behaviour()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = vars(parser.parse_args(argv))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the demo's, which then ends this
    with suppress(BrokenPipeError):
        asyncio.run(_serve(options.pop("database"), Behaviour(**options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
