"""A subscriber that writes to an ``asyncio.StreamWriter``, as fast as the socket accepts data."""

from __future__ import annotations

import asyncio

from rstreams_fast._checks import check_capacity
from rstreams_fast.api import Processor, Subscriber, Subscription
from rstreams_fast.streams.factories import from_publisher
from rstreams_fast.streams.processors import processor
from rstreams_fast.streams.sinks.run import Run

__all__ = ["WriterSubscriber"]


class WriterSubscriber(Subscriber[bytes]):
    """Writes each element (``bytes``), and awaits ``writer.drain()`` before the next element.

    So the memory in use is bounded, even if the other end of the connection reads slowly: it has at
    most ``prefetch`` elements, and the writer's own buffer (up to its ``high`` water mark).
    Construct this subscriber on the event loop of ``writer``. Signals may come from any thread, one
    after the other (§1.3). If the connection is lost, upstream is cancelled, and ``await run``
    raises the error. The caller must close the writer. The subscriber accepts one subscription
    and cancels any other (§2.5).

    Args:
        writer: An ``asyncio.StreamWriter``.
        prefetch: The number of elements that are requested in advance.

    Attributes:
        run: The ``Run`` of this subscriber. Await it to wait for the end, or call its ``cancel``.
    """

    __slots__ = ("_writing", "run")

    def __init__(self, writer: asyncio.StreamWriter, *, prefetch: int = 16) -> None:
        check_capacity("prefetch", prefetch)
        if not callable(getattr(writer, "drain", None)):
            raise TypeError(f"writer must be a StreamWriter, got {type(writer).__name__}")
        loop = asyncio.get_running_loop()

        async def write(data: bytes) -> bool:
            writer.write(data)
            await writer.drain()
            return True

        self._writing: Processor[bytes, bool] = processor(
            lambda stream: stream.map_async(write, concurrency=1, prefetch=prefetch, loop=loop)
        )
        self.run: Run = from_publisher(self._writing).for_each(bool)

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Accept the first subscription and cancel any other subscription (§2.5).

        Args:
            subscription: The subscription to upstream.
        """
        self._writing.on_subscribe(subscription)

    def on_next(self, element: bytes, /) -> None:
        """Write ``element`` to the writer, after all earlier elements.

        Args:
            element: The bytes to write.
        """
        self._writing.on_next(element)

    def on_error(self, error: BaseException, /) -> None:
        """End ``run``, the stream's handle, with the error of upstream.

        Args:
            error: The error of upstream, an exception instance.
        """
        self._writing.on_error(error)

    def on_complete(self) -> None:
        """End ``run``, the stream's handle, as soon as all elements are written."""
        self._writing.on_complete()
