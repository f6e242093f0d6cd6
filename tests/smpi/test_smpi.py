"""The simulator against SimGrid's SMPI: the same schedules on the same platform.

Source: Casanova et al., "Versatile, scalable, and accurate simulation of distributed applications
and platforms", Journal of Parallel and Distributed Computing 2014. SimGrid's factors for latencies
and speeds of TCP are set to 1, so that both compute with the same figures.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from smpi import model as files
from smpi.model import Shape

from gradred import _core, schedules
from gradred.schedules import Schedule
from gradred.simulate.servers import parameter_servers

pytestmark = pytest.mark.timeout(600)

CONFIGURATION = {
    "network/model": "CM02",
    "network/TCP-gamma": 0,  # no limit by a window
    "network/weight-S": 0,  # no advantage of short routes
    "network/latency-factor": 1,
    "network/bandwidth-factor": 1,
    "network/crosstraffic": 0,  # no traffic of acknowledgements
    "network/optim": "Full",  # the lazy way misses changes of speed where three servers answer
    "smpi/lat-factor": 1,
    "smpi/bw-factor": 1,
    "smpi/async-small-thresh": 1 << 30,  # sent at once, whether or not it is expected
    "smpi/send-is-detached-thresh": 1 << 30,
    "smpi/simulate-computation": "no",
    "smpi/shared-malloc": "global",
    "smpi/wtime": 0,
    "smpi/test": 0,
    "smpi/iprobe": 0,
    "smpi/host-speed": int(files.SPEED),
    "maxmin/precision": 1e-9,
    "surf/precision": 1e-12,
}
FREE, SHARED = 1e-3, 5e-3  # how far both may differ

ALONE = Shape(hosts=8, local=1)
SEVERAL = Shape(hosts=4, local=4, bus=4e9)
LENGTHS = (1 << 10, 1 << 16, 1 << 22)


def by_simgrid(
    replay: Path, folder: Path, given: list[Schedule], shape: Shape, nbytes: int
) -> float:
    """Seconds until the last rank is done."""
    names = {"platform.xml": files.platform(shape), "hosts": files.hostfile(shape)}
    names["table"] = files.table(given, nbytes, shape.reduce)
    for name, text in names.items():
        (folder / name).write_text(text)
    command = [
        "smpirun",
        "-np",
        str(shape.ranks),
        "-platform",
        "platform.xml",
        "-hostfile",
        "hosts",
    ]
    command += [f"--cfg={name}:{value}" for name, value in CONFIGURATION.items()]
    done = subprocess.run(
        [*command, str(replay), "table"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    found = re.search(r"seconds (\S+)", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found[1])


def by_us(given: list[Schedule], shape: Shape, nbytes: int) -> float:
    return float(_core.simulate_schedules(given, shape.cluster(), nbytes)["seconds"])


def compare(
    replay: Path, folder: Path, given: list[Schedule], shape: Shape, length: int, bound: float
) -> None:
    """Both simulate; lengths are multiples of the number of chunks."""
    nbytes = given[0].chunks * max(1, length // given[0].chunks)
    theirs = by_simgrid(replay, folder, given, shape, nbytes)
    assert by_us(given, shape, nbytes) == pytest.approx(theirs, rel=bound), (shape, nbytes)


@pytest.mark.parametrize("name", [n for n in schedules.names() if n != "hierarchical"])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_algorithm_takes_as_long_where_nothing_is_shared(
    name: str, length: int, replay: Path, tmp_path: Path
) -> None:
    given = schedules.make_all(name, ALONE.ranks)
    compare(replay, tmp_path, given, ALONE, length, FREE)


@pytest.mark.parametrize("ranks", [2, 3, 5, 7, 12, 16, 32])
def test_numbers_of_ranks_that_are_no_powers_of_two(
    ranks: int, replay: Path, tmp_path: Path
) -> None:
    for name in ("ring", "recursive_doubling", "rabenseifner"):
        given = schedules.make_all(name, ranks)
        compare(replay, tmp_path, given, Shape(ranks, 1), 1 << 20, FREE)


def test_reductions_take_as_long(replay: Path, tmp_path: Path) -> None:
    shape = Shape(hosts=8, local=1, reduce=3e-10)
    for name in ("ring", "recursive_doubling", "rabenseifner"):
        compare(replay, tmp_path, schedules.make_all(name, 8), shape, 1 << 22, FREE)


@pytest.mark.parametrize("name", schedules.names())
@pytest.mark.parametrize("length", LENGTHS)
def test_every_algorithm_takes_about_as_long_where_ports_and_buses_are_shared(
    name: str, length: int, replay: Path, tmp_path: Path
) -> None:
    options = {"local": SEVERAL.local} if name == "hierarchical" else {}
    given = schedules.make_all(name, SEVERAL.ranks, **options)
    compare(replay, tmp_path, given, SEVERAL, length, SHARED)


@pytest.mark.parametrize("servers", [1, 3])
def test_parameter_servers_take_about_as_long(servers: int, replay: Path, tmp_path: Path) -> None:
    for shape in (ALONE, SEVERAL):
        given = parameter_servers(shape.ranks, servers)
        compare(replay, tmp_path, given, shape, 1 << 20, SHARED)


def test_another_network_is_noticed(replay: Path, tmp_path: Path) -> None:
    given = schedules.make_all("ring", ALONE.ranks)
    theirs = by_simgrid(replay, tmp_path, given, Shape(8, 1, port=1.01e9), 1 << 22)
    assert by_us(given, ALONE, 1 << 22) != pytest.approx(theirs, rel=FREE)
