"""What one device does in an iteration of training, gradient by gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradred.errors import UsageError
from gradred_lab.simulate import networks
from gradred_lab.simulate.accuracy import Floats
from gradred_lab.simulate.networks import Network

_FORWARD = 1 / 3  # of the time that a device computes; backward takes the rest
_FLOAT32 = 4.0  # bytes
_FLOPS = 6  # per sample and multiply-add of forward: 2, and twice as many in backward

_SAMPLE_BYTES = {"image": 224 * 224 * 3 * 4, "text": 128 * 8}
_TEXT = ("bert", "gpt")


@dataclass(frozen=True)
class Device:
    """A processor that trains: what is known of its speed.

    `flops` are those that it gets of training in fp32, not its peak; `copy` is the seconds per byte
    of its own memory, to read and to write it once; `bus` the bytes per second from its host.
    """

    about: str
    source: str
    flops: float
    copy: float
    bus: float


DEVICES: dict[str, Device] = {
    "P40": Device(
        "Tesla P40",
        "11.8 TFLOP/s and 346 GB/s by NVIDIA's data sheet; 60 % of the first is a round figure",
        0.6 * 11.8e12,
        2 / 346e9,
        12e9,
    ),
    "P100": Device(
        "Tesla P100",
        "10.6 TFLOP/s and 732 GB/s by NVIDIA's data sheet; 60 % of the first is a round figure",
        0.6 * 10.6e12,
        2 / 732e9,
        12e9,
    ),
    "V100": Device(
        "Tesla V100",
        "9.6 TFLOP/s by 391 images/s of ResNet-50 in fp32, the median of DLPerf 1.0's frameworks "
        "with more than 380; 900 GB/s by NVIDIA's data sheet",
        391 * 4.089e9 * _FLOPS,
        2 / 900e9,
        12e9,
    ),
    "H100": Device(
        "H100",
        "67 TFLOP/s and 3.35 TB/s by NVIDIA's data sheet; 60 % of the first is a round figure",
        0.6 * 67e12,
        2 / 3.35e12,
        50e9,
    ),
    "H200": Device(
        "H200",
        "67 TFLOP/s and 4.8 TB/s by NVIDIA's data sheet; 60 % of the first is a round figure",
        0.6 * 67e12,
        2 / 4.8e12,
        50e9,
    ),
    "B200": Device(
        "B200",
        "80 TFLOP/s and 8 TB/s by NVIDIA's data sheet; 60 % of the first is a round figure",
        0.6 * 80e12,
        2 / 8e12,
        50e9,
    ),
    "MI300X": Device(
        "MI300X",
        "163.4 TFLOP/s and 5.3 TB/s by AMD's data sheet; 60 % of the first is a round figure",
        0.6 * 163.4e12,
        2 / 5.3e12,
        50e9,
    ),
    "SW26010": Device(
        "SW26010 of Sunway TaihuLight",
        "3.06 TFLOP/s and 136 GB/s by Dongarra, Report on the Sunway TaihuLight system, 2016; 10 % "
        "of the first is a round figure, since convolutions there wait for memory",
        0.1 * 3.06e12,
        2 / 136e9,
        136e9,
    ),
    "A100": Device(
        "A100",
        "19.5 TFLOP/s and 1.56 TB/s by NVIDIA's data sheet; 60 % of the first is a round figure",
        0.6 * 19.5e12,
        2 / 1.56e12,
        24e9,
    ),
    "A64FX": Device(
        "A64FX of Fugaku",
        "6.76 TFLOP/s and 1024 GB/s by Fujitsu's data sheet; 20 % of the first is a round figure",
        0.2 * 6.76e12,
        2 / 1024e9,
        1024e9,
    ),
    "core": Device(
        "a core of a processor",
        "50 GFLOP/s and 10 GB/s are round figures",
        50e9,
        2 / 10e9,
        10e9,
    ),
}


@dataclass(frozen=True)
class Work:
    """Seconds and bytes of one device's iteration, by gradient, the first one of backward first.

    `load` is the time to read and decode a batch, while the device computes; `fetch` the same while
    it waits; `copy_in` to bring it to the device; `update` that of the optimizer. `packing` is per
    byte that is copied to make a message of several gradients, and back. `late` is how much longer
    the slowest of all devices takes, for which the others wait. `overlap` is the share of a message
    during which the device computes on: less than 1 where both need the same processor. `types` are
    the element types of the gradients; empty: all have one.
    """

    name: str
    nbytes: Floats
    forward: Floats
    backward: Floats
    load: float = 0.0
    copy_in: float = 0.0
    update: float = 0.0
    packing: float = 0.0
    fetch: float = 0.0
    late: float = 0.0
    overlap: float = 1.0
    types: tuple[str, ...] = ()

    def of_each_type(self) -> list[list[int]]:
        """The numbers of the gradients of each type, in the order of backward."""
        found: dict[str, list[int]] = {}
        for i in range(len(self.nbytes)):
            found.setdefault(self.types[i] if self.types else "", []).append(i)
        return list(found.values())

    @property
    def seconds(self) -> float:
        """The seconds of an iteration on the device alone."""
        computes = float(self.forward.sum() + self.backward.sum()) + self.update
        return max(self.load, self.copy_in, computes + self.fetch)


def of_network(network: Network, seconds: float, itemsize: float = _FLOAT32) -> Work:
    """Divide the seconds of one device by the multiply-adds between two gradients."""
    shares = np.diff(network.ready, prepend=0.0)
    return Work(
        name=network.name,
        nbytes=network.elements * itemsize,
        forward=seconds * _FORWARD * shares,
        backward=seconds * (1 - _FORWARD) * shares,
    )


def on_device(model: str, device: Device, batch: int, rate: float | None = None) -> Work:
    """The work of a model on a device, by its multiply-adds or by measured samples per second.

    Args:
        model: the name of a network, as in a table of measurements.
        device: what computes.
        batch: samples of one device.
        rate: samples per second of one device; None: by its speed.

    Raises:
        UsageError: nobody knows the network.
    """
    network = networks.find(model, "")
    if not network.is_known:
        known = ", ".join(networks.names())
        raise UsageError(f"--model {model}", f"there are {known}", "Name one of these")
    nbytes = float(network.elements.sum()) * _FLOAT32
    update = 2.5 * nbytes * device.copy  # reads gradient, parameter and momentum, writes two
    seconds = batch * network.macs * _FLOPS / device.flops
    if rate:  # was measured with the update, which then takes at most half of it
        update = min(update, 0.5 * batch / rate)
        seconds = batch / rate - update
    kind = "text" if network.name.startswith(_TEXT) else "image"
    work = of_network(network, seconds)
    return Work(
        name=network.name,
        nbytes=work.nbytes,
        forward=work.forward,
        backward=work.backward,
        copy_in=batch * _SAMPLE_BYTES[kind] / device.bus,
        update=update,
        packing=device.copy,
    )
