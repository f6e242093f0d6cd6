"""`gradred explain`: print which plan a call uses, why, and how long it takes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from gradred import _core, config, launch, ops, schedules
from gradred._util import cpu, text
from gradred.bench import explanation
from gradred.bench.explanation import COLLECTIVES, REDUCING, Answer, Model, Question
from gradred.bench.inputs import TYPES
from gradred.bench.options import ACCELERATORS, OSU_TYPES, byte_count, positive
from gradred.element_types import numpy_dtype
from gradred.errors import DeviceError, UsageError
from gradred.launch import processes
from gradred.observe import figures

SCHEMA = "gradred-explain/1"
_LONGEST_JOB = 60.0  # seconds
_RANKS_PER_CORE = 8  # more ranks would take long, and the times would mean little


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "Nothing is measured across hosts: run `gradred bench` in a job there. The times of the "
        "model are alpha for each round, gap for each further message of a rank in it, beta for "
        "each byte sent, gamma for each byte reduced, delta for each byte copied. It knows nothing "
        "of caches, of ranks that share a core and of how many memory serves at once: where it is "
        "measured beside the call, the last line says how far from it the call is."
    )
    parser.add_argument(
        "--bytes", type=byte_count, required=True, metavar="N",
        help="bytes of the vector, or of one rank's block if there are blocks; 4k is 4096",
    )  # fmt: skip
    parser.add_argument(
        "-T", "--type", default="float32", choices=(*TYPES, *OSU_TYPES), metavar="TYPE",
        help=f"element type: {', '.join(TYPES)} (default: float32)",
    )  # fmt: skip
    parser.add_argument(
        "-np", "-n", type=positive, metavar="N", dest="ranks",
        help="number of ranks (default: the slots of --hosts, or one per core of each host)",
    )  # fmt: skip
    parser.add_argument(
        "--hosts", type=_hosts, default=("",), metavar="LIST|COUNT",
        help="names (host or host:slots), or the number of hosts (default: this host)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--op", choices=ops.OPS, default="sum", metavar="OP",
        help=f"reduction: {', '.join(ops.OPS)} (default: sum)",
    )  # fmt: skip
    parser.add_argument(
        "--collective",
        choices=COLLECTIVES,
        default="allreduce",
        type=lambda name: name.removesuffix("_block"),  # `gradred bench` uses the longer name
    )
    parser.add_argument(
        "--no-measure", action="store_true", help="start no job; assume the model's parameters"
    )
    parser.add_argument(
        "-d", "--accelerator", choices=ACCELERATORS, default="cpu",
        help="memory of the arrays; a call on cuda and managed is measured (default: cpu)",
    )  # fmt: skip
    parser.add_argument(
        "--wire", default="", choices=(*_core.WIRES, "auto"), metavar="FORM",
        help=f"form of float32 between hosts: {', '.join(_core.WIRES)} or auto",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Explain and predict a call, and measure it if that is possible here."""
    config.load()
    question = _question(arguments)
    if arguments.accelerator != "cpu":
        return _explain_on_device(arguments, question)
    answer = explanation.answer(question, _measured_before(question, arguments.hosts))
    reason = "--no-measure" if arguments.no_measure else why_not_here(question, arguments.hosts)
    measured: dict[str, Any] | None = None
    if reason is None:
        measured, reason = measure(question)
    model = _model(question, answer, measured)
    columns = None if arguments.json else text.width()
    report = describe(question, answer, model, measured, reason, columns)
    print(json.dumps(report, indent=2) if arguments.json else _report_text(report, columns))
    return 0


def _explain_on_device(arguments: argparse.Namespace, question: Question) -> int:
    """Explain a call on GPU arrays, whose path is known only once it was made."""
    asked = f"-d {arguments.accelerator}"
    reason = "--no-measure" if arguments.no_measure else why_not_here(question, arguments.hosts)
    try:
        if reason is None:
            _core.cuda_driver()
    except DeviceError as error:
        remedy = "Measure host memory, with -d cpu"
        raise UsageError(asked, f"there is no CUDA driver ({error})", remedy) from None
    found: dict[str, Any] | None = None
    if reason is None:
        found, reason = measure(question, arguments.accelerator)
    if found is None:
        remedy = "Ask for what can be measured here"
        raise UsageError(asked, f"nothing was measured: {reason}", remedy)
    report = {
        "schema": SCHEMA,
        "question": dataclasses.asdict(question)
        | {"ranks": question.ranks, "hosts": question.hosts},
        "accelerator": arguments.accelerator,
        "devices": found["devices"],
        "way": found["way"],
        "measured_us": found["seconds"] * 1e6,
        "measured_p10_us": found["p10"] * 1e6,
        "measured_p90_us": found["p90"] * 1e6,
        "calls": found["calls"],
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
        return 0
    spread = f"{report['measured_p10_us']:.2f}-{report['measured_p90_us']:.2f}"
    lines = [
        _asked(report["question"]),
        f"on: {', '.join(found['devices'])}",
        f"way: {found['way']}",
        f"measured: {report['measured_us']:.2f} us, the median of {found['calls']} calls "
        f"(10-90 %: {spread})",
    ]
    print("\n".join(part for line in lines for part in text.wrapped(line, text.width())))
    return 0


# ---- the question ---------------------------------------------------------------------------


def _hosts(text: str) -> tuple[str, ...]:
    if text.isdecimal() and int(text) > 0:
        return ("",) * int(text)
    names = tuple(text.split(","))
    for name in names:
        host, _, slots = name.partition(":")
        if not host or host.isdecimal() or (slots and not (slots.isdecimal() and int(slots))):
            raise argparse.ArgumentTypeError(f"{text!r} is neither a number of hosts nor h1:4,h2:4")
    return names


def _question(arguments: argparse.Namespace) -> Question:
    dtype = OSU_TYPES.get(arguments.type, arguments.type)
    question = Question(
        arguments.collective,
        arguments.op if arguments.collective in REDUCING else "",
        dtype,
        arguments.bytes,
        _host_of(arguments.hosts, arguments.ranks),
        arguments.wire,
    )
    item = numpy_dtype(dtype).itemsize
    if question.nbytes % item:
        found = f"these are no whole elements of {item} bytes"
        raise UsageError(f"--bytes {question.nbytes} -T {dtype}", found, "Round it")
    return question


def _host_of(hosts: tuple[str, ...], ranks: int | None) -> tuple[int, ...]:
    """Return the host of each rank: slots are filled in order, otherwise hosts get equal runs."""
    slots = [int(name.partition(":")[2] or 0) for name in hosts]
    if ranks is None:
        ranks = sum(count or cpu.cores() for count in slots)
    if any(slots):
        places = [host for host, count in enumerate(slots) for _ in range(count or cpu.cores())]
        if ranks > len(places):
            found = f"these hosts have {len(places)} slots"
            raise UsageError(f"-np {ranks}", found, "Give fewer ranks or more slots")
        return tuple(places[:ranks])
    count = min(len(hosts), ranks)
    return tuple(rank * count // ranks for rank in range(ranks))


def _measured_before(question: Question, hosts: tuple[str, ...]) -> str:
    """Return the figures that a job on such hosts has stored; empty if none may be used."""
    if question.hosts == 1 or not config.get("tune") or config.get("deterministic"):
        return ""
    try:
        mpi = launch.find_mpi()
    except UsageError:
        return ""
    names = [name.partition(":")[0] for name in hosts if name]
    return figures.find(question.host_of, names, mpi.family, mpi.version)


# ---- measuring ------------------------------------------------------------------------------


def why_not_here(question: Question, hosts: tuple[str, ...]) -> str | None:
    """Return why no job of these ranks can be measured from this process; None if one can."""
    here = {"", "localhost", "127.0.0.1", os.uname().nodename}
    if question.hosts > 1 or hosts[0].partition(":")[0] not in here:
        return "it starts ranks on this host alone; run `gradred bench` in a job on those hosts"
    if question.ranks == 1:
        return "one rank has nothing to exchange"
    if launch.inside_job() is not None:
        return "this process is a rank, from which no job can be started"
    if question.ranks > _RANKS_PER_CORE * cpu.cores():
        return f"{question.ranks} ranks are too many for the {cpu.cores()} cores here"
    needed = 4 * question.vector_bytes * question.ranks  # input, result and intermediate copies
    if needed > os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        return f"it would take {needed >> 20} MiB, more than is free here"
    try:
        launch.find_mpi()
    except UsageError as error:
        return str(error)
    return None


def measure(
    question: Question, accelerator: str = "cpu"
) -> tuple[dict[str, Any] | None, str | None]:
    """Measure in a small job; returns the findings or the reason for none. Blocks for seconds."""
    with tempfile.TemporaryDirectory(prefix="gradred-") as folder:
        path = pathlib.Path(folder) / "found.json"
        program = [sys.executable, "-m", "gradred.bench.probe", str(path), question.text()]
        program.append(accelerator)
        run = [sys.executable, "-m", "gradred", "run", "--bind", "core"]
        run += ["-H", f"localhost:{question.ranks}"]  # needed in an allocation of several hosts
        with open(pathlib.Path(folder) / "stderr", "w+b") as errors:
            process = subprocess.Popen(
                [*run, *program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
            try:
                status = process.wait(_LONGEST_JOB)
            except subprocess.TimeoutExpired:
                return None, f"the job had not ended after {_LONGEST_JOB:g} s"
            finally:
                processes.end_tree(process, grace=5.0)
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        if status == 0 and path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            return found, None
    return None, f"the job ended with status {status} ({(lines or ['it printed nothing'])[-1]})"


def _model(question: Question, answer: Answer, measured: dict[str, Any] | None) -> Model:
    if measured is None:
        return answer.model
    known = {name: measured[name] for name in ("alpha", "beta", "gamma", "gap", "delta", "call")}
    inside = {"alpha_inside": known["alpha"], "beta_inside": known["beta"], "far": 0.0}
    return Model(**known, **inside, source="measured beside the call")  # all links are alike


# ---- the answer -----------------------------------------------------------------------------


_OF_ANSWER = ("plan", "medium", "slices", "parameters", "reason", "about", "formula", "paper")
_SIGNS = "→1[3]: chunk 3 to rank 1, ←1[3]: chunk 3 from it, + reduces, = copies"


def describe(
    question: Question,
    answer: Answer,
    model: Model,
    measured: dict[str, Any] | None,
    not_measured: str | None,
    columns: int | None = None,
) -> dict[str, Any]:
    """Return the report for JSON; its picture is limited to so many columns."""
    first = answer.schedules[0] if answer.schedules else None
    moved = schedules.traffic(first, question.vector_bytes) if first else None
    predicted = explanation.predicted(question, answer, model)
    picture, rounds = explanation.picture(answer, columns)
    return {
        "schema": SCHEMA,
        "question": dataclasses.asdict(question)
        | {"ranks": question.ranks, "hosts": question.hosts},
        **{name: getattr(answer, name) for name in _OF_ANSWER},
        "schedule": first.name if first else None,
        "rounds": rounds,
        "messages": moved.messages if moved else 0,
        "sent": moved.sent if moved else 0,
        "reduced": moved.reduced if moved else 0,
        "model": dataclasses.asdict(model),
        "predicted_us": None if predicted is None else predicted * 1e6,
        "measured_us": None if measured is None else measured["seconds"] * 1e6,
        "measured_p10_us": None if measured is None else measured["p10"] * 1e6,
        "measured_p90_us": None if measured is None else measured["p90"] * 1e6,
        "measured_plan": None if measured is None else measured["plan"],
        "calls": 0 if measured is None else measured["calls"],
        "cache_groups": [] if measured is None else measured["cache_groups"],
        "cores": cpu.cores(),
        "not_measured": not_measured,
        "picture": picture,
    }


def _report_text(report: dict[str, Any], columns: int | None) -> str:
    lines = [_asked(report["question"]), _plan(report), f"why: {report['reason']}"]
    by = "in shared memory" if report["medium"] == "memory" else "in messages"
    if report["schedule"] is not None:
        lines += [
            f"schedule: {report['schedule']}: {report['about']}",
            f"rounds: {report['rounds']}; rank 0 hands on {report['sent']} bytes {by}, in "
            f"{report['messages']} parts, and reduces {report['reduced']}",
            f"cost: {report['formula']}" + (f" ({report['paper']})" if report["paper"] else ""),
            _predicted(report),
        ]
    else:
        predicted = report["predicted_us"]
        source = report["model"]["source"]
        shown = "nothing" if predicted is None else f"{predicted:.2f} us ({source})"
        lines += [f"rounds: none of gradred's: {report['about']}", f"predicted: {shown}"]
    lines += [_measured(report), *_cache_groups(report["cache_groups"])]
    lines = [part for line in lines for part in text.wrapped(line, columns)]
    return "\n".join([*lines, *(["", _SIGNS, report["picture"]] if report["picture"] else [])])


def _asked(question: dict[str, Any]) -> str:
    size = numpy_dtype(question["dtype"]).itemsize
    op = f"{question['op']} of " if question["op"] else ""
    what = f"{op}{question['nbytes'] // size} {question['dtype']} ({question['nbytes']} bytes)"
    ranks, hosts = question["ranks"], question["hosts"]
    where = f"{ranks} rank{'s' * (ranks > 1)} on {hosts} host{'s' * (hosts > 1)}"
    wire = f", wire {question['wire']}" if question["wire"] else ""
    return f"{question['collective']}: {what}, {where}{wire}"


def _plan(report: dict[str, Any]) -> str:
    parts = [f"{name}={value}" for name, value in report["parameters"].items()]
    if report["slices"] > 1:
        parts.append(f"{report['slices']} slices in flight at once")
    return f"plan: {report['plan']}" + (f" ({', '.join(parts)})" if parts else "")


def _predicted(report: dict[str, Any]) -> str:
    model = report["model"]
    inside = ""
    if 1 < report["question"]["hosts"] < report["question"]["ranks"]:
        inside = (
            f" (inside hosts alpha {model['alpha_inside'] * 1e6:.2f} us, "
            f"beta {model['beta_inside'] * 1e9:.3f} ns)"
        )
    parameters = (
        f"alpha {model['alpha'] * 1e6:.2f} us, gap {model['gap'] * 1e6:.2f} us, "
        f"beta {model['beta'] * 1e9:.3f} ns{inside}, gamma {model['gamma'] * 1e9:.3f} ns, "
        f"delta {model['delta'] * 1e9:.3f} ns; {model['source']}"
    )
    call = f"the call itself {model['call'] * 1e6:.2f} us, " if model["call"] else ""
    return f"predicted: {report['predicted_us']:.2f} us ({call}{parameters})"


def _measured(report: dict[str, Any]) -> str:
    if report["measured_us"] is None:
        return f"measured: not here: {report['not_measured']}"
    ranks, cores = report["question"]["ranks"], report["cores"]
    shared = f"; the {ranks} ranks share {cores} core{'s' * (cores > 1)}" if ranks > cores else ""
    if report["measured_plan"] != report["plan"]:  # as in a container without shared memory
        shared += f"; here the plan was {report['measured_plan']}"
    spread = f"{report['measured_p10_us']:.2f}-{report['measured_p90_us']:.2f}"
    predicted = report["predicted_us"]
    times = f", {report['measured_us'] / predicted:.1f} times the prediction" if predicted else ""
    return (
        f"measured: {report['measured_us']:.2f} us{times}, the median of {report['calls']} calls "
        f"(10-90 %: {spread}{shared})"
    )


def _cache_groups(group_of: list[int]) -> list[str]:
    if not any(group_of):  # all alike, or not measured
        return []
    members = [[r for r, one in enumerate(group_of) if one == g] for g in sorted({*group_of})]
    shown = "; ".join(f"ranks {text.ranges(ranks)}" for ranks in members)
    return [f"caches: {shown}, by the time that a flag takes between them"]
