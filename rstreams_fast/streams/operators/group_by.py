"""``group_by``: divides a stream into one stream (group) for each key.

One bound applies to the number of elements that all groups hold together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from rstreams_fast._checks import check_capacity, check_seconds, describe_callable
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.errors import BufferOverflowError
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.trampoline import OperatorPublisher
from rstreams_fast.streams.operators.divider import Divider
from rstreams_fast.streams.operators.shared_capacity import SharedCapacity
from rstreams_fast.streams.operators.substreams import Substream, ToStream

__all__ = ["GroupBy"]


class GroupBy(Boundary):
    def __init__(  # noqa: PLR0917 - the parameters of the public method, in its order
        self,
        key: Callable[[Any], Hashable],
        max_groups: int,
        prefetch: int,
        patience: float,
        timer: Timer | None,
        to_group: ToStream,
    ) -> None:
        self.key = key
        self.max_groups = check_capacity("max_groups", max_groups)
        self.prefetch = check_capacity("prefetch", prefetch)
        self.patience = check_seconds("group_by(patience): patience", patience, positive=True)
        self.timer = check_timer(timer)
        self.to_group = to_group

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(upstream, _subscription, self)

    def describe(self) -> str:
        return (
            f"group_by({describe_callable(self.key)}): at most {self.max_groups} groups open, "
            f"{self.prefetch} elements in all"
        )


def _subscription(subscriber: Subscriber[Any], options: GroupBy) -> Divider:
    divider = Divider(subscriber, options.describe(), options.prefetch)
    divider.division = _ByKey(options)
    divider.capacity = SharedCapacity(divider, options.prefetch, options.patience, options.timer)
    return divider


class _ByKey:
    """Puts each element in the group of its key. If there is no such group, opens a new group."""

    __slots__ = ("_options",)

    def __init__(self, options: GroupBy) -> None:
        self._options = options

    def take(self, burst: list[Any], divider: Divider, /) -> None:
        key_of, latch = self._options.key, divider.latch
        find, touched = divider.open.get, divider.touched
        came = 0
        try:
            for element in burst:
                if latch.won:
                    return
                came += 1
                key = key_of(element)
                try:
                    group = find(key)
                except TypeError as raised:
                    giver = describe_callable(key_of)
                    raised.add_note(f"group_by() looks up what {giver} gives: it must be hashable")
                    raise
                group = group or self._open_group(key, divider)
                if group is None:
                    divider.count_taken(1)
                else:
                    group.elements.append(element)
                    touched[group] = None
        finally:
            # Count the elements only when they are in their groups. Otherwise the clock that looks
            # for a stuck stream (nobody takes the held elements) might, on another thread, see that
            # all requested elements have come, not find them in the groups, and wrongly fail the
            # stream (see ``SharedCapacity``).
            divider.received += came
            # The traceback of an error must not keep the element in memory (§3.13).
            element = group = key = None

    def _open_group(self, key: Hashable, divider: Divider) -> Substream | None:
        """Return a new group for ``key``; ``None`` if downstream takes no more groups."""
        options = self._options
        if divider.takes_no_more:
            return None
        if len(divider.open) >= options.max_groups:
            raise BufferOverflowError(
                f"{divider.name}: an element has a key that no open group is for; "
                "give a greater max_groups=, or cancel groups that are done, as take(n) does"
            )
        return divider.open_substream(key, options.to_group)
