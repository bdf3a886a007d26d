# make demo   see a classifier learn new classes (creates .venv and installs first)
# make test   check + the whole test suite      make check  ruff and mypy
# make results  the tables and figures of docs/results.md, docs/choices.md and README.md, from the records in docs/results
# make docs   the site, into docs/_build/html
# make javascript  what the example in JavaScript needs, where npm is there
# make bench  speed ratios against the textbook twin
# Options of a command: make demo ARGS="--quick --out somewhere"
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The build of the package itself goes through the constraints too.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test suite check format bench javascript results docs clean

demo: .venv/.runtime
	$(BIN)/anchorinv demo $(ARGS)

# Types are checked beside the tests: either would leave a core idle.
test: javascript
	@$(MAKE) --no-print-directory --jobs=2 check suite

suite: .venv/.dev
	$(BIN)/python -m pytest --numprocesses auto

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A test runs it; without npm, or a registry to install from, that test skips with a word.
ONNX_EXAMPLE := examples/onnx
javascript:
	@cmp -s $(ONNX_EXAMPLE)/package-lock.json $(ONNX_EXAMPLE)/node_modules/.installed \
	  || { npm ci --prefix $(ONNX_EXAMPLE) --ignore-scripts --no-audit --no-fund --silent \
	       && cp $(ONNX_EXAMPLE)/package-lock.json $(ONNX_EXAMPLE)/node_modules/.installed; } \
	  || echo "no npm, or no packages for it: the example in JavaScript is not tested"

bench: .venv/.runtime
	$(BIN)/python -m benchmarks $(ARGS)

results: .venv/.runtime
	$(BIN)/anchorinv report $(wildcard docs/results/*.jsonl) --into docs/results.md
	$(BIN)/anchorinv report $(wildcard docs/results/*-select.jsonl) --into docs/choices.md
	$(BIN)/anchorinv report docs/results/demo-emg.jsonl --into README.md
	$(BIN)/python docs/real_data.py

# Warnings are errors, an example that fails is one.
docs: .venv/.dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env -d docs/_build/doctrees docs docs/_build/html $(ARGS)
	@echo "The site is docs/_build/html/index.html"

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' \
	  || { echo "anchorinv needs Python 3.11 or newer; name one with make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv

# A stamp is newer than what it was made from, so a second run installs nothing.
.venv/.runtime: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing anchorinv into .venv (a minute or two, once) ..."
	$(PIP) --editable '.[recordings]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing anchorinv and its development tools into .venv (a few minutes, once) ..."
	$(PIP) --editable '.[dev]'
	@touch .venv/.runtime $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis runs dist docs/_build docs/gallery docs/generated
