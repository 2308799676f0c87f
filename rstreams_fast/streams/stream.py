"""``Stream``: a publisher with operators. It describes work that ``subscribe`` starts.

``Stream`` inherits most methods from the classes in the folder ``methods``, which has a file for
each heading of ``docs/reference/stream.md``. This module has only the methods for a whole stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from rstreams_fast._checks import check_sync, safe_repr
from rstreams_fast.streams.engine.assembly import Source
from rstreams_fast.streams.engine.describe import describe
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.methods.calls import CallMethods
from rstreams_fast.streams.methods.combining import CombiningMethods
from rstreams_fast.streams.methods.elements import ElementMethods
from rstreams_fast.streams.methods.ends import EndMethods
from rstreams_fast.streams.methods.inner import InnerMethods
from rstreams_fast.streams.methods.observers import ObserverMethods
from rstreams_fast.streams.methods.parts import PartMethods
from rstreams_fast.streams.methods.recovery import RecoveryMethods
from rstreams_fast.streams.methods.sharing import SharingMethods
from rstreams_fast.streams.methods.threads import ThreadMethods
from rstreams_fast.streams.methods.timing import TimeMethods

__all__ = ["Group", "Stream"]

T_co = TypeVar("T_co", covariant=True)
K_co = TypeVar("K_co", covariant=True)
U = TypeVar("U")


class Stream(
    Pipeline[T_co],
    ElementMethods[T_co],
    CallMethods[T_co],
    InnerMethods[T_co],
    CombiningMethods[T_co],
    PartMethods[T_co],
    TimeMethods[T_co],
    RecoveryMethods[T_co],
    ThreadMethods[T_co],
    SharingMethods[T_co],
    ObserverMethods[T_co],
    EndMethods[T_co],
):
    """A publisher with operators.

    A stream is immutable: every operator returns a new stream. Any number of subscribers may
    subscribe to each stream (§1.11). The source is read anew for each subscriber, and not before
    ``subscribe``.

    Operators that handle one element after another, such as ``map``, are *stages*. All other
    operators, such as ``publish_on``, are *boundaries*. Stages without a boundary between them run
    as one loop. If the source can be iterated, the loop runs on the thread that calls ``subscribe``
    or ``request`` (§3.10). ``subscribe_on`` and ``publish_on`` choose another thread. Signals are
    serial (§1.3), demand is never exceeded (§1.1), and any thread may call the methods of a
    subscription.

    ``None`` is not an element: a stage function that returns ``None`` ends the stream with a
    ``TypeError`` that names the stage. ``on_error`` signals an ``Exception`` of a user's function.
    ``KeyboardInterrupt``, ``SystemExit`` and ``GeneratorExit`` cancel upstream and propagate to the
    caller. Subscriptions belong to their process: they cannot be pickled, and do not work in the
    child of a fork. Subinterpreters are not supported.

    To make a stream, call a function of the package, such as ``range_`` or ``from_iterable``:

    ```python
    import rstreams_fast as rsf

    squares = rsf.range_(1_000_000).map(lambda n: n * n).publish_on(prefetch=256)
    print(squares.take(4).to_list())  # [0, 1, 4, 9]
    ```
    """

    __slots__ = ()

    def transform(self, fn: Callable[[Self], U], /) -> U:
        """Return ``fn(self)``, so that a chain of methods can include a function of the user.

        ``transform`` calls ``fn`` once, before it returns, and not for each subscriber.

        Reactor: ``transform``; RxPY: ``pipe``.

        Args:
            fn: A function with one parameter, which is this stream.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("transform", "fn", fn)
        return fn(self)

    def describe(self) -> str:
        """Return a text that describes how the stream executes, for debugging.

        The text describes the source and all operators, in their order. It says how many elements
        an operator such as ``publish_on`` may hold. For operators such as ``map``, which handle one
        element after another, it says on which thread they run, and whether as a loop in C. If the
        source combines other streams, indented lines after the source describe these streams.
        """
        return describe(self.source, self.parts)

    def __repr__(self) -> str:
        return f"<Stream of {self.source.describe()}, {len(self.parts)} operators>"

    # The classes in the folder ``methods`` make streams by ``_stream_of`` and ``_group_of``. Their
    # modules cannot import ``Stream``, because this module imports these modules.

    @staticmethod
    def _stream_of(source: Source) -> Stream[Any]:
        return Stream(source)

    @staticmethod
    def _group_of(source: Source) -> Group[Any, Any]:
        return Group(source)


class Group(Stream[T_co], Generic[K_co, T_co]):
    """A stream, made by ``group_by``, of the elements with one key. It may have one subscriber.

    ```python
    import rstreams_fast as rsf

    parities = rsf.range_(5).group_by(lambda n: n % 2)
    pairs = parities.flat_map(lambda group: group.map(lambda n: (group.key, n)))
    print(pairs.to_list())  # [(0, 0), (0, 2), (0, 4), (1, 1), (1, 3)]
    ```
    """

    __slots__ = ()

    @property
    def key(self) -> K_co:
        """The result of the function ``key`` of ``group_by`` for the elements of this group."""
        source: Any = self.source
        key: K_co = source.publisher.key
        return key

    def __repr__(self) -> str:
        return f"<Group {safe_repr(self.key)} of {self.source.describe()}>"
