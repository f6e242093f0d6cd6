"""`gradred simulate study`: a report of the eleven items of a study of training."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
from pathlib import Path

from gradred.bench import rank_zero
from gradred.bench.options import positive
from gradred.cli import info
from gradred.errors import UsageError
from gradred.simulate import plans, presets
from gradred_lab import pictures
from gradred_lab.cli import simulated_training
from gradred_lab.simulate import messages, study, study_report, what_if
from gradred_lab.simulate.exchange import ALL
from gradred_lab.simulate.study import Model, Study

_DEFAULT_SCHEMES = ("buckets", "bsp", "wfbp", "mgwfbp", "priority", "ps")
_PACKAGES = ("numpy", "mpi4py", "torch", "tensorflow", "jax")
_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--model", type=simulated_training.words, metavar="NAME[,NAME]", default=(),
        help="networks, as in simulate training",
    )  # fmt: skip
    what.add_argument("--trace", metavar="TRACE.json", help="what simulate record wrote")
    parser.add_argument("--net", metavar="NAME", help=f"{', '.join(presets.NETWORKS)}")
    parser.add_argument(
        "--hosts", type=_counts, metavar="N[,N]",
        help="numbers of hosts (default: 1, 2, 4, ... up to those of the cluster)",
    )  # fmt: skip
    parser.add_argument(
        "--local", type=positive, metavar="N", help="devices of a host (default: the cluster's)"
    )
    parser.add_argument(
        "--scheme", type=simulated_training.words, default=_DEFAULT_SCHEMES, metavar="NAME[,NAME]",
        help=f"of {', '.join(messages.SCHEMES)} (default: {', '.join(_DEFAULT_SCHEMES)})",
    )  # fmt: skip
    parser.add_argument(
        "--algorithm", type=simulated_training.words, default=ALL, metavar="PLAN[,PLAN]",
        help=f"plans of an allreduce (default: {', '.join(ALL)})",
    )  # fmt: skip
    simulated_training.add_device(parser)
    parser.add_argument(
        "--out", required=True, metavar="FOLDER",
        help="for study.md, study.json, phases.svg and scaling.svg",
    )  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Simulate all items, and write the report."""
    folder = Path(arguments.out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder}", "it is no folder", "Name a folder")
    pictures.require("simulate study")
    record = study.run(_study(arguments), facts())
    report = study_report.markdown(record)
    rank_zero.write_json(folder / "study.json", record)
    rank_zero.write_text(folder / "study.md", report)
    for name, drawn in study_report.pictures(record).items():
        rank_zero.write_text(folder / name, drawn)
    print(report, end="")
    return 0


def facts() -> dict[str, dict[str, str]]:
    """Hardware, topology and software of this machine."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "hardware": {
            "this machine": info.FACTS["cpu"](),
            "its memory": f"{_MEMORY / (1 << 30):.1f} GiB",
            "its GPUs": info.FACTS["cuda"](),
        },
        "topology": {"this machine": info.FACTS["topology"]()},
        "software": {
            "gradred": info.FACTS["version"](),
            "MPI": info.FACTS["mpi"](),
            "kernel": os.uname().release,
            **{name: version for name, version in versions.items() if version},
        },
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _study(arguments: argparse.Namespace) -> Study:
    arguments.gpus, measured = None, None
    if arguments.messages is not None:
        measured = simulated_training.measured_messages(arguments.messages)
    if arguments.net is None:
        known = ", ".join(presets.NETWORKS)
        raise UsageError("simulate study", "no network is named", f"Add --net with one of {known}")
    network = presets.find(arguments.net)
    local = arguments.local or (measured[0].local if measured else 0) or network.local
    hosts = arguments.hosts or _hosts(measured[0].hosts if measured else network.hosts)
    if measured and measured[0] not in [plans.Layout.even(one * local, one) for one in hosts]:
        found = f"{measured[0].ranks} ranks on {measured[0].hosts} hosts were measured"
        remedy = "Choose --hosts and --local so that a case has these ranks"
        raise UsageError(f"--messages {arguments.messages}", found, remedy)
    for name in arguments.scheme:
        messages.find(name)
    for name in arguments.algorithm:
        plans.find(name)
    return Study(
        net=next(name for name, one in presets.NETWORKS.items() if one is network),
        network=network,
        local=local,
        hosts=hosts,
        models=_models(arguments, network),
        schemes=tuple(dict.fromkeys(arguments.scheme)),
        plans=arguments.algorithm,
        error=what_if.ERROR if arguments.trace is None else what_if.TRACE_ERROR,
        measured=measured,
    )


def _hosts(most: int) -> tuple[int, ...]:
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def _models(arguments: argparse.Namespace, network: presets.Network) -> tuple[Model, ...]:
    found = []
    for name in arguments.model or (None,):
        asked = argparse.Namespace(**{**vars(arguments), "model": name})
        device, batch, alone = simulated_training.trained(asked, network)
        found.append(Model(batch, alone, device, is_measured=arguments.trace is not None))
    return tuple(found)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(word) for word in text.split(",")}))
