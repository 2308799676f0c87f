"""The methods of ``Stream`` that observe its signals without changing them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Self, TypeVar

from rstreams_fast._checks import check_sync
from rstreams_fast.api import Subscription
from rstreams_fast.streams.engine.assembly import Stage
from rstreams_fast.streams.methods.composing import with_part
from rstreams_fast.streams.operators.on_discard import OnDiscard
from rstreams_fast.streams.operators.peek import Named, Peek

__all__ = ["ObserverMethods"]

T_co = TypeVar("T_co", covariant=True)


class ObserverMethods(Generic[T_co]):
    """The methods named ``do_...``, ``log``, ``name`` and ``on_discard``."""

    __slots__ = ()

    def do_on_subscribe(self, fn: Callable[[Subscription], object], /) -> Self:
        """Call ``fn(subscription)`` before ``on_subscribe`` is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_subscribe", fn)

    def do_on_next(self, fn: Callable[[T_co], object], /) -> Self:
        """Call ``fn(element)`` before each element is passed on.

        The result of ``fn`` is ignored. Exceptions of ``fn`` go to ``sys.unraisablehook``, and the
        stream goes on.

        Args:
            fn: A plain function, called on the signalling thread.

        Raises:
            TypeError: ``fn`` cannot be called, is ``async``, or is a generator function.
        """
        check_sync("do_on_next", "fn", fn, result_used=False)
        return with_part(self, Stage(("do_on_next", fn)))

    def do_on_error(self, fn: Callable[[BaseException], object], /) -> Self:
        """Call ``fn(error)`` before ``on_error`` is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_error", fn)

    def do_on_complete(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` before ``on_complete`` is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_complete", fn)

    def do_on_request(self, fn: Callable[[int], object], /) -> Self:
        """Call ``fn(n)`` before each ``request(n)`` from below is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_request", fn)

    def do_on_cancel(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` before the first ``cancel()`` from below is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_cancel", fn)

    def do_finally(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` once, after the end or a ``cancel()`` was passed on. See ``do_on_next``.

        ```text
        above   --1--2--|
        below   --1--2--|fn()
        ```

        ``fn`` is also called when a subscriber raises (§2.13).

        Reactor: ``doFinally``; RxPY: ``finally_action``.

        Args:
            fn: A plain function.
        """
        return self._observe("finally", fn)

    def log(self, name: str = "rstreams_fast", /, *, level: int = logging.DEBUG) -> Self:
        """Log each signal, each request and the cancel by ``logging.getLogger(name)``.

        ```text
        above   --1--2--|
        below   --1--2--|   on_subscribe(...), request(2), on_next(1), on_next(2), on_complete()
        ```

        The signals do not change (see ``do_on_next``). If the level is disabled when ``log`` is
        called, the stream is not changed, and there is no cost.

        Reactor: ``log``; RxPY: ``do``.

        Args:
            name: The name of the logger.
            level: The level of the records.

        Raises:
            TypeError: ``level`` is not an ``int``.
        """
        if not isinstance(level, int):
            raise TypeError(f"log(level): level must be an int, got {type(level).__name__}")
        logger = logging.getLogger(name)
        if not logger.isEnabledFor(level):
            return self

        def say(text: str) -> Callable[..., None]:
            return partial(logger.log, level, text)

        return (
            self.do_on_subscribe(say("on_subscribe(%r)"))
            .do_on_next(say("on_next(%r)"))
            .do_on_error(say("on_error(%r)"))
            .do_on_complete(say("on_complete()"))
            .do_on_request(say("request(%r)"))
            .do_on_cancel(say("cancel()"))
        )

    def name(self, name: str, /) -> Self:
        """Name the stream above: in errors, in ``describe()`` and in the metrics.

        ```text
        above   --1--2--X
        below   --1--2--X   whose notes say: it passed 'orders'
        ```

        An error that passes here gets one note, even with several subscribers. The name has a line
        in ``describe()`` and an entry in ``metrics_of``, before the boundaries above it. The
        signals do not change.

        Reactor: ``name``, ``checkpoint``.

        Args:
            name: The name, a ``str``.

        Raises:
            TypeError: ``name`` is not a ``str``.
        """
        return with_part(self, Named(name))

    def on_discard(self, hook: Callable[[Any], object], /) -> Self:
        """Call ``hook(element)`` for each element that an operator above drops.

        ```text
        above   --1--2--3--4--cancel
        filter  -----2-----4--
        hook      1     3         and the elements that wait in buffers
        ```

        The hook can release what an element holds. Each element above is either delivered below, or
        given to the hook once. The hook gets the element in its present form, for example as the
        result of ``map``, or as a whole batch. ``filter``, ``skip``, ``take_while``, ``switch_map``
        and an overflow strategy drop elements at once. Elements in a buffer or a batch, and results
        of ``map_async``, are dropped when the stream ends, is cancelled or fails, or when their
        inner publisher ends. The argument of a function that returns a new element, such as the
        function of ``map``, is neither dropped nor delivered. But if the function raises, returns
        ``None`` or is cancelled, the hook gets the argument. When ``unbatch`` stops within a list,
        the hook gets the rest of the list.

        Delivered elements can still be in use: ``combine_latest`` and ``with_latest_from`` can
        deliver an element several times, and ``expand`` calls ``fn`` with it after its delivery.

        The hook is not called for the following elements: elements that publishers of other
        libraries hold; elements that subscribers share, by ``multicast``, ``replay`` or a
        processor; elements that go into windows and groups, by ``window``, ``group_by`` or
        ``skip=`` of ``batch``; these windows and groups; and elements below ``on_discard``, such as
        elements that ``iterate`` has read ahead. ``on_discard`` adds some time for each element
        above it.

        Reactor: ``doOnDiscard``.

        Args:
            hook: A plain function, called on any thread. Its exceptions go to
                ``sys.unraisablehook``.

        Raises:
            TypeError: ``hook`` cannot be called, is ``async``, or is a generator function.
        """
        check_sync("on_discard", "hook", hook, result_used=False)
        return with_part(self, OnDiscard(hook))

    def _observe(self, signal: str, fn: Callable[..., object]) -> Self:
        check_sync(f"do_{signal}", "fn", fn, result_used=False)
        return with_part(self, Peek(signal, fn))
