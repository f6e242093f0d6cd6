"""`elastic` in a job whose ranks all survive; tests/jobs/test_elastic.py has failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytorch.given import batches, model_of

from gradred.launch import state_files

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

pytestmark = pytest.mark.usefixtures("initialised")


def test_elastic_training_goes_back_to_its_last_commit() -> None:
    model = model_of(hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model, optimizer, batch=0, seen=[])
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.batch)])

    @hvd.elastic.run
    def train(state: Any) -> int:
        wrapped = hvd.DistributedOptimizer(state.optimizer)
        while state.batch < 6:
            wrapped.zero_grad()
            model(batches(1)[0, 0, hvd.rank()]).sum().backward()
            wrapped.step()
            state.batch += 1
            if state.batch == 3 and not resets:
                raise hvd.HorovodInternalError("as if an operation had failed")
            if state.batch % 2 == 0:
                state.commit()
        return int(state.batch)

    assert train(state) == 6
    assert resets == [2]
    weights = hvd.allgather(model[0].weight.detach().reshape(1, -1))
    assert all(torch.equal(one, weights[0]) for one in weights)


def test_a_sampler_gives_what_has_not_been_used() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10 * hvd.size() + 1), shuffle=True, seed=3)
    assert len(sampler) == 11
    first = list(sampler)
    sampler.record_batch(0, 4)
    sampler.load_state_dict(sampler.state_dict())
    left = list(sampler)
    assert len(sampler) == len(left) == 7
    everyone = hvd.allgather_object((first[:4], left))
    used = {i for one, _ in everyone for i in one}
    rest = {i for _, one in everyone for i in one}
    assert not used & rest
    assert used | rest == set(range(10 * hvd.size() + 1))
    sampler.set_epoch(1)
    assert sampler.processed_num == 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder for states of an elastic job, in the variable that `gradred run` sets."""
    found: str = hvd.broadcast_object(str(tmp_path), 0)
    monkeypatch.setenv(state_files.VARIABLE, f"1 {found}")
    return found


@hvd.elastic.run
def counted(state: Any, until: int) -> int:
    """Count up to `until`. Returns the step at which it began."""
    begin: int = state.step
    while state.step < until:
        state.step += 1
        state.commit()
    return begin


def test_a_job_goes_on_from_the_newest_state(folder: str) -> None:
    model = model_of(seed=1 + hvd.rank())  # all ranks get rank 0's
    assert counted(hvd.elastic.TorchState(model, step=0), 1) == 0
    hvd.barrier()
    number, _ = state_files.newest(folder) or (0, None)
    assert number == 1
    other = model_of(seed=7)
    assert counted(hvd.elastic.TorchState(other, step=0), 1) == 1
    for key, value in model.state_dict().items():
        assert value.equal(other.state_dict()[key])
    with pytest.raises(ValueError, match="Use another folder"):
        counted(hvd.elastic.TorchState(other, step=0, more=1), 1)
    with pytest.raises(ValueError, match=r"has the parts \['model'\]"):
        counted(hvd.elastic.TorchState(step=0), 1)


def test_a_state_that_no_file_can_hold_is_reported(folder: str) -> None:
    class Own(hvd.elastic.State):
        step = 0

        def save(self) -> None:
            pass

        def sync(self) -> None:
            pass

    with pytest.warns(UserWarning, match=r"Own has no saved\(\) and take\(\)"):
        assert counted(Own(), 2) == 0


def test_values_come_from_rank_0_by_a_broadcast_of_ones_own() -> None:
    asked: list[Any] = []

    def broadcast(values: Any) -> Any:
        asked.append(values)
        return hvd.broadcast_object(values, 0)

    state = hvd.elastic.ObjectState(broadcast, hvd.rank, epoch=hvd.rank() + 5)
    assert state.epoch == hvd.rank() + 5
    state.sync()
    assert asked == [{"epoch": hvd.rank() + 5}]
    state.epoch = 9
    state.restore()
    assert state.epoch == 5


def test_values_of_other_types_are_kept_by_handlers_of_ones_own() -> None:
    kept = hvd.elastic.state

    class Counter:
        count = 0

    class CounterHandler(kept.StateHandler):  # type: ignore[misc, name-defined]
        def save(self) -> None:
            self.count = self.value.count

        def restore(self) -> None:
            self.value.count = self.count

        def sync(self) -> None:
            self.value.count = hvd.broadcast_object(self.value.count, 0)
            self.save()

    before = kept.get_handler_registry()
    kept.set_handler_registry([*before, (Counter, CounterHandler)])
    try:
        counter = Counter()
        state = hvd.elastic.TorchState(model_of(), counter=counter, epoch=1)
    finally:
        kept.set_handler_registry(before)
    assert kept.get_handler_registry() == before
    counter.count = hvd.rank() + 3
    state.sync()
    counter.count = 100
    state.restore()
    assert counter.count == 3
    other = Counter()
    other.count = 8
    state.counter = other
    other.count = 9
    state.restore()
    assert other.count == 8


def test_training_begins_anew_by_a_function_of_ones_own() -> None:
    from gradred import horovod

    horovod.install()
    from horovod.common.elastic import run_fn

    resets: list[int] = []

    def train(state: Any) -> int:
        state.step += 1
        state.commit()
        if not resets:
            state.step += 100
            raise hvd.HorovodInternalError("as if an operation had failed")
        return int(state.step)

    def reset() -> None:
        resets.append(1)
        hvd.shutdown()
        hvd.init(process_sets="dynamic")

    assert run_fn(train, reset)(hvd.elastic.TorchState(step=0)) == 2
    assert resets == [1]


def test_parts_are_synchronised_by_name_not_by_their_order() -> None:
    """Two models with equal names of parameters: by order, ranks would swap them."""
    parts = [(name, torch.nn.Linear(2, 1)) for name in ("generator", "discriminator")]
    for number, (_, part) in enumerate(parts):
        torch.nn.init.constant_(part.weight, 10.0 * hvd.rank() + number)
    state = hvd.elastic.TorchState(**dict(parts if hvd.rank() == 0 else parts[::-1]))
    state.sync()
    assert [part.weight[0, 0].item() for _, part in parts] == [0.0, 1.0]
