"""``rstreams-fast run``: what it refuses, what it writes, and how it goes on after a kill."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import rstreams_fast.spark as rs
from examples.flights import data
from examples.flights.client import OpenSession, Session, fetch_plane
from examples.flights.service import Behaviour
from examples.flights.service_process import ServiceProcess
from rstreams_fast.cli import main
from rstreams_fast.spark.shell.errors import worker_exception
from rstreams_fast.spark.shell.estimate import Estimate, Keys, estimate_lines
from rstreams_fast.spark.shell.files import reader_path, with_types
from rstreams_fast.spark.shell.functions import policy_of
from tests.helpers import run_python, wait_until

NAME = "tests.spark.test_shell"
CALL = ["--call", f"{NAME}:upper", "--on", "key", "--add", "big string"]


async def upper(key: str) -> str:
    if key == "bad":
        raise LookupError("nobody knows it")
    return key.upper()


units = rs.Limit("own", rate=50, units={"letters": rs.per_minute(3)}, weigh=len)


@rs.Policy(timeout=2.0, limit=units)
async def own(key: str) -> str:
    return key


def plain(key: str) -> str:
    return key


def moment(key: str) -> dt.datetime:
    return dt.datetime.fromisoformat(f"1883-01-02T03:04:05.{key}67+00:00")


async def plane_of_row(session: Session, tailnum: str, row: str) -> tuple[str | None, int]:
    """Every row has a key of its own, so that one pass makes as many calls as there are rows."""
    found = await fetch_plane(session, tailnum)
    return found["model"] if found else None, int(row)


client = OpenSession(os.environ.get("SERVICE_URL", ""), 64)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "in [1].csv"  # whose name is a pattern, too
    file.write_text('key,text\na,"it is ""so"" "\na,0012\nbad,\n,x\n', encoding="utf-8")
    return file


def run(source: Path, *words: str) -> int:
    return main(
        ["run", "--input", str(source), "--output", str(source.with_name("out.csv")), *words]
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (CALL[:4], "not given: --add"),
        ([*CALL, "--input", "nowhere.csv"], "--input nowhere.csv: there is no such file"),
        ([*CALL, "--input", "nowhere"], "--input nowhere: no suffix says what kind of files"),
        ([*CALL, "--call", "upper"], "--call upper: must be package.module:function"),
        ([*CALL, "--call", "nomodule:f"], "--call nomodule:f: there is no module 'nomodule'"),
        ([*CALL, "--call", f"{NAME}:nothing"], "has no 'nothing'"),
        ([*CALL, "--call", f"{NAME}:NAME"], "is a str, and no function"),
        ([*CALL, "--on", "a,b"], "does not take what it would get: 2 keys"),
        ([*CALL, "--using", f"{NAME}:client"], "would get: the client of --using and 1 key"),
        ([*CALL, "--rate", "-1"], "--rate must be finite and > 0, got -1.0"),
        ([*CALL, "--budget", "-1"], "--budget must be finite and >= 0, got -1"),
        ([*CALL, "--retries", "-1"], "--retries must be >= 1, got -1"),
        ([*CALL, "--timeout", "0"], "--timeout must be > 0 seconds"),
        ([*CALL, "--call", f"{NAME}:plain", "--timeout", "1"], "--timeout needs an async fn"),
        ([*CALL, "--page", "nowhere/page.html"], "nowhere/page.html: there is no such dir"),
        ([*CALL, "--log", "/"], "--log /: is a directory"),
        ([*CALL, "--picture", "a.txt"], "--picture a.txt: must end with .png, .svg or .pdf"),
        ([*CALL, "--live", "--quiet"], "--live prints the address of the page, which --quiet "),
        ([*CALL, "--metrics", "s3://a/b"], "--metrics must be a directory's path, and not a URI"),
        ([*CALL, "--live", "--master", "yarn"], "--live, --page and --picture need --metrics"),
        ([*CALL, "--max-failures", "1%"], "--max-failures needs --dead-letters"),
        ([*CALL, "--journal-version", "2"], "--journal-version needs --journal"),
        ([*CALL, "--py-files", "no.zip"], "--py-files no.zip: there is no such file"),
        ([*CALL, "--output", "/"], "--output /: cannot be replaced"),
        *[
            ([*CALL, outer, out, inner, inside], f"{inner} {inside} is inside of {outer} {out}, wh")
            for outer, out, inner, inside in (
                ("--output", "no.csv", "--dead-letters", "no.csv/dead"),
                ("--dead-letters", "no", "--output", "no/o.csv"),
                ("--output", "file:no.csv", "--journal", "no.csv/../no.csv/journal"),
                ("--output", "s3a://a/b.csv", "--journal", "s3://a/b.csv"),
            )
        ],
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_status_2(
    words: list[str], told: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, *words) == 2
    assert told in (said := capsys.readouterr().err)
    assert re.fullmatch("rstreams-fast run: .*\n", said)
    assert list(source.parent.iterdir()) == [source]


def test_an_output_is_not_replaced_nor_written_twice_at_once(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rstreams_fast.spark.shell.errors import CommandError
    from rstreams_fast.spark.shell.files import target_of

    out = source.with_name("out.csv")
    first, second = (target_of(str(out), "--output", here=True, overwrite=True) for _ in "12")
    first.claim()
    with pytest.raises(CommandError, match="another run is writing it"):
        second.claim()
    first.close()
    second.claim()
    second.close()
    out.mkdir()
    assert run(source, *CALL) == 2
    assert f"--output {out} exists; --overwrite replaces it" in capsys.readouterr().err


@pytest.mark.parametrize("next_run", [False, True])
def test_the_former_output_is_put_back_if_the_new_one_does_not_appear(
    source: Path, next_run: bool
) -> None:
    """By the run itself or, if that was killed, by the next run."""
    from rstreams_fast.spark.shell.errors import CommandError, JobError
    from rstreams_fast.spark.shell.files import target_of

    out = source.with_name("out.csv")
    out.mkdir()
    (out / "former").touch()
    first = target_of(str(out), "--output", here=True, overwrite=True)
    first.claim()
    with pytest.raises(JobError, match="No such file or directory; the rows are in"):
        first.publish()  # it has moved the former output away, and finds no new one
    assert not out.exists()
    if next_run:
        kept = out.with_name("out.csv.partial").rename(source.with_name("kept"))
        first.close()
        kept.rename(out.with_name("out.csv.partial"))
        second = target_of(str(out), "--output", here=True, overwrite=True)
        second.claim()
        second.close()
    else:
        first.close()
    assert (out / "former").exists()
    with pytest.raises(CommandError, match="--output /proc: is a mount point"):
        target_of("/proc", "--output", here=True, overwrite=True).claim()


def test_a_run_removes_no_files_that_others_made(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source.with_name("out.csv.partial")
    (folder / ("0" * 32)).mkdir(parents=True)  # of a run that was killed
    text = source.read_text(encoding="utf-8")
    mine = source.rename(folder / "mine.csv")
    assert run(mine, *CALL, "--output", str(folder.with_suffix(""))) == 2
    assert f"writes to {folder}, which has other files, such as mine" in capsys.readouterr().err
    assert mine.read_text(encoding="utf-8") == text


NOTED = "error = ValueError('one\\ntwo')\nerror.add_note('three')\nraise error\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit: 0 ("),
        (NOTED, "ValueError: one two ("),
        ("def\n", "SyntaxError: invalid syntax (broken_job.py, line 1)\n"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_mistake(
    text: str,
    told: str,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(source.parent)
    source.with_name("broken_job.py").write_text(text, encoding="utf-8")
    assert run(source, *CALL, "--call", "broken_job:f") == 2
    assert f"--call broken_job:f: {told}" in (said := capsys.readouterr().err)
    assert said.count("\n") == 1


@pytest.mark.parametrize(("name", "shown"), [("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM")])
def test_the_help_names_each_signal_that_gives_status_130(
    name: str,
    shown: str,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(source.parent)
    stopping = f"import signal\nsignal.raise_signal(signal.{name})\n"
    source.with_name(f"stopping_{name}.py").write_text(stopping, encoding="utf-8")
    assert run(source, *CALL, "--call", f"stopping_{name}:f") == 130
    assert "stopped, and nothing was written" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert shown in told.partition("; 130 ")[2]


def test_formats_are_those_that_are_documented(source: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run(source, *CALL, "--format", "xml")
    assert ended.value.code == 2


@pytest.mark.parametrize("pattern", ["{a,b}.csv", "[^b].csv"])
def test_patterns_are_those_of_spark(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    assert reader_path(str(tmp_path / pattern)) == f"file:{tmp_path / pattern}"


TWO_PARTS = """\
Job aborted due to stage failure: org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/home/me/planes.py", line 3, in plane
    raise ValueError(answer)
  File "/lib/python3/site-packages/pyspark/worker.py", line 9, in main
    process()
ValueError: the service said

no such plane
rstreams_fast: raised by plane for the key 'N1'

\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:572)

Driver stacktrace:
"""
TASK_GROUP = """\
Job aborted due to stage failure: org.apache.spark.api.python.PythonException: \
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/planes.py", line 3, in plane
  |     async with asyncio.TaskGroup() as tasks:
  |   File "/lib/python3/asyncio/taskgroups.py", line 145, in __aexit__
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  | rstreams_fast: raised by plane for the key 'N1'
  +-+---------------- 1 ----------------
    | KeyError: 'N1'
    |\x20
    | During handling of the above exception, another exception occurred:
    |\x20
    | Traceback (most recent call last):
    |   File "/home/me/planes.py", line 5, in part
    |     raise LookupError(tailnum)
    | LookupError: N1
    +---------------- 2 ----------------
    | ValueError: no
    +------------------------------------

\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:572)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            TWO_PARTS,
            """\
ValueError: the service said

no such plane
rstreams_fast: raised by plane for the key 'N1'
  File "/home/me/planes.py", line 3, in plane
    raise ValueError(answer)""",
        ),
        (
            TASK_GROUP,
            """\
ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
rstreams_fast: raised by plane for the key 'N1'
  File "/home/me/planes.py", line 3, in plane
    async with asyncio.TaskGroup() as tasks:
LookupError: N1
  File "/home/me/planes.py", line 5, in part
    raise LookupError(tailnum)
ValueError: no""",
        ),
        ("Job aborted due to stage failure: no Python\n\tat org.a.B.c(D.scala:1)", None),
    ],
    ids=["two paragraphs", "task group", "Java"],
)
def test_the_exception_of_a_call_is_shown_with_its_key(text: str, told: str | None) -> None:
    assert worker_exception(text) == told


def test_a_project_may_have_the_name_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "pyspark"
    here.mkdir()
    monkeypatch.chdir(here)
    told = worker_exception(TWO_PARTS.replace("/home/me/", f"{here}/"))
    assert told is not None
    assert f'{here}/planes.py", line 3, in plane' in told
    assert "worker.py" not in told


def test_columns_with_types_keep_their_names() -> None:
    before = StructType([StructField(name, StringType()) for name in ("Hour", "text")])
    declared = StructType([StructField("hour", IntegerType(), nullable=False)])
    found = with_types(before, declared)
    assert [(field.name, field.dataType, field.nullable) for field in found] == [
        ("Hour", IntegerType(), True),
        ("text", StringType(), True),
    ]


def test_the_journal_and_the_error_are_those_of_this_run(tmp_path: Path, source: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    java.chmod(0o755)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "answers").touch()
    (tmp_path / "keeping.py").write_text(
        "import rstreams_fast.spark as rs\n"
        f"kept = rs.Journal({str(tmp_path / 'kept')!r}, version='1')\n"
        "@rs.Policy(journal=kept, cache=rs.Cache(5))\n"
        "async def f(key): return key\n",
        encoding="utf-8",
    )
    log = tmp_path / "log"
    log.write_text("java.lang.Error: long ago\n", encoding="utf-8")
    words = [*CALL, "--call", "keeping:f", "--journal", "other", "--log", "log", "--cache", "0"]
    done = run_python(
        "-m", "rstreams_fast.cli", "run", "--input", str(source), "--output", "out.csv", *words,
        check=False, cwd=tmp_path, env={"JAVA_HOME": str(tmp_path / "java"), "SPARK_REMOTE": None},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"Going on from the journal {tmp_path / 'kept'}\n" in done.stdout
    assert "--call keeping:f has a Policy with cache=Cache(entries=5," in done.stdout
    assert "Spark did not start" in done.stderr
    assert "long ago" not in done.stderr


def keys(rows: int, different: int) -> Keys:
    return Keys(rows, rows, different)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (
            {"limit": rs.Limit("each", concurrency=4, rate=5, scope="process")},
            ["8 calls at once, 10 calls a second, over all tasks", "about 20, if", "at least 20"],
        ),
        (
            {"limit": rs.Limit("all", concurrency=4, rate=5, scope="job")},
            ["4 calls at once, 5 calls a second, over all tasks", "at least 40"],
        ),
        (
            {"limit": rs.Limit("u", units={"t": rs.per_second(0.5)}, weigh=lambda _: 1)},
            ["0.5 t in 1 s", "t: about 200, from a sample of 200 rows"],
        ),
        ({"cache": rs.Cache(1000)}, ["calls: about 110, by 2 workers that keep 1,000 results"]),
        (
            {"cache": rs.Cache(1000, scope="executor")},
            ["calls: about 60, by workers that share 1,000 results"],
        ),
        ({"budget": rs.Budget("b", calls=1_234_567)}, ["at most 1,234,567 calls; then"]),
        ({"budget": rs.Budget("b", calls=3, scope="process")}, ["3 calls in each process; then"]),
    ],
)
def test_the_estimate_has_the_bounds_of_the_policy(policy: dict[str, Any], told: list[str]) -> None:
    estimate = Estimate([keys(100, 50), keys(100, 60)], 60, [("a",), ("b",)])
    of = policy_of(rs.Policy(**policy)(upper))
    lines = "\n".join(estimate_lines(estimate, of, concurrency=64, batch=None))
    for each in told:
        assert each in lines


def test_what_is_not_installed_is_said(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert run(source, *CALL) == 2
    assert "Spark needs Java 17 or 21, which is not installed: on Debian" in capsys.readouterr().err
    for missing in "pyspark", "rich":
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            assert run(source, *CALL) == 2
        told = capsys.readouterr().err
        assert f"needs {missing}, which is not installed: pip install 'rstreams_fast[" in told


SEVERAL = """
import json, sys
from rstreams_fast.cli import main
print(json.dumps([main(words) for words in json.loads(sys.argv[1])]))
"""


def run_all(source: Path, *commands: list[str]) -> tuple[list[int], str, str]:
    """Run commands in a process of their own; return the statuses, and what they said."""
    lines = [["run", "--input", str(source), *words] for words in commands]
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(lines)],
        capture_output=True, text=True, check=True, timeout=500,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]), done.stdout, done.stderr


INTERRUPTING = """
import signal, sys

class Finder:
    # A run draws its picture when the output is complete.
    def find_spec(self, name, path=None, target=None):
        if name == "matplotlib.figure":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())

def upper(key):
    return key.upper()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_after_the_output_is_complete_is_no_failure(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source.parent / "interrupting.py").write_text(INTERRUPTING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(source.parent), prepend=os.pathsep)
    out, picture = str(source.with_name("out.csv")), str(source.with_name("a.png"))
    words = ["--call", "interrupting:upper", "--on", "key", "--add", "big string"]
    statuses, _, errors = run_all(source, [*words, "--output", out, "--picture", picture])
    assert f"stopped, but the output {out} is complete" in errors
    assert statuses == [0]
    assert [p.read_text() for p in Path(out).glob("*.csv")]


UNREAD = """
import sys
from rstreams_fast.spark import report

console = report.make_console()
for text in "first", "second":
    console.print(text)
print("goes on", file=sys.stderr)
"""

RUNNING = "import sys; from rstreams_fast.cli import main; sys.exit(main(sys.argv[1:]))"


def run_unread(*words: str) -> tuple[int, str]:
    """Run Python with a standard output that nobody reads; return its status and its errors."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", *words],
            stdout=writing, stderr=subprocess.PIPE, text=True, timeout=500, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    return done.returncode, done.stderr


def test_a_console_that_nobody_reads_ends_no_process() -> None:
    assert run_unread(UNREAD) == (0, "goes on\n")


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_whose_messages_nobody_reads_writes_its_output(source: Path) -> None:
    out = source.with_name("out.csv")
    words = ["--call", f"{NAME}:plain", "--on", "key", "--add", "same string"]
    status, errors = run_unread(
        RUNNING, "run", "--input", str(source), "--output", str(out), *words
    )
    assert status == 0, errors
    assert [part.read_text() for part in out.glob("*.csv")]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)  # thirteen sessions of Spark
def test_rows_go_in_and_come_out(source: Path) -> None:
    out, page = str(source.with_name("out.csv")), source.with_name("page.html")
    dead, again = str(source.with_name("dead")), str(source.with_name("again.json"))
    lines = source.with_name("lines.csv")
    lines.write_text('key,text\na,"two\nlines"\n', encoding="utf-8")
    heads, maps = source.with_name("heads.csv"), source.with_name("maps.json")
    heads.mkdir()
    for name in "key,text", "text,key":
        (heads / f"{name}.csv").write_text(f"{name}\na,b\n", encoding="utf-8")
    maps.write_text('{"key": {"a": "b"}}\n{"key": {"a": "c"}}\n', encoding="utf-8")
    of_maps = ["--input", str(maps), "--types", "key map<string, string>"]
    from_dead = ["--input", dead, "--format", "parquet", "--dead-letters", f"{dead}er"]
    own_policy = ["--call", f"{NAME}:own", "--timeout", "9", "--retries", "2"]
    parts, times = source.with_name("parts"), str(source.with_name("times.csv"))
    (parts / "code=0012").mkdir(parents=True)
    (parts / "code=0012" / "a.csv").write_text('key\n"a\0"\n', encoding="utf-8")
    stamped = ["--call", f"{NAME}:moment", "--on", "code", "--add", "at timestamp"]
    zone = ["--conf", "spark.sql.session.timeZone=America/New_York"]
    statuses, said, errors = run_all(
        source,
        [*CALL, "--on", "kye", "--output", out],
        [*CALL, "--add", "big strin", "--output", out],
        [*CALL, "--add", "big array<int>", "--output", out],
        [*CALL, "--types", "txt int", "--output", out],
        [*CALL, "--output", out],
        [*CALL, "--input", str(lines), "--output", out],
        [*CALL, "--output", out, "--budget", "0"],
        [*CALL, "--output", out, "--dead-letters", dead, "--page", str(page), "--live"],
        [*CALL, *own_policy, "--explain", "--budget", "7"],
        [*CALL, *own_policy, *from_dead, "--quiet", "--output", again],
        [*stamped, *zone, "--input", str(parts), "--format", "csv", "--output", times],
        [*CALL, "--input", str(heads), "--output", out, "--overwrite"],
        [*CALL, *of_maps, "--explain"],
    )
    assert statuses == [2, 2, 2, 2, 1, 1, 1, 3, 0, 0, 0, 1, 0]
    # A name of a directory is a string, too, and a text keeps its NUL. A time keeps its
    # microseconds, and its offset from UTC the seconds of local mean time.
    written = [p.read_text() for p in Path(times).glob("*.csv")]
    assert written == ["key,code,at\na\0,0012,1883-01-01T22:08:03.001267-04:56:02\n"]
    assert "--on: the input has no column 'kye'; it has key, text\n" in errors
    assert "--add='big strin' is no valid DDL" in errors
    assert "doesn't support the column `big`" in errors
    assert "--types: the input has no column 'txt'; it has key, text\n" in errors
    assert (
        "run: LookupError: nobody knows it\nrstreams_fast: raised by upper for the key key='bad'"
        in errors
    )
    assert re.search('run: .*Malformed.*lines".* .--read multiLine=true reads values', errors)
    assert re.search("run: .*heads.csv/.*header does not conform to the schema.* but found", errors)
    assert "different keys: about 2\n" in said
    assert "BudgetSpentError: the budget 'tests.spark.test_shell:upper' is spent" in errors
    assert not re.search("Traceback|pyspark", errors)
    assert "1 rows whose call failed" in said
    assert "Live page: http://127.0.0.1:" in said
    for told in (
        "has a Policy with timeout=2.0, which holds",
        "budget: at most 7 calls",
        "rows: 4, of which 1 have a null key and make no call",
        "calls: about 2, by one worker",
        "64 calls at once, 50 calls a second, 3 letters in 60 s",
        "letters: about 4, from a sample",
        "at least 80",
    ):
        assert told in said
    written = [p.read_text() for p in Path(out).glob("*.csv")]
    assert written == ['key,text,big\na,"it is ""so"" ",A\na,0012,A\n,x,\n']
    texts = [p.read_text() for p in Path(again).glob("*.json")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert [(row["key"], row["big"], row["failure"]["error"]["type"]) for row in rows] == [
        ("bad", "bad", "LookupError")
    ]
    assert "<h1>upper for " in page.read_text()
    names = {
        "parts",
        "times.csv",
        source.name,
        "lines.csv",
        "heads.csv",
        "maps.json",
        "out.csv",
        "page.html",
        "dead",
        "deader",
        "again.json",
    }
    assert {path.name for path in source.parent.iterdir()} == names


FLIGHTS = 30_000
AT_ONCE = 32


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)  # three runs of Spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_killed_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    found = data.find_files()
    data.write_flights(found, tmp_path / "flights.csv", FLIGHTS)
    data.write_database(found, tmp_path / "lookups.sqlite")
    words = [
        "run", "--input", "flights.csv", "--output", "out.parquet", "--read", "nullValue=NA",
        "--call", f"{NAME}:plane_of_row", "--using", f"{NAME}:client", "--on", "tailnum,row",
        "--add", "model string, number int", "--limit", str(AT_ONCE), "--journal", "journal",
        "--master", "local[2]",
    ]  # fmt: skip
    root = str(Path(__file__).parents[2])
    with ServiceProcess(tmp_path / "lookups.sqlite", Behaviour(), tmp_path / "log") as service:
        environment = {
            **os.environ,
            "SERVICE_URL": service.url,
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        }

        def start(*more: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-m", "rstreams_fast.cli", *words, *more],
                cwd=tmp_path, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip

        told, _ = start("--explain").communicate(timeout=300)
        assert not service.stats()["requests"]
        killed = start()
        wait_until(lambda: service.stats()["requests"] > FLIGHTS / 2, "half", timeout=300)
        killed.send_signal(number)
        said, errors = killed.communicate(timeout=120)
        if number == signal.SIGINT:
            assert killed.returncode == 130
            told_stopped = "stopped, and nothing was written; the answers are in journal"
            assert re.fullmatch(f"rstreams-fast run: {told_stopped}, .*\n", errors)
        else:
            assert killed.returncode == -number
        assert not (tmp_path / "out.parquet").exists()
        again = start()
        said, errors = again.communicate(timeout=300)
        assert again.returncode == 0, errors
        counted = service.stats()
    table = pq.read_table(tmp_path / "out.parquet")
    with_key = pc.sum(pc.is_valid(table["tailnum"])).as_py()
    assert pc.sum(pc.is_valid(table["number"])).as_py() == with_key
    assert table.num_rows == FLIGHTS
    assert with_key <= counted["requests"] <= with_key + AT_ONCE
    assert counted["max_held"] <= AT_ONCE
    assert "Going on from the journal journal" in said
    assert "rows had their answer in the journal, and made no call" in said
    estimate = re.search(r"calls: about ([\d,]+)", told)
    assert estimate
    assert float(estimate[1].replace(",", "")) == pytest.approx(with_key, rel=0.1)
