"""``make tck``: both kits on everything we ship, on every backend; one table, one page.

Each run is a process; all are under way at once, as they wait more than they compute. Exit
status: 0 every rule is kept and every broken implementation rejected; 1 not so, or the page is not
the one in the checkout (with ``--check``); 2 a kit could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rstreams_fast.tck.runner import BROKEN
from tests.jvm_tck.broken import list_seen
from tests.jvm_tck.claims import NOT_MET, objection
from tests.jvm_tck.page import BACKENDS, KITS, PAGE, Results, terminal, tests_of, write_page
from tests.jvm_tck.subjects import ROOT, list_subjects

FOLDER = ROOT / "build" / "tck"
#: Seconds for one run of one kit on one backend.
LIMIT = 3600
EXIT_KEPT, EXIT_BROKEN, EXIT_COULD_NOT_RUN = 0, 1, 2


class CouldNotRun(Exception):
    """A run ended without results; the text is what it said."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="do not write the page: fail if it is another one"
    )
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        results, broken = _run_all()
    except CouldNotRun as reason:
        print(f"make tck: {reason}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    subjects = list_subjects()
    print(terminal(subjects, results))
    objections = [
        f"{kit} kit, {backend}: {text}"
        for kit, by_backend in results.items()
        for backend, judged in by_backend.items()
        for subject in subjects
        for test in tests_of(kit, subject, judged)
        if (text := objection(subject, test))
    ]
    objections += _accepted(broken)
    for text in objections:
        print(text)
    if not objections:
        page_is_right = _page(write_page(subjects, results), check=options.check)
    print(f"{len(subjects)} classes, {len(BACKENDS)} backends, {len(objections)} objections")
    return EXIT_KEPT if not objections and page_is_right else EXIT_BROKEN


def _run_all() -> tuple[Results, dict[str, Any]]:
    runs = {
        (kit, backend): ["judge", "official"] if kit == "official" else ["ours"]
        for backend in BACKENDS
        for kit in KITS
    }
    runs["broken", BACKENDS[0]] = ["judge", "broken"]
    with ThreadPoolExecutor(len(runs)) as pool:
        found = dict(zip(runs, pool.map(_run, runs, runs.values()), strict=True))
    results = {kit: {backend: found[kit, backend] for backend in BACKENDS} for kit in KITS}
    return results, found["broken", BACKENDS[0]]


def _run(name: tuple[str, str], arguments: list[str]) -> Any:
    start = time.monotonic()
    path = FOLDER / f"{'-'.join(name)}.json"
    path.unlink(missing_ok=True)
    module, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-m", f"tests.jvm_tck.{module}", *rest, "--json", str(path)],
        cwd=ROOT,
        env={**os.environ, "RSTREAMS_FAST_BACKEND": name[1]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode or not path.exists():
        said = (done.stdout + done.stderr).strip().splitlines()
        raise CouldNotRun("\n".join(said[-10:]) or f"{name} ended with {done.returncode}")
    print(f"{name[0]} kit, backend {name[1]}: {time.monotonic() - start:.0f} s", flush=True)
    return json.loads(path.read_text(encoding="utf-8"))


def _accepted(broken: dict[str, Any]) -> list[str]:
    """The broken implementations that the official kit should have rejected."""
    outcomes = {name: judged["tests"][0]["outcome"] for name, judged in broken.items()}
    return [
        f"the official kit does not reject {each.name} by {each.test}: {outcomes.get(each.name)}"
        for each in list_seen()
        if outcomes.get(each.name) not in (BROKEN, NOT_MET)
    ]


def _page(text: str, *, check: bool) -> bool:
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return True
    name = Path(PAGE).relative_to(ROOT)
    if check:
        print(f"{name} is out of date: run make tck, and commit what it writes")
        return False
    PAGE.write_text(text, encoding="utf-8")
    print(f"{name} is new: commit it")
    return True


if __name__ == "__main__":
    sys.exit(main())
