"""The live page of a run, served to the browsers of this machine."""

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
"""The values of the header ``Host`` that the server accepts. The name of another site may resolve
to 127.0.0.1, but then the browser sends that name as ``Host``. A tunnel may change the port."""

NEWS_SECONDS: Final = 0.5
"""How often a page receives new figures (``news``)."""

CLOSE_SECONDS: Final = 0.7
"""How long a closing server waits until the pages have received the last news. This is also the
time-out of a connection for reading a line, and for sending an answer."""

MOST_CONNECTIONS: Final = 32
"""The most connections. Each connection has a thread. The server refuses further connections."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageServer:
    """Serves a page on a free port of the loopback address until it is closed.

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
        """Send the last figures to the open pages, and stop within two seconds.

        Args:
            outcome: How the run ended: ``ENDED`` or ``FAILED``.
        """
        self._server.shutdown()
        self._thread.join()
        self._server.finish(outcome)
        self._server.server_close()


class _Server(socketserver.TCPServer):
    """A server with a thread for each connection. When it closes, it ends all these threads.

    The threading server of ``http.server`` is not used: it asks a name server for its own name, and
    waits without end for a client that sends its request byte by byte.
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
        """Return the news as JSON: the parts of the page that change, at most 0.25 s old."""
        with self._changed:
            outcome, made, news = self._latest
            if outcome != self._outcome or time.monotonic() - made > NEWS_SECONDS / 2:
                news = json.dumps(self.page.news(self._outcome)).encode()
                self._latest = self._outcome, time.monotonic(), news
            return news

    def wait(self) -> bool:
        """Wait until the pages need new figures; return whether the run has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._outcome != RUNNING, NEWS_SECONDS)

    def finish(self, outcome: str) -> None:
        """Send the last figures to the open pages; then end all connections."""
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
            self._connections[request] = thread
        thread.start()

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            with contextlib.suppress(OSError):  # the browser has closed the page
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
        """Print nothing: requests in the terminal would disturb the bar."""
