"""Who answers for an element between its source and an ``on_discard``: it is delivered, or the hook
is called for it, once.

An element *enters* where it comes into being: at a source, or as what a function returned. Who uses
it up *claims* it: the subscriber below, a function that makes another of it, a batch. What is still
here when the scope ends is discarded, in whatever buffer it waits, and what enters after that, at
once. So the buffers need not know of it; only what drops elements while the stream goes on does.
A scope is what stands above an ``on_discard``, or above an inner subscriber there.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, Final

from rstreams_fast.api import Subscriber
from rstreams_fast.core import MISSING
from rstreams_fast.core.stage_table import note_comparison
from rstreams_fast.errors import report_unraisable

__all__ = ["Custody"]

Function = Callable[..., Any]

_COLLECTIONS: Final = (list, tuple, set, frozenset)


class _NoPublisher:
    """In place of a publisher, where nobody is to subscribe any more."""

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Give nothing: the subscriber is of a stream that has ended."""


NO_PUBLISHER: Final = _NoPublisher()


class Custody:
    """The elements of one scope. Any thread; the hook is called under no lock."""

    __slots__ = ("_below", "_held", "_hook", "_lock")

    def __init__(self, hook: Callable[[Any], object], below: Custody | None = None) -> None:
        self._hook = hook
        self._below = below  # the scope that what leaves this one enters
        # By identity: each with the number of times that it is here. None at the end.
        self._held: dict[int, tuple[Any, int]] | None = {}
        self._lock = threading.RLock()  # reentrant, for the collector may run anything anywhere

    def inner(self) -> Custody:
        """Return a scope whose elements go on to this one."""
        return Custody(self._hook, self)

    def enter(self, element: Any) -> None:
        """Answer for ``element``."""
        with self._lock:
            held = self._held
            if held is not None:
                held[id(element)] = element, held.get(id(element), (None, 0))[1] + 1
                return
        self.release(element)

    def claim(self, *elements: Any) -> bool:
        """Whether they may be used: they were not discarded. Then the caller answers for them."""
        with self._lock:
            for element in elements:
                self._leave(element)
            return self._held is not None

    def _leave(self, element: Any) -> bool:
        held = self._held
        count = 0 if held is None else held.get(id(element), (None, 0))[1]
        if held is None or not count:
            return False
        if count == 1:
            del held[id(element)]
        else:
            held[id(element)] = element, count - 1
        return True

    def release(self, element: Any) -> None:
        """Call the hook for ``element``, which nobody answers for any more."""
        try:
            self._hook(element)
        except Exception as raised:
            report_unraisable(raised, "on_discard", self._hook)

    def discard(self, elements: Iterable[Any]) -> None:
        """Discard those of ``elements`` that are here."""
        for element in elements:
            with self._lock:
                here = self._leave(element)
            if here:
                self.release(element)

    def pass_on(self, burst: list[Any]) -> list[Any]:
        """Hand elements to the scope below; return those that were not discarded."""
        passed = [element for element in burst if self.claim(element)]
        for element in passed:
            self._below.enter(element)  # type: ignore[union-attr]
        return passed

    def gather(self, group: Any) -> Any:
        """Answer for a list or a tuple in place of its members; return it."""
        with self._lock:
            if self._held is not None:
                for element in group:
                    self._leave(element)
                self.enter(group)
        return group

    def open(self, iterable: Any) -> bool:
        """Answer for the items in place of ``iterable``; false: for each when it comes."""
        with self._lock:
            if not isinstance(iterable, _COLLECTIONS):
                self.claim(iterable)
                return False
            if self.claim(iterable):
                for item in iterable:
                    self.enter(item)
        return True

    def close(self) -> None:
        """The end: discard what is here, and what follows."""
        with self._lock:
            held, self._held = self._held, None
        for element, count in (held or {}).values():
            for _ in range(count):
                self.release(element)

    # -- functions -------------------------------------------------------------------------------

    def using(self, fn: Function, *, makes: bool = False, last: bool = False) -> Function:
        """``fn``, which uses its arguments (the ``last`` one) up, unless it raises or returns
        ``None``; it returns an element (``makes``) or a publisher.
        """

        @wraps(fn, updated=())
        def use(*elements: Any) -> Any:
            own = elements[-1:] if last else elements
            if not self.claim(*own):  # all is over: what is returned goes nowhere
                return elements[-1] if makes else NO_PUBLISHER
            result = None
            try:
                result = fn(*elements)
            finally:
                if result is None:
                    for element in own:
                        self.release(element)
            if makes and result is not None:
                self.enter(result)
            return result

        return use

    def looking(self, fn: Function, *, drops: bool | None) -> Function:
        """``fn``, which looks at an element, that is dropped if what it returns is ``drops``."""

        @wraps(fn, updated=())
        def look(element: Any) -> Any:
            if not self.claim(element):
                return not drops
            keeps = drops is None  # else what raises ends the stream
            try:
                result = fn(element)
                keeps = drops is None or bool(result) is not drops
            finally:
                (self.enter if keeps else self.release)(element)
            return result

        return look

    def awaiting(self, fn: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """The same as ``using`` for what ``map_async`` calls."""

        @wraps(fn, updated=())
        async def use(element: Any) -> Any:
            if not self.claim(element):
                return element
            result = None
            try:
                result = await fn(element)
            finally:
                if result is None:
                    self.release(element)
            if result is not None:
                self.enter(result)
            return result

        return use

    def stages(
        self, stages: tuple[tuple[Any, ...], ...], *, enters: bool = False
    ) -> tuple[tuple[Any, ...], ...]:
        """The same stages, which discard what they drop; ``enters``: of a source's elements."""
        kept: list[tuple[Any, ...]] = [("do_on_next", self.enter)] if enters else []
        for stage in stages:
            kept += self._stage(*stage)
        return tuple(kept)

    def _stage(self, name: str, fn: Any, *seed: Any) -> list[tuple[Any, ...]]:
        match name:
            case "map" | "map_not_none" | "reduce":
                return [(name, self.using(fn, makes=True), *seed)]
            case "scan":  # what it has made before has gone on
                return [(name, self.using(fn, makes=True, last=True), *seed)]
            case "filter" | "take_while":
                return [(name, self.looking(fn, drops=False))]
            case "skip_while":
                return [(name, self.looking(fn, drops=True))]
            case "do_on_next":
                return [(name, self.looking(fn, drops=None))]
            case "skip":
                left = iter(range(fn))
                return [
                    ("skip_while", self.looking(lambda _: next(left, None) is not None, drops=True))
                ]
            case "distinct_until_changed":
                return [("filter", self.looking(_differs(fn), drops=False))]
            case "batch":
                return [(name, fn), ("map", self.gather)]
        return [(name, fn, *seed)]


def _differs(key: Function | None) -> Function:
    """What ``distinct_until_changed`` asks of each element."""
    last = MISSING

    def differs(element: Any) -> bool:
        nonlocal last
        found = element if key is None else key(element)
        try:
            if found is last or (last is not MISSING and found == last):
                return False
        except Exception as raised:
            note_comparison(raised)
            raise
        last = found
        return True

    return differs
