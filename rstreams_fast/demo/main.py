"""``rstreams-fast demo`` without ``--compare``: run, watch, report, and the exit status."""

from __future__ import annotations

import signal
import threading
import traceback
from types import FrameType
from typing import Final

from rich.console import Console

from rstreams_fast.demo.errors import (
    EXIT_DIFFERENT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    DemoError,
)
from rstreams_fast.demo.job import STAGES
from rstreams_fast.demo.progress import LOOK_SECONDS, Display, complain, make_console
from rstreams_fast.demo.report import draw, print_report, write_json
from rstreams_fast.demo.run import Interrupted, MainJob, Options, Outcome
from rstreams_fast.demo.watch import Watch

__all__ = ["run_demo"]

CANCEL_SECONDS: Final = 0.5
"""How often a job that is to stop is told so again."""


def run_demo(options: Options) -> int:
    """Run the main job and report; return the exit status."""
    console = make_console()
    stop = threading.Event()

    def asked_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, asked_to_stop) for number in _STOPPING}
    try:
        return _run(options, console, stop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


def _run(options: Options, console: Console, stop: threading.Event) -> int:
    job = MainJob(options)
    watch = Watch(job.figures, STAGES)
    try:
        with Display(console) as display:
            job.start()
            while not job.wait(LOOK_SECONDS) and not stop.is_set():
                display.update(job, watch)
            if stop.is_set():
                display.say("Stopping ...")
                job.cancel()
                while not job.wait(CANCEL_SECONDS):
                    job.cancel()
            else:
                display.finish(job)
        outcome = job.result()
    except Interrupted:
        console.print("Stopped: nothing is left running, and no file was left.")
        return EXIT_INTERRUPTED
    except DemoError as error:
        complain(str(error))
        return EXIT_FAILED
    except Exception:  # a bug of ours: not to be taken for a difference, which is status 1
        traceback.print_exc()
        return EXIT_FAILED
    finally:
        job.close()
    return _report(options, console, outcome, watch)


def _report(options: Options, console: Console, outcome: Outcome, watch: Watch) -> int:
    print_report(console, options, outcome)
    picture = draw(options, outcome, watch.samples)
    summary = write_json(options, outcome, watch.samples)
    console.print()
    for label, path in (
        ("Enriched flights", outcome.output),
        ("Picture", picture),
        ("All figures", summary),
    ):
        console.print(f"{label}: {path}", soft_wrap=True, highlight=False)
    return EXIT_OK if outcome.proof.holds else EXIT_DIFFERENT
