# `make demo` and `make test` each work as the first command after a checkout: what is missing in
# .venv they install. `make help` lists the targets.

PYTHON ?= python3
ARGS ?=

# Quiet, since without a GPU TensorFlow's C++ side reports that as an error; what fails raises in
# Python all the same. A few start-up lines come before it reads this, tensorflow/tensorflow#100442.
export TF_CPP_MIN_LOG_LEVEL ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

VENV := .venv
BIN := $(VENV)/bin
# Written last, so that an interrupted installation is seen and repaired.
INSTALLED := $(VENV)/.requirements-installed
DEV_INSTALLED := $(VENV)/.requirements-dev-installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup format lint type test test-slow notebook demo clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'make PYTHON=python3.12 ...   makes $(VENV) with that Python (3.11, 3.12 or 3.13)'
	@echo 'make test ARGS="-k mask"     passes further arguments to the tool'

setup: $(DEV_INSTALLED) ## make .venv with everything that development needs

format: $(DEV_INSTALLED) ## rewrite the code in the project's format
	$(BIN)/ruff check --fix $(ARGS)
	$(BIN)/ruff format

lint: $(DEV_INSTALLED) ## check format, imports, docstrings and common mistakes
	$(BIN)/ruff check $(ARGS)
	$(BIN)/ruff format --check

type: $(DEV_INSTALLED) ## check the types
	$(BIN)/python -m mypy $(ARGS)

test: $(DEV_INSTALLED) ## run the tests, without those marked slow
	$(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile $(ARGS)

test-slow: $(DEV_INSTALLED) ## run the tests marked slow
	$(BIN)/python -m pytest -m slow $(ARGS)

notebook: $(DEV_INSTALLED) ## write notebooks/*.ipynb from their sources, without outputs
	$(BIN)/python notebooks/build.py

demo: $(INSTALLED) ## train on the embedded phrasebook, export, score, translate
	rm -rf runs/demo exports/demo
	$(BIN)/python -m training --config training/configs/phrasebook.toml --output runs/demo
	$(BIN)/python -m export runs/demo --output exports --name demo
	$(BIN)/python -m training.phrasebook --output runs/phrasebook
	$(BIN)/python -m training.evaluate exports/demo/1 --test runs/phrasebook/test.tsv
	$(BIN)/python -m keras_transformer exports/demo/1 "你好。" "火车站在哪里？" "我想喝一杯茶。"
	@echo
	@echo 'What next?'
	@echo '  Train on your own pairs, one "source TAB target" a line:'
	@echo '    $(BIN)/python -m training --config training/configs/tatoeba-zh-en.toml --train mine.train.tsv --valid mine.valid.tsv --output runs/mine'
	@echo '  Look at the training curves and at attention over training:'
	@echo '    $(BIN)/tensorboard --logdir runs/demo/logs'
	@echo '  Serve the model over REST:'
	@echo '    docker run --rm -p 8501:8501 -v "$$PWD/exports/demo:/models/demo" -e MODEL_NAME=demo tensorflow/serving'

clean: ## remove caches and build artefacts; keeps .venv, runs/ and exports/
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- .venv

# .installing marks an installation that has not finished. pip takes a half-copied package for an
# installed one, so what an interrupted installation left is thrown away; pip's cache keeps the
# downloads.
define install
	@$(require_usable_venv)
	@touch $(VENV)/.installing
	$(BIN)/python -m pip install --requirement $(1)
	@# TensorBoard finds its plugins by the metadata of what is installed.
	$(BIN)/python -m pip install --no-deps --editable .
	@rm $(VENV)/.installing
endef

$(INSTALLED): requirements.txt pyproject.toml
	$(call install,requirements.txt)
	@touch $@

$(DEV_INSTALLED): requirements.txt requirements-dev.txt pyproject.toml
	$(call install,requirements-dev.txt)
	@touch $(INSTALLED) $@

# Shell code. Ends well with a $(VENV) that has a supported Python and pip, or says what to do and
# fails. Three ways, since Debian, Ubuntu and Colab ship a Python without ensurepip.
define require_usable_venv
is_supported() { "$$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; }; \
version_of() { "$$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }; \
fail() { printf '%s\n' "$$@" >&2; exit 1; }; \
if [ -e $(VENV)/.installing ]; then \
	echo 'An earlier installation did not finish: starting $(VENV) afresh.'; \
	rm -rf $(VENV); \
fi; \
if $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	is_supported $(BIN)/python || fail \
		"$(VENV) has Python $$(version_of $(BIN)/python); 3.11, 3.12 or 3.13 is needed: remove $(VENV), then make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	exit 0; \
fi; \
command -v "$(PYTHON)" >/dev/null || fail \
	'$(PYTHON) not found. Python 3.11, 3.12 or 3.13 is needed; choose one with: make PYTHON=python3.12 $(MAKECMDGOALS)'; \
is_supported "$(PYTHON)" || fail \
	"$(PYTHON) is Python $$(version_of "$(PYTHON)"); 3.11, 3.12 or 3.13 is needed. Choose one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
start() { rm -rf $(VENV); mkdir $(VENV); touch $(VENV)/.installing; }; \
finish() { rm $(VENV)/.installing; exit 0; }; \
echo "Making $(VENV) with Python $$(version_of "$(PYTHON)")."; \
start; \
"$(PYTHON)" -c 'import venv; from ensurepip import version' 2>/dev/null && "$(PYTHON)" -m venv $(VENV) && finish; \
start; \
"$(PYTHON)" -m pip --version >/dev/null 2>&1 && "$(PYTHON)" -m venv --without-pip $(VENV) \
	&& "$(PYTHON)" -m pip --python $(BIN)/python install pip && finish; \
start; \
command -v virtualenv >/dev/null \
	&& virtualenv --python "$$(command -v "$(PYTHON)")" $(VENV) && finish; \
rm -rf $(VENV); \
if command -v apt-get >/dev/null; then \
	sudo=$$([ "$$(id -u)" = 0 ] || echo 'sudo '); \
	fail 'This Python cannot make virtual environments. Type this, then make again:' \
		"  $${sudo}apt-get update && $${sudo}apt-get install -y python$$(version_of "$(PYTHON)")-venv"; \
else \
	fail 'This Python cannot make virtual environments: install its venv and ensurepip modules, then make again.'; \
fi
endef

present := $(shell ($(BIN)/python -c 'import pip, sys; print("%d.%d" % sys.version_info[:2])') 2>/dev/null)
ifeq ($(present),)
# No .venv, or one whose Python was upgraded or removed: what was installed there is of no use.
$(shell rm -f $(INSTALLED) $(DEV_INSTALLED))
else ifneq ($(origin PYTHON),file)
# A .venv of another Python than the one asked for would be used in silence.
asked_for := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifneq ($(present),$(asked_for))
$(error $(VENV) has Python $(present), PYTHON=$(PYTHON) is $(or $(asked_for),not found): remove $(VENV) to change)
endif
endif
