# The verbs of this repository. `./run` sets up what is missing; each recipe asks it for the environment's python.
.DEFAULT_GOAL := help
.PHONY: help setup test test-all test-rest soak lint bench clean
SHELL := bash
python = py="$$(./run --setup-only dev)" && "$$py"

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make or complete the environment (.venv, unless an active one has everything)
	@./run --setup-only dev >/dev/null

lint:  ## ruff and mypy
	@$(python) -m ruff check . && "$$py" -m mypy

# As many tests at a time as there are processors; a test's own processes would crowd each other out beyond a few.
pytest = -m pytest -n logical --maxprocesses 4 --dist worksteal

test: lint  ## lint, then the tests that show that all works (about 10 minutes on two cores); pytest's closing line stands last
	@$(python) $(pytest) -q -m "not soak and not full" $(ARGS)

test-all: lint  ## lint, then all tests but the soak; pytest's closing line stands last
	@$(python) $(pytest) -q -m "not soak" $(ARGS)

test-rest:  ## what `make test-all` has beyond `make test`
	@$(python) $(pytest) -q -m "full and not soak" $(ARGS)

soak:  ## kill and resume for hours on end; a table stands last
	@$(python) $(pytest) -v -m soak $(ARGS)

bench:  ## what detrain costs
	@shopt -s nullglob; $(python) --version >/dev/null && for file in benchmarks/hooks.py benchmarks/resume.py benchmarks/trace.py benchmarks/kernels.py benchmarks/ledger.py benchmarks/determinism.py benchmarks/store.py; do \
		echo "== $$file"; "$$py" "$$file" || exit; done

clean:  ## remove what was built, the environment too
	rm -rf .venv .venv.lock build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache detrain/launch/libdetrain_syscalls.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
