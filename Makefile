# make demo     a day of simulated searches, released and held against the truth
# make demo-live  searches into Kafka, and a private release every ten seconds; needs Java, Maven and Go
# make test     lint, types and every test; those on engines need Java, Maven and Go, and are left out by name without
# make test-engines  all tests on engines: Kafka, Flink, Prism and others, which it fetches and starts; also those that take minutes
# make bench    ratios against plain pyarrow and plain Beam, measured in one run
# make profile  where the time of a run goes
# make bench-peers  time, memory and what is published next to PipelineDP, OpenDP and plain counting; half an hour
# make bench-scale  how time, memory and network grow, up to a hundred million events
# make bench-mechanisms  what each gate and downstream mechanism costs next to the plain count

# The first Python on hand that Beam runs on.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
RUN := $(VENV)/bin/python -m
READY := $(VENV)/ready
CLOUD := $(VENV)/cloud

.PHONY: demo demo-live test lint types unit engines test-engines parts bench bench-mechanisms bench-peers bench-scale profile test-pythons test-lowest clean

demo: $(READY)
	$(VENV)/bin/tidegate demo demo/

demo-live: $(READY)
	deploy/demo-live

test: lint types unit engines

lint: $(READY)
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: $(READY)
	$(RUN) mypy

unit: $(CLOUD)
	$(RUN) pytest -n auto --dist worksteal --ignore tests/engines

# One after the other, as each of them wants the whole machine. What is left out is named at the end, with the reason.
engines: $(CLOUD) parts
	$(RUN) pytest tests/engines -m 'not long' -rs

test-engines: $(CLOUD) parts
	$(RUN) pytest tests/engines -rsP

# The parts of engines, all at once; what cannot be had is said by the tests that need it.
parts:
	@echo "looking for the parts of engines; the first time a few minutes"
	@for get in deploy/*/get; do $$get >/dev/null 2>&1 & done; wait

bench: $(READY)
	$(RUN) benchmarks.release

bench-mechanisms: $(READY)
	$(RUN) benchmarks.mechanisms

bench-peers: $(READY)
	$(RUN) benchmarks.peers

bench-scale: $(READY)
	$(RUN) benchmarks.scale

profile: $(READY)
	$(RUN) benchmarks.stages

# The environment is made anew when what it should hold has changed.
$(READY): setup.py tidegate/version.py
	@test -n "$(PYTHON)" || { echo "tidegate needs Python 3.11 to 3.13; install one, or name it: make PYTHON=/path/to/python"; exit 1; }
	@echo "making an environment in $(VENV) with $(PYTHON); a minute or two"
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check --upgrade pip
	$(RUN) pip install --quiet --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

# What clouds are tested with: it takes longer to install than all the rest, so it waits until it is needed.
$(CLOUD): $(READY)
	@echo "adding what the tests of clouds need; a minute or two"
	$(RUN) pip install --quiet --quiet --disable-pip-version-check --editable '.[test,test-cloud]'
	@touch $@

# Every supported Python on this machine.
test-pythons:
	@for version in 3.11 3.12 3.13; do \
		p=$$(command -v python$$version) && $$p -c '' 2>/dev/null || { echo "python$$version: not on this machine"; continue; }; \
		echo "python$$version"; $(MAKE) --no-print-directory PYTHON=$$p VENV=.venv-$$version unit || exit 1; \
	done

# The oldest release of every dependency that setup.py allows.
test-lowest:
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct --editable '.[test,test-cloud]'
	.venv-lowest/bin/python -m pytest -n auto --dist worksteal --ignore tests/engines

clean:
	rm -rf $(VENV) .venv-* demo demo-live .bench build *.egg-info
