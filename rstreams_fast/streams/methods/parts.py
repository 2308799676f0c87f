"""The methods of ``Stream`` that divide a stream into batches, windows and groups of elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from rstreams_fast._checks import check_count, check_sync
from rstreams_fast.streams.engine.defaults import FLAT_MAP_CONCURRENCY, INNER_PREFETCH
from rstreams_fast.streams.methods.composing import as_stream
from rstreams_fast.streams.operators.group_by import GroupBy
from rstreams_fast.streams.operators.timed_batch import TimedBatch
from rstreams_fast.streams.operators.unbatch import Unbatch
from rstreams_fast.streams.operators.window import Window
from rstreams_fast.streams.operators.window_time import WindowTime

if TYPE_CHECKING:
    from rstreams_fast.runtime.timers import Timer
    from rstreams_fast.streams.stream import Group, Stream

__all__ = ["PartMethods"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")


class PartMethods(Generic[T_co]):
    """The base class of ``Stream`` with ``batch``, ``unbatch``, ``window`` and ``group_by``."""

    __slots__ = ()

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
        """Deliver the elements in lists of at most ``n`` elements. No list is empty.

        ```text
        above   --1--2--3--4-------|
        below   --------a--b-------|cd   of batch(3, skip=1); a: 1 2 3, b: 2 3 4, c: 3 4, d: 4
        ```

        The sum of requested and buffered elements is at most ``n``. With ``max_bytes``, the buffer
        has at most ``max_bytes`` bytes plus one element. With ``skip``, only the elements of the
        requested lists are requested (§1.1).

        Reactor: ``buffer``; RxPY: ``buffer_with_count``.

        Args:
            n: The largest number of elements in a list, 1 or more.
            skip: The number of elements from one list's start to the next. If ``skip`` is less than
                ``n``, lists overlap. If it is greater, some elements are in no list. ``skip``
                cannot be combined with ``seconds`` or ``max_bytes``. Default: ``n``.
            seconds: A list that is not full is delivered this many seconds after its first element
                has come, on a thread that all streams share. Without demand the list is delivered
                at the next request. Default: no bound in time.
            max_bytes: A list is also delivered when its elements have this many bytes, or when the
                next element would exceed ``max_bytes``. So only a list of a single element can
                exceed ``max_bytes``. Default: no bound in bytes.
            weigher: ``weigher(element)`` returns the size in bytes. Required with ``max_bytes``.
            timer: The clock for ``seconds``. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``n``, ``skip`` or ``max_bytes`` is less than 1, or ``seconds`` is not
                positive. Or ``skip`` is given together with a bound in time or bytes.
        """
        if skip is not None:
            if any(other is not None for other in (seconds, max_bytes, weigher, timer)):
                raise ValueError("batch: skip goes with n alone, not with time or bytes")
            return as_stream(self).with_part(Window(n, skip, None))
        if seconds is None and max_bytes is None and weigher is None and timer is None:
            return as_stream(self).with_stage("batch", check_count("batch(n): n", n, 1))
        return as_stream(self).with_part(TimedBatch(n, seconds, max_bytes, weigher, timer))

    def unbatch(self: PartMethods[Iterable[U]]) -> Stream[U]:
        """Deliver the items of each element. Each element must be an iterable, such as a list.

        One iterable is requested at a time, after all items of the previous iterable are delivered.
        """
        return as_stream(self).with_part(Unbatch())

    def window(self, n: int, /, *, skip: int | None = None) -> Stream[Stream[T_co]]:
        """Deliver streams (windows) of ``n`` elements, with a new window every ``skip`` elements.

        ```text
        above   --1--2--3--4--|
        below   --a-----b-----|   of window(2)
        a, b    --1--2| 3--4--|
        ```

        A window is delivered when its first element comes, and may have one subscriber. Only the
        elements of the requested windows are requested (§1.1). A window without a subscriber
        buffers its ``n`` elements, and other windows do not wait for this window. If the subscriber
        of the windows cancels, the open windows go on until they are full, cancelled or
        garbage-collected. An error ends all open windows.

        Reactor: ``window``; RxPY: ``window_with_count``.

        Args:
            n: The number of elements in a window, 1 or more.
            skip: The number of elements from one window's start to the next. Default: ``n``.

        Raises:
            TypeError: An argument is not an ``int``.
            ValueError: An argument is less than 1.
        """
        stream = as_stream(self)
        return stream.with_part(Window(n, skip, stream._stream_of))

    def window_time(
        self,
        seconds: float,
        /,
        *,
        prefetch: int = INNER_PREFETCH,
        patience: float = 10.0,
        timer: Timer | None = None,
    ) -> Stream[Stream[T_co]]:
        """Deliver windows: streams of the elements within ``seconds`` of a window's first element.

        ```text
        above   --1-2-----3---|
        below   --a-------b---|
        a, b    --1-2---| 3---|
        ```

        A window begins with its first element, so no window is empty. No element is dropped. A
        window is completed on one of the threads that all streams share.

        Reactor: ``window``; RxPY: ``window_with_time``, whose windows begin at regular times.

        Args:
            seconds: The duration of a window, from its first element on.
            prefetch: The number of elements to request in advance, for all windows together.
            patience: If windows without a subscriber buffer all requested elements for this many
                seconds, the stream ends with an error, as in ``group_by``.
            timer: The clock. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``seconds``, ``prefetch`` or ``patience`` is not positive.
        """
        stream = as_stream(self)
        return stream.with_part(WindowTime(seconds, prefetch, patience, timer, stream._stream_of))

    def group_by(
        self,
        key: Callable[[T_co], A],
        /,
        *,
        max_groups: int = FLAT_MAP_CONCURRENCY,
        prefetch: int = INNER_PREFETCH,
        patience: float = 10.0,
        timer: Timer | None = None,
    ) -> Stream[Group[A, T_co]]:
        """Deliver a ``Group`` for each key: the stream of the elements with this ``key(element)``.

        ```text
        above    --1--2--3--4--|
        below    --a--b--------|   of group_by(lambda n: n % 2)
        streams  a: 1--3  b: 2--4
        ```

        A group may have one subscriber, and buffers its elements until they are requested (§1.1).
        If the subscriber cancels, the group ends and drops its elements. Then the next element with
        the same key opens a new group. If every subscriber cancels its group, as with ``take``, at
        most ``prefetch`` groups are open.

        **A group without a subscriber** buffers its elements. If such groups buffer all
        ``prefetch`` elements, no more elements are requested, and the stream is stuck. After
        ``patience`` seconds the stream ends with a ``BufferOverflowError``.

        The stream is also stuck if all ``prefetch`` elements are in groups whose subscribers make
        no requests, while the subscriber of another group waits. This can happen with subscribers
        of other libraries, and with a ``zip_`` of groups. If these subscribers are only slow, give
        a greater ``patience``. In all other cases the groups wait for a slow subscriber.

        If the subscriber of the groups cancels, the open groups go on, as in ``window``. An
        exception of ``key`` ends the stream.

        Reactor: ``groupBy``; RxPY: ``group_by``.

        Args:
            key: ``key(element)`` returns the key of an element's group, which must be hashable.
            max_groups: The largest number of open groups. An element that needs one more group ends
                the stream with a ``BufferOverflowError``.
            prefetch: The number of elements to request in advance, for all groups together.
            patience: Seconds for which groups without a subscriber may buffer all elements.
            timer: The clock for ``patience``. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``max_groups``, ``prefetch`` or ``patience`` is not positive.
        """
        check_sync("group_by", "key", key)
        stream = as_stream(self)
        options = GroupBy(key, max_groups, prefetch, patience, timer, stream._group_of)
        return stream.with_part(options)
