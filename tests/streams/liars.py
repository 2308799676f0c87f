"""Publishers that break the rules, each in one way, and combinations to expose to them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import rstreams_fast as rsf


class Liar:
    """A correct publisher of 0, 1, 2 ...; each subclass does one thing against the rules."""

    count = 6

    def __init__(self) -> None:
        self.subscriber: Any = None
        self.cancels = 0
        self.sent = 0
        self._over = False

    def subscribe(self, subscriber: Any, /) -> None:
        self.subscriber = subscriber
        subscriber.on_subscribe(self)

    def request(self, n: int, /) -> None:
        for _ in range(n):
            if self._over or self.sent == self.count:
                break
            self.next()
        if self.sent == self.count and not self._over:
            self._over = True
            self.end()

    def cancel(self) -> None:
        self._over = True
        self.cancels += 1

    def next(self) -> None:
        self.sent += 1
        self.subscriber.on_next(self.sent - 1)

    def end(self) -> None:
        self.subscriber.on_complete()


class NoneElement(Liar):
    def next(self) -> None:
        super().next()
        try:
            self.subscriber.on_next(None)
        except TypeError:  # as §2.13 has it
            return
        raise AssertionError("on_next(None) was accepted")


class TooMany(Liar):
    def request(self, n: int, /) -> None:
        if not self._over:
            self._over = True
            for x in range(min(n, 1000) + 1000):
                self.subscriber.on_next(x)
            self.end()


class AfterComplete(Liar):
    def end(self) -> None:
        super().end()
        for _ in range(3):
            self.subscriber.on_next(99)
            self.subscriber.on_complete()
            with contextlib.suppress(TypeError):  # as §2.13 has it
                self.subscriber.on_next(None)


class AfterError(Liar):
    def end(self) -> None:
        self.subscriber.on_error(ValueError("the first end"))
        self.subscriber.on_next(99)
        self.subscriber.on_complete()
        self.subscriber.on_subscribe(Ignored())


class NoError(Liar):
    def end(self) -> None:
        try:
            self.subscriber.on_error(None)
        except TypeError:
            return
        raise AssertionError("on_error(None) was accepted")


class Ignored:
    def __init__(self) -> None:
        self.cancels = 0

    def request(self, n: int, /) -> None:
        raise AssertionError("only the first subscription may be used")

    def cancel(self) -> None:
        self.cancels += 1


class TwoSubscriptions(Liar):
    def subscribe(self, subscriber: Any, /) -> None:
        self.second = Ignored()
        super().subscribe(subscriber)
        subscriber.on_subscribe(self.second)


class NextBeforeOnSubscribe(Liar):
    def subscribe(self, subscriber: Any, /) -> None:
        subscriber.on_next(99)
        super().subscribe(subscriber)


class CompleteWithoutOnSubscribe(Liar):
    def subscribe(self, subscriber: Any, /) -> None:
        subscriber.on_complete()
        self.second = Ignored()
        subscriber.on_subscribe(self.second)


class ErrorWithoutOnSubscribe(Liar):
    def subscribe(self, subscriber: Any, /) -> None:
        subscriber.on_error(ValueError("no subscription"))


class NoSubscription(Liar):
    def subscribe(self, subscriber: Any, /) -> None:
        subscriber.on_subscribe(None)


class RaisingSubscribe(Liar):
    def subscribe(self, subscriber: Any, /) -> None:
        raise ValueError("subscribe")


class RaisingSubscribeLate(Liar):
    def subscribe(self, subscriber: Any, /) -> None:
        super().subscribe(subscriber)
        raise ValueError("subscribe, after on_subscribe")


class RaisingRequest(Liar):
    def request(self, n: int, /) -> None:
        super().request(1)
        raise ValueError("request")


class RaisingCancel(Liar):
    def cancel(self) -> None:
        super().cancel()
        raise ValueError("cancel")


class Nesting(Liar):
    """Each element from within the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = 0

    def request(self, n: int, /) -> None:
        self.wanted += n
        if self.wanted > 0 and not self._over and self.sent < self.count:
            self.wanted -= 1
            self.sent += 1
            self.request(0)
            self.subscriber.on_next(self.sent)
        if self.sent == self.count and not self._over:
            self._over = True
            self.end()


class SeveralThreads(Liar):
    """What was asked for, but from four threads at once."""

    count = 40

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def request(self, n: int, /) -> None:
        def send() -> None:
            while True:
                with self._lock:
                    if self._over or not allowed or self.sent == self.count:
                        return
                    allowed.pop()
                    self.sent += 1
                self.subscriber.on_next(self.sent)

        allowed = [None] * min(n, self.count)
        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self._lock:
            end = self.sent == self.count and not self._over
            self._over = self._over or end
        if end:
            self.end()


class Flood(Liar):
    """Everything at once from four threads, whatever was asked for, and three ends from each."""

    def request(self, n: int, /) -> None:
        def send() -> None:
            for x in range(300):
                self.subscriber.on_next(x)
            self.subscriber.on_complete()
            self.subscriber.on_error(ValueError("the second end"))
            self.subscriber.on_complete()

        if not self._over:
            self._over = True
            threads = [threading.Thread(target=send) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


class NoMethods(Liar):
    """A subscription without the two methods."""

    def subscribe(self, subscriber: Any, /) -> None:
        subscriber.on_subscribe(object())


class OnlyRequest(Liar):
    def subscribe(self, subscriber: Any, /) -> None:
        self.subscriber = subscriber
        subscriber.on_subscribe(_OnlyRequest(self))


class _OnlyRequest:
    def __init__(self, liar: OnlyRequest) -> None:
        self.request = liar.request


#: For each kind: what the stream may end with.
LIARS: dict[type[Liar], tuple[type[BaseException] | None, ...]] = {
    Liar: (None,),
    NoneElement: (rsf.NoneSignalError,),
    TooMany: (rsf.DemandExceededError, None),  # None: any number was asked for
    AfterComplete: (None,),
    AfterError: (ValueError,),
    NoError: (rsf.NoneSignalError,),
    TwoSubscriptions: (None,),
    NextBeforeOnSubscribe: (rsf.DemandExceededError,),
    CompleteWithoutOnSubscribe: (None,),
    ErrorWithoutOnSubscribe: (ValueError,),
    NoSubscription: (rsf.NoneSignalError,),
    RaisingSubscribe: (ValueError,),
    RaisingSubscribeLate: (ValueError, None),  # None: it was over before it raised
    RaisingRequest: (ValueError,),
    RaisingCancel: (None,),
    Nesting: (None,),
    SeveralThreads: (None, rsf.OverlappingCallsError),
    Flood: (rsf.DemandExceededError, rsf.OverlappingCallsError, ValueError, None),
    NoMethods: (AttributeError,),
    OnlyRequest: (None,),
}

#: What a combination makes of a liar and of correct publishers.
COMBINED: dict[str, Callable[[Any], rsf.Stream[Any]]] = {
    "merge": lambda liar: rsf.merge(liar, rsf.range_(3)),
    "merge last, one by one": lambda liar: rsf.merge(rsf.range_(3), liar, prefetch=1),
    "merge delayed": lambda liar: rsf.merge(liar, rsf.range_(3), delay_error=True),
    "zip": lambda liar: rsf.zip_(liar, rsf.range_(100)),
    "zip last, one by one": lambda liar: rsf.zip_(rsf.range_(100), liar, prefetch=1),
    "concat": lambda liar: rsf.concat(liar, rsf.range_(3)),
    "concat last": lambda liar: rsf.concat(rsf.range_(3), liar),
    "flat_map": lambda liar: rsf.range_(1).flat_map(lambda _n: liar),
    "flat_map delayed": lambda liar: rsf.range_(2).flat_map(
        lambda n: rsf.range_(3) if n else liar, prefetch=1, delay_error=True
    ),
    "flat_map outer": lambda liar: rsf.from_publisher(liar).flat_map(rsf.range_),
    "concat_map": lambda liar: rsf.range_(2).concat_map(lambda n: rsf.range_(3) if n else liar),
    "concat_map outer": lambda liar: rsf.from_publisher(liar).concat_map(rsf.range_, prefetch=3),
}
