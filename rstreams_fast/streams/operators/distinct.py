"""``distinct``: drops elements whose key is among the most recently seen keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from rstreams_fast._checks import describe_callable

__all__ = ["new_filter"]


def new_filter(key: Callable[[Any], Hashable] | None, max_keys: int) -> Callable[[Any], bool]:
    """Return a predicate that is true for an element with a new key.

    Each subscription needs its own predicate, which remembers at most ``max_keys`` keys. If there
    are more keys, it forgets the key that was not seen for the longest time.
    """
    seen: OrderedDict[Hashable, None] = OrderedDict()

    def is_new(element: Any) -> bool:
        found = element if key is None else key(element)
        try:
            known = found in seen
        except TypeError as raised:
            what = "the element" if key is None else f"what {describe_callable(key)} gives"
            raised.add_note(f"distinct() keeps what it has seen: {what} must be hashable")
            raise
        if known:
            seen.move_to_end(found)
            return False
        seen[found] = None
        if len(seen) > max_keys:
            seen.popitem(last=False)
        return True

    return is_new
