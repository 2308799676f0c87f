"""Serves the live page of a job to the browsers of this machine."""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import SHUT_RDWR
from typing import Any, Final

from rstreams_fast.spark.report.page import RUNNING, Page

__all__ = ["PageServer"]

LOOPBACK: Final = "127.0.0.1"

HOSTS: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", re.IGNORECASE)
"""The accepted values of the header ``Host``. This prevents DNS rebinding: if the name of another
site resolves to 127.0.0.1, the browser sends that name, and the server refuses the request. Any
port is accepted, because an SSH tunnel may change it."""

NEWS_SECONDS: Final = 0.5
"""Seconds between two updates of an open page."""

CLOSE_SECONDS: Final = 0.7
"""The maximum number of seconds that a closing server waits for the pages to receive the last
update. It is also the time-out of a connection for reading a line or sending an answer."""

MOST_CONNECTIONS: Final = 32
"""The maximum number of connections; each has a thread. The server refuses further connections."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageServer:
    """Serves a page on a free port of the loopback address until ``close`` is called.

    Args:
        page: The page. Several threads call its methods.

    Attributes:
        url: The address of the page.

    Raises:
        OSError: There is no free port.
    """

    def __init__(self, page: Page) -> None:
        self._server = _Server(page)
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="rstreams-page", daemon=True
        )
        self._thread.start()

    def close(self, outcome: str) -> None:
        """Send the last update to the open pages, and stop the server within two seconds.

        Args:
            outcome: How the job ended: ``ENDED`` or ``FAILED``.
        """
        self._server.shutdown()
        self._thread.join()
        self._server.finish(outcome)
        self._server.server_close()


class _Server(socketserver.TCPServer):
    """An HTTP server with a thread for each connection. ``finish`` ends all these threads.

    ``ThreadingHTTPServer`` does not fit: it asks DNS for its own host name, and it has no time-out
    for a client that sends its request byte by byte.
    """

    request_queue_size = MOST_CONNECTIONS

    def __init__(self, page: Page) -> None:
        self.page = page
        self._outcome = RUNNING
        self._changed = threading.Condition()
        self._connections: dict[Any, threading.Thread] = {}
        self._latest = ("", 0.0, b"")
        super().__init__((LOOPBACK, 0), _Handler)

    def news(self) -> bytes:
        """Return the update for open pages as JSON, at most 0.25 seconds old."""
        with self._changed:
            outcome, made, news = self._latest
            if outcome != self._outcome or time.monotonic() - made > NEWS_SECONDS / 2:
                news = json.dumps(self.page.news(self._outcome)).encode()
                self._latest = self._outcome, time.monotonic(), news
            return news

    def wait(self) -> bool:
        """Wait until the next update is due or the job ends. Return whether the job has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._outcome != RUNNING, NEWS_SECONDS)

    def finish(self, outcome: str) -> None:
        """Send the last update to the open pages; then end all connections and their threads."""
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._connections, CLOSE_SECONDS)
            left = dict(self._connections)
        for connection, thread in left.items():
            with contextlib.suppress(OSError):
                connection.shutdown(SHUT_RDWR)
            thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            if len(self._connections) >= MOST_CONNECTIONS:
                self.shutdown_request(request)
                return
            thread = threading.Thread(
                target=self._serve,
                args=(request, client_address),
                name="rstreams-page",
                daemon=True,
            )
            # Only a started thread removes its connection: if ``start`` fails, do not register it.
            thread.start()
            self._connections[request] = thread

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            with contextlib.suppress(OSError):  # the browser may have closed the page
                self.finish_request(request, client_address)
        finally:
            self.shutdown_request(request)
            with self._changed:
                del self._connections[request]
                self._changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLOSE_SECONDS

    def do_GET(self) -> None:
        if not HOSTS.fullmatch(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self._send_headers("text/html; charset=utf-8")
            self.wfile.write(self.server.page.document(live=True).encode())
        elif self.path == "/events":
            self._send_headers("text/event-stream")
            last = False
            while not last:
                last = self.server.wait()
                self.wfile.write(b"data: " + self.server.news() + b"\n\n")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send_headers(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def version_string(self) -> str:
        return "rstreams_fast"

    def log_message(self, *_: object) -> None:
        """Print nothing: a log line on the terminal would disturb the progress bar."""
