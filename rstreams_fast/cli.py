"""The command ``rstreams-fast``."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import rstreams_fast
from rstreams_fast.core import backend
from rstreams_fast.streams.engine.defaults import PREFETCH

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names (default: ``sys.argv[1:]``). Return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    options = _parser(set(arguments)).parse_args(arguments)
    command: Command = options.command
    return command(options)


def _parser(words: set[str]) -> argparse.ArgumentParser:
    """Return the argument parser. ``words`` are the command-line arguments.

    The module of a command, such as ``tck``, is imported only if ``words`` contains its name.
    """
    parser = argparse.ArgumentParser(
        prog="rstreams-fast",
        description="Reactive Streams for Python: calls for the rows of a file, and the test kit.",
    )
    parser.add_argument("--version", action="version", version=rstreams_fast.__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    tck = commands.add_parser("tck", help="the test kit: does an implementation keep the rules?")
    if "tck" in words:
        from rstreams_fast.tck.command import add_arguments as add_of_tck
        from rstreams_fast.tck.command import run as run_tck

        add_of_tck(tck)
        tck.set_defaults(command=_printing(run_tck))
    job = commands.add_parser(
        "run", help="call a function for each row of a file, by Spark: Parquet, CSV, JSON"
    )
    if "run" in words:
        from rstreams_fast.spark.shell.command import add_arguments as add_of_run
        from rstreams_fast.spark.shell.command import run as run_job

        add_of_run(job)
        job.set_defaults(command=_printing(run_job))
    info = commands.add_parser(
        "info", help="say what is installed, which backend is in use, which bounds hold"
    )
    info.add_argument(
        "--spark", action="store_true", help="say whether the drop-in daemon fits this PySpark"
    )
    info.set_defaults(command=_printing(_info))
    return parser


Command = Callable[[argparse.Namespace], int]

_NOBODY_READS = 128 + 13
"""The exit status that a shell reports for a process that the signal SIGPIPE (13) has ended."""


def _printing(command: Command) -> Command:
    """Return ``command``, wrapped so that it ends silently on a closed output pipe (``| head``)."""

    def run(options: argparse.Namespace) -> int:
        try:
            status = command(options)
            sys.stdout.flush()
        except BrokenPipeError:
            # Redirect stdout to os.devnull. Otherwise Python would try at exit to write the rest of
            # the output to the closed pipe, and would print an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _NOBODY_READS
        return status

    return run


# -- the command ``rstreams-fast info`` ------------------------------------------------------------


def _info(options: argparse.Namespace) -> int:
    lines = {
        "rstreams_fast": f"{rstreams_fast.__version__} ({Path(rstreams_fast.__file__).parent})",
        "backend": backend,
        "python": (
            f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
        ),
        "java": _java(),
        **{name: _version(name) for name in ("pyspark", "pyarrow", "aiohttp")},
        **_bounds(),
        **(_drop_in() if options.spark else {}),
    }
    width = max(map(len, lines)) + 2
    for name, value in lines.items():
        print(f"{name:<{width}}{value}")
    return 0


def _drop_in() -> dict[str, str]:
    from rstreams_fast.spark.daemon.seam_check import seam_status

    return {"spark daemon": seam_status()}


def _bounds() -> dict[str, str]:
    from rstreams_fast.calls.settings import DEFAULT_CONCURRENCY
    from rstreams_fast.spark.options import DEFAULT_BUFFER_BYTES

    return {
        "stream bounds": f"publish_on and iterate {PREFETCH} elements (prefetch=...)",
        "spark bounds": (
            f"{DEFAULT_CONCURRENCY} calls (concurrency=...), {DEFAULT_BUFFER_BYTES >> 20} MiB "
            "of input (bounds=...), per stage and task"
        ),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return "not found"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as failed:
        return f"does not run: {failed}"
    return f"{(said.stderr or said.stdout).splitlines()[0]} ({java})"


if __name__ == "__main__":
    sys.exit(main())
