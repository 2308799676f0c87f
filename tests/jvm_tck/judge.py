"""A process with a Java in it that judges, and writes what came of it as JSON.

``python -m tests.jvm_tck.judge WHAT --json FILE [NAME ...]``, where WHAT is ``official`` (what we
ship, under the official kit), ``broken`` (what that must reject), ``java`` (Java's publishers,
under our kit) or ``names`` (the tests in the jar). Never inside pytest: Java and faulthandler
both want SIGSEGV.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from rstreams_fast.tck import Verification
from rstreams_fast.tck.command import VERIFICATIONS
from rstreams_fast.tck.runner import BROKEN
from tests.jvm_tck import jars
from tests.jvm_tck.subjects import choose

#: Tests run side by side: they hardly compute, they wait.
JOBS = 10
#: Seconds after which a test that does not return is given up.
LIMIT = 600.0
EXIT_CANNOT_JUDGE = 2


class Task(NamedTuple):
    """One test of one subject."""

    subject: str
    kind: str
    make: type[Verification]
    test: str
    waits: Any  #: official.Waits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["official", "broken", "java", "names"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_intermixed_args()
    try:
        jars.start_jvm()
    except jars.CannotJudge as reason:
        print(f"jvm_tck: {reason}", file=sys.stderr)
        return EXIT_CANNOT_JUDGE
    logging.getLogger().addHandler(logging.NullHandler())  # errors are meant
    threading.excepthook = lambda _args: None  # as are threads that fail
    if options.what == "java":
        from tests.jvm_tck import java_publishers

        results: Any = java_publishers.judge(options.names)
    elif options.what == "names":
        from tests.jvm_tck.official import list_names

        results = {base.__name__: list_names(kind) for kind, base in VERIFICATIONS.items()}
    else:
        results = _judge(_tasks(options.what, options.names), options.jobs)
    options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # a thread that hangs need not be waited for


def _tasks(what: str, names: list[str]) -> list[Task]:
    from tests.jvm_tck import broken, official

    for kind, correct in broken.CORRECT.items():
        official.warm_up(kind, correct)
    if what == "broken":
        return [
            Task(case.name, case.kind, case.verification, case.test, official.IMPATIENT)
            for case in broken.list_seen()
            if not names or case.name in names
        ]
    return [
        Task(subject.name, subject.kind, subject.verification, test, official.PATIENT)
        for subject in choose(names)
        if subject.is_official
        for test in official.list_names(subject.kind)
    ]


def _judge(tasks: list[Task], jobs: int) -> dict[str, dict[str, Any]]:
    """Every task, ``jobs`` at a time; the results by subject, in the order of the tasks."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(tasks)):
        waiting.put(index)
    results: dict[int, Any] = {}

    def work() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            results[index] = _within_limit(tasks[index])

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: dict[str, dict[str, Any]] = {}
    for index, task in enumerate(tasks):
        entry = found.setdefault(task.subject, {"kind": task.kind, "tests": []})
        entry["tests"].append(results[index].as_dict())
    for entry in found.values():
        entry["counts"] = dict(Counter(test["outcome"] for test in entry["tests"]))
    return found


def _within_limit(task: Task) -> Any:
    from tests.jvm_tck import bridge, official

    done: list[Any] = []

    def run() -> None:
        bridge.attach()
        done.append(official.run_one(task.kind, task.make, task.test, task.waits))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    if done:
        return done[0]
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)[-4:]) if frame else "it died"
    return official.Result(task.test, BROKEN, f"not over after {LIMIT:g} s:\n{stack}", LIMIT)


if __name__ == "__main__":
    sys.exit(main())
