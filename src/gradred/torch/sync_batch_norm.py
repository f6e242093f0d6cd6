"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch

from gradred.horovod.basics import Sum, size
from gradred.torch.mpi_ops import allreduce


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """`torch.nn.BatchNorm` with the mean and variance of the batches of all ranks.

    The ranks' batches may have different sizes. In evaluation mode, and on one rank, the layer acts
    as plain batch normalisation. Gradients flow through the ranks' sums. The layer makes its calls
    without names, so all ranks have to run their layers in the same order.
    """

    def _check_input_dim(self, x: torch.Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"expected at least 2 axes, got {x.dim()}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the input along all axes except the second one."""
        self._check_input_dim(x)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or size() == 1:
            return super().forward(x)
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean, variance, count = _moments(wide)
        self._remember(mean.detach(), variance.detach(), count.detach())
        shape = [1, -1, *[1] * (x.dim() - 2)]
        factor = torch.rsqrt(variance + self.eps).to(wide.dtype)
        made = (wide - mean.to(wide.dtype).view(shape)) * factor.view(shape)
        if self.affine:
            made = made * self.weight.view(shape) + self.bias.view(shape)
        return made.to(x.dtype)

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, count: Any) -> None:
        if not (self.training and self.track_running_stats and self.running_mean is not None):
            return
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        unbiased = variance * (count / (count - 1).clamp_min(1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mean, variance and count of all ranks' batches, in float64.

    Each rank sums squares around its own mean. This avoids the loss of digits that a mean far from
    zero would cause. The correction to the common mean needs a few numbers per channel, and is done
    in float64 (T. Chan, G. Golub and R. LeVeque, Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances, 1979).
    """
    axes = [0, *range(2, x.dim())]
    count = x.numel() // x.shape[1]
    own_mean = x.sum(axes) / max(count, 1)
    centred = x - own_mean.view([1, -1, *[1] * (x.dim() - 2)])
    own_mean, squares = own_mean.double(), centred.square().sum(axes).double()
    own = [count * own_mean, squares + count * own_mean.square(), own_mean.new_tensor([count])]
    total, about_zero, counts = allreduce(torch.cat(own), op=Sum).split([x.shape[1]] * 2 + [1])
    mean = total / counts
    return mean, (about_zero / counts - mean.square()).clamp_min(0), counts[0]
