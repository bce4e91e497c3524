# Two commands for a fresh machine: `make demo` and `make test`. Both make .venv first.
# Flower and torch start far slower without byte code, so it is never suppressed here.
unexport PYTHONDONTWRITEBYTECODE
# Threads of torch that wait spinning cost a busy machine ten times the work they do.
export OMP_WAIT_POLICY ?= PASSIVE

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OUT    := runs/demo-$(shell date +%Y%m%d-%H%M%S-$$$$)

.PHONY: demo test test-ways test-long test-images lint types imports images-lint dist sbom docs \
    docs-version check clean

# Ledgers of their own: the packaged digits are public, so trying the demo twice harms nobody. A run of
# ε = 10 fits under the limit of 20 that a new ledger has.
demo: $(STAMP)
	$(BIN)/fedtranscribe transcribe --data digits --epsilon 10 \
	    --out $(OUT)-sums --ledger $(OUT)-sums.sqlite
	$(BIN)/fedtranscribe transcribe --teacher cnn --data digits --epsilon 10 --config demo.toml \
	    --out $(OUT)-teachers --ledger $(OUT)-teachers.sqlite

# A worker per core with one thread each; a file's tests stay together, for their fixtures' sake.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --dist loadfile

# One run of each way of use: command line, Python, flwr run, TLS and masks, killed and resumed.
test-ways: $(STAMP)
	$(BIN)/pytest -m ways

# More than CI has time for: before a release, or some of it: make test-long TESTS=tests/federation.
# Those that start Flower, are killed or execute pages run one at a time.
ALONE := tests/e2e tests/docs tests/cli/test_simulate.py tests/federation/test_superlink.py
test-long: $(STAMP)
ifdef TESTS
	$(BIN)/pytest -m long $(TESTS)
else
	OMP_NUM_THREADS=1 $(BIN)/pytest -m long -n logical --dist loadfile $(addprefix --ignore ,$(ALONE))
	$(BIN)/pytest -m long $(ALONE)
endif

# Builds the images and runs a deployment in them, as root; tests/images says what it needs.
test-images: $(STAMP) dist
	$(BIN)/pip install --quiet --disable-pip-version-check podman-compose
	$(BIN)/pytest -m images -rs tests/images

check: lint types imports docs test

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/deptry fedtranscribe

types: $(STAMP)
	$(BIN)/pyright

imports: $(STAMP)
	$(BIN)/lint-imports

# The sdist, and from it the wheel: the images install it, and both go to the package index. What git
# ignores, such as a pip.conf in client/wheels/, is in neither.
dist: $(STAMP)
	rm -f dist/*.whl dist/*.tar.gz
	$(BIN)/python -m build --no-isolation --outdir dist .

# What this environment is made of; the images hold the same of theirs.
sbom: $(STAMP)
	@mkdir -p dist
	$(BIN)/cyclonedx-py environment --output-reproducible -o dist/sbom.cdx.json $(BIN)/python

# dclint comes from npm, which not every machine has. Two services share what is built: it has a name.
images-lint: $(STAMP)
	$(BIN)/hadolint client/Dockerfile client/Dockerfile.cuda server/Dockerfile
	$(BIN)/kubernetes-validate --strict --quiet client/kubernetes/*.yaml server/kubernetes/*.yaml
	@if npx --yes dclint@3 --version > /dev/null 2>&1; \
	    then npx --yes dclint@3 client server --recursive --max-warnings 0 \
	        --disable-rule no-build-and-image; \
	    else echo "no npm or no dclint to be had: compose files are not linted"; fi

# Into site/. Material tells of its successor at every build; that is no warning about our pages.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Commits the site of this version to the branch gh-pages, beside those of earlier ones; pushes nothing.
docs-version: $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases \
	    --alias-type redirect "$$($(BIN)/python -c 'import fedtranscribe as f; print(f.__version__)')" latest
	$(BIN)/mike set-default --allow-undefined latest

# Installs only when the project file changed.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs site .pytest_cache .ruff_cache .hypothesis
