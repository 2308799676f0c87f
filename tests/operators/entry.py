"""What an entry of the table says, and the words it is said in.

An entry is a class: its fields are the arguments of the operator, its methods say what the operator
makes of a list, and how it is built over a stream.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, dataclass_transform

from hypothesis import strategies as st

import rstreams_fast as rsf

INFINITE: Final = float("inf")
#: Seconds that never pass in a test.
LONG: Final = 1000.0

Items = Iterator[Any]
Function = Callable[..., Any]
Over = Callable[[Any], Any]


def snake(name: str) -> str:
    """Return the name of a class as functions are named: ``flat_map`` for ``FlatMap``."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)[1:]


class Boom(Exception):
    """What an injected failure raises."""


def digest(value: Any) -> int:
    """A number for any element, so that every function takes every element."""
    return value if isinstance(value, int) else sum(map(digest, value)) + len(value)


def raising(fn: Function, at: int | None, where: str) -> Function:
    """``fn``, which raises at its call number ``at`` (from 0) and at no other."""
    calls = itertools.count()

    def call(*args: Any) -> Any:
        if next(calls) == at:
            raise Boom(where)
        return fn(*args)

    return call


def late(parts: Iterable[Items]) -> Items:
    """All items of all parts, and then the error of those that failed."""
    failures = []
    try:
        for part in parts:
            try:
                yield from part
            except Boom as boom:
                failures.append(boom)
    except Boom as boom:  # the iterator of the parts failed
        failures.append(boom)
    if failures:
        raise failures[0]


# -- functions of a user's, found by name, so that a description can be pickled --------------------
def same(x: Any) -> Any:
    return x


def yes(_x: object) -> bool:
    return True


def ignore(*_args: object) -> None:
    """An observer."""


def equal(_x: object) -> str:
    return "equal"


def one(x: Any) -> Any:
    """A publisher for an element."""
    return rsf.from_iterable((x,))


def nothing(_x: object) -> Any:
    """An empty publisher for an element."""
    return rsf.empty()


def first(elements: Any) -> Any:
    return elements[0]


def second(elements: Any) -> Any:
    return elements[1]


def latter(_before: Any, x: Any) -> Any:
    return x


def weigh(_x: object) -> int:
    return 1


class NoStream:
    """A publisher of which ``from_publisher`` knows nothing."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def subscribe(self, subscriber: Any, /) -> None:
        self._stream.subscribe(subscriber)


# -- how it is used --------------------------------------------------------------------------------

#: Checks of the kit that do not apply. Cold streams keep no list of their subscribers: each
#: subscription is a run of its own.
NO_REGISTRY: Final[tuple[str, ...]] = ("beyond_spec110_*",)
#: Work side by side gives elements in any order, another one for each subscriber.
NO_ORDER: Final[tuple[str, ...]] = (*NO_REGISTRY, "optional_spec111_multicast_*")
#: The source looks at its end only when it is asked for an element.
NO_LOOK_AHEAD: Final[tuple[str, ...]] = (*NO_REGISTRY, "beyond_spec105_onComplete*")


@dataclass(frozen=True)
class Use:
    """One way to put the operator over any stream, so that it gives one result for each element."""

    over: Over
    #: Makes the elements of the results again.
    undo: Over = same
    #: A publisher of so many elements, in which the operator has more to do than ``over``.
    of: Callable[[int], Any] | None = None
    #: Puts the stream within the operator: as its other publisher, or as an inner one.
    within: Over | None = None
    #: Whether other threads work, or wait for a clock, so that results come later.
    threads: bool = False
    #: Checks of the kit that do not apply.
    not_claimed: tuple[str, ...] = NO_REGISTRY
    #: Whether it delivers nothing before its upstream has ended.
    delivers_at_end: bool = False
    #: Whether it takes the kit more than ten seconds.
    slow: bool = False
    #: Whether it may stand upon itself 150 times, and be pickled: not with what a test adds to it.
    chains: bool = True
    #: Whether it takes elements of a publisher that has not called ``on_subscribe``.
    takes_early: bool = False

    def same(self, stream: Any) -> Any:
        """The operator, and then what makes the elements again."""
        return self.undo(self.over(stream))


# -- the entry of an operator ----------------------------------------------------------------------

#: All entries, in the order in which they stand in the files.
OPERATORS: Final[list[type[Op]]] = []


@dataclass_transform(frozen_default=True)
class Op:
    """An operator. A subclass is an entry of the table, and a frozen dataclass.

    Its flags stand behind its base: ``class Merge(Op, keeps_order=False)``.
    """

    #: The public methods that it tells of; by default the one that has its name.
    methods: ClassVar[tuple[str, ...]] = ()
    #: The part of the engine that carries it, by the class that carries a subscription.
    engine: ClassVar[str] = "FusedRun"
    #: The ways to put it over any stream, by name; ``use`` if there is one way.
    uses: ClassVar[dict[str, Use]] = {}
    use: ClassVar[Use | None] = None
    #: How hypothesis draws the fields.
    draws: ClassVar[dict[str, Any]] = {}
    #: Uses that give fewer elements than they get, for the kit of subscribers.
    above: ClassVar[dict[str, Over]] = {}

    #: Whether random pipelines draw it. An entry without a model is for the other suites.
    modelled: ClassVar[bool] = True
    #: Whether the order of what comes out is the order of what goes in.
    keeps_order: ClassVar[bool] = True
    #: Whether what comes out depends on the order of what goes in.
    needs_order: ClassVar[bool] = True
    #: Whether errors may overtake elements here, and elements may be asked for ahead.
    is_boundary: ClassVar[bool] = True
    #: What the function of the user's does, if it calls one: where failures are injected.
    fn: ClassVar[Function]
    #: Whether it goes on where what is above it has failed.
    recovers: ClassVar[bool] = False
    #: Whether it subscribes to its upstream more than once.
    resubscribes: ClassVar[bool] = False
    #: Whether it may end well although a publisher beside it fails, or fail although it might have
    #: ended well: whichever is noticed first.
    races: ClassVar[bool] = False
    #: Whether it shares no element and delivers none twice: with a hook each is accounted for.
    accounted: ClassVar[bool] = True
    #: Whether it asks for all there is, however little is wanted of it.
    asks_for_all: ClassVar[bool] = False
    #: Whether it works on elements one by one, so that ``on_error_continue`` may leave one out.
    one_by_one: ClassVar[bool] = False
    #: Whether several subscribers share one subscription upstream.
    shared: ClassVar[bool] = False

    def __init_subclass__(cls, **flags: object) -> None:
        for name, value in flags.items():
            assert name in Op.__annotations__, f"{cls.__name__}: there is no flag {name}"
            setattr(cls, name, value)
        dataclasses.dataclass(frozen=True)(cls)
        if cls.__name__.startswith("_"):
            return
        OPERATORS.append(cls)
        if cls.use is not None:
            cls.uses = {cls.__name__: cls.use}
        if "methods" not in vars(cls):
            cls.methods = (snake(cls.__name__),)

    # -- what it says ------------------------------------------------------------------------------

    def model(self, items: Items, call: Function) -> Items:
        """What becomes of the items. ``call(fn)`` makes a function of ``fn`` that may fail."""
        return items

    def model_anew(self, upstream: Callable[[], Items], call: Function) -> Items:
        """The same of what can be iterated again."""
        return self.model(upstream(), call)

    def asks(self, wanted: float, items: list[Any]) -> float:
        """How many of ``items`` may be asked for, at most, when so many results are wanted."""
        return INFINITE if self.asks_for_all else wanted + getattr(self, "prefetch", 0)

    @classmethod
    def drawn(cls) -> st.SearchStrategy[Any]:
        return st.builds(cls, **cls.draws)

    # -- how it is built ---------------------------------------------------------------------------

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        """The operator over ``stream``, with the functions and elements that ``bench`` watches; by
        default its method, called with its function and its fields.
        """
        functions = [bench.function(index, self.fn)] if hasattr(self, "fn") else []
        return getattr(stream, self.methods[0])(*functions, *vars(self).values())

    # -- what it stands beside ---------------------------------------------------------------------

    @property
    def beside(self) -> tuple[Any, ...]:
        """The other sources that it subscribes to."""
        return (*getattr(self, "others", ()), *([self.other] if hasattr(self, "other") else []))

    def with_others(self, change: Callable[[Any], Any]) -> Op:
        """The same beside other sources."""
        if hasattr(self, "others"):
            return dataclasses.replace(self, others=tuple(map(change, self.others)))  # type: ignore[call-arg]
        if hasattr(self, "other"):
            return dataclasses.replace(self, other=change(self.other))  # type: ignore[call-arg]
        return self

    def on_the_caller(self) -> Op:
        """The like of it, all of whose work is done by the thread that subscribes or asks."""
        if hasattr(self, "executor"):
            return dataclasses.replace(self, executor="caller")  # type: ignore[call-arg]
        if hasattr(self, "kind"):
            return dataclasses.replace(self, kind=on_the_caller(self.kind))  # type: ignore[call-arg]
        return self

    def splits_a_run(self, index: int) -> bool:
        """Whether one loop cannot do it together with what is above it."""
        return self.is_boundary


class _Fused(Op, is_boundary=False):
    """An operator within a run: one element at a time, nothing held or asked ahead."""


def on_the_caller(kind: str) -> str:
    """The kind of source that works on the thread that asks."""
    return "list" if kind == "async" else kind.replace("-thread", "")


# -- draws that several entries share --------------------------------------------------------------
SMALL = st.integers(0, 6)
POSITIVE = st.integers(1, 6)
SEEDS = st.none() | st.integers(0, 9)
PREFETCHES = st.sampled_from([1, 2, 4, 16])
EXECUTORS = st.sampled_from(
    ["own", "pool", "loop", "caller", "refusing:0", "refusing:1", "refusing:3"]
)
INNER = st.sampled_from(["list", "range", "foreign", "foreign-late", "foreign-thread", "create"])
