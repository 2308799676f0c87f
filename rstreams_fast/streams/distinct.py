"""Dropping what equals the element before it: a filter that remembers, one for each subscriber."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast.core import MISSING
from rstreams_fast.core._common import describe_callable

__all__ = ["Distinct"]


class Distinct:
    """Makes the predicates of ``Stream.distinct_until_changed``."""

    def __init__(self, key: Callable[[Any], object] | None) -> None:
        self._key = key

    def predicate(self) -> Callable[[Any], bool]:
        """Return a function that remembers nothing yet."""
        key = self._key
        last: Any = MISSING

        def changed(element: Any) -> bool:
            nonlocal last
            new = element if key is None else key(element)
            if new is last:
                return False
            if last is not MISSING:
                try:
                    if new == last:
                        return False
                except Exception as raised:
                    raised.add_note(
                        "distinct_until_changed compares each element, or its key, with the one "
                        "before it by =="
                    )
                    raise
            last = new
            return True

        return changed

    def describe(self) -> str:
        """Write the stage as it was composed."""
        key = "" if self._key is None else describe_callable(self._key)
        return f"distinct_until_changed({key})"
