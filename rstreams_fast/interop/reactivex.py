"""RxPY (``reactivex`` 6): converts observables to streams and back; a bounded ``observe_on``."""

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

#: Elements that are requested in advance for an observer.
_AHEAD = 256


def from_observable(
    observable: reactivex.Observable[T],
    /,
    *,
    overflow: Overflow = Overflow.BUFFER,
    capacity: int | None = None,
    on_drop: Callable[[T], object] | None = None,
) -> Stream[T]:
    """Return a stream of the elements of an observable, which sends without requests.

    Each subscriber has its own subscription to the observable, which is disposed of when the
    subscriber cancels. ``None``, which RxPY allows, ends the stream with a ``NoneSignalError``
    (§2.13).

    Args:
        observable: An observable of RxPY.
        overflow: What happens to an element when there is no demand and the buffer is full; see
            ``Overflow``.
        capacity: The most elements held, as in ``create``.
        on_drop: Called with each element that is dropped, as in ``create``.
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

        # An observable that sends within subscribe() cannot be disposed of yet: take_while ends it.
        heard = observable.pipe(operators.take_while(lambda _: not emitter.cancelled))
        subscription = heard.subscribe(on_next, on_error, on_completed)
        emitter.on_cancel(subscription.dispose)

    return create(forward, overflow=overflow, capacity=capacity, on_drop=on_drop)


def to_observable(publisher: Publisher[T], /) -> reactivex.Observable[T]:
    """Return any publisher as a cold observable: each observer has a subscription of its own.

    An observer cannot request, so 256 elements are requested in advance. Disposing of the
    subscription cancels. The observer is called on the thread that signals the elements. A
    synchronous publisher begins only when ``subscribe`` has returned to RxPY's scheduler, like
    RxPY's own sources. So RxPY's ``take`` can end an infinite publisher.

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
    """Return an operator for ``pipe``: the operators below it run on ``executor``, after a bounded
    buffer.

    RxPY's ``observe_on`` has an unbounded buffer. Here the sending thread waits until there is
    room, or until the observer disposes. An error comes after the elements before it, as with RxPY.
    A thread that runs an event loop cannot wait: up to ``prefetch`` elements that it sends without
    demand are held. One more element raises a ``RuntimeError``, which ends the observable.

    Args:
        executor: As in ``Stream.publish_on``.
        prefetch: The most elements in the buffer.
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
    """Subscribe ``observer`` to ``stream``, then call ``then``; return what disposes of them.

    RxPY's scheduler makes both calls, usually after this function has returned.
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
    """Publishes the elements of an observable to one subscriber, and is also the subscription.

    The sending thread waits for demand. A thread that runs an event loop cannot wait: its elements
    are held until they are requested. The sender takes the whole demand at once, so that it takes
    the lock only once for each request.
    """

    def __init__(self, observable: reactivex.Observable[Any], most_held: int) -> None:
        self._observable = observable
        self._most_held = most_held
        self._held: deque[Any] = deque()  # while elements are held, there is no demand
        self._end: Callable[[], object] | None = None  # the terminal signal, if elements are held
        self._subscriber: Subscriber[Any]
        self._changed = threading.Condition(threading.RLock())
        self._demand = 0
        self._left = 0  # demand that the sender took and has not used
        self._cancelled = False
        self._subscription: DisposableBase | None = None

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        self._subscriber = subscriber
        subscriber.on_subscribe(self)

    def begin(self) -> None:
        """Subscribe to the observable. Call this after the observer is connected.

        A synchronous observable sends all of its elements, and waits for room, within this call.
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
        # The result false ends the observable, because the subscriber has cancelled.
        if self._left == 0 and not self._cancelled:
            with self._changed:
                while not self._demand and not self._cancelled:
                    if running_loop() is None:
                        self._changed.wait()
                    elif len(self._held) < self._most_held:
                        return True
                    else:
                        raise RuntimeError(
                            f"observe_on: prefetch={self._most_held} elements are held, and to "
                            "wait for room would block the event loop; let the source send from "
                            "another thread, or use from_observable(..., overflow=...)"
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
