"""The methods of ``Stream`` that share one subscription among several subscribers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

from rstreams_fast.streams.engine.defaults import MULTICAST_BUFFER
from rstreams_fast.streams.methods.composing import with_part
from rstreams_fast.streams.operators.multicast import Multicast, MulticastOptions
from rstreams_fast.streams.operators.replay import Replay, ReplayBounds

if TYPE_CHECKING:
    from rstreams_fast.runtime.timers import Timer

__all__ = ["SharingMethods"]

T_co = TypeVar("T_co", covariant=True)


class SharingMethods(Generic[T_co]):
    """The base class of ``Stream`` with ``multicast``, ``share`` and ``replay``."""

    __slots__ = ()

    def multicast(
        self,
        *,
        buffer_size: int = MULTICAST_BUFFER,
        slow: Literal["gate", "drop"] = "gate",
        min_subscribers: int = 1,
        on_last_cancel: Literal["shut_down", "keep", "restart"] = "shut_down",
        delay_error: bool = False,
    ) -> Self:
        """Return a stream whose subscribers share one subscription to upstream.

        All subscribers get the same elements. A subscriber can be ahead of another subscriber by at
        most ``buffer_size`` elements. The buffer has the elements that some subscriber has not
        received yet. A late subscriber starts at the oldest element in the buffer. See
        ``MulticastProcessor`` for the other rules.

        Args:
            buffer_size: The largest lead of the fastest over the slowest subscriber, in elements.
            slow: With ``"gate"`` no elements are requested while the slowest subscriber is
                ``buffer_size`` elements behind the fastest. With ``"drop"`` the fastest subscriber
                sets the pace, and a subscriber that is more than ``buffer_size`` elements behind
                gets a ``BufferOverflowError``.
            min_subscribers: The number of subscribers that start the subscription to upstream.
            on_last_cancel: What happens when the last subscriber has cancelled. ``"shut_down"``
                cancels upstream, and a later subscriber gets a ``ShutDownError``. ``"keep"`` makes
                no requests until the next subscriber comes. ``"restart"`` cancels upstream, and
                subscribes to upstream again for the next subscriber, even if upstream has ended.
            delay_error: Whether an error is signalled after the elements in the buffer.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument has a wrong value.
        """
        options = MulticastOptions(buffer_size, slow, delay_error)
        return with_part(self, Multicast(options, min_subscribers, on_last_cancel))

    def share(self, *, buffer_size: int = MULTICAST_BUFFER) -> Self:
        """Return a stream whose subscribers share a subscription, which can start again.

        The first subscriber starts the subscription to upstream. When the last subscriber has
        cancelled, upstream is cancelled. The next subscriber starts a new one. See ``multicast``.

        Args:
            buffer_size: The largest lead of the fastest over the slowest subscriber, in elements.
        """
        return self.multicast(buffer_size=buffer_size, on_last_cancel="restart")

    def replay(
        self,
        *,
        count: int | None = None,
        max_bytes: int | None = None,
        weigher: Callable[[T_co], int] | None = None,
        seconds: float | None = None,
        buffer_size: int = MULTICAST_BUFFER,
        slow: Literal["gate", "drop"] = "gate",
        min_subscribers: int = 1,
        on_last_cancel: Literal["keep", "shut_down", "restart"] = "keep",
        delay_error: bool = False,
        timer: Timer | None = None,
    ) -> Self:
        """Return a stream like ``multicast`` that also stores elements for late subscribers.

        A subscriber gets the stored elements even after the end of upstream. At least one of
        ``count``, ``max_bytes`` and ``seconds`` must be given. If several are given, the bound that
        keeps the fewest elements applies. See ``ReplayProcessor`` for the other rules.

        Args:
            count: Store the last ``count`` elements.
            max_bytes: Store the last elements that together have at most ``max_bytes`` bytes.
            weigher: ``weigher(element)`` returns the size in bytes. Required with ``max_bytes``.
            seconds: Store the elements that came in the last ``seconds`` seconds.
            buffer_size: As in ``multicast``.
            slow: As in ``multicast``.
            min_subscribers: As in ``multicast``.
            on_last_cancel: As in ``multicast``.
            delay_error: As in ``multicast``.
            timer: The clock for ``seconds``. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: No bound is given, or an argument has a wrong value.
        """
        bounds = ReplayBounds(count, max_bytes, weigher, seconds, timer)
        options = MulticastOptions(buffer_size, slow, delay_error)
        return with_part(self, Replay(bounds, options, min_subscribers, on_last_cancel))
