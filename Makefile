# The commands of the house; `make help` lists them. All set-up is in .ci/setup.
#
#   make test ARGS="tests/core -k ring"     passes ARGS on to pytest (or to the demo, or the report)
#   make test PYTHON=python3.13 VENV=.venv313

VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=
export VENV

# What set-up found out: which Java, which Python Spark's workers run.
ENV := . build/env.sh;

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@echo "rstreams_fast: Reactive Streams for Python, on a C core"
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1 ## /p' $(MAKEFILE_LIST) | awk -F ' ## ' '{ printf "%-18s%s\n", $$1, $$2 }'

.PHONY: demo
demo: ## run the main job: 336 776 real flights through Spark, with a report (sets everything up)
	@.ci/setup demo require
	@$(ENV) exec $(VENV)/bin/rstreams-fast demo $(ARGS)

.PHONY: test
test: ## run the whole suite: the C core's programs, then pytest (sets everything up)
	@.ci/setup test prefer
	@$(MAKE) -s -C csrc test
	@$(ENV) exec $(PY) -m pytest $(ARGS)

.PHONY: build
build: | $(PY) ## rebuild the compiled backends in place, where their sources changed
	@mkdir -p build
	@flock build/.lock $(PY) setup.py -q build_ext --inplace

$(PY):
	@.ci/setup test

.PHONY: bench
bench: ## measure: each primitive, then the ratios to the peers and to the floors
	@.ci/setup bench
	@flock build/.lock $(PY) bench/floors/build.py
	@$(ENV) $(PY) -m pytest bench -q --benchmark-only --benchmark-columns=median,iqr,rounds --benchmark-sort=name --timeout=600
	@$(ENV) exec $(PY) -m bench.report $(ARGS)

.PHONY: sanitize
sanitize: ## ASan, UBSan and TSan over the C core (its mutants must fail), ASan + UBSan over the extension
	@.ci/setup test
	@$(MAKE) -s -C csrc sanitize
	@$(ENV) .ci/sanitize $(ARGS)

.PHONY: stress
stress: ## run the C core's stress programs for longer
	@$(MAKE) -s -C csrc stress

.PHONY: lint
lint: ## ruff, mypy --strict, the import contracts, clang-format
	@.ci/setup test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	find csrc bench -name '*.[ch]' -not -path '*/build/*' | xargs $(VENV)/bin/clang-format --dry-run -Werror

.PHONY: clean
clean: ## remove what was built (the virtual environment stays; `rm -r .venv` removes that too)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache $(VENV)/.built
	rm -f rstreams_fast/core/_cython/*.so rstreams_fast/core/_cython/*.c rstreams_fast/core/_cffi/*.so rstreams_fast/core/_cffi/_raw*.c bench/floors/*.so
	find rstreams_fast tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -f csrc/Makefile ]; then $(MAKE) -s -C csrc clean; fi
