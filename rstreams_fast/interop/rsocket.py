"""RSocket (``rsocket`` on PyPI): serves streams over RSocket, and returns responses as streams.

RSocket's publishers and subscribers differ from Reactive Streams in three points. One call may
signal the last element and the completion. ``request`` sends a frame to the server. All calls must
be on one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from rstreams_fast._third_parties import importing
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.errors import WorkDroppedError
from rstreams_fast.runtime.executors import LoopWork, resource, take_held
from rstreams_fast.streams.factories import from_publisher
from rstreams_fast.streams.stream import Stream

with importing("rsocket", __name__, "'rstreams_fast[rsocket]'"):
    from reactivestreams.publisher import Publisher as RSocketPublisher
    from rsocket.payload import Payload

__all__ = ["from_rsocket", "to_rsocket"]

#: The largest ``n`` that a request frame can contain. To RSocket this ``n`` means "all elements".
_MOST = 2**31 - 1

#: More seconds than any event loop runs.
_FOR_EVER = 1e9


def to_rsocket(
    publisher: Publisher[Any],
    /,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    prefetch: int = 256,
) -> RSocketPublisher:
    """Return ``publisher`` as an RSocket publisher, for a request handler to return.

    The payloads are delivered on ``loop``, when the client requests them. An element that is not a
    payload ends the stream with a ``TypeError``. A payload without data and metadata ends the
    stream with a ``ValueError``, because ``rsocket`` would lose such a payload.

    Args:
        publisher: A publisher of ``rsocket.payload.Payload``, with ``bytes`` as data or metadata.
        loop: The server's event loop. Default: the running loop.
        prefetch: The number of payloads that are requested in advance.
    """
    loop = asyncio.get_running_loop() if loop is None else loop
    payloads = from_publisher(publisher).map(_checked_payload)
    return _Served(payloads.publish_on(loop, prefetch=prefetch))


def from_rsocket(
    request: Callable[[], Any], /, *, loop: asyncio.AbstractEventLoop | None = None
) -> Stream[Any]:
    """Return a stream of the payloads that a server sends in response to an RSocket request.

    Example: ``from_rsocket(lambda: client.request_stream(payload))``. Each ``request(n)`` of a
    subscriber is sent to the server. To RSocket an ``n`` of 2**31 - 1 or more means "all elements".

    Args:
        request: A function that makes the RSocket request. It is called for each subscriber, on
            ``loop``, when the subscriber first requests elements.
        loop: The client's event loop, which signals to subscribers. Default: the running loop. If
            it is closed before a stream has ended, the stream ends with a ``WorkDroppedError``.
    """
    if not callable(request):
        raise TypeError(f"request must be callable, got {type(request).__name__}")
    return from_publisher(_Requested(request, loop or asyncio.get_running_loop()))


def _checked_payload(payload: Any) -> Any:
    """Return ``payload``, or raise an error if ``rsocket`` would fail to send it to the client."""
    if not isinstance(payload, Payload):
        raise TypeError(f"to_rsocket: an element must be a Payload, got {type(payload).__name__}")
    for part in (payload.data, payload.metadata):
        if part is not None and not isinstance(part, bytes | bytearray | memoryview):
            kind = type(part).__name__
            raise TypeError(f"to_rsocket: a Payload must have bytes, got {kind}")
    if not payload.data and not payload.metadata:
        raise ValueError("to_rsocket: a Payload has neither data nor metadata, and would be lost")
    return payload


class _Served(RSocketPublisher):  # type: ignore[misc]
    def __init__(self, stream: Stream[Any]) -> None:
        self._stream = stream

    def subscribe(self, subscriber: Any) -> None:
        self._stream.subscribe(subscriber)


class _Requested(Publisher[Any]):
    def __init__(self, request: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._request = request
        self._loop = loop

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        subscriber.on_subscribe(_RequestSubscription(self._request, self._loop, subscriber))


class _RequestSubscription:
    """The subscription to the responses of an RSocket request. Is also RSocket's subscriber.

    Any thread may call ``request`` and ``cancel``, and any thread may close the event loop, which
    calls ``_drop``. All other methods run on the event loop.
    """

    def __init__(
        self,
        request: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
        subscriber: Subscriber[Any],
    ) -> None:
        self._make_request = request
        self._loop = loop
        self._on_loop = resource(loop)
        self._subscriber = subscriber
        self._requester: Any = None
        self._alive = [True]  # empty when the stream has ended, or was cancelled
        self._timer: Callable[[], asyncio.TimerHandle | None] = lambda: None

    def request(self, n: int, /) -> None:
        try:
            self._on_loop.execute(partial(self._ask, min(n, _MOST)), self._drop)
        except WorkDroppedError as error:
            self._drop(error)

    def cancel(self) -> None:
        with contextlib.suppress(WorkDroppedError):  # if the loop is closed, so is the connection
            self._on_loop.execute(self._cancel, lambda _: None)

    def _drop(self, error: BaseException) -> None:
        if self._end():
            self._subscriber.on_error(error)

    def _end(self) -> bool:
        """End the subscription. Return whether it had not ended before."""
        has_ended = take_held(self._alive) is None
        if (timer := self._timer()) is not None:
            timer.cancel()
        return not has_ended

    def _ask(self, n: int) -> None:
        if not self._alive:
            return
        if self._requester is not None:
            self._requester.request(n)
            return
        # A loop that is closed drops its timers. Then the timer's ``LoopWork`` ends this stream,
        # which may wait for an element. So only the loop may have a strong reference to the timer.
        self._timer = weakref.ref(
            self._loop.call_later(_FOR_EVER, LoopWork(lambda: None, self._drop))
        )
        try:
            # The frame of the RSocket request itself carries the first request for elements.
            self._requester = self._make_request()
            self._requester.initial_request_n(n).subscribe(self)
        except Exception as error:
            self.on_error(error)

    def _cancel(self) -> None:
        if self._end() and self._requester is not None:
            self._requester.cancel()

    # -- the methods of RSocket's ``Subscriber`` ---------------------------------------------------

    def on_subscribe(self, subscription: Any) -> None:
        pass  # not needed: ``_requester``, the RSocket request, has ``request`` and ``cancel``

    def on_next(self, payload: Any, is_complete: bool = False) -> None:
        if self._alive:
            self._subscriber.on_next(payload)
            if is_complete:
                self.on_complete()

    def on_error(self, error: Exception) -> None:
        self._drop(error)

    def on_complete(self) -> None:
        if self._end():
            self._subscriber.on_complete()
