"""The command ``rstreams-fast``."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import rstreams_fast

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    options = _parser(uses_tck="tck" in arguments).parse_args(arguments)
    command: Command = options.command
    return command(options)


def _parser(*, uses_tck: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rstreams-fast",
        description="Reactive Streams for Python: the demo, the test kit, and what is installed.",
    )
    parser.add_argument("--version", action="version", version=rstreams_fast.__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="the main job: 336 776 real flights through Spark and HTTP, proved row by row",
        description=_DEMO_DESCRIPTION,
        epilog=_DEMO_EPILOG,
    )
    _add_demo(demo)
    tck = commands.add_parser("tck", help="the test kit: does an implementation keep the rules?")
    if uses_tck:  # what it understands comes with the kit, which nobody else needs
        from rstreams_fast.tck.command import add_arguments, run

        add_arguments(tck)
        tck.set_defaults(command=_printing(run))
    info = commands.add_parser(
        "info", help="say what is installed, which backend is in use, which bounds hold"
    )
    info.set_defaults(command=_printing(_info))
    return parser


Command = Callable[[argparse.Namespace], int]

_NOBODY_READS = 128 + 13
"""The status of who is ended by SIGPIPE, as shells tell it."""


def _printing(command: Command) -> Command:
    """``command``, which ends in silence if nobody reads any more what it prints (``| head``)."""

    def run(options: argparse.Namespace) -> int:
        try:
            status = command(options)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is left to be written would be tried again at exit, and complained about.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _NOBODY_READS
        return status

    return run


# -- demo ------------------------------------------------------------------------------------------

_DEMO_DESCRIPTION = (
    "Gives every flight that left New York in 2013 its weather and its plane, by HTTP look-ups "
    "from inside Spark, and proves the result by a plain SQL join."
)
_DEMO_EPILOG = (
    "Exit status: 0 all rows agree; 1 the result differs; 2 the command line is wrong; "
    "3 the job could not run; 130 stopped by Ctrl-C."
)


_MOST = 2**31 - 1
"""What the JVM counts rows with; calls and MiB beyond it are no bound, either."""


def _number(
    kind: type[int | float], least: int, most: int | None = None
) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        value = kind(text)
        if not least <= value:
            raise argparse.ArgumentTypeError(f"must be at least {least}, is {text}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, is {text}")
        if value == math.inf:
            raise argparse.ArgumentTypeError(f"must be finite, is {text}")
        return value

    parse.__name__ = kind.__name__  # argparse's word for it when the text is no number
    return parse


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a share between 0 and 1, is {text}")
    return value


def _add_demo(parser: argparse.ArgumentParser) -> None:
    count, milliseconds, seconds = _number(int, 1, _MOST), _number(float, 0), _number(float, 0)
    job = parser.add_argument_group("the job")
    job.add_argument("--rows", type=count, metavar="N", help="only the first N flights (all)")
    job.add_argument(
        "--output", type=Path, default=Path("demo-output"), metavar="DIR", help="%(default)s"
    )
    job.add_argument("--master", default="local[*]", help="Spark's master (%(default)s)")
    job.add_argument(
        "--batch-rows",
        type=count,
        default=10_000,
        metavar="N",
        help="rows in an Arrow batch (%(default)s)",
    )
    job.add_argument(
        "--concurrency",
        type=count,
        default=64,
        metavar="N",
        help="look-ups in flight, per stage and task (%(default)s)",
    )
    job.add_argument(
        "--buffer-mib",
        type=count,
        default=8,
        metavar="N",
        help="input held, per stage and task (%(default)s)",
    )
    service = parser.add_argument_group("the look-up service")
    service.add_argument(
        "--latency-ms", type=milliseconds, default=2.0, metavar="MS", help="%(default)s"
    )
    service.add_argument(
        "--slow-ms",
        type=milliseconds,
        default=50.0,
        metavar="MS",
        help="of a share of the answers (%(default)s)",
    )
    service.add_argument(
        "--slow-share", type=_share, default=0.02, metavar="SHARE", help="%(default)s"
    )
    service.add_argument(
        "--stall-after",
        type=count,
        default=0,
        metavar="N",
        help="stop answering at the N-th look-up (never)",
    )
    service.add_argument(
        "--stall-s", type=seconds, default=10.0, metavar="S", help="... for so long (%(default)s)"
    )
    compare = parser.add_argument_group("comparison")
    compare.add_argument(
        "--compare",
        action="store_true",
        help="instead of the job: one core, five ways to overlap look-ups that wait in the process",
    )
    compare.add_argument(
        "--rounds", type=count, default=5, metavar="N", help="medians are of so many (%(default)s)"
    )
    parser.set_defaults(command=_demo)


def _demo(options: argparse.Namespace) -> int:
    missing = [
        name
        for name in ("pyspark", "pyarrow", "aiohttp", "rich", "matplotlib")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        print(
            f"rstreams-fast demo: not installed: {', '.join(missing)}; "
            "install what the demo needs with: pip install 'rstreams_fast[demo]'",
            file=sys.stderr,
        )
        return 3
    if options.compare:
        from rstreams_fast.demo.compare import CompareOptions, run_compare
        from rstreams_fast.demo.rivals import Delay

        delay = Delay(options.latency_ms / 1000, options.slow_ms / 1000, options.slow_share)
        sample = {} if options.rows is None else {"rows": options.rows}
        return run_compare(
            CompareOptions(
                options.output,
                rounds=options.rounds,
                concurrency=options.concurrency,
                delay=delay,
                **sample,
            )
        )
    from rstreams_fast.demo.job import Bounds
    from rstreams_fast.demo.main import run_demo
    from rstreams_fast.demo.run import Options
    from rstreams_fast.demo.service import Behaviour

    return run_demo(
        Options(
            output=options.output,
            rows=options.rows,
            master=options.master,
            batch_rows=options.batch_rows,
            bounds=Bounds(
                concurrency=options.concurrency, max_buffer_bytes=options.buffer_mib << 20
            ),
            behaviour=Behaviour(
                latency=options.latency_ms / 1000,
                slow=options.slow_ms / 1000,
                slow_share=options.slow_share,
                stall_after=options.stall_after,
                stall=options.stall_s,
            ),
        )
    )


# -- info ------------------------------------------------------------------------------------------


def _info(_options: argparse.Namespace) -> int:
    from rstreams_fast.core import backend

    lines = {
        "rstreams_fast": f"{rstreams_fast.__version__} ({Path(rstreams_fast.__file__).parent})",
        "backend": backend,
        "python": (
            f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
        ),
        "java": _java(),
        **{name: _version(name) for name in ("pyspark", "pyarrow", "aiohttp")},
        **_bounds(),
    }
    width = max(map(len, lines)) + 2
    for name, value in lines.items():
        print(f"{name:<{width}}{value}")
    return 0


def _bounds() -> dict[str, str]:
    from rstreams_fast.spark.options import DEFAULT_BUFFER_BYTES, DEFAULT_CONCURRENCY
    from rstreams_fast.streams.tuning import ITERATE_PREFETCH, PREFETCH

    return {
        "stream bounds": (
            f"publish_on {PREFETCH} elements, iterate {ITERATE_PREFETCH} elements (prefetch=...)"
        ),
        "spark bounds": (
            f"{DEFAULT_CONCURRENCY} calls (concurrency=...), {DEFAULT_BUFFER_BYTES >> 20} MiB "
            "of input (max_buffer_bytes=...), per stage and task"
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
