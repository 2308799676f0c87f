"""Random histories of a multicast, compared with a model that is a list and a few numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import rstreams_fast as rsf
from rstreams_fast.errors import BufferOverflowError
from tests.rules.probes import ManualPublisher, Recorder, subscribed

thorough = settings(max_examples=400, deadline=None, derandomize=True)

operations = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe")),
        st.tuples(st.just("request"), st.integers(0, 5), st.sampled_from([1, 2, 3, 7, 2**63])),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("send"), st.integers(1, 9)),
        st.tuples(st.just("overfeed")),
    ),
    max_size=40,
)


@dataclass
class Subscribed:
    start: int
    recorder: Recorder
    limit: int = 0
    end: str = ""

    def at(self, sent: int) -> int:
        """Which element it gets next."""
        return min(self.limit, sent)


@dataclass
class Model:
    buffer_size: int
    drops: bool
    kept: int | None  #: how many elements are kept for those who come late
    sent: int = 0
    asked: int = 0  #: upstream was asked for the elements before this one
    rest: int = 0  #: without subscribers: the first element that is still there
    everybody: list[Subscribed] = field(default_factory=list)

    @property
    def active(self) -> list[Subscribed]:
        return [one for one in self.everybody if not one.end]

    @property
    def first_kept(self) -> int:
        """From here on elements are held for all, from before it for the slow ones only."""
        return self.first_kept_of(self.sent)

    def first_kept_of(self, sent: int) -> int:
        return sent if self.kept is None else max(0, sent - self.kept)

    @property
    def oldest(self) -> int:
        if self.kept is not None:
            return self.first_kept
        return min((one.at(self.sent) for one in self.active), default=self.rest)

    @property
    def bound(self) -> int:
        """Up to where upstream may be asked, at the most."""
        places = [one.at(self.sent) for one in self.active]
        if not places:
            return 0
        pace = max(places) if self.drops else min(places)
        room = self.sent + self.buffer_size - max(0, self.first_kept - pace)
        return min(room, max(one.limit for one in self.active))

    @property
    def may_be_overfed(self) -> bool:
        """Whether there is room for one more that nobody asked for."""
        if self.drops or self.sent < self.asked:
            return True
        places = [one.at(self.sent) for one in self.active]
        if not places and self.kept is not None:
            return True
        oldest = min(places, default=self.rest)
        return self.first_kept_of(self.sent + 1) - oldest <= self.buffer_size

    def subscribe(self, recorder: Recorder) -> None:
        start = self.oldest
        self.everybody.append(Subscribed(start, recorder, limit=start))

    def leave(self, one: Subscribed, how: str) -> None:
        at = one.at(self.sent)
        one.end = how
        if not self.active:
            self.rest = at

    def send(self) -> None:
        before = {id(one): one.at(self.sent) for one in self.active}
        self.sent += 1
        self.asked = max(self.asked, self.sent)
        floor = self.first_kept - self.buffer_size
        if self.drops:
            slow = [one for one in self.active if before[id(one)] < floor]
            for one in slow:
                self.leave(one, "dropped")
            if not self.active:
                self.rest = max(self.rest, floor)


def play(processor: Any, model: Model, history: list[tuple[Any, ...]]) -> None:
    publisher = ManualPublisher()
    publisher.subscribe(processor)

    def send() -> None:
        before = publisher.requested
        processor.on_next(model.sent)
        model.send()
        check(model, publisher, before)

    for operation, *args in history:
        before = publisher.requested
        one = model.everybody[args[0] % len(model.everybody)] if args and model.everybody else None
        if operation == "send":
            for _ in range(args[0]):
                if model.sent < model.asked:
                    send()
            continue
        if operation == "overfeed":
            if model.may_be_overfed:
                send()
            continue
        if operation == "subscribe":
            recorder = subscribed(processor)
            model.subscribe(recorder)
        elif operation == "request" and one is not None:
            one.recorder.subscription.request(args[1])
            if not one.end:
                one.limit += args[1]
        elif operation == "cancel" and one is not None:
            one.recorder.subscription.cancel()
            if not one.end:
                model.leave(one, "cancelled")
        check(model, publisher, before)
    processor.on_complete()
    for one in model.active:
        one.recorder.subscription.request(2**63)
        assert one.recorder.elements == list(range(one.start, model.sent))
        assert one.recorder.terminal == ("on_complete",)
        one.recorder.check()


def check(model: Model, publisher: ManualPublisher, before: int) -> None:
    for one in model.everybody:
        recorder = one.recorder
        if not one.end:
            assert recorder.elements == list(range(one.start, one.at(model.sent)))
            assert recorder.terminal is None
        elif one.end == "dropped":
            assert isinstance(recorder.error, BufferOverflowError)
        else:
            assert recorder.terminal is None
        recorder.check()
    assert publisher.cancels == 0
    if publisher.requested > before:
        model.asked += publisher.requested - before
        assert model.asked <= model.bound, model
    if any(one.limit > one.at(model.sent) == model.asked for one in model.active):
        # One that wants more has had all that was asked for.
        assert model.bound <= model.asked, model


@thorough
@given(operations, st.integers(1, 9), st.booleans(), st.sampled_from([None, None, 1, 4]))
def test_every_history_goes_as_the_model_says(
    history: list[tuple[Any, ...]], buffer_size: int, drops: bool, kept: int | None
) -> None:
    options: Any = {
        "buffer_size": buffer_size,
        "slow": "drop" if drops else "gate",
        "on_last_cancel": "keep",
    }
    processor: Any = (
        rsf.MulticastProcessor(**options)
        if kept is None
        else rsf.ReplayProcessor(count=kept, **options)
    )
    play(processor, Model(buffer_size, drops, kept), history)
