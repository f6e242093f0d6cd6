"""`import gradred` is cheap and does not touch MPI: it must be safe in any worker process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

MPI_FREE = """
import json, sys
import gradred
maps = open("/proc/self/maps").read()
print(json.dumps({
    "modules": [name for name in sys.modules if name.split(".")[0] in ("jax", "mpi4py", "torch")],
    "libmpi": "libmpi" in maps,
}))
"""

HOROVOD = """
import importlib, json, pkgutil, sys
import gradred.horovod
print(json.dumps([name for name in sys.modules if name.startswith("gradred.horovod.")]))
for found in pkgutil.walk_packages(gradred.horovod.__path__, "gradred.horovod."):
    importlib.import_module(found.name)
print(json.dumps([name for name in ("mpi4py.MPI", "torch") if name in sys.modules]))
"""

SECONDS = """
import time
import numpy
start = time.perf_counter()
import gradred
print(time.perf_counter() - start)
"""


def run_fresh(program: str) -> Any:
    """The JSON that a new interpreter prints."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_python_without_gil_is_refused() -> None:
    """As a free-threaded Python is under PYTHON_GIL=0, which threads of gradred would race in."""
    program = "import sys; sys._is_gil_enabled = lambda: False; import gradred; gradred.Comm"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    last = "ImportError: gradred needs Python's GIL. Remove PYTHON_GIL=0 or -X gil=0"
    assert done.stderr.strip().splitlines()[-1] == last


def test_import_does_not_load_mpi() -> None:
    found = run_fresh(MPI_FREE)
    assert "mpi4py.MPI" not in found["modules"]
    assert not {"jax", "torch"}.intersection(found["modules"])
    assert not found["libmpi"], "the extension is linked with an MPI"


def test_horovods_functions_load_no_framework_and_no_mpi() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOROVOD], capture_output=True, text=True, timeout=30, check=True
    )
    at_first, of_others = map(json.loads, done.stdout.splitlines())
    assert at_first == ["gradred.horovod.alias"]
    assert of_others == []


def test_tables_of_schemes_load_no_mpi_and_no_framework() -> None:
    program = MPI_FREE.replace("import gradred\n", "import gradred.schemes\n")
    found = run_fresh(program + "gradred.schemes.SCHEMES\n")
    assert "mpi4py.MPI" not in found["modules"]
    assert "torch" not in found["modules"]
    assert not found["libmpi"]


@pytest.mark.full  # it also measures the machine
def test_import_takes_at_most_30_ms_beyond_numpy() -> None:
    # The shortest of several runs, because other activity of the machine only adds time. The first
    # runs write bytecode and fill the page cache.
    seconds = []
    for _ in range(15):
        seconds.append(run_fresh(SECONDS))
        if min(seconds) <= 0.030:
            break
    assert min(seconds) <= 0.030


# What a user without an MPI types, and the text of the error.
WITHOUT_MPI = """
import json, sys
{before}
import numpy, gradred
try:
    {call}
except gradred.Error as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.parametrize(
    "call", ["gradred.allreduce(numpy.ones(3))", "gradred.Comm", "gradred.bcast(numpy.ones(3))"]
)
def test_without_an_mpi_the_error_says_where_to_get_one(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", "/none/libmpi.so")
    kind, text = run_fresh(WITHOUT_MPI.format(before="", call=call))
    assert kind == "UsageError"
    assert text.startswith(f"{call.partition('(')[0]}: mpi4py finds no MPI (")
    for remedy in ('pip install "mpich>=5"', "module load", "MPI4PY_LIBMPI=/path/libmpi.so"):
        assert remedy in text


def test_without_mpi4py_the_error_says_how_to_install_it() -> None:
    absent = 'sys.modules["mpi4py"] = None  # as if it were not installed'
    program = WITHOUT_MPI.format(before=absent, call="gradred.allreduce(numpy.ones(3))")
    kind, text = run_fresh(program)
    assert kind == "UsageError"
    assert text.startswith("gradred.allreduce: there is no mpi4py. Install it with: pip install")


def test_without_jax_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['jax'] = None\nimport gradred.jax"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: import gradred.jax: this Python")
    assert "pip install jax" in last


@pytest.mark.parametrize(("name", "package"), [("paddle", "paddlepaddle"), ("mxnet", "mxnet==")])
def test_without_another_framework_the_import_says_what_to_install(name: str, package: str) -> None:
    program = f"import sys; sys.modules['{name}'] = None\nimport gradred.{name}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: import gradred.{name}: this Python")
    assert f"pip install {package}" in last


@pytest.mark.parametrize("name", ["gradred.torch", "horovod.torch"])
def test_without_pytorch_the_front_end_says_what_to_install(name: str) -> None:
    program = "import sys, gradred.horovod as h; sys.modules['torch'] = None; h.install()\n"
    command = [sys.executable, "-c", program + f"import {name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: import {name}")
    assert f"this Python ({sys.executable}) has no PyTorch" in last
    assert "pip install torch" in last


@pytest.mark.parametrize("name", ["gradred.tensorflow", "gradred.keras", "horovod.keras"])
def test_without_tensorflow_the_front_end_says_what_to_install(name: str) -> None:
    program = "import sys, gradred.horovod as h; sys.modules['tensorflow'] = None; h.install()\n"
    command = [sys.executable, "-c", program + f"import {name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: import ")
    assert f"gradred.tensorflow: this Python ({sys.executable}) has no TensorFlow" in last
    assert "pip install tensorflow" in last


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("mxnet", "Write import gradred.mxnet as hvd, or run"),
        ("spark", "Start ranks by gradred run"),
        ("ray", "Start ranks by gradred run"),
    ],
)
def test_front_ends_of_horovod_that_are_not_here_say_what_is(name: str, instead: str) -> None:
    program = f"import gradred.horovod as h; h.install(); import horovod.{name}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    absent = f"horovod.{name.partition('.')[0]}"
    assert last.startswith(f"ModuleNotFoundError: import {absent}: horovod is gradred here, which ")
    assert "has horovod.torch" in last
    assert instead in last, "what to do"
