# Every target works from a fresh clone; see README.md. Override: PORT= HOST= MODEL= DATA= PYTHON=
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help install dev serve test check bench model clean

help:
	@sed -n 's/^## //p' Makefile

## make install   .venv with what `make serve` needs; quick when done before
install: .venv/installed

## make serve     install, then serve the shipped model (MODEL=) on http://127.0.0.1:8000 (HOST= PORT=)
serve: install
	@exec $(BIN)/headroom serve --host $(HOST) --port $(PORT) $(if $(MODEL),--model $(MODEL))

## make test      install what the tests need and run all of them
test: dev
	$(BIN)/python -m pytest

## make check     formatting, lint, types and the import-layer contract
check: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## make bench     measure every number in docs/PERFORMANCE.md again (ONLY=encoder, CHECK=1)
bench: dev
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(CHECK),--check)

## make model     train and write models/default again (hours); data from ../shared/data, else fetched
DATA ?= $(if $(wildcard ../shared/data/graded.jsonl.gz),../shared/data,runs/data)
model: install
	$(if $(filter runs/data,$(DATA)),$(BIN)/python -m models.training.fetch --out $(DATA))
	$(BIN)/python -m models.training.build --data $(DATA)

## make clean     remove .venv and caches (runs/, where trainings and their data are, stays)
clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

dev: .venv/installed-dev

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headroom needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/pip pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

.venv/installed-%: .venv/bin/pip pyproject.toml constraints.txt
	$(PIP) --editable '.[$*]'
	@touch $@ .venv/installed
