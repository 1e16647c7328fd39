# Everything a contributor runs. `make` alone lists the targets.

PYTHON  ?= python3
WORKERS ?= 4
BIN     := .venv/bin
READY   := .venv/.ready
LOCK    := requirements/dev.lock
PEER_LOCKS := $(patsubst %.in,%.lock,$(wildcard benchmarks/peers/*.in))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo docs test coverage simulate kill twice faults format lint types imports check generate bench lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Settings: PYTHON=python3.12 (which interpreter builds .venv), WORKERS=0 (make test in one process), EXPLORE=1 (other examples of properties each time)"

setup: $(READY)  ## build .venv from the hashed lock file; does nothing when it is up to date

demo: $(READY)  ## watch a run survive kill -9, the log at work, and mail that arrives
	@$(BIN)/python -m examples.survives_kill
	@$(BIN)/python -m examples.log_at_work
	@$(BIN)/python -m examples.sends_mail

test: $(READY)  ## run every test; unit tests must cover src/runstone/core to the last branch
	$(BIN)/pytest -n $(WORKERS) tests/unit --cov=runstone.core --cov-report=
	$(BIN)/coverage report --fail-under=100
	$(BIN)/pytest -n $(WORKERS) --ignore=tests/unit

coverage: $(READY)  ## run every test and show what none of them reaches, in all of the package; slow
	$(BIN)/pytest -n $(WORKERS) --cov=runstone --cov-report=term

simulate: $(READY)  ## play more seeds of the simulation: SEEDS=5000 of them, or one in detail: SEED=17
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0))

docs: $(READY)  ## document this repository: a branch and a pull request in build/docs/docs.git
	$(BIN)/runstone pipeline run examples/docs_pipeline/pipeline.py --root build/docs

kill: $(READY)  ## kill workers with kill -9 while runs go through, SEEDS=10 times
	KILL_SEEDS=$(or $(SEEDS),10) KILL_RUNS=$(or $(RUNS),300) $(BIN)/pytest -q -n 0 tests/acceptance/test_kill.py -k survives

twice: $(READY)  ## kill dispatchers with kill -9 while effects go out, SEEDS=10 times on each store: nothing twice
	KILL_SEEDS=$(or $(SEEDS),10) KILL_RUNS=$(or $(RUNS),200) $(BIN)/pytest -q -n 0 tests/acceptance/test_nothing_twice.py

faults: $(READY)  ## break PostgreSQL, the network and a fleet of workers for real, SEEDS=10 times
	for round in $$(seq $(or $(SEEDS),10)); do $(BIN)/pytest -q -n 0 tests/integration/stores/postgres/test_faults.py \
		tests/integration/stores/postgres/test_partitions.py tests/integration/stores/postgres/test_disk_full.py || exit 1; done
	FLEET_SEEDS=$(or $(SEEDS),10) FLEET_RUNS=$(or $(RUNS),2000) $(BIN)/pytest -q -n 0 tests/acceptance/test_fleet.py

format: $(READY)  ## rewrite the code in the house format, with the safe fixes of the linter
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lint: $(READY)  ## check style and format, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)  ## check types, strictly
	$(BIN)/mypy

imports: $(READY)  ## check who imports whom, and that core stays pure
	$(BIN)/pytest -q tests/unit/test_import_directions.py

check: lint types imports test  ## all that must pass before a change goes in

generate: $(READY)  ## write the generated files again, specs/schemas/ among them
	$(BIN)/python tools/generate.py

bench: $(READY)  ## run every benchmark
	$(BIN)/python -m benchmarks all

COMPILE := $(BIN)/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-strip-extras --exclude-newer '14 days' --custom-compile-command 'make lock'

# Releases younger than two weeks are left alone: a bad one is usually withdrawn by then.
lock: $(READY)  ## pin the newest allowed versions of every development dependency again
	$(COMPILE) --extra testing --extra postgres --extra effects --extra pipeline --output-file $(LOCK) pyproject.toml requirements/dev.in > /dev/null
	for peer in $(PEER_LOCKS:.lock=); do $(COMPILE) --output-file $$peer.lock $$peer.in > /dev/null || exit 1; done
	@! grep -nE '://|via -r /' $(LOCK) $(PEER_LOCKS) || { echo "a lock file must name no host, and no folder of this machine" >&2; exit 1; }

clean:  ## remove .venv and everything that tools left behind
	rm -rf .venv .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- .venv ---------------------------------------------------------------------------------------

APT_INSTALL := apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends
CAN_APT     := [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null

# Wheels only: building from source would fetch build tools that no hash covers.
$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2> /dev/null || { $(CAN_APT) && $(APT_INSTALL) python3-venv; } || \
		{ echo "This Python cannot make environments. Run: apt-get install python3-venv" >&2; exit 1; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $(LOCK)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@command -v strace > /dev/null || { $(CAN_APT) && $(APT_INSTALL) strace; } > /dev/null 2>&1 || \
		echo "No strace, and it cannot be installed here: the disk-fault tests will be skipped."
	@command -v pgbouncer > /dev/null || { $(CAN_APT) && $(APT_INSTALL) pgbouncer; } > /dev/null 2>&1 || \
		echo "No pgbouncer, and it cannot be installed here: the tests of connection pools will be skipped."
	@touch $@
