"""The base of all verifications: checks, grades, settings, and the code that runs a check."""

from __future__ import annotations

import ctypes
import functools
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show, show_call
from rstreams_fast.tck.outcome import (
    RAISED,
    CheckAbandoned,
    HookFailed,
    NotApplicable,
    RuleBroken,
    describe_raised,
)

__all__ = ["GRADES", "PYTHON", "SPEC", "STRICT", "Check", "Verification", "check", "list_checks"]

#: The grades of checks: see ``GRADES``.
SPEC, PYTHON, STRICT = "spec", "python", "strict"
GRADES: Final = (SPEC, PYTHON, STRICT)
"""The grades of checks. ``spec``: the specification demands what is checked. ``python``: the demand
follows from how Java's types are translated to Python. ``strict``: a careful implementation passes
the check, even if the other side has broken a rule first.
"""

_CHECK = "__tck_check__"
_SUBSCRIBER = ("on_subscribe", "on_next", "on_error", "on_complete")
#: Maps the name of a hook to the methods that the result of the hook must have.
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


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= threading.TIMEOUT_MAX


def _at_least(least: int) -> tuple[str, Callable[[Any], bool]]:
    return f"an int >= {least}", (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least
    )


_SECONDS = ("seconds, a finite number > 0", _is_seconds)
_FLAG = ("True or False", lambda value: isinstance(value, bool))
#: Maps the name of a setting to its valid values: in words, and as a function that tests a value.
_SETTINGS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "timeout": _SECONDS,
    "silence": _SECONDS,
    "responsivity": _SECONDS,
    "fail_on": (f"one of {', '.join(GRADES)}", lambda value: value in GRADES),
    "not_claimed": ("a tuple of names of checks", _is_names),
    "asyncio_bound": _FLAG,
    "coordinated_emission": _FLAG,
    "delivers_at_end": _FLAG,
    "max_elements": _at_least(0),
    "signals_after_cancel": _at_least(0),
    "max_supported_subscribers": _at_least(1),
    "bounded_depth": _at_least(1),
    "buffer_size": _at_least(1),
}


@dataclass(frozen=True)
class Check:
    """The description of one check.

    Attributes:
        name: The name of the check in the official Java kit, or ``beyond_...`` for a check that the
            official kit lacks.
        rule: The number of the rule, such as ``"1.9"``.
        grade: One of ``GRADES``.
        title: The sentence that says what is checked.
        look: Where to look when the check fails.
        needs: Names of properties, such as ``"a request"``, that earlier checks must establish.
        establishes: The name of the property that this check establishes if it passes.
    """

    name: str
    rule: str
    grade: str
    title: str
    look: str
    needs: tuple[str, ...]
    establishes: str

    @property
    def is_official(self) -> bool:
        """Whether the official kit has this check, under the same name."""
        return not self.name.startswith("beyond_")


def check(
    rule: str, grade: str = SPEC, *, needs: str = "", establishes: str = ""
) -> Callable[[_Method], _Method]:
    """Make a method a check of a rule.

    The docstring of the method says what it checks and, from ``Look at`` on, where to look when it
    fails.

    Args:
        rule: The number of the rule, such as ``"1.9"``.
        grade: One of ``GRADES``.
        needs: Names of properties that other checks establish, separated by commas. If such a check
            has failed, this check is not run, because it would fail, too.
        establishes: The name of the property that this check establishes if it passes.

    Returns:
        The decorator.
    """

    def wrap(method: _Method) -> _Method:
        title, _, look = " ".join((method.__doc__ or "").split()).partition(" Look at ")
        needed = tuple(filter(None, needs.split(", ")))
        row = Check(method.__name__, rule, grade, title, look, needed, establishes)

        @functools.wraps(method)
        def run(self: Verification) -> None:
            __tracebackhide__ = True
            self._run_check(row, method)

        setattr(run, _CHECK, row)
        return run

    return wrap


def list_checks(verification: type[Verification]) -> list[Check]:
    """Return the checks of a verification, in the order in which to run them.

    Checks that establish a property come first. The other checks are sorted by rule.

    Args:
        verification: The class of a verification.
    """
    found: dict[str, Check] = {}
    for base in reversed(verification.__mro__):
        for name, value in vars(base).items():
            row: Check | None = getattr(value, _CHECK, None)
            if row is not None:
                more = verification.more_needs.get(name, ())
                found[name] = replace(row, needs=row.needs + more)
    by_property = {row.establishes: row for row in found.values() if row.establishes}

    def depth(row: Check) -> int:
        return 1 + max((depth(by_property[need]) for need in row.needs), default=0)

    def sort_key(row: Check) -> tuple[Any, ...]:
        number = tuple(map(int, row.rule.split(".")))
        return (not row.establishes, depth(row) if row.establishes else 0, number, row.name)

    return sorted(found.values(), key=sort_key)


def _stop(thread: threading.Thread) -> None:
    """End the thread of an abandoned check, because a thread in a loop slows down other checks.

    A blocked thread is not ended. It is a daemon, so the process can end without it.
    """
    if thread.ident is not None and thread.is_alive():
        ident = ctypes.c_ulong(thread.ident)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(CheckAbandoned))


class Verification:
    """The base of all verifications, with their settings. An instance runs one check at a time."""

    timeout: float = 3.0
    """The kit waits at most this many seconds for an event that must come. Only a broken
    implementation makes the kit wait so long.
    """
    silence: float = 0.05
    """After this many seconds without a signal, the kit assumes that no signal will come."""
    fail_on: str = SPEC
    """The grade up to which a broken rule is a failure: ``spec``, ``python`` or ``strict``."""
    not_claimed: tuple[str, ...] = ()
    """Names of ``strict`` checks that do not apply; ``*`` and ``?`` are wildcards. The
    specification does not demand these checks, and the implementation does not claim to pass them.
    """
    asyncio_bound: bool = False
    """Whether hooks, publishers and subscribers may only be called on a running asyncio loop. If
    so, the kit runs a loop in its own thread, and makes every call there. Hooks may be coroutine
    functions. Checks that make calls from several threads do not apply.
    """

    essential_hook: ClassVar[str] = ""
    """The name of the hook that a subclass must define. This hook makes the object to verify."""
    hooks: ClassVar[tuple[str, ...]] = ()
    """The names of all hooks. ``rstreams-fast tck`` looks for these names in any object."""
    settings: ClassVar[tuple[str, ...]] = (
        "timeout",
        "silence",
        "fail_on",
        "not_claimed",
        "asyncio_bound",
    )
    """The names of all settings. ``rstreams-fast tck`` looks for these names in any object."""
    more_needs: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Maps the name of a check to properties that it needs in addition to its own ``needs``."""

    environment: Environment

    def test_is_collected_by_the_plugin(self) -> None:
        """Fail if the pytest plugin is not loaded, because no check would be run."""
        raise RuntimeError(
            "the pytest plugin of rstreams_fast is not loaded, so no check of "
            f"{type(self).__name__} is collected: run pytest with -p rstreams_fast.tck.plugin"
        )

    @classmethod
    def is_complete(cls) -> bool:
        """Return whether the class defines its ``essential_hook``."""
        return bool(cls.essential_hook) and cls._defines(cls.essential_hook)

    @classmethod
    def _defines(cls, hook: str) -> bool:
        """Return whether a class of the user defines ``hook``, rather than a class of the kit."""
        return not next(base for base in cls.__mro__ if hook in vars(base)).__module__.startswith(
            f"{__package__}."
        )

    def check_settings(self) -> None:
        """Check the settings, because a wrong setting might make a correct implementation fail.

        Raises:
            HookFailed: A setting is wrong; the message names it.
        """
        for name in self.settings:
            value = getattr(self, name)
            wanted, is_right = _SETTINGS[name]
            if not is_right(value):
                raise HookFailed(f"{name} must be {wanted}, is {show(value)}")

    # -- running one check -------------------------------------------------------------------------

    def _run_check(self, row: Check, method: _Method) -> None:
        __tracebackhide__ = True
        self.check_settings()
        if row.grade == STRICT and any(fnmatchcase(row.name, each) for each in self.not_claimed):
            raise NotApplicable("not_claimed names it")
        raised = self._run_in_a_thread(row, method)
        if isinstance(raised, RuleBroken):
            raised.check, raised.grade = row.name, row.grade
            raised.title, raised.look = row.title, row.look
            raised.done = self.environment.history.call_summary()
            raised.history = str(self.environment.history)
        if raised is not None:
            raise raised

    def _run_in_a_thread(self, row: Check, method: _Method) -> BaseException | None:
        """Run a check in a new thread. Return the exception of the check, or ``None``.

        The check's thread might never end. So the check is abandoned if elements come without end,
        or if no call or signal happens for longer than the longest wait of the kit.
        """
        self._make_environment(row.rule)
        environment = self.environment
        raised: list[BaseException] = []

        def main() -> None:
            try:
                try:
                    method(self)
                    environment.verify()
                finally:
                    environment.release()
            except BaseException as error:  # _run_in_a_thread() returns the exception
                raised.append(error)
            finally:
                environment.ended.set()

        switch_interval = sys.getswitchinterval()
        thread = threading.Thread(target=main, name="tck", daemon=True)
        thread.start()
        longest = min(3 * self.timeout, threading.TIMEOUT_MAX - 2) + 1
        idle = 0.0
        while not environment.ended.wait(longest - idle + 0.01):
            idle = time.monotonic() - environment.history.last_entry_at
            if idle > longest:
                frame = sys._current_frames().get(thread.ident or 0)
                stack = "".join(traceback.format_stack(frame)[-3:]) if frame else "?"
                environment.abandon(
                    row.rule,
                    f"every call returns within {longest:g} s (raise timeout if yours is slow)",
                    f"this call has not returned:\n{stack.rstrip()}",
                )
        if environment.abandoned:
            _stop(thread)
            # A blocked thread may never leave ``frequent_switches``, which restores the interval.
            sys.setswitchinterval(switch_interval)
            return environment.first_flagged()
        thread.join()
        if raised and isinstance(raised[0], RAISED) and not isinstance(raised[0], Exception):
            return HookFailed(f"the implementation {describe_raised(raised[0])}")
        return raised[0] if raised else None

    def _make_environment(self, rule: str) -> None:
        self.environment = Environment(
            rule=rule, timeout=self.timeout, silence=self.silence, on_loop=self.asyncio_bound
        )

    # -- helpers of the checks ---------------------------------------------------------------------

    def _hook(self, name: str, *arguments: Any) -> Any:
        """Call the hook ``name``. Return the result of the hook, or ``None``.

        Raises ``HookFailed`` if the hook raises, if its result lacks a method, or if the hook is a
        coroutine function and ``asyncio_bound`` is false.
        """
        made = self._call_user("", self, name, *arguments)
        if made is not None:
            for method in _METHODS.get(name, ()):
                if not callable(getattr(made, method, None)):
                    raise HookFailed(f"{name} returned {show(made)}, which has no method {method}")
        return made

    def _call_user(self, whose: str, owner: object, name: str, *arguments: Any) -> Any:
        try:
            made = self.environment.call(getattr(owner, name), *arguments)
        except RAISED as raised:
            call = show_call(whose + name, *arguments)
            raise HookFailed(f"{call} {describe_raised(raised)}") from raised
        if inspect.iscoroutine(made):
            made.close()
            raise HookFailed(f"{whose}{name} is a coroutine function: set asyncio_bound = True")
        return made

    def _make(self, name: str, *arguments: Any) -> Any:
        """Return the result of a hook. Raises ``HookFailed`` if the result is ``None``."""
        made = self._hook(name, *arguments)
        if made is None:
            raise HookFailed(f"{name} returned None")
        return made

    def _make_optional(self, name: str, *arguments: Any) -> Any:
        """Return the result of a hook. Raises ``NotApplicable`` if the result is ``None``."""
        made = self._hook(name, *arguments)
        if made is None:
            raise NotApplicable(f"there is no {name}")
        return made

    def _expect_raises(
        self, rule: str, error: type[BaseException], owner: Any, method: str, argument: object
    ) -> None:
        """Expect that ``owner.method(argument)`` raises ``error``."""
        call = f"{method}({'None' if argument is None else 'object()'})"
        expected = f"{call} raises" + ("" if error is BaseException else f" {error.__name__}")
        who = "publisher" if method == "subscribe" else "subscriber"
        self.environment.history.record_call_text(f"{who}.{call}")
        try:
            self.environment.call(getattr(owner, method), argument)
        except error:
            return
        except RAISED as raised:
            raise RuleBroken(rule, expected, f"it raised {raised!r}") from raised
        raise RuleBroken(rule, expected, "it returned")

    def _needs_threads(self) -> None:
        if self.asyncio_bound:
            raise NotApplicable("asyncio_bound: all calls come from one loop")

    def _call_from_a_new_thread(self, call: Callable[[], object], rule: str) -> None:
        """Call ``call`` in a thread that ``threading`` did not make, and wait until it returns."""
        ended = self.environment.start(call, rule)
        self.environment.wait(ended.is_set, rule, "the call returns", lambda: "it has not returned")
