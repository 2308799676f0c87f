"""The official kit, in processes of their own: on some of what we ship, on what it must reject.

``make tck`` runs it on everything, on every backend. This here is the part of `make test-slow`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rstreams_fast.tck import list_checks
from rstreams_fast.tck.command import VERIFICATIONS
from rstreams_fast.tck.runner import BROKEN
from tests.jvm_tck.broken import SEEN, list_broken, list_seen
from tests.jvm_tck.claims import NOT_MET, objection
from tests.jvm_tck.subjects import ROOT, Subject, list_subjects

#: The first one waits for all runs, and on a new machine for Maven.
pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

CANNOT_JUDGE = 2
#: Runs under way at a time, each with a JVM: they wait more than they compute.
SIDE_BY_SIDE = 4
#: Of the oldest themes these; of every other theme its first class of each kind.
SOME = {
    "publishers.Range",
    "publishers.Generator",
    "publishers.PublishOnOwnWorker",
    "publishers.PublishOnLoop",
    "publishers.MapAsync",
    "publishers.AsyncIterableOnTheRunningLoop",
    "publishers.WholePipeline",
    "subscribers.ForEach",
    "subscribers.Iterate",
    "subscribers.FromPublisher",
    "subscribers.AsyncBoundary",
}
#: On the other backends.
FEWER = ("publishers.Range", "publishers.WholePipeline", "subscribers.AsyncBoundary")


def some() -> list[Subject]:
    found: list[Subject] = []
    seen: set[tuple[str, str]] = set()
    for subject in list_subjects():
        of_others = subject.theme not in ("publishers", "subscribers")
        if subject.name in SOME or (of_others and (subject.theme, subject.kind) not in seen):
            found.append(subject)
            seen.add((subject.theme, subject.kind))
    return found


RUNS = {
    "c": ("c", "official", *(subject.name for subject in some())),
    "cffi": ("cffi", "official", *FEWER),
    "python": ("python", "official", *FEWER),
    "names": ("python", "names"),
    "broken": ("python", "broken"),
}


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of every run, and of one for each publisher in Java: those take longest."""
    folder = tmp_path_factory.mktemp("official")
    every = {name: ("python", "java", name) for name in IN_JAVA} | RUNS
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = {name: pool.submit(judge, folder / name, *run) for name, run in every.items()}
    return {name: result(run) for name, run in runs.items()}


def judge(path: Path, backend: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.jvm_tck.judge", *arguments, "--json", str(path)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "RSTREAMS_FAST_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )


def result(run: Future[subprocess.CompletedProcess[str]]) -> Any:
    done = run.result()
    if done.returncode == CANNOT_JUDGE:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(Path(done.args[-1]).read_text())


@pytest.mark.parametrize("kind", VERIFICATIONS)
def test_ours_has_every_test_of_the_official_kit_that_can_fail(
    kind: str, judged: dict[str, Any]
) -> None:
    """Under its name, but for ``blackbox_``; what validates settings, ours does before each."""
    verification = VERIFICATIONS[kind]
    theirs = {
        name.replace("_blackbox_", "_")
        for name in judged["names"][verification.__name__]
        if not name.startswith(("untested_", "required_validate_"))
    }
    ours = {check.name for check in list_checks(verification) if check.is_official}
    assert ours - {SPEC208} == theirs - {SPEC208}


#: The official kit has it of whitebox subscribers only: it cannot make the others cancel.
SPEC208 = "required_spec208_mustBePreparedToReceiveOnNextSignalsAfterHavingCalledSubscriptionCancel"


@pytest.mark.parametrize("subject", some(), ids=lambda subject: subject.name)
def test_what_we_ship_passes(subject: Subject, judged: dict[str, Any]) -> None:
    expect_no_objection(subject, judged["c"])


@pytest.mark.parametrize("backend", ["cffi", "python"])
@pytest.mark.parametrize("name", FEWER)
def test_some_of_it_passes_on_the_other_backends(
    backend: str, name: str, judged: dict[str, Any]
) -> None:
    (subject,) = [each for each in list_subjects() if each.name == name]
    expect_no_objection(subject, judged[backend])


def expect_no_objection(subject: Subject, results: dict[str, Any]) -> None:
    tests = results[subject.name]["tests"]
    assert len(tests) == len(results[subject.name]["tests"]) > 20
    assert not [text for test in tests if (text := objection(subject, test))]


@pytest.mark.parametrize("broken", list_seen(), ids=lambda broken: broken.name)
def test_the_kit_is_alive(broken: Any, judged: dict[str, Any]) -> None:
    """It rejects a broken implementation, by the test that is written down."""
    (test,) = judged["broken"][broken.name]["tests"]
    assert test["name"] == broken.test
    expected = NOT_MET if broken.test.startswith("optional") else BROKEN
    assert test["outcome"] in (expected, BROKEN), test


def test_every_class_that_is_written_down_exists() -> None:
    written = {
        f"{kind}.{name}"
        for kind, tests in SEEN.items()
        for names in tests.values()
        for name in names.split()
    }
    assert written == {broken.name for broken in list_seen()}
    assert {broken.name for broken in list_broken()} > written


# -- our kit on publishers written in Java ---------------------------------------------------------

#: The rules that our kit always finds broken at ``spec``, and those that it finds with some luck.
IN_JAVA: dict[str, tuple[set[str], set[str]]] = {
    "RangePublisher": (set(), set()),
    "AsyncIterablePublisher": (set(), set()),
    # After a full batch it does not count the last element of it as delivered: one too many.
    "AsyncIterablePublisherInSmallBatches": ({"1.1"}, set()),
    "Countdown": ({"1.7", "3.3", "3.9"}, {"1.1", "1.3", "3.16", "3.2", "3.17", "3.8"}),
}


@pytest.mark.parametrize("name", IN_JAVA)
def test_the_rules_found_broken_in_java(name: str, judged: dict[str, Any]) -> None:
    """The specification's own examples pass at ``spec``, as they come."""
    broken = [test for test in judged[name][name]["tests"] if test["outcome"] == BROKEN]
    always, sometimes = IN_JAVA[name]
    found = {test["broken_rule"] for test in broken if test["grade"] == "spec"}
    assert always <= found <= always | sometimes, broken
