# `make demo` and `make test` set up .venv from locked, hashed dependencies by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# All but packager-torch: which build of PyTorch is right depends on the machine.
EXTRAS := controller grpc hsm nats numba oci otlp packager parquet plots packager-litert packager-tvm packager-iree packager-sklearn packager-dask packager-search
# -P: the folder that pytest is started in must not hide a package of the same name.
PYTEST := $(BIN)/python -P -m pytest -q -rs -n 3 --dist loadfile --no-loadscope-reorder
# Tests start thousands of processes: none compiles our modules anew, whatever the surroundings say.
BYTECODE := $(BIN)/python -m compileall -q agent controller packager runtime_adapters telemetry wire
# One level, one folder or one test: make unit ONLY=tests/unit/wire, make test ONLY='-k rollout'
ONLY ?=
export PYTHONSAFEPATH := 1

.PHONY: help setup demo test thorough unit contract integration acceptance packaging field board check format bench docs lock tools hooks clean
.DELETE_ON_ERROR:

help:  ## list these targets
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo 'The targets that run tests take ONLY: make unit ONLY=tests/unit/wire, make test ONLY="-k rollout"'

setup: $(STAMP)  ## set up .venv from locked dependencies, and nothing else

demo: $(STAMP)  ## show the whole product on a real model and real processes
	@$(BIN)/python -m examples.digits.demo

test: $(STAMP)  ## run every test that needs no root and no internet
	@$(BYTECODE) && $(PYTEST) $(ONLY)

thorough: $(STAMP)  ## run every test with all its cases: an hour and a half
	@$(BYTECODE) && EDGEFLEET_THOROUGH=1 $(PYTEST) $(ONLY)

unit: $(STAMP)  ## run the tests of single modules: no network, no database
	@$(BYTECODE) && $(PYTEST) $(or $(ONLY),tests/unit)

contract: $(STAMP)  ## run one suite over all adapters, and over the bytes on the wire
	@$(BYTECODE) && $(PYTEST) $(or $(ONLY),tests/contract)

integration: $(STAMP)  ## run the tests with a real broker, databases, runtimes and processes
	@$(BYTECODE) && $(PYTEST) $(or $(ONLY),tests/integration)

acceptance: $(STAMP)  ## run whole fleets, with a kill -9 of each part
	@$(BYTECODE) && EDGEFLEET_THOROUGH=1 $(PYTEST) $(or $(ONLY),tests/acceptance)

packaging: $(STAMP)  ## check the wheel, the units, the documents and what the agent imports
	@$(BYTECODE) && $(PYTEST) $(or $(ONLY),tests/packaging)

field: $(STAMP)  ## run a fleet with 200 kills, damaged files and a hostile client; SEED=7
	@$(BIN)/python -m tests.field.run --seed $(or $(SEED),1)

board: $(STAMP)  ## run an agent on an emulated 64-bit Arm board; needs root; ROOT=folder
	@$(BIN)/python -m tests.field.arm64 $(if $(ROOT),--root $(ROOT))

check: $(STAMP)  ## check format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .
	$(BIN)/lint-imports

format: $(STAMP)  ## format the code and mend what can be mended
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

bench: $(STAMP)  ## run every benchmark in one go and write docs/benchmarks.md; QUICK=1 only prints
	@$(BIN)/python benchmarks/run_all.py $(if $(QUICK),--quick)

docs: $(STAMP)  ## generate docs/commands.md from the commands' help
	@$(BIN)/python -m tests.packaging.test_readme

tools: $(STAMP)  ## set up converters whose dependencies conflict with ours
	@for tool in $$($(BIN)/fleet tool list --quiet); do $(BIN)/fleet tool install $$tool || exit; done

hooks: $(STAMP)  ## run the checks before every commit
	@$(BIN)/pre-commit install

lock:  ## compile the locks anew; needs uv
	uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url -c requirements/constraints.txt \
	  $(addprefix --extra ,$(EXTRAS)) --group dev -o requirements/dev.lock
	uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url -c requirements/constraints.txt \
	  --extra delta -o requirements/device.lock
	uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url -c requirements/constraints.txt \
	  --extra delta --extra grpc -o requirements/device-grpc.lock
	uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url \
	  --group tflite -o requirements/tflite.lock

clean:  ## remove the environment and what was built
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
