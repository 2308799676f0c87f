"""What a service may be given by all stages of a name together: ``limit=rs.Limit(...)``."""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass
from typing import Any, Final

from rstreams_fast._checks import check_choice
from rstreams_fast.spark.leases import Address, serve

__all__ = ["Limit", "RetryAfter"]

SCOPES: Final = ("executor", "job")


class RetryAfter(Exception):
    """Raised by a user's function: the service asks for no more calls for so many ``seconds``.

    With ``retry``, whatever its ``on`` says, the call is made again, not before then; else it is a
    failure like any other. With a ``limit`` all calls under it wait, not just this one.
    """

    def __init__(self, seconds: float, *args: object) -> None:
        super().__init__(seconds, *args)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"seconds must be a number, got {type(seconds).__name__}")
        if not 0 <= seconds <= sys.float_info.max:
            raise ValueError(f"seconds must be finite and >= 0, got {seconds}")
        self.seconds = float(seconds)

    def __str__(self) -> str:
        said = ": ".join(map(str, self.args[1:]))
        return f"the service asks for no call for {self.seconds:g} s" + (said and f": {said}")


@dataclass(frozen=True)
class Limit:
    """At most ``concurrency`` calls at once, and ``rate`` a second, by all stages of this ``name``.

    ``name``: stages with the same name share the limit; its numbers must be the same everywhere,
    else the stage that comes later is a ``ValueError``.
    ``concurrency``: calls at once; default: no bound but those of the stages.
    ``rate``: calls a second, evenly spaced; default: no bound. ``burst``: calls that may follow
    each other at once after a pause; default 1.
    ``scope``: ``"executor"``: all Python workers on a host that have the same temporary directory
    and user, of all jobs; the permits are locks of a file. ``"job"``: all workers of the job; the
    driver's process serves the permits, with Spark Connect that of the client, at an address that
    the executors must reach; calls fail where they cannot. Those of a worker that is killed come
    back after 50 ms, when the kernel has ended its calls, too.

    A call waits for its permit before its ``timeout`` begins, and holds none while it waits for its
    next attempt. Immutable; may be given to any number of stages.
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
        """Return what the service will see at most, for people."""
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
