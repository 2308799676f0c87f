"""Concatenating: one publisher after another, each subscribed to when the one before is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core._common import check_capacity, describe_callable
from rstreams_fast.streams.assembly import Foreign
from rstreams_fast.streams.drain import check_subscriber
from rstreams_fast.streams.figures import BoundaryFigures, Waits
from rstreams_fast.streams.flat_map import ToPublisher, publisher_from
from rstreams_fast.streams.link import Link
from rstreams_fast.streams.merge import check_publishers
from rstreams_fast.streams.sources import empty, from_publisher
from rstreams_fast.streams.stream import Stream
from rstreams_fast.streams.switching import Switching
from rstreams_fast.streams.tuning import replenish_at

__all__ = ["ConcatMap", "concat"]

T = TypeVar("T")


def concat(*publishers: Publisher[T]) -> Stream[T]:
    """All elements of the first of ``publishers``, then all of the second, and so on.

    The next is subscribed to when the one before has completed, and asked for what that one still
    owed: nothing is asked for that the subscriber has not asked for, and nothing is held. The error
    of one ends the stream at once, and the rest is never subscribed to. Completes after the last;
    of no publishers, at once.

    The publishers may be any objects with ``subscribe``, and need not keep the rules; else it is a
    ``TypeError``.
    """
    check_publishers("concat", publishers)
    if not publishers:
        return empty()
    concatenated = _Concat(tuple(_flat(publishers)))
    return Stream(
        Foreign(concatenated, concatenated.describe(), trusted=True, inside=concatenated.publishers)
    )


def _flat(publishers: Iterable[Publisher[Any]]) -> Iterator[Publisher[Any]]:
    """Take concatenations apart: a long chain of ``stream.concat(other)`` is no deep stack."""
    for publisher in publishers:
        inside = publisher._publisher_itself() if isinstance(publisher, Stream) else None
        if isinstance(inside, _Concat):
            yield from inside.publishers
        else:
            yield publisher


class _Concat:
    def __init__(self, publishers: tuple[Publisher[Any], ...]) -> None:
        self.publishers = publishers

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        check_subscriber(subscriber)
        first, *rest = self.publishers
        _ConcatSubscription(subscriber, rest).start(from_publisher(first))

    def describe(self) -> str:
        """Say in one line how much may be held."""
        return f"concat of {len(self.publishers)} publishers: holds no elements"


class _ConcatSubscription(Switching):
    __slots__ = ("_rest",)

    def __init__(self, subscriber: Subscriber[Any], rest: list[Publisher[Any]]) -> None:
        super().__init__(subscriber)
        self._rest = deque(rest)

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        rest = self._rest  # replaced, not emptied, by who lets go
        if error is not None:
            self._fail(error)
        elif rest:
            return from_publisher(rest.popleft())
        else:
            self._finish()
        return None

    def _let_go(self) -> None:
        super()._let_go()
        self._rest = deque()


class ConcatMap:
    """The boundary of ``Stream.concat_map``, its arguments checked."""

    def __init__(self, fn: ToPublisher, prefetch: int) -> None:
        self.fn = fn
        self.prefetch = check_capacity("prefetch", prefetch)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return a publisher of the elements of ``fn(element)`` for those of ``upstream``."""
        return _ConcatMapped(upstream, self)

    def describe(self) -> str:
        """Say in one line what is called and how much may be held."""
        return (
            f"concat_map({describe_callable(self.fn)}): at most {self.prefetch} elements, and one "
            "publisher at a time"
        )


class _ConcatMapped:
    def __init__(self, upstream: Publisher[Any], options: ConcatMap) -> None:
        self._upstream = upstream
        self._options = options

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        check_subscriber(subscriber)
        _ConcatMapSubscription(subscriber, self._upstream, self._options).begin()


class _ConcatMapSubscription(Switching):
    """The outer publisher is on a link; its elements wait until the publisher before is over."""

    __slots__ = (
        "_begun",
        "_fn",
        "_idle",
        "_name",
        "_outer",
        "_outer_attached",
        "_outer_done",
        "_outer_publisher",
        "_prefetch",
        "_unasked",
        "_waiting",
        "_waits",
    )

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: ConcatMap
    ) -> None:
        super().__init__(subscriber)
        self._outer_publisher: Publisher[Any] | None = upstream
        self._fn: ToPublisher | None = options.fn
        self._name = options.describe()
        self._prefetch = options.prefetch
        self._outer = Link(self)
        self._outer_attached = False
        self._outer_done = False
        self._waiting: deque[Any] = deque()
        self._begun = False  # nobody is asked before the subscriber has asked
        self._unasked = options.prefetch  # places for elements which were not asked for yet
        self._idle = True  # nothing to go on with has come yet
        self._waits = Waits()

    def begin(self) -> None:
        """Introduce ourselves, and subscribe to the outer publisher."""
        if self._introduce():
            self._go()
            self._ask_now()

    def figures(self) -> tuple[BoundaryFigures, ...]:
        """What waits here to be opened, then the boundaries above, the current publisher's
        first.
        """
        mine = self._waits.figures(
            self._demand,
            name=self._name,
            held=len(self._waiting),
            max_held=self._prefetch,
        )
        return (mine, *super().figures(), *self._outer.figures())

    # -- from the link to the outer publisher ----------------------------------------------------

    def _link_attached(self, link: Link, /) -> None:  # noqa: ARG002
        self._outer_attached = True
        self._enter_asking()

    def _link_next(self, link: Link, element: Any, /) -> None:  # noqa: ARG002
        self._waiting.append(element)
        if self._demand.value < 0:  # all was let go of, perhaps before it came
            self._waiting.clear()
        self._enter_asking()

    def _link_ended(self, link: Link, error: BaseException | None, /) -> None:  # noqa: ARG002
        if error is not None:
            self._fail(error)  # at once: it overtakes what waits
        else:
            self._outer_done = True
            self._enter_asking()

    # -- asking and changing over ----------------------------------------------------------------

    def _change_over(self) -> None:
        publisher, self._outer_publisher = self._outer_publisher, None
        if publisher is not None and self._demand.value >= 0:
            self._outer.subscribe(publisher)
        done = self._outer_done  # read before the elements that came before it
        if self._idle and (self._waiting or done):
            self._idle = False
            self._waits.end()
            self._over = True  # whatever was before the next
        super()._change_over()

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        done, waiting, fn = self._outer_done, self._waiting, self._fn
        if error is not None:
            self._fail(error)
        elif fn is None:
            return None
        elif waiting:
            self._unasked += 1
            return from_publisher(publisher_from("concat_map", fn, waiting.popleft()))
        elif done:
            self._finish()
        else:
            self._idle = True
            self._waits.begin(for_demand=self._demand.value == 0)
        return None

    def _ask_current(self) -> None:
        if not self._begun and self._demand.value > 0:
            self._begun = True
            self._waits.begin(for_demand=False)
        if self._begun and self._outer_attached and not self._outer_done:
            unasked = self._unasked
            if unasked >= replenish_at(self._prefetch):
                self._unasked = 0
                self._outer.ask(unasked)
        super()._ask_current()

    def _stop(self) -> None:
        self._outer.cancel()
        super()._stop()

    def _let_go(self) -> None:
        super()._let_go()
        self._fn = self._outer_publisher = None
        self._waiting = deque()
