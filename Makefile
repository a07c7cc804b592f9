# One command for each habit. Everything runs in .venv, which the first of them makes.
# ARGS is handed on: make test ARGS='-k launcher'. PYTHON names an interpreter to prefer: make test PYTHON=python3.13.

VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
PURE := */blackboard/core/*,*/supervisor/decide.py,*/supervisor/_agenda.py,*/supervisor/_budget.py,*/supervisor/_gates.py,*/supervisor/_orders.py,*/supervisor/_room.py,*/supervisor/_wants.py

.PHONY: help demo test fuzz coverage lint format record bench schemas exports

help:  ## say what there is
	@sed -n 's/^\([a-z]*\):.*##/make \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: $(READY)  ## run the main job on a bundled workspace: five agents, one board, a proven deliverable
	@$(VENV)/bin/kokuban demo $(ARGS)

test: $(READY)  ## run all tests, against real servers and processes
	@$(RUN) -m pytest -n 4 --dist worksteal $(ARGS)

fuzz: $(READY)  ## 10,000 new examples for each parser of what models, strangers and users send (an hour on two cores)
	@KOKUBAN_FUZZ_EXAMPLES=$${KOKUBAN_FUZZ_EXAMPLES:-10000} $(RUN) -m pytest tests/fuzz -n 2 $(ARGS)

coverage: $(READY)  ## branch coverage of what is pure: the fold, the budget arithmetic, the decisions
	@$(RUN) -m coverage run --branch --data-file=.coverage --source=kokuban.blackboard.core,kokuban.supervisor \
	    -m pytest tests/core tests/supervisor tests/quota/test_core.py tests/registry/test_fold.py \
	    tests/retention/test_tombstone.py tests/retention/test_snapshot.py $(ARGS)
	@$(RUN) -m coverage report --data-file=.coverage --show-missing --skip-covered --include='$(PURE)'

lint: $(READY)  ## check format, style, types and the direction of imports
	@$(RUN) -m ruff format --check --quiet .
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m mypy
	@$(VENV)/bin/lint-imports

format: $(READY)  ## format the code and mend what ruff can
	@$(RUN) -m ruff check --quiet --fix .
	@$(RUN) -m ruff format .

record: $(READY)  ## record the demo's model session again, with a real model
	@$(RUN) examples/record.py $(ARGS)

bench: $(READY)  ## measure the overhead of the board beside a bare pipeline
	@$(RUN) bench/overhead.py $(ARGS)

schemas: $(READY)  ## export the JSON Schemas again
	@$(RUN) -m kokuban.schemas.export

exports: $(READY)  ## write the list of public names again
	@$(RUN) tests/test_house.py

$(READY): pyproject.toml
	@echo 'setting up $(VENV) (once; needs a package index)'
	@if command -v uv >/dev/null 2>&1; then \
	    uv venv --quiet --allow-existing --python '$(or $(PYTHON),>=3.11)' $(VENV) && \
	    uv pip install --quiet --python $(RUN) --group dev --editable . || exit 1; \
	else \
	    for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python ''; do \
	        $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break; \
	    done; \
	    if [ -z "$$python" ]; then \
	        echo 'There is no Python 3.11 or newer with its venv module here. Install one (on Debian or Ubuntu:' >&2; \
	        echo 'apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3.13 ...' >&2; \
	        exit 1; \
	    fi; \
	    $$python -m venv $(VENV) && \
	    $(RUN) -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1' && \
	    $(RUN) -m pip install -qq --group dev --editable . || exit 1; \
	fi
	@touch $@
