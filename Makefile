# `make demo` and `make test` set up .venv from locked, hashed dependencies by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# All but packager-torch: which build of PyTorch is right depends on the machine.
EXTRAS := controller numba packager packager-litert packager-tvm packager-iree packager-sklearn packager-dask
export PYTHONSAFEPATH := 1

.PHONY: demo test check bench lock tools clean
.DELETE_ON_ERROR:

demo: $(STAMP)  ## the whole product on a real model and real processes
	@$(BIN)/python -m examples.digits.demo

test: $(STAMP)  ## every test that needs no root and no internet
	@$(BIN)/python -m pytest -q -rs -n 2 --dist loadfile --no-loadscope-reorder

check: $(STAMP)  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .
	$(BIN)/lint-imports

tools: $(STAMP)  ## converters whose dependencies conflict with ours, each in its environment
	@for tool in $$($(BIN)/fleet tool list --quiet); do $(BIN)/fleet tool install $$tool || exit; done

bench: $(STAMP)  ## every benchmark, into docs/benchmarks.md; with QUICK=1 onto the terminal
	@$(BIN)/python benchmarks/run_all.py $(if $(QUICK),--quick)

lock:  ## compile the locks anew; needs uv
	uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url -c requirements/constraints.txt \
	  $(addprefix --extra ,$(EXTRAS)) --group dev -o requirements/dev.lock
	uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url -c requirements/constraints.txt \
	  -o requirements/device.lock

clean:
	rm -rf $(VENV) build dist

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "edgefleet needs Python 3.11 or newer; set PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python has no venv module; apt-get install python3-venv" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing locked dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
