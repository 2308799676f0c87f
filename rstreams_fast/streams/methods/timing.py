"""The methods of ``Stream`` that look at a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from rstreams_fast._checks import check_sync
from rstreams_fast.streams.methods.composing import extended, whole
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
        """Fail with a ``TimeoutError`` when an element that was asked for does not come in time.

        The element, or the end, must come within ``seconds`` of the request, or of the element
        before it if that was delivered later. While nobody asks, or while the subscriber works on
        an element, the clock stands still. Then upstream is cancelled. The error is signalled on a
        worker thread of the stream.

        Args:
            seconds: The time an element may take.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return extended(self, Timeout(seconds, timer))

    def delay_elements(self, seconds: float, /, *, timer: Timer | None = None) -> Stream[T_co]:
        """Each element ``seconds`` after it came, or after the element before was delivered.

        ```text
        above   --1-2--3---------|
        below   -----1-----2-----3|
        ```

        One element is asked for ahead (§1.1), so nothing is dropped and nothing piles up. Elements
        come on shared threads. An error comes at once.

        Reactor: ``delayElements``; RxPY: ``delay``, which holds all elements that come.

        Args:
            seconds: The delay.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return whole(self).with_part(DelayElements(seconds, timer))

    def debounce(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """An element when no other has come for ``seconds`` after it, and the last element at the
        end.

        ```text
        above   --1-2-3-------4--|
        below   ---------3-------4|
        ```

        Time cannot wait for demand: everything is asked for at once (§3.17). An element is dropped
        when the next comes too soon, or when it still waits for demand as the next is due. Drops
        are counted (see ``metrics_of``). An error comes at once, in place of the element that waits
        for its time. Elements come on shared threads.

        Reactor: ``sampleTimeout``; RxPY: ``debounce``.

        Args:
            seconds: The silence that an element waits for.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return extended(self, Timed("debounce", seconds, timer))

    def throttle_first(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """An element, and then none for ``seconds``, and so on.

        ```text
        above   --1-2-3-------4--|
        below   --1-----------4--|
        ```

        As ``debounce``, it asks for everything (§3.17). It drops and counts the elements that come
        meanwhile, and an element that waits for demand when the next comes.

        Reactor: ``sampleFirst``; RxPY: ``throttle_first``.

        Args:
            seconds: The pause after each element.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return extended(self, Timed("throttle_first", seconds, timer))

    def sample(self, seconds: float, /, *, timer: Timer | None = None) -> Self:
        """The newest element every ``seconds``, if one has come, and the last element at the end.

        ```text
        above   --1-2-3-------4--|
        below   -----2-----3-----4|
        ```

        As ``debounce``, it asks for everything (§3.17). It drops and counts an element that another
        follows before the tick, and an element that still waits for demand at the next tick.

        Reactor, RxPY: ``sample``.

        Args:
            seconds: The time from tick to tick.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds`` is not positive.
        """
        return extended(self, Timed("sample", seconds, timer))

    def timestamp(self, clock: Callable[[], float] = time.time) -> Stream[tuple[float, T_co]]:
        """Pairs of the time by ``clock()`` and each element.

        ```text
        above   --------a--------b--|
        below   --(0.8, a)-(1.7, b)-|
        ```

        The time is that at which the element came here (§1.1 holds it back until it is asked for).

        Reactor, RxPY: ``timestamp``.

        Args:
            clock: Gives the time in seconds. Default: ``time.time``.

        Raises:
            TypeError: ``clock`` cannot be called.
        """
        check_sync("timestamp", "clock", clock)
        return whole(self).with_stage("map", partial(_stamped, clock))


def _stamped(clock: Callable[[], float], element: A) -> tuple[float, A]:
    return clock(), element
