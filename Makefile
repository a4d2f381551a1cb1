# Every target works from a fresh clone; see README.md. Override: PORT= HOST= MODEL= DATA= PYTHON=
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
BIN := .venv/bin
comma := ,
SHELL := bash

# pip says hundreds of lines, or with --quiet none for minutes: show the large files, warnings and, if it fails, its end.
pip-install = @echo "Installing into .venv; this may take some minutes."; \
  index=$$($(PYTHON) deploy/torch_index.py); set -o pipefail; \
  $(BIN)/pip install --disable-pip-version-check --progress-bar off --constraint constraints.txt $${index:+--extra-index-url $$index} \
    --editable '$(1)' 2>&1 | tee .venv/pip.log \
  | { grep --line-buffered -oE '(Downloading|Using cached) .* \([0-9.]*([0-9]{2}\.[0-9] M|G)B\)|Installing collected packages|Successfully installed|^WARNING: .*' || true; } \
  || { echo "pip failed. The last lines of .venv/pip.log:"; tail -n 20 .venv/pip.log; exit 1; } >&2

.PHONY: help install dev kernels referees clients page-checks serve tools test test-all numerics sanitize screenshots docs check bench load soak fuzz gpu images release model audit sbom next-ray clean

help:
	@awk -F '  +' 'sub(/^## /, "") { printf "%-17s %s\n", $$1, $$2 }' Makefile

## make install   what `make serve` needs, into .venv; quick when done before
install: .venv/installed .venv/kernels

## make serve     install, then serve the shipped model (MODEL=) on http://127.0.0.1:8000 (HOST= PORT=)
serve: install
	@exec $(BIN)/headroom serve --host "$(HOST)" --port "$(PORT)" $(if $(MODEL),--model "$$MODEL")

## make test      install what the tests need from the package index, and run those of one process and one server
# Two processes, since most tests wait for a server or a browser. SHUFFLE=7: in the random order of this seed.
PYTEST = $(BIN)/python -m pytest $(if $(SHUFFLE),--shuffle $(SHUFFLE))
TWO_PROCESSES = -n 2 --no-loadscope-reorder --durations 25
test: dev
	$(PYTEST) -m "not more and not alone" $(TWO_PROCESSES)

## make test-all  install system packages (it says which) and others' clients, and run all tests
# All of them, then what measures times, then networks under other number formats. All say what failed.
test-all: referees .venv/installed-test-all .venv/kernels clients page-checks
	@status=0; \
	$(PYTEST) -m "not alone" $(TWO_PROCESSES) || status=$$?; \
	$(PYTEST) -m alone --durations 5 tests/loadtest || status=$$?; \
	$(MAKE) --jobs 2 --keep-going --output-sync numerics sanitize || status=$$?; exit $$status

## make numerics  the tests of what the network computes, as on processors without AVX-512 and with bf16
# One process for each number format: `make -j2 numerics` runs them side by side. Of the trainings, one of each kind.
numerics: numerics-AVX2 numerics-AVX512_CORE_BF16
numerics-%: dev
	@if grep -qwE '$(ABOVE_$*)' /proc/cpuinfo; then \
	  echo "ONEDNN_MAX_CPU_ISA=$*"; ONEDNN_MAX_CPU_ISA=$* $(PYTEST) -q $(NUMERICS); \
	else echo "this processor has nothing above $*, so make test computes as under that limit"; fi
ABOVE_AVX2 := avx_vnni|avx512f
ABOVE_AVX512_CORE_BF16 := avx512_fp16|amx_tile
NUMERICS = tests/models/test_network.py tests/models/test_oracle.py tests/models/test_classifier.py tests/models/test_selection.py \
  tests/models/compress tests/models/training/test_training.py \
  tests/models/commands/test_train.py::test_train_then_score_with_what_came_out \
  tests/models/training/test_tuning.py::test_two_hundred_pairs_change_the_model_for_the_better \
  tests/models/training/test_distil.py::test_a_student_comes_nearer_to_its_teacher_on_queries_that_it_never_saw

## make sanitize  the compiled kernels under ASAN and UBSAN; needs g++
sanitize: dev
	$(BIN)/python -m tests.sanitize

## make next-ray  run the tests of what we use of Ray against another release (VERSION=2.61.0; unset: the newest), in .venv-next-ray
next-ray: dev
	$(BIN)/python -m tests.next_ray $(VERSION)

## make screenshots  docs/images/playground-*.png again, by the browser tests
screenshots: referees dev
	SCREENSHOTS=1 $(BIN)/python -m pytest tests/service/page/test_access.py tests/service/page/test_condense.py -k "screenshots or struck"

## make docs      the documentation as a site in runs/site; opens without a server and without a network
docs: .venv/installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "runs/site/index.html"

## make kernels   compile our CPU kernels again, as after installing a C++ compiler
kernels: .venv/installed
	@$(BIN)/python -m headroom.models.ops
	@touch .venv/kernels

## make clients   other servers' clients, which the tests drive, into .venv-clients; quick when done before
## make check     formatting, lint, types (the page's too, where npm is) and the import-layer contract
check: dev page-checks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.read_once
	@! [ -d $(PAGE)/node_modules ] || $(PAGE)/node_modules/.bin/tsc -p $(PAGE)

## make bench     measure every number in docs/PERFORMANCE.md again (ONLY=engines,servers ROUNDS=3 CHECK=1)
bench: dev
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(CHECK),--check)

## make fuzz      10,000 malformed requests against the real service; minutes
fuzz: dev
	FUZZ_CASES=10000 $(BIN)/python -m pytest tests/service/api/test_api_fuzz.py -k real_service --timeout 3600

## make gpu       test and measure the network on a GPU, without .venv; reports in runs/gpu (OUT= DRY=1)
gpu: GPU_OUT = $(or $(OUT),runs/gpu)
gpu:
	@mkdir -p '$(GPU_OUT)'
	@# without pyproject.toml and conftest.py, which ask for more packages than these tests need
	@PYTHONPATH=src timeout 150 $(PYTHON) -m pytest -c /dev/null --rootdir . --noconftest --import-mode=importlib -p no:cacheprovider \
		-v -rs $(GPU_TESTS) > '$(GPU_OUT)/gpu-tests.txt' 2>&1; tests=$$?; tail -n 1 '$(GPU_OUT)/gpu-tests.txt'; \
		PYTHONPATH=src $(PYTHON) -m benchmarks.gpu --out '$(GPU_OUT)' $(if $(DRY),--dry) && exit $$tests
GPU_TESTS = tests/models/ops/test_gpu.py tests/models/ops/test_cuda.py

## make load      the steady load scenario against a server it starts; report in runs/load
## make soak      40 minutes with faults and attacks (DURATION=2h RATE=10); report in runs/soak
# (Not `load soak:`: a line that begins with `load` is a directive of GNU make.)
soak load: install
	@mkdir -p runs/$@ && cp deploy/serve.yaml runs/$@/serve.yaml # a fault of `soak` edits this copy
	$(if $(filter soak,$@),$(BIN)/python -m benchmarks.soak,$(BIN)/headroom load run --scenario steady) \
	  --start '$(BIN)/headroom serve --port {port} --config runs/$@/serve.yaml' --out runs/$@ \
	  $(if $(DURATION),--duration $(DURATION)) $(if $(RATE),--rate $(RATE))

## make images    build the CPU image and try it, with Docker or without (DOCKER_BUILD= more arguments of `docker build`)
images: install
	$(BIN)/python -m tests.deploy.try_image $(DOCKER_BUILD)

## make release   write dist/: the wheel, the CPU image, the chart, SBOMs, digests, notes; KEY=~/release.key signs the digests
release: install tools
	$(if $(VERSION),$(error a release is a tag now, not VERSION: git tag --annotate v$(VERSION), then make release))
	KEY='$(KEY)' bash deploy/release.sh all dist

## make model     fetch the base and the data, tune, and write models/default again (some 3 h with AMX; RECIPES= other recipes to end with)
RECIPES ?= written,everything,longer,contradictions
DATA ?= $(if $(wildcard ../shared/data/graded.jsonl.gz),../shared/data,runs/data)
model: .venv/installed
	$(if $(filter runs/data,$(DATA)),$(BIN)/python -m default_model.fetch --out $(DATA))
	$(BIN)/python -m default_model.build --data $(DATA) $(if $(RECIPES),--recipes $(RECIPES))

## make audit     what is known to be vulnerable among the installed packages (asks PyPI's service; ARGS= of pip-audit)
# PyPI knows torch 2.13.0, and no 2.13.0+cpu. A mirror without a list of vulnerabilities would say that there are none.
audit: install tools
	@mkdir -p runs
	@echo urllib3==1.24.1 > runs/vulnerable.txt
	@$(AUDIT) --requirement runs/vulnerable.txt $(ARGS) 2>&1 | grep -q 'CVE-\|GHSA-\|PYSEC-' \
	  || { echo 'nothing was audited: the service knows nothing of urllib3 1.24.1, a vulnerable one' >&2; exit 1; }
	@$(BIN)/pip list --disable-pip-version-check --exclude-editable --format freeze | sed 's/+.*//' > runs/packages.txt
	$(AUDIT) --requirement runs/packages.txt $(ARGS)
AUDIT := .venv-release/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off

## make sbom      the bill of materials (SBOM) of what is installed in .venv, CycloneDX, in runs/
sbom: install tools
	@mkdir -p runs
	bash deploy/release.sh sbom runs

## make clean     remove .venv, .venv-clients, .venv-next-ray, .venv-release, the kernels and caches (runs/, where trainings and their data are, stays)
clean:
	rm -rf .venv .venv-clients .venv-next-ray .venv-release models/ops/built .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

dev: .venv/installed-dev .venv/kernels

# TypeScript and axe-core, which check the page. Without npm the page is served and tested all the same.
PAGE := tests/service/page
page-checks:
	@if ! command -v npm > /dev/null; then \
	  echo "without npm, the page's types and its accessibility are not checked" >&2; test -z "$$CI"; \
	elif ! cmp -s $(PAGE)/package-lock.json $(PAGE)/node_modules/.lock; then \
	  npm ci --prefix $(PAGE) --ignore-scripts --no-audit --no-fund --loglevel error \
	    && cp $(PAGE)/package-lock.json $(PAGE)/node_modules/.lock; fi

# Programs that pip does not install, such as a database and a browser: before the long part, which may be in vain.
referees: .venv/bin/pip
	@$(BIN)/python -m tests.referees

clients: .venv/bin/pip
	@$(BIN)/python -m tests.clients.environments

# What releases and audits: Syft, pip-audit and so on.
tools: .venv-release/installed
.venv-release/installed: deploy/requirements.txt
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --disable-pip-version-check --quiet --requirement deploy/requirements.txt
	@touch $@

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headroom needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/pip pyproject.toml constraints.txt
	$(call pip-install,.[serve])
	@touch $@

.venv/installed-test-all: .venv/bin/pip pyproject.toml constraints.txt
	$(call pip-install,.[test-all])
	@touch $@ .venv/installed-dev .venv/installed

.venv/installed-%: .venv/bin/pip pyproject.toml constraints.txt
	$(call pip-install,.[serve$(comma)$*])
	@touch $@ .venv/installed

# Without a compiler torch computes, and the output says what to install: no failure, and no retry at each start.
.venv/kernels: $(wildcard models/ops/native/*) models/ops/kernel_build.py | .venv/installed
	@$(BIN)/python -m headroom.models.ops || true
	@touch $@
