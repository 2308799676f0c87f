"""Multicast: several subscribers share one upstream subscription, and get the same elements."""

from __future__ import annotations

import threading
from copy import copy
from typing import Any, Literal, TypeVar, get_args

from rstreams_fast._checks import check_bool, check_capacity, check_choice, check_count, safe_repr
from rstreams_fast.api import Processor, Publisher, Subscriber
from rstreams_fast.errors import check_subscriber
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import MULTICAST_BUFFER
from rstreams_fast.streams.operators.sharing.buffer import Retention
from rstreams_fast.streams.operators.sharing.publisher import MulticastPublisher
from rstreams_fast.streams.operators.sharing.registry import Registry
from rstreams_fast.streams.operators.sharing.subscription import MulticastSubscription

__all__ = [
    "Multicast",
    "MulticastOptions",
    "MulticastProcessor",
    "OnLastCancel",
    "Shared",
]

T = TypeVar("T")

OnLastCancel = Literal["shut_down", "keep", "restart"]
Slow = Literal["gate", "drop"]


class MulticastOptions:
    """The arguments that every multicast takes. The constructor checks the arguments."""

    def __init__(self, buffer_size: int, slow: str, delay_error: bool) -> None:
        self.buffer_size = check_capacity("buffer_size", buffer_size)
        check_choice("slow", slow, get_args(Slow))
        self.gates = slow == "gate"
        self.delay_error = check_bool("delay_error", delay_error)

    def describe(self) -> str:
        slow = "the slowest gates" if self.gates else "who lags by more is dropped"
        late = ", errors after elements" if self.delay_error else ""
        return f"at most {self.buffer_size} elements, {slow}{late}"


class MulticastProcessor(MulticastPublisher[T], Processor[T, T]):
    """Delivers the elements of one upstream to all its subscribers, through one bounded buffer.

    Subscribe the processor to a publisher, and subscribers to the processor, in any order; or call
    ``on_next``, ``on_error`` and ``on_complete`` yourself. All subscribers get the same elements in
    the same order, and may be ahead of each other by at most ``buffer_size`` elements. A late
    subscriber starts at the oldest element that is still in the buffer for another subscriber.
    After the end a new subscriber gets the terminal signal immediately.

    The processor requests from upstream as many elements as the subscriber with the largest demand
    has requested, if the buffer has room for them. A caller of ``on_next`` may send elements that
    were not requested: they are buffered. If the buffer is full, the stream ends with a
    ``DemandExceededError``; with ``slow="drop"`` the slow subscribers are dropped instead.
    ``on_next(None)`` raises a ``TypeError``, and ends the stream, too (§2.13). The attribute
    ``ended`` says whether the stream has ended. An error is signalled immediately, without the
    elements in the buffer; with ``delay_error`` the elements are delivered before the error. The
    completion comes right after the last element, without a request (§2.9). If a subscriber
    subscribes while it is subscribed already, it gets an ``AlreadySubscribedError`` by
    ``on_error``, and its subscription ends (§1.10).

    Any thread may call any method. Elements are delivered on the thread that calls ``on_next`` or
    ``request``.

    Args:
        buffer_size: The most elements between the fastest and the slowest subscriber.
        slow: With ``"gate"`` no elements are requested from upstream while the slowest subscriber
            is ``buffer_size`` elements behind the fastest. With ``"drop"`` elements are requested
            for the fastest subscriber. A subscriber that is more than ``buffer_size`` elements
            behind is dropped: it gets a ``BufferOverflowError``.
        on_last_cancel: With ``"shut_down"`` upstream is cancelled when the last subscriber has
            cancelled, and later subscribers get a ``ShutDownError``. With ``"keep"`` upstream
            waits, without a request, for the next subscriber; upstream is cancelled when the
            garbage collector frees the processor.
        delay_error: Signal an error after the elements in the buffer, not immediately.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        buffer_size: int = MULTICAST_BUFFER,
        slow: Literal["gate", "drop"] = "gate",
        on_last_cancel: Literal["shut_down", "keep"] = "shut_down",
        delay_error: bool = False,
    ) -> None:
        options = MulticastOptions(buffer_size, slow, delay_error)
        check_choice("on_last_cancel", on_last_cancel, ("shut_down", "keep"))
        name = f"MulticastProcessor: {options.describe()}"
        super().__init__(
            name=name,
            buffer_size=options.buffer_size,
            gates=options.gates,
            delay_error=options.delay_error,
            keeps=on_last_cancel == "keep",
        )


class Multicast(Boundary):
    """Makes the one publisher that all subscribers of the stream share."""

    #: ``guards`` is true, because the shared publisher itself tolerates an upstream that breaks the
    #: rules of Reactive Streams. So the stream puts no guard between upstream and this publisher.
    guards = True

    def __init__(
        self, options: MulticastOptions, min_subscribers: int, on_last_cancel: str
    ) -> None:
        self.options = options
        check_choice("on_last_cancel", on_last_cancel, get_args(OnLastCancel))
        self.on_last_cancel = on_last_cancel
        self.min_subscribers = check_count("min_subscribers", min_subscribers, 1)
        self._lock = threading.RLock()
        self._shared: Shared | None = None

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return the publisher that all subscribers share. The first call makes this publisher.

        ``upstream`` is the same stream in every call, so later calls ignore the argument.
        """
        with self._lock:
            if self._shared is None:
                # Pass a copy of this object without ``_shared``: otherwise this object and the
                # publisher would keep each other alive.
                self._shared = Shared(upstream, copy(self))
            return self._shared

    def retention(self) -> Retention | None:
        """Return the rule that decides which elements are kept for late subscribers.

        ``None`` means that no elements are kept.
        """
        return None

    def describe(self) -> str:
        return f"multicast: {self.describe_sharing()}"

    def describe_sharing(self) -> str:
        """Return a text that describes the sharing, for ``describe``.

        The text is about the buffer, slow subscribers, and the cancel of the last subscriber.
        """
        words = {
            "shut_down": "shuts down",
            "keep": "waits for others",
            "restart": "starts anew for others",
        }
        begins = (
            f", begins with {safe_repr(self.min_subscribers)}" if self.min_subscribers > 1 else ""
        )
        return (
            f"{self.options.describe()}{begins}; "
            f"without subscribers it {words[self.on_last_cancel]}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_shared": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())


class Shared:
    """Passes each subscriber to the current ``MulticastPublisher``.

    With ``on_last_cancel="restart"``, a publisher that has ended is replaced by a new one.
    """

    def __init__(self, upstream: Publisher[Any], multicast: Multicast) -> None:
        self._upstream = upstream
        self._multicast = multicast
        self._name = multicast.describe()
        self._restarts = multicast.on_last_cancel == "restart"
        # The registry finds a subscriber that subscribes twice. A publisher that has ended, and the
        # new publisher that replaces it, use the same registry: subscribers of the ended publisher
        # may still receive the elements in its buffer, and must not subscribe again meanwhile.
        self._registry: Registry[MulticastSubscription] = Registry()
        self._lock = threading.RLock()
        self._current = self._new_publisher()

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Add ``subscriber``. Subscribe to upstream if there are enough subscribers."""
        check_subscriber(subscriber)
        publisher = self._current
        if publisher.refuses(subscriber) or publisher.defer(self.subscribe, subscriber):
            return
        while not publisher.admit(subscriber, unless_ended=self._restarts):
            with self._lock:
                if self._current is publisher:
                    self._current = self._new_publisher()
                publisher = self._current
        publisher.connect(self._upstream, self._multicast.min_subscribers, subscriber)

    def _new_publisher(self) -> MulticastPublisher[Any]:
        multicast = self._multicast
        options = multicast.options
        return MulticastPublisher(
            name=self._name,
            buffer_size=options.buffer_size,
            gates=options.gates,
            delay_error=options.delay_error,
            keeps=multicast.on_last_cancel == "keep",
            retention=multicast.retention(),
            registry=self._registry,
            connected=False,
            restarts=self._restarts,
        )
