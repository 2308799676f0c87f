"""The methods of ``Stream`` that use a clock."""

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
    """``timeout``, ``debounce`` and others that delay, drop or fail by the clock."""

    __slots__ = ()

    def timeout(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """Fail with a ``TimeoutError`` when a requested element does not come in time.

        The element, or the end, must come within ``seconds``. The time begins with the request, or
        with the delivery of the previous element if the delivery was later. The clock does not run
        while there is no demand, nor while the subscriber processes an element. A time-out cancels
        upstream. The error is signalled on a thread that streams share.

        Args:
            seconds: The time an element may take.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return with_part(self, Timeout(seconds, timer))

    def delay_elements(self, seconds: float, /, *, timer: Timer | None = None) -> Stream[T_co]:
        """Each element, ``seconds`` after the latest of its arrival, request and previous delivery.

        The previous delivery is that of the element before.

        ```text
        above   --1-2--3---------|
        below   -----1-----2-----3|
        ```

        One element at a time is requested in advance (§1.1), so no elements are dropped or
        buffered. They are delivered on threads that streams share. An error is signalled at once.

        Reactor: ``delayElements``; RxPY: ``delay``, which holds all elements that come.

        Args:
            seconds: The delay.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return as_stream(self).with_part(DelayElements(seconds, timer))

    def debounce(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """Each element that no other element follows within ``seconds``, and the last element.

        ```text
        above   --1-2-3-------4--|
        below   ---------3-------4|
        ```

        Time cannot wait for demand, so an unbounded number of elements is requested (§3.17). An
        element is dropped if the next element comes within ``seconds``, or if the element still
        waits for demand when the next element is to be delivered. Drops are counted (see
        ``metrics_of``). The last element is delivered at the end of the stream. An error is
        signalled at once, and the element that waits for its time is dropped. Elements are
        delivered on threads that streams share.

        Reactor: ``sampleTimeout``; RxPY: ``debounce``.

        Args:
            seconds: The silence that an element waits for.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return with_part(self, Timed("debounce", seconds, timer))

    def throttle_first(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """An element, then no elements for ``seconds``, then the next element, and so on.

        ```text
        above   --1-2-3-------4--|
        below   --1-----------4--|
        ```

        An unbounded number of elements is requested (§3.17). Elements that come in the pause are
        dropped and counted. An element is also dropped if it still waits for demand when the next
        element is to be delivered.

        Reactor: ``sampleFirst``; RxPY: ``throttle_first``.

        Args:
            seconds: The pause after each element.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return with_part(self, Timed("throttle_first", seconds, timer))

    def sample(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """The newest element every ``seconds``, if it is new, and the last element at the end.

        ```text
        above   --1-2-3-------4--|
        below   -----2-----3-----4|
        ```

        An unbounded number of elements is requested (§3.17). An element is dropped and counted if
        another element comes before the next tick, or if the element still waits for demand at the
        next tick.

        Reactor, RxPY: ``sample``.

        Args:
            seconds: The time from tick to tick.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return with_part(self, Timed("sample", seconds, timer))

    def timestamp(self, clock: Callable[[], float] = time.time) -> Stream[tuple[float, T_co]]:
        """For each element a pair: the time by ``clock()``, and the element.

        ```text
        above   --------a--------b--|
        below   --(0.8, a)-(1.7, b)-|
        ```

        The time is read when the element comes to this operator, which is after the request (§1.1).

        Reactor, RxPY: ``timestamp``.

        Args:
            clock: Returns the time in seconds. Default: ``time.time``.

        Raises:
            TypeError: ``clock`` cannot be called.
        """
        check_sync("timestamp", "clock", clock)
        return as_stream(self).with_stage("map", partial(_with_timestamp, clock))


def _with_timestamp(clock: Callable[[], float], element: A) -> tuple[float, A]:
    return clock(), element
