# Each target does its own set-up: a fresh machine needs Python 3.11+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev

.PHONY: demo test stress lint bench format clean

demo: $(READY)
	$(BIN)/excise demo

test: lint
	$(BIN)/pytest -n 2

stress: $(READY_DEV)
	$(BIN)/pytest -m stress

lint: $(READY_DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/excise bench

format: $(READY_DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Excise needs Python 3.11 or newer; set PYTHON to one.")'
	$(PYTHON) -m venv $(VENV)

$(READY): $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing Excise and its libraries into $(VENV): a minute or two the first time."
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(READY_DEV): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
