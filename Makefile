# The commands of the house; `make help` lists them. All set-up is in .ci/setup.
#
#   make test ARGS="tests/core -k ring"     passes ARGS on to pytest, or to what another command runs
#   make full STEPS="memcheck fuzz"         these steps alone; each is a command, too: make memcheck
#   make test PYTHON=python3.13 VENV=.venv313

VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=
STEPS ?=
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 600
PIPELINES ?= 10000
export VENV

# What set-up found out: which Java, which Python Spark's workers run.
ENV := . build/env.sh;
SETUP := @.ci/setup test
SETUP_WITH_JAVA := @.ci/setup test require postgresql chromium
PIP := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(MAKEFILE_LIST))

help: ## show this list
	@echo "rstreams_fast: Reactive Streams for Python, on a C core"
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1 ## /p' $(MAKEFILE_LIST) | awk -F ' ## ' '{ printf "%-18s%s\n", $$1, $$2 }'

demo: ## run the main job: 336 776 real flights through Spark, with a report (sets everything up)
	@.ci/setup demo require
	@$(ENV) exec $(PY) -m examples.flights $(ARGS)

test: ## run what every change must pass (sets everything up); with ARGS="tests/core -x" pytest alone
	@.ci/setup test prefer postgresql
ifeq ($(ARGS),)
	@$(MAKE) -s -j2 -C csrc test
	@$(ENV) exec $(PY) .ci/steps.py test
else
	@$(ENV) exec $(PY) -m pytest $(ARGS)
endif

# CPython's own tests of queues, which Debian packs for its own Python.
CPYTHON_TESTS = $(shell apt-cache search -n '^libpython3\.[0-9]*-testsuite$$' 2>/dev/null | cut -d' ' -f1)
full: ## run everything, before a release or nightly, or STEPS="memcheck fuzz"; the table is build/full.md
	$(SETUP_WITH_JAVA) clang libclang-rt-dev spin valgrind libboost-dev maven libffi-dev libssl-dev zlib1g-dev \
	    $(CPYTHON_TESTS)
	@$(ENV) exec $(PY) .ci/steps.py full $(STEPS)

lint: ## ruff, mypy --strict, pyright on the public face, the import contracts, clang-format
	$(SETUP)
	$(PIP)/ruff check .
	$(PIP)/ruff format --check .
	$(PIP)/mypy
	$(PIP)/basedpyright --pythonpath $(PY)
	$(PIP)/lint-imports
	find csrc bench -name '*.[ch]' -not -path '*/build/*' | xargs $(PIP)/clang-format --dry-run -Werror

build: ## rebuild the compiled backends in place, where their sources changed
	$(SETUP)

docs: ## write docs/rules.md anew, and build the site in build/site, strictly
	$(SETUP)
	@$(ENV) $(PY) -m tests.rules.page
	@NO_MKDOCS_2_WARNING=1 $(PIP)/mkdocs build -q
	@echo "the site is build/site/index.html"

tck: ## run both test kits, the official one too, on everything we ship; write docs/conformance.md
	$(SETUP_WITH_JAVA)
	@$(ENV) exec $(PY) -m tests.jvm_tck.report $(ARGS)

wheels: ## build the wheel of this machine in dist/, and try it in an empty environment (Linux)
	$(SETUP)
	@exec .ci/wheels

bench: bench-check ## measure: each primitive and each use, then the ratios to floors and peers, and the targets
	@$(ENV) $(PY) -m pytest bench -q --benchmark-only --benchmark-columns=median,iqr,rounds --benchmark-sort=name --timeout=600
	@$(ENV) $(PY) -m bench.report $(ARGS)
	@$(MAKE) -s bench-postgres ARGS=

bench-page: ## write bench/figures.json and README.md from what `make bench` measured
	@.ci/setup bench prefer
	@exec $(PY) -m bench.page $(ARGS)

clean: ## remove what was built (the virtual environment stays; `rm -r .venv` removes that too)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache $(VENV)/.built
	rm -f rstreams_fast/core/_cython/*.so rstreams_fast/core/_cython/*.c rstreams_fast/core/_cffi/*.so rstreams_fast/core/_cffi/_raw*.c bench/floors/*.so
	find rstreams_fast tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
	@$(MAKE) -s -C csrc clean

# ---- The other steps of `make full` ------------------------------------------------------------

# The slow tests: jobs of the demo, long ones of Spark; not the kits on every class, which are `tck`.
slow:
	$(SETUP_WITH_JAVA) maven
ifeq ($(ARGS),)
	@$(ENV) exec $(PY) .ci/steps.py slow
else
	@$(ENV) exec $(PY) -m pytest -m slow $(ARGS)
endif

# The C core's programs for longer, under sanitizers, and changed: each mutant must fail.
c-stress:
	@$(MAKE) -s -j2 -C csrc stress

c-sanitize:
	@$(MAKE) -s -j2 -C csrc sanitize

mutants:
	@$(MAKE) -s -C csrc mutants ONLY="$(ONLY)"

# The C core's protocols on a simulated weak machine, in Spin, and in z3; each must catch its mutants.
model:
	$(SETUP)
	@$(MAKE) -s -C csrc model PYTHON=$(abspath $(PY))

# Every execution of the closed programs under RC11, by a checker that is built from its sources: no
# step of `make full`.
genmc:
	@$(MAKE) -s -C csrc genmc

# The instructions of the C core's hot paths (callgrind): 3 % above the table fails.
budgets:
	$(SETUP)
	@exec $(PY) -m bench.budgets $(ARGS)

# The extension under ASan and UBSan; under valgrind; and fuzzed, as is the C core.
sanitize:
	$(SETUP)
	@$(ENV) exec tests/sanitize/run $(ARGS)

memcheck:
	$(SETUP)
	@$(MAKE) -s -C csrc memcheck
	@exec tests/memcheck/run

fuzz:
	$(SETUP)
	@$(MAKE) -s -C csrc fuzz PYTHON=$(abspath $(PY)) FUZZ_SECONDS=$(FUZZ_SECONDS)
	@exec tests/fuzz/run $(FUZZ_SECONDS)

# The suite without a GIL, on PYTHON_FT=..., python3.14t, python3.13t, or one built for it (Debian).
freethreaded:
	@.ci/freethreaded $(ARGS)

# Random pipelines against a list model; random threads and loops over everything: on each backend.
pipelines:
	$(SETUP)
	@set -e; for backend in c cffi python; do \
	    $(ENV) RSTREAMS_FAST_BACKEND=$$backend RSTREAMS_FAST_PIPELINES=$$(($(PIPELINES) / 3)) \
	        $(PY) -m pytest -q -o faulthandler_timeout=600 \
	        tests/streams/test_random_pipelines.py::test_random_pipelines; done

soak:
	$(SETUP)
	@set -e; for backend in c cffi python; do \
	    $(ENV) RSTREAMS_FAST_BACKEND=$$backend $(PY) -m tests.soak --seconds $$(($(SOAK_SECONDS) / 3)) $(ARGS); done

# Every contestant of the benchmarks once, for its result alone.
bench-check:
	@.ci/setup bench prefer
	@$(ENV) $(PY) -m pytest bench -q --benchmark-disable --timeout=600

# The sink for PostgreSQL beside plain COPY and Spark's JDBC writer, on a server of its own.
bench-postgres:
	$(SETUP_WITH_JAVA)
	@$(ENV) exec $(PY) -m bench.postgres $(ARGS)

# What runs Python, measured without a GIL; bench-page takes it in.
GROUPS := fused fused-c fused-names to_list for reduce to_arrow subscribe boundary boundary-65536 async-for \
    map_async map_blocking map_blocking-python window batches demand ring ring-bursts serializer-1 serializer-4 records-256
bench-freethreaded:
	@.ci/freethreaded -m bench.report --json $(abspath build/bench-freethreaded.json) $(addprefix --only ,$(GROUPS)) $(ARGS)

# The Spark suite on PySpark 3.5 to 4.3 (SPARK_VERSIONS="3.5-oldest 4.3"); writes docs/spark-versions.md.
spark-matrix:
	$(SETUP_WITH_JAVA) maven
	@$(ENV) exec $(PY) -m tests.spark.matrix $(ARGS)

# Kills, stops, fills and skews a standalone cluster while it calls a service; writes docs/faults.md.
faults:
	$(SETUP_WITH_JAVA)
	@$(ENV) exec $(PY) -m tests.spark.faults

# Limits against 200 random SIGKILLs of Python workers (ARGS="--kills 10"), by the service's count.
limit-kills:
	$(SETUP_WITH_JAVA)
	@$(ENV) exec $(PY) -m tests.spark.limit_kills $(ARGS)

# Streams over files and Kafka that write to PostgreSQL, under 100 random SIGKILLs (ARGS="--kills 8").
stream-kills:
	$(SETUP_WITH_JAVA) maven
	@$(ENV) exec $(PY) -m tests.spark.stream_kills $(ARGS)

# Tiny micro-batches for twenty minutes: nothing may grow (ARGS="--seconds 60", ARGS=--worker).
stream-soak:
	$(SETUP_WITH_JAVA)
	@$(ENV) exec $(PY) -m tests.spark.stream_soak $(ARGS)

# PostgreSQL's tables after 50 writes and 50 streams under random SIGKILLs of workers, executors and
# drivers (ARGS="--batch 5 --stream 5"): each row must be there once.
postgres-kills:
	$(SETUP_WITH_JAVA)
	@$(ENV) exec $(PY) -m tests.spark.postgres_kills $(ARGS)

# Spark's own tests of UDFs, of SPARK_SOURCES (a checkout), with the stock daemon and the drop-in.
spark-suite:
	$(SETUP_WITH_JAVA)
	@$(ENV) exec $(PY) -m tests.spark.suites $(ARGS)
