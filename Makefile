# SPDX-License-Identifier: Apache-2.0
# Every target works from a fresh clone: the first one that needs the virtual environment makes it.
# Overridable: PYTHON (the interpreter that makes it), VENV (where), ARGS (passed on to the command), GROUP (what
# of pyproject.toml is installed: "test" is enough for the tests of client, protocol and broker).

comma  := ,
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
GROUP  ?= dev

WHAT_IS_INSTALLED := $(if $(filter dev,$(GROUP)),everything the tests need; Spark$(comma) PyArrow and pandas take most of a minute and 1.2 GB,the group '$(GROUP)')
RUN   := $(VENV)/bin/python
STAMP := $(VENV)/.installed-from-pyproject
# What a demo needs is installed in seconds; the environment becomes the whole one when another target wants more.
DEMO  := $(VENV)/.installed-for-the-demo
SPARK_DEMO := $(VENV)/.installed-for-the-demo-of-spark
# Copying a pip into the environment takes longer than all that a demo needs: until it has one, that of the interpreter
# installs into it.
PIP    = $$($(RUN) -c 'import pip' 2>/dev/null && echo $(RUN) -m pip || echo $(PYTHON) -m pip --python $(RUN)) \
         install --quiet --quiet --disable-pip-version-check
CODE  := $(wildcard bmq conformance pyspark_bmq scripts tests examples benchmarks docs docker .ci hatch_build.py)

define FOREIGN
import importlib.metadata, json, os, sys
try:
    origin = json.loads(importlib.metadata.distribution("bmq").read_text("direct_url.json") or "{}")
except importlib.metadata.PackageNotFoundError:
    sys.exit()
folder = origin.get("url", "").removeprefix("file://")
here = os.path.exists(folder) and os.path.samefile(folder, ".")
if origin.get("dir_info", {}).get("editable") and not here:
    sys.exit(f"$(VENV) belongs to the checkout {folder}: choose another environment with VENV=...")
endef
export FOREIGN

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo demo-spark test test-programs soak browser integration lint format types docs playground release bench conform simulate check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install bmq and its tools into it

$(RUN):
	@command -v $(PYTHON) >/dev/null || { \
	    echo "bmq needs Python 3.11 or newer, and there is no '$(PYTHON)' here: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "bmq needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1): make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv --clear --without-pip $(VENV)
	@$(PYTHON) -m pip --python $(RUN) --version >/dev/null 2>&1 || $(RUN) -m ensurepip >/dev/null

# An environment in which another checkout is installed is left alone.
$(STAMP): pyproject.toml | $(RUN)
	@$(RUN) -c "$$FOREIGN" || exit 1
	@echo "setting up $(VENV), once: $(WHAT_IS_INSTALLED)"
	@$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) --editable . --group $(GROUP)
	@touch $@ $(DEMO) $(SPARK_DEMO)

$(DEMO): pyproject.toml | $(RUN)
	@echo "setting up $(VENV) for the demo, once: eight small packages"
	@$(PIP) $$($(RUN) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*project["dependencies"], *project["optional-dependencies"]["cli"])')
	@touch $@

$(SPARK_DEMO): pyproject.toml | $(RUN)
	@echo "setting up $(VENV) for the demo of Spark, once: Spark, PyArrow and pandas, a download of some 500 MB"
	@$(PIP) $$($(RUN) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    extras = project["optional-dependencies"]; names = project["dependencies"] + extras["cli"] + extras["arrow"] + extras["spark"]; \
	    print(*(name for name in names if not name.startswith("bmq[")))')
	@touch $@

demo: $(DEMO) ## a minute: records flow, a consumer is slow, the broker crashes; ARGS=--fast for five seconds
	@PYTHONPATH=. $(RUN) examples/demo.py $(ARGS)

demo-spark: $(SPARK_DEMO) ## a few minutes: a Spark pipeline from queue to queue, killed on the way; ARGS=--fast
	@SPARK_LOCAL_IP=127.0.0.1 PYTHONPATH=. PYSPARK_PYTHON="$(abspath $(RUN))" $(RUN) examples/spark_demo.py $(ARGS)

# Tests run in processes of their own, two for each core. pytest-xdist replaces a process that hangs or crashes: the
# test fails, and the other tests go on. ARGS="-n 0" runs the tests in pytest's own process, where a debugger works.
PYTEST   := $(RUN) -m pytest -n auto --maxprocesses 8 --max-worker-restart 20
# A process that hangs or crashes prints its stacks on standard error, which follows the report.
REPORTED  = @errors=$$(mktemp); trap 'rm -f "$$errors"' EXIT; set -x; $(1) 2>"$$errors"; \
    { status=$$?; set +x; } 2>/dev/null; cat "$$errors" >&2; exit $$status
PROGRAMS := tests/programs tests/browser tests/spark tests/typing tests/frameworks \
    tests/cli/test_run.py tests/client/test_running.py tests/blocking/test_processes.py \
    tests/blocking/test_examples.py tests/taskiq/test_worker.py tests/testing/test_plugin.py tests/testing/test_documented.py \
    tests/broker/test_main.py tests/cli/test_closed_output.py tests/conformance/test_recordings.py \
    tests/test_portability.py tests/workers/test_examples.py
CHOSEN   := $(filter tests/%,$(ARGS))
LONG     := tests/integration/test_lost_nodes.py tests/client/test_leaks.py
SOAK     := tests/integration/test_chaos.py $(LONG)

test: setup ## the tests of the library, on all cores; choose with ARGS="-k name" or ARGS=tests/client
	$(call REPORTED,$(PYTEST) --dist worksteal $(if $(CHOSEN),,$(addprefix --ignore=,$(PROGRAMS) $(SOAK))) $(ARGS))

test-programs: setup ## the tests of Spark, pages, examples, packages and type checkers, and those that start programs
	$(call REPORTED,$(PYTEST) --dist loadfile $(if $(CHOSEN),,$(PROGRAMS)) $(ARGS))

# BMQ_CHAOS_SECONDS is how long each run injects faults, BMQ_SPARK_KILLS how often a Spark pipeline is killed.
soak: setup ## minutes of broken connections and killed brokers, on sockets; choose with BMQ_CHAOS_SECONDS
	BMQ_CHAOS_SECONDS=$${BMQ_CHAOS_SECONDS:-60} $(RUN) -m pytest -n 1 --max-worker-restart 20 \
	    $(if $(CHOSEN),,$(SOAK)) $(ARGS)
	$(if $(CHOSEN),,SPARK_LOCAL_IP=127.0.0.1 PYTHONPATH=. PYSPARK_PYTHON="$(abspath $(RUN))" $(RUN) tests/spark/soak.py)

AXE = $(CURDIR)/build/axe/package/axe.min.js
browser: playground ## the console and the playground in a headless Chromium, which has to be installed
	@for each in chromium chromium-browser google-chrome-stable google-chrome chrome; do \
	    command -v $$each >/dev/null && exit; done; \
	    echo "there is no Chromium here: on Debian, apt-get install chromium" >&2; exit 1
	@test -f $(AXE) || { command -v npm >/dev/null || { echo "there is no npm here: it brings axe-core" >&2; exit 1; }; \
	    mkdir -p build/axe && cd build/axe && npm pack --silent axe-core@4.10.3 >/dev/null && tar xzf axe-core-4.10.3.tgz; }
	BMQ_AXE=$(AXE) $(RUN) -m pytest -n 1 --max-worker-restart 20 tests/console/browser.py tests/browser/browser.py $(ARGS)

integration: setup ## integration tests and conformance cases against a real broker, in Docker; PROFILE=cluster for three nodes
	@./docker/integration "$(RUN)" $(ARGS)

lint: setup ## ruff: rules and format; import-linter: which way imports point; codespell: misspelt words
	$(RUN) -m ruff check $(CODE)
	$(RUN) -m ruff format --check $(CODE)
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/codespell

format: setup ## let ruff rewrite what it can
	$(RUN) -m ruff check --fix $(CODE)
	$(RUN) -m ruff format $(CODE)

# Each service among the examples imports what is beside it, so each is checked by itself.
types: setup ## mypy and pyright, both strict
	$(RUN) -m mypy
	$(RUN) -m mypy $(wildcard examples/*.py)
	for each in $(sort $(dir $(wildcard examples/*/*.py))); do \
	    MYPYPATH=$$each $(RUN) -m mypy $$each*.py || exit 1; done
	$(RUN) -m pyright

docs: setup ## the documentation, strictly, into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

playground: setup ## the documentation with Python in the browser, into site/; fetches Pyodide with npm, 6 MB
	$(RUN) docs/browser/build.py .pyodide
	BMQ_PYODIDE=.pyodide NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

# ARGS=--check lists the reasons against a release and ARGS=--rehearse ignores them: see RELEASING.md.
VERSION ?=
release: $(RUN) ## the files of a release into dist/, tried and described: VERSION=1.2.3, and ARGS=--check first
	@$(RUN) .ci/release.py $(VERSION) $(ARGS)

bench: setup ## this client beside the official one, the floor and an earlier version; ARGS="--quick latency" for a look
	$(RUN) benchmarks/run.py $(ARGS)

conform: setup ## conformance/reports: the embedded broker, and the broker of BMQ_BROKER_URI, against the suite of cases
	$(RUN) -m conformance.pages $(ARGS)

simulate: setup ## programs under faults of many seeds: ARGS="--seeds 10000 --jobs 2"
	$(RUN) -m tests.simulation $(ARGS)

check: ## everything continuous integration runs
	@VENV="$(VENV)" PYTHON="$(PYTHON)" ./.ci/run

clean: ## remove what the targets made, .venv too
	rm -rf $(VENV) site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
