"""The pytest plugin, in pytest processes of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.helpers import run_python

PLUGIN = "rstreams_fast.tck.plugin"
SUITE = """
import rstreams_fast as rf
from rstreams_fast.tck import PublisherVerification  # itself not collected

class OfRange(PublisherVerification):
    silence = 0.01

    def create_publisher(self, elements):
        return rf.range_(elements)

    def test_of_ones_own(self):
        pass

class TestCountsWrong(PublisherVerification):
    def create_publisher(self, elements):
        return rf.range_(elements + 1)

class _Private(OfRange):
    pass
"""
SPEC101 = "required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements"
CREATE1 = "required_createPublisher1MustProduceAStreamOfExactly1Element"


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(SUITE)
    return pytest_in(folder, "-p", PLUGIN, *arguments)


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # In CI pytest prints its summary's lines whole, which repeat what the kit says.
    env = {"CI": None, "BUILD_NUMBER": None}
    arguments = ("-m", "pytest", "-p", "no:cacheprovider", *arguments)
    return run_python(*arguments, cwd=folder, check=False, env=env)


def test_verifications_are_collected_under_the_kits_names(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--collect-only", "-q")
    assert f"test_suite.py::OfRange::{SPEC101}" in done.stdout
    assert "test_suite.py::OfRange::test_of_ones_own" in done.stdout
    assert "test_suite.py::TestCountsWrong::" in done.stdout
    assert "PublisherVerification::" not in done.stdout
    assert "_Private" not in done.stdout
    assert "test_is_collected_by_the_plugin" not in done.stdout


@pytest.mark.slow
def test_each_outcome_has_its_word(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-k", "OfRange", "-q")
    assert done.returncode == 0, done.stdout
    assert "1 broken (strict)" in done.stdout.splitlines()[-1]
    assert "4 not applicable" in done.stdout.splitlines()[-1]
    assert "broken at grade strict (told, no failure)" in done.stdout
    verbose = run_pytest(tmp_path, "-k", "OfRange and (spec104 or spec110)", "-v")
    assert "BROKEN (STRICT)" in verbose.stdout
    assert "not applicable: there is no create_failed_publisher" in verbose.stdout
    strict = run_pytest(tmp_path, "-k", "OfRange and spec110", "-q", "--tck-strict")
    assert strict.returncode == 1
    assert "broken at grade strict (a failure)" in strict.stdout


@pytest.mark.slow
def test_what_could_only_fail_again_is_not_run(tmp_path: Path) -> None:
    # The check of a long stream judges its count, too.
    several = "TestCountsWrong and (spec1 or create) and not aLongStream"
    done = run_pytest(tmp_path, "-k", several, "-q")
    assert done.returncode == 1
    assert "not judged" in done.stdout.splitlines()[-1]
    assert done.stdout.count("§1.5 is broken") == 2  # the failure, and the list at the end


def test_a_broken_rule_fails_with_the_kits_message(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-k", f"TestCountsWrong and {CREATE1}", "-q")
    assert done.returncode == 1
    assert "§1.5 is broken: a finite stream that succeeds must end with on_complete" in done.stdout
    assert "expected: on_complete after the last element" in done.stdout
    assert "subscriber.on_next(1)" in done.stdout
    assert "publisher.py" not in done.stdout  # no frame of the kit


def test_without_the_plugin_the_class_fails_loudly(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-q", "-p", "no:rstreams_fast.tck.plugin", "-k", "TestCountsWrong")
    assert done.returncode == 1
    assert "run pytest with -p rstreams_fast.tck.plugin" in done.stdout


def test_a_conftest_may_ask_for_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["rstreams_fast.tck.plugin"]\n')
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = pytest_in(tmp_path, "--collect-only", "-q")
    assert f"test_suite.py::OfRange::{SPEC101}" in done.stdout
