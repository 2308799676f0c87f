"""``rstreams-fast demo`` without ``--compare``: run, watch, report, and the exit status."""

from __future__ import annotations

import traceback

from rich.console import Console

from rstreams_fast.demo.background import Interrupted, run_until_done
from rstreams_fast.demo.errors import (
    EXIT_DIFFERENT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    DemoError,
)
from rstreams_fast.demo.job import STAGES
from rstreams_fast.demo.progress import Display, complain, make_console
from rstreams_fast.demo.report import draw, print_report, write_json
from rstreams_fast.demo.run import MainJob, Options, Outcome
from rstreams_fast.demo.watch import Watch

__all__ = ["run_demo"]


def run_demo(options: Options) -> int:
    """Run the main job and report; return the exit status. For the main thread."""
    console = make_console()
    job = MainJob(options)
    watch = Watch(job.figures, STAGES)
    try:
        with Display(console) as display:
            run_until_done(
                job, lambda: display.update(job, watch), lambda: display.say("Stopping ...")
            )
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
