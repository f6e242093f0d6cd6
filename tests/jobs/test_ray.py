"""Ray's collectives among actors, `ray.util.collective`, with the backend gradred."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(240)

PROGRAM = """
import subprocess
import sys
import time

import numpy as np
import ray
import torch
import gradred.ray
from ray.experimental import internal_kv
from ray.util import collective
from ray.util.collective.types import ReduceOp

collective.register_collective_backend("gradred", gradred.ray.Group)

@ray.remote(num_cpus=0)
class Actor:
    def __init__(self):
        collective.register_collective_backend("gradred", gradred.ray.Group)

    def begin(self, size, rank, name):
        collective.init_collective_group(size, rank, "gradred", name)
        return collective.get_rank(name)

    def end(self, name):
        collective.destroy_collective_group(name)

    def kinds(self, name="default"):
        collective.barrier(name)
        rank, size = collective.get_rank(name), collective.get_collective_group_size(name)
        x = np.full(3, rank + 1, np.float32)
        collective.allreduce(x, name)
        assert x.tolist() == [3, 3, 3], x
        t = torch.full((2,), rank + 1, dtype=torch.bfloat16)
        collective.allreduce(t, name, ReduceOp.MAX)
        assert t.tolist() == [2, 2], t
        x = np.full(2, rank + 1.0)
        collective.reduce(x, 1, name, ReduceOp.PRODUCT)
        assert x.tolist() == ([2, 2] if rank == 1 else [1, 1]), x
        x = np.full(2, rank)
        collective.broadcast(x, 1, name)
        assert x.tolist() == [1, 1], x
        every = [np.zeros(2), np.zeros(2)]
        collective.allgather(every, np.full(2, rank + 5.0), name)
        assert [one.tolist() for one in every] == [[5, 5], [6, 6]], every
        x = np.zeros(2)
        parts = [np.full(2, 1.0 + rank), np.full(2, 10.0 + rank)]
        collective.reducescatter(x, parts, name, ReduceOp.MIN)
        assert x.tolist() == ([1, 1] if rank == 0 else [10, 10]), x
        if rank == 0:
            collective.send(np.arange(4), 1, name)
        else:
            x = np.zeros(4, int)
            collective.recv(x, 0, name)
            assert x.tolist() == [0, 1, 2, 3], x
        collective.barrier(name)
        return f"{rank} of {size}"

    def wait(self):
        collective.barrier()

    def two_arrays(self):
        try:
            collective.get_group_handle().allreduce([np.zeros(1), np.zeros(1)])
        except gradred.UsageError as error:
            return str(error)

if sys.argv[1:]:  # another job of the cluster, whose group waits for its rank 1
    ray.init(sys.argv[1])
    actors = [Actor.remote() for _ in range(2)]
    first = actors[0].begin.remote(2, 0, "fourth")
    while internal_kv._internal_kv_get(gradred.ray.store_key("fourth")) is None:
        time.sleep(0.1)
    print("waits", flush=True)
    input()
    assert ray.get([first, actors[1].begin.remote(2, 1, "fourth")]) == [0, 1]
    sys.exit()

ray.init(num_cpus=1, include_dashboard=False)
actors = [Actor.remote() for _ in range(2)]
both = [0, 1]

def of_both(name, *args):
    return ray.get([getattr(actor, name).remote(*args) for actor in actors])

collective.create_collective_group(actors, 2, both, "gradred")
assert of_both("kinds") == ["0 of 2", "1 of 2"]
assert all("pass one array" in said for said in of_both("two_arrays"))
for _ in range(2):  # a name may be used again
    ranks = [actor.begin.remote(2, 1 - n, "other") for n, actor in enumerate(actors)]
    assert ray.get(ranks) == [1, 0]
    assert of_both("kinds", "other") == ["1 of 2", "0 of 2"]
    of_both("end", "other")

# As if rank 0 of an earlier group had been killed: nothing listens at this place.
key = gradred.ray.store_key("third")
internal_kv._internal_kv_put(key, b"127.0.0.1 1")
second = actors[1].begin.remote(2, 1, "third")
assert ray.wait([second], timeout=2)[0] == []
assert ray.get([actors[0].begin.remote(2, 0, "third"), second]) == [0, 1]
assert internal_kv._internal_kv_get(key) is None

command = [sys.executable, __file__, ray.get_runtime_context().gcs_address]
other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for line in other.stdout:  # Ray prints lines of its own
    if line == "waits\\n":
        break
second = actors[1].begin.remote(2, 1, "fourth")
assert ray.wait([second], timeout=5)[0] == []
assert ray.get([actors[0].begin.remote(2, 0, "fourth"), second]) == [0, 1]
assert of_both("kinds", "fourth") == ["0 of 2", "1 of 2"]
other.communicate("go on\\n", timeout=100)
assert other.returncode == 0

waiting = actors[0].wait.remote()
assert ray.wait([waiting], timeout=2)[0] == []
ray.kill(actors[1])
try:
    ray.get(waiting)
except Exception as error:
    assert "PeerLost" in str(error) and "rank 1" in str(error), error
else:
    raise AssertionError("no error")
print("all kinds are right")
ray.shutdown()
"""


def test_actors_communicate_by_gradred_under_rays_functions(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=200, env=variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all kinds are right\n")
