"""``python -m bench.groups.idle N``: how many subscribed, and by how much the process grew."""

from __future__ import annotations

import gc
import sys

import psutil

from bench.groups.streams import Idle, five_stages


def main() -> None:
    gc.disable()  # nothing becomes garbage here, and a million objects are slow to look through
    process = psutil.Process()
    before = process.memory_info().rss
    stream = five_stages()
    subscribers = []
    for _ in range(int(sys.argv[1])):
        subscribers.append(Idle())
        stream.subscribe(subscribers[-1])
    grown = process.memory_info().rss - before
    print(sum(each.subscription is not None for each in subscribers), grown)


if __name__ == "__main__":
    main()
