"""Every operator and source of the table, under the kit: from below, and operators from above.

The plugin collects the classes. ``make test ARGS="tests/tck -k TakeUntil"`` runs those of one.
"""

from __future__ import annotations

import threading
from typing import Any

import rstreams_fast as rsf
from rstreams_fast.tck import PublisherVerification, SubscriberWhiteboxVerification, WhiteboxProbe
from rstreams_fast.tck.processor import Downstream
from tests.helpers import wait_for
from tests.operators import OPERATORS, SOURCES, Gives, firsts
from tests.operators.entry import NO_LOOK_AHEAD, NO_ORDER, NO_REGISTRY, Over
from tests.operators.sources import FAIL_AT, failing
from tests.tck import SILENCE, Resources, add_case


class UseVerification(Resources, PublisherVerification):
    """What an operator gives, over what the kit asks for."""

    __test__ = False
    silence = SILENCE
    not_claimed: tuple[str, ...] = NO_REGISTRY
    over: Over
    of: Any = None
    #: Whether it fails without demand.
    fails_at_once = True

    def create_publisher(self, elements: int) -> Any:
        return self.of(elements) if self.of else self.over(rsf.range_(elements))

    def create_failed_publisher(self) -> Any:
        return self.over(rsf.error(ValueError(FAIL_AT))) if self.fails_at_once else None

    def create_failing_publisher(self, elements: int) -> Any:
        return self.over(rsf.from_iterable(failing(elements)))


class SourceVerification(PublisherVerification):
    """What a source gives."""

    __test__ = False
    silence = SILENCE
    gives: Gives

    def create_publisher(self, elements: int) -> Any:
        return self.gives.of(elements)

    def create_failed_publisher(self) -> Any:
        return self.create_failing_publisher(0) if self.gives.fails_at_once else None

    def create_failing_publisher(self, elements: int) -> Any:
        return None if self.gives.failing is None else self.gives.failing(elements)


class Captor:
    """A publisher that keeps its subscriber, for the kit to signal to."""

    def __init__(self) -> None:
        self._subscriber: Any = None
        self._subscriber_of = threading.Event()

    def subscribe(self, subscriber: Any, /) -> None:
        self._subscriber = subscriber
        self._subscriber_of.set()

    @property
    def subscriber(self) -> Any:
        wait_for(self._subscriber_of, "subscribe")  # it may come from another thread
        return self._subscriber


class StageVerification(Resources, SubscriberWhiteboxVerification):
    """The upper side of an operator; what comes out below is what it has processed."""

    __test__ = False
    over: Over

    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        captor = Captor()
        self.over(rsf.from_publisher(captor)).subscribe(Downstream(probe))
        return captor.subscriber


def add_classes(module: dict[str, Any]) -> None:
    above = firsts()  # from above, other arguments make no difference
    for op in OPERATORS:
        for name, use in op.uses.items():
            over, of = staticmethod(use.over), use.of and staticmethod(use.of)
            add_case(module, UseVerification, name, over=over, of=of, not_claimed=use.not_claimed)
            if use.within is not None:
                add_case(
                    module,
                    UseVerification,
                    f"{name}Within",
                    over=staticmethod(use.within),
                    not_claimed=NO_LOOK_AHEAD,
                    fails_at_once=False,
                )
            # Below threads that overtake each other nobody sees what order came from above.
            if name in above and not (use.threads and use.not_claimed == NO_ORDER):
                more = {"over": staticmethod(use.same), "delivers_at_end": use.delivers_at_end}
                add_case(module, StageVerification, f"{name}Above", **more)
        for name, stages in op.above.items():
            add_case(module, StageVerification, f"{name}Above", over=staticmethod(stages))
    for source in SOURCES:
        for name, gives in source.uses.items():
            add_case(
                module,
                SourceVerification,
                name,
                gives=gives,
                not_claimed=gives.not_claimed,
                max_supported_subscribers=gives.subscribers,
                asyncio_bound=gives.asyncio_bound,
            )


add_classes(globals())
