"""The numbers of the models that no measurement gives: guesses, which a report shows."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping

from gradred_lab.simulate import costs, links, patterns, training


def of_allreduce() -> dict[str, float]:
    """Return those of predicted allreduces; names without a unit are deviations of logarithms."""
    return {
        **dataclasses.asdict(costs.Prior()),
        "share_of_a_lone_run": costs.OF_THE_RUN,
        "share_of_a_session": costs.OF_THE_SESSION,
        "days_of_a_session": costs.WEEK,
        "network_of_a_further_rank": patterns.SHARE,
        "memory_of_a_further_rank": patterns.SHARE_INSIDE,
        "bytes_of_a_piece": patterns.PIECE,
        "power_of_distance": patterns.CROWD,
        "power_of_short_distance": patterns.CROWD_SHORT,
    }


def of_training() -> dict[str, float]:
    """Return those of predicted throughputs."""
    return {
        "jitter_of_a_doubling": training.JITTER,
        "noise": training.NOISE,
        "own_cost": training.OWN[True],
        "own_cost_by_name": training.OWN[False],
        "overlap_not_measured": training.OVERLAP,
        **{f"weight_of_{name}": weight for name, weight in training.TERMS.items()},
        **{f"share_of_{one or other or 'any'}": share for one, other, share in links.SHARES},
        **{f"bytes_per_s_in_{name or 'other'}": speed for name, speed in links.INSIDE},
        "share_inside": links.SHARE_INSIDE,
        "seconds_inside": links.LATENCY_INSIDE,
        "seconds_between_by_tcp": links.LATENCY[True],
        "seconds_between": links.LATENCY[False],
        "power_mean_of_links": links.SERIAL,
        "power_of_ranks": links.GROWTH,
        "power_of_servers": links.SERVER_GROWTH,
    }


def text(assumed: Mapping[str, float]) -> list[str]:
    """Return the lines of a page that name them."""
    words = ", ".join(f"{name} {value:.3g}" for name, value in assumed.items())
    about = "Guesses of the model, chosen with published measurements in view, derived from none: "
    return textwrap.wrap(about + words + ".", 100, subsequent_indent="  ")
