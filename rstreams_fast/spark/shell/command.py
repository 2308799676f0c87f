"""The command line of ``rstreams-fast run``: its arguments and its exit status."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.spark.shell.errors import (
    EXIT_DEAD_LETTERS,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_WRONG,
    CommandError,
    JobError,
)

if TYPE_CHECKING:
    from rstreams_fast.spark.shell.job import Job

__all__ = ["add_arguments", "run"]

_EPILOG: Final = (
    f"Exit status: {EXIT_OK} every row is in the output; {EXIT_FAILED} a call failed, or Spark, "
    f"and there is no output; {EXIT_WRONG} the command is wrong, or something is not installed, "
    f"and nothing was called; {EXIT_DEAD_LETTERS} the output is there, and some rows are dead "
    f"letters; {EXIT_INTERRUPTED} stopped by Ctrl-C or SIGTERM."
)

DEFAULT_CACHE: Final = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``rstreams-fast run`` to ``parser``."""
    parser.usage = (
        "rstreams-fast run --input PATH --output PATH --call MODULE:FUNCTION --on COLUMN "
        '--add "NAME TYPE" [options]'
    )
    parser.description = (
        "Call a function for each row of a file, and write the rows with what it returned."
    )
    parser.epilog = _EPILOG
    for title, arguments in _ARGUMENTS.items():
        group = parser.add_argument_group(title)
        for name, (metavar, text, words) in arguments.items():
            named = words if metavar is None else {"metavar": metavar, **words}
            group.add_argument(f"--{name}", help=text, **named)


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, is {text}")
    return name, value


def _parse_count_or_share(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number or a percentage, is {text}") from None


_KIND: Final[dict[str, Any]] = {"choices": ("parquet", "csv", "json")}
_FLAG: Final[dict[str, Any]] = {"action": "store_true"}
_MANY: Final[dict[str, Any]] = {"action": "append", "type": _parse_setting, "default": []}

_Argument = tuple[str | None, str, dict[str, Any]]

_ARGUMENTS: Final[dict[str, dict[str, _Argument]]] = {
    "what is called": {
        "input": ("PATH", "Parquet, CSV or JSON lines: a file, directory or pattern", {}),
        "output": ("PATH", "the directory of part files that Spark writes", {}),
        "call": ("MODULE:FUNCTION", "async, or a plain function, which runs on threads", {}),
        "on": ("COLUMNS", "the columns whose values the function gets: a,b", {}),
        "add": ("COLUMNS", 'the columns that it returns: "temp double, wind double"', {}),
        "using": ("MODULE:FACTORY", "makes a client, which the function then gets first", {}),
    },
    "the files": {
        "format": ("KIND", "of files whose suffix does not tell: parquet, csv, json", _KIND),
        "types": ("COLUMNS", 'types of columns of CSV, which else are strings: "hour int"', {}),
        "read": ("NAME=VALUE", "an option of Spark's reader: nullValue=NA", _MANY),
        "write": ("NAME=VALUE", "an option of Spark's writer: compression=gzip", _MANY),
        "overwrite": (None, "replace an output that exists", _FLAG),
    },
    "what surrounds a call": {
        "limit": ("N", "calls at once, over all tasks (64 in each task)", {"type": int}),
        "rate": ("N", "calls a second, over all tasks (no bound)", {"type": float}),
        "budget": ("N", "attempts in all; then calls fail (no bound)", {"type": int}),
        "batch": ("N", "the function gets a list of up to N keys (one key)", {"type": int}),
        "timeout": ("S", "seconds for an attempt of an async function (no bound)", {"type": float}),
        "retries": ("N", "further attempts of a call that failed (0)", {"type": int}),
        "cache": (
            "N",
            f"results that each worker keeps; 0: a call for each row ({DEFAULT_CACHE})",
            {"type": int, "default": DEFAULT_CACHE},
        ),
        "journal": ("DIR", "keeps answers: the same command goes on where it was stopped", {}),
        "journal-version": ("TEXT", "another one makes all calls anew (MODULE:FUNCTION)", {}),
        "dead-letters": (
            "DIR",
            "takes the rows whose call failed, as Parquet; the rest goes on",
            {},
        ),
        "max-failures": (
            "N",
            "or N%%: more dead letters fail the job (all)",
            {"type": _parse_count_or_share},
        ),
    },
    "where it runs": {
        "master": ("URL", "Spark's master (local[*])", {}),
        "remote": ("URL", "a server of Spark Connect", {}),
        "conf": ("NAME=VALUE", "a setting of Spark's", _MANY),
        "py-files": ("FILES", "modules that executors elsewhere need: a.py,b.zip", {}),
    },
    "what is told": {
        "explain": (None, "say what would be called and what it costs, and call nothing", _FLAG),
        "quiet": (None, "no bar and no tables", _FLAG),
        "live": (None, "serve a page that follows the run, to this machine alone", _FLAG),
        "page": ("FILE", "the report as one HTML file: charts over time, and tables", {}),
        "picture": ("FILE", "throughput and calls in flight over time: PNG, SVG, PDF", {}),
        "metrics": ("DIR", "for the bar on a cluster: a directory that all hosts share", {}),
        "log": ("FILE", "what Spark and its workers say (kept only if the job fails)", {}),
    },
}


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status. Call this function on the main thread."""
    from rstreams_fast.spark.shell.job import Job

    stopped = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    root = logging.getLogger()
    root.addFilter(_is_of_interest)
    with tempfile.TemporaryDirectory(prefix="rstreams-run-", ignore_cleanup_errors=True) as scratch:
        log = Path(options.log or Path(scratch, "spark.log"))
        job: Job | None = None
        try:
            with contextlib.closing(Job(options, Path(scratch), log)) as job:
                failed = job.run()
        except KeyboardInterrupt:
            if job is None or job.failed is None:
                return _report_stopped(job)
            failed = job.failed
            _print_error(f"stopped, but the output {options.output} is complete")
        except (CommandError, JobError) as failure:
            if stopped:  # the error came only because SIGTERM also ended Java
                return _report_stopped(job)
            _print_error(str(failure))
            if isinstance(failure, CommandError):
                return EXIT_WRONG
            if not options.log:
                kept = Path(tempfile.mkstemp(prefix="rstreams-run-", suffix=".log")[1])
                log.replace(kept)
                log = kept
            _print_error(f"there is no output; Spark's log is {log}")
            return EXIT_FAILED
        finally:
            root.removeFilter(_is_of_interest)
            signal.signal(signal.SIGTERM, before)
    return EXIT_DEAD_LETTERS if failed else EXIT_OK


def _is_of_interest(record: logging.LogRecord) -> bool:
    """Return ``False`` for the traceback that py4j logs when Ctrl-C interrupts it."""
    return "while sending command" not in record.getMessage()


def _report_stopped(job: Job | None) -> int:
    journal = job.journal if job else None
    written = ", ".join(job.visible if job else ()) or "nothing"
    again = (
        f"the answers are in {journal}, and the same command goes on from there"
        if journal
        else "with --journal DIR the same command would go on where it was stopped"
    )
    _print_error(f"stopped, and {written} was written; {again}")
    return EXIT_INTERRUPTED


def _print_error(text: str) -> None:
    print(f"rstreams-fast run: {text}", file=sys.stderr)
