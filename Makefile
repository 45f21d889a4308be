# make bench      measure scenarios/quick.yaml on the GPU, or on the CPU where there is none
# make test       lint, and the quick tests that need no GPU     ARGS="-k store" goes to pytest
# make slow-test  the other tests that need no GPU: whole commands, gates, ranks, pages, and rare cases
# make test-instrument, make test-collection    the tests of one wing, without lint
# make lint       ruff and mypy --strict; prints what is wrong, and nothing otherwise
# make gpu-test   the tests that need a GPU: GPU_JOBS of them at a time, then those that need it for themselves
# make site       the documentation with every committed run, as pages in site/      ARGS="--runs none" goes to the script
# make clean      remove what make made
#
# PYTHON=python3.12 picks the interpreter that .venv is made with.

PYTHON ?= python3
ARGS ?=
# One more than cores: tests that wait for a process leave a core idle. A file's tests run in one process, since what
# some files start for all of their tests takes seconds.
TEST_JOBS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
GPU_JOBS ?= 4

PYTEST = $(BIN)/pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder -m "not gpu and $(SLOW)" $(WING) $(ARGS)

SLOW := not slow
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# mypy takes the place of the shell, so that who ends the shell ends mypy.
LINT := $(BIN)/ruff check --quiet && $(BIN)/ruff format --check --quiet && exec $(BIN)/mypy

.PHONY: bench test slow-test test-instrument test-collection lint gpu-test site clean

bench: $(READY)
	$(BIN)/harness run quick

# What lint finds is shown after the tests, which run meanwhile. No $(MAKE) here: such a line runs under make -n, too.
test: $(READY)
	@{ $(LINT); } > $(VENV)/lint.txt 2>&1 & lint=$$!; \
	  trap 'kill $$lint; exit 130' INT TERM; \
	  $(PYTEST); tests=$$?; wait $$lint || tests=1; cat $(VENV)/lint.txt; exit $$tests

slow-test: SLOW := slow
slow-test: $(READY)
	$(PYTEST)

test-instrument: WING := --ignore=tests/collection
test-collection: WING := tests/collection
test-instrument test-collection: $(READY)
	$(PYTEST)

lint: $(READY)
	@$(LINT)

gpu-test: $(READY)
	$(BIN)/pytest -m "gpu and not alone" -n $(GPU_JOBS) --dist worksteal --timeout 600 $(ARGS) || test $$? = 5
	$(BIN)/pytest -m "gpu and alone" --timeout 600 $(ARGS) || test $$? = 5

# The extra comes on demand: only the site needs it.
site: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python scripts/make_site.py $(ARGS)

clean:
	rm -rf $(VENV) dist site site.source .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamped last, so that an install that was cut off is done again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed; '$(PYTHON)' isn't that. Name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	$(BIN)/python -m compileall -q harness
	@touch $@
