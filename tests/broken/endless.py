"""What does not come to an end, or takes its time: the kit has to say so all the same."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.broken.publishers import CorrectPublisher, CorrectSubscription, breaks
from tests.broken.subscribers import CorrectSubscriber, blackbox

__all__ = ["ENDLESS", "Endless", "SlowCalls", "SlowPublisher"]


class Endless(CorrectPublisher):
    """Correct, where it is said to be endless: all numbers, whatever it is created for."""

    def source(self) -> Iterable[Any]:
        return itertools.count()


@breaks("1.5 spec", "createPublisher1MustProduce", "came:     on_next(1)")
class NeverCompletes(Endless):
    """Says that it has an end."""


class RandomNumbers(CorrectPublisher):
    """Sends on and on within the first request, whatever is asked, cancelled or raised."""

    class subscription(CorrectSubscription):
        def request(self, n: Any, /) -> None:
            subscriber = self.subscriber
            while subscriber is not None:
                subscriber.on_next(random.random())


breaks("1.1 spec", "spec101_subscriptionRequestMust", "at most 1 elements, as requested")(
    RandomNumbers
)


class EndlessLoop(CorrectSubscription):
    """Sends as many as are asked for, and looks at nothing else meanwhile."""

    def __init__(self, subscriber: Any, _source: Iterator[Any]) -> None:
        super().__init__(subscriber, itertools.count())

    def take(self, n: Any) -> bool:
        mine = super().take(n)
        if mine and self.subscriber is not None and self.demand == n:
            subscriber, self.demand = self.subscriber, 0
            for element in itertools.islice(self.source, n):
                subscriber.on_next(element)
        return mine


breaks("1.8 spec", "spec108_cancelMustStop", "request(9223372036854775807) has not")(EndlessLoop)


@breaks("3.13 spec", "spec313_cancelMustMake", "after cancel")
class EndlessKeepsItsSubscriber(Endless):
    def __init__(self, elements: int = 0) -> None:
        super().__init__(elements)
        self.known: list[Any] = []

    def subscribe(self, subscriber: Any, /) -> None:
        self.known.append(subscriber)
        super().subscribe(subscriber)


@breaks("3.4 strict", "spec304_requestShouldReturn", "ms at the best of 10 calls")
@breaks("3.5 strict", "spec305_cancelShouldReturn", "ms at the best of 10 calls")
class SlowCalls(CorrectSubscription):
    """``request`` and ``cancel`` take 40 ms each."""

    calls = itertools.count()

    def request(self, n: Any, /) -> None:
        self.take_time()
        super().request(n)

    def cancel(self) -> None:
        self.take_time()
        super().cancel()

    @classmethod
    def take_time(cls) -> None:
        next(cls.calls)
        time.sleep(0.04)


@blackbox.breaks("2.1 spec", "spec201_mustSignalDemand", "calls on the subscription, and they go")
class AsksForEver(CorrectSubscriber):
    def begin(self) -> None:
        while True:
            self.ask(1)


class SlowPublisher(CorrectPublisher):
    subscription = SlowCalls


#: Each must be told of within seconds, at ``strict``, by the whole kit.
ENDLESS: dict[type[CorrectPublisher], set[str]] = {
    NeverCompletes: {"1.5"},
    RandomNumbers: {"1.1"},
    EndlessKeepsItsSubscriber: {"1.5", "3.13"},
}
