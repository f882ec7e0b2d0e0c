# The two commands: `make demo` shows Flux at work, `make test` proves it. Both make .venv first.
PYTHON ?= python3
BIN := .venv/bin
# The tests start thousands of processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv demo test test-all coverage lint types format bench matrix soak steady clean fuzz docs

venv: .venv/ready

.venv/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "setuptools>=64" wheel
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[spark,plot,test]"
	touch $@

demo: venv
	$(BIN)/python -m experiments.demo

# Tests of the machines, and of what computes on its own, need a core. Those with real processes wait for each other and
# leave most of one idle. So three run at once, each for about as long: machines, and what a process does by itself; Spark,
# and what computes; whole runs, and the rest. Their output follows one after the other.
MACHINES := tests/protocols tests/spec tests/simulation tests/thesis tests/test_thesis.py tests/wire tests/testing \
	tests/exchange tests/types tests/model tests/plan tests/balance tests/controller tests/site tests/hosting
SPARK := tests/spark tests/examples tests/adapters tests/operators tests/docs tests/driver tests/commands \
	tests/sources tests/sinks tests/test_interface.py
test: lint types
	@$(BIN)/python -m pytest $(MACHINES) > .machines.log 2>&1 & machines=$$!; \
	$(BIN)/python -m pytest $(SPARK) > .spark.log 2>&1 & spark=$$!; \
	$(BIN)/python -m pytest tests $(MACHINES:%=--ignore=%) $(SPARK:%=--ignore=%); processes=$$?; \
	wait $$machines; machines=$$?; wait $$spark; spark=$$?; cat .spark.log .machines.log; \
	exit $$((processes ? processes : spark ? spark : machines))

# Every test, also those that show a claim again with more cases, and every long check once: the worlds explored deep,
# every mutant, a swarm of simulated runs, every crash point, malformed input, a soak.
test-all: lint types .venv/torch-ready
	$(BIN)/python -m pytest -m "gauntlet or not gauntlet" --hypothesis-profile=thorough tests
	$(BIN)/flux spec check --deep
	$(BIN)/flux spec mutate
	$(BIN)/flux spec simulate --minutes 10 --jobs 2
	$(MAKE) coverage fuzz
	$(MAKE) soak MINUTES=3

# PyTorch for the CPU. The build for GPUs is many times as large: it comes if the index of the others cannot be reached.
# One that is installed already serves too, as by `.venv/bin/pip install torch==2.13.0+cpu` from a wheel at hand.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
.venv/torch-ready: .venv/ready
	$(BIN)/python -c "import torch" 2> /dev/null || \
		$(PIP_INSTALL) --retries 1 --extra-index-url $(TORCH_INDEX) --editable ".[torch]"
	touch $@

# Every way through every machine, by tests that name what they claim: exploring does not count.
coverage: venv
	$(BIN)/python -m coverage run -m pytest tests/protocols --ignore tests/protocols/test_every_message.py
	$(BIN)/python -m coverage report

# Malformed input for every decoder of the wire, many more than the tests try.
fuzz: venv
	$(BIN)/python -m tests.wire.fuzz --frames 100000

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages, from docs/ and from docstrings, all anew: a warning is an error, also of a page that has not changed.
docs: .venv/docs-ready
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

.venv/docs-ready: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[docs]"
	touch $@

bench: venv
	$(BIN)/python -m experiments.bench

# Every kind of process killed at every crash point, in one long run and some short ones; hosts whose cables are pulled;
# executors of Spark clusters.
matrix: venv
	$(BIN)/python -m pytest -m "gauntlet or not gauntlet" tests/runtime/test_matrix.py tests/runtime/test_hosts.py \
		tests/spark/test_executors.py tests/spark/test_standalone.py

# Random faults for MINUTES, the output checked as it comes.
MINUTES ?= 10
soak: venv
	$(BIN)/python -m experiments.soak --minutes $(MINUTES)

# Full load for ten minutes: nobody is taken for dead, memory does not grow.
steady: venv
	$(BIN)/python -m experiments.steady

clean:
	rm -rf .venv build *.egg-info
