"""The kit itself: its names, its proofs, its bounds, and those that live on an asyncio loop."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import rstreams_fast as rf
from rstreams_fast.tck import (
    HookFailed,
    IdentityProcessorVerification,
    PublisherVerification,
    RuleBroken,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    Verification,
    list_tests,
)
from rstreams_fast.tck.history import show
from rstreams_fast.tck.probes import same
from rstreams_fast.tck.rules import RULES, UNBREAKABLE
from rstreams_fast.tck.runner import BROKEN, ERROR, KEPT, NOT_APPLICABLE, NOT_MET, UNTESTED, run
from tests.broken.processors import CorrectProcessor, processors
from tests.broken.publishers import CorrectPublisher, CorrectSubscription, publishers
from tests.broken.subscribers import CorrectSubscriber, CorrectWhitebox, blackbox, whitebox
from tests.tck.official_names import OFFICIAL_NAMES

VERIFICATIONS: dict[str, type[Verification]] = {
    "PublisherVerification": PublisherVerification,
    "SubscriberBlackboxVerification": SubscriberBlackboxVerification,
    "SubscriberWhiteboxVerification": SubscriberWhiteboxVerification,
    "IdentityProcessorVerification": IdentityProcessorVerification,
}
CASES = [*publishers.cases, *blackbox.cases, *whitebox.cases, *processors.cases]


@pytest.mark.parametrize("name", VERIFICATIONS)
def test_every_test_of_the_official_kit_is_here_under_its_name(name: str) -> None:
    ours = {test.name for test in list_tests(VERIFICATIONS[name]) if not test.beyond}
    assert ours == set(OFFICIAL_NAMES[name])


@pytest.mark.parametrize("name", VERIFICATIONS)
def test_every_test_says_what_it_checks_and_where_to_look(name: str) -> None:
    for test in list_tests(VERIFICATIONS[name]):
        assert test.what, test.name
        assert test.look or test.kind == "untested", test.name
        assert test.rule in RULES or "validate" in test.name, test.name


def test_every_rule_that_can_be_broken_is_broken_somewhere() -> None:
    assert {case.rule for case in CASES} == RULES.keys() - UNBREAKABLE.keys()


def test_every_test_rejects_something() -> None:
    proved = {case.test for case in CASES}
    for verification in VERIFICATIONS.values():
        for test in list_tests(verification):
            if test.kind != "untested" and test.rule:
                assert test.name in proved, test.name


SPEC109 = "required_spec109_mustIssueOnSubscribeForNonNullSubscriber"


@pytest.mark.parametrize(
    ("setting", "value", "test"),
    [
        ("max_elements", -1, "required_validate_maxElementsFromPublisher"),
        ("max_elements", "3", SPEC109),
        ("bounded_depth", 0, "required_validate_boundedDepthOfOnNextAndRequestRecursion"),
        ("bounded_depth", True, SPEC109),
        ("signals_after_cancel", None, SPEC109),
        ("timeout", -1, SPEC109),
        ("silence", math.nan, SPEC109),
        ("limit", math.inf, SPEC109),
        ("reference_timeout", "x", SPEC109),
        ("responsivity", 0, SPEC109),
        ("asyncio_bound", "yes", SPEC109),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(setting: str, value: Any, test: str) -> None:
    verification = type("Wrong", (OfRange,), {setting: value})()
    with pytest.raises(HookFailed, match=f"^{setting} must be .*, is "):
        getattr(verification, test)()


class OfRange(PublisherVerification):
    __test__ = False

    def create_publisher(self, elements: int) -> Any:
        return rf.range_(elements)


def outcomes(verification: type[Verification]) -> Counter[str]:
    return Counter(result.outcome for result in run(verification))


def test_what_a_publisher_cannot_do_is_not_applicable() -> None:
    class Single(OfRange):
        max_elements = 1

    class Endless(OfRange):
        max_elements = rf.UNBOUNDED

        def create_publisher(self, elements: int) -> Any:
            return rf.range_(10_000)

    single = outcomes(Single)
    assert single[NOT_APPLICABLE] > 30
    assert single.keys() <= {KEPT, NOT_APPLICABLE, NOT_MET, UNTESTED}
    endless = {result.test.name: result.outcome for result in run(Endless)}
    assert BROKEN not in endless.values()
    spec105 = "required_spec105_mustSignalOnCompleteWhenFiniteStreamTerminates"
    assert endless[spec105] == NOT_APPLICABLE


def test_stochastic_tests_can_be_skipped() -> None:
    class Hurried(OfRange):
        skip_stochastic = True

    (stochastic,) = [test for test in list_tests(Hurried) if test.kind == "stochastic"]
    assert [result.outcome for result in run(Hurried, [stochastic])] == [NOT_APPLICABLE]


def test_a_failure_names_rule_expectation_sight_place_and_history() -> None:
    class Silent(CorrectPublisher):
        def subscribe(self, subscriber: Any, /) -> None:
            if subscriber is None:
                raise TypeError
            subscriber.on_subscribe(CorrectSubscription(subscriber, iter(())))

    class OfSilent(PublisherVerification):
        timeout = 0.05

        def create_publisher(self, elements: int) -> Any:
            return Silent(elements)

    with pytest.raises(RuleBroken) as failure:
        OfSilent().required_spec105_mustSignalOnCompleteWhenFiniteStreamTerminates()
    text = str(failure.value)
    assert text.startswith("§1.5 broken: a finite stream that succeeds ends with on_complete")
    assert "expected: an element for each request(1)" in text
    assert "seen:     nothing" in text
    assert "look:     at the end of the source" in text
    assert "subscriber.on_subscribe()" in text
    assert "subscriber's subscription.request(1)" in text
    assert "ms  tck " in text  # the thread


def test_a_hook_that_fails_is_no_broken_rule() -> None:
    class Failing(PublisherVerification):
        def create_publisher(self, elements: int) -> Any:
            raise OSError("no connection")

    results = list(run(Failing))
    assert {result.outcome for result in results} <= {ERROR, NOT_APPLICABLE, UNTESTED, KEPT}
    assert any("create_publisher(5) raised OSError" in result.message for result in results)


@pytest.mark.parametrize(
    ("base", "method"),
    [
        (PublisherVerification, "subscribe"),
        (SubscriberBlackboxVerification, "on_subscribe"),
        (SubscriberWhiteboxVerification, "on_subscribe"),
        (IdentityProcessorVerification, "on_subscribe"),
    ],
)
def test_what_cannot_be_judged_is_no_broken_rule(base: type[Verification], method: str) -> None:
    def create(*_arguments: Any) -> int:
        return 5

    results = list(run(type("Five", (base,), {base.essential_hook: staticmethod(create)})))
    assert {result.outcome for result in results} <= {ERROR, NOT_APPLICABLE, UNTESTED, KEPT}
    said = f"{base.essential_hook} returned 5, which has no method {method}"
    assert said in {result.message for result in results}


def test_a_call_that_never_returns_fails_the_test_and_shows_where() -> None:
    release = threading.Event()

    class Blocks(CorrectPublisher):
        def subscribe(self, subscriber: Any, /) -> None:
            release.wait(60)

    class OfBlocks(PublisherVerification):
        limit = 0.2

        def create_publisher(self, elements: int) -> Any:
            return Blocks(elements)

    with pytest.raises(RuleBroken, match=r"raise the setting limit[^*]*release\.wait"):
        OfBlocks().required_spec109_mustIssueOnSubscribeForNonNullSubscriber()
    release.set()


# -- implementations that live on an asyncio loop --------------------------------------------------


class LoopSubscription:
    """Calls only from its loop are served, as in most asyncio code."""

    def __init__(self, loop: asyncio.AbstractEventLoop, subscriber: Any, elements: int) -> None:
        self.loop = loop
        self.subscriber = subscriber
        self.elements = iter(range(elements))
        self.demand = 0
        self.task: asyncio.Task[None] | None = None

    def request(self, n: Any, /) -> None:
        assert asyncio.get_running_loop() is self.loop
        if self.subscriber is None:
            return
        if isinstance(n, bool) or not isinstance(n, int):
            self.fail(TypeError(f"§3.9: {type(n).__name__} is no count"))
        elif n < 1:
            self.fail(ValueError(f"§3.9: n must be at least 1, is {n}"))
        else:
            self.demand += n
            if self.task is None:
                self.task = self.loop.create_task(self.emit())

    def fail(self, error: Exception) -> None:
        subscriber, self.subscriber = self.subscriber, None
        self.loop.call_soon(self.safely, subscriber.on_error, error)

    def cancel(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.subscriber = None

    async def emit(self) -> None:
        while self.demand and self.subscriber is not None:
            await asyncio.sleep(0)
            if self.subscriber is None:
                break
            self.demand -= 1
            subscriber = self.subscriber
            for element in self.elements:
                self.safely(subscriber.on_next, element)
                break
            else:
                self.subscriber = None
                self.safely(subscriber.on_complete)
            del subscriber
        self.task = None

    def safely(self, call: Callable[..., object], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception:
            self.subscriber = None


class LoopPublisher:
    def __init__(self, elements: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.elements = elements

    def subscribe(self, subscriber: Any, /) -> None:
        assert asyncio.get_running_loop() is self.loop
        if subscriber is None:
            raise TypeError("§1.9: subscriber is None")
        subscription = LoopSubscription(self.loop, subscriber, self.elements)
        try:
            subscriber.on_subscribe(subscription)
        except Exception:
            subscription.cancel()


class OfLoopPublisher(PublisherVerification):
    """Collected: all its tests must pass."""

    asyncio_bound = True

    async def create_publisher(self, elements: int) -> Any:
        await asyncio.sleep(0)  # hooks may be coroutine functions
        return LoopPublisher(elements)


class LoopSubscriber:
    """Processes its elements in a task."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.subscription: Any = None
        self.over = False

    def on_subscribe(self, subscription: Any, /) -> None:
        assert asyncio.get_running_loop() is self.loop
        if subscription is None:
            raise TypeError
        if self.subscription is not None or self.over:
            subscription.cancel()
            return
        self.subscription = subscription
        self.loop.call_soon(self.ask)

    def ask(self) -> None:
        if self.subscription is not None:
            self.subscription.request(1)

    def on_next(self, element: Any, /) -> None:
        assert asyncio.get_running_loop() is self.loop
        if element is None:
            raise TypeError
        self.loop.call_soon(self.ask)

    def on_error(self, error: BaseException, /) -> None:
        if error is None:
            raise TypeError
        self.on_complete()

    def on_complete(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.subscription = None
        self.over = True

    def stop(self) -> None:
        subscription = self.subscription
        self.on_complete()
        if subscription is not None:
            subscription.cancel()


class OfLoopSubscriber(SubscriberBlackboxVerification):
    asyncio_bound = True

    def create_subscriber(self) -> Any:
        return LoopSubscriber()

    def trigger_cancel(self, subscriber: Any) -> None:
        subscriber.stop()


def test_a_coroutine_hook_without_a_loop_is_refused() -> None:
    class Unbound(OfLoopPublisher):
        asyncio_bound = False

    with pytest.raises(HookFailed, match="set asyncio_bound = True"):
        Unbound().required_createPublisher1MustProduceAStreamOfExactly1Element()


def test_a_subscriber_may_take_its_subscription_later() -> None:
    class Later(CorrectWhitebox):
        def begin(self) -> None:
            threading.Timer(0.02, super().begin).start()

    class OfLater(SubscriberWhiteboxVerification):
        def create_whitebox_subscriber(self, probe: Any) -> Any:
            return Later(probe)

    results = list(run(OfLater, [test for test in list_tests(OfLater) if test.rule == "2.7"]))
    assert {result.outcome for result in results} == {KEPT, UNTESTED}, results


def test_no_thread_and_no_loop_outlives_a_test(no_leaked_threads: None) -> None:
    OfLoopPublisher().required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements()
    OfRange().beyond_spec308_demandFromSeveralThreadsMustAddUp()


@pytest.mark.parametrize(
    "make",
    [lambda n: np.arange(n, n + 3), lambda n: float("nan"), lambda n: Hostile()],
    ids=["arrays", "NaN", "hostile"],
)
def test_elements_without_a_truth_of_their_equality(make: Any) -> None:
    """Arrays answer ``==`` with arrays; the multicast tests have to compare them all the same."""

    class OfElements(PublisherVerification):
        def create_publisher(self, elements: int) -> Any:
            return rf.range_(elements).map(make)

    multicast = [
        test for test in list_tests(OfElements) if test.name.startswith("optional_spec111_")
    ]
    results = list(run(OfElements, multicast))
    assert {result.outcome for result in results} == {KEPT}, results


class Hostile:
    """Nothing of it is to be had."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("==")

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __hash__ = None  # type: ignore[assignment]


def test_elements_are_compared_by_what_can_be_seen_of_them() -> None:
    nan = float("nan")
    assert same(nan, float("nan"))
    assert not same(nan, 1.0)
    assert same(np.array([]), np.array([]))
    assert not same(np.arange(3), np.arange(1, 4))
    assert same(Hostile(), Hostile())
    assert not same(Hostile(), 1)


def test_only_the_beginning_of_an_element_is_looked_at() -> None:
    """A batch of many thousand rows is shown for each signal."""

    class Row:
        seen = 0

        def __repr__(self) -> str:
            Row.seen += 1
            return "Row()"

    rows = [Row() for _ in range(1000)]
    for element in (rows, tuple(rows), [rows], {"rows": rows}):
        Row.seen = 0
        assert show(element).endswith("…")
        assert len(show(element)) == 60
        assert Row.seen <= 2 * 60
    circular: list[Any] = []
    circular.append(circular)
    assert "[...]" in show(circular)
    assert show("x" * 1000) == "'" + "x" * 58 + "…"


class Proxy:
    """Has the methods of another object, and no attribute of its own to show for it."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class OfProxies(PublisherVerification):
    """Collected: subscriptions may get their methods through ``__getattr__``."""

    def create_publisher(self, elements: int) -> Any:
        class Publisher(CorrectPublisher):
            class subscription(CorrectSubscription):
                def start(self) -> None:
                    self.call(self.subscriber.on_subscribe, Proxy(self))
                    self.drain()

        return Proxy(Publisher(elements))


class OfProcessorProxies(IdentityProcessorVerification):
    """Collected: the kit's own publisher has to take such a subscriber, too."""

    def create_identity_processor(self, buffer_size: int) -> Any:
        return Proxy(CorrectProcessor(buffer_size))


@dataclass(frozen=True)
class Reading:
    value: int
    unit: str = "m"


class Sums(CorrectSubscriber):
    """Relies on the type of its elements, and fails openly where it is another one."""

    def on_next(self, element: Any, /) -> None:
        if element is None:
            raise TypeError
        self.total = getattr(self, "total", 0) + self.value_of(element)
        super().on_next(element)

    @staticmethod
    def value_of(element: Any) -> int:
        return int(element.value)


HOSTILE_ELEMENTS = "beyond_spec213_elementsWithHostileEqualityMustBeBorne"


@pytest.mark.parametrize(
    ("make", "value_of", "outcome"),
    [
        (Reading, lambda element: element.value + len(element.unit), KEPT),
        (str, lambda element: len(element.encode()), KEPT),
        (lambda n: [n], len, KEPT),
        (bool, lambda element: element.conjugate(), NOT_APPLICABLE),
        (lambda n: np.full(100, n), lambda element: element.sum(), NOT_APPLICABLE),
    ],
)
def test_hostile_elements_are_still_of_the_type_that_is_due(
    make: Any, value_of: Any, outcome: str
) -> None:
    class Subscriber(Sums):
        pass

    Subscriber.value_of = staticmethod(value_of)  # type: ignore[method-assign]

    class OfSums(SubscriberBlackboxVerification):
        def create_subscriber(self) -> Any:
            return Subscriber()

        def create_element(self, index: int) -> Any:
            return make(index)

    (test,) = [test for test in list_tests(OfSums) if test.name == HOSTILE_ELEMENTS]
    (result,) = run(OfSums, [test])
    assert result.outcome == outcome, result
