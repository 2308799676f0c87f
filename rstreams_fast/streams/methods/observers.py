"""The methods of ``Stream`` that observe its signals and requests without changing them."""

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
    """The base class of ``Stream`` with ``do_on_next``, ``log``, ``name`` and similar methods."""

    __slots__ = ()

    def do_on_subscribe(self, fn: Callable[[Subscription], object], /) -> Self:
        """Call ``fn(subscription)`` before ``on_subscribe(subscription)`` is passed downstream.

        Args:
            fn: A plain function. For its result and its errors see ``do_on_next``.
        """
        return self._observe("on_subscribe", fn)

    def do_on_next(self, fn: Callable[[T_co], object], /) -> Self:
        """Call ``fn(element)`` before each element is passed downstream.

        The result of ``fn`` is ignored. Exceptions of ``fn`` go to ``sys.unraisablehook``, and do
        not end the stream.

        Args:
            fn: A plain function, called on the thread that signals the element.

        Raises:
            TypeError: ``fn`` cannot be called, is ``async``, or is a generator function.
        """
        check_sync("do_on_next", "fn", fn, result_used=False)
        return with_part(self, Stage(("do_on_next", fn)))

    def do_on_error(self, fn: Callable[[BaseException], object], /) -> Self:
        """Call ``fn(error)`` before ``on_error(error)`` is passed downstream.

        Args:
            fn: A plain function. For its result and its errors see ``do_on_next``.
        """
        return self._observe("on_error", fn)

    def do_on_complete(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` before ``on_complete()`` is passed downstream.

        Args:
            fn: A plain function. For its result and its errors see ``do_on_next``.
        """
        return self._observe("on_complete", fn)

    def do_on_request(self, fn: Callable[[int], object], /) -> Self:
        """Call ``fn(n)`` before each ``request(n)`` is passed upstream.

        Args:
            fn: A plain function. For its result and its errors see ``do_on_next``.
        """
        return self._observe("on_request", fn)

    def do_on_cancel(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` before the first ``cancel()`` is passed upstream.

        Args:
            fn: A plain function. For its result and its errors see ``do_on_next``.
        """
        return self._observe("on_cancel", fn)

    def do_finally(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` once, after the stream has completed, has failed or was cancelled.

        ```text
        above   --1--2--|
        below   --1--2--|fn()
        ```

        Before that, the terminal signal is passed downstream, or the ``cancel()`` is passed
        upstream. ``fn`` is also called if a subscriber raises an exception (§2.13).

        Reactor: ``doFinally``; RxPY: ``finally_action``.

        Args:
            fn: A plain function. For its result and its errors see ``do_on_next``.
        """
        return self._observe("finally", fn)

    def log(self, name: str = "rstreams_fast", /, *, level: int = logging.DEBUG) -> Self:
        """Log each signal, each ``request`` and the ``cancel`` to ``logging.getLogger(name)``.

        ```text
        above   --1--2--|
        below   --1--2--|   on_subscribe(...), request(2), on_next(1), on_next(2), on_complete()
        ```

        The signals are passed on unchanged. If the logger does not log ``level`` when ``log`` is
        called, ``log`` returns a stream without logging, which takes no additional time.

        Reactor: ``log``; RxPY: ``do``.

        Args:
            name: The name of the logger.
            level: The level of the log records.

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
        """Give this stream a name, for errors, ``describe()`` and metrics.

        ```text
        above   --1--2--X
        below   --1--2--X   whose notes say: it passed 'orders'
        ```

        An error of this stream gets a note with the name. The same error object gets the note only
        once, even if there are several subscribers. In ``describe()`` the name has a line, and in
        ``metrics_of`` an entry, before the boundaries of this stream. The signals do not change.

        Reactor: ``name``, ``checkpoint``.

        Args:
            name: The name, a ``str``.

        Raises:
            TypeError: ``name`` is not a ``str``.
        """
        return with_part(self, Named(name))

    def on_discard(self, hook: Callable[[Any], object], /) -> Self:
        """Call ``hook(element)`` for each element that an operator of this stream drops.

        ```text
        above   --1--2--3--4--cancel
        filter  -----2-----4--
        hook      1     3         and the elements that wait in buffers
        ```

        The hook can release the resources of an element, such as a file. Each element upstream of
        ``on_discard`` is either delivered downstream, or passed to the hook once. The hook gets
        what has become of the element, for example the result of ``map``, or a whole batch.

        ``filter``, ``skip``, ``take_while``, ``switch_map`` and overflow strategies drop an element
        immediately. Elements in a buffer or a batch, and results of ``map_async``, are dropped when
        the stream ends in any way, or when their inner publisher ends. If a function such as that
        of ``map`` returns a new element, its argument is neither dropped nor delivered. But if the
        function raises, returns ``None`` or is cancelled, the hook gets the argument. If
        ``unbatch`` stops within a list, tuple, set, frozenset, deque or dict, or within the keys or
        values of a dict, the hook gets the rest. It does not get the rest of any other iterable,
        such as a generator or an array.

        A delivered element can still be in use: ``combine_latest`` and ``with_latest_from`` can
        deliver an element several times, and ``expand`` calls ``fn`` with an element that it has
        delivered.

        The hook is not called for the following elements: elements in publishers of other
        libraries; elements that several subscribers share, by ``multicast``, ``replay`` or a
        processor; elements that go into windows and groups, by ``window``, ``group_by`` or
        ``skip=`` of ``batch``; these windows and groups; and elements that were already delivered
        downstream of ``on_discard``, such as elements that ``iterate`` has requested in advance.
        ``on_discard`` costs some time for each element upstream.

        Reactor: ``doOnDiscard``.

        Args:
            hook: A plain function. Any thread may call it. Its exceptions go to
                ``sys.unraisablehook``.

        Raises:
            TypeError: ``hook`` cannot be called, is ``async``, or is a generator function.
        """
        check_sync("on_discard", "hook", hook, result_used=False)
        return with_part(self, OnDiscard(hook))

    def _observe(self, signal: str, fn: Callable[..., object]) -> Self:
        check_sync(f"do_{signal}", "fn", fn, result_used=False)
        return with_part(self, Peek(signal, fn))
