"""Custody: the record of the undelivered elements above an ``on_discard`` operator.

Each element is either delivered, or passed once to the hook of ``on_discard``. An element *enters*
a custody when it is made: by a source, or as the result of a function. An element is *claimed* when
it is used: by the subscriber below, by a function that makes another element from it, or by a batch
that contains it. The claim removes the element from the custody. At the end of the stream the
custody passes all unclaimed elements to the hook, and later each element that enters after the end.
So buffers need no code for discarding. Only operators that drop elements before the end of the
stream call ``discard``. Elements that several subscribers share never enter a custody, because the
other subscribers may still use these elements. So the hook does not get them.

A *scope* is the part of a stream that one custody covers: all operators above an ``on_discard``, or
all operators above an inner subscriber (``merge`` has one inner subscriber for each publisher).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, Final

from rstreams_fast.api import Subscriber
from rstreams_fast.core import MISSING
from rstreams_fast.core.stage_table import DROPPED, STAGES, Fate
from rstreams_fast.errors import report_unraisable

__all__ = ["Custody"]

Function = Callable[..., Any]

# Each iteration over a collection gives the same objects. ``dict.items()`` makes new tuples.
_COLLECTIONS: Final[tuple[type[Iterable[Any]], ...]] = (
    *(list, tuple, set, frozenset, deque, dict),
    *(type(dict[Any, Any]().keys()), type(dict[Any, Any]().values())),
)


class _NoPublisher:
    """A publisher that sends nothing.

    After the end of the stream, an operator no longer calls the user's function that makes
    publishers. The operator uses a ``_NoPublisher`` instead of the function's result.
    """

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Do nothing: this object replaces a publisher in a stream that has already ended."""


NO_PUBLISHER: Final = _NoPublisher()


class Custody:
    """Holds the undelivered elements of a scope: the part of a stream above an ``on_discard``.

    Any thread may call any method. No lock is held while the hook of ``on_discard`` is called.
    """

    __slots__ = ("_below", "_held", "_hook", "_lock")

    def __init__(self, hook: Callable[[Any], object], below: Custody | None = None) -> None:
        self._hook = hook
        self._below = below
        # ``_held`` maps ``id(element)`` to a pair: the element and a count. ``enter`` adds 1 to the
        # count, and ``claim`` subtracts 1. After the end of the stream, ``_held`` is None.
        self._held: dict[int, tuple[Any, int]] | None = {}
        # The lock is reentrant, because a finalizer can run on the thread that holds the lock, and
        # can call a method of this object.
        self._lock = threading.RLock()

    def inner(self) -> Custody:
        """Return a new custody, a record of undelivered elements, for one publisher of an operator.

        ``merge``, for example, has several publishers. The method ``pass_on`` of the new custody
        moves elements to this custody.
        """
        return Custody(self._hook, self)

    def enter(self, element: Any) -> None:
        """Record ``element`` as undelivered. Ignore ``None``, which is not an element.

        After the end of the stream, pass ``element`` to the hook of ``on_discard`` instead.
        """
        if element is None:
            return
        with self._lock:
            held = self._held
            if held is not None:
                found = held.get(id(element))
                held[id(element)] = element, 1 if found is None else found[1] + 1
                return
        self.call_hook(element)

    def claim(self, *elements: Any) -> list[Any] | None:
        """Remove ``elements`` from the record of undelivered elements: the caller uses them now.

        Return a list of the removed elements, without those that were not recorded. Return ``None``
        if the stream has ended. Then the hook of ``on_discard`` has already got the elements.
        """
        with self._lock:
            if self._held is None:
                return None
            held = []
            for element in elements:
                if self._remove(element):
                    held.append(element)  # noqa: PERF401 - a comprehension takes longer
            return held

    def _remove(self, element: Any) -> bool:
        held = self._held
        found = None if held is None else held.pop(id(element), None)
        if found is None:
            return False
        if found[1] > 1:
            held[id(element)] = element, found[1] - 1  # type: ignore[index]
        return True

    def call_hook(self, element: Any) -> None:
        """Pass ``element`` to the hook of ``on_discard``. Report an exception of the hook."""
        try:
            self._hook(element)
        except Exception as raised:
            report_unraisable(raised, "on_discard", self._hook)

    def discard(self, elements: Iterable[Any]) -> None:
        """Remove ``elements`` from the record of undelivered elements: ``on_discard`` gets them."""
        for element in elements:
            with self._lock:
                here = self._remove(element)
            if here:
                self.call_hook(element)

    def pass_on(self, burst: list[Any]) -> list[Any]:
        """Move ``burst`` from this record of undelivered elements to that of the whole operator.

        This record is for one of the publishers of an operator such as ``merge``. Return the
        elements. If the stream has ended, leave out the elements that ``on_discard`` has got.
        """
        passed = []
        for element in burst:
            held = self.claim(element)
            if held is not None:
                passed.append(element)
                for each in held:
                    self._below.enter(each)  # type: ignore[union-attr]
        return passed

    def gather(self, group: Any) -> Any:
        """Record the list or tuple ``group`` as one undelivered element, instead of its members.

        Return ``group``.
        """
        with self._lock:
            if self._held is not None:
                for element in group:
                    self._remove(element)
                self.enter(group)
        return group

    def enter_items(self, iterable: Any) -> bool:
        """Record each item of ``iterable`` as an undelivered element, instead of ``iterable``.

        ``unbatch`` delivers the items. If ``iterable`` was not recorded, its items are not recorded
        either. Return false if ``iterable`` was recorded but is not a collection (such as a list).
        Then the caller must call ``enter`` with each item. Otherwise return true.
        """
        with self._lock:
            if self.claim(iterable):
                if not isinstance(iterable, _COLLECTIONS):
                    return False
                for item in iterable:
                    self.enter(item)
        return True

    def close(self) -> None:
        """Give ``on_discard`` all recorded elements, and from now on each argument of ``enter``."""
        with self._lock:
            held, self._held = self._held, None
        for element, count in (held or {}).values():
            for _ in range(count):
                self.call_hook(element)

    # -- wrapping the functions of the user --------------------------------------------------------

    def wrap_function(
        self, fn: Function, *, makes: bool = False, last: bool = False, seeded: bool = False
    ) -> Function:
        """Return a wrapper of ``fn``, a function that uses elements, as in ``map`` or ``flat_map``.

        The wrapper removes its arguments from the record of undelivered elements, and then calls
        ``fn``. If ``fn`` raises or returns ``None``, the hook of ``on_discard`` gets the removed
        arguments.

        Args:
            fn: The user's function.
            makes: Whether ``fn`` returns an element. Then the element is recorded as undelivered.
                If false, ``fn`` returns a publisher.
            last: Whether the wrapper removes only its last argument from the record.
            seeded: Whether the first argument of the first call is a seed. A seed is not removed.
        """

        @wraps(fn, updated=())
        def wrapper(*elements: Any) -> Any:
            nonlocal seeded
            own = elements[-1:] if last or seeded else elements
            seeded = False
            held = self.claim(*own)
            if held is None:  # the stream has ended: do not call fn
                return elements[-1] if makes else NO_PUBLISHER
            result = None
            try:
                result = fn(*elements)
            finally:
                if result is None:
                    for element in held:
                        self.call_hook(element)
            if makes and result is not None:
                self.enter(result)
            return result

        return wrapper

    def wrap_predicate(self, fn: Function, *, drops: bool | None) -> Function:
        """Return a wrapper of ``fn``, a function that only reads an element, as in ``filter``.

        During the call of ``fn``, the element is not in the record of undelivered elements. So the
        hook of ``on_discard`` cannot get the element while ``fn`` reads it. After the call, the
        hook gets the element if the stage drops it. Otherwise the element is recorded again. If the
        element was not recorded before the call, the wrapper only calls ``fn``.

        Args:
            fn: The user's function.
            drops: The result of ``fn`` (true or false) that makes the stage drop the element.
                ``None`` means that the stage never drops an element.
        """

        @wraps(fn, updated=())
        def wrapper(element: Any) -> Any:
            held = self.claim(element)
            if held is None:
                return not drops
            # ``keeps``: whether to record the element again. If false, the hook of ``on_discard``
            # gets it now. This first value is used if ``fn`` raises. It is true if the stage never
            # drops elements: then the hook gets the element when the stream has failed.
            keeps = drops is None
            try:
                result = fn(element)
                keeps = drops is None or bool(result) is not drops
            finally:
                if held:
                    (self.enter if keeps else self.call_hook)(element)
            return result

        return wrapper

    def wrap_coroutine_function(
        self, fn: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any], Awaitable[Any]]:
        """Return a wrapper of ``fn``, the user's coroutine function for ``map_async``.

        The wrapper removes its argument from the record of undelivered elements. Then it awaits
        ``fn``, and records the result of ``fn`` as undelivered. If ``fn`` raises or returns
        ``None``, the hook of ``on_discard`` gets the argument.
        """

        @wraps(fn, updated=())
        async def wrapper(element: Any) -> Any:
            held = self.claim(element)
            if held is None:
                return element
            result = None
            try:
                result = await fn(element)
            finally:
                if result is None and held:
                    self.call_hook(element)
            if result is not None:
                self.enter(result)
            return result

        return wrapper

    def wrap_stages(
        self, stages: tuple[tuple[Any, ...], ...], *, enters: bool = False
    ) -> tuple[tuple[Any, ...], ...]:
        """Return ``stages``, changed so that ``on_discard`` gets the elements that the stages drop.

        If ``enters`` is true, the result begins with an additional stage, which records each
        element as undelivered.
        """
        kept: list[tuple[Any, ...]] = [("do_on_next", self.enter)] if enters else []
        for stage in stages:
            kept += self._wrap_stage(*stage)
        return tuple(kept)

    def _wrap_stage(self, name: str, fn: Any, *seed: Any) -> list[tuple[Any, ...]]:
        match STAGES[name].fate:
            case Fate.USED:
                seeded = bool(seed) and seed[0] is not MISSING
                return [(name, self.wrap_function(fn, makes=True, seeded=seeded), *seed)]
            case Fate.ADDED:
                # ``scan`` has already delivered the first argument: ``on_discard`` must not get it.
                return [(name, self.wrap_function(fn, makes=True, last=True), *seed)]
            case Fate.KEPT_IF_TRUE:
                return [(name, self.wrap_predicate(fn, drops=False))]
            case Fate.DROPPED_IF_TRUE:
                return [(name, self.wrap_predicate(fn, drops=True))]
            case Fate.READ:
                return [(name, self.wrap_predicate(fn, drops=None))]
            case Fate.COUNTED:
                left = iter(range(fn))
                return [
                    (
                        "skip_while",
                        self.wrap_predicate(lambda _: next(left, None) is not None, drops=True),
                    )
                ]
            case Fate.COMPARED:
                return [("filter", self.wrap_predicate(_passes(name, fn), drops=False))]
            case Fate.GATHERED:
                return [(name, fn), ("map", self.gather)]
        return [(name, fn, *seed)]


def _passes(name: str, argument: Any) -> Function:
    """Return a predicate that is true for the elements that ``distinct_until_changed`` passes on.

    ``name`` is always ``distinct_until_changed``, and ``argument`` is its key function, or None.
    The predicate stores the previous element or its key, and compares it with the next.
    """
    kind = STAGES[name]
    state = [kind.first_state((name, argument))]

    def passes(element: Any) -> bool:
        return kind.step(state, 0, argument, element) is not DROPPED

    return passes
