"""`DistributedOptimizer` against one process on all batches, and related functions."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
from pytorch.given import RANKS, batches, model_of

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

pytestmark = pytest.mark.usefixtures("initialised")


def losses_of_one_process(
    data: Any, make: Any, schedule: Any = None, most_norm: float | None = None
) -> list[float]:
    model = model_of()
    optimizer = make(model.parameters())
    scheduler = None if schedule is None else schedule(optimizer)
    losses = []
    for step in data:
        optimizer.zero_grad()
        loss = sum(model(x.reshape(-1, 6)).square().mean() for x in step)
        loss.backward()
        if most_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), most_norm)
        optimizer.step()
        losses.append(float(loss))
        advance(scheduler, losses[-1])
    return losses


def advance(scheduler: Any, loss: float) -> None:
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(loss)
    elif scheduler is not None:
        scheduler.step()


# Optimizers of PyTorch 2.4 and later on a CPU.
FUSED = {"fused": True} if hasattr(torch, "_fused_adam_") and hasattr(torch, "_fused_sgd_") else {}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "named": {"named": True},
    "groups": {"groups": 2},
    "predivide": {"gradient_predivide_factor": 2.0},
    "two passes": {"backward_passes_per_step": 2},
    "float32 on the wire": {"compression": "bf16"},
    "buckets": {"gradient_as_bucket_view": True},
    "buckets, two passes": {"gradient_as_bucket_view": True, "backward_passes_per_step": 2},
    "buckets, float32 on the wire": {"gradient_as_bucket_view": True, "compression": "bf16"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01, **FUSED),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, **FUSED),
    ],
)
def test_training_is_that_of_one_process_on_all_batches(options: str, make: Any) -> None:
    given = dict(OPTIONS[options])
    passes = given.get("backward_passes_per_step", 1)
    data = batches(6, passes)
    model = model_of(hvd.rank())
    hvd.broadcast_parameters(model_of().state_dict() if hvd.rank() == 0 else model.state_dict(), 0)
    model.load_state_dict(hvd.broadcast_object(model_of().state_dict(), 0))
    if given.pop("named", False):
        given["named_parameters"] = model.named_parameters()
    if "compression" in given:
        given["compression"] = hvd.Compression.bf16
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), **given)
    assert isinstance(optimizer, (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    losses = []
    for step in data:
        optimizer.zero_grad()
        own = torch.zeros((), dtype=torch.float64)
        for x in step:
            loss = model(x[hvd.rank()]).square().mean()
            loss.backward()
            own += loss.detach()
        optimizer.step()
        scheduler.step()
        losses.append(float(hvd.allreduce(own)))
    close = {"rtol": 2e-2, "atol": 1e-3} if "float32 on the wire" in options else {}
    expected = losses_of_one_process(data, make)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), **close)


@pytest.mark.parametrize("as_view", [False, True])
def test_clipping_between_synchronize_and_step(as_view: bool) -> None:
    model = model_of()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, gradient_as_bucket_view=as_view)
    model(batches(1)[0, 0, hvd.rank()]).square().sum().backward()
    optimizer.synchronize()
    norms = hvd.allgather(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).reshape(1))
    assert (norms == norms[0]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.zero_grad()
    model(batches(1)[0, 0, hvd.rank()]).square().sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="without optimizer.skip_synchronize"):
        optimizer.step()


@pytest.mark.parametrize("as_view", [False, True])
def test_parameters_without_a_gradient_on_some_ranks(as_view: bool) -> None:
    a, b = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    sgd = torch.optim.SGD([a, b], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_as_bucket_view=as_view)
    (a.sum() if hvd.rank() % 2 == 0 else b.sum()).backward()
    optimizer.step()
    even = (hvd.size() + 1) // 2
    assert a.tolist() == [1.0 - even] * 3
    assert b.tolist() == [1.0 - (hvd.size() - even)] * 3


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
@pytest.mark.parametrize("to_none", [False, True])
def test_gradients_are_views_of_buckets_again_after_each_backward_pass(to_none: bool) -> None:
    shapes = [(3, 5), (7,), (2, 3, 4, 5), (1500, 1000), (40,)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters[2] = torch.nn.Parameter(
        torch.zeros(shapes[2]).contiguous(memory_format=torch.channels_last)
    )
    parameters.append(torch.nn.Parameter(torch.zeros(9, dtype=torch.bfloat16)))
    sgd = torch.optim.SGD(parameters, lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_as_bucket_view=True)
    places = []
    for step in range(1, 4):
        for index, parameter in enumerate(parameters):
            (parameter * (index + step + hvd.rank())).sum().backward()
        optimizer.synchronize()
        for index, parameter in enumerate(parameters):
            expected = sum(index + step + rank for rank in range(hvd.size()))
            assert parameter.grad is not None
            assert (parameter.grad == expected).all()
            assert parameter.grad.stride() == parameter.stride()
        places.append([parameter.grad.data_ptr() for parameter in parameters])  # type: ignore[union-attr]
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        assert all((parameter.grad is None) == to_none for parameter in parameters)
    assert places[0] == places[1] == places[2]
    assert (parameters[-2] == -sum(4 + s + r for s in (1, 2, 3) for r in range(hvd.size()))).all()


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_buckets_have_one_order_where_ranks_list_their_parameters_in_others() -> None:
    named = [(f"order.{index}", torch.nn.Parameter(torch.zeros(3 + index))) for index in range(5)]
    named = named[hvd.rank() :] + named[: hvd.rank()]
    sgd = torch.optim.SGD([parameter for _, parameter in named], lr=1.0)
    given = {"op": hvd.Sum, "gradient_as_bucket_view": True}
    optimizer = hvd.DistributedOptimizer(sgd, named, **given)
    for name, parameter in named:
        (parameter * int(name[-1])).sum().backward()
    optimizer.step()
    for name, parameter in named:
        assert (parameter == -hvd.size() * int(name[-1])).all()
    others = [(f"{name}.{hvd.rank() % 2}", parameter) for name, parameter in named]
    with pytest.raises(ValueError, match="other parameters") if hvd.rank() % 2 else nullcontext():
        hvd.DistributedOptimizer(sgd, others, gradient_as_bucket_view=True)


def test_buckets_take_no_sparse_gradients() -> None:
    table = torch.nn.Embedding(4, 3, sparse=True)
    sgd = torch.optim.SGD(table.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(
        sgd, sparse_as_dense=True, op=hvd.Sum, gradient_as_bucket_view=True
    )
    with torch.no_grad():
        table.weight.zero_()
    table(torch.tensor([1, 1])).sum().backward()
    optimizer.step()
    assert table.weight.tolist()[:2] == [[0.0] * 3, [-2.0 * hvd.size()] * 3]
    if hvd.size() == 1:
        return
    optimizer = hvd.DistributedOptimizer(sgd, gradient_as_bucket_view=True)
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="sparse_as_dense"):
        table(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense: bool) -> None:
    table = torch.nn.Embedding(10, 2, sparse=True)
    torch.nn.init.ones_(table.weight)
    inner = torch.optim.SGD(table.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, op=hvd.Sum, sparse_as_dense=as_dense)
    table(torch.tensor([0, hvd.rank() + 1])).sum().backward()
    optimizer.step()
    expected = torch.ones(10, 2)
    expected[0] -= hvd.size()
    expected[1 : hvd.size() + 1] -= 1
    assert torch.equal(table.weight.detach(), expected)


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_misuse_of_the_optimizer_is_refused() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    x = batches(1)[0, 0, hvd.rank()]
    model(x).sum().backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        model(x).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()


@pytest.mark.parametrize(
    "given",
    [
        {"backward_passes_per_step": 0},
        {"gradient_predivide_factor": 2.0, "op": 1},
        {"groups": 0},
        {"groups": ["no tensor"]},
        {"named_parameters": [("one", torch.nn.Parameter(torch.ones(1)))]},
        {"named_parameters": ["no pair"]},
    ],
)
def test_arguments_of_the_optimizer_that_do_not_fit(given: Any) -> None:
    inner = torch.optim.SGD(model_of().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="DistributedOptimizer"):
        hvd.DistributedOptimizer(inner, **given)


def test_autocast_and_grad_scaler() -> None:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("torch is older than 2.3, which scales on GPUs alone")
    model = model_of().float()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batches(1)[0, 0, hvd.rank()].float()).square().mean()
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    weights = hvd.allgather(model[0].weight.detach().reshape(1, -1))
    assert all(torch.equal(one, weights[0]) for one in weights)


SCHEDULES: dict[str, Any] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
    "warm-up": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1, (step + 1) / 4)),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=8),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=1.0),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedulers_change_the_rate_as_in_one_process(schedule: str) -> None:
    data, make = batches(6), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)
    model = model_of()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()))
    scheduler = SCHEDULES[schedule](optimizer)
    losses, rates = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler that sees no optimizer.step() warns
        for step in data:
            optimizer.zero_grad()
            loss = model(step[0, hvd.rank()]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(hvd.allreduce(loss.detach())))
            advance(scheduler, losses[-1])
            rates.append(optimizer.param_groups[0]["lr"])
    expected = losses_of_one_process(data, make, SCHEDULES[schedule])
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected))
    assert len(set(rates)) > 1


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="torch is older than 2.3")
@pytest.mark.parametrize("fused", [{}, FUSED], ids=["", "fused"])
def test_scaled_and_clipped_gradients_are_those_of_one_process(fused: dict[str, bool]) -> None:
    def make(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.5, **fused)

    data = batches(6)
    model = model_of()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    losses = []
    for number, step in enumerate(data):
        for overflows in [True, False] if number == 3 else [False]:
            optimizer.zero_grad()
            loss = model(step[0, hvd.rank()]).square().mean()
            # One rank's infinity reaches all ranks, and no rank makes the step.
            worse = torch.inf if overflows and hvd.rank() == hvd.size() - 1 else 1.0
            scaler.scale(loss * worse).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        losses.append(float(hvd.allreduce(loss.detach())))
    expected = losses_of_one_process(data, make, most_norm=0.1)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected))
    assert len(set(hvd.allgather_object(scaler.get_scale()))) == 1


def test_state_of_the_optimizer_comes_back() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    model(batches(1)[0, 0, hvd.rank()]).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    model(batches(1)[0, 0, hvd.rank()]).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in model.parameters())


def test_batch_normalisation_is_that_of_all_batches_together() -> None:
    torch.manual_seed(0)
    data = torch.randn(4 * hvd.size(), 3, 5, dtype=torch.float64) * 3 + 1
    whole, part = torch.nn.BatchNorm1d(3).double(), hvd.SyncBatchNorm(3).double()
    own = data[4 * hvd.rank() : 4 * hvd.rank() + 4].clone().requires_grad_()
    everything = data.clone().requires_grad_()
    expected = whole(everything)
    found = part(own)
    mine = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
    torch.testing.assert_close(found, expected[mine])
    torch.testing.assert_close(part.running_mean, whole.running_mean)
    torch.testing.assert_close(part.running_var, whole.running_var)
    expected.pow(3).sum().backward()
    found.pow(3).sum().backward()
    torch.testing.assert_close(own.grad, everything.grad[mine])
    torch.testing.assert_close(part.eval()(data), whole.eval()(data))


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (4, 3, 6, 5)])
def test_batch_normalisation_in_float32_keeps_its_digits_far_from_zero(shape: Any) -> None:
    made = torch.Generator().manual_seed(0)
    data = torch.randn(hvd.size(), *shape, generator=made, dtype=torch.float64) * 0.1 + 100
    data[-1] += 1  # the means of the ranks differ
    whole, part = torch.nn.BatchNorm2d(3).double(), hvd.SyncBatchNorm(3)
    everything = data.flatten(0, 1)
    whole._check_input_dim = lambda _: None
    expected = whole(everything).reshape(data.shape)[hvd.rank()]
    found = part(data[hvd.rank()].float())
    assert found.dtype == torch.float32
    # The input itself has an error of 8e-6 in float32, at a standard deviation of 0.1 and more.
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-4)
    torch.testing.assert_close(part.running_mean.double(), whole.running_mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(part.running_var.double(), whole.running_var, rtol=1e-4, atol=0)


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_batch_normalisation_where_a_rank_has_no_samples() -> None:
    rows = 0 if hvd.rank() == 0 else 4
    data = torch.arange(12.0).reshape(4, 3)
    part = hvd.SyncBatchNorm(3)
    found = part(data[:rows])
    expected = torch.nn.BatchNorm1d(3)(data)
    torch.testing.assert_close(found, expected[:rows])
    found.pow(3).sum().backward()
    assert part.weight.grad.isfinite().all()


def checkpointed(model: Any) -> Any:
    """The model, with activations that are recomputed in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(model, x, use_reentrant=False)


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager")


def compiled_with_its_backward_pass(model: Any) -> Any:
    """The model, compiled with its backward pass (compiled autograd)."""
    run = compiled(model)

    class Both:
        def __call__(self, x: Any) -> Any:
            return run(x)

        @staticmethod
        def backward(loss: Any) -> None:
            from torch._dynamo import compiled_autograd

            with compiled_autograd._enable(torch.compile(backend="eager")):
                loss.backward()

    return Both()


WRAPPED = {
    "checkpointed": checkpointed,
    "compiled": compiled,
    "compiled autograd": compiled_with_its_backward_pass,
}


@pytest.mark.timeout(180)  # the first import of the compiler takes long
@pytest.mark.skipif(RANKS != 2, reason="takes two ranks")
@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_models_that_compute_their_backward_pass_otherwise(wrapped: str, as_view: bool) -> None:
    if wrapped == "compiled autograd" and tuple(map(int, torch.__version__.split(".")[:2])) < (
        2,
        6,
    ):
        pytest.skip("torch is older than 2.6, and begins compiled autograd otherwise")
    data = batches(3)
    model = model_of()
    run = WRAPPED[wrapped](model)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, gradient_as_bucket_view=as_view)
    losses = []
    for step in data:
        optimizer.zero_grad()
        loss = run(step[0, hvd.rank()]).square().mean()
        getattr(run, "backward", torch.Tensor.backward)(loss)
        optimizer.step()
        losses.append(float(hvd.allreduce(loss.detach())))
    expected = losses_of_one_process(data, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected))


def test_copy_of_a_model_trains_apart_from_it() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(batches(1)[0, 0, hvd.rank()]).square().mean().backward()
    optimizer.step()
    other = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    own = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1))
    other(batches(1)[0, 0, hvd.rank()]).square().mean().backward()
    own.step()
    for key, value in model.state_dict().items():
        assert value.equal(before[key])
        assert not value.equal(other.state_dict()[key])
        assert hvd.allgather(other.state_dict()[key].reshape(1, -1)).unique(dim=0).shape[0] == 1


COPIED: dict[str, dict[str, Any]] = {
    "": {},
    "groups": {"groups": 2},
    "buckets": {"gradient_as_bucket_view": True},
    "two passes": {"backward_passes_per_step": 2},
}


@pytest.mark.parametrize("options", COPIED)
def test_copy_of_a_wrapped_optimizer_reduces_its_own_gradients(options: str) -> None:
    given, data = COPIED[options], batches(4, 2)
    model = model_of()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), **given)

    def train(model: Any, optimizer: Any, step: Any) -> float:
        optimizer.zero_grad()
        for x in step[: given.get("backward_passes_per_step", 1)]:
            loss = model(x[hvd.rank()]).square().mean()
            loss.backward()
        optimizer.step()
        return float(hvd.allreduce(loss.detach()))

    train(model, optimizer, data[0])
    other, of_other = copy.deepcopy((model, optimizer))
    assert type(of_other) is type(optimizer)
    assert of_other.param_groups[0]["params"][0] is next(other.parameters())
    before = copy.deepcopy(model.state_dict())
    copied = [train(other, of_other, step) for step in data[1:]]
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert copied == pytest.approx([train(model, optimizer, step) for step in data[1:]])
    for value in other.state_dict().values():
        assert hvd.allgather(value.reshape(1, -1)).unique(dim=0).shape[0] == 1


class _Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((6,), float(index), dtype=torch.float64)


@pytest.mark.timeout(180)  # each worker imports PyTorch
@pytest.mark.skipif(RANKS != 2, reason="takes two ranks")
@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_workers_of_data_loaders_live_beside_it(way: str) -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    given = {"num_workers": 1, "multiprocessing_context": way, "batch_size": 4}
    for x in torch.utils.data.DataLoader(_Numbers(), **given):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    weights = [parameter.detach().reshape(1, -1) for parameter in model.parameters()]
    for all_of_them in hvd.grouped_allgather(weights):
        assert all_of_them.unique(dim=0).shape[0] == 1


@pytest.mark.parametrize("differs", ["layout", "shape", "sizes"])
def test_buckets_of_other_parameters_are_an_error_on_all_ranks(differs: str) -> None:
    if hvd.size() == 1:
        pytest.skip("takes several ranks")
    mine = hvd.rank() == 0
    shapes = {"layout": [(4, 3, 2, 2)], "shape": [(6, 4) if mine else (4, 6)]}
    sizes = [(4,), (6 if mine else 8,), (4 if mine else 2,)]
    made = [torch.zeros(shape) for shape in shapes.get(differs, sizes)]
    if differs == "layout" and mine:
        made = [made[0].to(memory_format=torch.channels_last)]
    parameters = [torch.nn.Parameter(one) for one in made]
    named = [(f"{differs}.{index}", one) for index, one in enumerate(parameters)]
    sgd = torch.optim.SGD(parameters, lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, named, gradient_as_bucket_view=True)
    sum(one.sum() for one in parameters).backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"other parameters in a bucket; here \["):
        optimizer.step()
