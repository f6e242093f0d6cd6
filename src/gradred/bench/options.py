"""The options of `gradred bench`: read from the command line, checked before ranks start."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from gradred import ops, plans
from gradred._util import files
from gradred.bench import plot
from gradred.bench.collectives import COLLECTIVES, Mode
from gradred.bench.inputs import TYPES
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES, numpy_dtype
from gradred.errors import UsageError

# The OSU benchmarks' names of types.
OSU_TYPES = {
    "mpi_char": "int8",
    "mpi_int": "int32",
    "mpi_float": "float32",
    "mpi_double": "float64",
}

OSU_ALL = ("mpi_char", "mpi_int", "mpi_float")

# The kinds of memory for vectors, with the function of the CUDA driver that allocates them.
ACCELERATORS = {"cpu": "", "cuda": "cuMemAlloc_v2", "managed": "cuMemAllocManaged"}

# The peers that gradred can be compared with, with the calls that they make.
PEERS = {
    "mpi": "the MPI underneath, on the same buffers (mpi4py's Allreduce and its like)",
    "mpi4py": "mpi4py's allreduce, which pickles the array",
    "gloo": "torch.distributed with the backend gloo, in place",
}
_MODES_OF = {
    "mpi": ("blocking", "nonblocking", "persistent"),
    "mpi4py": ("blocking",),
    "gloo": ("blocking", "nonblocking"),
}
_GLOO_OPS = ("sum", "prod", "min", "max")
_GLOO_TYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64")

# All types except the floats narrower than C's.
_MPI_TYPES = tuple(
    row.name for row in ELEMENT_TYPES.values() if row.kind != "real" or row.itemsize >= 4
)

_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

# The OSU benchmarks' numbers of calls, for up to 8 KiB (True) and above.
_SMALL = 8 << 10
_CALLS = {True: 1000, False: 100}
_WARMUP = {True: 100, False: 10}


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one run; `check` raises an error if it is impossible."""

    types: tuple[str, ...] = ("float32",)
    collective: str = "allreduce"
    op: str = "sum"
    smallest: int = 1
    largest: int = 1 << 20
    iterations: int | None = None
    warmup: int | None = None
    full: bool = False
    validation: bool = False
    tails: tuple[int, ...] = ()
    bandwidth: bool = False
    mode: Mode = "blocking"
    tests: int = 0
    plan: str = ""
    peers: tuple[str, ...] = ()
    json: str | None = None
    plot: str | None = None
    accelerator: str = "cpu"

    def calls(self, nbytes: int) -> tuple[int, int]:
        """Return the timed calls and warm-up calls for vectors of this length."""
        small = nbytes <= _SMALL
        calls = _CALLS[small] if self.iterations is None else self.iterations
        return calls, _WARMUP[small] if self.warmup is None else self.warmup

    def sizes(self, dtype: str, ranks: int = 1) -> list[int]:
        """Return the lengths to measure in bytes: doubling, in whole elements for each part."""
        item = ITEMSIZES[dtype] * (ranks if COLLECTIVES[self.collective].is_split else 1)
        count = max(1, -(-self.smallest // item))
        sizes = []
        while count * item <= self.largest:
            sizes.append(count * item)
            count *= 2
        return sizes

    def text(self) -> str:
        """Return the options as text for `from_text`, to pass them to a rank."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Options:
        """Read the text that `text` has written."""
        values: dict[str, Any] = json.loads(text)
        for name in ("types", "tails", "peers"):
            values[name] = tuple(values[name])
        return cls(**values)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options; those of the OSU benchmarks have the same names."""
    osu = parser.add_argument_group("options of osu_allreduce")
    osu.add_argument(
        "-T", "--type", type=_types, action="extend", metavar="TYPE[,TYPE]", dest="types",
        help=f"element types: {', '.join(TYPES)}; or {', '.join(OSU_TYPES)}; or all, which is "
        f"{', '.join(OSU_ALL)}; may be repeated (default: float32)",
    )  # fmt: skip
    osu.add_argument(
        "-d", "--accelerator", choices=ACCELERATORS, default="cpu",
        help="memory of the vectors: host memory, a CUDA device or managed memory",
    )  # fmt: skip
    osu.add_argument(
        "-m", "--message-size", type=_range, default=(1, 1 << 20), metavar="[MIN:]MAX",
        help="sizes in bytes, with k, m or g for binary units; MIN: sets the smallest only "
        "(default: :1m)",
    )  # fmt: skip
    osu.add_argument(
        "-i", "--iterations", type=positive, metavar="N",
        help="number of timed calls of each size (default: 1000; above 8 KiB: 100)",
    )  # fmt: skip
    osu.add_argument(
        "-x", "--warmup", type=natural, metavar="N",
        help="number of calls before the timed ones (default: 100; above 8 KiB: 10)",
    )  # fmt: skip
    osu.add_argument("-f", "--full", action="store_true", help="print all columns of osu_allreduce")
    osu.add_argument(
        "-c", "--validation", action="store_true",
        help="print the column Validation; results are always checked",
    )  # fmt: skip
    osu.add_argument(
        "-z", "--tail-lat", type=_tails, nargs="?", const=(50, 90, 99), default=(), dest="tails",
        metavar="P[,P]", help="print these percentiles of the times (without a list: 50,90,99)",
    )  # fmt: skip
    osu.add_argument(
        "-t", "--num-test-calls", type=natural, default=0, metavar="N", dest="tests",
        help="with --nonblocking: number of calls of Test during the computation (default: 0)",
    )  # fmt: skip
    own = parser.add_argument_group("other measurements, and output")
    own.add_argument(
        "--collective", choices=COLLECTIVES, default="allreduce",
        help=f"collective to measure: {', '.join(COLLECTIVES)} (default: allreduce)",
    )  # fmt: skip
    modes = own.add_mutually_exclusive_group()
    modes.add_argument(
        "--nonblocking", action="store_const", const="nonblocking", dest="mode", default="blocking",
        help="measure Iallreduce, and its overlap",
    )  # fmt: skip
    modes.add_argument(
        "--persistent", action="store_const", const="persistent", dest="mode",
        help="measure requests of Allreduce_init",
    )  # fmt: skip
    own.add_argument(
        "-o", "--op", choices=ops.OPS, default="sum", metavar="OP",
        help=f"reduction: {', '.join(ops.OPS)} (default: sum)",
    )  # fmt: skip
    own.add_argument(
        "-b",
        "--bandwidth",
        action="store_true",
        help="print the columns algbw and busbw of nccl-tests",
    )
    own.add_argument(
        "--plan",
        default="",
        metavar="NAME|all",
        help="use this plan, or compare all that can carry out the call",
    )
    own.add_argument(
        "--peers", type=_peers, default=(), metavar="PEER[,PEER]",
        help="compare with: " + "; ".join(f"{name} ({what})" for name, what in PEERS.items()),
    )  # fmt: skip
    own.add_argument(
        "--json", metavar="FILE",
        help="write all measurements; with `-` to stdout, and the table to stderr",
    )  # fmt: skip
    own.add_argument(
        "--plot", metavar="FILE", help="draw times by size into this .svg, .png or .pdf"
    )


def read(arguments: argparse.Namespace) -> Options:
    """Return the options of a parsed command line, checked.

    Raises:
        UsageError: they are impossible here; the message has a remedy.
    """
    smallest, largest = arguments.message_size
    own = {
        "types": tuple(dict.fromkeys(arguments.types or Options.types)),
        "smallest": smallest,
        "largest": largest,
    }
    others = [field.name for field in dataclasses.fields(Options) if field.name not in own]
    options = Options(**own, **{name: getattr(arguments, name) for name in others})
    check(options)
    return options


def check(options: Options) -> None:
    """Raise UsageError for options that cannot be measured, before anything is started."""
    _check_collective(options)
    _check_accelerator(options)
    for dtype in options.types:
        ops.require(options.op, dtype, f"-o {options.op} -T {dtype}")
        numpy_dtype(dtype)
        if not options.sizes(dtype):
            found = f"no {dtype} fits into {options.largest} bytes and at least {options.smallest}"
            raise UsageError("-m", found, "Give a larger range")
        for peer in options.peers:
            _check_peer(peer, dtype, options)
    if options.plan not in ("", "all"):
        plans.resolve(options.plan, "allreduce", 0, 2)
    if options.tests and options.mode != "nonblocking":
        found = "there is nothing to test in a blocking call"
        raise UsageError("-t", found, "Add --nonblocking, or leave it out")
    if options.plot is not None:
        plot.require(options.plot)


def _check_collective(options: Options) -> None:
    collective, name = COLLECTIVES[options.collective], options.collective
    asked = f"--collective {name}"
    if options.mode not in collective.modes:
        found = f"gradred has no {options.mode} one of its own"
        raise UsageError(asked, found, f"Leave out --{options.mode}")
    if not collective.reduces and options.op != Options.op:
        raise UsageError(f"{asked} -o {options.op}", "it reduces nothing", "Leave out -o")
    if options.plan and name != Options.collective:
        found = "plans can be chosen for allreduce alone"
        raise UsageError(f"{asked} --plan {options.plan}", found, "Leave out --plan")
    for peer in options.peers:
        if peer not in collective.peers:
            remedy = f"Take {', '.join(collective.peers)}"
            raise UsageError(f"{asked} --peers {peer}", f"{peer} has none", remedy)


def _check_accelerator(options: Options) -> None:
    if options.accelerator == "cpu":
        return
    asked = f"-d {options.accelerator}"
    for dtype in options.types:
        if not ELEMENT_TYPES[dtype].is_numpys:
            found = f"the CUDA Array Interface has no name for {dtype}"
            raise UsageError(f"{asked} -T {dtype}", found, "Take another type")
    for peer in options.peers:
        if peer != "mpi" or options.mode != "blocking":
            found = "only the MPI's blocking calls are compared there, on copies in host memory"
            raise UsageError(f"{asked} --peers {peer}", found, "Take --peers mpi")


def require_writable(json: str | None, plot: str | None = None) -> None:
    """Raise UsageError unless the files of --json, --plot can be written; makes their folders."""
    for option, name in (("--json", json), ("--plot", plot)):
        if name is None or (option, name) == ("--json", "-"):
            continue
        path = Path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            if not path.is_fifo():  # closing a pipe would mean the end to its reader
                os.close(files.create(path, append=True))
            if is_new:
                path.unlink(missing_ok=True)
        except OSError as error:
            found = f"it cannot be written ({error.strerror})"
            remedy = "Name a file in a folder that exists or can be made"
            raise UsageError(f"{option} {name}", found, remedy) from None


def _check_peer(peer: str, dtype: str, options: Options) -> None:
    asked = f"--peers {peer}"
    if options.mode not in _MODES_OF[peer]:
        found = f"it has no {options.mode} allreduce"
        raise UsageError(asked, found, f"Leave out --{options.mode} or this peer")
    if peer == "gloo":
        served = options.op in _GLOO_OPS and dtype in _GLOO_TYPES
    elif not COLLECTIVES[options.collective].reduces:
        served = dtype in _MPI_TYPES
    else:
        served = options.op != "avg" and dtype in _MPI_TYPES
    if not served:
        what = f"{options.op} of " if COLLECTIVES[options.collective].reduces else "type "
        found = f"it has no {what}{dtype}"
        raise UsageError(asked, found, "Take another -o or -T, or leave this peer out")
    if peer == "gloo" and importlib.util.find_spec("torch") is None:
        found = "gloo comes with PyTorch, which is not installed"
        raise UsageError(asked, found, "Install it with: pip install torch")


def _types(text: str) -> tuple[str, ...]:
    found = []
    for word in text.lower().replace("all", ",".join(OSU_ALL)).split(","):
        name = OSU_TYPES.get(word, word)
        if name not in TYPES:
            known = ", ".join((*TYPES, *OSU_TYPES))
            raise argparse.ArgumentTypeError(f"there is no type {word!r}; use one of {known}")
        found.append(name)
    return tuple(found)


def _peers(text: str) -> tuple[str, ...]:
    for word in text.split(","):
        if word not in PEERS:
            raise argparse.ArgumentTypeError(
                f"there is no peer {word!r}; use some of {', '.join(PEERS)}"
            )
    return tuple(dict.fromkeys(text.split(",")))


def _range(text: str) -> tuple[int, int]:
    low, colon, high = text.rpartition(":")
    smallest = byte_count(low) if low else 1
    largest = byte_count(high) if high else Options.largest
    if low and not high and smallest > largest:
        raise argparse.ArgumentTypeError(f"{text!r}: MAX is 1m if it is not given; write {low}:MAX")
    if (colon and not (low or high)) or not 0 < smallest <= largest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range; write 8:1m, :1m, 8: or 1m")
    return smallest, largest


def byte_count(text: str) -> int:
    """Parse a number of bytes, with or without a binary unit: `4096`, `4k`, `64M`."""
    unit = _SUFFIXES.get(text[-1:].lower(), 1)
    digits = text if unit == 1 else text[:-1]
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 4096 or 4k")
    return int(digits) * unit


def _tails(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word) <= 100 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} are no percentiles from 1 to 100")
    return tuple(map(int, words))


def natural(text: str) -> int:
    """Parse a whole number."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if natural(text) == 0:
        raise argparse.ArgumentTypeError("0 is too few: give 1 or more")
    return int(text)
