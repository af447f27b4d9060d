# From a fresh clone with nothing but Python 3.11 or newer: `make demo`, `make test`.
# A stamp inside each environment records its last installation; it is redone only when a lock or pyproject.toml changes.

PYTHON ?= python3
PIP_FLAGS := --quiet --disable-pip-version-check
DEMO := .venv
DEV := .venv-dev
UV ?= uv

.DEFAULT_GOAL := help
.PHONY: help demo test lint lock cluster clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(DEMO)/.installed: requirements/demo.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install $(PIP_FLAGS) --require-hashes --requirement requirements/demo.txt
	$(DEMO)/bin/pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV)/.installed: requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/pip install $(PIP_FLAGS) --require-hashes --requirement requirements/dev.txt
	$(DEV)/bin/pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(DEMO)/.installed ## Compile one step of the example conversation; writes payload.json
	$(DEMO)/bin/contextbus compile examples/conversation.json --docs examples/runbooks \
		--memories examples/memories.jsonl --working-memory examples/working-memory.json \
		--target anthropic --output payload.json

test: $(DEV)/.installed ## Run the whole test suite
	PATH="$(CURDIR)/$(DEV)/bin:$$PATH" $(DEV)/bin/python -m pytest -n auto --dist worksteal

lint: $(DEV)/.installed ## Format, lint, layering and both type checkers
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/lint-imports
	$(DEV)/bin/mypy
	$(DEV)/bin/pyright --pythonpath $(DEV)/bin/python

# --upgrade makes the result depend on pyproject.toml and the day, not on the lock that was there.  No header and no
# index options: the locks name packages and hashes, never an address.
LOCK := $(UV) pip compile --universal --python-version 3.11 --generate-hashes \
	--upgrade --no-header --no-emit-index-url --no-emit-find-links --quiet

lock: ## Pin all dependencies anew (needs uv)
	$(LOCK) requirements/build.in --output-file requirements/build.txt
	$(LOCK) pyproject.toml requirements/build.in --extra embedded --output-file requirements/demo.txt
	$(LOCK) pyproject.toml requirements/build.in --extra embedded --extra fast --extra otel --group dev --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --extra fast --output-file requirements/image.txt

compose/.env:
	@umask 077; for name in ROUTE DEFAULT_ACTORS DEFAULT_CLIENT ACME_ACTORS ACME_CLIENT; do \
		printf 'CTX_%s=s%s\n' $$name "$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"; done > $@
	@echo "wrote $@ with new passwords, readable by you only"

cluster: compose/.env ## Three NATS nodes, the actors and two workers, with docker compose
	docker compose --file compose/compose.yml up --build --detach --wait

clean: ## Remove environments, caches and what the demo wrote
	rm -rf $(DEMO) $(DEV) build dist payload.json .coverage .coverage.* .hypothesis .mutation .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache
	find actors protocol tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
