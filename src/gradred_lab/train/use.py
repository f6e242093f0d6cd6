"""Use of processor, memory, disk, network and GPUs over the measured steps, by psutil and NVML."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import resource
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gradred.cli.laboratory import INSTALL

_SAMPLED_EVERY = 0.1  # seconds between two looks at the GPUs

NO_PSUTIL = f"not measured: psutil is not installed. {INSTALL}"
NO_GPU = "no GPU: NVML finds no NVIDIA driver"
NO_NVML = "not measured: NVML's package is not installed (pip install nvidia-ml-py)"

Reading = dict[str, float]


class Meter:
    """Measures on one rank; the first rank of a host also measures the host.

    Args:
        is_leader: whether this rank is the first one of its host.
    """

    def __init__(self, is_leader: bool) -> None:
        self._host = is_leader
        self._psutil: Any = None
        if importlib.util.find_spec("psutil") is not None:
            import psutil

            self._psutil, self._process = psutil, psutil.Process()
        self._gpus = _Gpus() if is_leader else None
        self._before: Reading = {}

    def begin(self) -> None:
        """Begin to measure."""
        if self._gpus is not None:
            self._gpus.begin()
        self._before = self._counters()

    def end(self) -> dict[str, Any]:
        """What was used since `begin`: seconds of cores and bytes; memory as it is now."""
        after = self._counters()
        found: dict[str, Any] = {name: after[name] - self._before[name] for name in after}
        if self._psutil is not None:
            found["memory_bytes"] = self._process.memory_info().rss
        if self._gpus is not None:
            found["gpu"] = self._gpus.end()
        return found

    def _counters(self) -> Reading:
        found = {"seconds": time.perf_counter()}
        if self._psutil is None:
            return found
        own = resource.getrusage(resource.RUSAGE_SELF)  # of all threads, finer than a clock tick
        found |= {"core_seconds": own.ru_utime + own.ru_stime, "system_core_seconds": own.ru_stime}
        found["switches"] = float(own.ru_nvcsw + own.ru_nivcsw)
        if self._host:
            found |= self._of_host()
        return found

    def _of_host(self) -> Reading:
        times = self._psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # in user too
        found = {"host_core_seconds": sum(times) - idle - guest}
        disk = self._psutil.disk_io_counters()
        if disk is not None:  # None: a host without disks
            found |= {"disk_read_bytes": disk.read_bytes, "disk_written_bytes": disk.write_bytes}
        for name, card in self._psutil.net_io_counters(pernic=True).items():
            which = "loopback" if name == "lo" else "network"
            for way, count in (("sent", card.bytes_sent), ("received", card.bytes_recv)):
                found[f"{which}_{way}_bytes"] = found.get(f"{which}_{way}_bytes", 0.0) + count
        return found


Sample = dict[str, float]
"""What NVML says of a GPU at a moment; a device may lack some of it."""


class _Gpus:
    """Looks at all GPUs of the host from a thread of its own."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self.why_not = NO_NVML
        if importlib.util.find_spec("pynvml") is not None:
            import pynvml

            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError:
                self.why_not = NO_GPU
            else:
                self._nvml, self.why_not = pynvml, ""
        self._stop = threading.Event()
        self._samples: list[list[Sample]] = []
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._nvml is None:
            return
        self._stop.clear()
        self._samples, self.why_not = [], ""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> Any:
        """Return the use of each GPU, or why it is not known."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        if self.why_not:
            return self.why_not
        return [_summary(of_one) for of_one in zip(*self._samples, strict=True)]

    def _watch(self) -> None:
        nvml = self._nvml
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            while True:
                self._samples.append([self._sample(handle) for handle in handles])
                if self._stop.wait(_SAMPLED_EVERY):
                    return
        except nvml.NVMLError as error:
            self.why_not = f"not measured: NVML failed ({error})"

    def _sample(self, handle: Any) -> Sample:
        nvml = self._nvml
        read: dict[str, Callable[[], float]] = {
            "busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        }
        found = {}
        for name, of_now in read.items():
            with contextlib.suppress(nvml.NVMLError):  # a GPU in parts (MIG) has no use as a whole
                found[name] = float(of_now())
        return found


def _summary(samples: Sequence[Sample]) -> Sample:
    """The means, and the most memory, of what each look at a GPU has found."""
    found = _means(samples)
    if "memory_bytes" in found:
        found["memory_bytes"] = max(one["memory_bytes"] for one in samples)
    return found


def _means(samples: Sequence[dict[str, Any]]) -> Sample:
    """The means of the numbers that all have."""
    return {
        name: statistics.fmean(one[name] for one in samples)
        for name, value in samples[0].items()
        if isinstance(value, (int, float)) and all(name in one for one in samples)
    }


@dataclasses.dataclass(frozen=True)
class Use:
    """What all ranks together used over the measured steps of one repeat."""

    rank_cores: float
    """Cores that the ranks used, on average."""
    system_percent: float
    """The share of the ranks' processor time that was spent inside the kernel."""
    other_cores: float
    """Cores that other programs used."""
    memory_bytes: float
    """Resident memory of the ranks at the end."""
    switches_per_s: float
    disk_bytes_per_s: float
    """Read and written, by any program."""
    network_bytes_per_s: float
    """Sent and received by network cards, for any program."""
    loopback_bytes_per_s: float
    """Exchanged by programs of one host, any of them; each byte counts as sent and as received."""


def together(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The use by all ranks, as a record holds it; `gpu` is a list of each host's.

    Args:
        readings: what `Meter.end` has returned, by rank; empty for a rank without a part.
    """
    taken = [one for one in readings if one]
    seconds = max(one["seconds"] for one in taken)

    def total(*names: str) -> float:
        return float(sum(one.get(name, 0.0) for one in taken for name in names))

    found: dict[str, Any] = {"gpu": [one["gpu"] for one in taken if "gpu" in one]}
    if "core_seconds" not in taken[0]:
        return found | {"why_not": NO_PSUTIL}
    cores = total("core_seconds")
    use = Use(
        rank_cores=cores / seconds,
        system_percent=100 * total("system_core_seconds") / max(cores, 1e-9),
        other_cores=max(0.0, total("host_core_seconds") - cores) / seconds,
        memory_bytes=total("memory_bytes"),
        switches_per_s=total("switches") / seconds,
        disk_bytes_per_s=total("disk_read_bytes", "disk_written_bytes") / seconds,
        network_bytes_per_s=total("network_sent_bytes", "network_received_bytes") / seconds,
        loopback_bytes_per_s=total("loopback_sent_bytes", "loopback_received_bytes") / seconds,
    )
    return found | dataclasses.asdict(use)


def mean(uses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means of what `together` has found of several repeats; texts are the first one's."""
    found: dict[str, Any] = {**_means(uses)}
    hosts = zip(*(one["gpu"] for one in uses), strict=True)
    return found | {
        **{name: value for name, value in uses[0].items() if isinstance(value, str)},
        "gpu": [_mean_of_gpus(host) for host in hosts],
    }


def _mean_of_gpus(repeats: Sequence[Any]) -> Any:
    """Return the means over the repeats for each GPU of a host, or why they are not known."""
    texts = [one for one in repeats if isinstance(one, str)]
    if texts:
        return texts[0]
    return [_means(of_one) for of_one in zip(*repeats, strict=True)]
