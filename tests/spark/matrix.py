"""``make spark-matrix``: the Spark suite on every PySpark that is supported, and the table of it.

Each version has a virtual environment of its own, ``build/spark-X.Y``; the package is found there
by its path. What runs is ``tests/spark`` with the arguments given, and what fails then once more;
``docs/spark-versions.md`` is written from what pytest counted, each version's row when it has run:
of the whole suite, or with ``-m "not slow"`` of what takes at most ten seconds a test.

``3.5-oldest`` has the oldest release of every library that ``pyproject.toml`` allows to users, and
runs the tests of all that use one. They are built for no Python later than 3.11: on a later one 3.5
stands for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "spark-versions.md"
OLDEST: Final = "3.5-oldest"
VERSIONS: Final = (OLDEST, "3.5", "4.0", "4.1", "4.2", "4.3")
LIBRARIES: Final = (
    "pandas>=2.2,<3",
    "pyarrow>=20",
    "numpy>=2",
    "cachetools>=5.3",
    "lmdb>=1.7.1",
    "rich>=13.8",
    "matplotlib>=3.9",
)
"""What users install beside PySpark; ``OLDEST`` has other releases of these, and uvloop."""
NEEDED: Final = (
    "grpcio>=1.76",
    "grpcio-status>=1.76",
    "googleapis-common-protos>=1.65",
    "zstandard>=0.23",
    "pytest>=9",
    "pytest-timeout>=2.3",
    "psutil>=6",
    "cffi>=2.0",
    "flask>=3",
    "flask-cors>=5",
    "moto[s3]>=5.1",
    "aiohttp>=3.10",
    "psycopg[binary]>=3.1",
    "confluent-kafka>=2.10",
    "opentelemetry-sdk>=1.35",
    "opentelemetry-exporter-otlp-proto-http>=1.35",
    "prometheus-client>=0.20",
    "ipykernel>=6",
    "nbclient>=0.10",
    "msgspec>=0.18",
    "pydantic>=2",
    "attrs>=23",
)
"""What the suite needs beside those, Connect included."""

FOR_DEVELOPERS: Final = ("bench", "docs", "test")
"""The extras of which nobody needs old releases."""

SUITE: Final = ("tests/spark",)
USES_OF_LIBRARIES: Final = (
    "tests/calls",
    "tests/core/test_record_ring.py",
    "tests/streams/test_numeric.py",
    "tests/interop",
    "tests/examples",
)

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

TABLE: Final = re.compile(r"^\| (\d\.\d(?:-oldest)?) .*\|$", re.MULTILINE)
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
    """Run the versions named by ``SPARK_VERSIONS``, by default all; return the exit status."""
    chosen = (os.environ.get("SPARK_VERSIONS") or " ".join(VERSIONS)).split()
    if unknown := [version for version in chosen if version not in VERSIONS]:
        print(f"SPARK_VERSIONS: {', '.join(unknown)}: not among {', '.join(VERSIONS)}")
        return 2
    if sys.version_info >= (3, 12):
        chosen = list(dict.fromkeys("3.5" if each == OLDEST else each for each in chosen))
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
    pinned = _oldest_releases() if version == OLDEST else (f"pyspark=={version}.*", *LIBRARIES)
    wanted = "\n".join([*pinned, *NEEDED])
    done = folder / ".installed"
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted.split()],
            check=True,
        )
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "rstreams_fast.pth").write_text(f"{ROOT}\n", encoding="utf-8")
        _start(python, "-m", "tests.spark.jvm")
        done.write_text(wanted, encoding="utf-8")
    return python


def _oldest_releases() -> list[str]:
    """Return a pin of each library of the extras for users, at the oldest release allowed."""
    text = ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    lines = [line for name in extras.keys() - set(FOR_DEVELOPERS) for line in extras[name]]
    pins = [re.match(r"([\w-]+)(?:>=|==)([\d.]+)", line) for line in lines]
    return sorted(f"{found[1]}=={found[2]}" for found in pins if found)


def _start(python: Path, *arguments: str) -> None:
    """Run the version's interpreter, for its workers, too."""
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    environment = {"PYTHONPATH": str(ROOT), **dict.fromkeys(names, str(python))}
    subprocess.run([python, *arguments], cwd=ROOT, env=os.environ | environment, check=False)


def _run(version: str, python: Path, *arguments: str) -> Counted:
    report = ROOT / "build" / f"spark-{version}.xml"
    report.unlink(missing_ok=True)
    cache = f"cache_dir={ROOT}/build/spark-{version}/.pytest_cache"
    tests = (*SUITE, *USES_OF_LIBRARIES) if version == OLDEST else SUITE
    _start(python, *PYTEST, "-o", cache, f"--junitxml={report}", *arguments, *tests)
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
