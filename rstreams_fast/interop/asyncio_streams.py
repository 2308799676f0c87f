"""asyncio's streams: a subscriber that writes as fast as the socket takes it."""

from __future__ import annotations

import asyncio

from rstreams_fast._checks import check_capacity
from rstreams_fast.api import Processor, Subscriber, Subscription
from rstreams_fast.streams.factories import from_publisher
from rstreams_fast.streams.processors import processor
from rstreams_fast.streams.sinks.ends import Run

__all__ = ["WriterSubscriber"]


class WriterSubscriber(Subscriber[bytes]):
    """Writes each element, which is bytes, and waits in ``drain()`` before the next.

    So at most ``prefetch`` elements and what the writer buffers (its ``high`` water mark) are held,
    however slow the other side reads. Made on the writer's loop; signals may come from any thread,
    one after the other (§1.3). ``run`` is the :class:`~rstreams_fast.Run`, to await or to cancel. A
    lost connection cancels upstream, and is what ``run`` raises. Closing the writer is the
    caller's. Serves one subscription; any other is cancelled (§2.5).
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
        """Take the first subscription, cancel any other (§2.5)."""
        self._writing.on_subscribe(subscription)

    def on_next(self, element: bytes, /) -> None:
        """Write it, after those before it."""
        self._writing.on_next(element)

    def on_error(self, error: BaseException, /) -> None:
        """End with the error."""
        self._writing.on_error(error)

    def on_complete(self) -> None:
        """End when all is written."""
        self._writing.on_complete()
