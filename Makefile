# Everything that a developer does, by name. `make demo` and `make test` are all the set-up there is.
# The first Python that is new enough and really runs (version managers put stubs on the PATH).
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# `constraints.txt` pins every version; the wheel's own build backend is pinned by it too (--no-build-isolation).
CONSTRAINED := -c constraints.txt

.PHONY: demo test test-long lint types imports unit test-model soak bench eval constraints clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: .venv/installed ## a simulated community in the terminal: no token, no key, no network
	@$(BIN)/intern try --play

test: .venv/installed-dev lint types imports unit ## format, lint, types, import contract, tests

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed-dev
	$(BIN)/mypy
	$(BIN)/pyright

imports: .venv/installed-dev
	$(BIN)/lint-imports

unit: .venv/installed-dev
	$(BIN)/pytest -m "not long" -n auto

test-long: .venv/installed-dev ## the tests that take their time
	$(BIN)/pytest -m long

test-model: .venv/installed-model ## the model client against a real server; INTERN_TEST_GGUF=file: a talk with that model
	$(BIN)/python -m tests.model.weights
	$(BIN)/pytest -m model tests/model

soak: .venv/installed-dev ## simulated communities for SOAK_MINUTES (10), then ten thousand deaths by SIGKILL (an hour)
	SOAK_MINUTES=$${SOAK_MINUTES:-10} $(BIN)/pytest -m long tests/simulation
	INTERN_KILL_MOMENTS=10000 $(BIN)/pytest tests/process/test_kill.py

bench: .venv/installed-dev ## what it costs: CPU, memory, characters
	$(BIN)/python -m benchmarks

eval: .venv/installed-dev ## how good it is: on real chat, where that is at hand
	$(BIN)/python -m tests.eval.report

constraints: .venv/installed-dev .venv/installed-model ## pin what is installed now
	$(PIP) freeze --all --exclude-editable | grep -v '^intern' > constraints.txt

clean: ## forget the virtual environment and caches
	rm -rf .venv .model dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "intern needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) install $(CONSTRAINED) pip hatchling editables

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) install $(CONSTRAINED) --no-build-isolation -e .
	@touch $@

.venv/installed-dev: .venv/installed
	$(PIP) install $(CONSTRAINED) --group dev
	@touch $@

.venv/installed-model: .venv/installed-dev
	$(PIP) install $(CONSTRAINED) --group model
	@touch $@
