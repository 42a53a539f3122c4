# `make repro` is all that a fresh clone needs: it makes .venv from the lock, then runs the pipeline.

PYTHON ?= python3
# Removed and made anew, so it is no name of the user.
override VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
TORCH := 2.13.0

# Nothing here reports to anybody. W&B is offline unless WANDB_API_KEY is set (doppler.tracking).
export DO_NOT_TRACK ?= 1
export DVC_NO_ANALYTICS ?= 1
export PREFECT_SERVER_ANALYTICS_ENABLED ?= false
export WANDB_ERROR_REPORTING ?= false
# Stages call `python`: let it be the one of the virtual environment.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help install repro experiments test check lint format bench benchmark-suite fidelity report \
	figures docs best-known package-policy clean lock

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## Make .venv from requirements.lock, if it is missing or older

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
		{ echo "$(PYTHON) is not Python 3.11 to 3.13: say make PYTHON=python3.11" >&2; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

repro: $(INSTALLED)  ## Run the whole pipeline: graphs, traces, training, report
	$(BIN)/python scripts/check_params.py
	$(BIN)/dvc repro

# Another scale than that of experiments/params.yaml is written into it: that is what DVC records.
experiments: $(INSTALLED)  ## Reproduce the paper's evaluation (FULL=1: on a big machine); reports/experiments.html
	$(if $(FULL),sed -i.bak 's/^scale: .*/scale: full/' experiments/params.yaml && rm experiments/params.yaml.bak)
	$(BIN)/dvc repro experiments/dvc.yaml

report: $(INSTALLED)  ## Make reports/index.html, and whatever it needs, anew
	$(BIN)/python scripts/check_params.py
	$(BIN)/dvc repro evaluate

package-policy: $(INSTALLED)  ## Put the policy that the pipeline trained into the package
	cp models/policy.safetensors src/doppler/policy/pretrained.safetensors

best-known: $(INSTALLED)  ## Take over into the table of best placements what the report found
	$(BIN)/python benchmarks/best_known.py --seconds 0 --from reports/placements

figures: $(INSTALLED)  ## Put the figures of reports/ and the options into README.md and docs/
	$(BIN)/python docs/make.py

# The theme warns of a release of MkDocs that it does not allow to be installed.
docs: figures  ## Build the site of the documents in build/site, after `figures`
	NO_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --strict

test: $(INSTALLED)  ## Run every test, the slow ones too
	$(BIN)/python -m pytest -m "slow or not slow"

lint: $(INSTALLED)  ## Format, lint, spelling, types, import contracts and stages; changes nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/codespell src tests flows benchmarks examples scripts docs README.md
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports
	$(BIN)/python scripts/stages.py --check

check: lint  ## What a commit must pass: lint and the fast tests
	$(BIN)/python -m pytest

format: $(INSTALLED)  ## Format the code, mend what ruff can mend, and list in dvc.yaml what stages import
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/python scripts/stages.py

bench: $(INSTALLED)  ## Measure speed beside peers; writes reports/bench.json
	$(BIN)/python benchmarks/run.py

benchmark-suite: $(INSTALLED)  ## Compare every method on all suites at length; writes reports/benchmark_suite.json
	$(BIN)/python benchmarks/suite.py

fidelity: $(INSTALLED)  ## Hold the simulator against runs on this machine; writes reports/fidelity.json
	$(BIN)/python benchmarks/fidelity.py

clean:  ## Remove what tools leave behind; keeps the results and .venv
	rm -rf build dist .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests flows benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A dry run of pip against an empty environment resolves exactly what Doppler and its extras need.
# torch is held at a release that has builds for every supported machine, with and without CUDA.
lock: pyproject.toml  ## Resolve all dependencies anew and write requirements.lock
	rm -rf build/lock && mkdir -p build/lock
	$(PYTHON) -m venv build/lock/venv
	build/lock/venv/bin/python -m pip install --quiet --upgrade pip
	build/lock/venv/bin/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed \
		--report build/lock/report.json '.[bench,exact,examples,pipeline,docs,dev]' 'torch==$(TORCH)'
	$(PYTHON) scripts/lock.py build/lock/report.json requirements.lock
