"""``make spark-suite``: Spark's own tests of UDFs, with the stock daemon and with ours.

``SPARK_SOURCES`` points to a checkout of Spark, of the line of the installed PySpark: only the
tests and ``pyspark.testing`` come from there. Each setting runs all of them in a pytest of its own;
what passes with the stock daemon and does not with ours is printed, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "build" / "spark-suite"
SUITES: Final = (
    "test_udf",
    "test_udf_profiler",
    "test_udf_combinations",
    "test_unified_udf",
    "arrow.test_arrow_python_udf",
    "arrow.test_arrow_udf",
    "arrow.test_arrow_udf_scalar",
    "pandas.test_pandas_udf",
    "pandas.test_pandas_udf_scalar",
)
LEVELS: Final = (-1, 4, 64)
LEVEL: Final = "spark.sql.execution.pythonUDF.arrow.concurrency.level"
STOCK: Final = "stock"


def main() -> int:
    """Run the settings named, all by default, and compare them with the stock daemon."""
    settings = (STOCK, *map(str, LEVELS))
    parser = argparse.ArgumentParser(prog="make spark-suite", description=__doc__)
    parser.add_argument("--settings", nargs="+", choices=settings, default=settings)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=SUITES)
    options = parser.parse_args()
    sources = Path(os.environ.get("SPARK_SOURCES", ""), "python", "pyspark")
    if not (sources / "sql" / "tests").is_dir():
        print("SPARK_SOURCES must point to a checkout of Spark: it has python/pyspark/sql/tests")
        return 2
    _lay_out(sources.resolve())
    text, failed = compared(
        {setting: _run(setting, options.suites) for setting in options.settings}
    )
    print(text)
    return int(failed)


def compared(found: dict[str, dict[str, str]]) -> tuple[str, bool]:
    """Return the table of outcomes, by setting and test, with what the stock daemon alone passes;
    and whether there is any.
    """
    lines = ["| daemon | passed | failed | skipped |", "|---|---|---|---|"]
    for setting, outcomes in found.items():
        told = [list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")]
        name = setting if setting == STOCK else f"ours, {setting}"
        lines.append(f"| {name} | {' | '.join(map(str, told))} |")
    differ = [
        f"{setting}: {test}: {outcomes.get(test, 'did not run')}"
        for setting, outcomes in found.items()
        for test, outcome in sorted(found.get(STOCK, {}).items())
        if outcome == "passed" and outcomes.get(test) != "passed"
    ]
    return "\n".join([*lines, *differ]), bool(differ)


def _installed() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark")
    return Path(spec.origin).parent


def _lay_out(sources: Path) -> None:
    """Make a package ``pyspark`` of links: the installed one, with Spark's tests in it."""
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "pyspark" / "sql").mkdir(parents=True)
    links = {path: _installed() / path for path in _names(_installed())}
    links["testing"] = sources / "testing"
    links["sql/tests"] = sources / "sql" / "tests"
    (WORK / "python").symlink_to(sources.parent)  # with the files that some tests read
    for path, target in links.items():
        (WORK / "pyspark" / path).symlink_to(target)


def _names(installed: Path) -> Iterator[str]:
    """Yield what is in the package and in ``sql``, without ``sql`` itself."""
    yield from (path.name for path in installed.iterdir() if path.name != "sql")
    yield from (f"sql/{path.name}" for path in (installed / "sql").iterdir())


def _run(setting: str, suites: list[str]) -> dict[str, str]:
    """Run the suites; return what became of each test."""
    conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if setting != STOCK:
        conf["spark.python.daemon.module"] = "rstreams_fast.spark.daemon"
        conf["spark.executorEnv.RSTREAMS_FAST_UDF_CONCURRENCY"] = setting
        if int(setting) > 0:  # Spark has no word for none
            conf[LEVEL] = conf["spark.executorEnv.RSTREAMS_FAST_UDF_BATCHES"] = setting
    report = WORK / f"{setting}.xml"
    report.unlink(missing_ok=True)
    words = f"-q -p no:cacheprovider -W default --tb=short -c {os.devnull} --rootdir {WORK}"
    modules = [f"--junitxml={report}", "--pyargs", *(f"pyspark.sql.tests.{it}" for it in suites)]
    subprocess.run(
        [sys.executable, "-m", "pytest", *words.split(), *modules],
        cwd=WORK,
        env={
            **os.environ,
            "PYTHONPATH": f"{WORK}{os.pathsep}{ROOT}",
            "SPARK_HOME": str(_installed()),
            "PYSPARK_SUBMIT_ARGS": " ".join(
                [*(f"--conf {name}={value}" for name, value in conf.items()), "pyspark-shell"]
            ),
        },
        check=False,
    )
    outcomes = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        name = f"{case.get('classname')}.{case.get('name')}"
        outcomes[name] = "skipped" if "skipped" in kinds else outcome
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
