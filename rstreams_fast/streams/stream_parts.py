"""The methods of ``Stream`` that divide its elements, by number or by time, and that pace them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rstreams_fast._checks import check_count, check_sync
from rstreams_fast.streams.engine.assembly import Part, Stage
from rstreams_fast.streams.engine.defaults import FLAT_MAP_CONCURRENCY, INNER_PREFETCH
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.operators.delay_elements import DelayElements
from rstreams_fast.streams.operators.group_by import Group, GroupBy
from rstreams_fast.streams.operators.timed import Timed
from rstreams_fast.streams.operators.timed_batch import TimedBatch
from rstreams_fast.streams.operators.timeout import Timeout
from rstreams_fast.streams.operators.unbatch import Unbatch
from rstreams_fast.streams.operators.window import Window
from rstreams_fast.streams.operators.window_time import WindowTime

if TYPE_CHECKING:
    from rstreams_fast.runtime.timers import Timer
    from rstreams_fast.streams.stream import Stream

__all__ = ["StreamParts"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")


class StreamParts(Pipeline[T_co]):
    """Batches, windows, groups, and the operators that look at the clock."""

    __slots__ = ()

    # -- parts -----------------------------------------------------------------------------------

    def batch(
        self,
        n: int,
        /,
        *,
        skip: int | None = None,
        seconds: float | None = None,
        max_bytes: int | None = None,
        weigher: Callable[[T_co], int] | None = None,
        timer: Timer | None = None,
    ) -> Stream[list[T_co]]:
        """Lists of ``n`` elements; the last may be shorter, and so may others, but none is empty.

        ``seconds``: a batch also leaves that long after its first element has come, at the time of
        ``timer`` (``None``: that of this process), and then on a worker of its own; if nobody has
        asked for it, as soon as somebody does. ``max_bytes``: it also leaves when it weighs that
        much, as ``weigher(element)`` counts, or when the next element would make it weigh more. So
        only a batch of one element weighs more than ``max_bytes``.

        At most ``n`` elements are asked for or held, and at most ``max_bytes`` plus one element.

            above   --1--2--3--4-------|
            below   --------a--b-------|cd   of batch(3, skip=1); a: 1 2 3, b: 2 3 4, c: 3 4, d: 4

        ``skip``, which goes with ``n`` alone: a list begins every ``skip`` elements, so that they
        overlap, or leave elements out. Asked for is what fills the lists that were asked for
        (§1.1). Reactor: ``buffer``; RxPY: ``buffer_with_count``.
        """
        if skip is not None:
            if any(other is not None for other in (seconds, max_bytes, weigher, timer)):
                raise ValueError("batch: skip goes with n alone, not with time or bytes")
            return self._boundary(Window(n, skip, None))
        if seconds is None and max_bytes is None and weigher is None and timer is None:
            return self._stage("batch", check_count("batch(n): n", n, 1))
        return self._boundary(TimedBatch(n, seconds, max_bytes, weigher, timer))

    def window(self, n: int, /, *, skip: int | None = None) -> Stream[Stream[T_co]]:
        """Streams of ``n`` elements, a new one every ``skip`` (``None``: ``n``) elements.

            above   --1--2--3--4--|
            below   --a-----b-----|   of window(2)
            a, b    --1--2| 3--4--|

        A window is published with its first element, and may have one subscriber. Asked for is
        what fills the windows that were asked for (§1.1), read or not: one that nobody reads holds
        its ``n`` elements, and nobody waits for it. After a cancel the windows that are open go
        on, until they are full, cancelled or dropped. An error ends them all. Reactor: ``window``;
        RxPY: ``window_with_count``.
        """
        return self._boundary(Window(n, skip, type(self)))

    def window_time(
        self,
        seconds: float,
        /,
        *,
        prefetch: int = INNER_PREFETCH,
        unread: float = 10.0,
        timer: Timer | None = None,
    ) -> Stream[Stream[T_co]]:
        """Streams of the elements that come within ``seconds`` of the first of them.

            above   --1-2-----3---|
            below   --a-------b---|
            a, b    --1-2---| 3---|

        A window begins with an element, so none is empty. Nothing is dropped: ``prefetch`` elements
        are asked for ahead, for all windows together (§1.1), and windows that nobody reads are an
        error after ``unread`` seconds, as in ``group_by``. A window ends on a shared thread, at the
        time of ``timer`` (``None``: that of this process). Reactor: ``window``; RxPY:
        ``window_with_time``, whose windows follow the clock.
        """
        return self._boundary(WindowTime(seconds, prefetch, unread, timer, type(self)))

    def group_by(
        self,
        key: Callable[[T_co], A],
        /,
        *,
        max_groups: int = FLAT_MAP_CONCURRENCY,
        prefetch: int = INNER_PREFETCH,
        unread: float = 10.0,
        timer: Timer | None = None,
    ) -> Stream[Group[A, Stream[T_co]]]:
        """A :class:`Group`, a key and a stream, for each value of ``key(element)``.

            above    --1--2--3--4--|
            below    --a--b--------|   of group_by(lambda n: n % 2)
            streams  a: 1--3  b: 2--4

        A group may have one subscriber, holds what waits for its demand (§1.1), and is over with
        its cancel, which drops what it held: the key's next element opens another one. An element
        for one group too many, beyond ``max_groups`` open ones, is a ``BufferOverflowError``;
        groups that end by themselves, as by ``take``, are never too many if these are ``prefetch``
        or more. That many elements are asked for ahead, for all groups together. **A group that
        nobody reads** holds its elements: when such groups hold all ``prefetch``, nothing would
        move any more, and after ``unread`` seconds (by ``timer``; ``None``: that of this process)
        all ends with a ``BufferOverflowError``. The same holds of a group whose subscriber does not
        ask, while that of another group waits: one that is not of this package, or ``zip_``, which
        waits for the other group. Give such a subscriber a greater ``unread`` if it takes longer.
        Other streams and iterators below may be slow, and are waited for, however long; all groups
        wait with them. A cancel leaves the open groups going, as in
        ``window``. What ``key`` raises ends the stream. Reactor: ``groupBy``; RxPY: ``group_by``.
        """
        check_sync("group_by", "key", key)
        options = GroupBy(key, max_groups, prefetch, unread, timer, type(self))
        return self._boundary(options)

    def unbatch(self: StreamParts[Iterable[U]]) -> Stream[U]:
        """The items of elements that are iterables, of which one at a time is held."""
        return self._boundary(Unbatch())

    # -- time ------------------------------------------------------------------------------------

    def timestamp(self, clock: Callable[[], float] = time.time) -> Stream[tuple[float, T_co]]:
        """Pairs of the time by ``clock()``, in seconds, and each element.

            above   --------a--------b--|
            below   --(0.8, a)-(1.7, b)-|

        The time is that at which the element came here (§1.1 holds it back until it is asked for).
        Reactor, RxPY: ``timestamp``.
        """
        check_sync("timestamp", "clock", clock)
        return self._stage("map", partial(_stamped, clock))

    def delay_elements(self, seconds: float, /, *, timer: Timer | None = None) -> Stream[T_co]:
        """Each element ``seconds`` after it came, or after the one before was delivered.

            above   --1-2--3---------|
            below   -----1-----2-----3|

        One element is asked for ahead (§1.1), so nothing is dropped and nothing piles up. Elements
        come on shared threads, at the time of ``timer`` (``None``: that of this process). An error
        comes at once. Reactor: ``delayElements``; RxPY: ``delay``, which holds all that comes.
        """
        return self._boundary(DelayElements(seconds, timer))

    def timeout(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """Fail with a ``TimeoutError`` when an element that was asked for does not come in time.

        It must come within ``seconds`` of the request, or of the element before it if that was
        delivered later; or the end must. While nobody asks, or is at work on an element, the clock
        stands still. Upstream is cancelled then. The error is signalled on a worker of one's own,
        at the time of ``timer`` (``None``: that of this process).
        """
        return self.with_part(Timeout(seconds, timer))

    def debounce(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """An element when no other has come for ``seconds`` after it, and the last at the end.

            above   --1-2-3-------4--|
            below   ---------3-------4|

        Time cannot wait for demand: all is asked for at once (§3.17), what is followed too soon is
        dropped, and so is what waits for demand when the next is due. Drops are counted (see
        ``metrics_of``). An error comes at once, in place of what waits for its time. Elements come
        on shared threads, at the time of ``timer`` (``None``: that of this process). Reactor:
        ``sampleTimeout``; RxPY: ``debounce``.
        """
        return self.with_part(Timed("debounce", seconds, timer))

    def throttle_first(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """An element, and then none for ``seconds``, and so on.

            above   --1-2-3-------4--|
            below   --1-----------4--|

        As ``debounce``, it asks for all (§3.17), and drops and counts what comes meanwhile, and
        what waits for demand when the next comes. Reactor: ``sampleFirst``; RxPY:
        ``throttle_first``.
        """
        return self.with_part(Timed("throttle_first", seconds, timer))

    def sample(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """The newest element every ``seconds``, if one has come, and the last at the end.

            above   --1-2-3-------4--|
            below   -----2-----3-----4|

        As ``debounce``, it asks for all (§3.17), and drops and counts what is followed by another
        before the tick, and what waits for demand at the next. Reactor, RxPY: ``sample``.
        """
        return self.with_part(Timed("sample", seconds, timer))

    # -- composing -------------------------------------------------------------------------------

    # Of elements of another type, and so no Self for the type checker.

    def _stage(self, *op: Any) -> Stream[Any]:
        return self.with_part(Stage(op))  # type: ignore[return-value]

    def _boundary(self, part: Part) -> Stream[Any]:
        return self.with_part(part)  # type: ignore[return-value]


def _stamped(clock: Callable[[], float], element: A) -> tuple[float, A]:
    return clock(), element
