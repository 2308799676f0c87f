"""A forked child calls a function with a policy, whatever the parent's threads did at the fork."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from tests.helpers import run_python

FORKS = """
import os, signal, sys, threading
import rstreams_fast as rsf

@rsf.Policy(**eval(sys.argv[1]))
def double(x):
    return 2 * x

over = threading.Event()

def call_on():
    while not over.is_set():
        double(3)

double(3)
threads = [threading.Thread(target=call_on) for _ in range(3)]
for thread in threads:
    thread.start()
statuses = []
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(30)
        before = double.counts.calls
        right = [double(x) for x in range(3)] == [0, 2, 4] and before == 0
        right = right and double.counts.calls + double.counts.cache_hits == 3
        os._exit(0 if right else 1)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
for thread in threads:
    thread.join()
print(statuses)
"""

WORDS = {
    "circuit": "dict(circuit=rsf.Circuit(failures=10, reset=30))",
    "retry": "dict(retry=rsf.Retry(3, budget=0.1))",
    "cache": "dict(cache=rsf.Cache(entries=100))",
    "cache of a host": "dict(cache=rsf.Cache(scope='executor'))",
    "budget": "dict(budget=rsf.Budget('forks', calls=10**9))",
    "limit": "dict(limit=rsf.Limit('forks', concurrency=8, scope='process'))",
    "limit of a host, all in use": "dict(limit=rsf.Limit('forks', concurrency=2))",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("word", WORDS)
def test_a_forked_child_makes_its_calls(word: str) -> None:
    done = run_python("-W", "ignore", "-c", FORKS, WORDS[word], timeout=60)
    assert done.stdout.strip() == str([0] * 20), done.stderr


CHILDREN = """
import asyncio, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import rstreams_fast as rsf

tokens = {"tokens": rsf.per_second(1e6)}
models = rsf.Limit("children", units=tokens, weigh=lambda x: 1, scope="job")
spend = rsf.Budget("children", calls=10)

@rsf.Policy(limit=models, budget=spend, cache=rsf.Cache(), key=lambda x: str(x))
def double(x):
    return 2 * x

class Service:
    @staticmethod
    @rsf.Policy(retry=rsf.Retry(2))
    async def triple(x):
        return 3 * x

def tripled(fn):
    return asyncio.run(fn(5))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        doubled = rsf.range_(3).map_blocking(double, pool).to_list()
        print(doubled, pool.submit(tripled, Service.triple).result(), spend.spent["calls"])
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_child_gets_the_functions_of_the_program(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    done = run_python("-W", "ignore", str(program), method, timeout=60)
    assert done.stdout.startswith("[0, 2, 4] 15 "), done.stderr


JOURNALS = """
import multiprocessing, sys
from pathlib import Path
import rstreams_fast as rsf

def double(x):
    return 2 * x

def pay_in_child(uri):
    for x in range(10):
        rsf.Policy(journal=rsf.Journal(uri, version="1"))(double)(x)

if __name__ == "__main__":
    method, place = sys.argv[1], Path(sys.argv[2])
    rsf.Policy(journal=rsf.Journal(str(place / "parent"), version="1"))(double)(1)
    child = multiprocessing.get_context(method).Process(
        target=pay_in_child, args=[str(place / "child")]
    )
    child.start()
    child.join()
    print(child.exitcode, len(list(place.glob("child/*/*.arrow"))))
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_child_writes_its_journal_before_it_ends(method: str, temporary: Path) -> None:
    program = temporary / "program.py"
    program.write_text(JOURNALS)
    done = run_python("-W", "ignore", str(program), method, str(temporary), timeout=60)
    assert done.stdout == "0 1\n", done.stderr
    assert len(list(temporary.glob("parent/*/*.arrow"))) == 1
    assert not list(temporary.glob("rstreams-journal-*"))  # no log is left
