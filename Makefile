# The two commands of a newcomer: `make demo` and `make test`. Both set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers
COMPILE := import numpy, rqm; rqm.renyi(rqm.RQM(), 2, clients=12); [rqm.RQM().encode_sum(rqm.RQM().encode(numpy.zeros((2, 9), d), r).astype(d), r) for d in ("f", "d") for r in (rqm.SeededRandom(0), rqm.SecureRandom())]; from rqm.kernels import rotation as o; [o.rotate(numpy.zeros((1, 2**16), a), numpy.zeros((1, 2**16), b)) for a, b in ("fd", "dd", "ff")]; [(o.square_sums(numpy.zeros((1, 9), d)), o.squares(rqm.RQM().sampler, numpy.zeros((1, 9), d), 0)) for d in ("f", "d")]

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all fuzz lint format docs bench peers wheel wheels-resolve sbom advisories clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

setup: $(STAMP)  ## a virtual environment with pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rqm needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[report,train,data,flower,docs,dev]'
	@$(BIN)/python -c '$(COMPILE)'  # the inner loops, once and for good
	@touch $@

demo: setup  ## train a classifier of 62 characters with ε ≤ 8 for every user, beside the noise-free one (two minutes)
	$(BIN)/rqm train demo --sweep --out out/demo
	@echo "Look at out/demo/report.html; the numbers are in out/demo/summary.json."
	@echo "Next: your own model, in five lines of the README. (The paper's own setting, whose ε is per coordinate and protects no user: $(BIN)/rqm train glyphs --sweep --out out/paper)"

test: lint  ## lint, types and all tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: lint  ## every test with full counts and fresh examples; the GPU's kernels in Triton's interpreter
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt triton
	$(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile explore

fuzz: setup  ## a million damaged and hostile inputs for all that reads what others wrote (up to an hour on two cores)
	$(BIN)/python -m tools.fuzz

lint: setup  ## ruff and mypy
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --no-error-summary

format: setup  ## format the code
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --fix --quiet .

docs: setup  ## the documentation, as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: setup  ## the package, as a wheel in dist/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

wheels-resolve: setup  ## is every dependency there as a wheel, for every Python that is promised?
	$(BIN)/python -m tools.wheels

sbom: setup  ## what the package brings along, with versions and licences, as CycloneDX in dist/sbom.json
	$(BIN)/python -m tools.sbom dist/sbom.json

advisories: setup  ## known weaknesses of the pinned dependencies (asks a public database)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip_audit --strict --requirement constraints.txt --no-deps --disable-pip

bench: setup peers  ## every benchmark, each as a ratio to a peer in the same run
	$(BIN)/rqm bench divergence
	$(BIN)/rqm bench encode
	$(BIN)/rqm bench round
	$(BIN)/rqm bench records
	$(BIN)/rqm bench secagg
	$(BIN)/rqm bench flower

peers: $(PEERS)/.installed  ## peers of the benchmarks, in an environment of their own

$(PEERS)/.installed: constraints-peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement constraints-peers.txt
	@touch $@

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(PEERS) out build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/rqm.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
