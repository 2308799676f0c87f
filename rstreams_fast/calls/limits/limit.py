"""``Limit``: bounds the calls to a service, across all stages that name it in ``limit=``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rstreams_fast._checks import check_choice
from rstreams_fast.calls.functions import check_amount, check_positive
from rstreams_fast.calls.limits.leases import serve
from rstreams_fast.calls.limits.messages import Address
from rstreams_fast.calls.limits.pace import MOST_UNITS, Numbers, Quota

__all__ = ["Limit", "weights_of_key"]

SHARED: Final = ("executor", "job")
"""The scopes in which several processes share a limit."""

SCOPES: Final = ("process", *SHARED)

NO_KEYWORDS: Final[Mapping[str, Any]] = {}

SCOPE_TEXTS: Final = {
    "process": "each process",
    "executor": "each executor's host",
    "job": "the whole job",
}


@dataclass(frozen=True)
class Limit:
    """A bound on the calls to a service, which all functions and stages with this ``name`` share.

    A limit bounds the calls at the same time, the calls per second, and units that the service
    counts, such as tokens or bytes. A call waits for a permit before its ``timeout`` begins. A call
    that waits for its next attempt holds no permit. Immutable; any number of stages may use the
    same object.

    ```python
    import rstreams_fast as rsf

    models = rsf.Limit(
        "models", units={"tokens": rsf.per_minute(200_000)}, weigh=lambda text: len(text) / 4
    )


    @rsf.Policy(limit=models)
    async def summary_of(text):
        answer = {"text": text[:40], "tokens": 12}  # what a service says
        rsf.spent(tokens=answer["tokens"])
        return answer["text"]
    ```

    **Units.** Before each attempt, ``weigh`` estimates how many units the call costs. As time
    passes, the quota covers the costs of calls. A call starts when the quota has covered all
    earlier calls. Later calls wait until the quota has covered this call, too. So a call that costs
    more than the whole quota starts alone, and delays the later calls. The function reports the
    real cost by ``spent``, and the limit corrects the estimate.
    Without ``spent`` the estimate counts, but an attempt that raised ``RetryAfter`` costs nothing.
    By ``observed`` the function reports how many units the service has left.

    Args:
        name: Functions and stages with the same name share the limit. The newest limit of a name
            sets the numbers for all users of the name; running calls go on. With ``scope="job"``, a
            stage that has more permits than a lowered limit allows gives back up to a hundred a
            second.
        concurrency: The most calls at the same time. Default: each stage has only its own bound.
        rate: The most calls a second, evenly spaced, or ``per_minute(n)``. Default: no bound.
        burst: How many calls may start at once after a pause, in spite of ``rate``.
        scope: ``"executor"``: all Python workers of a host with the same user and temporary
            directory share the limit, in all jobs; the permits are locks of a file. ``"process"``:
            each process has its own limit, without a file. ``"job"``: all workers of the job share
            the limit. The driver's process grants the permits (with Spark Connect, the client's
            process). The executors must be able to reach its address, else the task fails. The
            permits of a killed worker are free after 50 ms. If the connection of a worker broke,
            its permits are free after 1 s; if the shared connection of a host's workers broke,
            after 5 s. A worker with a broken connection tries to connect for three minutes.
        units: The quota of each unit, such as ``{"tokens": per_minute(200_000)}``; at most six.
            After a pause, calls may spend a sixtieth of a quota at once.
        weigh: A function that estimates the units of a call from its arguments, without the client
            of ``using``. It returns a number if there is one unit, else a dict. A call with a list
            of keys costs the sum of its keys' estimates. Required with ``units``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or the limit bounds nothing.
    """

    name: str
    concurrency: int | None = None
    rate: float | Quota | None = None
    burst: int = 1
    scope: str = "executor"
    units: Mapping[str, Quota] | None = field(default=None, hash=False)
    weigh: Callable[..., Any] | None = field(default=None, repr=False)  # a repr could show secrets
    made: float = field(default_factory=time.time, init=False, repr=False, compare=False)

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
        if isinstance(self.rate, Quota):
            object.__setattr__(self, "rate", self.rate.amount / self.rate.seconds)
        elif self.rate is not None:
            check_positive("Limit(rate)", self.rate)
        self._check_units()
        if self.concurrency is None and self.rate is None and not self.units:
            raise ValueError(
                f"Limit({self.name!r}) bounds nothing: give concurrency, rate or units"
            )
        check_choice("Limit(scope)", self.scope, SCOPES)

    def _check_units(self) -> None:
        units: Any = {} if self.units is None else self.units
        if not isinstance(units, Mapping):
            raise TypeError(f"Limit(units) must be a dict, got {type(units).__name__}")
        for unit, quota in units.items():
            if not isinstance(unit, str) or not isinstance(quota, Quota):
                raise TypeError(
                    "Limit(units) must be names with per_second(...) or per_minute(...), "
                    f"got {unit!r}: {quota!r}"
                )
        if len(units) > MOST_UNITS:
            raise ValueError(f"Limit(units) must be at most {MOST_UNITS}, got {len(units)}")
        object.__setattr__(self, "units", {unit: units[unit] for unit in sorted(units)})
        if self.weigh is not None and not callable(self.weigh):
            raise TypeError(f"Limit(weigh) must be callable, got {type(self.weigh).__name__}")
        if bool(units) != (self.weigh is not None):
            raise ValueError("Limit(units) and Limit(weigh) need each other")

    @property
    def numbers(self) -> Numbers:
        """The numbers of the limit: concurrency, rate, burst and quotas."""
        rate: Any = self.rate
        quotas = tuple((self.units or {}).values())
        return Numbers(self.made, self.concurrency, rate, self.burst, quotas)

    def weights(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any] = NO_KEYWORDS
    ) -> dict[str, float]:
        """Return the estimated cost of a call in each unit.

        Raises:
            TypeError: ``weigh`` returned neither a number nor a dict of numbers.
            ValueError: ``weigh`` returned a number < 0, or the name of an unknown unit.
        """
        if self.weigh is None or not self.units:
            return {}
        found = self.weigh(*args, **kwargs)
        if not isinstance(found, Mapping):
            if len(self.units) > 1:
                raise TypeError(
                    f"Limit(weigh) must return a dict of {', '.join(self.units)}, "
                    f"got {type(found).__name__}"
                )
            found = {next(iter(self.units)): found}
        weights = dict.fromkeys(self.units, 0.0)
        for unit, weight in found.items():
            if unit not in weights:
                raise ValueError(
                    f"Limit(weigh) returned {unit!r}, which is none of {', '.join(weights)}"
                )
            weights[unit] = check_amount(f"Limit(weigh), {unit}", weight)
        return weights

    def describe(self) -> str:
        """Describe the limit in words: the most calls and units that the service sees."""
        parts = []
        if self.concurrency is not None:
            parts.append(f"at most {self.concurrency} calls at once")
        if self.rate is not None:
            parts.append(f"{self.rate:g} a second, {self.burst} of them at once")
        parts += [f"{quota.amount:.12g} {unit}{_period(quota)}" for unit, quota in self._quotas]
        return f"limit {self.name!r}: {', '.join(parts)}, by {SCOPE_TEXTS[self.scope]}"

    @property
    def _quotas(self) -> list[tuple[str, Quota]]:
        return list((self.units or {}).items())

    def __getstate__(self) -> dict[str, Any]:
        """Add the driver's address to a pickled limit of ``scope="job"``, for the workers."""
        if self.scope == "job" and "address" not in self.__dict__:
            return {**self.__dict__, "address": serve(self.name, self.numbers)}
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def served_at(self) -> Address:
        """The address at which the driver serves the permits of a limit with ``scope="job"``."""
        address: Address | None = self.__dict__.get("address")
        return serve(self.name, self.numbers) if address is None else address


def weights_of_key(limit: Limit, key: Any) -> dict[str, float]:
    """Return the estimated cost of a call with ``key`` (a value or a tuple of values), by unit."""
    return limit.weights(key if type(key) is tuple else (key,))


def _period(quota: Quota) -> str:
    return str(quota).removeprefix(f"{quota.amount:.12g}")
