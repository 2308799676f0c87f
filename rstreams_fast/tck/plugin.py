"""The pytest plugin of ``rstreams_fast.tck``: collects the kit's checks and reports their results.

A test suite loads the plugin in its top ``conftest.py`` or on the command line. The plugin has no
entry point for pytest. With an entry point, every run of pytest would import ``rstreams_fast``,
before coverage is measured and before a suite has chosen a backend::

    pytest_plugins = ["rstreams_fast.tck.plugin"]  # or: pytest -p rstreams_fast.tck.plugin
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from rstreams_fast import tck
from rstreams_fast._third_parties import importing
from rstreams_fast.tck import runner
from rstreams_fast.tck.verification import STRICT

with importing("pytest", __name__, "pytest"):
    import pytest

__all__ = ["VerificationClass"]

#: The letter and the word (with -v) that pytest prints for outcomes other than passed and failed.
WORDS = {
    "python": ("p", "BROKEN (PYTHON)"),
    "strict": ("s", "BROKEN (STRICT)"),
    runner.NOT_JUDGED: ("j", "NOT JUDGED"),
    runner.NOT_APPLICABLE: ("n", "NOT APPLICABLE"),
}
_OUTCOME = "rstreams_tck_outcome"
#: Maps the name of a verification to its setting ``fail_on``, and the errors of its broken rules.
_FINDINGS = pytest.StashKey[dict[str, tuple[str, list[tck.RuleBroken]]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rstreams_fast.tck")
    group.addoption(
        "--tck-grade", choices=tck.GRADES, help="fail up to this grade, whatever fail_on says"
    )
    group.addoption(
        "--tck-strict", action="store_const", const=STRICT, dest="tck_grade", help="... strict"
    )


class VerificationClass(pytest.Class):
    """Collects the checks of a verification, although their names do not begin with ``test``."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        self.verdicts = runner.Verdicts()
        self.checks = {check.name: check for check in tck.list_checks(self.obj)}
        order = {name: place for place, name in enumerate(self.checks)}
        return sorted(super().collect(), key=lambda item: order.get(item.name, -1))

    def funcnamefilter(self, name: str) -> bool:
        if name in self.checks:
            return True
        # Do not collect this test: it exists to fail in a run of pytest without the plugin.
        return name != "test_is_collected_by_the_plugin" and super().funcnamefilter(name)


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> pytest.Class | None:
    if not isinstance(obj, type) or not issubclass(obj, tck.Verification):
        return None
    is_base = not obj.is_complete() or not getattr(obj, "__test__", True)
    if is_base or name.startswith("_") or isinstance(collector, VerificationClass):
        return None
    made: pytest.Class = VerificationClass.from_parent(collector, name=name, obj=obj)
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Raise ``NotJudged`` in place of a check that need not be run (see ``Verdicts``)."""
    verification = pyfuncitem.parent
    if isinstance(verification, VerificationClass) and pyfuncitem.name in verification.checks:
        obstacle = verification.verdicts.obstacle(verification.checks[pyfuncitem.name])
        if obstacle:
            raise tck.NotJudged(obstacle)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    report: Any = yield
    verification = item.parent
    if call.when != "call" or not isinstance(verification, VerificationClass):
        return report
    check = verification.checks.get(item.name)
    error = call.excinfo.value if call.excinfo else None
    if check is None or error is None:
        return report
    outcome = runner.KEPT if isinstance(error, pytest.skip.Exception) else runner.outcome_of(error)
    text = str(error)
    verification.verdicts.note(check, outcome, call.duration)
    if isinstance(error, tck.RuleBroken):
        found = item.config.stash.setdefault(_FINDINGS, {})
        found.setdefault(verification.nodeid, (_fail_on(item), []))[1].append(error)
        report.longrepr = text  # instead of the traceback, which shows only code of the kit
        if runner.fails(error.grade, _fail_on(item)):
            return report
        outcome = error.grade
    if outcome in WORDS:
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, (line or 0) + 1, f"{outcome}: {text}")
        setattr(report, _OUTCOME, outcome)
    return report


def _fail_on(item: Any) -> str:
    asked: str | None = item.config.getoption("tck_grade")
    return asked or item.instance.fail_on


def pytest_report_teststatus(report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    outcome = getattr(report, _OUTCOME, None)
    if outcome is None:
        return None
    letter, word = WORDS[outcome]
    category = f"broken ({outcome})" if outcome in tck.GRADES else outcome
    return category, letter, (word, {"yellow": outcome != runner.NOT_APPLICABLE})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print each broken rule once, in the order in which to repair them.

    With ``-v`` also print the checks that were not judged or do not apply.
    """
    for name, (fail_on, broken) in config.stash.get(_FINDINGS, {}).items():
        terminalreporter.section(f"Reactive Streams: {name}")
        for line in runner.summary(runner.order_findings(broken), fail_on):
            terminalreporter.line(line)
    shown = config.getoption("reportchars", "") or ""
    if config.getoption("verbose", 0) > 0 or any(char in shown for char in "sA"):
        for outcome in (runner.NOT_JUDGED, runner.NOT_APPLICABLE):
            for report in terminalreporter.stats.get(outcome, []):
                terminalreporter.line(f"{report.nodeid}: {report.longrepr[2]}")
