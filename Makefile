# Two commands do everything: `make demo` and `make test`. Both install what is missing into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check bench install clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   install into .venv, start a cluster, replay agents as Basic, DualPath and Oracle"
	@echo "make test   install into .venv, run every check and test"
	@echo "make check  formatting, lint, types, import contracts"
	@echo "make bench  the measurements behind the README's tables (about half an hour)"

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "DualPath needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/dualpath demo

check: $(STAMP)
	$(BIN)/ruff format --check src tests bench tools
	$(BIN)/ruff check src tests bench tools
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest

bench: $(STAMP)
	$(BIN)/python bench/run_all.py

clean:
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
