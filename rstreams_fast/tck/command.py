"""Runs the test kit from the command line: ``rstreams-fast tck package.module:Factory``."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import inspect
import io
import json
import logging
import operator
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rstreams_fast.tck import runner
from rstreams_fast.tck.outcome import HookFailed, describe_raised, place_of
from rstreams_fast.tck.processor import IdentityProcessorVerification
from rstreams_fast.tck.publisher import PublisherVerification
from rstreams_fast.tck.subscriber import (
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
)
from rstreams_fast.tck.verification import GRADES, STRICT, Check, Verification, list_checks

__all__ = ["CouldNotRun", "add_arguments", "run", "verifications_of"]

VERIFICATIONS: Final[dict[str, type[Verification]]] = {
    "publisher": PublisherVerification,
    "blackbox": SubscriberBlackboxVerification,
    "whitebox": SubscriberWhiteboxVerification,
    "processor": IdentityProcessorVerification,
}
EXIT_KEPT, EXIT_BROKEN, EXIT_COULD_NOT_RUN, EXIT_INTERRUPTED = 0, 1, 2, 130

DESCRIPTION = (
    "Runs the test kit on any implementation. TARGET names a class, an instance or a module that "
    "has one of the hooks: create_publisher(elements), create_subscriber(), "
    "create_whitebox_subscriber(probe), create_identity_processor(buffer_size). No inheritance is "
    "needed; settings are attributes of the same names as those of the verifications."
)
EPILOG = (
    "Every check has a grade: spec (what the specification says must be), python (how Python maps "
    "the types of Java), strict (what a careful implementation does). Exit status: 0 every rule is "
    "kept at the grade asked for; 1 a rule is broken; 2 the kit could not run; 130 stopped by "
    "Ctrl-C."
)


#: ``_attribute`` returns this if the attribute does not exist.
_ABSENT: Final = object()


class CouldNotRun(Exception):
    """The kit cannot run; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to ``parser``."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("target", metavar="TARGET", help="package.module:attribute, or a module")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WHAT",
        help=(
            f"one of {', '.join(VERIFICATIONS)}; or a check's name, with * and ?; or a rule "
            "such as 3.9; may be repeated"
        ),
    )
    grade = parser.add_mutually_exclusive_group()
    grade.add_argument(
        "--strict",
        action="store_const",
        const=STRICT,
        dest="grade",
        help="fail on every grade, as --grade strict",
    )
    grade.add_argument(
        "--grade",
        choices=GRADES,
        metavar="GRADE",
        help=f"fail up to this grade, one of {', '.join(GRADES)} (spec)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show every check and every signal"
    )


def run(options: argparse.Namespace) -> int:
    """Run the test kit with the command's ``options``. Return the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Messages show elements. stdout may be unable to encode a character of an element.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("rstreams-fast tck: stopped by Ctrl-C", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    try:
        found = verifications_of(_load(options.target))
        chosen = _choose(found, options.only)
        if options.json is not None:
            _check_writable(options.json)
    except CouldNotRun as reason:
        print(f"rstreams-fast tck: {reason}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    results: dict[str, list[runner.Result]] = {}
    statuses = set()
    for kind, (make, checks) in chosen.items():
        print(f"{kind}: {len(checks)} checks of {options.target}")
        results[kind] = []
        with _quiet():
            for result in runner.run(make, checks):
                results[kind].append(result)
                _show(result, verbose=options.verbose)
        statuses.add(_print_findings(results[kind], options.grade or make().fail_on))
    status = EXIT_BROKEN if EXIT_BROKEN in statuses else max(statuses)
    outcomes = {result.outcome for each in results.values() for result in each}
    if outcomes <= {runner.NOT_APPLICABLE}:
        print("rstreams-fast tck: nothing was verified", file=sys.stderr)
        status = EXIT_COULD_NOT_RUN
    if options.json is not None:
        report = _report(options.target, results, status)
        try:
            options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        except OSError as failed:
            print(f"rstreams-fast tck: --json: {failed}", file=sys.stderr)
            return EXIT_COULD_NOT_RUN
    return status


def _check_writable(file: Path) -> None:
    """Raise ``CouldNotRun``, before any check is run, if ``file`` cannot be written."""
    try:
        file.open("a").close()
    except OSError as failed:
        raise CouldNotRun(f"--json: {failed}") from failed


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the ``with`` block, print neither log messages nor exceptions that end threads.

    The checks provoke both. If logging is configured, log messages are still printed.
    """
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    hook = threading.excepthook
    threading.excepthook = lambda _ended: None
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.getLogger().removeHandler(handler)


# -- finding the object to verify ------------------------------------------------------------------


def _load(target: str) -> Any:
    name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # find modules of the current directory, as ``python -m`` does
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(name)
        return operator.attrgetter(attribute)(found) if attribute else found
    except (Exception, SystemExit) as raised:
        said = f"{type(raised).__name__}: {raised}{place_of(raised)}"
        raise CouldNotRun(f"cannot load {target}: {said}") from raised


def verifications_of(target: Any) -> dict[str, Callable[[], Verification]]:
    """Return the kinds of verification, such as ``"publisher"``, whose hook ``target`` has.

    The kinds are the keys. Each value is a function that makes a verification of
    ``target``. Raises ``CouldNotRun`` if ``target`` has none of the hooks.
    """
    if inspect.isclass(target) and issubclass(target, Verification):
        for kind, base in reversed(VERIFICATIONS.items()):
            if issubclass(target, base) and target.is_complete():
                return _check_all_settings({kind: target})
        raise CouldNotRun(f"{target.__name__} does not define {target.essential_hook}")
    if inspect.isclass(target):
        target = _make(target)
    found: dict[str, type[Verification]] = {
        kind: _adapt(base, target)
        for kind, base in VERIFICATIONS.items()
        if callable(_attribute(target, base.essential_hook))
    }
    if not found:
        hooks = ", ".join(base.essential_hook for base in VERIFICATIONS.values())
        name = getattr(target, "__name__", type(target).__name__)
        raise CouldNotRun(f"{name} has none of the hooks {hooks}")
    return _check_all_settings(found)


def _make(target: type[Any]) -> Any:
    """Return ``target()``. Raises ``CouldNotRun`` if that call fails."""
    try:
        return target()
    except (Exception, SystemExit) as raised:
        raise CouldNotRun(f"{target.__name__}() {describe_raised(raised)}") from raised


def _attribute(target: Any, name: str) -> Any:
    """Return the hook or setting ``name`` of ``target``, or ``_ABSENT`` if it does not exist."""
    try:
        return getattr(target, name)
    except AttributeError:
        return _ABSENT
    except (Exception, SystemExit) as raised:
        raise CouldNotRun(f"the attribute {name} {describe_raised(raised)}") from raised


def _check_all_settings(
    found: dict[str, type[Verification]],
) -> dict[str, Callable[[], Verification]]:
    try:
        for verification in found.values():
            _make(verification).check_settings()
    except HookFailed as wrong:
        raise CouldNotRun(str(wrong)) from wrong
    return dict(found)


def _adapt(base: type[Verification], target: Any) -> type[Verification]:
    """Return a subclass of ``base`` that takes its hooks and settings from ``target``."""
    members: dict[str, Any] = {
        name: staticmethod(hook)
        for name in base.hooks
        if (hook := _attribute(target, name)) not in (None, _ABSENT)
    }
    members.update(
        {name: value for name in base.settings if _is_setting(value := _attribute(target, name))}
    )
    return type("Adapted", (base,), {**members, "__module__": "adapted"})


def _is_setting(value: object) -> bool:
    """Whether ``value`` can be a setting. A function or a module cannot, whatever its name."""
    return value is not _ABSENT and not callable(value) and not inspect.ismodule(value)


def _choose(
    found: dict[str, Callable[[], Verification]], only: list[str]
) -> dict[str, tuple[Callable[[], Verification], list[Check]]]:
    kinds = [word for word in only if word in VERIFICATIONS]
    patterns = [word for word in only if word not in VERIFICATIONS]
    if absent := [kind for kind in kinds if kind not in found]:
        hooks = ", ".join(VERIFICATIONS[kind].essential_hook for kind in absent)
        raise CouldNotRun(f"--only {', '.join(absent)}: the target has no {hooks}")
    chosen = {}
    for kind, make in found.items():
        if kinds and kind not in kinds:
            continue
        checks = [
            check
            for check in list_checks(type(make()))
            if not patterns or any(_matches(check, pattern) for pattern in patterns)
        ]
        if checks:
            chosen[kind] = (make, checks)
    if not chosen:
        raise CouldNotRun(f"--only {', '.join(only)}: no such check")
    return chosen


def _matches(check: Check, pattern: str) -> bool:
    return check.rule == pattern or fnmatch.fnmatchcase(check.name, pattern)


# -- printing the results --------------------------------------------------------------------------


def _show(result: runner.Result, *, verbose: bool) -> None:
    """Print the result of one check, if ``verbose`` is true or if the check could not run."""
    if verbose or result.outcome == runner.ERROR:
        print(f"  {result.outcome}: {result.check.name} ({result.seconds:.2f} s)")
        print("".join(f"    {line}\n" for line in result.message.splitlines()), end="")


def _print_findings(results: list[runner.Result], fail_on: str) -> int:
    """Print the broken rules, and the number of checks by outcome. Return the exit status."""
    findings = runner.order_findings(result.broken for result in results if result.broken)
    for line in runner.summary(findings, fail_on):
        print(f"  {line}")
    reasons = Counter(result.message for result in results if result.outcome == runner.NOT_JUDGED)
    for reason, count in reasons.items():
        print(f"  not judged: {count} {'check' if count == 1 else 'checks'}: {reason}")
    counts = Counter(
        f"{result.outcome} ({result.check.grade})" if result.broken else result.outcome
        for result in results
    )
    broken = (f"{runner.BROKEN} ({grade})" for grade in GRADES)
    order = [runner.KEPT, *broken, runner.NOT_JUDGED, runner.ERROR, runner.NOT_APPLICABLE]
    print(", ".join(f"{counts[each]} {each}" for each in order if counts[each]))
    if any(runner.fails(finding.grade, fail_on) for finding in findings):
        return EXIT_BROKEN
    return EXIT_COULD_NOT_RUN if counts[runner.ERROR] else EXIT_KEPT


def _report(target: str, results: dict[str, list[runner.Result]], status: int) -> dict[str, Any]:
    return {
        "target": target,
        "exit_status": status,
        "counts": dict(Counter(each.outcome for kind in results.values() for each in kind)),
        "verifications": {
            kind: [result.as_dict() for result in each] for kind, each in results.items()
        },
    }
