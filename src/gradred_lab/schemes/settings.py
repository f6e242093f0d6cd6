"""What `gradred schemes` runs: its cases, and the settings that are the same for all of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradred.errors import UsageError
from gradred.schemes.table import SCHEMES, Options
from gradred_lab import packages
from gradred_lab.schemes import workload


@dataclass(frozen=True)
class Settings:
    """Everything but the cases; `check` raises an error if it is impossible."""

    data: str = "digits"
    model: Literal["numpy", "torch"] = "numpy"
    hidden: tuple[int, ...] = (128,)
    iterations: int = 500
    batch: int = 32
    rate: float = 0.1
    momentum: float = 0.0
    seed: int = 1
    loss: float = 0.2
    stragglers: dict[int, float] = field(default_factory=dict)
    """Seconds that a worker sleeps in each iteration."""
    jitter: float = 0.0
    """The mean of further seconds that each worker sleeps, exponentially distributed."""
    json: str | None = None
    plot: str | None = None

    def check(self, workers: int) -> None:
        """Raise UsageError for what cannot be run by so many workers."""
        late = [worker for worker in self.stragglers if worker >= workers]
        if late:
            found = f"there are {workers} workers, counted from 0"
            raise UsageError(f"--straggler {late[0]}", found, "Name one of them")
        if self.model == "torch":
            packages.require("torch", "--model torch", "PyTorch is not installed")
        rows = workload.load(self.data).training
        if rows < self.batch * workers:
            found = f"{workers} workers need {workers * self.batch} rows, and there are {rows}"
            raise UsageError(f"--batch {self.batch}", found, "Give a smaller batch")


def cases(
    schemes: Sequence[str],
    transports: Sequence[str],
    compressions: Sequence[str],
    servers: Sequence[int],
    **others: Any,
) -> tuple[list[Options], list[str]]:
    """All combinations that are possible, and why others are not.

    Each scheme takes those of the other options that it has.

    Raises:
        UsageError: there is none, or no scheme has one of the options.
    """
    found: list[Options] = []
    refused: list[str] = []
    for scheme in schemes:
        own = {
            name: value for name, value in others.items() if not _is_foreign(schemes, scheme, name)
        }
        numbers = servers if scheme in SCHEMES and SCHEMES[scheme].servers else [1]
        for words in itertools.product(transports, compressions, numbers):
            transport, compression, number = words
            one = Options(
                scheme=scheme, transport=transport, compression=compression, servers=number,
                **own,
            )  # fmt: skip
            try:
                one.check()
            except UsageError as error:
                refused.append(f"{scheme}, {transport}, {compression}: {error}")
            else:
                found.append(one)
    if not found:
        raise UsageError(refused[0])
    return found, refused


def _is_foreign(schemes: Sequence[str], scheme: str, name: str) -> bool:
    """Return whether an option is of other schemes among these, and not of this one."""
    having = [one for one in schemes if one in SCHEMES and name in SCHEMES[one].own]
    return bool(having) and scheme not in having


def to_text(settings: Settings, chosen: Sequence[Options]) -> str:
    """All as text, to pass it to a rank."""
    parts = [dataclasses.asdict(settings), [dataclasses.asdict(one) for one in chosen]]
    return json.dumps(parts)


def from_text(text: str) -> tuple[Settings, list[Options]]:
    """Read the text of `to_text`."""
    values, chosen = json.loads(text)
    values["hidden"] = tuple(values["hidden"])
    values["stragglers"] = {int(worker): late for worker, late in values["stragglers"].items()}
    return Settings(**values), [Options(**one) for one in chosen]
