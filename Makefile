# `make demo` and `make test` do all the set-up: an environment in .venv, the pinned dependencies, the package.
PYTHON ?= python3
BIN := .venv/bin
# An environment made by hand or by another clone is left alone; the stamp says what ours was made from.
STAMP := .venv/installed

.PHONY: demo test slow check docs dist matrix bench attack clean

demo: $(STAMP)
	$(BIN)/mtn compare demo --methods mtn,ssil,knn --out runs/demo
	rm -rf runs/intents
	$(BIN)/mtn learn runs/intents examples/intents.csv
	$(BIN)/mtn explain runs/intents "could you turn the lamp on" --out runs/intents.png

test: $(STAMP)
	$(BIN)/python -m pytest

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

# The site, in build/site: open index.html. A broken link is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# A wheel and a source distribution, in dist, checked as a registry would.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# The wheel in new environments: each Python that is here, the newest and the lowest core dependencies.
matrix: dist
	$(BIN)/python scripts/matrix.py dist/*.whl

bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py

# An hour at the most; `make attack SHARE=0.05` does a part of it.
SHARE ?= 1
attack: $(STAMP)
	$(BIN)/python -m attack --share $(SHARE)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("mtn needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv || { echo 'no venv module: apt-get install python3-venv'; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv build dist src/*.egg-info runs .pytest_cache .mypy_cache .ruff_cache
