# The two commands a newcomer needs: `make trial` and `make test`. Set-up happens by itself.
SHELL := /bin/bash
BIN := $(or $(WEIR_VENV),.venv)/bin
PYTHON3 ?= $(firstword $(shell command -v python3 python3.12 python3.11 2>/dev/null))
BOOTSTRAP = $(or $(PYTHON3),$(error Python 3.11 or 3.12 is needed and was not found on the PATH: install python3.11 or python3.12)) testbed/bootstrap.py
ARGS ?=
# Compiled modules are kept beside the sources (git ignores them) also where the environment says not to: compiling all tests
# is a quarter of the fast tests' time.
unexport PYTHONDONTWRITEBYTECODE
FAST := tests/unit tests/contracts tests/loop
# Each worker collects all tests, and no test waits for a clock: more workers than processors would only collect more often.
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)

.PHONY: help environment setup kubernetes kubernetes-node node-means means trial check lint types imports fast explore test test-integration test-live test-e2e \
        test-containers test-kubernetes test-node demo-kubernetes bench chaos schemas man page picture lock images clean

help:  ## what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup:  ## virtual environment, jars and the sample job, once
	@$(BOOTSTRAP)

trial: setup  ## the whole loop around a real job on this machine (ARGS="--help" for options)
	@$(BIN)/weir trial $(ARGS) || { code=$$?; [ $$code -eq 130 ] || exit $$code; }  # 130: ended by Ctrl-C, no failure

# The fast tests need no Java.
environment:
	@$(BOOTSTRAP) environment

kubernetes: environment  ## builds the Kubernetes API server of the tests with Go, once (about ten minutes)
	@$(BIN)/python -m testbed.kubernetes_programs

kubernetes-node: environment  ## the same with what runs pods on this machine, once (five minutes more)
	@$(BIN)/python -m testbed.kubernetes_programs node

# What the machine lacks is named before anything is built or fetched, which takes long.
node-means: environment
	@$(BIN)/python -m tests.node.images

demo-kubernetes: node-means setup kubernetes-node  ## the whole loop on a Kubernetes node of this machine, until Ctrl-C (Debian, as root; ARGS=reactive or kafka-streams)
	@$(BIN)/python -m tests.node.demo $(ARGS) || { code=$$?; [ $$code -eq 130 ] || exit $$code; }

# Without its means a tier is skipped and says what is missing, or fails where WEIR_REQUIRE names it.
means: environment
	-@$(BOOTSTRAP)

lint: environment
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

types: environment
	@$(BIN)/mypy

imports: environment
	@$(BIN)/lint-imports

fast: environment
	@$(BIN)/pytest -q -n $(WORKERS) --dist worksteal $(FAST)

check: environment  ## lint, types, import rules and fast tests: about two minutes on two cores
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target fast lint types imports

explore: environment  ## the fast tests that generate examples, with 20 times as many as `make test`, others in each run (about 15 minutes)
	@$(BIN)/pytest -q -n $(WORKERS) --dist worksteal --explore=20 -m hypothesis $(FAST)

test-integration: means  ## each adapter against the real part
	@$(BIN)/pytest -q --thorough tests/integration

# Rates of real jobs, which other work on the machine would change: alone, and not in `make test`, which they would make longer.
LIVE := tests/integration/cli/test_sources.py::TestAlone tests/integration/executor/test_task_managers.py::TestAlone

test-live: means  ## sources without Kafka's offsets, and TaskManagers that come and go, at a real Flink (five minutes)
	@$(BIN)/pytest -q --thorough $(LIVE)

test-e2e: means  ## one whole trial
	@$(BIN)/pytest -q tests/e2e

test-containers: means  ## images, compose and all that needs a Docker daemon: yours, or none of it is run
	@$(BIN)/pytest -q tests/containers

test-kubernetes: kubernetes  ## against a real Kubernetes API server, whose pods are simulated
	@$(BIN)/pytest -q tests/kubernetes

test-node: node-means means kubernetes-node  ## on a Kubernetes node of this machine, where pods really run (Debian, as root)
	@$(BIN)/pytest -q tests/node

# One run, one closing line. First the tests of Kubernetes on one worker beside the fast ones, then the integration
# tests on all workers, then one worker alone has what is judged by real time (tests/conftest.py).
# Thorough: all examples that a test can think of, of which `make check` tries a few (tests/effort.py).
# The node's programs are built where WEIR_REQUIRE names that tier, or by `make kubernetes-node`.
test: lint types imports means  ## check, e2e, containers where a Docker daemon answers, kubernetes where Go is, and integration but for test-live
	-@$(BIN)/python -m testbed.kubernetes_programs
	$(if $(findstring node,$(WEIR_REQUIRE)),-@$(BIN)/python -m testbed.kubernetes_programs node)
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadscope --no-loadscope-reorder --thorough $(addprefix --deselect ,$(LIVE)) tests/kubernetes $(FAST) tests/integration tests/e2e tests/containers tests/node

chaos: setup  ## faults at fail points of actions, judged from outside: bench/results/chaos.json (an hour; ARGS="--target flink": see --help)
	@$(BIN)/python -m bench chaos $(ARGS)

bench: environment  ## lists the benchmarks: `make bench-NAME` measures one into bench/results/NAME.json (ARGS="--help" for options)
	@$(BIN)/python -m bench

# These run the real parts.
bench-loop bench-fleet bench-compare bench-single bench-flink-shapes: setup

bench-%: environment
	@$(BIN)/python -m bench $* $(ARGS)

schemas: environment  ## exports the contracts' JSON Schemas and docs/reference/policy.md
	@$(BIN)/python -m weir_contracts.export

man: environment  ## writes the man pages in docs/man from what the command's help says
	@$(BIN)/python -m weir_cli.man docs/man/man1

page:  ## builds the page from web/ into the knowledge service's package (needs Node 18 or later)
	@cd web && npm ci --silent && npm run --silent build

picture: environment  ## takes the pictures of the page that the README begins with, from a running world
	@$(BIN)/python -m tests.integration.page.picture

LOCK := $(BIN)/uv pip compile pyproject.toml --python-version 3.11 --universal --generate-hashes \
	--no-header --annotation-style line -q
LOCK_IMAGE := $(LOCK) --constraint requirements.lock

lock: environment  ## resolves pyproject.toml into requirements.lock again, and what of it each image needs
	@$(LOCK) --extra dev -o requirements.lock
	@$(LOCK_IMAGE) --extra monitor --extra planner --extra executor --extra knowledge -o services/requirements.lock
	@$(LOCK_IMAGE) --extra analyzer -o services/analyzer/requirements.lock
	@$(LOCK_IMAGE) --extra workloads -o workloads/requirements.lock
	@$(LOCK_IMAGE) --extra supervisor -o testbed/supervisor/requirements.lock

IMAGE_TAG ?= dev
BUILD_ARGS ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)
IMAGES := weir weir-analyzer weir-load weir-sample-job weir-sample-streams weir-streams-supervisor

images: $(addprefix image-,$(IMAGES))  ## the containers' images, weir:dev and so on (needs Docker alone; IMAGE_TAG, BUILD_ARGS)

image-%:
	@echo "images: $*:$(IMAGE_TAG)"
	@docker build -q $(BUILD_ARGS) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
	  -f deploy/Dockerfile --target $* -t $*:$(IMAGE_TAG) . >/dev/null

clean:  ## removes environment, caches and run folders
	rm -rf .venv .cache runs
