"""RxPY (``reactivex`` 6): makes streams of observables, and observables of streams.

Also has an operator for observables: ``observe_on`` with a bounded buffer.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from rstreams_fast._checks import check_capacity
from rstreams_fast._third_parties import importing
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.errors import NoneSignalError
from rstreams_fast.runtime.parking import running_loop
from rstreams_fast.streams.engine.defaults import PREFETCH
from rstreams_fast.streams.factories import create, from_publisher
from rstreams_fast.streams.operators.on_overflow import Overflow
from rstreams_fast.streams.sinks.subscribers import SyncSubscriber
from rstreams_fast.streams.sources.create import Emitter
from rstreams_fast.streams.stream import Stream

with importing("reactivex", __name__, "'rstreams_fast[reactivex]'"):
    import reactivex
    from reactivex import operators
    from reactivex.abc import DisposableBase
    from reactivex.disposable import CompositeDisposable, Disposable
    from reactivex.scheduler import CurrentThreadScheduler

__all__ = ["from_observable", "observe_on", "to_observable"]

T = TypeVar("T")

#: The number of elements that are requested in advance, because an observer makes no requests.
_AHEAD = 256


def from_observable(
    observable: reactivex.Observable[T],
    /,
    *,
    overflow: Overflow = Overflow.BUFFER,
    capacity: int | None = None,
    on_drop: Callable[[T], object] | None = None,
) -> Stream[T]:
    """Return a stream of the elements of an observable, buffered until they are requested.

    An observable sends elements without requests. Each subscriber of the stream has its own
    subscription to the observable. If the subscriber cancels, its subscription is disposed of. RxPY
    allows the element ``None``. In the stream it is an error: a ``NoneSignalError`` (§2.13).

    Args:
        observable: An observable of RxPY.
        overflow: What happens to an element when the buffer is full; see ``Overflow``.
        capacity: The size of the buffer, in elements. Default: as in ``create``.
        on_drop: ``on_drop(element)`` is called for each element that is dropped.
    """
    _check_observable(observable)

    def forward(emitter: Emitter[T]) -> None:
        def on_next(element: T) -> None:
            try:
                emitter.next(element)
            except NoneSignalError as error:
                emitter.error(error)

        def on_error(error: Exception) -> None:
            emitter.error(error)

        def on_completed() -> None:
            emitter.complete()

        # An observable may send elements before its subscribe() returns. Then there is no
        # disposable yet. So take_while ends the observable if the stream was cancelled.
        heard = observable.pipe(operators.take_while(lambda _: not emitter.cancelled))
        subscription = heard.subscribe(on_next, on_error, on_completed)
        emitter.on_cancel(subscription.dispose)

    return create(forward, overflow=overflow, capacity=capacity, on_drop=on_drop)


def to_observable(publisher: Publisher[T], /) -> reactivex.Observable[T]:
    """Return any publisher as a cold observable: each observer has its own subscription.

    An observer makes no requests, so 256 elements are requested in advance. If the observer
    disposes of its subscription, the publisher is cancelled. The observer is called on the thread
    that signals the elements. As with RxPY's own sources, RxPY's scheduler starts a synchronous
    publisher only after ``subscribe`` has returned. So RxPY's ``take`` can end the publisher.

    Args:
        publisher: Any object with ``subscribe``.
    """
    stream = from_publisher(publisher)

    def subscribe(observer: Any, scheduler: Any = None) -> DisposableBase:
        return _observe(stream, observer, scheduler)

    return reactivex.create(subscribe)


def observe_on(
    executor: Executor | asyncio.AbstractEventLoop | None = None, *, prefetch: int = PREFETCH
) -> Callable[[reactivex.Observable[T]], reactivex.Observable[T]]:
    """Return an operator for RxPY's ``pipe``. The operators after it run on ``executor``.

    RxPY's own ``observe_on`` has an unbounded buffer. This operator has a buffer of ``prefetch``
    elements. If the buffer is full, the thread that sends an element waits until there is room, or
    until the observer disposes of its subscription. As in RxPY, errors come after earlier elements.

    A thread that runs an event loop cannot wait. If the buffer is full, up to ``prefetch`` further
    elements from such a thread are held. One more element ends the observable with a
    ``RuntimeError``.

    Args:
        executor: The executor, as in ``Stream.publish_on``.
        prefetch: The size of the buffer, in elements.
    """
    check_capacity("prefetch", prefetch)
    if isinstance(executor, str):
        raise TypeError("observe_on needs an executor, a loop or None")

    def operator(observable: reactivex.Observable[T]) -> reactivex.Observable[T]:
        _check_observable(observable)

        def subscribe(observer: Any, scheduler: Any = None) -> DisposableBase:
            source = _ObservablePublisher(observable, prefetch)
            stream = from_publisher(source).publish_on(
                executor, prefetch=prefetch, delay_error=True
            )
            return _observe(stream, observer, scheduler, source.begin)

        return reactivex.create(subscribe)

    return operator


def _check_observable(observable: object) -> None:
    if not isinstance(observable, reactivex.Observable):
        raise TypeError(
            f"observable must be a reactivex.Observable, got {type(observable).__name__}"
        )


def _observe(
    stream: Stream[Any], observer: Any, scheduler: Any, then: Callable[[], None] = lambda: None
) -> DisposableBase:
    """Subscribe ``observer`` to ``stream``, and then call ``then``.

    RxPY's scheduler makes both calls, usually after this function has returned. The returned
    disposable cancels the stream, and the calls if the scheduler has not made them yet.
    """
    end = SyncSubscriber(
        observer.on_next,
        on_error=observer.on_error,
        on_complete=observer.on_completed,
        prefetch=_AHEAD,
    )

    def begin(*_: Any) -> None:
        stream.subscribe(end)
        then()

    begun = (scheduler or CurrentThreadScheduler.singleton()).schedule(begin)
    return CompositeDisposable(Disposable(end.run.cancel), begun)


class _ObservablePublisher:
    """Publishes the elements of an observable to one subscriber. Is also the subscription.

    The thread that sends an element waits for demand. A thread that runs an event loop cannot wait,
    so its elements are held until they are requested. The sending thread moves the whole demand to
    the field ``_left``. Then it can send this number of elements without taking the lock.
    """

    def __init__(self, observable: reactivex.Observable[Any], prefetch: int) -> None:
        self._observable = observable
        self._prefetch = prefetch
        # The first request comes from the executor, and moves ``prefetch`` elements to the buffer.
        # Until then the elements for the buffer are held, too.
        self._most_held = 2 * prefetch
        self._held: deque[Any] = deque()  # elements without demand, sent on an event loop
        self._end: Callable[[], object] | None = None  # the terminal signal that waits for _held
        self._subscriber: Subscriber[Any]
        self._changed = threading.Condition(threading.RLock())
        self._demand = 0
        self._left = 0  # the part of the demand that only the sending thread uses
        self._cancelled = False
        self._subscription: DisposableBase | None = None

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        self._subscriber = subscriber
        subscriber.on_subscribe(self)

    def begin(self) -> None:
        """Subscribe to the observable. Call this after the observer has subscribed.

        A synchronous observable sends all its elements, and waits for demand, within this call.
        """
        subscriber = self._subscriber
        heard = self._observable.pipe(operators.take_while(self._wait))
        subscription = heard.subscribe(
            self._next,
            lambda error: self._finish(partial(subscriber.on_error, error)),
            lambda: self._finish(subscriber.on_complete),
        )
        with self._changed:
            if not self._cancelled:
                self._subscription = subscription
                return
        subscription.dispose()

    def request(self, n: int, /) -> None:
        with self._changed:
            self._most_held = self._prefetch
            while n and self._held:
                n -= 1
                self._subscriber.on_next(self._held.popleft())
            self._demand += n
            self._changed.notify()
            end = None if self._held else self._end
        if end is not None:
            end()

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._held.clear()
            subscription, self._subscription = self._subscription, None
            self._changed.notify()
        if subscription is not None:
            subscription.dispose()

    def _wait(self, _element: object) -> bool:
        # take_while calls this before each element. After a cancel, false ends the observable.
        if self._left == 0 and not self._cancelled:
            with self._changed:
                while not self._demand and not self._cancelled:
                    if running_loop() is None:
                        self._changed.wait()
                    elif len(self._held) < self._most_held:
                        return True
                    else:
                        raise RuntimeError(
                            f"observe_on: the buffer of prefetch={self._prefetch} elements is "
                            "full, as many are held, and to wait for room would block the event "
                            "loop; let the source send from another thread, or use "
                            "from_observable(..., overflow=...)"
                        )
                self._left, self._demand = self._demand, 0
        return not self._cancelled

    def _next(self, element: Any) -> None:
        if not self._left:
            with self._changed:
                if not self._demand:
                    self._held.append(element)
                    return
                self._left, self._demand = self._demand, 0
        self._left -= 1
        self._subscriber.on_next(element)

    def _finish(self, end: Callable[[], object]) -> None:
        with self._changed:
            if self._held:
                self._end = end
                return
        end()
