# Each target does its own set-up: a fresh machine needs Python 3.11+, make and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-integrations
PEERS_READY := $(PEERS)/.ready

.PHONY: train test check format lint types test-integrations bench-cpu mutation clean

train: $(READY)  ## the smallest end-to-end example: scores of two prompts to advantages
	$(BIN)/python examples/first_advantages.py

test: $(READY)  ## the whole suite, without a GPU and without other people's packages
	$(BIN)/python -m pytest

check: format lint types test

format: $(READY)
	$(BIN)/ruff format src tests benchmarks examples

lint: $(READY)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples

types: $(READY)
	$(BIN)/mypy

test-integrations: $(PEERS_READY)  ## against the real verl and TRL, and the GPU kernels in Triton's interpreter
	$(PEERS)/verl/bin/python -m pytest -m "integration or not integration" tests/integrations/verl tests/kernels
	$(PEERS)/trl/bin/python -m pytest tests/integrations/trl

bench-cpu: $(PEERS_READY)  ## ours beside verl's, one table
	$(PEERS)/verl/bin/python benchmarks/advantage_cpu.py

# torch first and alone: a build that another package drags in brings gigabytes of CUDA along.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
