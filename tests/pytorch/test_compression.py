"""Compression with error feedback in Horovod's optimizer: equal loss, fewer bytes, refusals."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

from gradred.compression import CODECS  # noqa: E402
from gradred.errors import UsageError  # noqa: E402

WORLD = MPI.COMM_WORLD
RATE = 0.1
LOSSY = [name for name, codec in CODECS.items() if codec.feedback]

pytestmark = pytest.mark.usefixtures("initialised")


def model_of() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))


def batches(steps: int, workers: int) -> Any:
    """Rows and classes, the same on all ranks: for each step the part of each worker."""
    made = torch.Generator().manual_seed(7)
    x = torch.randn(steps, workers, 8, 6, generator=made)
    return x, (x[..., :3] + 0.5 * x[..., 3:]).argmax(-1)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x.reshape(-1, 6)), y.reshape(-1))


def trained(compression: Any, steps: int, **options: Any) -> float:
    """The loss on all batches after training; the ranks' models are equal."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE),
        model.named_parameters(),
        compression=compression,
        **options,
    )
    x, y = batches(steps, hvd.size())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, x[step, hvd.rank()], y[step, hvd.rank()]).backward()
        optimizer.step()
    mine = torch.cat([one.detach().reshape(-1) for one in model.parameters()]).numpy()
    everyone = WORLD.allgather(mine.tobytes())
    assert all(one == everyone[0] for one in everyone)
    return loss_of(model, x, y).item()


@pytest.mark.parametrize("options", [{}, {"groups": 2}], ids=["one by one", "groups"])
@pytest.mark.parametrize("name", LOSSY)
def test_horovods_optimizer_with_compression_reaches_the_same_loss(
    name: str, options: dict[str, Any]
) -> None:
    compression = getattr(hvd.Compression, name)()
    begin = loss_of(model_of(), *batches(150, hvd.size())).item()
    plain = trained(hvd.Compression.none, 150)
    found = trained(compression, 150, **options)
    assert plain < 0.5 * begin
    assert found < 1.15 * plain + 0.02
    count = sum(one.numel() for one in model_of().parameters())
    assert 0 < compression.sent_bytes < 0.9 * 150 * 4 * count


ON_HOSTS = "TEST_HOSTS" in os.environ


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_a_compressed_wire_is_that_of_gradred_with_the_same_bits_on_all_ranks(op: int) -> None:
    x = torch.from_numpy(np.random.default_rng(hvd.rank()).standard_normal(5000).astype("f4"))
    plain = hvd.allreduce(x, op=op)
    for form in ("bf16", "int8"):
        wire = hvd.Compression.wire(form)
        got = hvd.allreduce(x, op=op, compression=wire)
        (grouped,) = hvd.grouped_allreduce([x], op=op, compression=wire)
        assert (got.numpy().tobytes() == plain.numpy().tobytes()) == (not ON_HOSTS)
        np.testing.assert_allclose(got, plain, atol=0.02 * hvd.size())
        for one in (got, grouped):
            assert len(set(WORLD.allgather(one.numpy().tobytes()))) == 1
        longer = hvd.allreduce(x.double(), op=op, compression=wire)  # travels as it is
        np.testing.assert_array_equal(longer, hvd.allreduce(x.double(), op=op))
    leaf = x.clone().requires_grad_()
    hvd.allreduce(leaf, op=op, compression=wire).sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"gradient_as_bucket_view": True}], ids=str)
def test_an_optimizer_over_a_compressed_wire_reaches_the_same_loss(options: Any) -> None:
    plain = trained(hvd.Compression.none, 150)
    found = trained(hvd.Compression.wire("int8"), 150, **options)
    assert found < 1.05 * plain + 0.01
    assert (found != plain) == ON_HOSTS or options


@pytest.mark.skipif(WORLD.size == 1, reason="needs several ranks")
def test_ranks_with_other_wires_get_an_error() -> None:
    wire = hvd.Compression.wire("int8" if hvd.rank() else "bf16")
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched compressed wires"):
        hvd.allreduce(torch.ones(3), name="other wires", compression=wire)
    with pytest.raises(UsageError, match="int3"):
        hvd.Compression.wire("int3")


def test_compression_with_state_is_refused_where_nobody_knows_the_tensor() -> None:
    with pytest.raises(UsageError, match="Pass it to DistributedOptimizer"):
        hvd.allreduce(torch.ones(3), compression=hvd.Compression.topk(0.5))
    optimizer = torch.optim.SGD(model_of().parameters(), lr=RATE)
    for wrong in ({"op": hvd.Max}, {"gradient_as_bucket_view": True}):
        with pytest.raises(ValueError, match="gathered"):
            hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.int8(), **wrong)
    assert hvd.Compression.topk(0.5)._compressor.text == "topk:0.5"
    assert hvd.Compression.powersgd(4)._compressor.parameter == 4


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_compressed_gradients_of_all_ranks_are_added_or_averaged(op: int) -> None:
    parameter = torch.nn.Parameter(torch.zeros(300))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0),
        [("x", parameter)],
        compression=hvd.Compression.int8(),
        op=op,
    )
    (parameter * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    expected = (hvd.size() + 1) / 2 * (hvd.size() if op == hvd.Sum else 1)
    np.testing.assert_allclose(parameter.detach().numpy(), -expected, rtol=1e-5)
