"""An HTTP service of rows in a process of its own, which has a limit, and counts what it sees.

A request has rows as JSON, as lines, or as Elasticsearch's bulk has them. ``GET`` tells the counts.
Rows over the limit, a second's worth of which may come at once, are answered 429, all of them. A
request whose first row has a field ``status`` is answered with this status once, with the row's
fields ``retry_after`` and ``location`` as headers.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Final, Self

from aiohttp import web

ROOT: Final = Path(__file__).parents[2]
MARK: Final = "id"
"""The field that tells rows apart."""


class HttpService:
    """What a test knows of the service. ``words`` are those of ``_Service``."""

    def __init__(self, **words: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.http_service", json.dumps(words)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/rows"

    def seen(self) -> dict[str, Any]:
        """Return the counts."""
        with urllib.request.urlopen(self.url, timeout=20) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def progress(self) -> int:
        """Return how many different rows the service has."""
        with urllib.request.urlopen(f"{self.url}/progress", timeout=20) as answer:
            return int(answer.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it


class _Service:
    def __init__(
        self,
        *,
        rate: float = 0,
        fails: float = 0,
        hopeless: int = 0,
        secret: str = "",
        lame: int = 0,
        busy: int = 0,
    ) -> None:
        """``rate``: rows a second. ``fails``: the share of rows that fail at first. ``hopeless``:
        each row with such a number always fails. ``secret``: of the header ``Authorization``.
        ``lame``: requests answered 500 at first. ``busy``: then so many are answered 429.
        """
        self.rate, self.fails, self.hopeless = rate, fails, hopeless
        self.secret, self.lame, self.busy = secret, lame, busy
        self.tokens, self.since = rate, time.monotonic()
        self.ids = Counter[str]()
        self.failed = Counter[str]()
        self.keys = Counter[str]()
        self.statuses = Counter[int]()
        self.sizes = Counter[int]()
        self.peers = set[Any]()
        self.numbers: dict[int, str] = {}
        self.new: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()

    async def rows(self, request: web.Request) -> web.Response:
        self.peers.add(request.transport and request.transport.get_extra_info("peername")[1])
        self.keys[request.headers.get("Idempotency-Key", "")] += 1
        status, answer, headers = self._answer(request, await request.text())
        self.statuses[status] += 1
        return web.json_response(answer, status=status, headers=headers)

    def _answer(self, request: web.Request, text: str) -> tuple[int, Any, dict[str, str]]:
        if self.secret and request.headers.get("Authorization") != self.secret:
            return 401, None, {}
        if self.lame:
            self.lame -= 1
            return 500, "down", {}
        if self.busy:
            self.busy -= 1
            return 429, None, {"Retry-After": "0.01"}
        is_json = request.content_type == "application/json"
        found = json.loads(text) if is_json else list(map(json.loads, text.splitlines()))
        found = found if isinstance(found, list) else [found]
        rows, own = found, [row.get(MARK) for row in found]
        if is_bulk := bool(found) and "index" in found[0]:
            rows, own = found[1::2], [line["index"]["_id"] for line in found[::2]]
        self.sizes[len(rows)] += 1
        first, name = rows[0], request.headers.get("Idempotency-Key", "")
        if first.get("status") and self.keys[name] == 1:
            names = {"retry_after": "Retry-After", "location": "Location"}
            told = {shown: first[name] for name, shown in names.items() if first.get(name)}
            return first["status"], "as the row says", told
        if self.rate:
            now = time.monotonic()
            self.tokens = min(self.rate, self.tokens + (now - self.since) * self.rate)
            self.since = now
            if self.tokens < len(rows):
                after = (len(rows) - self.tokens) / self.rate
                return 429, None, {"Retry-After": f"{after:.3f}"}
            self.tokens -= len(rows)
        results = [self._status(str(mark), row) for mark, row in zip(own, rows, strict=True)]
        self.accepted[int(time.time())] += len(rows)
        if is_bulk:
            return 200, {"items": [{"index": {"status": status}} for status in results]}, {}
        return 200, results, {}

    def _status(self, mark: str, row: dict[str, Any]) -> int:
        number = int(row.get("n", 0))
        if self.hopeless and number % self.hopeless == 1:
            return 422
        if mark not in self.ids and mark not in self.failed and number % 1000 < 1000 * self.fails:
            self.failed[mark] += 1
            return 500
        self.new[int(time.time())] += mark not in self.ids
        self.numbers.setdefault(number, mark)
        self.ids[mark] += 1
        return 200

    async def progress(self, _: web.Request) -> web.Response:
        return web.Response(text=str(len(self.ids)))

    async def counts(self, _: web.Request) -> web.Response:
        told = {name: getattr(self, name) for name in ("ids", "keys", "statuses", "sizes")}
        more = {"new": self.new, "accepted": self.accepted, "connections": len(self.peers)}
        more["numbers"] = sorted(self.numbers)
        return web.json_response({**told, **more, "failed": self.failed.total()})


async def _main() -> None:
    service = _Service(**json.loads(sys.argv[1]))
    app = web.Application(client_max_size=1 << 26)
    app.add_routes(
        [
            web.get("/rows/progress", service.progress),
            web.get("/rows", service.counts),
            web.post("/rows", service.rows),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    await ended.wait()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_main())
