"""What a service may be given by all stages of a name together: ``limit=rs.Limit(...)``."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any, Final

from rstreams_fast._checks import check_choice
from rstreams_fast.calls.limits.leases import Address, serve

__all__ = ["Limit"]

SCOPES: Final = ("executor", "job")


@dataclass(frozen=True)
class Limit:
    """The most calls at once, and the most calls a second, of all stages with this ``name``.

    A call waits for its permit before its ``timeout`` begins, and holds none while it waits for its
    next attempt. Immutable; it may be given to any number of stages.

    Args:
        name: Stages with the same name share the limit. Its numbers must be the same for all stages
            at work: a stage with other numbers fails after 2 seconds. When those stages have ended,
            it obeys its own numbers at once.
        concurrency: Calls at once. Default: no bound but those of the stages.
        rate: Calls a second, evenly spaced. Default: no bound.
        burst: Calls that may follow each other at once after a pause.
        scope: ``"executor"``: all Python workers on a host that have the same temporary directory
            and user share it, of all jobs; the permits are locks of a file. ``"job"``: all workers
            of the job share it; the driver's process serves the permits, with Spark Connect that of
            the client, at an address that the executors must reach; the task fails where they
            cannot. The permits of a worker that is killed come back after 50 ms, when the kernel
            has ended its calls, too; after 1 s if the network ended its connection. A worker whose
            connection breaks connects again, for three minutes.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or the limit bounds nothing.
    """

    name: str
    concurrency: int | None = None
    rate: float | None = None
    burst: int = 1
    scope: str = "executor"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"Limit(name) must be a str, got {type(self.name).__name__}")
        if not self.name:
            raise ValueError("Limit(name) is empty")
        for word in ("concurrency", "burst"):
            value = getattr(self, word)
            if value is None and word == "concurrency":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Limit({word}) must be an int, got {type(value).__name__}")
            if not 1 <= value <= 1 << 20:
                raise ValueError(f"Limit({word}) must be from 1 to {1 << 20}, got {value}")
        if self.rate is not None:
            if isinstance(self.rate, bool) or not isinstance(self.rate, int | float):
                raise TypeError(f"Limit(rate) must be a number, got {type(self.rate).__name__}")
            if not (self.rate > 0 and math.isfinite(self.rate)):
                raise ValueError(f"Limit(rate) must be finite and > 0, got {self.rate}")
        elif self.concurrency is None:
            raise ValueError(f"Limit({self.name!r}) bounds nothing: give concurrency or rate")
        check_choice("Limit(scope)", self.scope, SCOPES)

    def describe(self) -> str:
        """Return a text for people: how many calls the service sees at most."""
        parts = []
        if self.concurrency is not None:
            parts.append(f"at most {self.concurrency} calls at once")
        if self.rate is not None:
            parts.append(f"{self.rate:g} a second, {self.burst} of them at once")
        where = "the whole job" if self.scope == "job" else "each executor's host"
        return f"limit {self.name!r}: {', '.join(parts)}, by {where}"

    def __getstate__(self) -> dict[str, Any]:
        """Take the driver's address along: this is how it gets to a worker."""
        if self.scope == "job" and "address" not in self.__dict__:
            address = serve(self.name, self.concurrency, self.rate, self.burst)
            return {**self.__dict__, "address": address}
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def served_at(self) -> Address:
        """Where the driver serves the permits of a job's limit."""
        with contextlib.suppress(KeyError):
            address: Address = self.__dict__["address"]
            return address
        return serve(self.name, self.concurrency, self.rate, self.burst)
