# The commands of the house; `make help` lists them. All set-up is in .ci/setup.
#
#   make test ARGS="tests/core -k ring"     passes ARGS on to pytest (or to the demo, or the report)
#   make test PYTHON=python3.13 VENV=.venv313

VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 1800
PIPELINES ?= 10000
export VENV

# What set-up found out: which Java, which Python Spark's workers run.
ENV := . build/env.sh;

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@echo "rstreams_fast: Reactive Streams for Python, on a C core"
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1 ## /p' $(MAKEFILE_LIST) | awk -F ' ## ' '{ printf "%-26s%s\n", $$1, $$2 }'

.PHONY: demo
demo: ## run the main job: 336 776 real flights through Spark, with a report (sets everything up)
	@.ci/setup demo require
	@$(ENV) exec $(PY) -m examples.flights $(ARGS)

.PHONY: test
test: ## run the suite but its slow tests: the C core's programs, then pytest (sets everything up)
	@.ci/setup test prefer
	@$(MAKE) -s -j2 -C csrc test
	@flock build/.lock $(PY) bench/floors/build.py
	@$(ENV) exec .ci/test $(ARGS)

.PHONY: test-slow
test-slow: ## run the slow tests: jobs of the demo, long ones of Spark, Java's publishers under our kit (needs Java)
	@.ci/setup test require
	@$(ENV) MARK=slow exec .ci/test $(ARGS)

.PHONY: test-freethreaded
test-freethreaded: ## run the suite without a GIL, on PYTHON_FT=..., python3.14t or 3.13t, or one built for it (Debian)
	@.ci/freethreaded $(ARGS)

.PHONY: build
build: | $(PY) ## rebuild the compiled backends in place, where their sources changed
	@mkdir -p build
	@flock build/.lock $(PY) setup.py -q build_ext --inplace

$(PY):
	@.ci/setup test

.PHONY: wheels
wheels: ## build the wheel of this machine in dist/, and try it in an empty environment (Linux)
	@.ci/setup test
	@exec .ci/wheels

.PHONY: spark-matrix
spark-matrix: ## run the Spark suite on PySpark 3.5 to 4.3 (SPARK_VERSIONS="3.5-oldest 4.3"); write docs/spark-versions.md
	@.ci/setup test require
	@$(ENV) exec $(PY) -m tests.spark.matrix $(ARGS)

.PHONY: faults
faults: ## kill, stop, fill and skew a standalone Spark cluster while it calls a service; write docs/faults.md
	@.ci/setup test require
	@$(ENV) exec $(PY) -m tests.spark.faults

.PHONY: limit-kills
limit-kills: ## limits against 200 random SIGKILLs of Python workers (ARGS="--kills 10"), by the service's count
	@.ci/setup test require
	@$(ENV) exec $(PY) -m tests.spark.limit_kills $(ARGS)

.PHONY: spark-suite
spark-suite: ## run Spark's own tests of UDFs, of SPARK_SOURCES (a checkout), with the stock daemon and the drop-in
	@.ci/setup test require
	@$(ENV) exec $(PY) -m tests.spark.suites $(ARGS)

.PHONY: bench
bench: bench-check ## measure: each primitive and each use, then the ratios to floors and peers, and the targets
	@$(ENV) $(PY) -m pytest bench -q --benchmark-only --benchmark-columns=median,iqr,rounds --benchmark-sort=name --timeout=600
	@$(ENV) exec $(PY) -m bench.report $(ARGS)

.PHONY: bench-check
bench-check: ## run every contestant of the benchmarks once, for its result alone
	@.ci/setup bench prefer
	@flock build/.lock $(PY) bench/floors/build.py
	@$(ENV) $(PY) -m pytest bench -q --benchmark-disable --timeout=600

.PHONY: bench-freethreaded
bench-freethreaded: ## measure what runs Python without a GIL (as test-freethreaded); bench-page takes it in
	@.ci/setup bench prefer
	@$(ENV) exec .ci/freethreaded bench $(ARGS)

.PHONY: bench-page
bench-page: ## write bench/figures.json and README.md from what `make bench` measured
	@.ci/setup bench prefer
	@exec $(PY) -m bench.page $(ARGS)

.PHONY: budgets
budgets: ## count the instructions of the C core's hot paths (callgrind): 3 % above the table fails
	@.ci/setup test
	@exec $(PY) -m bench.budgets $(ARGS)

.PHONY: sanitize
sanitize: ## ASan, UBSan and TSan over the C core (its mutants must fail), ASan + UBSan over the extension
	@.ci/setup test
	@$(MAKE) -s -C csrc sanitize
	@$(ENV) .ci/sanitize $(ARGS)

.PHONY: memcheck
memcheck: ## valgrind over the C core's programs, and over every public call of the extension
	@.ci/setup test
	@$(ENV) .ci/valgrind

.PHONY: model
model: ## the C core's protocols on a simulated weak machine, in Spin, and in z3 (each check must catch its mutants)
	@.ci/setup test
	@$(MAKE) -s -C csrc model PYTHON=$(abspath $(PY))

.PHONY: fuzz
fuzz: ## libFuzzer on the C core's state machines, atheris on the extension, 60 s each (FUZZ_SECONDS); needs clang
	@.ci/setup test
	@$(MAKE) -s -C csrc fuzz PYTHON=$(abspath $(PY)) FUZZ_SECONDS=$(FUZZ_SECONDS)
	@.ci/fuzz $(FUZZ_SECONDS)

.PHONY: tck
tck: ## run both test kits, the official one too, on everything we ship; write docs/conformance.md
	@.ci/setup test require
	@$(ENV) exec $(PY) -m tests.jvm_tck.report $(ARGS)

.PHONY: pipelines
pipelines: ## 10 000 random pipelines (PIPELINES) against a list model, shared out among the three backends
	@.ci/setup test
	@set -e; for backend in c cffi python; do \
	    $(ENV) RSTREAMS_FAST_BACKEND=$$backend RSTREAMS_FAST_PIPELINES=$$(($(PIPELINES) / 3)) \
	        $(PY) -m pytest -q -o faulthandler_timeout=600 \
	        tests/streams/test_random_pipelines.py::test_random_pipelines; done

.PHONY: soak
soak: ## random threads and loops over everything for 30 min (SOAK_SECONDS), shared out among the backends
	@.ci/setup test
	@set -e; for backend in c cffi python; do \
	    $(ENV) RSTREAMS_FAST_BACKEND=$$backend $(PY) -m tests.soak --seconds $$(($(SOAK_SECONDS) / 3)) $(ARGS); done

.PHONY: stress
stress: pipelines ## the random pipelines, and the C core's stress programs for longer
	@$(MAKE) -s -C csrc stress

.PHONY: lint
lint: ## ruff, mypy --strict, pyright on the public face, the import contracts, clang-format
	@.ci/setup test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/basedpyright --pythonpath $(PY)
	$(VENV)/bin/lint-imports
	find csrc bench -name '*.[ch]' -not -path '*/build/*' | xargs $(VENV)/bin/clang-format --dry-run -Werror

.PHONY: docs
docs: ## write docs/rules.md anew, and build the site in build/site, strictly (tests/test_site.py does so, too)
	@.ci/setup test
	@$(ENV) $(PY) -m tests.rules.page
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build -q
	@echo "the site is build/site/index.html"

.PHONY: clean
clean: ## remove what was built (the virtual environment stays; `rm -r .venv` removes that too)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache $(VENV)/.built
	rm -f rstreams_fast/core/_cython/*.so rstreams_fast/core/_cython/*.c rstreams_fast/core/_cffi/*.so rstreams_fast/core/_cffi/_raw*.c bench/floors/*.so
	find rstreams_fast tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -f csrc/Makefile ]; then $(MAKE) -s -C csrc clean; fi
