# The front door: every target sets up what it needs, from a bare clone on.
# `make help` lists the targets. Variables: PRESET=release|debug|asan|tsan, TORCH=2.13.0, JOBS=2,
# PYTEST_ARGS="-k name", SOAK_SECONDS=1800. A second torch beside the first:
#   make test TORCH=2.12.0 VENV=.venv-2.12 BUILD=build/release-2.12

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
TORCH ?= 2.13.0
PRESET ?= release
BUILD ?= build/$(PRESET)
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
FILES ?=
UPSTREAM ?= build/upstream
UPSTREAM_ARGS ?=

# cmake, ninja, ruff and clang-format come from the virtual environment.
export PATH := $(abspath $(VENV))/bin:$(PATH)
export PYTHON
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
py := $(VENV)/bin/python
pip_install := $(py) -m pip install --quiet --disable-pip-version-check

# Python itself is not built with the sanitizer, so its runtime has to be loaded first.
run_pytest := $(if $(filter asan,$(PRESET)),ASAN_OPTIONS=detect_leaks=0 \
  LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)") \
  $(py) -m pytest --dist worksteal

cxx_files := $(shell find $(wildcard src include tests examples bench demo) \
  -name '*.cpp' -o -name '*.h')

# ---- Set-up, each step once ----------------------------------------------------------------------

build/.stamps/packages-%: tools/ensure_packages.sh
	tools/ensure_packages.sh $*
	mkdir -p $(@D) && touch $@

$(py): | build/.stamps/packages-build
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-lint: requirements/lint.txt | $(py)
	$(pip_install) -r requirements/lint.txt
	touch $@

$(VENV)/.stamp-torch-$(TORCH): | $(py)
	rm -f $(VENV)/.stamp-torch-*
	$(pip_install) torch==$(TORCH)
	touch $@

$(VENV)/.stamp-dev: $(wildcard requirements/*.txt) $(VENV)/.stamp-torch-$(TORCH)
	$(pip_install) -r requirements/dev.txt torch==$(TORCH)
	touch $@

# Makes `import torch_lazy` find python/torch_lazy, and tells torch to load it (entry point). Nothing
# is compiled here; `build` puts the compiled files into python/torch_lazy.
$(VENV)/.stamp-develop: pyproject.toml $(VENV)/.stamp-dev
	$(pip_install) --no-build-isolation --no-deps \
	  --config-settings=wheel.cmake=false --config-settings=editable.mode=inplace -e .
	touch $@

$(BUILD)/build.ninja: CMakePresets.json $(VENV)/.stamp-dev | build/.stamps/packages-build
	cmake --preset $(PRESET) -B $(BUILD) -DPython_EXECUTABLE=$(abspath $(py))
	touch $@

# ---- Targets -------------------------------------------------------------------------------------

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: $(VENV)/.stamp-dev ## Install system packages, virtual environment and torch

.PHONY: compile
compile: $(BUILD)/build.ninja
	@cmake --build $(BUILD)

.PHONY: build
build: compile $(VENV)/.stamp-develop ## Compile, and make `import torch_lazy` work in .venv
	@cmake --install $(BUILD) --component torch_lazy >$(BUILD)/install.log \
	  || { cat $(BUILD)/install.log; exit 1; }

.PHONY: demo
demo: build ## Train a small GPT on the lazy device
	$(py) demo/train_gpt.py $(DEMO_ARGS)

test_parts := test-cpp test-python test-compiled

.PHONY: test
test: build ## Run all tests: every part, and one summary at the end
	@+tools/run_parts.sh $(test_parts)

.PHONY: test-cpp
test-cpp: compile ## Run the C++ tests
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

.PHONY: test-python
test-python: build ## Run the Python tests
	$(run_pytest) tests/python -n $(JOBS) $(PYTEST_ARGS)

# Two builds of their own, PyTorch excepted; locks assert their order in them.
.PHONY: test-sanitized
test-sanitized: ## Run the C++ tests with the thread and the address sanitizer (slow)
	failed=0; for preset in tsan asan; do $(MAKE) test-cpp PRESET=$$preset || failed=1; done; \
	  exit $$failed

compiled_tests := $(addprefix tests/python/test_,$(addsuffix .py, \
  opinfo models random_programs features optimizers faults threads async runs errors \
  compile compile_models saved_graph))

.PHONY: test-compiled
test-compiled: build ## Run operators, programs and faults with every graph compiled
	TORCH_LAZY_COMPILER=force \
	  $(run_pytest) $(compiled_tests) -n $(JOBS) -m "not slow" $(PYTEST_ARGS)

SOAK_SECONDS ?= 1800

.PHONY: soak
soak: build ## Threads, forks, faults, new shapes and a broken cache for half an hour
	$(py) tests/soak/soak.py --seconds $(SOAK_SECONDS)

.PHONY: test-quick
test-quick: test-cpp build ## Run the C++ tests and the Python tests that are not marked slow
	$(run_pytest) tests/python -n $(JOBS) -m "not slow" $(PYTEST_ARGS)

# Installed beside the tests, not into the virtual environment.
$(UPSTREAM)/packages: requirements/upstream.txt | $(py)
	rm -rf $@ && mkdir -p $(@D)
	$(pip_install) --target $@ -r requirements/upstream.txt

.PHONY: test-upstream
test-upstream: build $(UPSTREAM)/packages ## Run PyTorch's own tests on lazy (hours; FILES="test_torch.py")
	$(py) tools/fetch_upstream_tests.py $(UPSTREAM)
	$(py) tests/upstream/run.py $(UPSTREAM) $(FILES) --jobs $(JOBS) $(UPSTREAM_ARGS)

.PHONY: bench
bench: build build/.stamps/packages-bench ## Run the benchmarks (docs/benchmarks.md)
	@mkdir -p build/bench
	@cmake -S bench/cpp -B build/bench/cpp -G Ninja -DCMAKE_PREFIX_PATH=$$($(py) -c \
	  'import torch_lazy; print(torch_lazy.cmake_prefix_path)') >build/bench/configure.log \
	  || { cat build/bench/configure.log; exit 1; }
	@cmake --build build/bench/cpp
	$(py) bench/run.py $(BENCH_ARGS)

.PHONY: lint
lint: $(VENV)/.stamp-lint ## Check style: ruff, clang-format, generated documentation
	ruff check .
	ruff format --check .
	$(py) tools/settings_doc.py --check
	$(py) tools/compatibility_doc.py --check
	$(if $(cxx_files),clang-format --dry-run -Werror $(cxx_files))

.PHONY: format
format: $(VENV)/.stamp-lint ## Rewrite all files in the project's style
	ruff check --fix --exit-zero --quiet .
	ruff format .
	$(py) tools/settings_doc.py
	$(if $(cxx_files),clang-format -i $(cxx_files))

# clang cannot read gcc's precompiled headers, hence a configuration of its own.
.PHONY: tidy
tidy: $(VENV)/.stamp-dev ## Look for bugs with clang-tidy (slow)
	$(pip_install) -r requirements/tidy.txt
	cmake --preset release -B build/tidy -DPython_EXECUTABLE=$(abspath $(py)) \
	  -DTORCH_LAZY_PCH=OFF -DTORCH_LAZY_CCACHE=OFF >/dev/null
	printf '%s\n' $(filter src/%.cpp,$(cxx_files)) \
	  | xargs -P $(JOBS) -n 1 clang-tidy --quiet -p build/tidy

.PHONY: wheel
wheel: $(VENV)/.stamp-dev ## Build dist/torch_lazy-*.whl for the torch in .venv
	$(py) -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .

.PHONY: clean
clean: ## Remove everything built; .venv stays
	rm -rf build dist .pytest_cache .ruff_cache
	rm -rf python/torch_lazy/{_C*.so,lib,include,share}
	find python tests bench demo tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
