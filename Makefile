# Everything runs in .venv, which is built on first use and needs only Python >= 3.11.
PYTHON ?= python3
# The CPU build of PyTorch is enough for the tests; set another wheel for a GPU.
TORCH ?= torch==2.13.0
# timm imports torchvision. Its release must match, or pip installs another PyTorch.
TORCHVISION ?= torchvision==0.28.0
# Writes OME-Zarr for the tests. Installed without its other dependencies: they are for cloud
# storage, and require older versions of packages that the rest needs newer.
OME_WRITER := ome-zarr==0.18.0 ome-zarr-models==1.7 pydantic-zarr==0.9.2 Deprecated==1.3.1 wrapt==2.5.2 rangehttpserver==1.4.0

# Number of parallel test processes.
TEST_PROCESSES ?= 2
# Branch coverage in percent below which `make coverage` fails. Code in child processes does not count.
MIN_COVERAGE ?= 90

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check -qq
# Most modules are never imported; Python compiles the others at their first import.
INSTALL := $(PIP) install --no-compile
export PYTHONDONTWRITEBYTECODE =

WHEEL_PIP := .venv-wheel/bin/python -m pip --disable-pip-version-check -qq
IN_HOUR   := cd .venv-wheel/hour && env -u PYTHONPATH ../bin/python

# Files that record what is installed in .venv. They are renewed when a requirement changes.
READY       := $(VENV)/.ready
READY_TORCH := $(VENV)/.ready-torch
READY_BENCH := $(VENV)/.ready-bench
READY_DOCS  := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env torch demo test coverage lowest docs release lint format bench limits peers fuzz chaos load mutants lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

env: $(READY)  ## Build .venv with the package and the development tools

demo: $(READY)  ## Train and test on synthetic tissue, and write an HTML page
	$(BIN)/python -m histodict.cli demo

# One thread per process: there are as many processes as cores.
test: export OPENBLAS_NUM_THREADS ?= 1
test: export OMP_NUM_THREADS ?= 1
test: lint  ## Lint, check types and run the tests
	@# Keep the order of tests/conftest.py: the slow files first.
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

coverage: export OPENBLAS_NUM_THREADS ?= 1
coverage: $(READY_TORCH)  ## Run the tests and measure the branch coverage; fail if it is lower than recorded
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder \
	  --cov=histodict --cov-branch --cov-report=term:skip-covered --cov-fail-under=$(MIN_COVERAGE)

lowest:  ## Run the tests with the oldest versions that are allowed
	$(call check-python)
	rm -rf .venv-lowest
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m tests.lowest > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip --disable-pip-version-check -qq install -c .venv-lowest/lowest.txt -e ".[dev]"
	.venv-lowest/bin/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# The tests come from the sdist, unpacked without src/, so that only the wheel can be imported.
# They run with the wheel alone, then with all packages that the README mentions.
release: $(READY)  ## Build the sdist and the wheel in dist/, and test the wheel in a new environment
	rm -rf dist .venv-wheel
	$(INSTALL) -c constraints.txt build twine
	$(BIN)/python -m build -q
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv .venv-wheel
	mkdir .venv-wheel/hour
	tar -xzf dist/*.tar.gz -C .venv-wheel/hour --strip-components=1
	rm -r .venv-wheel/hour/src
	$(WHEEL_PIP) install -c constraints.txt dist/*.whl
	$(IN_HOUR) -m tests.first_hour --check
	$(WHEEL_PIP) install -c constraints.txt "$(TORCH)"
	$(WHEEL_PIP) install -c constraints.txt "$$(echo dist/*.whl)[networks,web]" mypy pytest
	$(IN_HOUR) -m tests.first_hour --check
	$(IN_HOUR) -m mypy --strict --config-file= tests/typed_script.py
	$(IN_HOUR) -m pytest -q -p no:cacheprovider tests/web/test_serve.py tests/test_public_names.py
	cd .venv-wheel && env -u PYTHONPATH bin/histodict demo --output demo

docs: $(READY_DOCS)  ## Build the documentation: build/site/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	$(BIN)/python docs/check_site.py build/site

lint: $(READY)  ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## Fix imports and formatting in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

torch: $(READY_TORCH)  ## Install PyTorch and the encoders in .venv

bench: $(READY_TORCH)  ## Measure the time of typical tasks relative to lower limits (BENCH=--quick: one minute)
	$(BIN)/python -m benchmarks.waits $(BENCH)

limits: $(READY_TORCH)  ## Compare these ratios with the recorded ones; fail if one is 1.5 times as large
	$(BIN)/python -m benchmarks.waits --check

peers: $(READY_BENCH)  ## Compare the speed of the kernels with SPAMS and other packages
	$(BIN)/python -m benchmarks.kernels

fuzz: $(READY)  ## Test damaged input of every kind, one minute each (FUZZ="images --cases 20000")
	$(BIN)/python -m attacks.fuzz $(FUZZ)

load: $(READY)  ## Test the web server with eight simultaneous users for ten minutes (LOAD="--seconds 60")
	$(BIN)/python -m attacks.load $(LOAD)

chaos: $(READY)  ## Kill and disturb every command for ten minutes (CHAOS="--kills 200 --jobs 2")
	$(BIN)/python -m attacks.chaos $(CHAOS)

mutants: $(READY)  ## Change operators and constants, and count the changes that no test detects (MUTANTS="metrics --sample 40")
	$(BIN)/python -m attacks.mutation $(MUTANTS)

lock:  ## Resolve the newest versions and write constraints.txt
	$(call check-python)
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip --disable-pip-version-check -qq install -e ".[dev,docs]"
	{ echo "# The exact versions that CI tests with, as pip constraints. Written by 'make lock'."; \
	  .venv-lock/bin/python -m pip --disable-pip-version-check freeze --exclude-editable \
	  | grep -E '^[A-Za-z0-9._-]+==' | grep -v '^torch=='; } > constraints.tmp
	mv constraints.tmp constraints.txt
	rm -rf .venv-lock

clean:  ## Remove .venv and everything generated
	rm -rf $(VENV) .venv-lock .venv-lowest .venv-wheel constraints.tmp build dist docs/api docs/gallery docs/project .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

define check-python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "histodict needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one, for example: make test PYTHON=python3.12" >&2; exit 1; }
endef

$(BIN)/python:
	$(call check-python)
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -c constraints.txt -e ".[dev]"
	$(INSTALL) --no-deps $(OME_WRITER)
	@touch $@

$(READY_TORCH): $(READY) packages/histodict-instanseg/pyproject.toml
	$(INSTALL) -c constraints.txt "$(TORCH)"
	$(INSTALL) --no-deps "$(TORCHVISION)"
	$(INSTALL) -c constraints.txt -e ".[networks,encoders]" ./packages/histodict-instanseg
	@touch $@

# torch is installed first, so that packages which need it do not install another build.
$(READY_BENCH): $(READY_TORCH)
	$(INSTALL) -c constraints.txt -e ".[bench]"
	@touch $@

$(READY_DOCS): $(READY)
	$(INSTALL) -c constraints.txt -e ".[docs]"
	@touch $@
