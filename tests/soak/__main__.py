"""``python -m tests.soak``: soak the backend that ``RSTREAMS_FAST_BACKEND`` names."""

from __future__ import annotations

import argparse
import secrets
import sys

import rstreams_fast
from tests.soak.driver import Soak, SoakFailed
from tests.soak.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--only", default="", help="the scenarios whose names begin so")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="one, with --chance")
    parser.add_argument("--chance", help="what a failure named: run this over and over")
    options = parser.parse_args()
    chosen = {name: run for name, run in SCENARIOS.items() if name.startswith(options.only)}
    if not chosen or (options.scenario is None) is not (options.chance is None):
        parser.error("no such scenario, or --scenario without --chance")
    soak = Soak(chosen, options.seed)
    print(f"soaking {rstreams_fast.backend} for {options.seconds:.0f} s, seed {options.seed}")
    sys.stdout.flush()
    try:
        if options.scenario is not None:
            soak.again(options.scenario, options.chance, options.seconds)
        else:
            soak.run(options.seconds)
    except SoakFailed as failed:
        print(f"FAILED: {failed}", file=sys.stderr)
        return 1
    print(f"  ok  {soak.runs.total()} runs of {len(soak.runs)} scenarios")
    return 0


if __name__ == "__main__":
    sys.exit(main())
