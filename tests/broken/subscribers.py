"""Correct subscribers, and what becomes of them when one line at a time is wrong."""

# ruff: noqa: E501 (rows of a table)

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rstreams_fast.tck import SubscriberBlackboxVerification, SubscriberWhiteboxVerification
from tests.broken.registry import Group, read_rows

blackbox = Group(SubscriberBlackboxVerification)
whitebox = Group(SubscriberWhiteboxVerification)


class CorrectSubscriber:
    """Asks for two elements at a time; one lock orders all it does."""

    portion = 2

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.subscription: Any = None
        self.over = False
        self.left = 0
        self.taken: list[Any] = []

    def on_subscribe(self, subscription: Any, /) -> None:
        if subscription is None:
            raise TypeError("§2.13: subscription is None")
        with self.lock:
            if self.subscription is not None or self.over:
                subscription.cancel()
                return
            self.subscription = subscription
            self.begin()

    def begin(self) -> None:
        self.ask(self.portion)

    def ask(self, n: int) -> None:
        with self.lock:
            if self.subscription is not None:
                self.left += n
                self.subscription.request(n)

    def on_next(self, element: Any, /) -> None:
        if element is None:
            raise TypeError("§2.13: element is None")
        with self.lock:
            if self.subscription is None:
                return  # §2.8
            try:
                self.work(element)
            except Exception:
                self.stop()  # §2.13
                return
            self.left -= 1
            if not self.left:
                self.renew()

    def work(self, element: Any) -> None:
        self.taken.append(element)

    def renew(self) -> None:
        self.ask(self.portion)

    def on_error(self, error: BaseException, /) -> None:
        if error is None:
            raise TypeError("§2.13: error is None")
        self.end()

    def on_complete(self) -> None:
        self.end()

    def end(self) -> None:
        with self.lock:
            self.subscription = None
            self.over = True

    def stop(self) -> None:
        with self.lock:
            subscription = self.subscription
            self.end()
            if subscription is not None:
                subscription.cancel()


class CorrectFailing(CorrectSubscriber):
    """Its work fails at the first element."""

    hook = "create_failing_subscriber"

    def work(self, element: Any) -> None:
        raise ValueError("the work failed")


class CorrectWhitebox(CorrectSubscriber):
    """Asks when its puppet is pulled, and tells the probe what it does."""

    def __init__(self, probe: Any) -> None:
        super().__init__()
        self.probe = probe

    def begin(self) -> None:
        self.probe.register_on_subscribe(self)

    def renew(self) -> None:
        """The puppet asks."""

    def work(self, element: Any) -> None:
        self.probe.register_on_next(element)

    def on_error(self, error: BaseException, /) -> None:
        super().on_error(error)
        self.probe.register_on_error(error)

    def on_complete(self) -> None:
        super().on_complete()
        self.probe.register_on_complete()

    # -- the puppet --

    def trigger_request(self, n: int, /) -> None:
        self.ask(n)

    def signal_cancel(self) -> None:
        self.stop()


def both_break(what: str, check: str, says: str) -> Callable[[type], type]:
    """Register a class twice: as it is, and on top of the whitebox subscriber."""

    def register(mixin: type) -> type:
        for group, base in ((blackbox, CorrectSubscriber), (whitebox, CorrectWhitebox)):
            group.breaks(what, check, says)(type(mixin.__name__, (mixin, base), {}))
        return mixin

    return register


# -- 2.1, 3.9 --------------------------------------------------------------------------------------


@blackbox.breaks("2.1 spec", "spec201_mustSignalDemand", "expected: a request(n)")
class NeverAsks(CorrectSubscriber):
    def begin(self) -> None:
        pass


@blackbox.breaks("2.1 strict", "spec201_demandShouldGo", "a request(n) after 2 elements")
class AsksOnce(CorrectSubscriber):
    def renew(self) -> None:
        pass


# -- 2.3, 2.4 --------------------------------------------------------------------------------------

SPEC203 = "required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherIn"


def in_terminal(base: type, signal: str, call: Callable[[Any], object]) -> type:
    """``base``, but its ``signal`` calls the subscription."""

    def terminal(self: Any, *arguments: Any) -> None:
        if self.subscription is not None:
            call(self.subscription)
        getattr(base, signal)(self, *arguments)

    return type(f"Calls{signal}", (base,), {signal: terminal})


CALLS: dict[str, Callable[[Any], object]] = {
    "request(1)": lambda subscription: subscription.request(1),
    "cancel()": lambda subscription: subscription.cancel(),
}
for _signal, _name in (("on_complete", "OnComplete"), ("on_error", "OnError")):
    for _text, _call in CALLS.items():
        _says = f"{_text} from within {_signal}"
        blackbox.breaks("2.3 spec", SPEC203 + _name, _says)(
            in_terminal(CorrectSubscriber, _signal, _call)
        )
        whitebox.breaks("2.3 spec", SPEC203 + _name, _says)(
            in_terminal(CorrectWhitebox, _signal, _call)
        )


class AsksAfterTheEnd(CorrectWhitebox):
    def end(self) -> None:
        pass


whitebox.breaks(
    "2.4 strict", "spec204_nothingShouldBeRequestedAfterOnComplete", "no request after on_complete"
)(AsksAfterTheEnd)
whitebox.breaks(
    "2.4 strict", "spec204_nothingShouldBeRequestedAfterOnError", "no request after on_error"
)(AsksAfterTheEnd)


@blackbox.breaks(
    "2.4 strict", "spec204_nothingShouldBeRequestedAfterOnComplete", "no request after on_complete"
)
class AsksFromATimer(CorrectSubscriber):
    """A timer asks for more, and nobody stops it at the end."""

    def begin(self) -> None:
        super().begin()
        subscription = self.subscription

        def tick() -> None:
            for _ in range(80):
                time.sleep(0.005)
                with self.lock:
                    subscription.request(1)

        threading.Thread(target=tick).start()


@blackbox.breaks(
    "2.4 strict",
    "spec204_theSubscriptionShould",
    "no reference to the subscription after on_complete",
)
class KeepsItsSubscription(CorrectSubscriber):
    def end(self) -> None:
        self.kept = self.subscription
        super().end()


# -- 2.5 -------------------------------------------------------------------------------------------


class TakesTheSecondToo(CorrectSubscriber):
    def on_subscribe(self, subscription: Any, /) -> None:
        if subscription is None:
            raise TypeError
        self.subscription = subscription
        self.begin()


blackbox.breaks("2.5 spec", "spec205_mustCallSubscription", "cancel() of a second subscription")(
    TakesTheSecondToo
)


class LooksThenTakes(CorrectSubscriber):
    def on_subscribe(self, subscription: Any, /) -> None:
        if subscription is None:
            raise TypeError
        if self.subscription is not None or self.over:
            subscription.cancel()
            return
        time.sleep(0.02)
        self.subscription = subscription
        self.begin()


blackbox.breaks("2.5 strict", "spec205_ofSubscriptionsFrom", "none was cancelled")(LooksThenTakes)


# -- 2.6, 2.7, 2.8 ---------------------------------------------------------------------------------


class AsksFromTwoThreads(CorrectSubscriber):
    """``request`` comes from on_next and from a thread of its own, without a lock."""

    def begin(self) -> None:
        subscription = self.subscription
        helper = threading.Thread(target=lambda: subscription.request(2))
        helper.start()
        subscription.request(2)
        self.left = 4


blackbox.breaks("2.7 spec", "spec207_callsOnThe", "while another thread is inside request(2)")(
    AsksFromTwoThreads
)


# -- 2.9, 2.10, 2.11 -------------------------------------------------------------------------------

WITHOUT = "WithoutPrecedingRequestCall"
WITH = "WithPrecedingRequestCall"
SPEC209 = "required_spec209_mustBePreparedToReceiveAnOnCompleteSignal"
SPEC210 = "required_spec210_mustBePreparedToReceiveAnOnErrorSignal"

blackbox.breaks(
    "2.9 spec", "OnCompleteSignalWithPrecedingRequestCall", "a request(n) for its first elements"
)(NeverAsks)
blackbox.breaks(
    "2.10 spec", "OnErrorSignalWithPrecedingRequestCall", "a request(n) for its first elements"
)(NeverAsks)


class EndsNeedAnElement:
    """Looks at the last element when the stream ends."""

    def end(self) -> None:
        if not self.taken:  # type: ignore[attr-defined]
            raise IndexError("list index out of range")
        super().end()  # type: ignore[misc]


for _how in (WITH, WITHOUT):
    both_break("2.9 spec", SPEC209 + _how, "on_complete() returns normally")(EndsNeedAnElement)
    both_break("2.10 spec", SPEC210 + _how, "on_error(TestError(")(EndsNeedAnElement)


class TellsNoEnd(CorrectWhitebox):
    on_error = CorrectSubscriber.on_error
    on_complete = CorrectSubscriber.on_complete


whitebox.breaks("2.9 spec", "OnCompleteSignalWithout", "the subscriber processes on_complete")(
    TellsNoEnd
)
whitebox.breaks("2.10 spec", "OnErrorSignalWithout", "the subscriber processes on_error")(
    TellsNoEnd
)


# -- 2.13, 3.8 -------------------------------------------------------------------------------------


def takes_none(base: type, method: str) -> type:
    """``base``, but ``method(None)`` returns."""

    def take(self: Any, value: Any, /) -> None:
        if value is not None:
            getattr(base, method)(self, value)

    return type(f"TakesNone_{method}", (base,), {method: take})


for _method, _name in (
    ("on_subscribe", "onSubscribe"),
    ("on_next", "onNext"),
    ("on_error", "onError"),
):
    _says = f"{_method}(None) raises"
    blackbox.breaks("2.13 spec", f"spec213_{_name}", _says)(takes_none(CorrectSubscriber, _method))
    whitebox.breaks("2.13 spec", f"spec213_{_name}", _says)(takes_none(CorrectWhitebox, _method))


read_rows(
    globals(),
    {"blackbox": blackbox.breaks, "whitebox": whitebox.breaks, "both": both_break},
    """\
blackbox 3.9 spec spec201_mustSignalDemand: request(0)
AsksForZero(CorrectSubscriber):
    portion = 0
blackbox 3.9 spec spec201_mustSignalDemand: request(True)
AsksForTrue(CorrectSubscriber):
    portion = True
blackbox 2.5 strict spec205_theFirstSubscription: only cancel() of a second subscription
AsksTheSecondFirst(CorrectSubscriber).on_subscribe:
    if self.subscription is not None:
        subscription.request(1)
    super().on_subscribe(subscription)
blackbox 2.5 strict spec205_theFirstSubscription: the first one was
ReplacesTheFirst(CorrectSubscriber).on_subscribe:
    first = self.subscription
    super().on_subscribe(subscription)
    if first is not None:
        first.cancel()
whitebox 2.5 spec spec205_mustCallSubscription: register_on_subscribe was called again
RegistersTwice(CorrectWhitebox).on_subscribe:
    if self.subscription is not None:
        self.probe.register_on_subscribe(self)
    super().on_subscribe(subscription)
both 2.6 spec spec206_stoppingMustCancel: cancel() of a subscription no longer wanted
StopsSilently(CorrectSubscriber).stop: self.end()
both 2.8 spec spec208_mustBePrepared: on_next(0) returns normally
UsesWhatCancelCleared(CorrectSubscriber).on_next:
    if element is None:
        raise TypeError
    self.subscription.request(1)
blackbox 2.8 strict spec208_signalsRacingWith: on_next(0) returns normally
LooksThenUses(CorrectSubscriber):
    on_next:
        if element is None:
            raise TypeError
        if self.subscription is not None:
            time.sleep(0.01)
            self.subscription.request(1)
    stop:
        time.sleep(0.002)  # or it might win every race
        super().stop()
blackbox 2.3 spec spec210_onErrorMust: cancel() from within on_error
# There is something to tidy up only once an element has come.
CancelsWhatHasFailed(CorrectSubscriber).on_error:
    if self.taken and self.subscription is not None:
        self.subscription.cancel()
    super().on_error(error)
blackbox 2.10 spec spec210_onErrorMust: on_error(TestError("from the kit's publisher")) returns normally
RaisesWhatItIsTold(CorrectSubscriber).on_error:
    super().on_error(error)
    if self.taken:
        raise error
blackbox 2.11 spec spec211_signalsFromFree: AttributeError
KeepsStateInAThread(CorrectSubscriber):
    begin:
        self.local = threading.local()
        self.local.count = 0
        super().begin()
    on_next:
        if element is None:
            raise TypeError
        self.local.count += 1
        super().on_next(element)
whitebox 2.11 spec spec211_signalsFromFree: the subscriber processes on_next(0)
HandsOverInPairsTheWrongWay(CorrectWhitebox).work:
    self.taken.append(element)
    if len(self.taken) == 2:
        for each in reversed(self.taken):
            self.probe.register_on_next(each)
        self.taken.clear()
whitebox 2.11 spec spec211_signalsFromFree: on_complete is processed after every element
# Keeps its last element until the end has been told.
TellsTheEndTooEarly(CorrectWhitebox):
    work:
        if element != 9:  # the last that the kit sends
            super().work(element)
    on_complete:
        super().on_complete()
        self.probe.register_on_next(9)
blackbox 2.13 spec spec213_elementsFromWithin: every call returns within 1.9 s
# A publisher that answers at once comes back to a lock that is taken.
AsksUnderAPlainLock(CorrectSubscriber):
    __init__:
        super().__init__()
        self.state = threading.Lock()
    ask:
        with self.state:
            super().ask(n)
    on_next:
        if self.state.acquire(timeout=60):
            self.state.release()
        super().on_next(element)
blackbox 2.13 spec spec213_elementsFromWithin: AttributeError
AsksBeforeItKeeps(CorrectSubscriber):
    on_subscribe:
        if subscription is None:
            raise TypeError
        with self.lock:
            if self.subscription is None and not self.over:
                subscription.request(1)
                self.subscription = subscription
            else:
                subscription.cancel()
    on_next:
        if element is None:
            raise TypeError
        if not self.over:
            self.subscription.request(1)
both 2.13 python spec213_whatIsRaised: raised ValueError('no element')
RaisesValueError(CorrectSubscriber).on_next:
    if element is None:
        raise ValueError("no element")
    super().on_next(element)
blackbox 2.13 strict spec213_elementsWithHostile: ProbeFailed("an element's own
ComparesElements(CorrectSubscriber).on_next:
    if element is None or element == -1:
        raise TypeError
    super().on_next(element)
blackbox 2.13 spec spec213_aFailureOf: it raised ValueError('the work failed')
FailureLeavesOnNext(CorrectFailing).on_next: self.work(element)
blackbox 2.13 spec spec213_aFailureOf: cancel() after the failure
FailureIsSwallowed(CorrectFailing).on_next:
    with self.lock:
        self.ask(1)
whitebox 3.8 spec spec308_requestMustRegister: a request for the second element
AsksForOneOnly(CorrectWhitebox).trigger_request:
    if not self.left:
        self.ask(1)
whitebox 2.1 spec spec201_mustSignalDemand: a request(n)
PuppetDoesNothing(CorrectWhitebox).trigger_request: pass
whitebox 2.1 spec spec201_mustSignalDemand: the subscriber calls probe.register_on_subscribe(puppet)
NeverRegisters(CorrectWhitebox).begin: pass
whitebox 2.1 spec exerciseWhiteboxHappyPath: the subscriber processes on_next(0)
TellsNoElement(CorrectWhitebox).work: pass
""",
)
