# The commands for development (see CONTRIBUTING.md). `./run` sets up what is missing; each recipe asks it for the environment's Python.
.DEFAULT_GOAL := help
.PHONY: help setup test test-all test-rest soak lint format docs dist bench clean
SHELL := bash
python = py="$$(./run --setup-only dev)" && "$$py"

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## create or complete the environment (.venv, unless an active one has everything)
	@./run --setup-only dev >/dev/null

lint:  ## check with ruff (rules and format) and mypy
	@$(python) -m ruff check . && "$$py" -m ruff format --check . && "$$py" -m mypy

format:  ## apply ruff's fixes and its formatter
	@$(python) -m ruff check --fix . && "$$py" -m ruff format .

# As many tests at a time as there are processors, but four at most: each test starts processes of its own.
pytest = -m pytest -n logical --maxprocesses 4 --dist worksteal

test: lint  ## lint, then the tests that show that everything works (8 to 25 minutes on two cores)
	@$(python) $(pytest) -q -m "not soak and not full" $(ARGS)

test-all: lint  ## lint, then all tests except the soak
	@$(python) $(pytest) -q -m "not soak" $(ARGS)

test-rest:  ## what `make test-all` runs beyond `make test`
	@$(python) $(pytest) -q -m "full and not soak" $(ARGS)

soak:  ## kill and resume at random for hours; prints a table at the end
	@$(python) $(pytest) -v -m soak $(ARGS)

docs:  ## build the pages into build/docs, and the man page into build/man
	@$(python) -m sphinx -q -W --keep-going -b html docs build/docs && "$$py" -m sphinx -q -W --keep-going -b man docs build/man && echo build/docs/index.html

dist:  ## build the source distribution and the wheels into dist/: for manylinux if auditwheel is installed, and for any machine
	@$(python) -m build --no-isolation --outdir dist . && "$$py" -m auditwheel repair --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl; \
		DETRAIN_PURE=1 "$$py" -m build --no-isolation --wheel --outdir dist .; ls -l dist

bench:  ## measure what detrain costs (hours; `make bench ARGS=--quick`: half an hour)
	@shopt -s nullglob; $(python) --version >/dev/null && mkdir -p build/bench && for file in benchmarks/hooks.py benchmarks/resume.py benchmarks/redone.py benchmarks/trace.py benchmarks/kernels.py benchmarks/ledger.py benchmarks/determinism.py benchmarks/store.py benchmarks/scale.py; do \
		echo "== $$file"; "$$py" "$$file" $(ARGS) --output "build/bench/$$(basename "$$file" .py).md" || exit; done; "$$py" benchmarks/aims.py build/bench

clean:  ## remove everything that was built, including the environment
	rm -rf .venv .venv.lock build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache detrain/world/libdetrain_syscalls.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
