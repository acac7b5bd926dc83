# Everything sets itself up: the first target that needs it makes .venv and installs into it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-vllm fuzz lint format types bench docs clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

install: $(INSTALLED) ## Make .venv and install everything a single machine needs

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlhfless needs Python 3.11 or later; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[functions,data,k8s,ray,plot,examples,tensorboard,wandb,mlflow,dev]"
	@touch $@

demo: install ## Run the quick start: a small policy learns, in seconds
	$(BIN)/rlhfless run examples/quickstart.yaml

test: test-fast ## Run all tests
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile

test-fast: install ## Run the tests that start no real job, on all cores
	$(BIN)/python -m pytest -m "not slow" -n auto --maxprocesses 4 --dist worksteal

VLLM_VENV ?= .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed

# A venv of its own: vLLM wants older transformers and FastAPI than we do.
$(VLLM_INSTALLED): pyproject.toml constraints.txt tests/vllm/requirements.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tests/vllm/requirements.txt
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

test-vllm: $(VLLM_INSTALLED) ## Install vLLM's CPU build (3 GB) and run the tests that need it
	$(VLLM_VENV)/bin/python -m pytest tests/vllm

FUZZ_SECONDS ?= 60

fuzz: install ## Run the real controller through seeded faults, for FUZZ_SECONDS
	$(BIN)/python -m simulator.fuzz --seconds $(FUZZ_SECONDS)

lint: install ## Lint, check formatting and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: install ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install ## Check types
	$(BIN)/mypy

bench: install ## Run every benchmark in its quick form
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python -m benchmarks.rollout --quick
	$(BIN)/python -m benchmarks.grpo_step --quick
	$(BIN)/python -m benchmarks.prefix --quick
	$(BIN)/python -m benchmarks.scheduling --quick
	$(BIN)/python -m benchmarks.overlap --quick
	$(BIN)/python -m benchmarks.policies --quick
	$(BIN)/python -m benchmarks.scale --quick
	$(BIN)/python -m benchmarks.simulator_speed --quick
	$(BIN)/python -m benchmarks.simulator_accuracy --quick
	$(BIN)/python -m benchmarks.papers --quick
	$(BIN)/python -m benchmarks.service_load --quick
	$(BIN)/python -m benchmarks.service_faults --quick

docs: install ## Write the generated pages of docs/
	$(BIN)/python docs/generate.py

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
