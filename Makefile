# The two commands to start with: `make gate` and `make test`. Everything they need is made on
# the first call: a virtual environment, llama.cpp built once for this machine, the package.

# Options. The first two may also come from the environment.
NATIVE      ?=
PYTHON      ?= python3
WORKERS     = auto
DIST        = loadgroup
PYTEST_ARGS =
BENCH_ARGS  =

ifeq ($(NATIVE),1)
VENV    := .venv-native
VARIANT := native
else
VENV    := .venv
VARIANT := portable
endif

RUN   := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# An environment whose Python has gone, after an upgrade of the system's, is made anew.
BROKEN := $(shell test -x $(RUN) || echo .broken)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: gate test bench bench-numerics llama-server lint format clean help .bench .broken

gate: $(STAMP)  ## run every gate on the bundled model and print the verdict table
	@$(VENV)/bin/sluice gate bundled

test: lint  ## lint, then the whole suite: unit tests and gates
	@$(RUN) -m pytest -n $(WORKERS) --dist $(DIST) $(PYTEST_ARGS)

bench:  ## how fast experts stream, against resident, raw disk and mmap; on an idle machine
	@$(MAKE) --no-print-directory NATIVE=1 .bench

# In the environment of a build for this processor, whatever NATIVE is.
.bench: $(STAMP)
	@$(RUN) bench/streaming.py $(BENCH_ARGS)

bench-numerics: $(STAMP)  ## what the numerics profiles cost, on an idle machine
	@$(RUN) bench/numerics.py $(BENCH_ARGS)

llama-server: $(STAMP)  ## build a llama-server of the same llama.cpp to sweep, and print its path
	@$(RUN) ci/llama_server $(VARIANT)

lint: $(STAMP)  ## ruff (rules and format) and mypy --strict
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

format: $(STAMP)  ## sort imports and format in place
	@$(RUN) -m ruff check --quiet --select I --fix .
	@$(RUN) -m ruff format .

clean:  ## remove the virtual environments and every cache in this folder
	@rm -rf .venv .venv-native build dist
	@find . -name .git -prune -o -type d \( -name __pycache__ -o -name '.*_cache' \) -prune \
	  -exec rm -rf {} +

help:  ## this text
	@sed -n 's/^\([a-z-]*\):.*  ## /  make \1\t/p' Makefile | expand -t 24
	@echo
	@echo "Options, as in 'make test NATIVE=1':"
	@echo "  NATIVE=1          build llama.cpp for this processor, in an environment of its own"
	@echo "  PYTHON=...        the Python to make the environment with, 3.11 or newer (python3)"
	@echo "  WORKERS=N         test processes (auto: one a core)"
	@echo "  DIST=...          how pytest-xdist hands out tests (loadgroup)"
	@echo "  BENCH_ARGS=...    more for the benchmark, as in BENCH_ARGS='--rounds 5 -t 1'"
	@echo "  BENCH_GB=N        size of the benchmark's model in GB; all 40 layers take 20 (4)"
	@echo "  BENCH_PEER=...    a command to measure beside it, with {model}, {n}, {cache_mb}"
	@echo "  PYTEST_ARGS=...   more for pytest, as in PYTEST_ARGS='engine/tests -k config'"

# The wheel goes in first, so that pip finds the pinned version there and builds nothing itself.
$(STAMP): pyproject.toml ci/wheel ci/llama_build.py $(BROKEN)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "$(PYTHON): not Python 3.11 or newer; name one with make PYTHON=python3.12" >&2; exit 1; }
	@$(RUN) -c 'import pip' 2>/dev/null || { echo "making $(VENV) ..." >&2 && "$(PYTHON)" -m venv --clear $(VENV); }
	@wheel=$$($(RUN) ci/wheel $(VARIANT)) && \
	  echo "installing into $(VENV) ..." >&2 && \
	  $(RUN) -m pip install -qq --disable-pip-version-check \
	    --force-reinstall --no-deps "$$wheel" && \
	  $(RUN) -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@
