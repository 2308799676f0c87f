"""A correct publisher, and what becomes of it when one line at a time is wrong."""

# ruff: noqa: E501 (rows of a table)

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck import PublisherVerification
from tests.broken.registry import Group, read_rows

publishers = Group(PublisherVerification)

T = TypeVar("T", bound=type)
_NOTHING = object()


class Ahead:
    """An iterator that can be asked whether it is at its end."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self._next: Any = _NOTHING

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        found, self._next = self._next, _NOTHING
        return next(self._source) if found is _NOTHING else found

    def is_at_end(self) -> bool:
        """Whether there is no further element. What the source raises leaves."""
        if self._next is _NOTHING:
            self._next = next(self._source, _NOTHING)
        return self._next is _NOTHING


class CorrectSubscription:
    """One lock; a thread that finds another one sending leaves its work to it."""

    def __init__(self, subscriber: Any, source: Iterator[Any]) -> None:
        self.subscriber = subscriber
        self.source: Iterator[Any] = Ahead(source)
        self.lock = threading.Lock()
        self.demand = 0
        self.refused: Exception | None = None
        self.draining = True  # until on_subscribe has returned
        self.prepare(subscriber)

    def prepare(self, subscriber: Any) -> None:
        """What a broken one keeps besides."""

    def start(self) -> None:
        self.call(self.subscriber.on_subscribe, self)
        self.drain()

    # -- the subscription's face --

    def request(self, n: Any, /) -> None:
        if self.take(n):
            self.drain()

    def cancel(self) -> None:
        self.subscriber = None

    # -- what stands behind it --

    def take(self, n: Any) -> bool:
        """Note the request; True if the caller now holds the drain."""
        with self.lock:
            if self.subscriber is None:
                return False
            refused = self.check(n)
            if refused is None:
                self.demand = self.add(n)
            else:
                self.refused = self.refused or refused
            held, self.draining = self.draining, True
            return not held

    def check(self, n: Any) -> Exception | None:
        if isinstance(n, bool) or not isinstance(n, int):
            return TypeError(f"§3.9: n must be an int, is {type(n).__name__}")
        return ValueError(f"§3.9: n must be at least 1, is {n}") if n < 1 else None

    def add(self, n: int) -> int:
        return min(self.demand + n, UNBOUNDED)

    def drain(self) -> None:
        while (signal := self.next_signal()) is not None:
            self.call(*signal)

    def next_signal(self) -> tuple[Any, ...] | None:
        with self.lock:
            subscriber = self.subscriber
            if subscriber is None:
                self.draining = False
                return None
            if self.refused is not None:
                return self.ends(subscriber.on_error, self.refused)
            try:
                if isinstance(self.source, Ahead) and self.source.is_at_end():
                    return self.ends(subscriber.on_complete)
                if not self.demand:
                    self.draining = False
                    return None
                element = next(self.source)
            except Exception as failed:
                return self.ends(subscriber.on_error, failed)
            self.demand -= 1
            return subscriber.on_next, element

    def ends(self, *signal: Any) -> tuple[Any, ...]:
        self.subscriber = None
        return signal

    def call(self, method: Callable[..., object], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            self.subscriber = None


class CorrectPublisher:
    """``elements`` numbers, or ``source()``."""

    subscription: ClassVar[type[CorrectSubscription]] = CorrectSubscription
    #: The hook of the verification that makes it.
    hook: ClassVar[str] = "create_publisher"

    def __init__(self, elements: int = 0) -> None:
        self.elements = elements

    def source(self) -> Iterable[Any]:
        return range(self.elements)

    def subscribe(self, subscriber: Any, /) -> None:
        if subscriber is None:
            raise TypeError("§1.9: subscriber is None")
        if not hasattr(subscriber, "on_subscribe"):
            raise TypeError("§1.9: that is no subscriber")
        self.subscription(subscriber, iter(self.source())).start()


class CorrectRegistry(CorrectPublisher):
    """Knows its subscribers, by identity, and takes each once."""

    def __init__(self, elements: int = 0) -> None:
        super().__init__(elements)
        self.lock = threading.Lock()
        self.known: list[Any] = []

    def subscribe(self, subscriber: Any, /) -> None:
        if subscriber is None or not hasattr(subscriber, "on_subscribe"):
            raise TypeError("§1.9: that is no subscriber")
        publisher = self

        class Subscription(CorrectSubscription):
            def cancel(self) -> None:
                publisher.forget(self.subscriber)
                super().cancel()

            def ends(self, *signal: Any) -> tuple[Any, ...]:
                publisher.forget(self.subscriber)
                return super().ends(*signal)

        with self.lock:
            if any(known is subscriber for known in self.known):
                raise RuntimeError("§1.10: the same subscriber twice")
            self.known.append(subscriber)
        Subscription(subscriber, iter(self.source())).start()

    def forget(self, subscriber: Any) -> None:
        with self.lock:
            self.known = [known for known in self.known if known is not subscriber]


class CorrectFailed(CorrectPublisher):
    """Has failed before anybody came."""

    hook = "create_failed_publisher"

    def subscribe(self, subscriber: Any, /) -> None:
        subscription = CorrectSubscription(subscriber, iter(()))
        subscriber.on_subscribe(subscription)
        subscription.cancel()
        subscriber.on_error(RuntimeError("failed before"))


class CorrectFailing(CorrectPublisher):
    """Fails after its elements."""

    hook = "create_failing_publisher"

    def source(self) -> Iterator[Any]:
        yield from range(self.elements)
        raise RuntimeError("failed in mid-stream")


def with_subscription(subscription: type[CorrectSubscription]) -> type[CorrectPublisher]:
    """A publisher whose subscriptions are these; named after them."""
    return type(subscription.__name__, (CorrectPublisher,), {"subscription": subscription})


def breaks(what: str, check: str, says: str) -> Callable[[T], T]:
    """Register a publisher; for a subscription, the publisher that gives it."""

    def register(broken: T) -> T:
        is_subscription = issubclass(broken, CorrectSubscription)
        publisher = with_subscription(broken) if is_subscription else broken
        publishers.breaks(what, check, says)(publisher)
        return broken

    return register


# -- 1.1 -------------------------------------------------------------------------------------------


@breaks("1.1 spec", "spec101_subscriptionRequestMust", "element 2")
class IgnoresDemand(CorrectSubscription):
    def add(self, n: int) -> int:
        return UNBOUNDED


# -- 1.2, 1.5 --------------------------------------------------------------------------------------


@breaks("1.5 spec", "spec105_mustSignalOn", "on_complete after the last element")
class NeverCompletes(CorrectSubscription):
    def ends(self, *signal: Any) -> tuple[Any, ...]:
        super().ends()
        return (lambda: None,)


# -- 1.3 -------------------------------------------------------------------------------------------


@breaks("1.3 spec", "spec103_mustSignalOn", "while another thread is")
class EmitsFromThreads(CorrectPublisher):
    """Two threads call on_next, and the first one stays in it until the second has come."""

    def subscribe(self, subscriber: Any, /) -> None:
        started: list[threading.Thread] = []
        inside = threading.Barrier(2)

        class Subscription:
            def request(self, n: int, /) -> None:
                if threading.current_thread() in started:  # within on_next
                    with suppress(threading.BrokenBarrierError):
                        inside.wait(1)
                    return
                both = threading.Barrier(2)

                def emit() -> None:
                    both.wait(1)
                    for _ in range(20):
                        subscriber.on_next(1)

                if not started:
                    started.extend(threading.Thread(target=emit) for _ in range(2))
                    for thread in started:
                        thread.start()

            def cancel(self) -> None:
                pass

        subscriber.on_subscribe(Subscription())


class RefusesAtOnce(CorrectSubscription):
    """What another thread asks wrongly is answered there, whatever goes on."""

    owner = 0

    def request(self, n: Any, /) -> None:
        refused, subscriber = self.check(n), self.subscriber
        if refused is not None and subscriber is not None and self.owner != threading.get_ident():
            self.subscriber = None
            subscriber.on_error(refused)
        super().request(n)

    def call(self, method: Callable[..., object], *arguments: Any) -> None:
        self.owner = threading.get_ident()
        super().call(method, *arguments)
        self.owner = 0


breaks("1.3 strict", "spec103_anInvalidRequest", "while another thread is inside on_next(0)")(
    RefusesAtOnce
)


# -- 1.4 -------------------------------------------------------------------------------------------


class RaisesFailure(CorrectSubscription):
    def ends(self, *signal: Any) -> tuple[Any, ...]:
        self.subscriber = None
        if len(signal) > 1:
            raise signal[1]
        return signal


# -- 1.6, 1.7 --------------------------------------------------------------------------------------


class StillChecks(CorrectSubscription):
    """Answers invalid requests in any state."""

    def prepare(self, subscriber: Any) -> None:
        self.first = subscriber

    def request(self, n: Any, /) -> None:
        refused = self.check(n)
        if refused is not None and self.subscriber is None:
            self.first.on_error(refused)
        super().request(n)


breaks("1.6 strict", "spec106_afterTheEndInvalid", "nothing after on_complete()")(StillChecks)
breaks("3.6 strict", "spec306_afterCancelInvalid", "nothing after on_error(")(StillChecks)


@breaks("1.7 spec", "spec105_mustSignalOn", "on_complete() after it")
class CompletesTwice(CorrectSubscription):
    def ends(self, *signal: Any) -> tuple[Any, ...]:
        method = signal[0]
        super().ends()
        return (lambda: (method(*signal[1:]), method(*signal[1:])),)


# -- 1.8, 3.12 -------------------------------------------------------------------------------------


@breaks(
    "1.8 strict",
    "spec108_cancelShouldStop",
    "at most 0 elements after a cancel from within on_next",
)
@breaks(
    "1.8 strict",
    "spec108_cancelFromWithinOnNext",
    "at most 0 elements after a cancel from within on_next",
)
class TenMoreAfterCancel(CorrectSubscription):
    left = 10

    def prepare(self, subscriber: Any) -> None:
        self.cancelled: Any = None

    def cancel(self) -> None:
        if self.subscriber is not None:
            self.cancelled = self.subscriber
        super().cancel()

    def next_signal(self) -> tuple[Any, ...] | None:
        if self.cancelled is not None and self.demand and self.left:
            self.left -= 1
            self.demand -= 1
            with suppress(StopIteration):
                return self.cancelled.on_next, next(self.source)
        self.cancelled = None
        return super().next_signal()


@breaks("3.12 spec", "spec312_cancelMustMake", "as requested")
class RunsAway(CorrectPublisher):
    """A thread that emits, whatever is asked or cancelled, until its elements end."""

    def subscribe(self, subscriber: Any, /) -> None:
        class Subscription:
            started = False

            def request(self, n: int, /) -> None:
                if not self.started:
                    self.started = True
                    threading.Thread(target=emit).start()

            def cancel(self) -> None:
                pass

        def emit() -> None:
            for n in range(40):
                subscriber.on_next(n)

        subscriber.on_subscribe(Subscription())


# -- 1.9, 1.10, 1.11, 2.12 -------------------------------------------------------------------------


@breaks("1.9 python", "spec109_subscribeOfNone", "it raised AttributeError")
class StumblesOverNone(CorrectPublisher):
    def subscribe(self, subscriber: Any, /) -> None:
        self.subscription(subscriber, iter(self.source())).start()


@breaks(
    "1.10 strict", "spec110_theSameSubscriber", "on_subscribe"
)  # a second one or, without a GIL, two at a time
class RegistryWithAGap(CorrectRegistry):
    def __init__(self, elements: int = 0) -> None:
        super().__init__(elements)
        self.gap = threading.Barrier(2)

    def subscribe(self, subscriber: Any, /) -> None:
        if any(known is subscriber for known in self.known):
            raise RuntimeError("§1.10: the same subscriber twice")
        with suppress(threading.BrokenBarrierError):  # one alone goes on after a while
            self.gap.wait(0.5)
        self.known.append(subscriber)
        CorrectSubscription(subscriber, iter(self.source())).start()


@breaks("2.12 spec", "spec109_mustIssueOn", "a second on_subscribe")
class SubscribesTwice(CorrectPublisher):
    def subscribe(self, subscriber: Any, /) -> None:
        super().subscribe(subscriber)
        super().subscribe(subscriber)


@breaks("2.12 python", "spec212_aSubscriberWith", "ProbeFailed('hash')")
class RegistryByHash(CorrectPublisher):
    def __init__(self, elements: int = 0) -> None:
        super().__init__(elements)
        self.known: set[Any] = set()

    def subscribe(self, subscriber: Any, /) -> None:
        self.known.add(subscriber)
        super().subscribe(subscriber)


class AsksForTruth(CorrectPublisher):
    def subscribe(self, subscriber: Any, /) -> None:
        if not subscriber:
            raise TypeError("§1.9: subscriber is None")
        super().subscribe(subscriber)


breaks("2.12 python", "spec212_aSubscriberWith", "ProbeFailed('bool')")(AsksForTruth)


class OneSource(CorrectPublisher):
    """All subscribers draw from one source."""

    def __init__(self, elements: int = 0) -> None:
        super().__init__(elements)
        self.shared = iter(range(elements))

    def source(self) -> Iterable[Any]:
        return self.shared


breaks("1.11 strict", "RequestingOneByOne", "§1.11")(OneSource)
breaks("1.11 strict", "RequestingManyUpfront", "on_complete()")(OneSource)
breaks("1.11 strict", "RequestingManyUpfrontAndCompleteAsExpected", "on_complete()")(OneSource)


class OnlyOne(CorrectPublisher):
    """Rejects a second subscriber, properly."""

    taken = False

    def subscribe(self, subscriber: Any, /) -> None:
        if self.taken:
            CorrectFailed().subscribe(subscriber)
        else:
            self.taken = True
            super().subscribe(subscriber)


breaks("1.11 strict", "spec111_maySupportMulti", "no signal before a request")(OnlyOne)
breaks("1.11 strict", "spec111_registeredSubscribersMust", "an element or on_complete for each")(
    OnlyOne
)


def with_publisher(
    subscription: Callable[[Any], type[CorrectSubscription]], name: str
) -> type[CorrectPublisher]:
    """A publisher whose subscriptions know it, and what it keeps for all of them."""

    class Publisher(CorrectPublisher):
        def __init__(self, elements: int = 0) -> None:
            super().__init__(elements)
            self.all: list[Any] = []
            self.left = 0
            self.subscription = subscription(self)  # type: ignore[misc]

    return type(name, (Publisher,), {})


def gives_to_all(publisher: Any) -> type[CorrectSubscription]:
    class Subscription(CorrectSubscription):
        """What one asks for, all get."""

        def start(self) -> None:
            publisher.all.append(self)
            super().start()

        def call(self, method: Callable[..., object], *arguments: Any) -> None:
            super().call(method, *arguments)
            for other in publisher.all if method.__name__ == "on_next" else ():
                if other is not self and other.subscriber is not None:
                    other.subscriber.on_next(*arguments)

    return Subscription


def cancels_all(publisher: Any) -> type[CorrectSubscription]:
    class Subscription(CorrectSubscription):
        """The cancel of one is the cancel of all."""

        def start(self) -> None:
            publisher.all.append(self)
            super().start()

        def cancel(self) -> None:
            for each in publisher.all:
                each.subscriber = None

    return Subscription


def inherits_demand(publisher: Any) -> type[CorrectSubscription]:
    class Subscription(CorrectSubscription):
        """Begins with the demand that was left by the last one that cancelled."""

        def start(self) -> None:
            self.demand = publisher.left
            super().start()

        def cancel(self) -> None:
            publisher.left = self.demand
            super().cancel()

    return Subscription


breaks("1.11 spec", "spec111_aSubscriberMust", "at most 0 elements, as requested")(
    with_publisher(gives_to_all, "GivesToAll")
)
breaks("1.11 spec", "spec111_aSubscriberMust", "though the other subscriber has")(
    with_publisher(cancels_all, "CancelsAll")
)


def hides_new_demand(publisher: Any) -> type[CorrectSubscription]:
    class Subscription(CorrectSubscription):
        """Takes what the last one left when it cancelled off what this one asks for."""

        def add(self, n: int) -> int:
            hidden = min(n, publisher.left)
            publisher.left -= hidden
            return super().add(n - hidden)

        def cancel(self) -> None:
            publisher.left += self.demand
            super().cancel()

    return Subscription


breaks("1.11 spec", "spec111_aLaterSubscriberMustBe", "an element or the end for a later")(
    with_publisher(hides_new_demand, "HidesNewDemand")
)
breaks("1.11 spec", "spec111_aLaterSubscriberMustStart", "at most 0 elements")(
    with_publisher(inherits_demand, "InheritsDemand")
)


# -- 2.13 ------------------------------------------------------------------------------------------


class PassesOn(CorrectSubscription):
    """What the subscriber raises leaves through the call that caused it."""

    def call(self, method: Callable[..., object], *arguments: Any) -> None:
        method(*arguments)


def passes_on(signal: str, caller: str, says: str) -> None:
    name = f"beyond_spec213_what{signal}RaisesShouldNotLeave{caller}"
    breaks("2.13 strict", name, says)(PassesOn)


passes_on("OnNext", "Request", "request(3) returns normally")
passes_on("OnSubscribe", "Subscribe", "subscribe returns normally")
passes_on("OnComplete", "Request", "request(2) returns normally")
passes_on("OnError", "Request", "request(-1) returns normally")


# -- 3.2, 3.3 --------------------------------------------------------------------------------------


class Recursive(CorrectSubscription):
    """Emits from within request, though another call emits already."""

    patience = 0

    def request(self, n: Any, /) -> None:
        self.take(n)
        if self.patience:
            self.patience -= 1
        else:
            self.drain()

    def drain(self) -> None:
        if self.patience >= 0:
            super().drain()


breaks("3.3 spec", "spec303_mustNotAllow", "on_next at most 50 deep in itself")(Recursive)


# -- 3.4, 3.5, 3.6, 3.7 ----------------------------------------------------------------------------


@breaks("3.6 spec", "spec306_afterSubscriptionIs", "nothing for requests after cancel")
class IgnoresCancel(CorrectSubscription):
    def cancel(self) -> None:
        pass


# -- 3.8 -------------------------------------------------------------------------------------------


# -- 3.9 -------------------------------------------------------------------------------------------


def takes(n: Any) -> type[CorrectSubscription]:
    """Never asks whether this one is an int at all."""

    class Takes(CorrectSubscription):
        def check(self, asked: Any) -> Exception | None:
            if type(asked) is not type(n):
                return super().check(asked)
            return ValueError("§3.9: n must be at least 1") if asked < 1 else None

    return type(f"Takes_{type(n).__name__}", (Takes,), {})


for _n, _says in (
    (True, "at most 0 elements, as requested"),
    (1.5, "at most 0 elements, as requested"),
    ("1", "request('1') returns normally"),
    (None, "request(None) returns normally"),
):
    breaks("3.9 python", "spec309_aRequestOf", _says)(takes(_n))


# -- 3.13 ------------------------------------------------------------------------------------------


class KeepsAll(CorrectPublisher):
    """Never forgets a subscriber."""

    def __init__(self, elements: int = 0) -> None:
        super().__init__(elements)
        self.known: list[Any] = []

    def subscribe(self, subscriber: Any, /) -> None:
        self.known.append(subscriber)
        super().subscribe(subscriber)


breaks("3.13 spec", "spec313_cancelMustMake", "after cancel")(KeepsAll)
for _what, _check, _says in (
    ("3.13 spec", "DroppedWithoutAnyRequest", "a cancel without request"),
    ("3.13 strict", "theSubscriberShouldBeDroppedAfterTheEnd", "after on_complete"),
    ("3.13 strict", "theSubscriberShouldBeDroppedAfterAnError", "after on_error"),
):
    breaks(_what, _check, _says)(KeepsAll)


@breaks(
    "3.13 spec", "spec313_theSubscriberMustBeDroppedAfter", "after a cancel from within on_next"
)
class KeepsWhoLeavesEarly(CorrectPublisher):
    """Its list of signals under way is cleared where they have all gone out, and only there."""

    def __init__(self, elements: int = 0) -> None:
        super().__init__(elements)
        self.under_way: list[Any] = []

    def subscribe(self, subscriber: Any, /) -> None:
        under_way = self.under_way

        class Subscription(CorrectSubscription):
            def call(self, method: Callable[..., object], *arguments: Any) -> None:
                under_way.append(method)
                super().call(method, *arguments)
                if self.subscriber is not None or not self.demand:
                    under_way.remove(method)

        if not hasattr(subscriber, "on_subscribe"):
            raise TypeError("§1.9: that is no subscriber")
        Subscription(subscriber, iter(self.source())).start()


@breaks("3.13 strict", "spec313_theCancelledSubscription", "while its subscription is kept")
class CancelSetsAFlagOnly(CorrectSubscription):
    def prepare(self, subscriber: Any) -> None:
        self.first = subscriber


# -- 3.15, 3.16, 3.17 ------------------------------------------------------------------------------


@breaks("3.16 spec", "spec309_requestZeroMust", "request(0) returns normally")
class RequestRaises(CorrectSubscription):
    def request(self, n: Any, /) -> None:
        if n < 1:
            raise ValueError("§3.9: n must be at least 1")
        super().request(n)


def wraps_at(limit: int) -> type[CorrectSubscription]:
    """Saturates each request, but not their sum."""

    class Wraps(CorrectSubscription):
        def add(self, n: int) -> int:
            return (self.demand + min(n, UNBOUNDED)) % limit

    return type(f"WrapsAt2To{limit.bit_length() - 1}", (Wraps,), {})


for _limit in (2**63, 2**64):
    breaks("3.17 spec", "spec317_demandMustNot", "3 elements (element 2)")(wraps_at(_limit))


class PacksIntoALong(CorrectSubscription):
    """As ``struct.pack`` or a C call does: OverflowError for what does not fit."""

    def request(self, n: Any, /) -> None:
        if isinstance(n, int):
            n.to_bytes(8, "little", signed=True)
        super().request(n)


breaks("3.17 python", "spec317_aRequestThat", "request(9223372036854775808) returns normally")(
    PacksIntoALong
)


read_rows(
    globals(),
    {"": breaks},
    """\
1.1 spec spec101_subscriptionRequestMust: at most 1 elements, as requested
OneTooMany(CorrectSubscription).add: return super().add(n) + 1
1.1 spec spec101_subscriptionRequestMust: at most 0 elements, as requested
OneBeforeAnyRequest(CorrectSubscription).start:
    self.demand = 1
    super().start()
1.1 spec spec101_subscriptionRequestMust: an element after request(1)
GivesNothing(CorrectPublisher).subscribe:
    if subscriber is None:
        raise TypeError
    subscriber.on_subscribe(CorrectSubscription(subscriber, iter(())))
1.1 spec spec101_aLongStream: at most 777 elements
CountsWrongLate(CorrectSubscription):
    emitted = 0
    next_signal:
        self.emitted += 1
        if self.emitted == 700:
            self.demand += 1
        return super().next_signal()
1.2 spec spec102_maySignalLess: on_complete after the third and last element
EndsOnlyWithoutDemand(CorrectSubscription).ends:
    if self.demand and self.refused is None:
        return (lambda: setattr(self, "subscriber", None),)
    return super().ends(*signal)
1.5 spec createPublisher3MustProduce: element 3 of 3
OneTooFew(CorrectPublisher).source: return range(self.elements - 1)
1.5 spec createPublisher1MustProduce: came:     on_next(1)
OneMoreThanItSays(CorrectPublisher).source: return range(self.elements + 1)
1.5 spec spec105_emptyStreamMust: expected: on_complete
EmptyNeverCompletes(CorrectPublisher).subscribe:
    if self.elements:
        super().subscribe(subscriber)
    else:
        subscriber.on_subscribe(CorrectSubscription(None, iter(())))
1.9 spec spec105_emptyStreamMust: on_subscribe before any other signal
EmptyCompletesWithoutSubscription(CorrectPublisher).subscribe:
    if not self.elements:
        subscriber.on_complete()
1.3 strict spec103_signalsMustNotOverlapWhen: on_next(1) while another thread is inside on_next(0)
EachRequestEmits(CorrectSubscription):
    prepare: self.owner = 0
    request:
        mine = self.take(n)
        if mine or self.owner not in (0, threading.get_ident()):
            self.drain()
    call:
        self.owner = threading.get_ident()
        super().call(method, *arguments)
        self.owner = 0
1.3 spec spec103_signalsMustNotOverlapOnSubscribe: on_next(0) while another thread is inside on_subscribe()
# A thread emits what is asked for, even while on_subscribe runs.
ServesAtOnce(CorrectSubscription):
    start:
        self.draining = False
        self.call(self.subscriber.on_subscribe, self)
    request:
        if self.take(n):
            threading.Thread(target=self.drain).start()
1.3 spec spec103_signalsMustNotOverlapOnNext: on_next(2)
# Another thread tells the end, as soon as the last element is on its way.
EndsElsewhere(CorrectSubscription).call:
    subscriber = self.subscriber
    if subscriber is None or arguments != (2,):
        super().call(method, *arguments)
        return
    self.subscriber = None
    end = threading.Timer(0.01, subscriber.on_complete)
    end.start()
    method(*arguments)
    end.join()
1.4 spec spec104_mustSignalOn: raised RuntimeError('failed before')
FailedRaises(CorrectFailed).subscribe: raise RuntimeError("failed before")
1.9 spec spec109_mayRejectCalls: on_error of the failed publisher
FailedIsSilent(CorrectFailed).subscribe: subscriber.on_subscribe(CorrectSubscription(subscriber, iter(())))
1.9 spec spec109_mayRejectCalls: on_subscribe before any other signal
FailedForgetsOnSubscribe(CorrectFailed).subscribe: subscriber.on_error(RuntimeError("failed before"))
1.4 spec spec104_aFailureAfter: on_error, since the source failed
TakesFailureForTheEnd(CorrectFailing).source:
    try:
        yield from super().source()
    except RuntimeError:
        return
1.4 spec spec104_aFailureAfter: raised RuntimeError('failed in mid-stream')
FailureLeavesRequest(CorrectFailing):
    subscription = RaisesFailure
1.6 spec spec106_afterTheEndRequest: cancel() returns normally
CannotBeCancelledAfterTheEnd(CorrectSubscription):
    over = False
    ends:
        self.over = True
        return super().ends(*signal)
    cancel:
        if self.over:
            raise RuntimeError("the stream has ended")
        super().cancel()
1.7 spec spec107_mustNotEmit: nothing after on_complete()
ServesOnAfterTheEnd(CorrectSubscription).ends:
    self.source = itertools.count()
    self.demand = 0
    return signal
1.7 spec spec107_nothingMustFollowOnErrorOfAn: nothing after on_error(
LivesOnAfterOnError(CorrectSubscription).next_signal:
    refused, self.refused = self.refused, None
    if refused is not None and self.subscriber is not None:
        return self.subscriber.on_error, refused
    return super().next_signal()
1.7 spec spec107_nothingMustFollowOnErrorOfAFailed: nothing after on_error(
FailedFailsAgain(CorrectFailed).subscribe:
    subscription = CorrectSubscription(subscriber, iter(()))
    subscriber.on_subscribe(subscription)
    subscriber.on_error(RuntimeError("failed before"))
    subscription.drain()
1.7 spec spec107_oneEndMust: nothing after on_error(
AnswersEachInvalidRequest(CorrectSubscription):
    prepare: self.invalid: list[Exception] = []
    take:
        refused = self.check(n)
        if refused is not None:
            self.invalid.append(refused)
        return super().take(n)
    ends:
        method, *error = super().ends(*signal)
        if not error:
            return (method,)
        return (lambda: [method(refused) for refused in self.invalid],)
1.8 spec spec108_cancelMustStop: all 2500 of them
# Has a loop of its own for unbounded demand.
LooksAtNothingOnTheFastPath(CorrectSubscription).next_signal:
    subscriber = self.subscriber
    if subscriber is None or self.demand < UNBOUNDED:
        return super().next_signal()
    self.demand -= 1
    return (lambda: [subscriber.on_next(element) for element in self.source],)
1.8 spec spec108_cancelFromWithinOnSubscribe: nothing after a cancel from within on_subscribe
DeafInOnSubscribe(CorrectSubscription):
    started = False
    start:
        self.subscriber.on_subscribe(self)
        self.started = True
        self.drain()
    cancel:
        if self.started:
            super().cancel()
3.5 spec spec108_cancelRacingWith: cancel() returns normally
CancelUsesWhatTheEndClears(CorrectSubscription).cancel:
    if self.subscriber is not None:
        time.sleep(0.1)
        self.subscriber.on_subscribe
    super().cancel()
3.12 spec spec312_requestAndCancel: an element for a request from any thread
ServesItsOwnThreadOnly(CorrectSubscription):
    prepare: self.thread = threading.current_thread()
    request:
        if threading.current_thread() is self.thread:
            super().request(n)
1.9 spec spec109_subscribeThrowN: subscribe(None) raises
TakesNone(CorrectPublisher).subscribe:
    if subscriber is not None:
        super().subscribe(subscriber)
1.9 spec spec109_mustIssueOn: expected: on_subscribe
SaysNothing(CorrectPublisher).subscribe: pass
1.9 spec spec109_mustIssueOn: on_complete()
CompletesFirst(CorrectPublisher).subscribe: subscriber.on_complete()
1.9 spec spec109_mustIssueOn: on_next(1337)
EmitsFirst(CorrectPublisher).subscribe: subscriber.on_next(1337)
1.9 spec spec109_mustIssueOn: on_error(RuntimeError('first'))
FailsFirst(CorrectPublisher).subscribe: subscriber.on_error(RuntimeError("first"))
1.9 spec spec109_mustIssueOn: subscribe returns normally
SubscribeRaises(CorrectPublisher).subscribe: raise OSError("no connection")
1.9 python spec109_subscribeShouldRefuse: subscribe(object()) raises TypeError
TakesAnything(CorrectPublisher).subscribe:
    if hasattr(subscriber, "on_subscribe"):
        super().subscribe(subscriber)
1.9 strict spec109_subscribingFromMany: on_subscribe
# Keeps the newcomer in an attribute, where another newcomer replaces it.
ServesOneAtATime(CorrectPublisher).subscribe:
    self.newcomer = subscriber
    time.sleep(0.1)
    super().subscribe(self.newcomer)
1.11 strict RequestingManyUpfront: the same elements as subscriber
EachInAnotherOrder(CorrectPublisher):
    turn = 0
    source:
        self.turn += 1
        return [*range(self.turn, self.elements), *range(self.turn)][: self.elements]
2.13 strict spec213_whatOnNext: the subscription counts as cancelled
GoesOnAfterOnNextRaised(CorrectSubscription).call:
    subscriber = self.subscriber
    super().call(method, *arguments)
    self.subscriber = subscriber
2.13 strict spec213_whatOnNext: on_error(ProbeFailed('on_next'))
TellsItToTheOneThatRaised(CorrectSubscription).call:
    subscriber = self.subscriber
    try:
        method(*arguments)
    except Exception as raised:
        self.subscriber = None
        if subscriber is not None:
            subscriber.on_error(raised)
2.13 strict spec213_whatOnSubscribe: nothing after on_subscribe has raised
ForgivesOnSubscribe(CorrectSubscription).start:
    with suppress(Exception):
        self.subscriber.on_subscribe(self)
    self.drain()
1.5 spec spec101_aLongStream: on_complete after the last element
LeavesLongStreamsOpen(CorrectSubscription):
    calls = 0
    next_signal:
        self.calls += 1
        return super().next_signal()
    ends:
        super().ends()
        return signal if self.calls < 50 else (lambda: None,)
1.5 spec spec101_aLongStream: on_next(1200)
OneMoreAtTheEndOfLongStreams(CorrectPublisher).source:
    return range(self.elements + (self.elements > 20))
2.13 spec spec101_aLongStream: element 501 is None
NoneInMidStream(CorrectPublisher).source:
    yield from range(500)
    yield None
    yield from range(501, self.elements)
3.2 spec spec302_mustAllowSynchronous: every call returns within 1.9 s
HoldsALockWhileSignalling(CorrectSubscription).call:
    with self.lock:
        super().call(method, *arguments)
3.2 spec spec302_mustAllowSynchronous: 6 elements, all asked for from within signals
DeafWhileSignalling(CorrectSubscription).request:
    if not self.draining:
        super().request(n)
3.3 strict spec303_recursionShouldStay: on_next at most 1 deep in itself
RecursiveLate(CorrectSubscription):
    requests = 0
    request:
        self.requests += 1
        if self.take(n) or self.requests > 600:
            self.drain()
3.4 strict spec304_requestShouldReturn: within 20 ms
SlowRequest(CorrectSubscription).request:
    time.sleep(0.04)
    super().request(n)
3.5 strict spec305_cancelShouldReturn: cancel() within 20 ms
SlowCancel(CorrectSubscription).cancel:
    time.sleep(0.04)
    super().cancel()
3.5 spec spec305_cancelMustReturn: it waited until on_next had returned
# Signals with a lock held that cancel takes; its own thread may.
CancelWaitsForTheDrain(CorrectSubscription):
    prepare: self.signalling = threading.RLock()
    call:
        with self.signalling:
            super().call(method, *arguments)
    cancel:
        with self.signalling:
            super().cancel()
3.5 spec spec305_cancelFromMany: cancel() returns normally
CancelIsForOne(CorrectSubscription):
    cancelling = False
    cancel:
        if self.cancelling:
            raise RuntimeError("cancel is already running")
        self.cancelling = True
        super().cancel()
        time.sleep(0.1)
        self.cancelling = False
3.7 spec spec307_afterSubscriptionIs: nothing for three cancels
CompletesOnCancel(CorrectSubscription):
    prepare: self.first = subscriber
    cancel:
        if self.subscriber is None and self.first is not None:
            first, self.first = self.first, None
            first.on_complete()
        super().cancel()
3.8 spec spec101_subscriptionRequestMust: 3 elements after request(1), request(2)
# Forgets what was asked while the drain was busy.
DelaysItsDemandAway(CorrectSubscription):
    seen = 0
    add:
        self.seen += 1
        return self.demand if self.seen == 2 else super().add(n)
3.8 spec spec308_demandFromWithin: 7 elements for 1 + 2 + 3 + 1
KnowsTheLastRequestOnly(CorrectSubscription).add: return n
3.8 strict spec308_demandFromSeveral: 200 elements, as requested
# Two requests at once: the second finds the first one at work, and is dropped.
LosesDemandWhenBusy(CorrectSubscription):
    busy = False
    request:
        if self.busy:
            return
        self.busy = True
        time.sleep(0.0002)
        super().request(n)
        self.busy = False
3.9 spec spec309_requestZeroMust: on_error for request(0)
IgnoresZero(CorrectSubscription).request:
    if n != 0:
        super().request(n)
3.9 spec spec309_requestNegativeNumberMust: on_error for request(-
IgnoresNegative(CorrectSubscription).request:
    if n >= 0:
        super().request(n)
3.9 strict spec309_requestNegativeNumberMay: a text with one of
SaysLittle(CorrectSubscription).check: return None if super().check(n) is None else ValueError("wrong")
3.9 python spec309_theErrorShould: on_error(KeyError('n'))
SignalsAnotherError(CorrectSubscription).check: return None if super().check(n) is None else KeyError("n")
3.9 strict spec309_anInvalidRequest: on_error after on_next has returned
ErrorOvertakesOnNext(CorrectSubscription).request:
    refused = self.check(n)
    if refused is not None and self.subscriber is not None:
        subscriber, self.subscriber = self.subscriber, None
        subscriber.on_error(refused)
    super().request(n)
3.13 strict spec313_theErrorShould: while its error is kept
ErrorWithFrames(CorrectSubscription).request:
    subscriber = self.subscriber
    try:
        refused = self.check(n)
        if refused is not None:
            raise refused
    except Exception as error:
        self.subscriber = None
        if subscriber is not None:
            subscriber.on_error(error)
    else:
        super().request(n)
3.15 spec spec307_afterSubscriptionIs: cancel() returns normally
SecondCancelRaises(CorrectSubscription).cancel:
    if self.subscriber is None:
        raise RuntimeError("cancelled already")
    super().cancel()
3.17 spec spec317_mustSupportAPending: 3 elements (element 1)
Has32Bits(CorrectSubscription).add:
    total = (self.demand + n) & 0xFFFFFFFF
    return 0 if total >= 2**31 else total
3.17 spec spec317_mustSupportACumulative: 3 elements (element 2)
# Starts late, at the third request, and has forgotten the others by then.
KeepsOnlyTheLastRequest(CorrectSubscription):
    requests = 0
    add:
        self.requests += 1
        return n
    drain:
        if self.requests in (1, 2):
            self.draining = False
        else:
            super().drain()
3.17 spec spec317_mustNotSignal: no on_error for too much demand
TooMuchIsAnError(CorrectSubscription).check:
    refused = super().check(n)
    if refused is None and self.demand + n > UNBOUNDED:
        return OverflowError("too much demand")
    return refused
3.17 spec spec317_manySmallRequests: 1200 elements for 1200 requests
# Fails at the 1000th request.
TiresOfRequests(CorrectSubscription):
    requests = 0
    request:
        self.requests += 1
        if self.requests < 1000:
            super().request(n)
""",
)
