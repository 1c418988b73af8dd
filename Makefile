# Two commands for a newcomer: `make serve` and `make test`. Both set up what they need, once.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
MODEL ?= smollm2-135m
ARGS ?=
INSTALLED := $(VENV)/.installed
FETCHED := $(VENV)/.fetched-$(subst /,_,$(MODEL))

.PHONY: help setup install serve test lint format docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(FETCHED) ## virtual environment, dependencies and the default model

install: $(INSTALLED) ## virtual environment and dependencies only

serve: $(FETCHED) ## set up if needed, then serve the default model (ARGS="--port 9000 ...")
	@exec $(BIN)/headway serve $(MODEL) $(ARGS)

test: $(FETCHED) ## the whole test suite (ARGS="-k name ...")
	$(BIN)/python -m pytest $(ARGS)

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## rewrite files the way `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## regenerate docs/reference
	$(BIN)/python docs/generate.py

clean: ## remove the virtual environment and caches (the model stays in the user's cache)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# The stamps are written last, so an interrupted set-up is taken up again by the next `make`.
$(INSTALLED): pyproject.toml constraints.txt
	@set -eu; python=$$(sh .ci/find-python); \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "Creating $(VENV) with $$python"; $$python -m venv --clear $(VENV); }; \
	echo "Installing dependencies (about 500 MB on disk, the first time)"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(FETCHED): $(INSTALLED)
	@$(BIN)/headway fetch $(MODEL)
	@touch $@
