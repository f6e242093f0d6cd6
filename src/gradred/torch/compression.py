"""Compression of tensors for sending: to a smaller type, or lossy with error feedback."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from gradred import compression
from gradred.errors import UsageError
from gradred.horovod.wires import OverWire
from gradred.torch_wire import require_form


class Compressor:
    """Compressor that changes nothing. Derive from it to write another one."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and the context that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Convert a received tensor to its original type."""
        return tensor


class NoneCompressor(Compressor):
    """Tensors are sent as they are."""


class _Cast(Compressor):
    """Floating-point tensors are sent in another type."""

    wire: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Convert a floating-point tensor to the type `wire`. Others are sent as they are."""
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Convert a received tensor to its original type."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Cast):
    """Floating-point tensors are sent as float16."""

    wire = torch.float16


class BF16Compressor(_Cast):
    """Floating-point tensors are sent as bfloat16."""

    wire = torch.bfloat16


class WireCompressor(OverWire, Compressor):
    """`OverWire` with methods of a compressor."""


class OwingWire:
    """A `WireCompressor` whose losses are added to the next gradients, for `DistributedOptimizer`.

    Args:
        form: a name of `gradred.WIRES`.

    Raises:
        gradred.UsageError: there is no such form.
    """

    def __init__(self, form: str) -> None:
        require_form(form, "Compression.wire(feedback=True)")
        self.form = form

    def compress(self, tensor: torch.Tensor) -> NoReturn:
        """Raise UsageError: only an optimizer knows which tensor of the last step this is."""
        remedy = "Pass it to DistributedOptimizer, or leave feedback=True out"
        found = "what is owed belongs to a parameter"
        raise UsageError(f"Compression.wire({self.form!r}, feedback=True)", found, remedy)


class GatheredCompressor:
    """Lossy compression with error feedback, for `DistributedOptimizer`.

    What ranks send cannot be added up, so each rank gathers it from all, and adds it after
    decompressing. What was not sent of a gradient is added to the next one of the same parameter.

    Args:
        text: as in `gradred.compression.Compressor`: `topk:0.01`, `powersgd:4`, ...

    Raises:
        gradred.UsageError: there is no such compression.
    """

    def __init__(self, text: str) -> None:
        self._compressor = compression.Compressor(text)
        self.sent_bytes = 0
        """The bytes of all payloads of this rank."""

    def compress(self, tensor: torch.Tensor) -> NoReturn:
        """Raise UsageError: only an optimizer knows which tensor of the last step this is."""
        found = "what ranks send cannot be added up"
        remedy = "Pass it to DistributedOptimizer, or use Compression.fp16 here"
        raise UsageError(f"compression {self._compressor.text!r}", found, remedy)

    def payload(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the bytes to send of a dense tensor, on its device.

        Args:
            name: of the parameter; what was not sent of its last tensor is added.
            tensor: of a floating-point type, and always of the same shape.
        """
        values = tensor.detach().cpu().float().contiguous().numpy()
        made = torch.tensor(self._compressor.encode(name, values))
        self.sent_bytes += made.numel()
        return made.to(tensor.device)

    def total(self, payloads: torch.Tensor, ranks: int, like: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors whose payloads were gathered.

        Args:
            payloads: those of all ranks, one after the other.
            ranks: how many there are.
            like: a tensor of the shape, type and device of the result.
        """
        parts = payloads.cpu().numpy().reshape(ranks, -1)
        total = self._compressor.decode(parts[0], like.numel()).copy()
        for part in parts[1:]:
            total += self._compressor.decode(part, like.numel())
        return torch.from_numpy(total).reshape(like.shape).to(like)


class Compression:
    """The values that `compression=` accepts; the functions make one with state, for one optimizer.

    Horovod has none, fp16 and (in newer versions) bf16.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

    @staticmethod
    def wire(form: str = "auto", *, feedback: bool = False) -> WireCompressor | OwingWire:
        """float32 in a form of `gradred.WIRES` between hosts, as it is inside of them.

        With `feedback` nothing is lost in the long run; see `gradred.torch_wire.Wire`.
        """
        return OwingWire(form) if feedback else WireCompressor(form)

    @staticmethod
    def int8() -> GatheredCompressor:
        """8 bits, and a scale for each 256 values."""
        return GatheredCompressor("int8")

    @staticmethod
    def int4() -> GatheredCompressor:
        """4 bits, and a scale for each 256 values."""
        return GatheredCompressor("int4")

    @staticmethod
    def onebit() -> GatheredCompressor:
        """1 bit, and two means for each 256 values (Seide et al., 2014)."""
        return GatheredCompressor("onebit")

    @staticmethod
    def topk(share: float = 0.05) -> GatheredCompressor:
        """This share of the values: the largest (Aji and Heafield, 2017)."""
        return GatheredCompressor(f"topk:{share}")

    @staticmethod
    def randomk(share: float = 0.1) -> GatheredCompressor:
        """This share of the values, at random places (Stich et al., 2018)."""
        return GatheredCompressor(f"randomk:{share}")

    @staticmethod
    def powersgd(rank: int = 2) -> GatheredCompressor:
        """Two matrices of this rank for each rank's gradient (after Vogels et al., 2019)."""
        return GatheredCompressor(f"powersgd:{rank}")
