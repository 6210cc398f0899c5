# `make help` lists the targets. Works with GNU make 3.81 (macOS) and later.

MODEL ?= smollm2-135m
ARGS ?=
VLLM ?=
VLLM_MODEL ?=
CHROMIUM ?=
SHELL := /bin/sh
BIN := .venv/bin
PEERS := .venv/peers

# pip settings of the shell that would install outside of .venv.
export PIP_USER := 0
unexport PYTHONHOME
unexport PYTHONPATH

# Empty: the first of python3.13 ... python3 that runs and is new enough.
PYTHON ?=
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

.PHONY: help serve test test-all test-browser lint bench-engine bench-gateway bench-fairness bench-planner bench-truth bench-series bench-signals bench-peers lab lock clean test-vllm install-lab install-dev install-bench venv

help:
	@echo 'make serve         install what is needed, fetch the demo model, serve it'
	@echo '                   (MODEL=name or path, ARGS="--port 8080 ...")'
	@echo 'make test          run all tests that need no other service (ARGS="-k name")'
	@echo 'make test-all      make test with PostgreSQL, Redis, nginx, Caddy, where installed'
	@echo 'make test-browser  test the pages in a real browser (CHROMIUM=its executable)'
	@echo 'make test-vllm     test against a real vLLM (VLLM=its executable, VLLM_MODEL=a model)'
	@echo 'make lint          ruff, mypy, import contracts'
	@echo 'make bench-engine  measure the engine against its peers on this machine'
	@echo 'make bench-gateway measure the gateway on one core, with nginx, LiteLLM where installed'
	@echo 'make bench-fairness  measure one person under the flood of another'
	@echo 'make bench-planner  score the planner on start-up reports (ARGS="--reports FILE")'
	@echo 'make bench-truth   hold what carpool bench reports against a server with known timings'
	@echo '                   (VLLM=its executable, VLLM_MODEL=a folder: vllm bench serve, too)'
	@echo 'make bench-series  a month of series: how large, how quickly read'
	@echo 'make bench-signals simulated days: do signals come, in time, and nowhere else'
	@echo '                   (ARGS="--trace FILE" with a trace of Azure, too)'
	@echo 'make bench-peers   install LiteLLM for bench-gateway, in a venv of its own'
	@echo 'make lab           show what batching is worth on this machine'
	@echo 'make lock          write constraints.txt anew from the newest releases'
	@echo 'make clean         remove .venv and caches (not the fetched models)'

serve: install-lab
	@$(BIN)/carpool serve "$(MODEL)" $(ARGS)

test: install-dev
	@$(BIN)/python -m pytest $(ARGS)

test-all: install-dev
	@.ci/services $(MAKE) --no-print-directory test

test-browser: install-dev
	@for program in "$(CHROMIUM)" chromium chromium-browser google-chrome; do \
		found="$$(command -v "$$program")" && break; done; \
	if [ -z "$$found" ]; then \
		echo 'carpool: there is no Chromium; install it, with chromedriver, or give CHROMIUM=' >&2; exit 2; fi; \
	CARPOOL_TEST_CHROMIUM="$$found" $(BIN)/python -m pytest tests/browser $(ARGS)

test-vllm: install-dev
	@if [ -z "$(VLLM)" ] || [ -z "$(VLLM_MODEL)" ]; then \
		echo 'carpool: give VLLM=path/to/vllm VLLM_MODEL=folder-or-name' >&2; exit 2; fi
	@CARPOOL_TEST_VLLM="$(VLLM)" CARPOOL_TEST_VLLM_MODEL="$(VLLM_MODEL)" \
		$(BIN)/python -m pytest tests/backends/test_real_vllm.py $(ARGS)

lint: install-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench-engine: install-bench
	@$(BIN)/python -m benchmarks.engine $(ARGS)

bench-gateway: install-bench
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

bench-fairness: install-bench
	@$(BIN)/python -m benchmarks.fairness $(ARGS)

bench-planner: install-dev
	@$(BIN)/python -m benchmarks.planner $(ARGS)

bench-truth: install-dev
	@VLLM="$(VLLM)" VLLM_MODEL="$(VLLM_MODEL)" $(BIN)/python -m benchmarks.bench_truth $(ARGS)

bench-series: install-dev
	@$(BIN)/python -m benchmarks.series $(ARGS)

bench-signals: install-dev
	@$(BIN)/python -m benchmarks.signals $(ARGS)

# One version, so that figures can be compared: newer ones ask for packages that are not there.
bench-peers: venv
	@if [ ! -x $(PEERS)/bin/litellm ]; then \
		echo 'installing LiteLLM into $(PEERS) (it is large)'; \
		$(BIN)/python -m venv --clear $(PEERS) \
		&& $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
			'litellm[proxy]==1.106.12'; fi
	@for nginx in nginx /usr/sbin/nginx; do \
		if [ -x "$$(command -v $$nginx)" ]; then exit 0; fi; done; \
	echo 'carpool: there is no nginx; bench-gateway measures it where it is installed'

lab: install-lab
	@$(BIN)/carpool lab batching $(ARGS)

# A .venv is kept when its pip runs and it was made at this path; else it is made again.
# A candidate must run, not only exist: a pyenv shim may do one without the other.
venv:
	@if [ -n "$$($(BIN)/python -m pip --version 2>/dev/null)" ] \
		&& $(BIN)/python -c '$(NEW_ENOUGH)' \
		&& grep -q -F "$$(pwd -P)/.venv" $(BIN)/activate; then exit 0; fi; \
	for python in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3); do \
		if "$$python" -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then \
			echo "creating .venv with $$("$$python" --version)"; \
			exec "$$python" -m venv --clear .venv; fi; done; \
	echo 'carpool: needs Python 3.11 or newer with its venv module;' \
		'install it, or run: make PYTHON=/path/to/python3' >&2; exit 2

# $(call install,EXTRAS,STAMPS): install unless one of STAMPS, written after a whole
# install, holds the checksum of what decides about it.
define install
@key="$$(cat pyproject.toml constraints.txt | cksum) $$($(BIN)/python --version)"; \
for stamp in $(2); do \
	if [ "$$key" = "$$(cat ".venv/.installed-$$stamp" 2>/dev/null)" ]; then exit 0; fi; done; \
echo "installing carpool[$(1)] into .venv (the first time takes a minute or two)"; rm -f .venv/.installed-*; \
$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt --editable '.[$(1)]' \
&& echo "$$key" > ".venv/.installed-$(firstword $(2))"
endef

install-lab: venv
	$(call install,lab,lab dev bench)

install-dev: venv
	$(call install,lab$(comma)dev,dev bench)

install-bench: venv
	$(call install,lab$(comma)dev$(comma)bench,bench)

comma := ,

# Made with the oldest supported Python: its releases install on the newer ones, too.
lock: venv
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
		echo 'carpool: lock with Python 3.11: make clean, make PYTHON=python3.11 lock' >&2; exit 2; }
	@rm -rf .venv/lock && $(BIN)/python -m venv .venv/lock
	@.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[lab,dev]'
	@.venv/lock/bin/python -m pip freeze --all --exclude carpool --exclude pip \
		--exclude setuptools --exclude wheel | LC_ALL=C sort -f > .venv/lock/constraints.txt
	@if grep -n ' @ ' .venv/lock/constraints.txt; then \
		echo 'carpool: the packages above came from paths, not from an index' >&2; exit 2; fi
	@mv .venv/lock/constraints.txt constraints.txt && rm -rf .venv/lock
	@echo "wrote constraints.txt: $$(wc -l < constraints.txt) packages"

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
