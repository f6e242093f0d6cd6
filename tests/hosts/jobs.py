"""Jobs over the hosts of `machines`, started as a user of a cluster starts them."""

import os
import pathlib
import sys

from hosts import machines

from gradred import launch


def why_not() -> str | None:
    """Why no job can be started on such hosts here; None if a job can."""
    if launch.inside_job():
        return "ranks cannot start ranks"
    if " " in sys.prefix and launch.find_mpi().family == "Open MPI":
        return "Open MPI's launcher does not quote its own path for ssh: no folder with a space"
    return machines.missing()


# Variables by which the MPIs use the network between these hosts and nothing else.
NETWORK = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # the hosts share the cores of this machine
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
}
HERE = pathlib.Path(__file__).parent
PATHS = os.pathsep.join(filter(None, sys.path))


def start(hosts, folder, *words, command="run", where="h1:2,h2:2", **variables):
    """Start `gradred run -H h1:2,h2:2`, or another command, with more words, on head."""
    usual = {"GRADRED_TUNE": "0"}  # plans do not depend on how busy this machine is
    environment = {**os.environ, **NETWORK, **usual, "PYTHONPATH": PATHS, **variables}
    environment["PATH"] = os.pathsep.join([hosts.path, environment["PATH"]])
    place = ["-H", where] if where else []
    line = [sys.executable, "-m", "gradred", command, *place, *words]
    return hosts.start(machines.HEAD, line, environment, folder)


def finish(process, timeout=60):
    """The output of a launcher, and its status."""
    out, err = process.communicate(timeout=timeout)
    return out.splitlines(), err.splitlines(), process.returncode
