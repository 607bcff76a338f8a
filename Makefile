# Each target does its own set-up: a fresh machine needs Python 3.11+, make and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MUTATION := .venv-mutation
PEERS := .venv-integrations
PEERS_READY := $(PEERS)/verl/.ready $(PEERS)/trl/.ready
PEER_TESTS := pytest hypothesis jaxtyping beartype

.PHONY: train test check format lint types test-integrations coverage bench-cpu bench-train-cpu mutation clean

train: $(READY)  ## teach the small model that comes with the package; ends with a model and a report under runs/
	$(BIN)/groupwise train

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
	$(PEERS)/verl/bin/python -m pytest tests/integrations/verl
	$(PEERS)/verl/bin/python -m pytest tests/kernels
	$(PEERS)/trl/bin/python -m pytest tests/integrations/trl

coverage: $(READY)  ## every branch of the advantages is tested; the bodies of the GPU kernels apart
	$(BIN)/python -m pytest tests/advantages --cov=groupwise.advantages --cov-branch --cov-report=term-missing --cov-fail-under=100

mutation: $(MUTATION)/.ready  ## do the tests of the advantages notice a change in the source? A quarter of an hour; ONLY='groupwise.advantages.groups.*' for a part
	GROUPWISE_CHECK_SHAPES= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(MUTATION)/bin/python scripts/mutation.py run $(ONLY)
	$(MUTATION)/bin/python scripts/mutation.py results

bench-cpu: $(PEERS)/verl/.ready  ## ours beside verl's, one table
	$(PEERS)/verl/bin/python benchmarks/advantage_cpu.py

bench-train-cpu: $(PEERS)/trl/.ready  ## a training step, and the embedded default learning, beside TRL's; half an hour
	$(PEERS)/trl/bin/python benchmarks/step_cpu.py
	$(PEERS)/trl/bin/python benchmarks/learn_cpu.py

# torch first and alone: a build that another package drags in brings gigabytes of CUDA along.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(MUTATION)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(MUTATION)
	$(MUTATION)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(MUTATION)/bin/python -m pip install --quiet --constraint constraints.txt --constraint constraints-mutation.txt \
	  mutmut numpy omegaconf $(PEER_TESTS)
	touch $@

# Not all that verl and its queue ask for, only what their trainer imports; triton is for the kernels' tests.
$(PEERS)/verl/.ready: constraints-verl.txt pyproject.toml
	$(PYTHON) -m venv $(PEERS)/verl
	$(PEERS)/verl/bin/python -m pip install --quiet --constraint constraints-verl.txt torch
	$(PEERS)/verl/bin/python -m pip install --quiet --constraint constraints-verl.txt --no-deps verl transferqueue
	$(PEERS)/verl/bin/python -m pip install --quiet --constraint constraints-verl.txt \
	  aiohttp cachetools codetiming datasets fastapi hydra-core msgspec numpy peft pillow prometheus_client pyzmq ray \
	  tensordict torchdata transformers uvicorn triton $(PEER_TESTS)
	$(PEERS)/verl/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

$(PEERS)/trl/.ready: constraints-trl.txt pyproject.toml
	$(PYTHON) -m venv $(PEERS)/trl
	$(PEERS)/trl/bin/python -m pip install --quiet --constraint constraints-trl.txt torch
	$(PEERS)/trl/bin/python -m pip install --quiet --constraint constraints-trl.txt trl omegaconf typer $(PEER_TESTS)
	$(PEERS)/trl/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(MUTATION) mutants build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
