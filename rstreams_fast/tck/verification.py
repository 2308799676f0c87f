"""What every verification shares: settings, the wrapping of a test, and the list of its tests."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import (
    HookFailed,
    NotApplicable,
    OptionalNotMet,
    RuleBroken,
    Untested,
    raised_by,
)

__all__ = ["Test", "Verification", "list_tests", "rule"]

#: How the names of tests begin, and what follows when one fails. ``beyond`` marks the tests that
#: the official kit does not have; all others bear its names.
REQUIRED, OPTIONAL, STOCHASTIC, UNTESTED = "required", "optional", "stochastic", "untested"
BEYOND = "beyond"

_TEST = "__tck_test__"
#: Settings that may be 0; of all others that makes no sense.
_MAY_BE_ZERO = frozenset({"max_elements", "signals_after_cancel"})
_SUBSCRIBER = ("on_subscribe", "on_next", "on_error", "on_complete")
#: The methods without which there is nothing to judge, of what the hooks make.
_METHODS = {
    "create_publisher": ("subscribe",),
    "create_failed_publisher": ("subscribe",),
    "create_failing_publisher": ("subscribe",),
    "create_subscriber": _SUBSCRIBER,
    "create_whitebox_subscriber": _SUBSCRIBER,
    "create_failing_subscriber": _SUBSCRIBER,
    "create_identity_processor": (*_SUBSCRIBER, "subscribe"),
}
_Method = Callable[[Any], None]
V = TypeVar("V", bound="Verification")


@dataclass(frozen=True)
class Test:
    """One test of the kit."""

    __test__ = False  # pytest: not a class of tests

    name: str
    rule: str  #: such as ``"1.9"``; empty for a test of the hooks themselves
    kind: str  #: required, optional, stochastic or untested
    beyond: bool  #: not in the official kit
    what: str  #: what it checks
    look: str  #: where to look when it fails
    strict: bool = False  #: optional as to its hook only: with it, a failure is a breach


def rule(number: str, *, strict: bool = False) -> Callable[[_Method], _Method]:
    """Make a method a test of the rule ``number``. Its name says the kind, its docstring the rest.

    The first paragraph of the docstring is what it checks; one that begins with ``Look`` tells
    where to look when it fails. ``strict`` is for a test that is optional only in that its hook is.
    """

    def wrap(method: _Method) -> _Method:
        name = method.__name__
        first, _, rest = name.partition("_")
        beyond = first == BEYOND
        kind = OPTIONAL if beyond and rest.startswith(OPTIONAL) else first
        if kind not in (OPTIONAL, STOCHASTIC, UNTESTED):
            kind = REQUIRED
        paragraphs = inspect.cleandoc(method.__doc__ or "").split("\n\n")
        plain = [" ".join(paragraph.split()) for paragraph in paragraphs]
        look = next((text for text in plain if text.startswith("Look ")), "")
        test = Test(name, number, kind, beyond, plain[0], look.removeprefix("Look "), strict)

        @functools.wraps(method)
        def run(self: Verification) -> None:
            __tracebackhide__ = True
            self._conduct(test, method)

        setattr(run, _TEST, test)
        return run

    return wrap


def list_tests(verification: type[Verification]) -> list[Test]:
    """The tests of a verification: by rule, the official kit's first."""
    found: dict[str, Test] = {}
    for base in reversed(verification.__mro__):
        for name, value in vars(base).items():
            test = getattr(value, _TEST, None)
            if test is not None:
                found[name] = test
    return sorted(found.values(), key=lambda test: (_order(test), test.beyond))


def _order(test: Test) -> tuple[int, ...]:
    return tuple(int(part) for part in test.rule.split(".")) if test.rule else (0,)


class Verification:
    """The settings of every verification. One instance serves one test at a time."""

    #: Seconds that something which must happen may take. Only a broken implementation uses it up.
    timeout: float = 3.0
    #: Seconds without a signal that count as silence.
    silence: float = 0.05
    #: Seconds after which a whole test that does not return is given up as hung.
    limit: float = 30.0
    #: Whether to leave out the tests that find a breach only with some luck.
    skip_stochastic: bool = False
    #: Whether hooks, publishers and subscribers may only be called on a running asyncio loop. The
    #: kit then runs one in a thread of its own and makes every call there; hooks may be coroutine
    #: functions. Tests that call from several threads do not apply.
    asyncio_bound: bool = False

    #: The hook that makes a class a verification of something.
    essential_hook: ClassVar[str] = ""
    #: Every hook and every setting, for those who do not inherit.
    hooks: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = (
        "timeout",
        "silence",
        "limit",
        "skip_stochastic",
        "asyncio_bound",
    )

    environment: Environment

    def test_is_collected_by_the_plugin(self) -> None:
        """Fail under a pytest that would otherwise find no test in this class and say nothing."""
        raise RuntimeError(
            "the pytest plugin of rstreams_fast is not loaded, so that no test of "
            f"{type(self).__name__} is collected: run pytest with -p rstreams_fast.tck.plugin"
        )

    @classmethod
    def is_complete(cls) -> bool:
        """Whether the hook without which there is nothing to verify is there."""
        return bool(cls.essential_hook) and cls._has(cls.essential_hook)

    @classmethod
    def _has(cls, hook: str) -> bool:
        """Whether a hook comes from the user, not from the kit."""
        for base in cls.__mro__:
            if hook in vars(base):
                return not base.__module__.startswith(__package__ + ".")
        return False

    def check_settings(self) -> None:
        """Refuse a setting of the wrong type or size, which the implementation would be blamed for:
        ``HookFailed`` names it.
        """
        for name in self.settings:
            self._check_setting(name)

    def _check_setting(self, name: str) -> None:
        value = getattr(self, name)
        default = next(
            vars(base)[name]
            for base in type(self).__mro__
            if name in vars(base) and base.__module__.startswith(__package__ + ".")
        )
        if isinstance(default, bool):
            right, wanted = isinstance(value, bool), "True or False"
        elif isinstance(default, int):
            least = 0 if name in _MAY_BE_ZERO else 1
            right = isinstance(value, int) and not isinstance(value, bool) and value >= least
            wanted = f"an int >= {least}"
        else:
            right = isinstance(value, int | float) and not isinstance(value, bool)
            right = right and 0 < value <= threading.TIMEOUT_MAX
            wanted = "seconds, a finite number > 0"
        if not right:
            raise HookFailed(f"{name} must be {wanted}, is {show(value)}")

    # -- one test ----------------------------------------------------------------------------------

    def _conduct(self, test: Test, method: _Method) -> None:
        __tracebackhide__ = True
        self.check_settings()
        if test.kind == UNTESTED:
            raise Untested(test.what)
        if test.kind == STOCHASTIC and self.skip_stochastic:
            raise NotApplicable("skip_stochastic is set")
        raised = self._run_within_limit(test, method)
        if raised is None:
            return
        if isinstance(raised, RuleBroken):
            raised.test, raised.look = test.name, test.look
            raised.history = str(self.environment.history)
            if test.kind == OPTIONAL and not test.strict:
                raise OptionalNotMet(raised) from None
        raise raised

    def _run_within_limit(self, test: Test, method: _Method) -> BaseException | None:
        """Run in a thread of its own: a call that never returns is a failure then, not a hang."""
        raised: list[BaseException] = []

        def main() -> None:
            try:
                with self._environment():
                    method(self)
                    self.environment.verify()
            except BaseException as error:  # handed to the caller below
                raised.append(error)

        thread = threading.Thread(target=main, name="tck", daemon=True)
        thread.start()
        thread.join(self.limit)
        if thread.is_alive():
            frame = sys._current_frames().get(thread.ident or 0)
            stack = "".join(traceback.format_stack(frame)[-3:]) if frame else "?"
            return RuleBroken(
                test.rule,
                f"every call returns within {self.limit} s",
                f"one has not (if it is only slow, raise the setting limit):\n{stack.rstrip()}",
            )
        return raised[0] if raised else None

    @contextmanager
    def _environment(self) -> Iterator[None]:
        loop = None
        if self.asyncio_bound:
            from rstreams_fast.tck.loop import LoopThread

            loop = LoopThread()
        self.environment = Environment(timeout=self.timeout, silence=self.silence, loop=loop)
        try:
            yield
        finally:
            self.environment.release()
            if loop is not None:
                loop.close(self.timeout)

    # -- for the tests -----------------------------------------------------------------------------

    def _hook(self, name: str, *arguments: Any) -> Any:
        """What a hook returns; ``HookFailed`` if it raises, is a coroutine without a loop, or makes
        what cannot be judged.
        """
        try:
            made = self.environment.call(getattr(self, name), *arguments)
        except (Exception, SystemExit) as raised:
            raise HookFailed(
                f"{name}({', '.join(map(show, arguments))}) {raised_by(raised)}"
            ) from raised
        if inspect.iscoroutine(made):
            made.close()
            raise HookFailed(f"{name} is a coroutine function: set asyncio_bound = True")
        if made is not None:
            for method in _METHODS.get(name, ()):
                if not callable(getattr(made, method, None)):
                    raise HookFailed(f"{name} returned {show(made)}, which has no method {method}")
        return made

    def _needs_threads(self) -> None:
        if self.asyncio_bound:
            raise NotApplicable("asyncio_bound: all calls come from one loop")
