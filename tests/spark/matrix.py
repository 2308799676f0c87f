"""``make spark-matrix``: the Spark suite on every PySpark that is supported, and the table of it.

Each version has a virtual environment of its own, ``build/spark-X.Y``; the package is found there
by its path. What runs is ``tests/spark`` with the arguments given, and what fails then once more;
``docs/spark-versions.md`` is written from what pytest counted, each version's row when it has run:
of the whole suite, or with ``-m "not slow"`` of what takes at most ten seconds a test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "spark-versions.md"
VERSIONS: Final = ("3.5", "4.0", "4.1", "4.2", "4.3")
NEEDED: Final = (
    "pandas>=2.2,<3",
    "pyarrow>=20",
    "numpy>=2",
    "cachetools>=5.3",
    "grpcio>=1.76",
    "grpcio-status>=1.76",
    "googleapis-common-protos>=1.65",
    "zstandard>=0.23",
    "pytest>=9",
    "pytest-timeout>=2.3",
    "psutil>=6",
    "cffi>=2.0",
    "rich>=13",
    "matplotlib>=3.9",
    "flask>=3",
    "flask-cors>=5",
    "moto[s3]>=5.1",
)
"""What the suite needs beside PySpark, Connect included; calls run on asyncio's loop."""

#: Old versions warn of what newer Pythons and libraries will refuse; that is not under test.
PYTEST: Final = (
    "-m",
    "pytest",
    "-q",
    "-W",
    "default",
    "--timeout=600",
    "-o",
    "faulthandler_timeout=590",
)
#: The arguments of what is a row of the table, and its name there.
SUITES: Final[dict[tuple[str, ...], str]] = {(): "whole", ("-m", "not slow"): "not slow"}

TABLE: Final = re.compile(r"^\| (\d\.\d) .*\|$", re.MULTILINE)
HEAD: Final = """\
| PySpark | tried | Python | columns of `lookup` by | tests | passed | 2nd try | failed | skipped |
|---|---|---|---|---|---|---|---|---|
"""


class Counted(NamedTuple):
    """What pytest counted."""

    passed: int
    failed: int
    skipped: int


def main() -> int:
    """Run the versions named by ``SPARK_VERSIONS``, all by default; return the exit status."""
    chosen = (os.environ.get("SPARK_VERSIONS") or " ".join(VERSIONS)).split()
    if unknown := [version for version in chosen if version not in VERSIONS]:
        print(f"SPARK_VERSIONS: {', '.join(unknown)}: not among {', '.join(VERSIONS)}")
        return 2
    failed = 0
    for version in chosen:
        print(f"== PySpark {version}", flush=True)
        python = _environment(version)
        first = again = _run(version, python, *sys.argv[1:])
        if first.failed:
            again = _run(version, python, *sys.argv[1:], "--last-failed")
        failed += again.failed or not first.passed
        suite = SUITES.get(tuple(sys.argv[1:]))
        if suite is not None and first.passed:  # any other part is no row
            _write_row(version, python, suite, first, again)
    return min(failed, 1)


def _environment(version: str) -> Path:
    """Return the interpreter of the version's virtual environment, made if it is not there."""
    folder = ROOT / "build" / f"spark-{version}"
    python = folder / "bin" / "python"
    wanted = "\n".join([f"pyspark=={version}.*", *NEEDED])
    done = folder / ".installed"
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted.split()],
            check=True,
        )
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "rstreams_fast.pth").write_text(f"{ROOT}\n", encoding="utf-8")
        done.write_text(wanted, encoding="utf-8")
    return python


def _run(version: str, python: Path, *arguments: str) -> Counted:
    report = ROOT / "build" / f"spark-{version}.xml"
    report.unlink(missing_ok=True)
    cache = f"cache_dir={ROOT}/build/spark-{version}/.pytest_cache"
    subprocess.run(
        [str(python), *PYTEST, "-o", cache, f"--junitxml={report}", *arguments, "tests/spark"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        },
        check=False,
    )
    if not report.exists():
        return Counted(0, 1, 0)
    suites = ET.parse(report).getroot().iter("testsuite")
    sums = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for name in sums:
            sums[name] += int(suite.get(name, 0))
    failed = sums["failures"] + sums["errors"]
    return Counted(sums["tests"] - failed - sums["skipped"], failed, sums["skipped"])


def _write_row(version: str, python: Path, suite: str, first: Counted, again: Counted) -> None:
    asked = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    spark, of_python = told.stdout.split()
    how = "Arrow" if version >= "4.1" else "pandas"
    text = PAGE.read_text(encoding="utf-8")
    rows = {found[1]: found[0] for found in TABLE.finditer(text)}
    second = first.failed - again.failed
    rows[version] = (
        f"| {version} | {spark} | {of_python} | {how} | {suite} | {first.passed + second} "
        f"| {second} | {again.failed} | {first.skipped} |"
    )
    start = text.index(HEAD) + len(HEAD)
    end = max((found.end() + 1 for found in TABLE.finditer(text)), default=start)
    table = "".join(f"{rows[version]}\n" for version in sorted(rows))
    PAGE.write_text(text[:start] + table + text[end:], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
