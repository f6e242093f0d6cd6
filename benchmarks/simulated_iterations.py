"""How far simulated iterations of training are from published ones.

    python benchmarks/simulated_iterations.py --rows iteration_scaling.csv \\
        --fits network_fits.csv --json out.json

Each row with several GPUs is predicted from the published speed of one GPU of the same work, by the
graph of an iteration (`gradred simulate training --model`) on the networks of
`gradred.simulate.presets`. So each row is left out of what predicts it, but for what a message
costs by TCP, which was chosen with these rows in view. Rows of mixed precision and
of more GPUs than 8 are not compared.

FITS has the published latency and time per byte of an allreduce on two networks. They are compared
with a simulated ring on the presets for these networks.
"""

from __future__ import annotations

import argparse
import collections
import csv
import dataclasses
import datetime
import json
import platform
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import gradred
from gradred._util import cpu
from gradred.simulate import plans
from gradred.simulate.plans import Layout
from gradred.simulate.presets import NETWORKS, Network
from gradred_lab.simulate import links, messages, networks, throughput, work
from gradred_lab.simulate.exchange import Exchange, Place, Way
from gradred_lab.simulate.throughput import Speed, Training
from gradred_lab.simulate.training import Trainings

SCHEMA = "gradred-simulated-iterations/1"
SCHEDULERS = {"BSP": "bsp", "WFBP": "wfbp", "MG-WFBP": "mgwfbp", "ByteScheduler": "priority"}


def network_of(training: Training) -> Network | None:
    """The preset with the hosts of a published cluster, and the network between them."""
    words = training.network
    if "NVLink" in words:
        return NETWORKS["V100-100Gb"]
    host = NETWORKS["P40-56Gb-IB"]  # GPUs on PCIe 3.0
    if "10 GbE" in words:
        tcp = NETWORKS["10GbE"]
        return dataclasses.replace(
            host, across=tcp.across, port=tcp.port, overhead=tcp.overhead, link="pci"
        )
    if "RDMA" in words:
        return dataclasses.replace(host, port=NETWORKS["V100-100Gb"].port)
    return None  # TCP over InfiniBand is no preset


def scheme_of(training: Training) -> str:
    """The row of the table of schemes; frameworks without a named scheduler use buckets."""
    return SCHEDULERS.get(training.scheduler, "buckets")


def predicted(training: Training, one: float) -> float | None:
    """Seconds of an iteration; None if the table of presets has no such cluster."""
    network = network_of(training)
    if network is None or links.is_server(training):
        return None
    alone = work.of_network(networks.find(training.model, training.options), one)
    alone = dataclasses.replace(alone, packing=work.DEVICES["V100"].copy)
    # The published runs use NCCL, whose ring has the long messages that take the time.
    way = Way(plans=("nccl_ring",))
    place = Place(network, Layout.even(training.gpus, training.nodes))
    return messages.iterate(scheme_of(training), alone, Exchange(place, way)).iteration


def compare(rows: list[Speed]) -> list[dict[str, object]]:
    """Predict each row that can be predicted."""
    model = Trainings(rows)  # knows the speed of one device of the same work
    found: list[dict[str, object]] = []
    for row in rows:
        at = row.training
        if at.gpus == 1 or at.gpus > 8 or at.precision != "fp32":
            continue
        one = model.one(at)
        seconds = None if one is None else predicted(at, one)
        if seconds is None:
            continue
        found.append(
            {
                "source": at.source,
                "model": at.model,
                "network": at.network,
                "scheme": scheme_of(at),
                "framework": at.framework,
                "gpus": at.gpus,
                "nodes": at.nodes,
                "measured_images_per_s": row.images_per_s,
                "simulated_images_per_s": round(at.gpus * at.batch / seconds, 2),
                "error_percent": round(100 * abs(row.seconds / seconds - 1), 2),
            }
        )
    return found


def summary(found: list[dict[str, object]], *by: str) -> list[dict[str, object]]:
    """Errors of each group of rows."""
    groups: dict[tuple[object, ...], list[float]] = collections.defaultdict(list)
    for row in found:
        groups[tuple(row[name] for name in by)].append(float(str(row["error_percent"])))
    return [
        {
            **dict(zip(by, key, strict=True)),
            "rows": len(errors),
            "median_error_percent": round(statistics.median(errors), 1),
            "p95_error_percent": round(float(np.percentile(errors, 95)), 1),
        }
        for key, errors in sorted(groups.items(), key=str)
    ]


FITTED = {"56 Gb InfiniBand": ("P40-56Gb-IB", 4), "10 GbE": ("10GbE", 1)}
"""Preset and ranks of a host of each network of the published fits."""
LENGTHS = tuple(1 << power for power in range(12, 29, 4))


def rings(path: str) -> list[dict[str, object]]:
    """A simulated ring against the published line, by network, workers and length."""
    found: list[dict[str, object]] = []
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            net, local = FITTED[row["network"]]
            workers = int(row["workers"])
            layout = Layout.even(workers, max(1, workers // local))
            for nbytes in LENGTHS:
                line = float(row["alpha_s"]) + float(row["beta_s_per_byte"]) * nbytes
                seconds = plans.simulate("ring", NETWORKS[net], layout, nbytes).seconds
                found.append(
                    {
                        "network": net,
                        "workers": workers,
                        "bytes": nbytes,
                        "measured_us": round(1e6 * line, 2),
                        "simulated_us": round(1e6 * seconds, 2),
                        "error_percent": round(100 * abs(seconds / line - 1), 1),
                    }
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", required=True, help="a table of published iterations (CSV)")
    parser.add_argument("--fits", required=True, help="a table of published networks (CSV)")
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    found = compare(throughput.read_fit(options.rows))
    lines = rings(options.fits)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kind": "predicted (simulated) against measured; the cost of a message by TCP was fitted",
        "versions": {"gradred": gradred.__version__, "python": platform.python_version()},
        "arguments": {"rows": Path(options.rows).name, "fits": Path(options.fits).name},
        "machine": {"cpu": cpu.model()},
        "all": summary(found)[0],
        "by_network": summary(found, "network", "nodes"),
        "by_scheme": summary(found, "scheme"),
        "ring_by_network": summary(lines, "network"),
        "rows": found,
        "rings": lines,
    }
    for name in ("by_network", "by_scheme", "ring_by_network"):
        for group in record[name]:
            print(*group.values(), sep="  ")
    print("all:", *record["all"].values())
    Path(options.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
