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
    """``multicast``, ``share`` and ``replay``."""

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
        """One subscription to the stream above, shared by all subscribers below.

        All subscribers get the same elements. A subscriber can be ahead of another by at most
        ``buffer_size`` elements. A late subscriber starts at the oldest element that is still held
        for another subscriber. See ``MulticastProcessor`` for the other rules.

        Args:
            buffer_size: The most elements between the fastest and the slowest subscriber.
            slow: With ``"gate"`` no elements are requested while the slowest subscriber is
                ``buffer_size`` elements behind the fastest. With ``"drop"`` the fastest subscriber
                sets the pace, and a subscriber that is more than ``buffer_size`` elements behind
                gets a ``BufferOverflowError``.
            min_subscribers: How many subscribers must come before the source is subscribed to.
            on_last_cancel: What happens when the last subscriber has cancelled. ``"shut_down"``
                cancels the source, and a later subscriber gets a ``ShutDownError``. ``"keep"``
                makes no requests until the next subscriber comes. ``"restart"`` cancels the source
                and subscribes to the source anew for the next subscriber, even if the source has
                ended.
            delay_error: Signal an error after the elements in the buffer, not at once.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument has a wrong value.
        """
        options = MulticastOptions(buffer_size, slow, delay_error)
        return with_part(self, Multicast(options, min_subscribers, on_last_cancel))

    def share(self, *, buffer_size: int = MULTICAST_BUFFER) -> Self:
        """``multicast`` that subscribes when the first subscriber comes. After the last subscriber
        has cancelled, the next subscriber starts a new subscription.

        Args:
            buffer_size: The most elements between the fastest and the slowest subscriber.
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
        """``multicast`` that keeps elements for late subscribers, even after the end.

        At least one of ``count``, ``max_bytes`` and ``seconds`` must be given. If there are
        several, the bound that keeps the fewest elements applies. See ``ReplayProcessor`` for the
        other rules.

        Args:
            count: Keep the last ``count`` elements.
            max_bytes: Keep as many of the last elements as weigh at most ``max_bytes`` together.
            weigher: ``weigher(element)`` gives the bytes of an element; needed with ``max_bytes``.
            seconds: Keep the elements of the last ``seconds``.
            buffer_size: As in ``multicast``.
            slow: As in ``multicast``.
            min_subscribers: As in ``multicast``.
            on_last_cancel: As in ``multicast``.
            delay_error: As in ``multicast``.
            timer: The clock of ``seconds``. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: No bound is given, or an argument has a wrong value.
        """
        bounds = ReplayBounds(count, max_bytes, weigher, seconds, timer)
        options = MulticastOptions(buffer_size, slow, delay_error)
        return with_part(self, Replay(bounds, options, min_subscribers, on_last_cancel))
