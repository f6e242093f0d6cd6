"""Jobs of JAX programs: errors of ranks whose peer fails, exits, and the examples."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from bounds import within
from typed import typed

from gradred import launch

pytest.importorskip("jax")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).with_name("jax_ranks.py")
SERVED = pathlib.Path(__file__).with_name("jax_served.py")
LIMIT = 3.0  # GRADRED_TIMEOUT, in seconds

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

TROUBLES: dict[str, list[str]] = {
    "killed": ["UNAVAILABLE: PeerLost", "rank 1"],
    "raises": ["UNAVAILABLE: PeerLost", "rank 1", "a mistake of rank 1"],
    "exits": ["UNAVAILABLE: PeerLost", "rank 1"],
    "never calls": ["DEADLINE_EXCEEDED: TimeoutError", "'program'", "not been submitted by rank 1"],
    "calls another": ["DEADLINE_EXCEEDED: TimeoutError", "'program'", "submitted by rank 1"],
}


@pytest.mark.parametrize("how", TROUBLES)
def test_waiting_rank_gets_an_error_that_names_the_other(how: str) -> None:
    done = run(how, GRADRED_TIMEOUT=str(LIMIT))
    (report,) = reports(done)
    for part in TROUBLES[how]:
        assert part in report["text"], report
    assert report["seconds"] < within(LIMIT + 2), report
    assert done.returncode != 0


@pytest.mark.parametrize("how", ["", " after an error of a notebook"])
def test_results_nobody_waits_for_arrive_before_the_exit(how: str) -> None:
    """mpi4jax #22: a program that ends before its calls have run leaves its peers waiting."""
    done = run("not waited for" + how)
    assert done.returncode == 0, done.stderr
    assert reports(done) == [{"result": 6.0}]


def test_processes_that_no_mpi_has_started() -> None:
    command = [sys.executable, str(PROGRAM.with_name("jax_processes.py"))]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0: [3.0, 3.0]", "1: [3.0, 3.0]"]


def test_setting_that_leaves_no_thread_to_xla_is_refused() -> None:
    command = [sys.executable, "-c", "import gradred.jax; gradred.jax.init()"]
    environment = os.environ | {"GRADRED_PROGRESS_THREAD": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 1
    assert "and leave GRADRED_PROGRESS_THREAD on" in done.stderr


@pytest.mark.parametrize("example", ["jax_mlp.py", "jax_flax.py"])
def test_examples_learn(example: str) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("optax")
    if example == "jax_flax.py":
        pytest.importorskip("flax")
    done = start(ROOT / "examples" / example)
    assert done.returncode == 0, done.stderr
    found = [float(right) for right in re.findall(r"([\d.]+) % of the test", done.stdout)]
    assert found[-1] > 85, done.stdout
    assert found[-1] > found[0]


@pytest.mark.parametrize("how", ["all", "reversed", "without MPI"])
def test_collectives_of_programs_over_processes_are_exact(how: str) -> None:
    """`lax.psum` and others, of up to 4 MiB a part: jax #40830 has wrong sums of gloo there."""
    done = start(SERVED, how)
    assert reports(done) == [{"wrong": []}] * 2, done.stderr
    assert done.returncode == 0


def test_collectives_of_programs_over_processes_by_messages() -> None:
    done = start(SERVED, "all", GRADRED_SHM="0")
    assert reports(done) == [{"wrong": []}] * 2, done.stderr


def test_collectives_of_groups_of_processes() -> None:
    done = start(SERVED, "groups", ranks=4)
    assert reports(done) == [{"wrong": []}] * 4, done.stderr


REFUSED = {
    "killed": "PeerLost: rank 1",
    "several devices": "a process has several CPU devices in a group that spans processes",
}


@pytest.mark.parametrize("how", REFUSED)
def test_collective_over_processes_gets_an_error_that_says_why(how: str) -> None:
    found = reports(start(SERVED, how))
    assert len(found) == (1 if how == "killed" else 2)
    for report in found:
        assert REFUSED[how] in report["error"], report


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("import jax", "Call it before import jax"),
        (
            "import os; os.environ['JAX_CPU_COLLECTIVES_IMPLEMENTATION'] = 'gloo'",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION is 'gloo'",
        ),
    ],
)
def test_serving_processes_is_refused_where_jax_would_not_find_it(before: str, text: str) -> None:
    program = f"{before}; import gradred.jax_stand_in as one; one.serve()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert text in done.stderr


TYPED = """
import jax
import jax.numpy as jnp
import gradred

@jax.jit
def step(weight, x):
    import gradred.jax
    gradient = gradred.jax.pmean_tree(jax.grad(lambda w: (w * x).sum())(weight))
    return weight - gradient

def train(steps):
    import gradred.jax
    weight = jnp.zeros(3)
    for _ in range(steps):
        weight = step(weight, gradred.jax.rank() + 1.0)
    return weight.tolist()

print(gradred.run(train, (2,), np=4))
"""


def test_function_typed_into_a_python_trains_on_ranks() -> None:
    pytest.importorskip("cloudpickle")
    assert typed(TYPED).strip() == str([[-5.0] * 3] * 4)


def run(how: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return start(PROGRAM, how, **variables)


def start(program: pathlib.Path, *words: str, ranks: int = 2, **variables: str) -> Any:
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks), "--grace", "5"]
    command += [sys.executable, str(program), *words]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | variables
    return subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False, env=environment
    )


def reports(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the ranks printed as JSON, without the launcher's prefixes."""
    found = re.findall(r"\{.*\}", done.stdout)
    assert found, done.stderr
    return [json.loads(one) for one in found]
