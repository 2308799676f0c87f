"""Correct implementations that go idle and are woken, and what becomes of them when the look at the
work and the mark that they are idle are two steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from tests.broken.publishers import CorrectSubscription, breaks
from tests.broken.subscribers import CorrectSubscriber, CorrectWhitebox, blackbox, whitebox

__all__ = ["OnThreads", "Queueing", "QueueingWhitebox", "States", "Waiting"]

#: So long, in seconds, are the two steps apart.
GAP = 0.0005

WAKE = "spec308_aRequestMustWake"
TWO_THREADS = "spec308_twoThreadsThat"
ANY_STEP = "spec308_aRequestAtAnyStep"
SIGNALS_AND_A_THREAD = "spec308_demandFromSignals"
CANCEL = "spec312_aCancelWhile"


# -- publishers that keep the rules ----------------------------------------------------------------


class OnThreads(CorrectSubscription):
    """A thread sends what is asked for, and ends when there is nothing left to send."""

    def request(self, n: Any, /) -> None:
        if self.take(n):
            threading.Thread(target=self.drain, daemon=True).start()


class Waiting(CorrectSubscription):
    """One thread for the whole subscription waits for requests."""

    def prepare(self, subscriber: Any) -> None:
        self.asked = threading.Event()

    def start(self) -> None:
        self.call(self.subscriber.on_subscribe, self)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        self.drain()
        while self.subscriber is not None:
            self.rest()
            self.drain()

    def rest(self) -> None:
        self.asked.wait()
        self.asked.clear()

    def request(self, n: Any, /) -> None:
        self.take(n)
        self.asked.set()

    def cancel(self) -> None:
        super().cancel()
        self.asked.set()


class States(CorrectSubscription):
    """Idle, busy or cancelled: one word says it."""

    def prepare(self, subscriber: Any) -> None:
        self.state = "busy"

    def take(self, n: Any) -> bool:
        with self.lock:
            if self.state == "cancelled":
                return False
            refused = self.check(n)
            if refused is None:
                self.demand = self.add(n)
            else:
                self.refused = self.refused or refused
            before, self.state = self.state, "busy"
            return before == "idle"

    def drain(self) -> None:
        while True:
            signal = self.next_signal()
            if signal is not None:
                self.call(*signal)
            elif self.goes_idle():
                return

    def goes_idle(self) -> bool:
        with self.lock:
            if self.state == "cancelled" or self.subscriber is None:
                return True
            if self.demand or self.refused is not None:
                return False
            self.state = "idle"
            return True

    def cancel(self) -> None:
        with self.lock:
            self.state = "cancelled"
            self.subscriber = None

    def ends(self, *signal: Any) -> tuple[Any, ...]:
        self.state = "cancelled"
        return super().ends(*signal)


# -- 3.8: a request that is missed -----------------------------------------------------------------


@breaks("3.8 strict", TWO_THREADS, "elements for as many requests")
@breaks("1.5 strict", "spec107_theEndShould", "on_complete after the only element")
class LosesAWakeUp(CorrectSubscription):
    """A request that comes between its last look at the demand and its mark is missed."""

    def next_signal(self) -> tuple[Any, ...] | None:
        with self.lock:
            is_idle = self.subscriber is not None and not self.demand and self.refused is None
        if is_idle:
            time.sleep(GAP)
            self.draining = False
            return None
        return super().next_signal()


@breaks("3.8 spec", WAKE, "elements for as many requests")
class LosesAWakeUpOnThreads(LosesAWakeUp, OnThreads):
    pass


@breaks("3.8 spec", WAKE, "elements for as many requests")
class ClearsAfterItsLook(Waiting):
    def run(self) -> None:
        while self.subscriber is not None:
            self.drain()
            time.sleep(GAP)
            self.asked.clear()
            self.asked.wait()


@breaks("3.8 strict", ANY_STEP, "the last request came before line")
class LosesAWakeUpInALine(CorrectSubscription):
    """The same, in two lines that follow each other."""

    def next_signal(self) -> tuple[Any, ...] | None:
        if self.subscriber is not None and not self.demand and self.refused is None:
            self.draining = False
            return None
        return super().next_signal()


breaks("3.8 strict", ANY_STEP, "the last request came before line")(
    type("LosesAWakeUpInALineOnThreads", (LosesAWakeUpInALine, OnThreads), {})
)


@breaks("3.8 strict", SIGNALS_AND_A_THREAD, "8 elements")
class AddsInTwoSteps(CorrectSubscription):
    """Two requests at once count as one, or as three."""

    def request(self, n: Any, /) -> None:
        before = self.demand
        time.sleep(GAP / 5)
        self.demand = before
        super().request(n)


@breaks("3.8 strict", SIGNALS_AND_A_THREAD, "8 elements for as many requests")
class ForgetsWhatComesDuringOnSubscribe(CorrectSubscription):
    """Notes what on_subscribe asks for itself, and begins with that."""

    def start(self) -> None:
        self.within = 0
        self.thread = threading.get_ident()
        self.call(self.subscriber.on_subscribe, self)
        with self.lock:
            self.demand = self.within
        self.thread = 0
        self.drain()

    def add(self, n: int) -> int:
        if self.thread == threading.get_ident():
            self.within += n
        return super().add(n)


# -- 3.12, 3.16: a cancel that is undone, or not borne ---------------------------------------------


@breaks("3.6 spec", CANCEL, "nothing for a request after cancel")
class IdleOverwritesCancelled(States):
    def prepare(self, subscriber: Any) -> None:
        super().prepare(subscriber)
        self.first = subscriber

    def goes_idle(self) -> bool:
        if self.state == "cancelled" or self.demand or self.refused is not None:
            return super().goes_idle()
        time.sleep(GAP)
        self.state = "idle"
        self.subscriber = self.first
        return True


@breaks("3.16 spec", CANCEL, "request(1) returns normally")
class GoesIdleByWhatCancelClears(States):
    def goes_idle(self) -> bool:
        if self.subscriber is not None:
            time.sleep(GAP)
            self.subscriber.on_next  # noqa: B018 - AttributeError, if a cancel came meanwhile
        return super().goes_idle()


# -- 1.5, 1.7: the end -----------------------------------------------------------------------------


class LooksOnDemand(CorrectSubscription):
    """Looks at its source when it is asked for an element, and only then learns of the end."""

    def next_signal(self) -> tuple[Any, ...] | None:
        with self.lock:
            if self.subscriber is not None and not self.demand and self.refused is None:
                self.draining = False
                return None
        return super().next_signal()


for _check, _says in (
    ("spec105_onCompleteShouldNeed", "on_complete without a fourth request"),
    ("spec105_onCompleteOfAnEmpty", "on_complete without a request"),
):
    breaks("1.5 strict", _check, _says)(LooksOnDemand)


@breaks("1.7 strict", "spec107_theEndShould", "on_complete() after it")
class EachTellsTheEnd(LooksOnDemand):
    """Each thread that finds the source at its end says so."""

    def request(self, n: Any, /) -> None:
        self.look()
        super().request(n)

    def drain(self) -> None:
        super().drain()
        self.look()

    def look(self) -> None:
        subscriber = self.subscriber
        if subscriber is not None and self.source.is_at_end():  # type: ignore[attr-defined]
            time.sleep(GAP)
            self.subscriber = None
            subscriber.on_complete()


# -- subscribers -----------------------------------------------------------------------------------

_END = object()


class Queueing(CorrectSubscriber):
    """Keeps the rules: a thread works on what is queued, and ends when nothing is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.queue: deque[Any] = deque()
        self.busy = False

    def on_next(self, element: Any, /) -> None:
        if element is None:
            raise TypeError("§2.13: element is None")
        self.put(element)

    def on_complete(self) -> None:
        self.put(_END)

    def put(self, signal: Any) -> None:
        with self.lock:
            self.queue.append(signal)
            if self.busy:
                return
            self.busy = True
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while (signal := self.next_queued()) is not None:
            if signal is _END:
                super().on_complete()
            else:
                super().on_next(signal)

    def next_queued(self) -> Any:
        with self.lock:
            if self.queue:
                return self.queue.popleft()
            self.busy = False
            return None


class QueueingWhitebox(Queueing, CorrectWhitebox):
    """The same, seen from within."""


class LosesElements(Queueing):
    """An element that comes between its last look at the queue and its mark lies there."""

    def next_queued(self) -> Any:
        if self.queue:
            return self.queue.popleft()
        time.sleep(GAP)
        self.busy = False
        return None


class LosesElementsWhitebox(LosesElements, QueueingWhitebox):
    pass


blackbox.breaks("2.11 strict", "spec211_anElementShould", "a request(n) after")(LosesElements)
whitebox.breaks("2.11 strict", "spec211_anElementShould", "the subscriber processes on_next(")(
    LosesElementsWhitebox
)
whitebox.breaks("2.11 strict", "spec211_theEndShould", "the subscriber processes on_complete()")(
    LosesElementsWhitebox
)


class StopWaitsForAnElement(CorrectSubscriber):
    """A stop is left to the on_next that is at work, which has looked for it already."""

    working = False
    stopping = False

    def on_next(self, element: Any, /) -> None:
        self.working = True
        super().on_next(element)
        if self.stopping:
            super().stop()
        time.sleep(GAP)
        self.working = False

    def stop(self) -> None:
        self.stopping = True
        if not self.working:
            super().stop()


blackbox.breaks("2.6 strict", "spec206_aStopWhile", "cancel() of a subscription no longer wanted")(
    StopWaitsForAnElement
)
