"""Write docs/reproductions.md from its record; `--run` computes the record anew, in minutes.

    python tools/gen_reproductions.py            # the page from the newest record
    python tools/gen_reproductions.py --run      # the record of today, and the page
    python tools/gen_reproductions.py --check    # only compare

tools/reproduced.py has the table of claims.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import reproduced
from reproduced import Claim

import gradred
from gradred._util import cpu

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reproductions.md"
RESULTS = ROOT / "benchmarks" / "results"
SCHEMA = "gradred-reproductions/1"

_INTRODUCTION = """# Headlines of published studies, reproduced

Each headline with what our simulator and our schemes get, and the assumption that it needs. All
figures in the tables are simulated, not measured. Nothing was fitted to a headline, but for the
cost of a message by TCP (8 V100 on 10 GbE).
[Networks](simulate-schedules.md) and [iterations](simulate-iterations.md) are those of
`gradred simulate`. `python tools/gen_reproductions.py --run` computes this page again
([record]({record})).

The numbers of errors lead to the [list below](#errors). A ratio of two simulated times can be
better than each of them, since both have the same network; nothing here says by how much.

| headline | holds in our model |
|---|---|
"""
_ERRORS = """
## Errors

Of allreduces: the network's times against published ones. Of iterations: predictions from one GPU
alone against {rows} published rows, each left out of what predicts it ([record]({errors})).

"""


def compute(claims: Iterable[Claim]) -> dict[str, Any]:
    """The record: each claim with its figures."""
    found = []
    for claim in claims:
        finding = claim.find()
        found.append(
            {
                "name": claim.name,
                "headline": claim.headline,
                "source": claim.source,
                "holds": finding.holds,
                "assumption": finding.assumption,
                "why": finding.why,
                "figures": [
                    {
                        "setting": one.setting,
                        "column": one.column,
                        "published": one.published,
                        "simulated": one.ours if math.isfinite(one.ours) else None,
                        "unit": one.unit.strip(),
                        "text": one.text,
                        "error": one.error,
                    }
                    for one in finding.figures
                ],
            }
        )
    return {
        "schema": SCHEMA,
        "simulated": True,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {"gradred": gradred.__version__, "python": platform.python_version()},
        "machine": {"cpu": cpu.model()},
        "claims": found,
    }


def newest(pattern: str) -> Path:
    """The newest record of this kind, by the date in its name."""
    return max(RESULTS.glob(pattern))


def page(path: Path) -> str:
    """The page of a record."""
    record = json.loads(path.read_text(encoding="utf-8"))
    held = newest("simulated-iterations-*.json")
    rows = json.loads(held.read_text(encoding="utf-8"))["all"]["rows"]
    claims, folder = record["claims"], "../benchmarks/results"
    errors = list(dict.fromkeys(one["error"] for claim in claims for one in claim["figures"]))
    begin = _INTRODUCTION.format(record=f"{folder}/{path.name}")
    begin += "\n".join(f"| {one['headline']} | {one['holds']} |" for one in claims) + "\n"
    end = _ERRORS.format(rows=rows, errors=f"{folder}/{held.name}")
    end += "\n".join(f"{number}. {error}" for number, error in enumerate(errors, 1)) + "\n"
    return begin + "".join(_section(one, errors) for one in claims) + end


def _section(claim: dict[str, Any], errors: list[str]) -> str:
    figures = claim["figures"]
    columns = list(dict.fromkeys(one["column"] for one in figures))
    numbers = sorted({errors.index(one["error"]) + 1 for one in figures})
    lines = [
        "",
        f"## {claim['headline']}",
        "",
        f"From {claim['source']}. **It needs:** {claim['assumption']}.",
        "",
        f"| simulated | {' | '.join(columns)} |",
        f"|---|{'---:|' * len(columns)}",
    ]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for one in figures:
        rows.setdefault((one["setting"], one["published"]), {})[one["column"]] = one["text"]
    for (setting, published), cells in rows.items():
        label = f"{setting} (published: {published})" if published else setting
        lines.append(f"| {label} | {' | '.join(cells.get(name, '') for name in columns)} |")
    word = "Error" if len(numbers) == 1 else "Errors"
    lines += ["", claim["why"], "", f"{word}: {', '.join(map(str, numbers))}.", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="compute the record anew")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args()
    if options.run:
        record = compute(reproduced.CLAIMS)
        for old in RESULTS.glob("reproductions-*.json"):
            old.unlink()
        path = RESULTS / f"reproductions-{record['date'][:10]}.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    wanted = page(newest("reproductions-*.json"))
    if options.check:
        if PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PAGE.name} differs from its record: run tools/gen_reproductions.py")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
