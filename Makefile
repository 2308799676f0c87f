# The commands of the house. `make help` lists them.

VENV := .venv
PY := $(VENV)/bin/python

.PHONY: build
build: ## rebuild the compiled backends in place, if their sources changed
	@mkdir -p build
	@flock build/.lock $(PY) setup.py -q build_ext --inplace
