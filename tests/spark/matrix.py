"""``make spark-matrix``: the Spark suite on every PySpark that is supported, and the table of it.

Each version has a virtual environment of its own, ``build/spark-X.Y``; the package itself is found
by its path. What runs is ``tests/spark`` with the arguments given; ``docs/spark-versions.md`` is
written from what pytest counted, each version's row when it has run.
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
"""What the suite needs beside PySpark, Connect included."""

#: Old versions warn of what newer Pythons and libraries will refuse; that is not under test.
PYTEST: Final = ("-q", "-W", "default", "--timeout=600", "tests/spark")

TABLE: Final = re.compile(r"^\| (\d\.\d) .*\|$", re.MULTILINE)
HEAD: Final = """\
| PySpark | tried | Python | columns of `lookup` by | tests passed | failed | skipped |
|---|---|---|---|---|---|---|
"""


class Counted(NamedTuple):
    """What pytest counted, and the versions that ran."""

    spark: str
    python: str
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
        counted = _run(version, _environment(version), sys.argv[1:])
        failed += counted.failed or not counted.passed
        if not sys.argv[1:]:  # a part of the suite is no row
            _write_row(version, counted)
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
        done.write_text(wanted, encoding="utf-8")
    return python


def _run(version: str, python: Path, arguments: list[str]) -> Counted:
    report = ROOT / "build" / f"spark-{version}.xml"
    report.unlink(missing_ok=True)
    subprocess.run(
        [python, "-m", "pytest", *PYTEST, f"--junitxml={report}", *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        },
        check=False,
    )
    asked = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    spark, of_python = told.stdout.split()
    if not report.exists():
        return Counted(spark, of_python, 0, 1, 0)
    suites = ET.parse(report).getroot().iter("testsuite")
    sums = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for name in sums:
            sums[name] += int(suite.get(name, 0))
    failed = sums["failures"] + sums["errors"]
    passed = sums["tests"] - failed - sums["skipped"]
    return Counted(spark, of_python, passed, failed, sums["skipped"])


def _write_row(version: str, counted: Counted) -> None:
    how = "Arrow" if version >= "4.1" else "pandas"
    text = PAGE.read_text(encoding="utf-8")
    rows = {found[1]: found[0] for found in TABLE.finditer(text)}
    rows[version] = (
        f"| {version} | {counted.spark} | {counted.python} | {how} | {counted.passed} "
        f"| {counted.failed} | {counted.skipped} |"
    )
    start = text.index(HEAD) + len(HEAD)
    end = max((found.end() + 1 for found in TABLE.finditer(text)), default=start)
    table = "".join(f"{rows[version]}\n" for version in sorted(rows))
    PAGE.write_text(text[:start] + table + text[end:], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
