# Everything runs in .venv, which the first target that needs it makes. PYTHON picks the interpreter it is made with.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help conformance test prove explore soak mutation engines gpu docs lint typecheck clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

conformance: .venv/.engines.stamp ## Replay the vectors against the reference and, interpreted on the CPU, the device manager
	@$(BIN)/kvspec run
	@$(BIN)/kvspec run --impl cuda

test: .venv/.engines.stamp ## Run the tests on all cores
	@$(BIN)/pytest -q -n auto

prove: .venv/.stamp ## Prove the contracts and the partition (about a minute)
	@$(BIN)/kvspec prove

explore: .venv/.stamp ## Exhaust small systems, every rule in every state (minutes)
	@$(BIN)/kvspec explore

soak: .venv/.stamp ## Run traffic in every combination of modes, every answer checked (20 minutes)
	@$(BIN)/kvspec soak --minutes 20

mutation: .venv/.mutation.stamp ## Mutate kvspec and see what the tests notice (an hour)
	@tests/mutation/run.sh

engines: .venv/.engines.stamp ## Check SGLang's releases: the matrix of rules by release (about 7 minutes)
	@$(BIN)/kvspec matrix sglang 0.5.8.post1 0.5.9 0.5.10 0.5.10.post1 0.5.11 0.5.12 0.5.13 0.5.14 0.5.15

gpu: .venv/.engines.stamp ## On a machine with a GPU: vectors, tests, fuzz, soak, sanitizers and the benchmark
	@$(BIN)/kvspec run --impl cuda
	@$(BIN)/pytest -q tests/cuda_impl
	@$(BIN)/kvspec fuzz --impl cuda --seconds 120 --seed 1
	@$(BIN)/kvspec soak --impl cuda --minutes 3
	@PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \
		$(BIN)/python -m pytest -q -x tests/cuda_impl/test_memory.py -k "not two_to_the_31"
	@compute-sanitizer --tool racecheck --error-exitcode 1 \
		$(BIN)/python -m pytest -q -x tests/cuda_impl/test_memory.py -k "not two_to_the_31"
	@compute-sanitizer --tool memcheck --error-exitcode 1 $(BIN)/python -m pytest -q -x tests/cuda_impl/test_graph.py
	@$(BIN)/python benchmarks/device.py

docs: .venv/.docs.stamp ## Build the documentation site into build/site (half a minute)
	@$(BIN)/python -m kvconform.site build
	@$(BIN)/zensical build --clean --strict --config-file build/mkdocs.yml
	@echo "The site is in build/site: open build/site/index.html"

lint: .venv/.stamp ## Check style and formatting with ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

typecheck: .venv/.stamp ## Check the types of the whole tree with mypy --strict
	@$(BIN)/mypy

clean: ## Remove .venv, build outputs and caches
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last. A .venv without one was left half made (an interrupted or failed install): start it over.
# With one that is merely older than the pins, the install is brought up to date in place.
.venv/.stamp: pyproject.toml constraints.txt
	@test -e $@ || rm -rf .venv
	@echo "Installing into .venv"
	@test -e $@ || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev]'
	@touch $@

# What the device implementation and real engines need besides: torch, triton and what SGLang's classes import.
.venv/.engines.stamp: .venv/.stamp
	@echo "Installing torch and what real engines need into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev,engines]'
	@touch $@

# What changes the sources for mutation testing.
.venv/.mutation.stamp: .venv/.stamp
	@echo "Installing what mutation testing needs into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev,mutation]'
	@touch $@

# What builds the documentation site.
.venv/.docs.stamp: .venv/.stamp
	@echo "Installing the builder of the documentation site into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev,docs]'
	@touch $@
