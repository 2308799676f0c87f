"""The command ``rstreams-fast``, where even a package that cannot be imported is one sentence.

``rstreams_fast`` chooses its backend when it is imported, before any function of it can run.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; a backend that cannot be loaded is a sentence and the status 2."""
    try:
        from rstreams_fast.cli import main as run
    except ImportError as missing:
        if type(missing).__name__ != "BackendUnavailableError":
            raise
        print(f"rstreams-fast: {missing}", file=sys.stderr)
        return 2
    return run()
