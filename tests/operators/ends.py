"""The entries of ends: what each gives of a list. The twin with ``_async`` gives the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.helpers import DEADLINE


def ignore(_element: object) -> None:
    """An element that nobody needs."""


@dataclass(frozen=True)
class End:
    """How it ends a stream, and what it gives of a list of numbers."""

    call: Callable[[Any], Any]
    gives: Callable[[list[int]], Any]
    #: What becomes of the result, of the twin's too.
    read: Callable[[Any], Any] = lambda result: result
    #: The call of the twin that runs on a loop; ``None`` if there is none.
    twin: str | None = ""


def _nothing(_xs: list[int]) -> None:
    return None


#: By the public method.
ENDS: Final[dict[str, End]] = {
    "to_list": End(lambda s: s.to_list(), list),
    "first": End(lambda s: s.first(-1), lambda xs: xs[0] if xs else -1),
    "last": End(lambda s: s.last(-1), lambda xs: xs[-1] if xs else -1),
    "count": End(lambda s: s.count(), len),
    "any": End(lambda s: s.any(bool), any),
    "all": End(lambda s: s.all(bool), all),
    "run": End(lambda s: s.run(), _nothing),
    "to_numpy": End(lambda s: s.to_numpy(dtype="i8"), list, lambda array: array.tolist()),
    "to_arrow": End(
        lambda s: s.map(_row).to_arrow(),
        list,
        lambda table: [row["n"] for row in table.to_pylist()],
    ),
    "for_each": End(lambda s: s.for_each(ignore).result(DEADLINE), _nothing, twin=None),
    "iterate": End(lambda s: list(s.iterate(prefetch=2)), list, twin=None),
}


def _row(n: int) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"n": [n]})
