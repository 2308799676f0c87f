"""The entries of ends: what each gives of a list. The twin with ``_async`` gives the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.helpers import DEADLINE
from tests.operators.entry import Over, ignore, same


@dataclass(frozen=True)
class End:
    """An end of a stream of numbers."""

    method: str
    #: What it gives of a list.
    gives: Callable[[list[int]], Any]
    arguments: tuple[Any, ...] = ()
    #: What is done before it, and with its result.
    above: Over = same
    read: Callable[[Any], Any] = same
    has_twin: bool = True

    def call(self, stream: Any) -> Any:
        return getattr(self.above(stream), self.method)(*self.arguments)

    def call_twin(self, stream: Any) -> Any:
        return getattr(self.above(stream), f"{self.method}_async")(*self.arguments)


def _row(n: int) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"n": [n]})


#: By the public method.
ENDS: Final[dict[str, End]] = {
    end.method: end
    for end in (
        End("to_list", list),
        End("first", lambda xs: [*xs, -1][0], (-1,)),
        End("last", lambda xs: [-1, *xs][-1], (-1,)),
        End("count", len),
        End("any", any, (bool,)),
        End("all", all, (bool,)),
        End("run", ignore),
        End("to_numpy", list, read=lambda array: array.tolist()),
        End(
            "to_arrow",
            list,
            above=lambda stream: stream.map(_row),
            read=lambda table: [row["n"] for row in table.to_pylist()],
        ),
        End("for_each", ignore, (ignore,), read=lambda run: run.result(DEADLINE), has_twin=False),
        End("iterate", list, read=list, has_twin=False),
    )
}
