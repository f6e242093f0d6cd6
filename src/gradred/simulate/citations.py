"""The source of each figure of the clusters that can be simulated by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from gradred.simulate.presets import NETWORKS, UNLIMITED, Network

ROUND = "a round figure"
_SHARED_MEMORY = "a round figure: a message through shared memory, one core copies"
_CORE = "a round figure: one core adds 10 GB/s and copies 20 GB/s"
_PCIE = "PCIe 3.0 x16: 15.75 GB/s less a round share for packets"
_NVLINK_MEMORY = "3 passes over memory of 900 GB/s (data sheet), 2 for a copy"

_V100 = {
    "inside latency": ROUND,
    "across latency": ROUND,
    "port": "one EDR adapter of 100 Gb/s (DLPerf 1.0); 64/66 of the line rate is data",
    "overhead": ROUND,
    "reduce": _NVLINK_MEMORY,
    "copy": _NVLINK_MEMORY,
    "rank_port": "NVLink 2: 6 links of 25 GB/s (NVIDIA's data sheet) less a round share",
}

_400_GBIT = "one ConnectX-7 of 400 Gb/s for each GPU; 64/66 and packets leave 48 GB/s of 50"


def _with_400_gbit(memory: str, rank_port: str) -> dict[str, str]:
    """The figures of hosts whose GPUs have an adapter each, by the words for two of them."""
    passes = f"3 passes over memory of {memory}, 2 for a copy"
    return {
        **dict.fromkeys(("inside latency", "across latency", "overhead"), ROUND),
        **dict.fromkeys(("port", "ports"), _400_GBIT),
        **dict.fromkeys(("reduce", "copy"), passes),
        "rank_port": f"{rank_port} less a round share",
    }


_NVLINK5 = "NVLink 5: 900 GB/s in each direction (NVIDIA's data sheet)"
_XGMI = "7 links of 64 GB/s in each direction (AMD's data sheet)"

CITED: dict[str, dict[str, str]] = {
    "10GbE": {
        "inside latency": _SHARED_MEMORY,
        "inside speed": _SHARED_MEMORY,
        "across latency": "37 us of a ring's round of 8 workers (Shi et al., MG-WFBP, INFOCOM "
        "2019), less two overheads",
        "port": "IEEE 802.3ae; 1448 of 1538 bytes of a frame are payload",
        "overhead": "a round figure: a call of the kernel's TCP",
        "reduce": _CORE,
        "copy": _CORE,
        "host_bus": ROUND,
    },
    "25GbE-RoCE": {
        "inside latency": _SHARED_MEMORY,
        "inside speed": _SHARED_MEMORY,
        "across latency": ROUND,
        "port": "IEEE 802.3by; 4096 of 4178 bytes of a frame are payload",
        "overhead": ROUND,
        "reduce": _CORE,
        "copy": _CORE,
        "rendezvous": ROUND,
        "host_bus": ROUND,
    },
    "P40-56Gb-IB": {
        "inside latency": ROUND,
        "across latency": ROUND,
        "port": "56 Gb/s InfiniBand (arXiv 1711.05979); 64/66 of the line rate is data",
        "overhead": ROUND,
        "reduce": "3 passes over memory of 346 GB/s (NVIDIA's data sheet of the P40), 2 for a copy",
        "copy": "3 passes over memory of 346 GB/s (NVIDIA's data sheet of the P40), 2 for a copy",
        "rank_port": _PCIE,
        "host_bus": "two processors, each with the PCIe 3.0 of its two GPUs: a round figure",
    },
    "V100-100Gb": _V100,
    "V100-1000": _V100,
    "Sunway": {
        "inside latency": _SHARED_MEMORY,
        "inside speed": _SHARED_MEMORY,
        "across latency": "1 us (Dongarra, Report on the Sunway TaihuLight system, 2016), less two "
        "overheads",
        "beyond latency": "a round figure: twice as far",
        "port": "links of 14 GB/s (Li et al., swCaffe, CLUSTER 2018, arXiv 1903.06934)",
        "overhead": ROUND,
        "switch_uplink": "a quarter of the speed between supernodes of 256 hosts (swCaffe)",
        "reduce": "twice 3 passes over memory of 136 GB/s (Dongarra, 2016): a round figure",
        "copy": _CORE,
    },
    "Leonardo": {
        "inside latency": _SHARED_MEMORY,
        "inside speed": _SHARED_MEMORY,
        "across latency": "by hand from PICO's ring on 128 to 512 hosts (HLC-Lab/pico)",
        "port": "by hand from PICO's ring on 128 to 512 hosts; the hosts have 400 Gb/s in all "
        "(CINECA's description)",
        "overhead": ROUND,
        "reduce": _CORE,
        "copy": _CORE,
        "rendezvous": ROUND,
    },
    "MareNostrum5-H100": {
        "inside latency": ROUND,
        "across latency": ROUND,
        "port": "NDR200 for each GPU (BSC's description); 64/66 and packets leave 24 GB/s of 25",
        "ports": "one for each GPU (BSC's description)",
        "overhead": ROUND,
        "reduce": "3 passes over memory of 3.35 TB/s (NVIDIA's data sheet), 2 for a copy",
        "copy": "3 passes over memory of 3.35 TB/s (NVIDIA's data sheet), 2 for a copy",
        "rank_port": "NVLink 4: 18 links of 25 GB/s (data sheet) less a round share",
    },
    "H200-400Gb": _with_400_gbit(
        "4.8 TB/s (NVIDIA's data sheet)", "NVLink 4: 18 links of 25 GB/s (data sheet)"
    ),
    "B200-400Gb": _with_400_gbit("8 TB/s (NVIDIA's data sheet)", _NVLINK5),
    "GB200-NVL72": _with_400_gbit("8 TB/s (NVIDIA's data sheet)", _NVLINK5),
    "MI300X-400Gb": {
        **_with_400_gbit("5.3 TB/s (AMD's data sheet)", _XGMI),
        "inside speed": f"one of {_XGMI} less a round share",
    },
    "Fugaku": {
        "inside latency": _SHARED_MEMORY,
        "inside speed": _SHARED_MEMORY,
        "across latency": "0.49 us for a put (Ajima et al., The Tofu interconnect D, CLUSTER 2018)",
        "across speed": "6.8 GB/s for each link (Ajima et al.)",
        "port": "6.8 GB/s for each link (Ajima et al.)",
        "ports": "6 network interfaces (Ajima et al.)",
        "overhead": ROUND,
        "reduce": "a round figure: above 3 passes over memory of 1024 GB/s",
        "copy": _CORE,
        "hop": ROUND,
    },
}
"""By cluster and figure."""

_TIMES = ("latency", "overhead", "hop")
_PER_BYTE = ("reduce", "copy")
_BYTES = ("rendezvous",)
_COUNTS = ("ports",)


def given(network: Network) -> Iterator[tuple[str, float]]:
    """The name and value of each figure that is not without limit, or without effect."""
    for what, path in (("inside", network.inside), ("across", network.across)):
        yield f"{what} latency", path[0]
        if path[1] != UNLIMITED:
            yield f"{what} speed", path[1]
    if network.beyond is not None:
        yield "beyond latency", network.beyond[0]
    for field in dataclasses.fields(Network):
        value = getattr(network, field.name)
        without = (UNLIMITED, 0.0, 1) if field.name == "ports" else (UNLIMITED, 0.0)
        if field.name in _FIGURES and value not in without:
            yield field.name, value


_FIGURES = (
    *("port", "ports", "overhead", "reduce", "copy", "rendezvous"),
    *("rank_port", "host_bus", "switch_uplink", "hop"),
)


def _text(name: str, value: float) -> str:
    if name in _COUNTS:
        return f"{value:g}"
    if name in _BYTES:
        return f"{value:g} B"
    if name in _PER_BYTE:
        return f"{1e9 * value:.3g} ns/B"
    if name.endswith(_TIMES):
        return f"{1e6 * value:.3g} us"
    return f"{value / 1e9:.4g} GB/s"


def table(name: str) -> str:
    """The figures of a cluster that limit or cost anything as text, with their sources."""
    network = NETWORKS[name]
    lines = [f"{name}: {network.about}", f"  error of simulated times: {network.error}"]
    for what, value in given(network):
        lines.append(f"  {what:<16}{_text(what, value):>14}  {CITED[name][what]}")
    return "\n".join(lines)
