# Every command makes the environment it needs, in .venv, and needs no activation.
PYTHON ?= python3
VENV := .venv
COLAB := .venv-colab
RUN := $(VENV)/bin/python
NOTEBOOK := notebooks/01_qkv_by_hand.ipynb
DESKTOP := $(shell [ "$$(uname)" = Darwin ] || [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ] && echo yes)
WORKERS ?= 2
# One thread for each worker, since four threads on two cores wait for one another; the files in
# their own order, since the few tests of the notebooks take longest and come first in it.
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest --dist loadfile --no-loadscope-reorder
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=300

.PHONY: lab test test-long test-all test-colab notebooks experiments bench bench-notebooks docs colab clean

lab: $(VENV)/.learner
	$(RUN) -m jupyter lab --ServerApp.ip=127.0.0.1 \
	    --LabApp.default_url=/lab/tree/$(NOTEBOOK) \
	    $(if $(DESKTOP),,--no-browser) \
	    $(if $(filter 0,$(shell id -u)),--allow-root)

test: $(VENV)/.tests
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(PYTEST) -n $(WORKERS) -m "not long" $(NBVAL) tests notebooks

test-long: $(VENV)/.tests
	$(PYTEST) -n $(WORKERS) -m long tests

test-all: test test-long

# Colab's own versions: nbval, the explorers, and both in a browser with Notebook 6.
test-colab: $(COLAB)/.tests
	OMP_NUM_THREADS=1 $(COLAB)/bin/python -m pytest $(NBVAL) notebooks
	OMP_NUM_THREADS=1 $(COLAB)/bin/python -m pytest tests/test_explorers.py tests/test_edition.py tests/browser

notebooks: $(VENV)/.tests
	$(RUN) tools/notebooks.py

colab: $(VENV)/.learner
	$(RUN) tools/colab.py

experiments: $(VENV)/.learner
	$(RUN) tools/experiments.py

docs: $(VENV)/.learner
	$(RUN) tools/codes.py

bench: $(VENV)/.learner
	$(RUN) tools/bench.py

bench-notebooks: $(VENV)/.tests
	$(RUN) tools/bench_notebooks.py

clean:
	rm -rf $(VENV) $(COLAB) dist build

$(VENV)/.learner: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --requirement requirements.txt
	$(RUN) -m jupyter labextension disable --level=sys_prefix \
	    "@jupyterlab/apputils-extension:announcements"
	touch $@

$(VENV)/.tests: $(VENV)/.learner tests/requirements.txt
	$(RUN) -m pip install --quiet --requirement tests/requirements.txt
	touch $@

$(COLAB)/.tests: tests/colab-requirements.txt pyproject.toml
	$(PYTHON) -m venv $(COLAB)
	$(COLAB)/bin/python -m pip install --quiet --requirement tests/colab-requirements.txt
	touch $@
