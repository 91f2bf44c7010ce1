# The two commands a newcomer needs: `make trial` and `make test`. Set-up happens by itself.
SHELL := /bin/bash
PY ?= $(or $(WEIR_VENV),.venv)/bin
PYTHON3 ?= python3
ARGS ?=

.PHONY: help setup trial check lint types imports fast test test-integration test-e2e bench-loop bench-advance schemas lock clean

help:  ## what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup:  ## virtual environment, jars and the sample job, once
	@$(PYTHON3) testbed/bootstrap.py

trial: setup  ## the whole loop around a real job on this machine (ARGS="--help" for options)
	@$(PY)/weir trial $(ARGS)

lint:
	$(PY)/ruff check .
	$(PY)/ruff format --check .

types:
	$(PY)/mypy

imports:
	$(PY)/lint-imports

fast:
	$(PY)/pytest -q tests/unit tests/contracts tests/loop

check: setup lint types imports fast  ## lint, types, import rules, fast tests: under a minute

test-integration: setup  ## each adapter against the real part
	$(PY)/pytest -q -m integration tests/integration

test-e2e: setup  ## one whole trial
	$(PY)/pytest -q -m e2e tests/e2e

test: check test-integration test-e2e  ## everything

bench-loop: setup  ## measures the loop on this machine into bench/results/loop.json (about 45 minutes)
	$(PY)/python -m bench.loop $(ARGS)

bench-advance: setup  ## measures the analyzer's core into bench/results/advance.json
	$(PY)/python -m bench.advance $(ARGS)

schemas: setup  ## exports the contracts' JSON Schemas
	$(PY)/python -m weir_contracts.export

lock: setup  ## resolves pyproject.toml into requirements.lock again
	$(PY)/uv pip compile pyproject.toml --extra dev --python-version 3.11 --universal --generate-hashes \
	  --no-header --annotation-style line -q -o requirements.lock

clean:  ## removes environment, caches and run folders
	rm -rf .venv .cache runs
