"""``DemandCounter`` on the C type ``rsf_demand``, one atomic integer."""

from __future__ import annotations

from typing import Any, NoReturn

from rstreams_fast._checks import check_count, safe_repr
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._common import CANCELLED, TERMINATED, refuse_pickle
from rstreams_fast.errors import DemandExceededError, check_request


class DemandCounter:
    __slots__ = ("__weakref__", "_demand")

    def __init__(self, initial: int = 0) -> None:
        self._demand: Any = ffi.new("rsf_demand *")
        lib.rsf_demand_init(self._demand, min(check_count("initial", initial), UNBOUNDED))

    def request(self, n: int, /) -> int:
        if type(n) is not int or not 0 < n <= UNBOUNDED:
            before = lib.rsf_demand_load(self._demand)
            if before < 0:
                return before
            n = min(check_request(n), UNBOUNDED)
        return lib.rsf_demand_request(self._demand, n)

    def fulfil(self, n: int = 1, /) -> int:
        n = check_count("n", n)
        left = lib.rsf_demand_fulfil(self._demand, min(n, UNBOUNDED))
        if left == lib.RSF_EXCEEDED:
            raise DemandExceededError(
                f"§1.1: {safe_repr(n)} elements delivered, only {self.pending} were requested"
            )
        return left

    def cancel(self) -> bool:
        return lib.rsf_demand_cancel(self._demand) >= 0

    def terminate(self) -> bool:
        return lib.rsf_demand_terminate(self._demand) >= 0

    @property
    def value(self) -> int:
        return lib.rsf_demand_load(self._demand)

    @property
    def pending(self) -> int:
        return max(self.value, 0)

    @property
    def cancelled(self) -> bool:
        return self.value == CANCELLED

    @property
    def terminated(self) -> bool:
        return self.value == TERMINATED

    def __repr__(self) -> str:
        value = self.value
        words = {CANCELLED: "cancelled", TERMINATED: "terminated", UNBOUNDED: "unbounded"}
        return f"<DemandCounter {words.get(value, value)}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
