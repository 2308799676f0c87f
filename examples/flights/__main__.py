"""The command behind ``make demo``: what it takes, and with which status it ends."""

from __future__ import annotations

import argparse
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from examples.flights import drop_in
from examples.flights.background import Interrupted, run_until_done
from examples.flights.compare import CompareOptions, run_compare
from examples.flights.errors import (
    EXIT_DIFFERENT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    DemoError,
    complain,
)
from examples.flights.job import STAGES, Bounds
from examples.flights.report import report
from examples.flights.rivals import Delay
from examples.flights.run import ENRICHING, MainJob, Options
from examples.flights.service import Behaviour
from rstreams_fast.spark.report import Display, Watch, make_console

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status. For the main thread."""
    options = _parser().parse_args(argv)
    if options.compare:
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
    run = run_drop_in if options.drop_in else run_demo
    described = Options(
        output=options.output,
        rows=options.rows,
        master=options.master,
        batch_rows=options.batch_rows,
        bounds=Bounds(concurrency=options.concurrency, max_buffer_bytes=options.buffer_mib << 20),
        behaviour=Behaviour(
            latency=options.latency_ms / 1000,
            slow=options.slow_ms / 1000,
            slow_share=options.slow_share,
            stall_after=options.stall_after,
            stall=options.stall_s,
        ),
    )
    console = make_console()
    try:
        return run(console, described)
    except Interrupted:
        console.print("Stopped: nothing is left running, and no file was left.")
        return EXIT_INTERRUPTED
    except DemoError as error:
        complain(str(error))
        return EXIT_FAILED
    except Exception:  # a bug here: not to be taken for a difference, which is status 1
        traceback.print_exc()
        return EXIT_FAILED


def run_demo(console: Console, options: Options) -> int:
    """Run the main job and report; return the exit status. For the main thread."""
    job = MainJob(options)
    watch = Watch(job.metrics, STAGES)
    try:
        with Display(console) as display:

            def look() -> None:
                display.show_phases(job.phases)
                if job.phases and job.phases[-1][0] == ENRICHING:
                    display.show_rows(watch, job.rows)

            run_until_done(job, look, lambda: display.say("Stopping ..."))
            display.show_phases(job.phases)
            display.finish(failed=job.failed)
        outcome = job.result()
        watch.look()
    finally:
        job.close()
    report(console, options, outcome, watch)
    return EXIT_OK if outcome.proof.holds else EXIT_DIFFERENT


def run_drop_in(console: Console, options: Options) -> int:
    """Run a plain UDF with both daemons; return the exit status. For the main thread."""
    both = drop_in.DropIn(options)
    with console.status("Starting Spark") as status:
        run_until_done(
            both, lambda: status.update(both.doing), lambda: console.print("Stopping ...")
        )
    return drop_in.report(console, both.result())


# -- the command line ------------------------------------------------------------------------------

_DESCRIPTION = (
    "Gives every flight that left New York in 2013 its weather and its plane, by HTTP look-ups "
    "from inside Spark, and proves the result by a plain SQL join."
)
_EPILOG = (
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make demo", description=_DESCRIPTION, epilog=_EPILOG)
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
        "--drop-in",
        action="store_true",
        help="instead of the job: planes by a plain @udf, with Spark's daemon and with the drop-in",
    )
    compare.add_argument(
        "--rounds", type=count, default=5, metavar="N", help="medians are of so many (%(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
