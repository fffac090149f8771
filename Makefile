# Every target sets itself up: a virtual environment in .venv, made once and renewed
# whenever pyproject.toml changes. `make demo` needs no torch; `make test` installs it.

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2

BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
FORE    := $(BIN)/foretrace
SAMPLE   = $(firstword $(wildcard traces/sample/*.trace))
OUT     := out

export PIP_ROOT_USER_ACTION := ignore
export MPLBACKEND := Agg

.DEFAULT_GOAL := help
.PHONY: help demo test bench format lint types layers unit image clean

help: ## say what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# --- set-up -----------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# The two stamps hold the set-up that was done. "dev" contains "core".
$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) (once, about a minute)"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) (development tools and torch; once, some minutes)"
	@$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.core

# --- what users type --------------------------------------------------------

WHAT_IFS := --what-if 'comm=x0.5' --what-if 'stall=0'

demo: $(VENV)/.core ## replay the bundled sample, ask it a what-if, write out/report.html
	@test -n "$(SAMPLE)" || { echo "error: no sample trace set in traces/sample" >&2; exit 2; }
	@mkdir -p $(OUT)
	@printf '\n$$ foretrace replay %s\n' "$(SAMPLE) $(WHAT_IFS) --perfetto $(OUT)/timeline.json.gz"
	@$(FORE) replay $(SAMPLE) $(WHAT_IFS) --perfetto $(OUT)/timeline.json.gz
	@printf '\n$$ foretrace report %s\n' "$(SAMPLE) -o $(OUT)/report.html"
	@$(FORE) report $(SAMPLE) -o $(OUT)/report.html
	@printf '\nreport:   file://%s\n' "$(CURDIR)/$(OUT)/report.html"
	@printf 'timeline: %s, for the Perfetto UI\n' "$(CURDIR)/$(OUT)/timeline.json.gz"

test: format lint types layers unit ## everything that must be green: format, lint, types, layers, pytest

bench: $(VENV)/.dev ## run every script under benchmarks/; each prints a table
	@failed=; for script in benchmarks/[!_]*.py; do \
	    printf '\n== %s\n' "$$script"; \
	    $(BIN)/python "$$script" || failed="$$failed $$script"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# --- the parts of `make test` -----------------------------------------------

format: $(VENV)/.dev ## check formatting (repair with: .venv/bin/ruff format)
	$(BIN)/ruff format --check

lint: $(VENV)/.dev ## ruff's rules
	$(BIN)/ruff check

types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy

layers: $(VENV)/.dev ## which package may import which
	$(BIN)/lint-imports

unit: $(VENV)/.dev ## pytest
	$(BIN)/python -m pytest -n $(JOBS)

image: $(VENV)/.core ## draw the picture of the README from the sample
	$(BIN)/python docs/images/make.py

clean: ## remove what the targets made, .venv included
	rm -rf $(VENV) $(OUT) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
