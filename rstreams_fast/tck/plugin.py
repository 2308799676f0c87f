"""The pytest plugin of ``rstreams_fast.tck``: collects the kit's tests and words their outcomes.

A test suite asks for it, in its top ``conftest.py`` or on the command line, since a plugin that
pytest finds by itself would import ``rstreams_fast`` in every run in its environment, before
coverage is measured and before a suite has chosen a backend::

    pytest_plugins = ["rstreams_fast.tck.plugin"]  # or: pytest -p rstreams_fast.tck.plugin
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from rstreams_fast import tck

__all__ = ["VerificationClass"]

NOT_MET = "optional: not met"
UNTESTED = "untested"
NOT_APPLICABLE = "not applicable"
#: What pytest prints for each, in short and with -v.
WORDS = {
    NOT_MET: ("o", "OPTIONAL: NOT MET"),
    UNTESTED: ("u", "UNTESTED"),
    NOT_APPLICABLE: ("n", "NOT APPLICABLE"),
}
#: Lines of a message that are shown without -v: the rule, what was expected, what was seen.
_BRIEF = 3
_OUTCOME = "rstreams_tck_outcome"


class VerificationClass(pytest.Class):
    """A verification: its tests have the kit's names, which do not begin with ``test``."""

    def funcnamefilter(self, name: str) -> bool:
        if name in self._kit_tests():
            return True
        # The stand-in for a pytest without this plugin.
        return name != "test_is_collected_by_the_plugin" and super().funcnamefilter(name)

    def _kit_tests(self) -> set[str]:
        return {test.name for test in tck.list_tests(self.obj)}


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    report: Any = yield
    if call.excinfo is None or call.when != "call":
        return report
    error = call.excinfo.value
    if isinstance(error, tck.RuleBroken):
        report.longrepr = str(error)  # the history says more than the kit's own frames
        return report
    outcome = _outcome(error)
    if outcome is not None:
        path, line, _ = item.location
        text = str(error) if outcome == NOT_MET else f"{outcome}: {error}"
        report.outcome = "skipped"
        report.longrepr = (path, (line or 0) + 1, text)
        setattr(report, _OUTCOME, outcome)
    return report


def _outcome(error: BaseException) -> str | None:
    if isinstance(error, tck.OptionalNotMet):
        return NOT_MET
    if isinstance(error, tck.Untested):
        return UNTESTED
    return NOT_APPLICABLE if isinstance(error, tck.NotApplicable) else None


def pytest_report_teststatus(report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    outcome = getattr(report, _OUTCOME, None)
    if outcome is None:
        return None
    letter, word = WORDS[outcome]
    return outcome, letter, (word, {"yellow": outcome == NOT_MET})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List what is optional and not met; with -v or -rs also what is untested, and all the text."""
    shown = config.getoption("reportchars", "") or ""
    everything = config.getoption("verbose", 0) > 0 or any(char in shown for char in "sA")
    for outcome in WORDS:
        reports = terminalreporter.stats.get(outcome, [])
        if not reports or (outcome != NOT_MET and not everything):
            continue
        terminalreporter.section(f"Reactive Streams: {outcome}")
        for title, text in _texts(reports, everything=everything):
            terminalreporter.line(title)
            for line in text:
                terminalreporter.line(f"    {line}")


def _texts(reports: list[Any], *, everything: bool) -> Iterator[tuple[str, list[str]]]:
    """Title and lines: each report in full, or once per test what it says, and of how many."""
    if everything:
        for report in reports:
            yield report.nodeid, report.longrepr[2].splitlines()
        return
    by_test: dict[str, list[Any]] = {}
    for report in reports:
        by_test.setdefault(report.nodeid.rpartition("::")[2], []).append(report)
    for name, alike in by_test.items():
        classes = [report.nodeid.split("::")[-2] for report in alike]
        first_lines = alike[0].longrepr[2].splitlines()[:_BRIEF]
        yield f"{name} ({', '.join(classes)})", first_lines
