"""The methods of ``Stream`` that use a clock, such as ``timeout`` and ``debounce``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from rstreams_fast._checks import check_sync
from rstreams_fast.streams.methods.composing import as_stream, with_part
from rstreams_fast.streams.operators.delay_elements import DelayElements
from rstreams_fast.streams.operators.timed import Timed
from rstreams_fast.streams.operators.timeout import Timeout

if TYPE_CHECKING:
    from rstreams_fast.runtime.timers import Timer
    from rstreams_fast.streams.stream import Stream

__all__ = ["TimeMethods"]

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")


class TimeMethods(Generic[T_co]):
    """The base class of ``Stream`` with ``timeout``, ``debounce`` and similar methods."""

    __slots__ = ()

    def timeout(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """Fail with a ``TimeoutError`` if a requested element does not come within ``seconds``.

        The time begins with the request. If the delivery of the previous element ends later, the
        time begins with this end. The clock stands still while there is no demand, and while the
        subscriber processes an element. The end of upstream must come in time, too. A time-out
        cancels upstream. The error is signalled on one of the threads that all streams share.

        Args:
            seconds: The longest time that an element may take.
            timer: The clock. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return with_part(self, Timeout(seconds, timer))

    def delay_elements(self, seconds: float, /, *, timer: Timer | None = None) -> Stream[T_co]:
        """Deliver each element with a delay of ``seconds``.

        The delay begins when the element has come, the subscriber has requested it, and the
        previous element is delivered.

        ```text
        above   --1-2--3---------|
        below   -----1-----2-----3|
        ```

        Only one element at a time is requested from upstream in advance (§1.1), so no elements are
        dropped or buffered. Elements are delivered on threads that all streams share. An error is
        signalled immediately.

        Reactor: ``delayElements``; RxPY: ``delay``, which buffers all elements that come.

        Args:
            seconds: The delay of each element.
            timer: The clock. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return as_stream(self).with_part(DelayElements(seconds, timer))

    def debounce(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """Deliver each element that no other element follows within ``seconds``, and the last one.

        ```text
        above   --1-2-3-------4--|
        below   ---------3-------4|
        ```

        Time cannot wait for demand, so an unbounded number of elements is requested (§3.17). An
        element is dropped if the next element comes within ``seconds``. An element is also dropped
        if it still waits for demand when the next element is ready for delivery. Dropped elements
        are counted (see ``metrics_of``).

        When upstream completes, the last element is delivered immediately. When upstream fails, the
        newest element is dropped if its ``seconds`` are not over. An element that waits for demand
        is delivered before the error. Elements are delivered on threads that all streams share.

        Reactor: ``sampleTimeout``; RxPY: ``debounce``.

        Args:
            seconds: The time without another element after which an element is delivered.
            timer: The clock. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return with_part(self, Timed("debounce", seconds, timer))

    def throttle_first(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """Deliver an element, drop elements for ``seconds``, deliver the next one, and so on.

        ```text
        above   --1-2-3-------4--|
        below   --1-----------4--|
        ```

        An unbounded number of elements is requested (§3.17). An element is also dropped if it still
        waits for demand when the next element is ready for delivery. Dropped elements are counted
        (see ``metrics_of``).

        Reactor: ``sampleFirst``; RxPY: ``throttle_first``.

        Args:
            seconds: The time in which elements are dropped. It begins when an element is kept.
            timer: The clock. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return with_part(self, Timed("throttle_first", seconds, timer))

    def sample(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """Every ``seconds``, deliver the newest element, unless it was delivered before.

        ```text
        above   --1-2-3-------4--|
        below   -----2-----3-----4|
        ```

        The clock ticks every ``seconds``. An unbounded number of elements is requested (§3.17). An
        element is dropped if another element comes before the next tick. An element is also dropped
        if it still waits for demand when the next element is ready for delivery. Dropped elements
        are counted (see ``metrics_of``). At the end of the stream the last element is delivered.

        Reactor, RxPY: ``sample``.

        Args:
            seconds: The time from tick to tick.
            timer: The clock. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return with_part(self, Timed("sample", seconds, timer))

    def timestamp(self, clock: Callable[[], float] = time.time) -> Stream[tuple[float, T_co]]:
        """Deliver for each element the pair ``(clock(), element)``.

        ```text
        above   --------a--------b--|
        below   --(0.8, a)-(1.7, b)-|
        ```

        ``clock`` is called when the element comes to this operator, which is after the element was
        requested (§1.1).

        Reactor, RxPY: ``timestamp``.

        Args:
            clock: A function that returns the time in seconds. Default: ``time.time``.

        Raises:
            TypeError: ``clock`` cannot be called.
        """
        check_sync("timestamp", "clock", clock)
        return as_stream(self).with_stage("map", partial(_with_timestamp, clock))


def _with_timestamp(clock: Callable[[], float], element: A) -> tuple[float, A]:
    return clock(), element
