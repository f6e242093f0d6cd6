"""Algorithms as data: make, read, write, verify, cost and draw schedules.

A schedule defines what one rank does in one collective operation. It consists of rounds of steps;
each step sends, receives, reduces or copies a span of chunks. The vector is cut into `chunks`
chunks of equal length, except that the first ones may have one element more. A span is a run of
chunks, in the vector (`work`) or in a slot of the scratch buffer (`scratch`). The messages of a
round are in flight together. When all have completed, the round's reduce and copy steps run in
order.

`work` contains the input before the operation and the result after it. If a call's output is
another array than its input, gradred runs the schedule that `from_input` makes from this one. It
reads the input from the caller's array (`input_`), so that no copy of the input is needed.
A schedule with `leaves` has a vector for each part of a tree there (`leaf_tree`).

A generator is a function of rank and size, and `verify` proves that its schedules are correct:

    >>> from gradred.schedules import Schedule, recv, reduce, scratch, send, verify, work
    >>> def exchange(rank, size):
    ...     '''Two ranks swap their vectors, and each adds the other's to its own.'''
    ...     peer = 1 - rank
    ...     swap = [send(peer, work(0)), recv(peer, scratch(0, 0)), reduce(scratch(0, 0), work(0))]
    ...     return Schedule([swap], rank=rank, size=size, chunks=1, name="exchange")
    >>> verify([exchange(rank, 2) for rank in range(2)]).messages
    2
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from colorsys import hls_to_rgb
from typing import Literal, TypeAlias, TypedDict, cast

from gradred import _core
from gradred._core import (
    Cost,
    Schedule,
    ScheduleReport,
    Span,
    Step,
    Traffic,
    copy,
    input_,
    recv,
    reduce,
    scratch,
    send,
    work,
)
from gradred.errors import UsageError

Parameter: TypeAlias = "int | str | Sequence[int]"  # of an algorithm: see `make`

__all__ = [
    "Algorithm",
    "Cost",
    "Schedule",
    "ScheduleReport",
    "Span",
    "Step",
    "Traffic",
    "algorithms",
    "coefficients",
    "copy",
    "cost",
    "draw",
    "from_input",
    "input_",
    "leaf_tree",
    "make",
    "make_all",
    "names",
    "recv",
    "reduce",
    "scratch",
    "send",
    "traffic",
    "validate",
    "verify",
    "work",
]


class Algorithm(TypedDict):
    """A row of the table of algorithms."""

    name: str
    collective: str
    parameters: list[str]
    restriction: str
    about: str
    cost: str
    paper: str
    one_order: bool
    """Whether it sums each element in one order of ranks, which depends neither on the element's
    position nor on the vector's length. All such algorithms of a collective use the same order."""


def algorithms() -> list[Algorithm]:
    """Return the table of all algorithms, in its own order."""
    return cast("list[Algorithm]", _core.schedule_table())


def names(collective: str = "allreduce") -> list[str]:
    """Return the names of the algorithms for a collective.

    Args:
        collective: the collective of a row of `algorithms()`, such as "reduce_scatter".

    Raises:
        UsageError: no collective has that name.

    Example:
        >>> names("bcast")
        ['binomial', 'scatter_allgather', 'hierarchical']
    """
    found = [row["name"] for row in algorithms() if row["collective"] == collective]
    if not found:
        known = sorted({row["collective"] for row in algorithms()})
        raise UsageError(
            f"collective {collective!r}", "there is none", f"Use one of {', '.join(known)}"
        )
    return found


def make(
    name: str, rank: int, size: int, *, collective: str = "allreduce", **parameters: Parameter
) -> Schedule:
    """Make one rank's schedule of a built-in algorithm.

    Args:
        name: one of `names(collective)`.
        rank: from 0 to size - 1.
        size: the number of ranks.
        collective: see `names`.
        **parameters: those that `algorithms()` lists. `root` for broadcasts, gathers and scatters;
            `k`, the number of ranks that exchange at once; `local`, the number of ranks of each
            group, or `groups`, the group of each rank; `leaders=1`, if one rank of a group
            exchanges with others; `inside` and `across`, the names of the algorithms for the two
            levels.

    Raises:
        UsageError: unknown name or parameter, or a size that the algorithm does not support.

    Example:
        >>> make("ring", 0, 4)
        <Schedule ring: allreduce, rank 0 of 4, 6 rounds>
    """
    return _core.make_schedule(collective, name, rank, size, parameters)


def make_all(
    name: str, size: int, *, collective: str = "allreduce", **parameters: Parameter
) -> list[Schedule]:
    """Make the schedules of all ranks, in order; the arguments are those of `make`."""
    return [make(name, rank, size, collective=collective, **parameters) for rank in range(size)]


def leaf_tree(rank: int, leaves: Sequence[int], *, chunks: int = 1) -> Schedule:
    """Make one rank's schedule of an allreduce of leaves, as `gradred.allreduce(leaves=)` uses it.

    The leaves of all ranks, those of rank 0 first, are added up by one fixed binary tree. A node
    covers 2^k leaves from a multiple of 2^k on, and is the sum of its halves. A rank's input buffer
    has its parts, the largest nodes all of whose leaves it has, one vector after another:
    `input_(first, chunks, vector)`.

    Args:
        rank: the number of the rank.
        leaves: the number of leaves of each rank.
        chunks: 1: each rank gets the parts of all ranks. The number of ranks: each rank gets those
            of its chunk, and passes the sum on.

    Example:
        >>> verify([leaf_tree(rank, [3, 5, 0, 4]) for rank in range(4)]).messages
        15
    """
    if chunks not in (1, len(leaves)) or not 0 <= rank < len(leaves):
        found = f"rank {rank} of {len(leaves)} and {chunks} chunks"
        raise UsageError("leaf_tree", found, f"Pass 1 chunk or {len(leaves)}, and a rank of these")
    made = _core.leaf_tree(rank, leaves, chunks)
    validate(made)
    return made


def from_input(schedule: Schedule) -> Schedule:
    """Convert a schedule for calls whose output is another array than their input.

    Data that is not in `work` yet is read from the input buffer, so no pass over memory copies the
    input first. A reduction then is `target = operand + source`. Messages and sums are the same, so
    the result is the same bit for bit.

    Example:
        >>> from_input(make("recursive_doubling", 0, 2)).rounds[0][2]
        reduce(scratch(0, 0), work(0), operand=input_(0))
    """
    return _core.schedule_from_input(schedule)


def validate(schedule: Schedule) -> None:
    """Check one rank's schedule by itself: after this it never leaves its buffers.

    Raises:
        UsageError: names rank, round, step and reason: a span outside the vector or the scratch
            buffer, a peer that does not exist, two ends of a step that are different chunks or
            overlap, a step that writes to the input buffer, messages of one round that overlap.
    """
    _core.validate_schedule(schedule)


def verify(schedules: Iterable[Schedule]) -> ScheduleReport:
    """Prove that the schedules of all ranks together carry out their collective correctly.

    Runs them on symbolic values, without MPI. It proves that:

    - every send has a receive of the same chunks;
    - nothing deadlocks, even if a send completes only after its receive is posted;
    - messages in flight do not overlap;
    - every result has the inputs of its ranks, each exactly once;
    - in an allreduce, all ranks build the same tree of sums (up to a+b = b+a), and of leaves the
      tree that `leaf_tree` describes.

    Args:
        schedules: one per rank, in order of rank.

    Returns:
        A report with the numbers of rounds, messages and different sums, and a digest of the final
        state. Schedules that build the same sums have the same digest.

    Raises:
        UsageError: names rank, round, step and reason of the first fault.

    Example:
        >>> verify(make_all("ring", 3)).rounds
        4
    """
    given = list(schedules)
    report = _core.verify_schedules(given)
    if not report.ok:
        name = given[0].name if given else ""
        raise UsageError(f"schedule {name!r} is wrong: {report.reason}")
    return report


def traffic(schedule: Schedule, nbytes: int) -> Traffic:
    """Return one rank's traffic for a vector of `nbytes` bytes: messages sent, bytes by kind."""
    return _core.schedule_traffic(schedule, nbytes)


def cost(
    schedules: Schedule | Iterable[Schedule],
    nbytes: int,
    *,
    alpha: float,
    beta: float,
    gamma: float = 0.0,
    gap: float = 0.0,
    delta: float = 0.0,
    alpha_inside: float | None = None,
    beta_inside: float | None = None,
    far: float = 0.0,
    host_of: Sequence[int] = (),
) -> float:
    """Estimate the seconds that an operation takes, by the model from which gradred chooses plans.

    The estimate is a sum over the rounds of the time of the busiest rank. The model assumes that
    all ranks begin a round together and that all chunks are equally long. The messages of a round
    share their rank's port, and the ranks of a host share its link.

    Args:
        schedules: those of all ranks, or of one rank to estimate that rank alone.
        nbytes: the length of the vector.
        alpha: seconds per round with messages.
        beta: seconds per byte sent or received, whichever number is larger.
        gamma: seconds per byte reduced.
        gap: seconds per further message that a rank sends, or receives, in a round.
        delta: seconds per byte copied.
        alpha_inside: alpha of rounds whose messages stay inside hosts; None: as `alpha`.
        beta_inside: beta between ranks of one host; None: as `beta`.
        far: the share by which a byte to a rank that is not a neighbour costs more.
        host_of: the number of each rank's host; empty if all ranks are on one host.

    Example:
        >>> cost(make_all("ring", 4), 4000, alpha=1.0, beta=0.001)
        12.0
        >>> cost(make_all("direct", 4), 4000, alpha=1.0, beta=0.001, gap=0.25)
        9.0
        >>> pairs = make_all("recursive_doubling", 4)  # first inside the hosts, then across
        >>> cost(pairs, 4000, alpha=1.0, beta=0.001, beta_inside=0.0, host_of=[0, 0, 1, 1])
        10.0
    """
    given = [schedules] if isinstance(schedules, Schedule) else list(schedules)
    return _core.schedule_cost(given, host_of).seconds(
        nbytes,
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        gap=gap,
        delta=delta,
        alpha_inside=alpha_inside,
        beta_inside=beta_inside,
        far=far,
    )


def coefficients(
    name: str,
    size: int,
    *,
    collective: str = "allreduce",
    host_of: Sequence[int] = (),
    **parameters: Parameter,
) -> Cost:
    """Return the cost of a built-in algorithm on `size` ranks, for vectors of every length.

    The result is that of `cost` for all ranks. It is computed from two ranks and those of one host,
    so thousands of ranks take milliseconds. The other arguments are those of `make` and `cost`.

    Example:
        >>> coefficients("ring", 1000)
        <Cost: 1998 rounds, 0 further messages; in vectors 1.998 moved, 0.999 reduced, 0 copied>
        >>> coefficients("direct", 64).seconds(1 << 20, alpha=2e-6, beta=1e-10, gap=3e-7) * 1e6
        247.6...
    """
    return _core.algorithm_cost(collective, name, size, parameters, host_of)


def draw(
    schedules: Schedule | Iterable[Schedule],
    format: Literal["text", "svg"] = "text",  # noqa: A002
) -> str:
    """Draw schedules: ranks as rows, rounds as columns, messages labelled with their chunks.

    In text, `→1[3]` sends chunk 3 to rank 1, `←1[3]` receives it, `+[3]` reduces into it and `=[3]`
    copies it. `in:3` is chunk 3 of the input buffer (see `from_input`), from which the step reads.
    Equal schedules give equal pictures.

    Args:
        schedules: those of all ranks or of some; wrong schedules can be drawn too.
        format: "text", or "svg" for a whole SVG document.

    Raises:
        UsageError: there is no schedule, or the format is unknown.

    Example:
        >>> print(draw(make_all("recursive_doubling", 2)))
        recursive_doubling: allreduce, 2 ranks, 1 chunk
                round 0
        rank 0  →1[0] ←1[0] +[0]
        rank 1  →0[0] ←0[0] +[0]
    """
    given = [schedules] if isinstance(schedules, Schedule) else list(schedules)
    if not given:
        raise UsageError("draw", "there is no schedule", "Give the schedules of all ranks")
    if format not in ("text", "svg"):
        raise UsageError(f"format {format!r}", "there is none", "Use 'text' or 'svg'")
    return _text(given) if format == "text" else _svg(given)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _title(first: Schedule) -> str:
    ranks, chunks = _plural(first.size, "rank"), _plural(first.chunks, "chunk")
    return f"{first.name}: {first.collective}, {ranks}, {chunks}"


def _run(step: Step) -> str:
    """Return the chunks of a step: `3`, `3-5` for a run, `in:3` if it reads the input buffer."""
    span = step.target or step.source
    assert span is not None
    reads = [end for end in (step.source, step.operand) if end and end.buffer == "input"]
    last = f"-{span.first + span.chunks - 1}" if span.chunks > 1 else ""
    return f"{'in:' if reads else ''}{span.first}{last}"


def _mark(step: Step) -> str:
    sign = {"send": "→", "recv": "←", "reduce": "+", "copy": "="}[step.kind]
    return f"{sign}{'' if step.peer is None else step.peer}[{_run(step)}]"


def _text(schedules: Sequence[Schedule]) -> str:
    count = max(len(schedule.rounds) for schedule in schedules)
    rows = [["", *(f"round {number}" for number in range(count))]]
    for schedule in schedules:
        cells = [" ".join(map(_mark, steps)) for steps in schedule.rounds]
        rows.append([f"rank {schedule.rank}", *cells, *[""] * (count - len(cells))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join([_title(schedules[0]), *lines])


# The dimensions of an SVG picture in pixels: margins, a row, a character, an arrow's width.
_LEFT, _TOP, _ROW, _CHARACTER, _REACH = 64, 64, 44, 6, 70


class _Columns:
    """The horizontal layout of a round: sends on the left, then arrows, then reduces and copies."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        rounds = [steps for schedule in schedules for steps in schedule.rounds]
        before = max((len(_sends(steps)) for steps in rounds), default=0) * _CHARACTER + 10
        after = max((len(_locals(steps)) for steps in rounds), default=0) * _CHARACTER + 10
        self.tail, self.head = before, before + _REACH
        self.width = self.head + after
        self.count = max(len(schedule.rounds) for schedule in schedules)

    def start(self, number: int) -> int:
        return _LEFT + number * self.width


def _sends(steps: Sequence[Step]) -> str:
    return " ".join(_mark(step) for step in steps if step.kind == "send")


def _locals(steps: Sequence[Step]) -> str:
    return " ".join(_mark(step) for step in steps if step.peer is None)


def _grid(size: int, columns: _Columns) -> list[str]:
    right, bottom = columns.start(columns.count), _TOP + size * _ROW
    shapes = []
    for number in range(columns.count):
        x = columns.start(number)
        middle = x + columns.width // 2
        shapes.append(f'<text x="{middle}" y="42" text-anchor="middle">round {number}</text>')
        shapes.append(f'<path d="M{x} 48V{bottom - 20}" stroke="#ddd"/>')
    for rank in range(size):
        y = _TOP + rank * _ROW
        shapes.append(f'<text x="12" y="{y + 4}">rank {rank}</text>')
        shapes.append(f'<path d="M{_LEFT} {y}H{right}" stroke="#bbb"/>')
    return shapes


def _arrow(x: int, source: int, target: int, what: str, size: int) -> str:
    colour = "#" + "".join(f"{int(255 * c):02x}" for c in hls_to_rgb(source / size, 0.38, 0.65))
    y0, y1 = _TOP + source * _ROW, _TOP + target * _ROW
    return (
        f'<line x1="{x}" y1="{y0}" x2="{x + _REACH}" y2="{y1}" stroke="{colour}" '
        f'marker-end="url(#head)"><title>rank {source} to {target}: {what}</title></line>'
    )


def _cell(rank: int, steps: Sequence[Step], x: int, columns: _Columns) -> list[str]:
    """Write one rank's steps of one round on its line, on both sides of the arrows."""
    y = _TOP + rank * _ROW - 4
    sides = [(x + 4, _sends(steps)), (x + columns.head + 4, _locals(steps))]
    return [f'<text x="{left}" y="{y}" class="steps">{text}</text>' for left, text in sides if text]


def _svg(schedules: Sequence[Schedule]) -> str:
    size, columns = schedules[0].size, _Columns(schedules)
    title, drawn = html.escape(_title(schedules[0])), {schedule.rank for schedule in schedules}
    width = max(columns.start(columns.count) + 16, 24 + 9 * len(title))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_TOP + size * _ROW}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{title}</title>",
        "<style>.title{font-size:14px;font-weight:bold} .steps{font-size:10px}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#333"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" class="title">{title}</text>',
        *_grid(size, columns),
    ]
    for schedule in schedules:
        for number, steps in enumerate(schedule.rounds):
            x = columns.start(number)
            lines += _cell(schedule.rank, steps, x, columns)
            for step in steps:
                if step.peer is None:
                    continue
                if step.kind == "send":
                    ends = schedule.rank, step.peer
                elif step.peer not in drawn:
                    ends = step.peer, schedule.rank
                else:
                    continue  # the sender's own row draws it
                lines.append(_arrow(x + columns.tail, *ends, _run(step), size))
    return "\n".join([*lines, "</svg>", ""])
