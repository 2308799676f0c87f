"""The keyword arguments of a ``Policy``, and the settings for the calls of one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rstreams_fast._checks import check_plain, is_coroutine_function
from rstreams_fast.calls.budget import CALLS, Budget
from rstreams_fast.calls.circuit import Circuit
from rstreams_fast.calls.functions import (
    MOST_CALLS,
    check_positive_int,
    check_seconds,
    id_of,
    label_of,
    lasting_name_of,
)
from rstreams_fast.calls.journal.journal import Journal
from rstreams_fast.calls.limits.limit import Limit
from rstreams_fast.calls.lists.batching import Batching
from rstreams_fast.calls.memory.cache import Cache
from rstreams_fast.calls.retry import PATIENCE_SECONDS, Retry

__all__ = ["DEFAULT_CONCURRENCY", "CallSettings", "PolicySettings"]

DEFAULT_CONCURRENCY: Final = 64
"""The default number of concurrent calls, in each partition."""


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The checked keyword arguments of a policy. The class ``Policy`` documents each argument."""

    timeout: float | None = None
    deadline: float | None = None
    retry: Retry | None = None
    limit: Limit | None = None
    circuit: Circuit | None = None
    budget: Budget | None = None
    cache: Cache | None = None
    journal: Journal | None = None
    patience: float = PATIENCE_SECONDS
    key: Callable[..., Any] | None = field(default=None, repr=False)  # repr may show a secret

    def __post_init__(self) -> None:
        kinds = {
            "retry": Retry,
            "limit": Limit,
            "circuit": Circuit,
            "budget": Budget,
            "cache": Cache,
            "journal": Journal,
        }
        for word, kind in kinds.items():
            value = getattr(self, word)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{word} must be a {kind.__name__}, got {type(value).__name__}")
        for word in ("timeout", "deadline"):
            if getattr(self, word) is not None:
                object.__setattr__(self, word, check_seconds(word, getattr(self, word)))
        object.__setattr__(self, "patience", check_seconds("patience", self.patience, zero=True))
        if self.key is not None:
            check_plain("key", self.key)

    @property
    def is_metered(self) -> bool:
        """Whether a ``Meter`` counts each attempt: for a budget, or for the units of a limit."""
        return self.budget is not None or (self.limit is not None and bool(self.limit.units))

    @property
    def units(self) -> tuple[str, ...]:
        """The sorted names of the units of the limit and the budget, without ``calls``."""
        of_limit = None if self.limit is None else self.limit.units
        of_budget = {} if self.budget is None else self.budget.units
        return tuple(sorted({*(of_limit or {}), *of_budget} - {CALLS}))

    @property
    def most_held(self) -> float:
        """After a ``RetryAfter``, calls under a limit stop for at most this number of seconds."""
        return self.patience or PATIENCE_SECONDS

    @property
    def remembers(self) -> bool:
        """Whether the policy has a cache or a journal, which may have the result of a call."""
        return self.cache is not None or self.journal is not None

    @property
    def outlives(self) -> bool:
        """Whether results are stored outside of the process, so that keys must be plain values."""
        in_file = self.cache is not None and self.cache.scope == "executor"
        return in_file or self.journal is not None


@dataclass(frozen=True, repr=False)
class CallSettings:
    """A function, its policy, and the maximum number of its concurrent calls."""

    fn: Callable[..., Any]
    policy: PolicySettings = field(default_factory=PolicySettings)
    concurrency: int = DEFAULT_CONCURRENCY
    batch: Batching | None = None
    as_outcomes: bool = False
    """Whether each call returns an ``Outcome``, even if the call fails."""
    auto: bool = False
    """Whether the number of concurrent calls adapts to the service, up to ``concurrency``."""
    is_async: bool = field(init=False)
    label: str = field(init=False)
    called_id: str = field(init=False)
    """The id of ``fn`` in cache keys: a unique id, or the name of ``fn`` if the cache has a name. A
    stage adds the id of the factory that makes its client."""

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"fn must be callable, got {type(self.fn).__name__}")
        check_positive_int("concurrency", self.concurrency, MOST_CALLS)
        if self.batch is not None and not isinstance(self.batch, Batching):
            raise TypeError(f"batch must be an int or a Batching, got {type(self.batch).__name__}")
        object.__setattr__(self, "is_async", is_coroutine_function(self.fn))
        object.__setattr__(self, "label", label_of(self.fn))
        cache = self.policy.cache
        named = None if cache is None or cache.name is None else lasting_name_of(self.fn)
        object.__setattr__(self, "called_id", named or id_of(self.fn))
        for word in ("timeout", "deadline"):
            if getattr(self.policy, word) is not None and not self.is_async:
                raise ValueError(
                    f"{word} needs an async fn: {self.label} runs on a thread, "
                    "and a thread cannot be stopped; set the time-out of the client it uses"
                )

    def __repr__(self) -> str:
        # Do not show the repr of fn: the repr of a partial shows its arguments.
        return f"{type(self).__name__}({self.label})"

    @property
    def is_guarded(self) -> bool:
        """Whether calls need the wrapper ``guarded``, for example for a time-out or for retries."""
        policy = self.policy
        words = (policy.timeout, policy.retry, policy.circuit, policy.deadline)
        more = self.auto or self.as_outcomes or policy.is_metered
        return more or any(word is not None for word in words)

    @property
    def makes_fewer_calls(self) -> bool:
        """Whether there may be fewer calls than rows: with lists of keys, a cache or a journal."""
        return self.batch is not None or self.policy.remembers

    @property
    def running_rows(self) -> int:
        """The maximum number of rows in running calls, and in lists for the next calls."""
        return self.concurrency if self.batch is None else 2 * self.concurrency * self.batch.rows
