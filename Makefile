# Everything is installed into .venv, made from nothing by the target that needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := HF_HUB_OFFLINE=1 WANDB_MODE=offline $(BIN)/python -m pytest
ARGS ?=
WORKERS ?= 2

.PHONY: demo test lint perf scale soak fuzz test-vllm test-singularity images clean

demo: $(VENV)/.demo
	$(BIN)/python -m hermes_rl evaluate $(ARGS)

# Two workers; the Docker tests all run in one of them (WORKERS=0 for one process).
test: $(VENV)/.dev
	$(PYTEST) -n $(WORKERS) --dist loadgroup $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Too big for CI: run by hand, each prints the figures that docs/proof holds.
perf: $(VENV)/.dev
	$(PYTEST) tests/perf -m perf -s $(ARGS)

scale: $(VENV)/.dev
	$(PYTEST) tests/scale -m scale -s --timeout 3600 $(ARGS)

soak: $(VENV)/.dev
	$(PYTEST) tests/scale -m soak -s --timeout 7200 $(ARGS)

fuzz: $(VENV)/.dev
	$(PYTEST) tests -m fuzz -s --timeout 14400 $(ARGS)

test-vllm: $(VENV)/.dev
	$(PYTEST) tests/scale -m vllm -s --timeout 7200 $(ARGS)

test-singularity: $(VENV)/.dev
	$(PYTEST) tests/scale -m singularity -s --timeout 3600 $(ARGS)

# The images of the Docker tests, from Debian packages (needs root, mmdebstrap and dockerd).
images:
	tests/images/build.sh

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hermes_rl needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Could not make a virtual environment;" \
	  "on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docker,local]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@
