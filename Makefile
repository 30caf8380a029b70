# `make demo` and `make test` work in a clean clone, and need only a package registry.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Only 4,000 of the 15,000 installed modules are imported; Python compiles them on import.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# SHARD=2/3: the second of three parts of the tests, whose division depends on their names alone.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal -q $(if $(SHARD),--shard $(SHARD))
TN := $(BIN)/tensornet-attn
DEMO := thsa --legs f=64,r=64,s=64

export PYTHONDONTWRITEBYTECODE := # otherwise, each subprocess of a test compiles the package again

.DEFAULT_GOAL := help
.PHONY: help demo test test-all relations lint docs codegen playground site serve notebooks pages release-check clean

help: ## print this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/installed-demo ## check, cost, draw, compile, verify and run a small thsa
	@mkdir -p demo
	$(TN) check $(DEMO)
	$(TN) cost $(DEMO) --n 64
	$(TN) draw $(DEMO) -o demo/thsa.svg
	$(TN) compile $(DEMO) -o demo/thsa.py
	$(BIN)/python -m tensornet_attn.cli.demo

test: $(VENV)/installed-test ## run the suite without slow tests: 35 minutes on 2 idle cores, with installation
	$(PYTEST) -m "not slow"
	TRITON_INTERPRET=1 $(PYTEST) -m "not slow" tests/triton

pages: $(VENV)/installed-test ## run all that the pages show, notebooks and trainings too, and build the site
	$(PYTEST) tests/test_docs.py tests/site

test-all: $(VENV)/installed-test ## run the whole suite: about two and a half hours on 2 cores
	$(PYTEST)
	TRITON_INTERPRET=1 $(PYTEST) tests/triton

MINUTES := 20
OUT := build/relations
relations: $(VENV)/installed-test ## try the relations of tests/relations on random designs of new seeds, for MINUTES (20)
	$(BIN)/python -m tests.relations --minutes $(MINUTES) --out $(OUT) --backend torch blocks decoding reference cpp

lint: $(VENV)/installed-test ## run ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/installed-test ## regenerate the generated parts of docs/
	$(BIN)/python -m docs.generate docs schema

codegen: $(VENV)/installed-test ## regenerate codegen/
	$(BIN)/python -m docs.generate codegen

playground: $(VENV)/installed-demo ## build the playground's page in build/playground; needs Node.js
	$(BIN)/python docs/playground/build.py

site: $(VENV)/installed-site ## build the documentation site in build/site; warnings are errors
	$(BIN)/sphinx-build -W -n --keep-going -q -c docs/site docs build/site

serve: site ## build the site and serve it on http://localhost:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000

notebooks: $(VENV)/installed-test ## run docs/notebooks and store their outputs; redraw the pictures of pages
	$(BIN)/python docs/site/site_notebooks.py
	$(BIN)/python docs/site/site_pictures.py --trained

release-check: $(VENV)/installed-test ## build wheel and sdist, install them in clean environments, check their contents
	$(BIN)/python -m tests.release

clean: ## remove the environment, and the output of the demo and of builds
	rm -rf $(VENV) demo build dist

# Recreates an environment whose Python is missing, e.g. in a moved clone.
$(VENV)/installed-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed; select it with 'make PYTHON=/path/to/python3 ...'." >&2; exit 1; }
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) --editable '.[$(subst demo,draw,$*)]'
	@touch $@
