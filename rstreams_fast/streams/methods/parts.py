"""The methods of ``Stream`` that divide its elements into batches, windows and groups."""

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
    """``batch``, ``window``, ``group_by``, and ``unbatch``, which undoes ``batch``."""

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
        """Lists of ``n`` elements. A list can be shorter, but not empty.

        ```text
        above   --1--2--3--4-------|
        below   --------a--b-------|cd   of batch(3, skip=1); a: 1 2 3, b: 2 3 4, c: 3 4, d: 4
        ```

        Requested and held elements are at most ``n`` together. With ``max_bytes``, at most
        ``max_bytes`` plus one element are held. With ``skip``, as many elements are requested as
        fill the requested lists (§1.1).

        Reactor: ``buffer``; RxPY: ``buffer_with_count``.

        Args:
            n: The most elements of a list, 1 or more.
            skip: A list begins every ``skip`` elements, so lists overlap or leave elements out.
                ``skip`` cannot be combined with a bound in time or bytes. Default: ``n``.
            seconds: A list is also delivered this long after its first element has come, on a
                thread that streams share. Without demand it is delivered at the next request.
                Default: no bound in time.
            max_bytes: A list is also delivered when it weighs this much, or when the next element
                would make the list weigh more. So only a list of a single element can weigh more.
                Default: no bound in bytes.
            weigher: ``weigher(element)`` gives the bytes of an element; needed with ``max_bytes``.
            timer: The clock of ``seconds``. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A bound is less than 1, or ``skip`` comes with time or bytes.
        """
        if skip is not None:
            if any(other is not None for other in (seconds, max_bytes, weigher, timer)):
                raise ValueError("batch: skip goes with n alone, not with time or bytes")
            return as_stream(self).with_part(Window(n, skip, None))
        if seconds is None and max_bytes is None and weigher is None and timer is None:
            return as_stream(self).with_stage("batch", check_count("batch(n): n", n, 1))
        return as_stream(self).with_part(TimedBatch(n, seconds, max_bytes, weigher, timer))

    def unbatch(self: PartMethods[Iterable[U]]) -> Stream[U]:
        """The items of all elements, which must be iterables. One iterable is held at a time."""
        return as_stream(self).with_part(Unbatch())

    def window(self, n: int, /, *, skip: int | None = None) -> Stream[Stream[T_co]]:
        """Streams (windows) of ``n`` elements, with a new stream every ``skip`` elements.

        ```text
        above   --1--2--3--4--|
        below   --a-----b-----|   of window(2)
        a, b    --1--2| 3--4--|
        ```

        A window is published with its first element, and may have one subscriber. As many elements
        are requested as fill the requested windows (§1.1). A window without a subscriber holds its
        ``n`` elements, and other windows do not wait for it. After a cancel the open windows go on
        until they are full, cancelled or garbage-collected. An error ends all open windows.

        Reactor: ``window``; RxPY: ``window_with_count``.

        Args:
            n: The elements of a window, 1 or more.
            skip: The elements from the start of a window to the start of the next. Default: ``n``.

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
        """Streams (windows) of the elements that come within ``seconds`` of a first element.

        ```text
        above   --1-2-----3---|
        below   --a-------b---|
        a, b    --1-2---| 3---|
        ```

        A window begins with an element, so no window is empty. No element is dropped. Windows are
        completed on threads that streams share.

        Reactor: ``window``; RxPY: ``window_with_time``, whose windows begin at regular times.

        Args:
            seconds: How long a window lasts from its first element on.
            prefetch: Elements that are requested in advance, for all windows together (§1.1).
            patience: Seconds after which windows without a subscriber end the stream with an error,
                as in ``group_by``.
            timer: The clock. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A bound is not positive.
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
        """For each value of ``key(element)`` a ``Group``: the stream of the elements of this key.

        ```text
        above    --1--2--3--4--|
        below    --a--b--------|   of group_by(lambda n: n % 2)
        streams  a: 1--3  b: 2--4
        ```

        A group may have one subscriber, and holds the elements that wait for its demand (§1.1). If
        the subscriber cancels, the group ends and drops its elements; the next element of the key
        opens another group. If every subscriber cancels its group, as with ``take``, at most
        ``prefetch`` groups are open.

        **A group without a subscriber** holds its elements. When such groups hold all ``prefetch``
        elements, the stream is stuck, and after ``patience`` seconds it ends with a
        ``BufferOverflowError``. The stream is also stuck if the subscribers of the groups that hold
        all elements request none, while the subscriber of another group waits. This can happen with
        subscribers of other libraries, and with a ``zip_`` of groups. If these subscribers are only
        slow, give a greater ``patience``. In other cases all groups wait for a slow subscriber.

        After a cancel the open groups go on, as in ``window``. An exception of ``key`` ends the
        stream.

        Reactor: ``groupBy``; RxPY: ``group_by``.

        Args:
            key: ``key(element)``, which must be hashable, is the key of the element's group.
            max_groups: The most open groups. An element that needs one more group ends the stream
                with a ``BufferOverflowError``.
            prefetch: Elements that are requested in advance, for all groups together.
            patience: Seconds for which groups without a subscriber may hold all elements.
            timer: The clock of ``patience``. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A bound is not positive.
        """
        check_sync("group_by", "key", key)
        stream = as_stream(self)
        options = GroupBy(key, max_groups, prefetch, patience, timer, stream._group_of)
        return stream.with_part(options)
