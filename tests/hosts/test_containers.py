"""Ranks in containers of one machine with the same name: none sees the others' processes."""

import json
import os
import subprocess
import sys

import pytest
from hosts import jobs

from gradred import launch

WHY_NOT = jobs.why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT)),
    pytest.mark.timeout(90),
]

# Starts a rank in its own container: process numbers and /proc are its own, so all ranks are
# process 1. As in some runtimes, nothing distinguishes the containers by name. They start at
# different times, because a wrong process number could otherwise give a correct result by chance.
CONTAINER = """
mkdir -p "$0/nothing"
sleep "0.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}5"
exec unshare -fpm --mount-proc sh -c '
mount --bind "$0" /proc/$$/ns && exec "$@"
' "$0/nothing" "$@"
"""

# Each rank in turn is late, for longer than it takes to detect a process that does not exist.
RANK = """
import json, os, sys, time
import numpy as np
from mpi4py import MPI
import gradred
from gradred import _core

comm, right = gradred.Comm(MPI.COMM_WORLD), True
for late in range(comm.size):
    for count in (1, 300_000):
        x = np.full(count, comm.rank + 1.0)
        if comm.rank == late:
            time.sleep(1.2)
        comm.Allreduce(MPI.IN_PLACE, x)
        request = comm.Iallreduce(x, y := np.empty_like(x))
        request.Wait()
        sum = comm.size * (comm.size + 1) / 2
        right = right and bool((x == sum).all() and (y == comm.size * sum).all())
found = {"right": right, "pid": os.getpid(), **_core.comm_info(comm)}
with open(f"{sys.argv[1]}/{comm.rank}.json", "w") as file:
    json.dump(found, file)
"""

# Settings that keep the MPIs from reading each other's memory by process number.
APART = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,tcp",
    "UCX_TLS": "tcp,self",
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",
}


@pytest.mark.parametrize("shared", ["1", "0"])
def test_ranks_of_one_name_that_see_no_process_of_each_other_get_results(tmp_path, shared):
    (tmp_path / "rank.py").write_text(RANK)
    mpi = launch.find_mpi()
    placed = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    placed = placed if mpi.family == "Open MPI" else []
    command = [str(mpi.launcher), *placed, "-n", "2", "sh", "-c", CONTAINER, str(tmp_path)]
    command += [sys.executable, str(tmp_path / "rank.py"), str(tmp_path)]
    environment = {**os.environ, **APART, "PYTHONPATH": jobs.PATHS, "GRADRED_SHM": shared}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [one["right"] for one in found] == [True, True]
    assert [one["pid"] for one in found] == [1, 1]
    assert {one["hosts"] for one in found} == {1}, "names tell them apart: this tests nothing"
    assert {one["shares_memory"] for one in found} == {False}
    reason = "rank 0's" if shared == "1" else "GRADRED_SHM is off"
    assert all(reason in one["node_reason"] for one in found)


# Finds the other rank by files, as a store would.
ALONE = """
import itertools, pathlib, sys, time
import numpy
import gradred

folder, rank, turns = pathlib.Path(sys.argv[1]), int(sys.argv[2]), itertools.count()

def allgather(mine):
    turn = next(turns)
    (folder / f"{turn}.{rank}.new").write_bytes(mine)
    (folder / f"{turn}.{rank}.new").rename(folder / f"{turn}.{rank}")
    files = [folder / f"{turn}.{one}" for one in range(2)]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    return [file.read_bytes() for file in files]

try:
    comm = gradred.connect(rank, 2, allgather)
    print("sum", gradred.allreduce(numpy.full(1000, rank + 1.0), comm=comm)[999])
except gradred.UsageError as error:
    print(error)
"""


def test_without_an_mpiexec_they_connect_by_mpi_if_it_needs_none(tmp_path):
    (tmp_path / "rank.py").write_text(ALONE)
    environment = {**os.environ, **APART, "PYTHONPATH": jobs.PATHS}
    ranks = []
    for rank in range(2):
        command = ["unshare", "-fpm", "--mount-proc", sys.executable, str(tmp_path / "rank.py")]
        command += [str(tmp_path), str(rank)]
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(command, env=environment, stdout=pipe, text=True))
    for rank in ranks:
        said, _ = rank.communicate(timeout=30)
        if launch.find_mpi().family != "Open MPI":
            assert said == "sum 3.0\n", said
            continue
        assert said.startswith("connecting 2 ranks: they share no memory ("), said
        assert "gradred run" in said
