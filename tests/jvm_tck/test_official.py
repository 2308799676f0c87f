"""The two kits beside each other, in processes with a Java: their tests, and Java's publishers.

``make tck`` runs both on everything that we ship, and on what they must reject.
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
from tests.jvm_tck.subjects import ROOT

#: The first test waits for all runs, and on a new machine for Maven.
pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

CANNOT_JUDGE = 2
#: Runs under way at a time, each with a JVM: they wait more than they compute.
SIDE_BY_SIDE = 4


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of each run: the names, and one for each publisher in Java."""
    folder = tmp_path_factory.mktemp("official")
    every = {name: ("java", name) for name in IN_JAVA} | {"names": ("names",)}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = {name: pool.submit(judge, folder / name, *run) for name, run in every.items()}
    return {name: result(run) for name, run in runs.items()}


def judge(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.jvm_tck.judge", *arguments, "--json", str(path)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "RSTREAMS_FAST_BACKEND": "python"},
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
