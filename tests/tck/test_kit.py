"""The kit itself: its names, its proofs, its bounds, and those that live on an asyncio loop."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rstreams_fast as rf
from rstreams_fast.tck import (
    GRADES,
    HookFailed,
    IdentityProcessorVerification,
    PublisherVerification,
    RuleBroken,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    Verification,
    list_checks,
    runner,
)
from rstreams_fast.tck.command import VERIFICATIONS
from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import History, show
from rstreams_fast.tck.probes import is_same
from rstreams_fast.tck.references import expect_collected
from rstreams_fast.tck.rules import MEND_FIRST, RULES
from rstreams_fast.tck.runner import (
    BROKEN,
    ERROR,
    KEPT,
    NOT_APPLICABLE,
    NOT_JUDGED,
    order_findings,
    run,
)
from rstreams_fast.tck.sweep import SecondThread
from rstreams_fast.tck.upstream import Upstream
from tests.broken.processors import CorrectProcessor, processors
from tests.broken.publishers import CorrectPublisher, CorrectSubscription, publishers
from tests.broken.subscribers import CorrectSubscriber, CorrectWhitebox, blackbox, whitebox
from tests.helpers import Element
from tests.operators.entry import NO_REGISTRY

CASES = [*publishers.cases, *blackbox.cases, *whitebox.cases, *processors.cases]


@pytest.mark.parametrize("kind", VERIFICATIONS)
def test_every_check_says_what_it_checks_where_to_look_and_what_it_needs(kind: str) -> None:
    table = list_checks(VERIFICATIONS[kind])
    established: set[str] = set()
    for check in table:
        assert check.title, check.name
        assert check.look, check.name
        assert check.rule in RULES, check.name
        assert check.grade in GRADES, check.name
        assert established.issuperset(check.needs), check.name  # it has been run before
        established.add(check.establishes)


def test_every_check_rejects_something() -> None:
    checks = [check for kind in VERIFICATIONS.values() for check in list_checks(kind)]
    assert {check.name for check in checks} - {case.check.name for case in CASES} == set()


def test_what_to_mend_first_are_rules() -> None:
    assert set(MEND_FIRST) <= RULES.keys()


SPEC109 = "required_spec109_mustIssueOnSubscribeForNonNullSubscriber"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_elements", -1),
        ("max_elements", "3"),
        ("bounded_depth", 0),
        ("bounded_depth", True),
        ("signals_after_cancel", None),
        ("timeout", -1),
        ("timeout", math.inf),
        ("silence", math.nan),
        ("responsivity", 0),
        ("asyncio_bound", "yes"),
        ("fail_on", "everything"),
        ("not_claimed", "beyond_*"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(setting: str, value: Any) -> None:
    verification = type("Wrong", (OfRange,), {setting: value})()
    with pytest.raises(HookFailed, match=f"^{setting} must be .*, is "):
        getattr(verification, SPEC109)()


@pytest.mark.parametrize("kind", VERIFICATIONS)
def test_every_setting_that_a_kind_inherits_is_checked(kind: str) -> None:
    verification = VERIFICATIONS[kind]
    inherited = {name for base in verification.__mro__ for name in getattr(base, "settings", ())}
    assert inherited == set(verification.settings)


class OfRange(PublisherVerification):
    __test__ = False
    not_claimed = NO_REGISTRY

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
    assert single.keys() <= {KEPT, NOT_APPLICABLE}
    endless = {result.check.name: result.outcome for result in run(Endless)}
    assert BROKEN not in endless.values()
    spec105 = "required_spec105_mustSignalOnCompleteWhenFiniteStreamTerminates"
    assert endless[spec105] == NOT_APPLICABLE


def test_only_strict_checks_may_be_left_out() -> None:
    class Bold(OfRange):
        not_claimed = ("*",)

    seen = {(result.outcome, result.check.grade) for result in run(Bold)}
    assert (NOT_APPLICABLE, "strict") in seen
    assert {grade for outcome, grade in seen if outcome == KEPT} == {"spec", "python"}


class OfNeverEmitting(PublisherVerification):
    __test__ = False
    timeout = 0.2

    def create_publisher(self, elements: int) -> Any:
        class Subscription(CorrectSubscription):
            def request(self, n: Any, /) -> None:
                pass

        class Publisher(CorrectPublisher):
            subscription = Subscription

        return Publisher(elements)


def test_what_needs_a_basic_expectation_that_failed_is_not_run() -> None:
    results = list(run(OfNeverEmitting))
    broken = [result.broken for result in results if result.broken]
    assert [finding.broken.rule for finding in order_findings(broken)][:2] == ["3.8", "3.9"]
    not_judged = [result for result in results if result.outcome == NOT_JUDGED]
    assert len(not_judged) > len(results) / 2
    spec101 = "required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements"
    assert f"needs elements on request; see {spec101}" in {each.message for each in not_judged}
    # The root is named, not what it brought down in between.
    assert f"needs on_complete; see {spec101}" in {each.message for each in not_judged}
    assert sum(result.seconds for result in results) < 10 * OfNeverEmitting.timeout


def test_checks_are_left_when_broken_ones_have_taken_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "MOST_SECONDS_BROKEN", 0.3)
    results = list(run(OfNeverEmitting))
    assert any("broken checks have taken " in result.message for result in results)


def test_one_rule_is_told_once_for_each_grade_the_most_fundamental_first() -> None:
    def broken(rule: str, grade: str, check: str) -> RuleBroken:
        made = RuleBroken(rule, "this", "that")
        made.grade, made.check = grade, check
        return made

    rows = [("3.13", "spec", "a"), ("1.1", "strict", "b"), ("1.8", "spec", "c")]
    rows += [("1.9", "spec", "d"), ("1.8", "spec", "e")]
    findings = order_findings([broken(*row) for row in rows])
    told = [(each.grade, each.broken.rule, each.broken.check, each.others) for each in findings]
    assert told == [
        ("spec", "1.9", "d", []),
        ("spec", "1.8", "c", ["e"]),
        ("spec", "3.13", "a", []),
        ("strict", "1.1", "b", []),
    ]


def test_a_failure_names_rule_expectation_sight_place_and_history() -> None:
    with pytest.raises(RuleBroken) as failure:
        OfNeverEmitting().required_createPublisher3MustProduceAStreamOfExactly3Elements()
    text = str(failure.value)
    assert text.startswith("§1.5 is broken: a finite stream that succeeds must end with")
    assert "checked:  ``create_publisher(3)`` gives three elements and ends." in text
    assert "done:     publisher.subscribe(subscriber), subscription.request(1)\n" in text
    assert "expected: element 1 of 3" in text
    assert "came:     nothing within 0.2 s" in text
    assert "look at:  create_publisher itself" in text
    assert "subscriber.on_subscribe()" in text
    assert "ms  tck " in text  # the thread


def test_what_was_done_is_told_in_short() -> None:
    history = History()
    for n in (1, 1, 2, 3, 4, 5, 6, 7, 8, 9):
        history.record_call("subscription", "request", n)
    calls = [f"subscription.request({n})" for n in range(1, 10)]
    told = [calls[0] + " 2 times", *calls[1:5], "...", *calls[6:]]
    assert history.call_summary() == ", ".join(told)


def test_a_hook_that_fails_is_no_broken_rule() -> None:
    class Failing(PublisherVerification):
        def create_publisher(self, elements: int) -> Any:
            raise OSError("no connection")

    results = list(run(Failing))
    assert {result.outcome for result in results} <= {ERROR, NOT_APPLICABLE, NOT_JUDGED}
    assert any("create_publisher(1) raised OSError" in result.message for result in results)


@pytest.mark.parametrize("base", VERIFICATIONS.values(), ids=VERIFICATIONS)
def test_what_cannot_be_judged_is_no_broken_rule(base: type[Verification]) -> None:
    results = list(run(type("Five", (base,), {base.essential_hook: lambda *_: 5})))
    assert {result.outcome for result in results} <= {ERROR, NOT_APPLICABLE, NOT_JUDGED}
    method = "subscribe" if base is PublisherVerification else "on_subscribe"
    said = f"{base.essential_hook} returned 5, which has no method {method}"
    assert said in {result.message for result in results}


def test_a_call_that_never_returns_fails_the_test_and_shows_where() -> None:
    release = threading.Event()

    class OfBlocks(PublisherVerification):
        timeout = 0.1

        def create_publisher(self, elements: int) -> Any:
            return SimpleNamespace(subscribe=lambda _subscriber: release.wait(60))

    with pytest.raises(RuleBroken, match=r"raise timeout if yours is slow[^*]*release\.wait"):
        OfBlocks().required_spec109_mustIssueOnSubscribeForNonNullSubscriber()
    release.set()


def test_a_call_that_never_returns_in_a_race_leaves_the_switch_interval() -> None:
    release, before = threading.Event(), sys.getswitchinterval()
    while_blocked: list[float] = []

    def block(_n: int) -> None:
        while_blocked.append(sys.getswitchinterval())
        release.wait(60)

    subscription = SimpleNamespace(request=block, cancel=lambda: None)

    class OfBlocks(PublisherVerification):
        timeout = 0.1

        def create_publisher(self, elements: int) -> Any:
            return SimpleNamespace(subscribe=lambda one: one.on_subscribe(subscription))

    with pytest.raises(RuleBroken, match=r"has not returned"):
        OfBlocks().beyond_spec312_aCancelWhileThePublisherGoesIdleMustHold()
    after = sys.getswitchinterval()
    release.set()
    assert while_blocked[0] < before == after


# -- implementations that live on an asyncio loop --------------------------------------------------
def on_its_loop(method: Callable[..., Any]) -> Callable[..., Any]:
    """Serve calls from the loop alone, as most asyncio code does."""

    def call(self: Any, *arguments: Any) -> Any:
        assert asyncio.get_running_loop() is self.loop
        return method(self, *arguments)

    return call


class LoopSubscription(CorrectSubscription):
    """A signal in each turn of the loop."""

    request = on_its_loop(CorrectSubscription.request)
    cancel = on_its_loop(CorrectSubscription.cancel)

    def prepare(self, subscriber: Any) -> None:
        self.loop = asyncio.get_running_loop()

    def drain(self) -> None:
        self.loop.call_soon(self.take_turn)

    def take_turn(self) -> None:
        if (signal := self.next_signal()) is not None:
            self.call(*signal)
            self.drain()


class LoopPublisher(CorrectPublisher):
    subscription = LoopSubscription
    subscribe = on_its_loop(CorrectPublisher.subscribe)

    def __init__(self, elements: int) -> None:
        super().__init__(elements)
        self.loop = asyncio.get_running_loop()


class OfLoopPublisher(PublisherVerification):
    """Collected: all its tests must pass."""

    not_claimed = NO_REGISTRY
    asyncio_bound = True

    async def create_publisher(self, elements: int) -> Any:
        await asyncio.sleep(0)  # hooks may be coroutine functions
        return LoopPublisher(elements)


class LoopSubscriber(CorrectSubscriber):
    """Asks in another turn of the loop."""

    on_subscribe = on_its_loop(CorrectSubscriber.on_subscribe)
    on_next = on_its_loop(CorrectSubscriber.on_next)
    on_error = on_its_loop(CorrectSubscriber.on_error)
    on_complete = on_its_loop(CorrectSubscriber.on_complete)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()

    def ask(self, n: int) -> None:
        self.loop.call_soon(super().ask, n)


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

    results = list(run(OfLater, [check for check in list_checks(OfLater) if check.rule == "2.7"]))
    assert {result.outcome for result in results} == {KEPT}, results


def test_no_thread_and_no_loop_outlives_a_test(no_leaked_threads: None) -> None:
    OfLoopPublisher().required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements()
    OfRange().beyond_spec308_demandFromSeveralThreadsShouldAddUp()


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
        check for check in list_checks(OfElements) if check.name.startswith("optional_spec111_")
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
    assert is_same(nan, float("nan"))
    assert not is_same(nan, 1.0)
    assert is_same(np.array([]), np.array([]))
    assert not is_same(np.arange(3), np.arange(1, 4))
    assert is_same(Hostile(), Hostile())
    assert not is_same(Hostile(), 1)


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

    not_claimed = NO_REGISTRY

    def create_publisher(self, elements: int) -> Any:
        class Publisher(CorrectPublisher):
            class subscription(CorrectSubscription):
                def start(self) -> None:
                    self.call(self.subscriber.on_subscribe, Proxy(self))
                    self.drain()

        return Proxy(Publisher(elements))


class OfProcessorProxies(IdentityProcessorVerification):
    """Collected: the kit's own publisher has to take such a subscriber, too."""

    not_claimed = NO_REGISTRY

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


HOSTILE_ELEMENTS = "beyond_spec213_elementsWithHostileEqualityShouldBeAccepted"


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

    (check,) = [check for check in list_checks(OfSums) if check.name == HOSTILE_ELEMENTS]
    (result,) = run(OfSums, [check])
    assert result.outcome == outcome, result


def test_a_request_beside_the_end_of_a_signal_returns_normally() -> None:
    """The kit is asked on one thread while its terminal signal returns on another."""
    environment = Environment(timeout=10, silence=0.01, on_loop=False)
    upstream = Upstream(environment, CorrectSubscriber())
    rounds = range(20_000)

    def signal() -> None:
        for _ in rounds:
            upstream._signal("on_complete")

    def ask() -> None:
        for _ in rounds:
            upstream._judge(threading.get_ident(), "request(1)")

    environment.run_together(signal, ask, rule="2.13")


def test_a_call_that_raises_in_the_second_thread_breaks_its_rule() -> None:
    environment = Environment(timeout=10, silence=0.01, on_loop=False)

    def raise_in_two_rounds() -> None:
        with SecondThread.running(environment, "3.16") as second:
            for _ in range(2):  # the first one ends the thread
                second.arm(lambda: 1 // 0, 0)
                second.join("it returns")

    with pytest.raises(RuleBroken, match="ZeroDivisionError"):
        raise_in_two_rounds()


def test_what_a_collection_takes_is_not_counted_as_time_to_drop_a_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine, with many objects, a few collections may take longer than the timeout."""
    kept = [Element(), Element()]
    clock = threading.Event()

    def collect() -> None:
        clock.wait(0.05)
        kept.pop()

    monkeypatch.setattr("rstreams_fast.tck.references.gc.collect", collect)
    environment = Environment(timeout=0.02, silence=0.01, on_loop=False)
    expect_collected(environment, weakref.ref(kept[0]), "3.13", "it to be dropped")
    kept = [Element(), *range(20)]
    with pytest.raises(RuleBroken, match="kept alive by list"):
        expect_collected(environment, weakref.ref(kept[0]), "3.13", "it to be dropped")
