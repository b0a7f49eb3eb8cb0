# Everything runs in .venv, which the first target that needs it makes. PYTHON picks the interpreter it is made with.

PYTHON ?= python3
BIN := .venv/bin

# The targets for a GPU run in .venv, or with SITE in PYTHON as it is: then no package index is needed, and SITE is a
# folder for what PYTHON lacks, which is filled from the wheels that `make wheels` has fetched.
SITE ?=
WHEELS ?= build/wheels
GPU_READY := $(if $(SITE),,.venv/.engines.stamp)
GPU := PYTHON=$(if $(SITE),$(PYTHON),$(BIN)/python) SITE=$(abspath $(SITE)) WHEELS=$(WHEELS) cuda_impl/gpu.sh

# The processes of `make explore`; without it one a processor.
JOBS ?=

# How long `make mutation` takes for each of its five packages.
MINUTES ?= 29

# The releases that `make engines` checks, and the folder with checkouts of `make engines-from`.
VLLM ?= 0.22.1 0.33.0
LMCACHE ?= 0.5.6
MAX ?= 26.7.0
SGLANG ?= 0.5.8.post1 0.5.9 0.5.10 0.5.10.post1 $(foreach n,11 12 13 14 15 16 17 18 19 20 21 22 23,0.5.$(n))
SRC ?=

# The releases that `make engine-tests` drives.
DRIVEN ?= $(foreach n,9 10 12 16 20 21 22 23,sglang==0.5.$(n)) $(foreach n,18.1 22.1 33.0,vllm==0.$(n)) lmcache==0.5.4 lmcache==$(LMCACHE) max==$(MAX)

# The releases whose servers `make live` starts.
LIVE ?= sglang==0.5.23 vllm==0.32.0 transformers==5.19.0 sglang-jax

# The releases whose own tests `make own-tests` runs.
OWN ?= vllm==0.33.0

# The tests start hundreds of processes, and each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help conformance test quick thorough prove explore soak mutation engines engine-tests engines-from found docs lint typecheck clean
.PHONY: browser walks fleet live own-tests causes mutation-cuda node-mutants gpu gpu-check gpu-stress gpu-profile wheels

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

conformance: .venv/.engines.stamp ## Replay the vectors against the reference and, interpreted on the CPU, the device manager
	@$(BIN)/kvspec run
	@$(BIN)/kvspec run --impl cuda

test: .venv/.engines.stamp ## Run the tests on all cores
	@$(BIN)/pytest -q -n auto --dist worksteal -m "not thorough"

thorough: .venv/.engines.stamp ## Run the tests that find more of what those of `make test` find (three minutes)
	@$(BIN)/pytest -q -n auto --dist worksteal -m thorough

quick: .venv/.engines.stamp ## Run the tests that take less than a second each (a minute)
	@$(BIN)/pytest -q -n auto --dist worksteal -m "not slow and not thorough"

prove: .venv/.stamp ## Prove the contracts, the memory model and ownership for any size, and see mistakes refuted (three minutes)
	@$(BIN)/kvspec prove
	@KVSPEC_PROVE=1 $(BIN)/pytest -q tests/spec/memory/test_moves.py

explore: .venv/.stamp ## Exhaust small systems, every rule in every state (minutes; interrupted, it goes on; JOBS processes)
	@mkdir -p build
	@$(BIN)/kvspec explore --checkpoint build/explored $(if $(JOBS),--jobs $(JOBS))

soak: .venv/.stamp ## Run traffic in every combination of modes, every answer checked (20 minutes)
	@$(BIN)/kvspec soak --minutes 20

mutation: .venv/.mutation.stamp ## Mutate kvspec, the oracle, kvcheck, the quick model and kvref, and see what the tests notice (half an hour each)
	@for package in kvspec answers kvcheck quick kvref; do $(BIN)/python tests/mutation/run.py $$package --minutes $(MINUTES) || exit 1; done

mutation-cuda: .venv/.engines.stamp ## Put 81 defects into kvcuda, one at a time, and see what notices each (half an hour)
	@PYTHONPATH=. $(BIN)/python tests/mutation/kvcuda.py $(ONLY)

node-mutants: .venv/.stamp ## Put 20 mistakes into the Rust node, one at a time, and see what finds each (rustc; 15 minutes)
	@PYTHONPATH=. $(BIN)/python -m tests.mutation.node $(ONLY)

causes: .venv/.engines.stamp ## Plant 32 causes in traces of 100,000 events, and see each named in the first lines (two minutes)
	@KVSPEC_CAUSES_EVENTS=100000 $(BIN)/pytest -q -n auto --dist worksteal tests/conformance/levels/memory/test_causes.py

engines: .venv/.engines.stamp ## Check releases of SGLang, vLLM, LMCache and MAX: the matrices (about 15 minutes; a second run does what is new)
	@status=0; \
	$(BIN)/kvspec matrix vllm $(VLLM) --out build/matrix || status=1; \
	$(BIN)/kvspec matrix lmcache $(LMCACHE) --out build/matrix || status=1; \
	$(BIN)/kvspec matrix max $(MAX) --out build/matrix || status=1; \
	$(BIN)/kvspec matrix sglang $(SGLANG) --out build/matrix || status=1; exit $$status

engine-tests: .venv/.engines.stamp ## Test the drivers on releases, which are downloaded first (20 minutes)
	@$(BIN)/kvspec engines install $(DRIVEN)
	@KVSPEC_RELEASES=1 $(BIN)/pytest -q -n auto --dist worksteal tests/kvlab tests/kvattach/test_canary.py tests/kvcli/test_templates.py

engines-from: .venv/.engines.stamp ## Check engines from checkouts, folders of SRC that begin with their projects' names
	@test -n "$(SRC)" || { echo "engines-from: say where the checkouts are: SRC=folder" >&2; exit 2; }
	@status=0; for engine in mini-sglang nano-vllm sglang-jax; do \
		set -- "$(SRC)"/$$engine*/; test -d "$$1" || { echo "$$engine: no checkout in $(SRC)"; continue; }; \
		$(BIN)/kvspec matrix $$engine "$$@" --out build/matrix || status=1; done; exit $$status

fleet: .venv/.fleet.stamp ## Test what --ray does, on a local cluster of Ray with two workers (two minutes)
	@$(BIN)/pytest -q tests/fleet

live: .venv/.engines.stamp ## Serve real engines on the CPU, with traffic and faults: LIVE=releases (two hours; environments of gigabytes)
	@KVSPEC_LIVE="$(LIVE)" $(BIN)/pytest -q tests/live

own-tests: .venv/.engines.stamp ## Run vLLM's own tests without kvspec and with each event checked, and compare (half an hour; an environment of gigabytes)
	@status=0; for release in $(OWN); do $(BIN)/python -m kvlab.owntests $$release || status=1; done; exit $$status

gpu: $(GPU_READY) ## On a machine with a GPU: the next three, one after the other
	@status=0; for part in check stress profile; do $(GPU) $$part || status=1; done; exit $$status

gpu-check: $(GPU_READY) ## Vectors, tests and benchmarks on the GPU, the canary's too (less than 10 minutes)
	@$(GPU) check

gpu-stress: $(GPU_READY) ## Sanitizers, fuzz and soak on the GPU (less than 10 minutes)
	@$(GPU) stress

gpu-profile: $(GPU_READY) ## Profile one operation of the benchmark on the GPU (OPERATION, PAGE_SIZE)
	@$(GPU) profile

wheels: ## Fetch what a machine for GPUs with CPython 3.12 may lack, to take there (50 MB)
	@rm -rf $(WHEELS)
	@$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--python-version 3.12 --implementation cp $(foreach n,17 26 28 34,--platform manylinux_2_$(n)_x86_64) \
		--platform manylinux2014_x86_64 -c constraints.txt -r cuda_impl/wheels.txt -d $(WHEELS)
	@du -sh $(WHEELS)

found: .venv/.stamp ## Make the pages of conformance/found from the tables of known issues
	@$(BIN)/python -m kvlab.pages conformance/found

docs: .venv/.docs.stamp ## Build the documentation site into build/site (a minute)
	@$(BIN)/python -m kvconform.site build
	@$(BIN)/zensical build --clean --strict --config-file build/mkdocs.yml
	@echo "The site is in build/site: open build/site/index.html"

browser: .venv/.stamp ## Open the pages of findings in a headless Chromium, step and filter, take pictures (half a minute)
	@PYTHONPATH=. $(BIN)/python tests/browser/look.py build/browser
	@echo "Pictures are in build/browser"

mutants: .venv/.stamp ## Check 10,000 files that were changed at random: none may make kvspec fail (minutes)
	@$(BIN)/python -m tests.conformance.traces.mutating

hostile: .venv/.stamp ## Check extreme numbers in every small file, shapes that may grow, and kill engines 20 times each way (minutes)
	@KVSPEC_HOSTILE=1 $(BIN)/pytest -q tests/conformance/traces/test_hostile.py tests/kvattach/test_killed.py tests/kvcheck/test_growth.py \
		tests/conformance/levels/requests/test_growth.py

walks: .venv/.stamp ## Compare the fast with the plain checker on 20,000 walks of one host and of three (3 minutes)
	@KVSPEC_WALKS=20000 $(BIN)/pytest -q tests/kvcheck/test_walks.py -k "looking_at_every_slot or hosts"

lint: .venv/.stamp ## Check style and formatting with ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

typecheck: .venv/.engines.stamp ## Check the types of the whole tree with mypy --strict, by torch's own
	@$(BIN)/mypy

clean: ## Remove .venv, build outputs and caches
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last. A .venv without one was left half made (an interrupted or failed install): start it over.
# With one that is merely older than the pins, the install is brought up to date in place.
.venv/.stamp: pyproject.toml constraints.txt
	@test -e $@ -o -e .venv/.docs.stamp || rm -rf .venv
	@echo "Installing into .venv"
	@test -e .venv || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev]'
	@touch $@

# Needed by the device implementation, real engines and the node in Go besides: torch, triton, the imports of SGLang's
# classes, and a compiler.
.venv/.engines.stamp: .venv/.stamp
	@echo "Installing torch, Go and what real engines need into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev,engines,nodes]'
	@touch $@

# Spreads work over a cluster.
.venv/.fleet.stamp: .venv/.stamp
	@echo "Installing Ray into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev,fleet]'
	@touch $@

# Changes the sources for mutation testing.
.venv/.mutation.stamp: .venv/.stamp
	@echo "Installing what mutation testing needs into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev,mutation]'
	@touch $@

# Builds the documentation site, and nothing else.
.venv/.docs.stamp: pyproject.toml constraints.txt
	@test -e $@ -o -e .venv/.stamp || rm -rf .venv
	@echo "Installing the builder of the documentation site into .venv"
	@test -e .venv || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[docs]'
	@touch $@
