"""``processor`` and ``SerializedProcessor``: objects that are a subscriber and a publisher."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Literal, TypeVar, cast

from rstreams_fast._checks import check_sync, describe_callable
from rstreams_fast.api import OnNext, Processor, Subscriber, Subscription
from rstreams_fast.core import Emission, SignalSerializer
from rstreams_fast.errors import (
    AlreadySubscribedError,
    DemandExceededError,
    NoneSignalError,
    check_error,
    check_subscriber,
    report_dropped,
)
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.defaults import PREFETCH
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.push import PushSubscription
from rstreams_fast.streams.engine.signals import cancel_silently, refuse
from rstreams_fast.streams.engine.stages import Stages
from rstreams_fast.streams.operators.multicast import MulticastProcessor
from rstreams_fast.streams.stream import Stream

__all__ = ["SerializedProcessor", "processor"]

T = TypeVar("T")
U = TypeVar("U")


def processor(build: Callable[[Stream[T]], Stream[U]], /) -> Processor[T, U]:
    """Return a processor with the operators that ``build`` adds to its argument, a stream.

    Subscribe the processor to a publisher, and a subscriber to the processor, in any order. The
    processor requests no elements before it has a publisher and a subscriber. It requests only the
    elements that its operators need to meet the subscriber's demand. A ``cancel`` of the subscriber
    cancels the subscription to the publisher. The subscriber gets an error of the publisher even
    without demand (§4.2), unless an operator of ``build`` handles the error. Even if the publisher
    breaks rules of Reactive Streams, the processor does not.

    The processor accepts one subscription to a publisher, and cancels any other (§2.5). The
    processor serves one subscriber. Any other subscriber gets an ``AlreadySubscribedError`` by
    ``on_error``. But if ``build`` ends in ``multicast``, ``share`` or ``replay``, the processor
    serves any number of subscribers. If the publisher has ended before the subscriber comes, the
    operators get only the terminal signal. Any thread may call any method.

    ```python
    import rstreams_fast as rsf

    doubled = rsf.processor(lambda stream: stream.map(lambda n: 2 * n))
    rsf.range_(3).subscribe(doubled)
    print(rsf.from_publisher(doubled).to_list())  # [0, 2, 4]
    ```

    Args:
        build: A plain function of a stream, called once, immediately. It returns a stream.

    Raises:
        TypeError: ``build`` cannot be called, or does not return a ``Stream``.
    """
    check_sync("processor", "build", build)
    entrance: _Entrance[T] = _Entrance()
    built = build(Stream(PublisherSource(entrance, "processor()", trusted=True)))
    if not isinstance(built, Stream):
        raise TypeError(
            f"processor(build): {describe_callable(build)} must return a Stream, "
            f"got {type(built).__name__}"
        )
    return _Built(entrance, built)


class _Entrance(Generic[T]):
    """The input of a processor: subscribes to upstream, and publishes to the first operator.

    The first operator is the operator directly downstream. Until it subscribes, this object stores
    the subscription to upstream, and the terminal signal of upstream.
    """

    __slots__ = ("__weakref__", "_lock", "_push", "_subscription", "_terminal")

    __reduce__ = not_picklable

    def __init__(self) -> None:
        # The lock is reentrant: on the thread that holds it, a finalizer may run, and call a method
        # of this object. Even if ``subscribe`` and ``_end`` run one within the other, no terminal
        # signal is lost. ``subscribe`` sets ``_push``, the subscription of the operator directly
        # downstream, and then reads ``_terminal``, the terminal signal of upstream. ``_end`` sets
        # ``_terminal``, and then reads ``_push``. So one of the two finds both fields set, and
        # passes the signal on.
        self._lock = threading.RLock()
        self._push: PushSubscription | None = None
        # ``_subscription``: upstream's subscription, stored until the operator subscribes.
        self._subscription: Subscription | None = None
        self._terminal: BaseException | Literal["complete"] | None = None

    def subscribe(self, subscriber: Subscriber[T], /) -> None:
        check_subscriber(subscriber)
        push = PushSubscription(subscriber, Stages(), early=True)
        with self._lock:
            taken = self._push is not None
            if not taken:
                self._push = push
            subscription, self._subscription = self._subscription, None
            terminal = self._terminal
        if taken and terminal is None:
            refuse(
                subscriber,
                AlreadySubscribedError(
                    "§1.10: the processor has its one subscriber; to serve several, let build end "
                    "in multicast(), share() or replay()"
                ),
            )
            return
        push.start()
        if subscription is not None:
            push.on_subscribe(subscription)
        if isinstance(terminal, BaseException):
            push.on_error(terminal)
        elif terminal is not None:
            push.on_complete()

    def on_subscribe(self, subscription: Subscription, /) -> None:
        if subscription is None:
            raise NoneSignalError("§2.13: subscription is None")
        with self._lock:
            push = self._push
            early = push is None and self._subscription is None and self._terminal is None
            if early:
                self._subscription = subscription
        if push is not None:
            push.on_subscribe(subscription)
        elif not early:
            # The processor has a subscription already, or has ended (§2.5).
            cancel_silently(subscription)

    def on_next(self, element: T, /) -> None:
        push = self._push
        if push is not None:
            push.on_next(element)
            return
        if element is None:
            raise NoneSignalError("§2.13: None is not an element")
        subscription = self._subscription
        self.on_error(
            DemandExceededError("§1.1: an element came before anything had been asked for")
        )
        if subscription is not None:
            cancel_silently(subscription)

    def on_error(self, error: BaseException, /) -> None:
        push = self._push
        if push is not None and not isinstance(error, BaseException):
            push.on_error(error)  # ``error`` is no exception: signals a TypeError, and raises it
        check_error(error)
        push, first = self._end(error)
        if push is not None:
            push.on_error(error)
        elif not first:
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        push, _ = self._end("complete")
        if push is not None:
            push.on_complete()

    def _end(
        self, terminal: BaseException | Literal["complete"]
    ) -> tuple[PushSubscription | None, bool]:
        """Store ``terminal``, unless an earlier terminal signal of upstream is stored.

        If the operator directly downstream subscribes later, ``subscribe`` passes the stored signal
        to the operator. Return two values: the operator's subscription, or ``None`` if the operator
        has not subscribed yet; and whether ``terminal`` is the first terminal signal.
        """
        with self._lock:
            first = self._terminal is None
            if first:
                self._terminal = terminal
                self._subscription = None
            return self._push, first


class _Built(Generic[T, U]):
    __slots__ = ("__weakref__", "_entrance", "_stream", "on_next")

    __reduce__ = not_picklable

    def __init__(self, entrance: _Entrance[T], stream: Stream[U]) -> None:
        self._entrance = entrance
        self._stream = stream
        self.on_next: OnNext[T] = entrance.on_next

    def subscribe(self, subscriber: Subscriber[U], /) -> None:
        self._stream.subscribe(subscriber)

    def on_subscribe(self, subscription: Subscription, /) -> None:
        self._entrance.on_subscribe(subscription)

    def on_error(self, error: BaseException, /) -> None:
        self._entrance.on_error(error)

    def on_complete(self) -> None:
        self._entrance.on_complete()

    def __repr__(self) -> str:
        return f"<Processor: {self._stream!r}>"


_METHODS = ("subscribe", "on_subscribe", "on_next", "on_error", "on_complete")


class SerializedProcessor(Generic[T, U]):
    """A processor whose ``on_next`` several threads may call at the same time.

    A ``SignalSerializer`` passes one signal at a time to ``processor``. While one thread delivers
    signals, the other threads put their elements into a mailbox (a queue), and return. An error
    drops the elements in the mailbox, unless ``delay_error`` is true.

    All threads together must not send more elements than ``processor`` has requested (§1.1).
    ``processor`` decides what happens to additional elements. With ``on_full="wait"`` a thread
    waits until the mailbox has room. It never waits for the demand of subscribers.

    Args:
        processor: The processor that gets the elements. Default: a ``MulticastProcessor``.
        capacity: The size of the mailbox, in elements.
        on_full: What ``on_next`` does when the mailbox is full. With ``"error"`` it ends the stream
            with a ``BufferOverflowError``. With ``"wait"`` it waits. ``on_full`` does not change
            ``try_next``, which always returns ``FULL`` when the mailbox is full.
        delay_error: Whether an error is signalled after the elements in the mailbox.

    Attributes:
        on_next: Delivers an element, or puts it into the mailbox. Any thread may call this.

    Raises:
        TypeError: ``processor`` lacks one of the methods of a processor.
        ValueError: An argument has a wrong value.
    """

    __slots__ = {
        "__weakref__": None,
        "_processor": None,
        "_signals": None,
        "on_next": "Deliver an element, or put it into the mailbox. Any thread may call this.",
    }

    __reduce__ = not_picklable

    def __init__(
        self,
        processor: Processor[T, U] | None = None,
        *,
        capacity: int = PREFETCH,
        on_full: Literal["error", "wait"] = "error",
        delay_error: bool = False,
    ) -> None:
        if processor is None:
            processor = cast("Processor[T, U]", MulticastProcessor[T](delay_error=delay_error))
        for name in _METHODS:
            if not callable(getattr(processor, name, None)):
                raise TypeError(
                    f"processor must have the methods {', '.join(_METHODS)}; "
                    f"{type(processor).__name__} has no {name}"
                )
        self._processor = processor
        self._signals = SignalSerializer(
            processor, capacity=capacity, on_full=on_full, delay_error=delay_error
        )
        self.on_next: OnNext[T]
        # ``self.on_next = ...`` would fail if a subclass has its own method ``on_next``. So call
        # the descriptor that ``__slots__`` has made in this class.
        vars(SerializedProcessor)["on_next"].__set__(self, self._signals.on_next)

    def try_next(self, element: T, /) -> Emission:
        """Send ``element`` as ``on_next`` does, but never wait and never end the stream.

        Return ``OK`` if the element was delivered, or is in the mailbox (a queue). Return ``FULL``
        if the mailbox is full. Return ``TERMINATED`` if the wrapped ``processor`` has ended, or if
        an error or the completion has come before. Return ``CANCELLED`` if ``processor`` has
        cancelled its subscription. After ``TERMINATED`` or ``CANCELLED`` no subscriber will get
        this element or a later element. Any thread may call this.

        Args:
            element: The element; not ``None``.
        """
        return Emission.TERMINATED if self.ended else self._signals.try_next(element)

    def subscribe(self, subscriber: Subscriber[U], /) -> None:
        """Subscribe ``subscriber`` to the argument ``processor`` of the constructor.

        Args:
            subscriber: Any object with the four methods of ``Subscriber``.
        """
        self._processor.subscribe(subscriber)

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Accept the first subscription and cancel any other subscription (§2.5).

        Args:
            subscription: The subscription to upstream.
        """
        self._signals.on_subscribe(subscription)

    def on_error(self, error: BaseException, /) -> None:
        """Signal ``error`` to ``processor``. Only the first terminal signal has an effect.

        Args:
            error: The error of upstream.
        """
        self._signals.on_error(error)

    def on_complete(self) -> None:
        """Signal the completion to ``processor``, after all elements in the mailbox."""
        self._signals.on_complete()

    @property
    def ended(self) -> bool:
        """Whether ``processor`` has ended. False if ``processor`` has no attribute ``ended``."""
        return bool(getattr(self._processor, "ended", False))

    @property
    def queued(self) -> int:
        """The number of elements that wait in the mailbox."""
        return self._signals.queued
