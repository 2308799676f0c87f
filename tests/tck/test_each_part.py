"""The fast verifications: there is one for each part of the engine; some run on each backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstreams_fast.core import backend as of_this_process
from tests.core.conftest import BACKENDS
from tests.helpers import run_python
from tests.jvm_tck.claims import objection
from tests.jvm_tck.subjects import list_subjects
from tests.tck import EACH_PART, EACH_PRIMITIVE


def test_each_part_has_a_verification() -> None:
    names = {subject.verification.__name__ for subject in list_subjects()}
    assert {*EACH_PART, *EACH_PRIMITIVE} - names == set()


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != of_this_process])
def test_each_primitive_keeps_the_rules_on_each_backend(tmp_path: Path, backend: str) -> None:
    subjects = {
        subject.name: subject
        for subject in list_subjects()
        if subject.verification.__name__ in EACH_PRIMITIVE
    }
    judged = tmp_path / "judged.json"
    run_python(
        *("-m", "tests.jvm_tck.ours", "--json", str(judged), *subjects),
        env={"RSTREAMS_FAST_BACKEND": backend},
    )
    results = json.loads(judged.read_text(encoding="utf-8"))
    assert results.keys() == subjects.keys()
    for name, result in results.items():
        objections = [objection(subjects[name], test) for test in result["tests"]]
        assert objections
        assert [text for text in objections if text] == []
