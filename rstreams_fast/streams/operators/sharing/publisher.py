"""The publisher of a multicast: many subscribers share one subscription through one buffer.

Each subscriber has its own drain, the loop that delivers elements to the subscriber. New elements
and requests start the drain. Elements are passed in bursts (lists): the buffer's lock is taken once
for each burst that upstream sends, and once for each burst that a subscriber takes. No user code
runs under the lock. An element for which all subscribers wait is delivered without the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber, Subscription
from rstreams_fast.core import Wip
from rstreams_fast.errors import (
    AlreadySubscribedError,
    BufferOverflowError,
    DemandExceededError,
    NoneSignalError,
    ShutDownError,
    check_subscriber,
)
from rstreams_fast.runtime.awaiting import without_loop
from rstreams_fast.runtime.executors import process_id
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.streams.engine.boundary import ListSubscriber
from rstreams_fast.streams.engine.chain import Link, take_over_attributes
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.signals import forked, propagates, refuse, report_late
from rstreams_fast.streams.engine.trampoline import subscribe_to
from rstreams_fast.streams.engine.upstream import Upstream
from rstreams_fast.streams.operators.sharing.buffer import Cursor, MulticastBuffer, Retention
from rstreams_fast.streams.operators.sharing.deferred import DeferredWork
from rstreams_fast.streams.operators.sharing.registry import Entry, Registry
from rstreams_fast.streams.operators.sharing.subscription import MulticastSubscription

__all__ = ["MulticastPublisher"]

T = TypeVar("T")

_drain: Final = MulticastSubscription._drain
_enter: Final = MulticastSubscription._enter


class _SharedUpstream(Upstream):
    """An ``Upstream`` that cancels its subscription when the publisher is garbage-collected."""

    __slots__ = ()

    def __del__(self) -> None:
        # At interpreter exit ``call_from_finalizer`` may be None: module globals are cleared.
        if not self.over and call_from_finalizer is not None:
            call_from_finalizer(self.cancel)


class MulticastPublisher(Link, ListSubscriber, Generic[T]):
    """Subscribes to one upstream, and publishes its elements to many subscribers.

    Upstream may break the rules: it may signal on several threads at the same time, nest its calls,
    send too many elements, signal after its end, or never call ``on_subscribe``.
    """

    prompt: ClassVar[bool] = True

    __slots__ = (
        "_connected",
        "_deferred",
        "_delay_error",
        "_error_undelivered",
        "_gates",
        "_keeps",
        "_name",
        "_pid",
        "_registry",
        "_requesting",
        "_retention",
        "_upstream",
        "buffer",
        "burst",
    )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.on_next is not MulticastPublisher.on_next:
            cls.takes_bursts = False

    def __init__(
        self,
        *,
        name: str,
        buffer_size: int,
        gates: bool,
        delay_error: bool,
        keeps: bool,
        retention: Retention | None = None,
        registry: Registry[MulticastSubscription] | None = None,
        connected: bool = True,
        restarts: bool = False,
    ) -> None:
        take_over_attributes(self, None)
        self._name = name
        self._gates = gates  # whether slow subscribers slow upstream down; if not, they are dropped
        self._delay_error = delay_error
        self._keeps = keeps  # whether the publisher goes on without subscribers
        self._connected = connected
        # ``_error_undelivered``: with a restart (later subscribers get a new publisher), whether no
        # subscriber has received upstream's error yet. If it is still true when the last subscriber
        # leaves, nobody can receive the error: the error is then reported to ``on_dropped_error``.
        # Without a restart it is false: later subscribers receive the error.
        self._error_undelivered = restarts
        self._pid: int | None = None  # the id of the process in which upstream runs
        self._retention = retention
        self._registry: Registry[MulticastSubscription] = registry or Registry()
        self._upstream = _SharedUpstream()
        self._deferred = DeferredWork()
        #: Only functions passed to ``_deferred.enter``, which runs one function at a time under a
        #: lock, change ``buffer``.
        self.buffer: MulticastBuffer[MulticastSubscription] = MulticastBuffer(
            buffer_size,
            gates=gates,
            retention=retention,
            release=self._deferred.release,
        )
        # ``_requesting`` lets one thread at a time make requests to upstream, and no thread before
        # upstream has called on_subscribe.
        self._requesting = Wip(held=True)
        self.burst: list[Any] = []

    # -- adding subscribers, and subscribing to upstream -------------------------------------------

    def subscribe(self, subscriber: Subscriber[T], /) -> None:
        """Subscribe ``subscriber``. The subscriber starts at the oldest available element (§1.11).

        Args:
            subscriber: Any object with the four methods of ``Subscriber``.

        Raises:
            TypeError: ``subscriber`` is ``None``, a class, or lacks one of the four methods.
        """
        check_subscriber(subscriber)
        if not self.refuses(subscriber) and not self.defer(self.subscribe, subscriber):
            self.admit(subscriber)

    def refuses(self, subscriber: Subscriber[T]) -> bool:
        """Refuse ``subscriber`` in a forked child process, if upstream runs in the parent process.

        Return whether ``subscriber`` was refused.
        """
        left_behind = self._pid not in (None, process_id()) and not self.ended
        if left_behind:
            refuse(subscriber, forked())
        return left_behind

    def defer(self, call: Callable[..., object], *args: Any) -> bool:
        """Defer ``call(*args)`` if this thread holds the buffer's lock; otherwise return false.

        The calling thread holds the lock if the call is made in a finalizer or signal handler that
        has interrupted code under the lock.
        """
        return self._deferred.defer(call, *args)

    def admit(self, subscriber: Subscriber[T], *, unless_ended: bool = False) -> bool:
        """Subscribe ``subscriber``, or refuse it by ``on_error``. Return true in both cases.

        ``unless_ended``: if the publisher has ended, signal nothing and return false.
        """
        subscription = MulticastSubscription(self, subscriber)
        same = self._registry.claim(subscriber, subscription)
        while same is not None and same.subscription.is_cancelled:
            # The subscriber's earlier subscription is cancelled, but the cancelling thread has not
            # removed it from the registry yet. Remove it here. Otherwise the subscriber would count
            # as subscribed already: it would get an error, or no signal at all.
            self._registry.release(same.subscription.identity, same.subscription)
            same = self._registry.claim(subscriber, subscription)
        if same is not None:
            self._reject(subscriber, same)
            return True
        retention = self._retention
        try:
            now = retention.now() if retention is not None else 0.0
        except BaseException as raised:  # signal the error, as subscribe must not raise (§1.9)
            self._registry.release(subscription.identity, subscription)
            if propagates(raised):
                raise
            refuse(subscriber, raised)
            return True
        entered = self._deferred.enter(self._join, subscription, now, unless_ended)
        if entered:
            subscription._begin()
        else:
            self._registry.release(subscription.identity, subscription)
        return entered

    def _join(self, subscription: MulticastSubscription, now: float, unless_ended: bool) -> bool:
        """Add the subscription to the buffer; the caller holds the buffer's lock.

        Return false if the publisher has ended and ``unless_ended`` is true.
        """
        if unless_ended and self.buffer.ended:
            return False
        self.buffer.join(subscription.cursor, subscription, now)
        return True

    def _reject(self, subscriber: Subscriber[T], same: Entry[MulticastSubscription]) -> None:
        error = AlreadySubscribedError(
            "§1.10: this subscriber is subscribed already; subscribe another one, or cancel first"
        )
        if same.subscriber is subscriber:
            # This subscriber has received on_subscribe, and must not receive it again (§2.12). So
            # only its earlier subscription can signal the error. This ends the subscription.
            same.subscription.end_with(error)
        else:
            refuse(subscriber, error)

    def connect(self, upstream: Publisher[T], min_subscribers: int, below: object = None) -> None:
        """Subscribe to ``upstream``, once, when there are at least ``min_subscribers`` subscribers.

        Call this method after each new subscriber. ``below``: the new subscriber.
        """
        if self._deferred.enter(self._may_connect, min_subscribers):
            self._pid = process_id()
            take_over_attributes(self, below)
            # ``turns`` limits how long work may occupy an event loop, and is for one thread only.
            # But the threads of all subscribers can make requests here: so use no ``turns``.
            self.turns = None
            self.custody = None  # record no elements for on_discard(): subscribers share them
            try:
                with without_loop():
                    subscribe_to(upstream, self)
            except BaseException as raised:  # no error of upstream: ``subscribe_to`` signals those
                self._end(raised, at_once=True, cancel=True)
                raise

    def _may_connect(self, min_subscribers: int) -> bool:
        """Return true in the first call with at least ``min_subscribers`` subscribers.

        The caller holds the buffer's lock.
        """
        buffer, connected = self.buffer, self._connected
        self._connected = connected or not (buffer.ended or len(buffer.readers) < min_subscribers)
        return self._connected and not connected

    @property
    def ended(self) -> bool:
        """Whether the publisher has ended or shut down. Then upstream's signals have no effect.

        Any thread may read this property.
        """
        return self.buffer.ended

    # -- signals from upstream ---------------------------------------------------------------------

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Take the first subscription, and request the elements that subscribers have requested.

        Any later subscription is cancelled (§2.5).

        Args:
            subscription: The subscription.
        """
        if self._upstream.attach(subscription):
            self._pid = process_id()
            self._make_requests()

    def on_next(self, element: T, /) -> None:
        """Deliver ``element`` to all subscribers.

        An element that no subscriber has requested is buffered, if the buffer has room. After the
        end the call has no effect (§2.8).

        Args:
            element: The element; not ``None``.
        """
        if element is None:
            self._break_off("the publisher signalled on_next(None)")
        self._take_one(element)

    def _take_one(self, element: T) -> None:
        """Deliver an element: directly if all subscribers have demand, else through the buffer."""
        if self._retention is not None or self.buffer.ended:
            self._add([element])
        elif not self._deferred.defer(self._add, [element]):
            ready, due = self._deferred.enter(self._hand_to_all)
            if due is not None:
                self._deliver_to(ready, lambda one: one.pass_on(element), due)
                return
            try:
                self._add([element])
            finally:
                self._call_each(ready, _drain)

    def _hand_to_all(self) -> tuple[list[MulticastSubscription], bool | None]:
        """Prepare the delivery of one element to all subscriptions, without the buffer.

        Return two values. The first is a list of subscriptions that this method has entered (see
        ``MulticastSubscription.enter``). So no other thread can deliver to them: the caller must do
        so. The second value says whether a request to upstream is due. It is ``None`` if not all
        subscriptions are ready to take the element: then the element must go through the buffer.
        The caller holds the buffer's lock.
        """
        buffer, end = self.buffer, self.buffer.end
        ready: list[MulticastSubscription] = []
        for cursor, one in buffer.readers.items():
            # A subscription is not ready if it has not received all earlier elements, has no
            # demand, or is receiving elements from another thread now.
            if cursor.stop < end or cursor.start + cursor.demand.value <= end or not one.enter():
                return ready, None
            ready.append(one)
        return ready, buffer.pass_by() if ready else None

    def on_burst(self) -> None:
        """Deliver the elements in ``burst`` to all subscribers."""
        elements = self.burst[:]
        self.burst.clear()  # upstream appends the next elements to the same list
        if len(elements) == 1:
            self._take_one(elements.pop())
            return
        if self._gates:
            self._add(elements)
            return
        # Add at most a quarter of ``buffer.size`` at a time. If a large burst was added in one
        # step, all subscribers would lag too far behind, and would be dropped.
        portion = -(-self.buffer.size // 4)
        for start in range(0, len(elements), portion):
            self._add(elements[start : start + portion])

    def _add(self, elements: list[T]) -> None:
        if self.buffer.ended:
            self._upstream.on_late_element()
            return
        if self._deferred.defer(self._add, elements):
            return
        weights: list[int] = []
        now, failure = 0.0, None
        if self._retention is not None:
            try:
                now = self._retention.now()
                self._retention.weigh(elements, weights)
            except Exception as raised:
                failure = raised
                del elements[len(weights) :]
        lagging, ready = self._deferred.enter(self._append, elements, weights, now)
        elements.clear()  # otherwise the caller's list would keep the elements alive
        if lagging is None:
            failure = DemandExceededError(
                "§1.1: more elements came than had been asked for, and the buffer of "
                f"{self.buffer.size} is full"
            )
        for slow in lagging or ():
            slow.end_with(
                BufferOverflowError(
                    f"the subscriber was dropped: it lagged by more than buffer_size="
                    f"{self.buffer.size} elements"
                )
            )
        if lagging is not None:
            self._deliver_to(ready, _drain)
        if failure is not None:
            self._end(failure, at_once=True, cancel=True)

    def _append(
        self, elements: list[T], weights: list[int], now: float
    ) -> tuple[list[MulticastSubscription] | None, list[MulticastSubscription]]:
        """Add elements to the buffer, and prepare their delivery.

        Return two lists. The first contains the subscriptions that the caller must drop, because
        they lag too far behind. It is ``None`` if the buffer is full. The second list contains the
        subscriptions to which the caller must deliver. Each subscription has the elements to
        deliver in the list ``subscription.cursor.in_hand``. The caller holds the buffer's lock.
        """
        buffer = self.buffer
        lagging = buffer.append(elements, weights, now)
        ready: list[MulticastSubscription] = []
        if lagging is not None:
            for cursor, one in buffer.readers.items():
                if cursor.start + cursor.demand.value > cursor.stop and one.enter():
                    buffer.hand_out(cursor)
                    ready.append(one)
        return lagging, ready

    def _deliver_to(
        self,
        ready: list[MulticastSubscription],
        deliver: Callable[[MulticastSubscription], object],
        due: bool | None = None,
    ) -> None:
        """Call ``deliver`` with each subscription in ``ready``. Then request elements, if ``due``.

        If ``due`` is ``None``, the buffer computes whether a request to upstream is due.
        """
        requesting = self._requesting
        mine = requesting.enter()
        self._call_each(ready, deliver)
        if due is None:
            due = self._deferred.enter(self.buffer.trim)
        if due and requesting.enter():
            self._make_requests()  # the delivery may have made room for more elements
        elif mine and (requesting.missed > 1 or not requesting.leave()):
            self._make_requests()

    def on_error(self, error: BaseException, /) -> None:
        """Signal ``error`` to all subscribers: at once, unless ``delay_error`` is set (§4.2).

        Args:
            error: An exception instance.
        """
        if not isinstance(error, BaseException):
            self._break_off(
                f"on_error needs an exception instance, the publisher signalled on_error({error!r})"
            )
        if self._upstream_ended():
            self._end(error, at_once=not self._delay_error)
        else:
            report_late(error)

    def on_complete(self) -> None:
        """Signal completion to each subscriber, after the elements in the buffer."""
        if self._upstream_ended():
            self._end(None, at_once=False)

    def _upstream_ended(self) -> bool:
        first = self._upstream.ended()
        self._upstream.never_attached()  # a subscription that arrives later is cancelled
        return first

    def _break_off(self, what: str) -> None:
        """End this publisher with a ``NoneSignalError``, and raise it: upstream broke §2.13."""
        error = NoneSignalError(f"§2.13: {what}")
        self._end(error, at_once=True, cancel=True)
        raise error

    def _end(self, error: BaseException | None, *, at_once: bool, cancel: bool = False) -> None:
        """End the publisher. ``error=None`` means completion. If it has ended, report ``error``.

        ``at_once``: subscribers do not get the elements that are still in the buffer. ``cancel``:
        also cancel upstream.
        """
        if self.defer(lambda: self._end(error, at_once=at_once, cancel=cancel)):
            return
        subscriptions = self._deferred.enter(self._close, error, at_once)
        if subscriptions is None:
            if error is not None and not propagates(error):
                report_late(error)
            return
        try:
            if cancel:
                self._upstream.cancel()
        finally:  # the subscribers must get the end even if an exception interrupts cancel()
            if error is not None and at_once:
                self._call_each(subscriptions, lambda one: one.end_with(error))
            else:
                self._call_each(subscriptions, _enter)

    def _close(
        self, error: BaseException | None, at_once: bool
    ) -> list[MulticastSubscription] | None:
        """Close the buffer. Return all subscriptions, or ``None`` if the buffer was closed before.

        The caller holds the buffer's lock.
        """
        if not self.buffer.close(error, at_once=at_once):
            return None
        return list(self.buffer.readers.values())

    def _call_each(
        self,
        subscriptions: list[MulticastSubscription],
        call: Callable[[MulticastSubscription], object],
    ) -> None:
        """Call ``call`` with each subscription.

        If a call raises, end the publisher, make the other calls, and re-raise the exception.
        """
        left: BaseException | None = None
        for one in subscriptions:
            try:
                call(one)
            except BaseException as leaving:
                left = leaving
                if not self.buffer.ended:
                    self._end(leaving, at_once=True, cancel=True)
        if left is not None:
            try:
                raise left
            finally:
                del left

    # -- requests to upstream ----------------------------------------------------------------------

    def request_elements(self) -> None:
        """Request from upstream the elements that subscribers want, if the buffer has room.

        Any thread may call this method. Requests never overlap (§2.7).
        """
        if not self.defer(self.request_elements) and self._requesting.enter():
            self._make_requests()

    def _make_requests(self) -> None:
        requesting = self._requesting
        while True:
            missed = requesting.missed
            n = self._deferred.enter(self.buffer.next_request)
            if n > 0:
                try:
                    self._upstream.request(n)
                except BaseException as raised:  # signal the error: upstream broke §3.16
                    self._end(raised, at_once=True, cancel=True)
                    if self._upstream.interrupted_by(raised):
                        raise
            if requesting.leave(missed):
                return

    # -- methods that subscriptions call -----------------------------------------------------------

    def take(self, cursor: Cursor) -> list[Any] | None:
        """Return the next elements for the subscriber at ``cursor``; ``None`` after the end."""
        return self._deferred.enter(self.buffer.take, cursor)

    def leave(self, subscription: MulticastSubscription) -> None:
        """Remove a subscription that has ended. A second call has no effect."""
        if self.defer(self.leave, subscription):
            return
        moved, shut, lost = self._deferred.enter(self._forget, subscription)
        subscription.cursor.in_hand.clear()
        if moved is None:
            return
        self._registry.release(subscription.identity, subscription)
        if shut:
            self._upstream.cancel()
        elif lost is not None:
            report_late(lost)
        elif moved and not self.buffer.ended:
            self.request_elements()

    def _forget(
        self, subscription: MulticastSubscription
    ) -> tuple[bool | None, bool, BaseException | None]:
        """Remove the subscription from the buffer, and return three values.

        1. Whether the buffer may have more room now. ``None``: the subscription was removed before.
        2. Whether the publisher was shut down, because this was the last subscription.
        3. Upstream's error, if no subscriber has received or will receive it. Otherwise ``None``.

        The caller holds the buffer's lock.
        """
        buffer, cursor = self.buffer, subscription.cursor
        keeps = self._keeps or not self._connected
        overtaken = buffer.error is not None and not self._delay_error
        moved = buffer.leave(cursor, leaves_rest=keeps and not overtaken)
        if moved is None:
            return None, False, None
        if subscription.gets_upstream_error:
            self._error_undelivered = False
        if buffer.readers or keeps or buffer.ended:
            error = buffer.error
            lost = (
                self._error_undelivered
                and not buffer.readers
                and error is not None
                and not propagates(error)
            )
            return moved, False, error if lost else None
        buffer.clear()
        shut_down = ShutDownError("§3.14: shut down: the last subscriber cancelled or was dropped")
        return moved, buffer.close(shut_down, at_once=True), None

    def waits(self) -> Waits:
        kept = 0 if self._retention is None else self._retention.max_kept
        return Waits(self._name, min(self.buffer.size + kept, UNBOUNDED), from_first_reading=True)

    def metrics_for(self, demand: int, waits: Waits) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of this buffer, followed by those of the operators upstream.

        ``demand`` and ``waits`` (the measured waiting times) belong to one subscription.
        """
        held_bytes = None if self._retention is None else self._retention.held_bytes
        mine = waits.metrics(demand, self.buffer.held, held_bytes)
        return (mine, *self._upstream.metrics())
