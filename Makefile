# Two commands for a newcomer: `make serve` and `make test`. Both set up what they need, once.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
MODEL ?= smollm2-135m
ARGS ?=
# What was set up, each written when it is complete: to serve, to develop, for Ray, for the site, and the default model.
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
RAY := $(VENV)/.ray
SITE := $(VENV)/.site
FETCHED := $(VENV)/.fetched-$(subst /,_,$(MODEL))

.PHONY: help setup install serve test test-slow lint format docs site clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(FETCHED) ## virtual environment, what serving needs, and the default model

install: $(RUNTIME) ## virtual environment and what serving needs

serve: $(FETCHED) ## set up if needed, then serve the default model (ARGS="--port 9000 ...")
	@exec $(BIN)/headway serve $(MODEL) $(ARGS)

# One file more at a time than there are cores: many wait for a server or a load.
PYTEST := $(BIN)/python -m pytest --numprocesses=$$(($$(nproc 2>/dev/null || echo 2) + 1)) --dist=loadfile --no-loadscope-reorder

test: $(FETCHED) $(DEV) ## the test suite, but for what takes minutes (ARGS="-k name ...")
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(FETCHED) $(RAY) $(SITE) ## the rest of it: many seeds, many kills, long loads, Ray
	$(PYTEST) -m slow $(ARGS)

lint: $(DEV) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV) ## rewrite files the way `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(RUNTIME) ## regenerate docs/reference
	$(BIN)/python docs/generate.py

# Material tells of its own future in a banner, which is no warning about these pages.
site: $(SITE) ## the documentation as a site, into build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)
	@echo "Built build/site/index.html"

clean: ## remove the virtual environment and caches (the model stays in the user's cache)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# The stamps are written last, so an interrupted set-up is taken up again by the next `make`.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

$(RUNTIME): pyproject.toml constraints.txt
	@set -eu; python=$$(sh .ci/find-python); \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "Creating $(VENV) with $$python"; $$python -m venv --clear $(VENV); }; \
	echo "Installing what serving needs (about 400 MB on disk, the first time)"; \
	$(PIP_INSTALL) --editable .
	@touch $@

$(DEV): $(RUNTIME)
	@echo "Installing what tests and checks need (about 180 MB more)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

$(RAY): $(DEV)
	@echo "Installing Ray (about 250 MB more)"
	@$(PIP_INSTALL) --editable '.[ray]'
	@touch $@

$(SITE): $(DEV)
	@echo "Installing what builds the site (about 110 MB more)"
	@$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

$(FETCHED): $(RUNTIME)
	@$(BIN)/headway fetch $(MODEL)
	@touch $@
