"""A correct processor, and what becomes of it when one line at a time is wrong."""

# ruff: noqa: E501 (rows of a table)

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck import IdentityProcessorVerification
from tests.broken.publishers import CorrectFailed
from tests.broken.registry import Group, read_rows

processors = Group(IdentityProcessorVerification)
breaks = processors.breaks

Call = Callable[[], object]


class CorrectProcessor:
    """Each subscriber has a queue of at most ``size``; the slowest gates, the fastest asks.

    One lock guards all state. Calls are made without it, those upstream one at a time.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.upstream: Any = None
        self.outstanding = 0  # asked for upstream, and not yet come
        self.calling_upstream = False
        self.terminal: tuple[Any, ...] | None = None
        self.cancelled = False
        self.had_subscribers = False
        self.downstreams: list[Downstream] = []

    # -- the publisher's side --

    def subscribe(self, subscriber: Any, /) -> None:
        if subscriber is None or not hasattr(subscriber, "on_subscribe"):
            raise TypeError("§1.9: that is no subscriber")
        downstream = self.make_downstream(subscriber)
        with self.lock:
            if self.terminal is None:
                self.had_subscribers = True
                self.downstreams.append(downstream)
        downstream.start()

    def make_downstream(self, subscriber: Any) -> Downstream:
        return Downstream(self, subscriber)

    # -- the subscriber's side --

    def on_subscribe(self, subscription: Any, /) -> None:
        if subscription is None:
            raise TypeError("§2.13: subscription is None")
        with self.lock:
            refused = self.upstream is not None
            if not refused:
                self.upstream = subscription
        if refused:
            subscription.cancel()
        else:
            self.call_upstream()

    def on_next(self, element: Any, /) -> None:
        if element is None:
            raise TypeError("§2.13: element is None")
        with self.lock:
            if self.terminal is not None or self.cancelled:
                return  # §2.8
            self.outstanding -= 1
            downstreams = list(self.downstreams)
            for downstream in downstreams:
                self.put(downstream, element)
        self.spread(downstreams)

    def put(self, downstream: Downstream, element: Any) -> None:
        downstream.queue.append(element)

    def on_error(self, error: BaseException, /) -> None:
        if error is None:
            raise TypeError("§2.13: error is None")
        self.end("on_error", error)

    def on_complete(self) -> None:
        self.end("on_complete")

    def end(self, *terminal: Any) -> None:
        with self.lock:
            if self.terminal is not None:
                return
            self.terminal = terminal
            self.upstream = self.upstream and _GONE
            downstreams, self.downstreams = self.downstreams, []
        self.spread(downstreams)

    def spread(self, downstreams: list[Downstream]) -> None:
        for downstream in downstreams:
            downstream.drain()
        self.call_upstream()

    # -- upstream, one call at a time (§2.7) --

    def call_upstream(self) -> None:
        with self.lock:
            if self.calling_upstream:
                return
            self.calling_upstream = True
        while (call := self.next_call_upstream()) is not None:
            call()

    def next_call_upstream(self) -> Call | None:
        with self.lock:
            call = None
            if self.upstream is not None and self.terminal is None and not self.cancelled:
                if self.had_subscribers and not self.downstreams:
                    call = self.give_up()
                elif not self.outstanding and self.is_wanted():
                    self.outstanding += self.portion()
                    call = functools.partial(self.upstream.request, self.portion())
            if call is None:
                self.calling_upstream = False
            return call

    def give_up(self) -> Call | None:
        self.cancelled = True
        self.terminal = ("on_complete",)  # for a subscriber that comes now
        call: Call = self.upstream.cancel
        self.upstream = _GONE
        return call

    def is_wanted(self) -> bool:
        asked = any(each.demand > len(each.queue) for each in self.downstreams)
        return asked and all(len(each.queue) < self.size for each in self.downstreams)

    def portion(self) -> int:
        return 1

    def forget(self, downstream: Downstream) -> None:
        with self.lock:
            if downstream in self.downstreams:
                self.downstreams.remove(downstream)
        self.call_upstream()


class _Gone:
    """Stands where the upstream was, so that a second one is still refused."""


_GONE: Any = _Gone()


class Downstream:
    """The subscription of one subscriber; one thread at a time sends."""

    def __init__(self, processor: CorrectProcessor, subscriber: Any) -> None:
        self.processor = processor
        self.subscriber = subscriber
        self.queue: deque[Any] = deque()
        self.demand = 0
        self.refused: Exception | None = None
        self.draining = True  # until on_subscribe has returned

    def start(self) -> None:
        self.call(self.subscriber.on_subscribe, self)
        with self.processor.lock:
            self.draining = False
        self.drain()

    def request(self, n: Any, /) -> None:
        with self.processor.lock:
            if self.subscriber is None:
                return
            if isinstance(n, bool) or not isinstance(n, int):
                self.refused = self.refused or TypeError(f"§3.9: {type(n).__name__} is no count")
            elif n < 1:
                self.refused = self.refused or ValueError(f"§3.9: n must be at least 1, is {n}")
            else:
                self.demand = min(self.demand + n, UNBOUNDED)
        self.drain()
        self.processor.call_upstream()

    def cancel(self) -> None:
        with self.processor.lock:
            self.subscriber = None
            self.queue.clear()
        self.processor.forget(self)

    def drain(self) -> None:
        with self.processor.lock:
            if self.draining:
                return
            self.draining = True
        while (signal := self.next_signal()) is not None:
            self.call(*signal)

    def next_signal(self) -> tuple[Any, ...] | None:
        with self.processor.lock:
            subscriber, terminal = self.subscriber, self.processor.terminal
            if subscriber is not None:
                if self.refused is not None:
                    return self.ends(self.fail, subscriber, self.refused)
                if terminal is not None and (terminal[0] == "on_error" or not self.queue):
                    return self.terminate(subscriber, terminal)
                if self.queue and self.demand:
                    self.demand -= 1
                    return subscriber.on_next, self.queue.popleft()
            self.draining = False
            return None

    def terminate(self, subscriber: Any, terminal: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.ends(getattr(subscriber, terminal[0]), *terminal[1:])

    def fail(self, subscriber: Any, refused: Exception) -> None:
        self.processor.forget(self)
        subscriber.on_error(refused)

    def ends(self, *signal: Any) -> tuple[Any, ...]:
        self.subscriber = None
        self.queue.clear()
        return signal

    def call(self, method: Callable[..., object], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            self.cancel()


# -- 1.4, 4.2 --------------------------------------------------------------------------------------


@breaks("4.2 spec", "mustImmediatelyPassOn", "on_error(TestError('from upstream')) at subscriber")
class SwallowsErrors(CorrectProcessor):
    def on_error(self, error: BaseException, /) -> None:
        if error is None:
            raise TypeError


class OnlyWithDemand(Downstream):
    def next_signal(self) -> tuple[Any, ...] | None:
        if not self.demand and self.refused is None:
            self.draining = False
            return None
        return super().next_signal()


@breaks("1.4 spec", "spec104_aFailureAfter", "no end")
@breaks("4.1 spec", "spec401_failureInMid", "on_error(TestError('in mid-stream'))")
class SwallowsLateErrors(SwallowsErrors):
    pass


# -- 2.1, 2.5, 2.6, 2.7 as a subscriber ------------------------------------------------------------


@breaks("4.1 strict", "spec401_cancelOfThe", "cancel() upstream after the last cancel downstream")
class NeverCancelsUpstream(CorrectProcessor):
    def give_up(self) -> Call | None:
        return None


@breaks("1.11 strict", "spec111_aLaterSubscriberMustBe", "an element or the end for a later")
class CountsOnWhatIsOwed(NeverCancelsUpstream):
    """What upstream was asked for by subscribers that have cancelled, it still owes: nothing new is
    asked for meanwhile.
    """

    def portion(self) -> int:
        return min(self.size, max(each.demand for each in self.downstreams))

    def on_next(self, element: Any, /) -> None:
        if element is None:
            raise TypeError("§2.13: element is None")
        if self.downstreams:
            super().on_next(element)


class CountsOnWhatIsOwedToOne(CountsOnWhatIsOwed):
    """The same, for one subscriber at a time."""

    def subscribe(self, subscriber: Any, /) -> None:
        if self.downstreams:
            CorrectFailed().subscribe(subscriber)
        else:
            super().subscribe(subscriber)


# -- 4.1 -------------------------------------------------------------------------------------------


class KeepsLocked(Downstream):
    def call(self, method: Callable[..., object], *arguments: Any) -> None:
        with self.processor.lock:
            method(*arguments)


read_rows(
    globals(),
    {"": breaks},
    """\
4.2 spec mustImmediatelyPassOn: came:     on_complete()
TakesAnErrorForTheEnd(CorrectProcessor).on_error: self.on_complete()
4.2 spec mustImmediatelyPassOn: on_error(ValueError('wrapped'))
WrapsErrors(CorrectProcessor).end: super().end(*terminal[:1], *(ValueError("wrapped") for _ in terminal[1:]))
4.2 spec mustImmediatelyPassOn: on_error(TestError('from upstream')) at subscriber
ErrorsWaitForDemand(CorrectProcessor).make_downstream: return OnlyWithDemand(self, subscriber)
1.4 spec spec104_mustCallOn: at subscriber-2
ErrorsGoToTheFirstOnly(CorrectProcessor).end:
    with self.lock:
        del self.downstreams[1:]
    super().end(*terminal)
2.1 spec mustRequestFromUpstream: a request upstream for element 2
ForgetsOldDemand(CorrectProcessor):
    asked = 0
    is_wanted:
        self.asked += super().is_wanted()
        return self.asked == 1 and super().is_wanted()
4.1 spec spec401_cancelOfOne: a request upstream for element 1
AnyCancelCancelsUpstream(CorrectProcessor).forget:
    with self.lock:
        self.downstreams.clear()
    self.call_upstream()
2.5 spec spec205_mustCallSubscription: cancel() of a second subscription
TakesASecondUpstream(CorrectProcessor).on_subscribe:
    if subscription is None:
        raise TypeError
    self.upstream = subscription
    self.call_upstream()
4.1 strict spec401_demandUpstreamShould: at most 17 elements asked for upstream
AsksForAll(CorrectProcessor).portion: return UNBOUNDED
4.1 spec spec401_everyElementMust: on_next(1) at subscriber
DropsEverySecond(CorrectProcessor):
    count = 0
    put:
        self.count += 1
        if self.count % 2:
            super().put(downstream, element)
4.1 spec spec401_everyElementMust: came:     on_next('0')
ChangesElements(CorrectProcessor).put: super().put(downstream, str(element))
4.1 spec spec401_everyElementMust: on_next(1) at subscriber
RepeatsTheFirst(CorrectProcessor):
    first = None
    put:
        self.first = element if self.first is None else self.first
        super().put(downstream, self.first)
4.1 spec spec401_whatIsBuffered: on_next(1) at subscriber
# Asks for a bufferful, and forgets it when upstream ends.
TheEndOvertakes(CorrectProcessor):
    portion: return self.size
    end:
        for downstream in self.downstreams:
            downstream.queue.clear()
        super().end(*terminal)
1.5 spec spec105_mustSignalOn: on_complete
SwallowsTheEnd(CorrectProcessor).on_complete: pass
2.13 spec spec213_onNext_must: on_next(None) raises
PassesNoneOn(CorrectProcessor).on_next: super().on_next(0 if element is None else element)
3.2 spec spec302_mustAllowSynchronous: every call returns
SignalsUnderItsLock(CorrectProcessor).make_downstream: return KeepsLocked(self, subscriber)
""",
)
