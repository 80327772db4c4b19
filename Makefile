# `make` lists the targets. Everything runs in .venv, which is built from requirements.lock when it is needed.
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.PHONY: help run example example-orders example-saga test check coverage debezium bench docs docs-serve docs-version diagrams lock dist clean lint types imports unit compiled tests rules-covered other-pythons other-environments

BIN := .venv/bin
# The stamp's name holds the place, because an environment does not survive being moved or copied.
READY := .venv/ready-in$(subst /,-,$(CURDIR))
# Four workers, each with servers of its own: tests wait more than they compute. A file stays whole, for what its tests
# share; those of a second come last, so that all workers end together.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder
# What is quick tries fewer examples of each property than the whole suite does.
FEWER := --hypothesis-profile='fewer examples'
# Two at a time, each in one process: that takes less than one after the other, each on both cores.
SIDE_BY_SIDE_MAKE = $(MAKE) --jobs=2 --output-sync=target SIDE_BY_SIDE=yes
# The tests start hundreds of processes: what one has compiled, the others load.
unexport PYTHONDONTWRITEBYTECODE
# The theme announces its successor at every build: docs/decisions/0064 says why we use it.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
heading = @printf '\n\033[1m── %s\033[0m\n' "$(1)"

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

run: $(READY) ## show Postroom at work, on SQLite
	@$(BIN)/postroom demo

example: $(READY) ## order, payment and inventory as three services, of which one is killed
	@$(BIN)/python -m examples.choreography

example-orders: $(READY) ## orders under idempotency keys, to an exchange that fails; a relay is killed
	@$(BIN)/python -m examples.orders

example-saga: $(READY) ## the same three services directed by a saga, with failures at each step; a worker is killed
	@$(BIN)/python -m examples.saga

# What checks the code needs one core, and what the other Pythons need is built on the second one meanwhile.
test: ## everything, with real servers (what CI runs)
	@$(SIDE_BY_SIDE_MAKE) lint types imports compiled other-environments
	@$(MAKE) tests
	@$(SIDE_BY_SIDE_MAKE) other-pythons rules-covered

check: $(READY) ## lint, types, import contracts, unit tests: under a minute
	@$(SIDE_BY_SIDE_MAKE) unit lint types imports

bench: $(READY) ## measure
	@$(BIN)/python -m benchmarks

docs: $(READY) ## build the documentation site, in build/site; a broken link or a page without a place is an error
	@$(MKDOCS) build --quiet --strict
	@echo 'build/site/index.html'

docs-serve: $(READY) ## show the site while you write, on http://127.0.0.1:8000
	@$(MKDOCS) serve --livereload

docs-version: $(READY) ## commit the site as VERSION=0.2 to the local branch `site`, as `latest` too: see CONTRIBUTING.md
	@PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --branch site --update-aliases '$(VERSION)' latest
	@$(BIN)/mike set-default --branch site latest

diagrams: $(READY) ## draw the diagrams of the pages that are new or changed; needs npm, a network and Chromium
	@$(BIN)/python -m scripts.site.draw

lock: $(READY) ## resolve requirements.lock again (newest versions: make lock OPTIONS=--upgrade)
	$(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --all-extras --group dev --group docs \
		--generate-hashes --custom-compile-command 'make lock' --output-file requirements.lock $(OPTIONS)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --group debezium \
		--generate-hashes --custom-compile-command 'make lock' --output-file requirements-debezium.lock $(OPTIONS)

dist: $(READY) ## build wheel, source distribution and bill of materials into dist/
	rm -rf dist
	$(BIN)/uv build --no-build-isolation --python $(BIN)/python --out-dir dist .
	$(BIN)/python scripts/sbom.py dist

clean: ## remove environments, caches and reports
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.* \
		htmlcov build dist
	find src tests scripts benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

lint: $(READY)
	$(call heading,ruff)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(READY)
	$(call heading,mypy)
	@$(BIN)/mypy $(wildcard src tests scripts benchmarks examples)
	$(call heading,pyright on the examples)
	@$(BIN)/basedpyright --pythonpath $(BIN)/python

imports: $(READY)
	$(call heading,import contracts)
	@$(BIN)/lint-imports --no-logo

unit: $(READY)
	$(call heading,unit tests)
	@$(BIN)/python -m pytest -q $(if $(SIDE_BY_SIDE),,-n 2) $(FEWER) tests/unit

# In a new clone each of the four workers would compile all tests for itself, which takes it half a minute of CPU.
compiled: $(READY)
	$(call heading,collecting the tests)
	@found=$$($(BIN)/python -m pytest --collect-only -qq) || { echo "$$found"; exit 1; }

tests: $(READY)
	$(call heading,all tests)
	@$(BIN)/python -m pytest $(PARALLEL)

rules-covered: $(READY)
	$(call heading,the rules are covered in full)
	@$(BIN)/python -m pytest -q $(FEWER) tests/unit/rules --ignore-glob='*_search.py' --cov --cov-report=
	@$(BIN)/coverage report --include='src/postroom/rules/*' --fail-under=100

debezium: $(READY) ## only the tests with the real Debezium: Java, and a wheel of 200 MB in .venv-debezium
	@$(BIN)/python -m pytest -q tests/contract/test_debezium.py tests/contract/test_debezium_mode.py

coverage: $(READY) ## everything once more, and which lines it runs
	@$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term

other-environments: $(READY)
	$(call heading,environments of the other Pythons)
	@$(BIN)/python scripts/other_pythons.py --build

other-pythons: $(READY)
	$(call heading,unit tests on the other Pythons)
	@$(BIN)/python scripts/other_pythons.py

$(READY): requirements.lock pyproject.toml scripts/environment.sh
	@echo 'postroom: building .venv'
	@scripts/environment.sh .venv $(PYTHON)
	@rm -f .venv/ready-in* && touch '$@'
