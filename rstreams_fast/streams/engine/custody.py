"""Custody: the record of the elements above an ``on_discard`` that were not delivered yet.

Each element is delivered, or the hook of ``on_discard`` is called once for it. An element *enters*
a custody where it is made: at a source, or as a function's result. An element is *claimed* when it
is used: by the subscriber below, by a function that makes another element from it, or by a batch.
The claim removes the element from the custody. At the end of the stream the custody calls the hook
for all unclaimed elements, and for each element that enters later. So buffers need no code for
discarding. Only operators that drop elements before the end call ``discard``. An element that never
entered, such as one that several subscribers share, is not given to the hook: others may use it.

A *scope* is the part of a stream that one custody covers: all parts above an ``on_discard``, or all
parts above an inner subscriber, such as that of ``merge``.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, Final

from rstreams_fast.api import Subscriber
from rstreams_fast.core import MISSING
from rstreams_fast.core.stage_table import DROPPED, STAGES, Fate
from rstreams_fast.errors import report_unraisable

__all__ = ["Custody"]

Function = Callable[..., Any]

_COLLECTIONS: Final = (list, tuple, set, frozenset)


class _NoPublisher:
    """A publisher that sends nothing.

    After the end of the stream, a user's function that makes publishers is not called. The operator
    gets this publisher in place of the function's result.
    """

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Send nothing: the stream of the subscriber has ended."""


NO_PUBLISHER: Final = _NoPublisher()


class Custody:
    """Holds the elements of one part of a stream (a scope) that were not delivered yet.

    Any thread may call any method. No lock is held while the hook is called.
    """

    __slots__ = ("_below", "_held", "_hook", "_lock")

    def __init__(self, hook: Callable[[Any], object], below: Custody | None = None) -> None:
        self._hook = hook
        self._below = below
        # Maps ``id(element)`` to a pair: the element, and a count. ``enter`` adds 1 to the count,
        # and a claim subtracts 1. ``_held`` is None after the end of the stream.
        self._held: dict[int, tuple[Any, int]] | None = {}
        # The lock is reentrant: a finalizer can call a method on the thread that holds the lock.
        self._lock = threading.RLock()

    def inner(self) -> Custody:
        """Return a custody (record of elements) for an inner publisher, such as one of ``merge``.

        The ``pass_on`` of the new custody moves elements to this custody.
        """
        return Custody(self._hook, self)

    def enter(self, element: Any) -> None:
        """Record ``element`` as undelivered, unless it is ``None``, which is not an element.

        After the end of the stream, call the hook of ``on_discard`` instead.
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
        """Remove ``elements`` from this record, because the caller uses them now.

        Return those that were recorded. Return ``None`` if the stream has ended. Then the hook of
        ``on_discard`` has got the recorded elements already.
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
        """Call the hook of ``on_discard`` for ``element``. Report an exception of the hook."""
        try:
            self._hook(element)
        except Exception as raised:
            report_unraisable(raised, "on_discard", self._hook)

    def discard(self, elements: Iterable[Any]) -> None:
        """Call the hook of ``on_discard`` for each of ``elements`` that this custody holds."""
        for element in elements:
            with self._lock:
                here = self._remove(element)
            if here:
                self.call_hook(element)

    def pass_on(self, burst: list[Any]) -> list[Any]:
        """Move the elements of the list ``burst`` from this custody to the next custody downstream.

        Return the elements, without those that the hook of ``on_discard`` has already got.
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
        """Record the list or tuple ``group`` as one element, in place of its members.

        Return ``group``.
        """
        with self._lock:
            if self._held is not None:
                for element in group:
                    self._remove(element)
                self.enter(group)
        return group

    def enter_items(self, iterable: Any) -> bool:
        """Record the items of ``iterable`` as elements, in place of ``iterable`` itself.

        Return false if ``iterable`` is not a collection (such as a list). Then ``iterable`` is
        removed, no items are added, and the caller must call ``enter`` with each item. The items of
        an iterable that was not recorded are not recorded either.
        """
        with self._lock:
            if self.claim(iterable):
                if not isinstance(iterable, _COLLECTIONS):
                    return False
                for item in iterable:
                    self.enter(item)
        return True

    def close(self) -> None:
        """Call the hook of ``on_discard`` for all elements held, and later for each new element."""
        with self._lock:
            held, self._held = self._held, None
        for element, count in (held or {}).values():
            for _ in range(count):
                self.call_hook(element)

    # -- wrapping the functions of the user --------------------------------------------------------

    def wrap_function(
        self, fn: Function, *, makes: bool = False, last: bool = False, seeded: bool = False
    ) -> Function:
        """Return a function that removes its arguments from this record, and then calls ``fn``.

        If ``fn`` raises or returns ``None``, the hook of ``on_discard`` gets the removed arguments.

        Args:
            fn: The user's function.
            makes: Whether ``fn`` returns an element, which is then recorded as undelivered.
                Otherwise ``fn`` returns a publisher.
            last: Whether only the last argument is removed.
            seeded: Whether the first argument of the first call is a seed, which is no element.
        """

        @wraps(fn, updated=())
        def wrapper(*elements: Any) -> Any:
            nonlocal seeded
            own = elements[-1:] if last or seeded else elements
            seeded = False
            held = self.claim(*own)
            if held is None:  # the stream is over: do not call fn
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
        """Return a function that calls ``fn``, such as the predicate of ``filter``.

        ``fn`` only reads an element. This record does not hold the element during the call. After
        the call, the hook of ``on_discard`` gets the element, if the stage drops it. Otherwise the
        element is recorded again. An element that this record did not hold stays unrecorded.

        Args:
            fn: The user's function.
            drops: The result of ``fn``, true or false, for which the stage drops the element.
                ``None``: the stage never drops an element.
        """

        @wraps(fn, updated=())
        def wrapper(element: Any) -> Any:
            held = self.claim(element)
            if held is None:
                return not drops
            # The value of ``keeps`` if ``fn`` raises: false if the stage can drop elements.
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
        """Return a coroutine function that removes its argument from this record and awaits ``fn``.

        ``fn`` is the coroutine function of ``map_async``. The result of ``fn`` is recorded as
        undelivered. If ``fn`` raises or returns ``None``, ``on_discard``'s hook gets the argument.
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
        """Return ``stages``, changed so that the hook of ``on_discard`` gets the dropped elements.

        If ``enters`` is true, an additional first stage records the elements as undelivered.
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
            case Fate.ADDED:  # claim only the element: the other argument was claimed before
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
    """Return a predicate that is true for the elements that the stage ``name`` passes on.

    Such a stage (``distinct_until_changed``) compares each element with the previous element. So
    the predicate also stores the previous element.
    """
    kind = STAGES[name]
    state = [kind.first_state((name, argument))]

    def passes(element: Any) -> bool:
        return kind.step(state, 0, argument, element) is not DROPPED

    return passes
