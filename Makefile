# Every target does its own set-up: a virtual environment in $(VENV) with the package in it.
# A stamp file per set of dependencies makes a second run instant, and free of the network.
#
#   make demo    an agent learns in one process and recalls in another
#   make test    the whole test suite
#   make lint    style, types, and the direction of imports
#   make bench   EventStore beside InMemoryStore and SqliteStore; BENCH="--items 1000" for a short one
#   make locomo  the LoCoMo conversations: make locomo LOCOMO=path/to/locomo.json.gz
#   make clean   remove everything these targets made
#
# Another interpreter: make test PYTHON=python3.12

VENV ?= .venv
LOCOMO ?=
BENCH ?=
PYTEST_ARGS ?=

NEW_ENOUGH = import sys; sys.exit(not (3, 11) <= sys.version_info[:2])

# An existing environment keeps its Python. 3.14 and later only where nothing else is found:
# not every dependency has wheels for them.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for below in 14 99; do \
    for python in "$(VENV)/bin/python" python3 python3.13 python3.12 python3.11 python; do \
    "$$python" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $$below))" >/dev/null 2>&1 \
    && { "$$python" -c 'import sys; print(sys._base_executable)'; exit; }; done; done)
endif

VERSION := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
BIN := $(VENV)/bin
DEMO := $(VENV)/.installed-demo-$(VERSION)
DEV := $(VENV)/.installed-dev-$(VERSION)

.PHONY: help demo test lint bench locomo clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   make/  make/p' Makefile

demo: $(DEMO)
	@$(BIN)/python -m projector.demo

test: $(DEV)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(DEV)
	$(BIN)/python -m benchmarks.run $(BENCH)

locomo: $(DEV)
	@test -n "$(LOCOMO)" || { echo "Say where the conversations are: make locomo LOCOMO=path/to/locomo.json.gz" >&2; exit 2; }
	$(BIN)/python benchmarks/locomo.py "$(LOCOMO)"

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find eventstore projector tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# What the tests need includes what the demo needs, so one installation serves both.
$(DEMO): EXTRA = demo
$(DEV): EXTRA = dev
$(DEMO) $(DEV): pyproject.toml
	@test -n "$(PYTHON)" && "$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { \
	    echo "This needs Python 3.11 or newer; $(if $(PYTHON),$(PYTHON) is older or does not run,none was found on the PATH)." >&2; \
	    echo "Install one, then name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make virtual environments: its venv or ensurepip module is missing." >&2; \
	    echo "On Debian and Ubuntu: sudo apt-get install python$(VERSION)-venv" >&2; exit 1; }
	@"$(BIN)/python" -c 'import sys, pip; sys.exit("%d.%d" % sys.version_info[:2] != "$(VERSION)")' 2>/dev/null || { \
	    echo "Making a virtual environment in $(VENV) with Python $(VERSION)"; \
	    "$(PYTHON)" -m venv --clear "$(VENV)"; }
	@echo "Installing eventstore-langgraph[$(EXTRA)] into $(VENV); this happens once"
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA)]' || { \
	    echo "The installation failed. It needs PyPI, or an index that PIP_INDEX_URL names; then run make again." >&2; exit 1; }
	@touch "$@" $(if $(filter dev,$(EXTRA)),"$(DEMO)")
