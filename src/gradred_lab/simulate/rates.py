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
_AMOUNT = re.compile(
    r"(?:(?P<times>\d+)\s*x\s*)?(?P<number>\d+(?:\.\d+)?)\s*(?P<scale>[MGTmgt])"
    r"(?P<unit>bits?|bE|bps|b|B|bytes?|ig[EB]?|(?=\s*(?:RoCE|EFA|Ethernet|InfiniBand)\b))"
    r"(?:/s|ps)?(?![A-Za-z])"
)
# Gb/s of one port: InfiniBand's generations with four lanes (IBTA's roadmap), HPE's Slingshot.
_GENERATIONS = {
    **{"qdr": 40, "fdr": 56, "edr": 100, "hdr100": 100, "hdr": 200, "hdr200": 200},
    **{"ndr200": 200, "ndr": 400, "ndr400": 400, "xdr": 800},
    **{"slingshot-10": 100, "slingshot-11": 200},
}
_NAMES = "|".join(sorted(_GENERATIONS, key=len, reverse=True))
_NAMED = re.compile(rf"(?:(?P<times>\d+)\s*x\s*)?\b(?P<name>{_NAMES})\b", re.IGNORECASE)
_SCALES = {"m": 1e6, "g": 1e9, "t": 1e12}


def _parts(words: str, *, inside: bool) -> list[str]:
    parts = [part for part in re.split(r"[;,]", words) if part.strip()]
    return [part for part in parts if bool(_INSIDE.search(part)) == inside]


def _amount(part: str) -> float | None:
    """The bits per second that a part names by a number; several adapters count together."""
    if not (found := _AMOUNT.search(part)):
        return None
    unit = found["unit"]
    bits = 8 if unit.startswith("B") or unit.startswith("byte") else 1
    return (
        int(found["times"] or 1) * float(found["number"]) * _SCALES[found["scale"].lower()] * bits
    )


def between_nodes(words: str) -> float | None:
    """The bits per second that leave a node; None if the words name no rate."""
    for part in _parts(words, inside=False):
        if rate := _amount(part):
            return rate
        if found := _NAMED.search(part):
            return int(found["times"] or 1) * _GENERATIONS[found["name"].lower()] * 1e9
    return None


def inside_node(words: str) -> float | None:
    """The bytes per second of a GPU's links that the words name as a number; None if none."""
    rates = [_amount(part) for part in _parts(words, inside=True)]
    return next((rate / 8 for rate in rates if rate), None)
