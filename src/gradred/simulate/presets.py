"""The table of clusters that can be simulated by name, with the source of each.

Speeds are in bytes per second and times in seconds. Where a source gives the hardware alone, the
latencies and overheads of software are round figures; the source says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from gradred.errors import UsageError

UNLIMITED = math.inf

Path = tuple[float, float]
"""Latency of a message and its speed at most."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """Hosts of one kind and the network between them; `csrc/simulate/cluster.h` has the terms."""

    about: str
    source: str
    hosts: int
    """How many there are if nothing else is asked for."""
    local: int = 1
    """Ranks of a host, likewise."""
    memory: Literal["host", "gpu"] = "host"
    inside: Path = (0.4e-6, 8e9)
    """Between ranks of a host; by default through shared memory, where one core copies."""
    across: Path
    """Between hosts."""
    port: float
    """What one network port carries in each direction."""
    ports: int = 1
    lanes: int = 1
    overhead: float = 0.3e-6
    """What the sender and the receiver each spend on a message."""
    reduce: float = 1e-10
    copy: float = 0.5e-10
    rendezvous: float = UNLIMITED
    rank_port: float = UNLIMITED
    host_bus: float = UNLIMITED
    hosts_per_switch: int = 0
    switch_uplink: float = UNLIMITED
    beyond: Path | None = None
    """Between hosts of different switches; None: as `across`."""
    torus: int = 0
    """Dimensions of the torus that connects the hosts; 0: switches do."""
    hop: float = 0.0
    link: Literal["", "nvlink", "pci"] = ""
    """What connects the GPUs of a host."""
    device: str = "V100"
    """What trains, unless something else is asked for: a row of `work.DEVICES`."""
    error: str = (
        "not known, since nothing was measured on such a cluster; on the five where something was, "
        "times are off by medians of 17 to 80 %"
    )
    """How far simulated times are from measured ones."""

    def cluster(self, host_of: Sequence[int], noise: float = 0.0) -> dict[str, object]:
        """The cluster as the simulator takes it, for ranks on these hosts."""
        beyond = self.across if self.beyond is None else self.beyond
        return {
            "host_of": list(host_of),
            "paths": [self.inside, self.inside, self.across, beyond, beyond],
            "port": self.port,
            "ports": self.ports,
            "lanes": self.lanes,
            "send_overhead": self.overhead,
            "receive_overhead": self.overhead,
            "reduce": self.reduce,
            "copy": self.copy,
            "rendezvous": self.rendezvous,
            "rank_port": self.rank_port,
            "host_bus": self.host_bus,
            "hosts_per_switch": self.hosts_per_switch,
            "switch_uplink": self.switch_uplink,
            "torus": torus_of(1 + max(host_of), self.torus),
            "hop": self.hop,
            "noise": noise,
        }


def torus_of(hosts: int, dimensions: int) -> list[int]:
    """Lengths of a torus for so many hosts, as equal as they can be; none of no dimensions.

    Example:
        >>> torus_of(512, 3), torus_of(96, 3), torus_of(7, 2)
        ([8, 8, 8], [6, 4, 4], [7, 1])
    """
    if dimensions == 0:
        return []
    best = max(d for d in range(1, round(hosts ** (1 / dimensions)) + 1) if hosts % d == 0)
    if dimensions == 1:
        return [hosts]
    return sorted([best, *torus_of(hosts // best, dimensions - 1)], reverse=True)


_ASSUMED = "latency and overhead are round figures"

_V100 = Network(
    about="hosts with 8 V100 on NVLink and one 100 Gb/s adapter",
    source="the cluster of Oneflow-Inc/DLPerf 1.0 (4 hosts, V100-SXM2-16GB, one EDR adapter "
    f"each); NVLink 2: 6 links of 25 GB/s for each GPU; {_ASSUMED}",
    hosts=4,
    local=8,
    memory="gpu",
    inside=(3e-6, UNLIMITED),
    across=(5e-6, UNLIMITED),
    port=12.1e9,
    overhead=1e-6,
    reduce=3.3e-12,
    copy=2.2e-12,
    rank_port=130e9,
    link="nvlink",
)

_H200 = Network(
    about="hosts with 8 H200 on NVLink and a 400 Gb/s adapter for each",
    source="NVIDIA's user guide of DGX H200 (adapters) and data sheet (NVLink 4, memory); shares "
    f"of their speeds as for MareNostrum5-H100; {_ASSUMED}",
    hosts=16,
    local=8,
    device="H200",
    memory="gpu",
    inside=(2e-6, UNLIMITED),
    across=(4e-6, UNLIMITED),
    port=48e9,
    ports=8,
    overhead=1e-6,
    reduce=3 / 4.8e12,
    copy=2 / 4.8e12,
    rank_port=360e9,
    link="nvlink",
)
_B200 = dataclasses.replace(
    _H200,
    about="hosts with 8 B200 on NVLink and a 400 Gb/s adapter for each",
    source="NVIDIA's user guide of DGX B200 (adapters) and data sheet (NVLink 5, memory); shares "
    f"of their speeds as for H200-400Gb; {_ASSUMED}",
    device="B200",
    reduce=3 / 8e12,
    copy=2 / 8e12,
    rank_port=720e9,
)

NETWORKS: dict[str, Network] = {
    "10GbE": Network(
        about="hosts with 10 Gb/s Ethernet and kernel TCP",
        source="IEEE 802.3ae, 1448 of 1538 bytes of a frame are payload; alpha from the 37 us of a "
        "ring's round of 8 workers in Shi et al., MG-WFBP, INFOCOM 2019",
        hosts=8,
        across=(27e-6, UNLIMITED),
        port=1.177e9,
        overhead=5e-6,
        host_bus=2e10,
        error="median 62 %, 95th percentile 125 % against 10 points of the lines that MG-WFBP "
        "published for 8 and 16 workers (they move bytes faster than 10 Gb/s allows)",
    ),
    "25GbE-RoCE": Network(
        about="hosts with 25 Gb/s Ethernet and RDMA (RoCE)",
        source=f"IEEE 802.3by, 4096 of 4178 bytes of a frame are payload; {_ASSUMED}",
        hosts=8,
        across=(1.5e-6, UNLIMITED),
        port=3.06e9,
        host_bus=2e10,
        rendezvous=16 << 10,
    ),
    "P40-56Gb-IB": Network(
        about="hosts with 4 Tesla P40 on PCIe 3.0 and 56 Gb/s InfiniBand",
        source="Shi, Wang and Chu, Performance modeling and evaluation of distributed deep "
        "learning frameworks on GPUs, 2018 (arXiv 1711.05979); 64/66 of the line rate is data; "
        f"{_ASSUMED}",
        hosts=4,
        local=4,
        device="P40",
        memory="gpu",
        inside=(5e-6, UNLIMITED),
        across=(6e-6, UNLIMITED),
        port=6.8e9,
        overhead=1e-6,
        reduce=8.7e-12,
        copy=5.8e-12,
        rank_port=12e9,
        host_bus=24e9,
        error="median 17 %, 95th percentile 133 % (of 2 GPUs and 4 KiB) against 20 points of the "
        "lines that MG-WFBP published for 2 to 16 GPUs",
        link="pci",
    ),
    "V100-100Gb": _V100,
    "V100-1000": dataclasses.replace(
        _V100,
        about="hosts with 8 V100 on NVLink, connected as V100-100Gb, in all 1,000 GPUs",
        source=f"hosts of V100-100Gb in the number of published runs on 1,000 GPUs; {_ASSUMED}",
        hosts=125,
    ),
    "Sunway": Network(
        about="Sunway TaihuLight: supernodes of 256 hosts, between which a quarter of the speed",
        source="Li et al., swCaffe, CLUSTER 2018 (arXiv 1903.06934): links of 14 GB/s; Dongarra, "
        "Report on the Sunway TaihuLight system, 2016: latency of 1 us",
        hosts=256,
        device="SW26010",
        across=(0.6e-6, UNLIMITED),
        beyond=(1.2e-6, UNLIMITED),
        port=14e9,
        overhead=0.2e-6,
        hosts_per_switch=256,
        switch_uplink=256 * 14e9 / 4,
        reduce=0.4e-10,
    ),
    "Leonardo": Network(
        about="Leonardo Booster: InfiniBand HDR, Dragonfly+, one rank on a host",
        source="De Sensi et al., PICO (HLC-Lab/pico): latency and speed by hand from its ring on "
        "128 to 512 hosts; groups are not distinguished",
        hosts=512,
        device="A100",
        across=(0.9e-6, UNLIMITED),
        port=9.5e9,
        overhead=0.25e-6,
        reduce=1e-10,
        rendezvous=8 << 10,
        error="median 36 %, 95th percentile 73 % against 78 medians that PICO published for ring, "
        "recursive_doubling and rabenseifner on 128 to 512 hosts (a step's latency differs from "
        "1.4 to 3.9 us between its sessions)",
    ),
    "MareNostrum5-H100": Network(
        about="MareNostrum 5 ACC: hosts with 4 H100 on NVLink and 4 ports of 200 Gb/s InfiniBand",
        source="BSC's description of the machine (NDR200 for each GPU, NVLink 4: 18 links of 25 "
        f"GB/s); {_ASSUMED}",
        hosts=16,
        local=4,
        device="H100",
        memory="gpu",
        inside=(2e-6, UNLIMITED),
        across=(4e-6, UNLIMITED),
        port=24e9,
        ports=4,
        overhead=1e-6,
        reduce=0.9e-12,
        copy=0.6e-12,
        rank_port=360e9,
        link="nvlink",
        error="median 20 %, 95th percentile 44 % against 36 medians that PICO published for NCCL's "
        "ring and tree on 16 and 64 GPUs; not known for other plans",
    ),
    "H200-400Gb": _H200,
    "B200-400Gb": _B200,
    "GB200-NVL72": dataclasses.replace(
        _B200,
        about="racks of 72 GB200 on NVLink, each a host here, and a 400 Gb/s adapter for each",
        source="NVIDIA's description of GB200 NVL72: one NVLink domain of 72 GPUs, otherwise as "
        f"B200-400Gb; {_ASSUMED}",
        hosts=8,
        local=72,
        ports=72,
    ),
    "MI300X-400Gb": dataclasses.replace(
        _H200,
        about="hosts with 8 MI300X, a link between any two, and a 400 Gb/s adapter for each",
        source="AMD's data sheet of the MI300X platform (links, memory); shares of their speeds as "
        f"for H200-400Gb; RCCL's latencies are not known; {_ASSUMED}",
        device="MI300X",
        inside=(3e-6, 51e9),
        reduce=3 / 5.3e12,
        copy=2 / 5.3e12,
        rank_port=7 * 51e9,
        link="",
    ),
    "Fugaku": Network(
        about="Fugaku: TofuD, a torus with 6 network interfaces of 6.8 GB/s for each host",
        source="Ajima et al., The Tofu interconnect D, CLUSTER 2018: 0.49 us for a put, 6.8 GB/s "
        "for each link; the torus as one of three dimensions; overhead is a round figure",
        hosts=512,
        device="A64FX",
        across=(0.49e-6, 6.8e9),
        port=6.8e9,
        ports=6,
        overhead=0.25e-6,
        reduce=0.4e-10,
        torus=3,
        hop=0.1e-6,
        error="median 80 % against 71 medians that PICO published for uTofu, whose algorithms send "
        "through six ports at once",
    ),
}


def find(name: str) -> Network:
    """The network of this name, or of the only name that ends so, whatever its case.

    Raises:
        UsageError: there is none; the message lists those that there are.

    Example:
        >>> find("56Gb-IB") is NETWORKS["P40-56Gb-IB"]
        True
    """
    for known, network in NETWORKS.items():
        if known.lower() == name.lower():
            return network
    ending = [known for known in NETWORKS if known.lower().endswith(f"-{name.lower()}")]
    if len(ending) == 1:
        return NETWORKS[ending[0]]
    found = f"there is no such network. There are: {', '.join(NETWORKS)}"
    raise UsageError(f"--net {name}", found, "Name one of these")
