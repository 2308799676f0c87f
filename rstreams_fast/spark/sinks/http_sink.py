"""``sinks.http``: sends rows to an HTTP service as JSON, with one connection pool per partition."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

from rstreams_fast._checks import check_choice
from rstreams_fast._third_parties import importing
from rstreams_fast.calls.ids import call_id
from rstreams_fast.calls.journal.uris import check_no_keys, shown_uri
from rstreams_fast.calls.lists.batching import Batching
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.spark.options import batching_of
from rstreams_fast.spark.sinks.functions import CalledSink
from rstreams_fast.spark.sinks.json_values import json_text

__all__ = ["HttpError", "HttpSink", "http"]

MOST_CHARACTERS: Final = 500
"""An error shows at most this many characters of a service's answer."""

_MEDIA: Final = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "elasticsearch-bulk": "application/x-ndjson",
}

_TRANSIENT: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,  # a request with the same idempotency key is running
    HTTPStatus.LOCKED,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
)
"""The statuses below 500 after which a repetition of the same request may succeed."""

_RETRY_AFTER_STATUSES: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]


class HttpError(Exception):
    """A service answered with a status that is no success, or refused a row of the request.

    If ``is_hopeless`` is true, ``Retry`` makes no further attempt, unless ``Retry(on=)`` says so.

    Args:
        status: The HTTP status.
        text: The beginning of the answer.
    """

    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        self.text = text
        super().__init__(status, text)

    @property
    def is_hopeless(self) -> bool:
        """Whether a repetition of the same request would fail again.

        This is so for statuses below 500, except 408, 409, 423, 425 and 429.
        """
        return self.status < HTTPStatus.INTERNAL_SERVER_ERROR and self.status not in _TRANSIENT

    def __str__(self) -> str:
        return f"HTTP status {self.status}" + (self.text and f": {self.text}")


def http(
    url: str,
    *,
    method: str = "POST",
    batch: int | Batching | None = None,
    body: Literal["json", "ndjson", "elasticsearch-bulk"] = "json",
    headers: Headers | None = None,
    partial: Callable[[Any, int], list[Any]] | None = None,
    id_header: str | None = "Idempotency-Key",
    id_field: str | None = None,
) -> HttpSink:
    """Send rows to an HTTP service: ``rs.write(frame, rs.sinks.http(url, batch=100))``.

    This sink needs aiohttp. It keeps ``concurrency`` connections alive. The answers 429 and 503
    raise ``RetryAfter`` with the seconds or the date of their header ``Retry-After``; other
    failures raise ``HttpError``. A ``Policy`` may be applied to the sink. If the service refuses a
    request, all rows of the request have failed. The sink follows no redirect: some redirects turn
    a ``POST`` into a ``GET``, and the rows would be lost.

    ```python
    import rstreams_fast.spark as rs

    sink = rs.sinks.http("https://example.org/rows", batch=100, body="ndjson", id_field="id")
    patient = rs.Policy(timeout=30.0, retry=rs.Retry(5))(sink)
    ```

    Args:
        url: The address of the requests, without keys and passwords: put them in ``headers``.
        method: The method of the requests.
        batch: The maximum number of rows per request, or a ``Batching``. Default: one row per
            request.
        body: With ``"json"`` a row is an object. If ``batch`` is given, the body is an array of
            rows. With ``"ndjson"`` each row is a line. With ``"elasticsearch-bulk"`` there is a
            line before each row, with the row's ``call_id`` as ``_id``; the answer says which rows
            failed. Times are ISO texts, decimals are texts, and bytes are base64.
        headers: Headers of all requests, or a function that returns them, for secrets. The worker
            calls this function when a partition begins, and again after the answer 401.
        partial: ``partial(answer, rows)`` gets the answer's JSON and the number of rows. It returns
            a list with the result of each row; an exception is the failure of the row. Default: if
            the request succeeds, all its rows have succeeded.
        id_header: The name of the header for the ``call_id`` of the row. For a list of rows the
            header has a digest of all ids. ``None``: no such header.
        id_field: The name of a field that is added to each row, with the row's ``call_id``. The
            frame must not have a column of this name.

    Returns:
        The sink.

    Raises:
        TypeError: An argument has the wrong type; the message names the argument.
        ValueError: An argument has a wrong value; the message names the argument.
    """
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, got {type(url).__name__}")
    check_no_keys("url", url)
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {shown_uri(url)!r}")
    check_choice("body", body, tuple(_MEDIA))
    if headers is not None and not callable(headers) and not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping or a function, got {type(headers).__name__}")
    if partial is not None and not callable(partial):
        raise TypeError(f"partial must be callable, got {type(partial).__name__}")
    made = HttpSink()
    made.url, made.method, made.body = url, method, body
    made.batch = batching_of(batch) or Batching(1, linger=0)
    made.is_list = batch is not None
    made.headers, made.partial = headers, partial
    made.id_header, made.id_field = id_header, id_field
    return made


class HttpSink(CalledSink):
    """Sends rows to an HTTP service, made by ``http``. Immutable."""

    url: str
    method: str
    body: str
    is_list: bool
    headers: Headers | None
    partial: Callable[[Any, int], list[Any]] | None
    id_header: str | None
    id_field: str | None

    @property
    def target(self) -> str:
        return f"{self.method} {self.url}"

    def check(self, names: tuple[str, ...]) -> None:
        if self.id_field in names:
            raise ValueError(f"id_field: the frame has a column {self.id_field!r}")

    @contextlib.asynccontextmanager
    async def client(self, concurrency: int) -> AsyncIterator[_Client]:
        with importing("aiohttp", "sinks.http", "'rstreams_fast[http]'"):
            import aiohttp
        pool = aiohttp.TCPConnector(limit=concurrency)
        # Disable aiohttp's default time-out: the user's policy sets time-outs.
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=pool, timeout=timeout) as session:
            yield _Client(session, self)

    async def __call__(self, client: _Client, rows: list[dict[str, Any]]) -> list[Any] | None:
        results: list[Any] = [None] * len(rows)
        bodies, ids, places = [], [], []
        for place, row in enumerate(rows):
            own = call_id(row)
            try:
                bodies.append(self._encode(row, own))
            except (TypeError, ValueError) as refused:
                # Report the error for this row only, so that the other rows are sent. By default
                # ``Retry`` repeats a ValueError, but not a TypeError. This row would fail again.
                results[place] = TypeError(f"the row has no form in JSON: {refused}")
            else:
                ids.append(own)
                places.append(place)
        if bodies:
            answers = await client.send(bodies, ids)
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results

    def _encode(self, row: dict[str, Any], own: str) -> bytes:
        if self.id_field is not None:
            row = {**row, self.id_field: own}
        text = json_text(row, allow_nan=False, separators=(",", ":"))
        if self.body == "elasticsearch-bulk":
            text = f'{{"index":{{"_id":"{own}"}}}}\n{text}'
        return text.encode()

    def __repr__(self) -> str:
        return f"http({shown_uri(self.url)!r})"


class _Client:
    """The HTTP connections and headers of one partition."""

    def __init__(self, session: Any, sink: HttpSink) -> None:
        self._session = session
        self._sink = sink
        self._headers = self._new_headers()

    def _new_headers(self) -> dict[str, str]:
        headers = self._sink.headers
        own = (headers() if callable(headers) else headers) or {}
        if not isinstance(own, Mapping):
            raise TypeError(f"headers must be a mapping, got {type(own).__name__}")
        for name, value in own.items():
            # Check the type here: the error of aiohttp would show the value, which may be a secret.
            if not isinstance(value, str):
                raise TypeError(f"headers: {name} must be a str, got {type(value).__name__}")
        return {"Content-Type": _MEDIA[self._sink.body], **own}

    async def send(self, bodies: list[bytes], ids: list[str]) -> list[Any]:
        """Send one request with these rows; return the result of each row."""
        sink, rows = self._sink, len(bodies)
        if sink.body != "json":
            content = b"\n".join(bodies) + b"\n"
        else:
            content = b"[%s]" % b",".join(bodies) if sink.is_list else bodies[0]
        status, text, headers = await self._request(content, ids)
        if status == HTTPStatus.UNAUTHORIZED and callable(sink.headers):
            self._headers = self._new_headers()
            status, text, headers = await self._request(content, ids)
        if status in _RETRY_AFTER_STATUSES:
            raise _retry_after(headers.get("Retry-After"))
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            moved = headers.get("Location")
            if moved is not None and status < HTTPStatus.BAD_REQUEST:
                raise HttpError(status, f"a redirect to {shown_uri(moved)}")
            raise HttpError(status, _shortened(text))
        if sink.partial is None and sink.body != "elasticsearch-bulk":
            return [None] * rows
        try:
            answer = json.loads(text)
        except ValueError:
            raise ValueError(f"{sink!r}: the answer {_shortened(text)!r} is no JSON") from None
        if sink.partial is None:
            giver, found = "the answer", _results_of(answer)
        else:
            giver, found = "partial", sink.partial(answer, rows)
        if not isinstance(found, list | tuple) or len(found) != rows:
            size = f" of {len(found)}" if isinstance(found, list | tuple) else ""
            raise TypeError(
                f"{sink!r}: {giver} must give a list with the result of each of {rows} rows, "
                f"and gave {type(found).__name__}{size}"
            )
        return list(found)

    async def _request(
        self, content: bytes, ids: list[str]
    ) -> tuple[int, bytes, Mapping[str, str]]:
        sink, headers = self._sink, self._headers
        if sink.id_header is not None:
            own = ids[0] if not sink.is_list else _digest(ids)
            headers = {**headers, sink.id_header: own}
        request = self._session.request(
            sink.method, sink.url, data=content, headers=headers, allow_redirects=False
        )
        async with request as response:
            return response.status, await response.read(), response.headers


def _retry_after(after: str | None) -> RetryAfter:
    with contextlib.suppress(ValueError):  # ignore a malformed header
        return RetryAfter(after)
    return RetryAfter()


def _digest(ids: list[str]) -> str:
    return hashlib.blake2b("".join(ids).encode(), digest_size=16).hexdigest()


def _shortened(text: bytes) -> str:
    return text[:MOST_CHARACTERS].decode(errors="replace")


def _results_of(answer: Any) -> list[Exception | None]:
    """Return the result of each row from the answer of Elasticsearch's bulk API."""
    if not isinstance(answer, dict) or "items" not in answer:
        raise ValueError(
            f"the answer {json.dumps(answer)[:MOST_CHARACTERS]!r} is none of Elasticsearch's"
        )
    return [_result_of(item) for item in answer["items"]]


def _result_of(item: dict[str, Any]) -> Exception | None:
    """Return the exception of a row whose item in a bulk answer is a failure; else ``None``."""
    result = next(iter(item.values()))
    status = result["status"]
    if status in _RETRY_AFTER_STATUSES:
        return RetryAfter()
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return None
    return HttpError(status, json.dumps(result.get("error"))[:MOST_CHARACTERS])
