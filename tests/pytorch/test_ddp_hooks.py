"""Code within the backward pass of DistributedDataParallel on the backend "gradred".

Hooks in Python and in C++, callbacks that they chain on futures, and works on which C++ waits.
"""

from __future__ import annotations

import datetime
import re
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, since, torch

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch 2.13 renamed
DDP = torch.nn.parallel.DistributedDataParallel
ROUGH = {"rtol": 5e-2, "atol": 1e-3}
STEPS = 5


def model_of() -> Any:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).double()


def data_of(steps: int) -> Any:
    made = torch.Generator().manual_seed(7)
    return torch.randn(steps, SIZE, 4, 6, generator=made, dtype=torch.float64)


def in_buckets(**how: Any) -> Any:
    return DDP(model_of(), bucket_cap_mb=0.0002, **how)


def trained(model: Any, batches: Any) -> Any:
    """The parameters after a step for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def require_like_one_process(found: Any, **tolerance: Any) -> None:
    expected = trained(model_of(), data_of(STEPS).reshape(STEPS, -1, 6))
    for mine, alone in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, alone, **tolerance)


def hook_of(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The hook in the form that torch takes: it compares annotations that are not strings."""
    function.__annotations__ = {}
    return function


def of_python(name: str) -> tuple[Any, Any]:
    """A hook of torch's and its state."""
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        post_localSGD_hook,
        powerSGD_hook,
    )

    def power(begin: int) -> Any:
        return powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=3, start_powerSGD_iter=begin
        )

    @hook_of
    def bf16_compress(state: Any, bucket: Any) -> Any:
        # torch gives it a name for GPUs only
        return default_hooks.bf16_compress_hook(state, bucket)

    hooks: dict[str, Callable[[], tuple[Any, Any]]] = {
        "allreduce": lambda: (default_hooks.allreduce_hook, None),
        "fp16_compress": lambda: (default_hooks.fp16_compress_hook, None),
        "bf16_compress": lambda: (bf16_compress, None),
        "fp16_compress around allreduce": lambda: (
            default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
            None,
        ),
        "PowerSGD": lambda: (powerSGD_hook.powerSGD_hook, power(2)),
        # All backends refuse the input that it would compress.
        "batched PowerSGD": lambda: (powerSGD_hook.batched_powerSGD_hook, power(STEPS + 1)),
        "post-local SGD": lambda: (
            post_localSGD_hook.post_localSGD_hook,
            post_localSGD_hook.PostLocalSGDState(None, dist.new_group(), 2),
        ),
    }
    return hooks[name]()


@pytest.mark.parametrize(
    "name",
    [
        *("allreduce", "fp16_compress", "bf16_compress", "fp16_compress around allreduce"),
        *("PowerSGD", "batched PowerSGD", "post-local SGD"),
    ],
)
def test_hooks_of_python_train_like_one_process(name: str) -> None:
    hook, state = of_python(name)
    model = in_buckets()
    model.register_comm_hook(state, hook)
    exact = name in ("allreduce", "post-local SGD")
    found = trained(model, data_of(STEPS)[:, RANK])
    require_like_one_process(found, **({} if exact else {"rtol": 0.1, "atol": 2e-2}))


@pytest.mark.parametrize("kind", dist.BuiltinCommHookType.__members__)
def test_hooks_of_cpp_train_like_one_process(kind: str) -> None:
    model = in_buckets()
    model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))
    assert kind in model._get_ddp_logging_data()["comm_hook"]
    found = trained(model, data_of(STEPS)[:, RANK])
    require_like_one_process(found, **(ROUGH if "COMPRESS" in kind else {}))


def test_hooks_of_cpp_for_other_groups_stay_theirs() -> None:
    other = dist.new_group(backend="gloo")
    model = in_buckets(process_group=other)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    require_like_one_process(trained(model, data_of(STEPS)[:, RANK]), **ROUGH)


def test_without_a_reduction_each_rank_keeps_its_gradients() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    model, alone = in_buckets(), model_of()
    model.register_comm_hook(None, noop_hook)
    mine = data_of(STEPS)[:, RANK]
    for found, expected in zip(trained(model, mine), trained(alone, mine), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch compiles it by TorchScript
def test_an_optimizer_that_steps_as_gradients_come() -> None:
    model = in_buckets()
    model._register_fused_optim(torch.optim.SGD, 0.1)
    for batch in data_of(STEPS)[:, RANK]:
        model.zero_grad()
        model(batch).square().mean().backward()
    require_like_one_process(model.parameters())


def test_what_is_chained_on_several_futures() -> None:
    """Like a hook that reduces the parts of its bucket separately, and waits for none of them."""

    @hook_of
    def in_parts(_: Any, bucket: Any) -> Any:
        whole = bucket.buffer()
        parts = whole.div_(SIZE).chunk(3)
        works = [dist.all_reduce(part, async_op=True) for part in parts]
        futures = [work.get_future().then(lambda done: done.value()[0]) for work in works]

        def all_there(done: Any) -> Any:
            for part, one in zip(parts, done.value(), strict=True):
                assert one.value().data_ptr() == part.data_ptr()
            return whole

        return torch.futures.collect_all(futures).then(all_there)

    model = in_buckets()
    model.register_comm_hook(None, in_parts)
    require_like_one_process(trained(model, data_of(STEPS)[:, RANK]))


def test_an_error_of_what_is_chained_ends_the_backward_pass() -> None:
    @hook_of
    def fails(_: Any, bucket: Any) -> Any:
        def divide(done: Any) -> Any:
            raise ArithmeticError("as it is asked to")

        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return torch.futures.collect_all([future.then(divide)]).then(
            lambda done: done.value()[0].value()
        )

    model = in_buckets()
    model.register_comm_hook(None, fails)
    with pytest.raises(RuntimeError, match="ArithmeticError: as it is asked to"):
        model(data_of(1)[0, RANK]).square().mean().backward()
    dist.barrier()


@pytest.mark.parametrize("of_all", [True, False])
def test_ranks_that_join_early_train_as_with_gloo(of_all: bool) -> None:
    """Gradients are divided by all ranks, or by those that have not joined: C++ waits for that."""

    def learned_on(group: Any) -> Any:
        model = in_buckets(process_group=group)
        with model.join(divide_by_initial_world_size=of_all):
            return trained(model, data_of(2 + 2 * RANK)[:, RANK])

    for found, expected in zip(
        learned_on(None), learned_on(dist.new_group(backend="gloo")), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.skipif(SIZE == 1, reason="no rank is late")
def test_what_cpp_waits_for_has_the_time_limit_of_the_group() -> None:
    hasty = dist.new_group(timeout=datetime.timedelta(seconds=0.5))
    model = in_buckets()
    x = torch.ones(1)
    loss = model(data_of(1)[0, RANK]).square().mean()
    if RANK == 0:
        model.reducer._set_forward_pass_work_handle(
            dist.all_reduce(x, group=hasty, async_op=True), False
        )
        with pytest.raises(RuntimeError, match="has not been submitted by rank 1"):
            loss.backward()
    dist.barrier()


def test_a_reducer_keeps_the_last_work_that_it_is_given_and_no_more() -> None:
    import gc
    import weakref

    model = in_buckets()
    works = []
    for _ in range(2):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        model.reducer._set_forward_pass_work_handle(work, False)
        work.wait()
        works.append(weakref.ref(work))
    del work
    gc.collect()
    assert [one() is None for one in works] == [True, False]
    del model
    gc.collect()
    assert works[1]() is None


def takers_of_works() -> Iterator[str]:
    """torch's C++ functions with a Work among their arguments, except methods of Work."""
    from torch._C import _distributed_c10d

    for owner in (_distributed_c10d, *vars(_distributed_c10d).values()):
        if not isinstance(owner, (type, types.ModuleType)):
            continue
        for name, value in list(vars(owner).items()):
            for line in (getattr(value, "__doc__", None) or "").splitlines():
                given = re.match(rf"(?:\d+\. )?{re.escape(name)}\((.*)\) ->", line)
                others = re.sub(r"^self: [\w.:]+", "", given.group(1)) if given else ""
                if re.search(r"\bWork\b", others):
                    yield name


def test_works_are_given_to_cpp_by_functions_that_keep_them() -> None:
    """A function that is new to this list may lose the Python part of a work."""
    known = {
        "_set_forward_pass_work_handle",  # gradred keeps the work alive with the reducer
        "_register_work",  # torch keeps the work alive, or gradred with an old torch
        "_verify_work_timeout",  # only for NCCL
    }
    assert set(takers_of_works()) <= known
    assert "_set_forward_pass_work_handle" in set(takers_of_works())


def test_cpp_may_wait_much_later_for_thousands_of_operations() -> None:
    from torch.distributed import _functional_collectives as functional

    begun = [functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) for _ in range(2500)]
    assert all((x + 0 == SIZE).all() for x in begun)


@since(2, 3)
def test_python_may_give_a_tensor_a_work_that_cpp_waits_for() -> None:
    from torch.distributed import _functional_collectives as functional

    x = torch.ones(3)
    torch._C._distributed_c10d._register_work(x, dist.all_reduce(x, async_op=True))
    assert (functional.wait_tensor(x) == SIZE).all()


def shape_of(value: Any) -> Any:
    return [shape_of(one) for one in value] if isinstance(value, list) else value.tolist()


def given(group: Any) -> dict[str, Any]:
    """The values of each operation's future, and the results of its work."""

    def tensors() -> list[Any]:
        return [torch.zeros(2) for _ in range(SIZE)]

    x, at_root, wide = torch.full((2,), RANK + 1.0), RANK == 0, {"group": group, "async_op": True}
    works = {
        "all_reduce": dist.all_reduce(x.clone(), **wide),
        "broadcast": dist.broadcast(x.clone(), 0, **wide),
        "all_gather": dist.all_gather(tensors(), x, **wide),
        "gather": dist.gather(x, tensors() if at_root else None, 0, **wide),
        "scatter": dist.scatter(torch.empty(2), [x] * SIZE if at_root else None, 0, **wide),
        "all_to_all_single": dist.all_to_all_single(torch.empty(SIZE), torch.ones(SIZE), **wide),
        "barrier": dist.barrier(**wide),
    }
    futures = {name: work.get_future() for name, work in works.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        futures["several"] = dist.all_reduce_coalesced([x.clone(), x.clone()], **wide)
        rows = [tensors()[:2] for _ in range(SIZE)]
        futures["several gathered"] = dist.all_gather_coalesced(rows, [x, 3 * x], **wide)
    found = {name: shape_of(future.wait()) for name, future in futures.items()}
    return found | {f"{name}'s result": shape_of(work.result()) for name, work in works.items()}


# In older versions a thread of gloo's may wait for the GIL to release its last work. A thread that
# destroys the group holds the GIL and waits for that thread.
@since(2, 6)
@pytest.mark.skipif(SIZE == 1, reason="takes two tensors of each rank, of which there are as many")
def test_futures_and_results_are_like_those_of_gloo() -> None:
    assert given(None) == given(dist.new_group(backend="gloo"))
