"""The rates of links, from the words in which tables name them.

    NVLink within a node; 8x 400 Gb InfiniBand per node      3,200 Gb/s leave a node
    NVLink 1800 GB/s; 4x HDR                                 4 adapters of 200 Gb/s; bytes inside
    200 Gbits/s Slingshot-11                                 a number goes before a name

Words about a node's inside (NVLink, NVSwitch, PCIe, "within a node", NVL72) are apart from those
about its network. Without a number the generation of a network has one.
"""

from __future__ import annotations

import re

_INSIDE = re.compile(r"nvlink|nvswitch|nvl\d+|pcie|xgmi|infinity fabric|within a node|inside", re.I)
_TIMES = r"(?:(?P<times>\d+|dual|quad)(?:\s*x\s*|\s+))?"  # adapters
_NUMBER = r"(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)\s*(?P<scale>[MGT])"
# Bits are a rate without "/s"; bytes without it are a memory.
_UNIT = (
    r"(?P<unit>b(?:it)?s?(?:/s|ps)?|bE|B(?:ytes?)?(?:/s|ps)|"
    r"(?=\s*(?:RoCE|EFA|Ethernet|InfiniBand)\b))(?![A-Za-z/])"
)
_AMOUNT = re.compile(rf"(?<![\w.,]){_TIMES}{_NUMBER}{_UNIT}")
# Gb/s of one port: InfiniBand's generations with four lanes (IBTA's roadmap), HPE's Slingshot.
_GENERATIONS = {
    **{"qdr": 40, "fdr": 56, "edr": 100, "hdr100": 100, "hdr": 200, "hdr200": 200},
    **{"ndr200": 200, "ndr": 400, "ndr400": 400, "xdr": 800},
    **{"slingshot-10": 100, "slingshot-11": 200},
}
_NAMES = "|".join(sorted(_GENERATIONS, key=len, reverse=True)).replace("-", "[- ]?")
_NAMED = re.compile(
    rf"(?<![a-z0-9]){_TIMES}(?P<name>{_NAMES})(?![a-z0-9])(?:\s*(?P<after>\d+)\s*x)?", re.IGNORECASE
)
_WORDS = {"dual": 2, "quad": 4}
_SCALES = {"m": 1e6, "g": 1e9, "t": 1e12}


def _parts(words: str, *, inside: bool) -> list[str]:
    parts = [part for part in re.split(r";|,(?!\d)", words) if part.strip()]
    return [part for part in parts if bool(_INSIDE.search(part)) == inside]


def _amount(part: str) -> float | None:
    """The bits per second that a part names by a number; several adapters count together."""
    if not (found := _AMOUNT.search(part)):
        return None
    bits = 8 if found["unit"].startswith("B") else 1
    number = float(found["number"].replace(",", ""))
    return _times(found["times"]) * number * _SCALES[found["scale"].lower()] * bits


def _times(word: str | None) -> int:
    return _WORDS.get((word or "1").lower()) or int(word or 1)


def between_nodes(words: str) -> float | None:
    """The bits per second that leave a node; None if the words name no rate."""
    for part in _parts(words, inside=False):
        if rate := _amount(part):
            return rate
        if found := _NAMED.search(part):
            name = found["name"].lower().replace(" ", "-")
            name = name if name in _GENERATIONS else name.replace("slingshot", "slingshot-")
            return _times(found["times"] or found["after"]) * _GENERATIONS[name] * 1e9
    return None


def inside_node(words: str) -> float | None:
    """The bytes per second of a GPU's links that the words name as a number; None if none."""
    rates = [_amount(part) for part in _parts(words, inside=True)]
    return next((rate / 8 for rate in rates if rate), None)
