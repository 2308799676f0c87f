"""Our own kit on what we ship, outside pytest: ``python -m tests.jvm_tck.ours --json FILE [NAME]``.

It needs no Java. What it writes has the form of what ``judge`` writes.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from rstreams_fast.tck import list_checks
from rstreams_fast.tck.runner import run
from tests.jvm_tck.subjects import Subject, choose, fixtures

__all__ = ["judge"]

#: Seconds without a signal that count as silence; every test run has less (tests/tck).
SILENCE = 0.03


def judge(subject: Subject) -> dict[str, Any]:
    """Every check of our kit on it, each on an instance of its own."""
    tests = []
    for check in list_checks(subject.verification):
        verification = subject.verification()
        verification.silence = SILENCE
        with fixtures(verification):
            tests += [result.as_dict() for result in run(lambda made=verification: made, [check])]
    counts = Counter(test["outcome"] for test in tests)
    return {"kind": subject.kind, "tests": tests, "counts": dict(counts)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_intermixed_args()
    logging.getLogger().addHandler(logging.NullHandler())  # errors are meant
    threading.excepthook = lambda _args: None
    results = {subject.name: judge(subject) for subject in choose(options.names)}
    options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
