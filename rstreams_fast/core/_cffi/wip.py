"""``Wip`` (lets one thread at a time work) and ``Latch`` (a flag), each on an atomic C integer."""

from __future__ import annotations

from typing import Any, NoReturn

from rstreams_fast._checks import check_bool, check_count
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._common import refuse_pickle


class Wip:
    __slots__ = ("__weakref__", "_entered")

    def __init__(self, held: bool = False) -> None:
        self._entered: Any = ffi.new("rsf_demand *")
        lib.rsf_demand_init(self._entered, int(check_bool("held", held)))

    def enter(self) -> bool:
        return lib.rsf_demand_request(self._entered, 1) == 0

    @property
    def missed(self) -> int:
        return lib.rsf_demand_load(self._entered)

    def leave(self, missed: int = 1, /) -> bool:
        missed = check_count("missed", missed)
        left = lib.rsf_demand_fulfil(self._entered, min(missed, UNBOUNDED))
        if left == lib.RSF_EXCEEDED:
            raise RuntimeError(f"leave({missed}): only {self.missed} have entered")
        return left == 0

    def __repr__(self) -> str:
        return f"<Wip {self.missed}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)


class Latch:
    __slots__ = ("__weakref__", "_state")

    def __init__(self) -> None:
        self._state: Any = ffi.new("rsf_demand *")
        lib.rsf_demand_init(self._state, 0)

    def win(self) -> bool:
        return lib.rsf_demand_terminate(self._state) >= 0

    @property
    def won(self) -> bool:
        return lib.rsf_demand_load(self._state) < 0

    def __repr__(self) -> str:
        return f"<Latch {'won' if self.won else 'open'}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
