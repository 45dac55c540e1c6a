# One virtual environment serves every target; it is made once and refreshed only when
# pyproject.toml or the constraints change.
#
# CONSTRAINTS names the versions to install: by default the CPU set that CI runs. On a GPU machine
# leave them open, `make demo CONSTRAINTS=`, and pip takes its default torch, or name a file of yours.

PYTHON ?= python3
CONSTRAINTS ?= constraints-cpu.txt
MAPPED := app caches distill parallel schedulers
BIN := .venv/bin

.PHONY: demo test lint bench clean

# -qq: nothing but errors.
PIP_INSTALL := $(BIN)/python -m pip install -qq $(addprefix -c ,$(CONSTRAINTS))

demo: .venv/ready
	$(BIN)/accel generate "two green squares and a red star" \
	    --model tiny --plan balanced --compare --seed 7 --out out/demo

# ARGS goes to pytest: make test ARGS="-k packaging"
test: .venv/ready
	$(BIN)/python -m pytest -n 2 $(ARGS)

lint: .venv/ready .typetree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd .typetree && ../$(BIN)/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache -p accel

# About two hours on two quiet cores; broken off, plans.py goes on where it was. Writes docs/benchmarks.md.
bench: .venv/ready
	cd benchmarks && for script in overhead facts plans; do ../$(BIN)/python $$script.py || exit 1; done

clean:
	rm -rf .venv .typetree .mypy_cache .pytest_cache .ruff_cache build out *.egg-info

.venv/ready: pyproject.toml .venv/made-for-$(notdir $(CONSTRAINTS))
	$(PIP_INSTALL) -e ".[dev]"
	touch $@

# Another set of constraints means another environment: --clear also drops both stamps.
.venv/made-for-$(notdir $(CONSTRAINTS)): $(CONSTRAINTS)
	$(PYTHON) -m venv --clear .venv
	touch $@

# mypy does not read the package mapping of pyproject.toml: show it the installed layout in links.
.PHONY: .typetree
.typetree:
	@rm -rf $@ && mkdir -p $@/accel
	@ln -s $(addprefix ../../,$(wildcard accel/*) $(MAPPED)) $@/accel/
