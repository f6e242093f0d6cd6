"""PyTorch's own tests of the backends of torch.distributed, with the backend "gradred".

The tests are those of the installed PyTorch, which needs expecttest for them. For another backend:

    TESTED_BACKEND=gloo python -m pytest tests/frameworks
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from frameworks.torch_team import FAILED, SKIPPED, STARTS, Team, Verdict, theirs

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's tests need it")
BACKEND = os.environ.get("TESTED_BACKEND", "gradred")

_SYNC = "DistributedDataParallel takes layers of SyncBatchNorm on GPUs only"
_NCCL = "takes NCCL, and does not ask for it"
_STREAMS = "PyTorch's own code takes streams or events of a GPU"
_NUMBER = "compares the numbers of GPUs"
# Tests that are not run, with the reason; gloo does not pass them here, either.
NOT_RUN = {
    "test_SyncBatchNorm_process_group": "takes torchvision, and does not ask for it",
    "test_ddp_uneven_inputs": "trains 500 times, which takes over 15 minutes on two cores",
    "test_new_subgroups_with_group_param": "takes 4 ranks, and does not ask for them",
    "test_ddp_hook_pickling_powerSGD": "loads a file that torch.load refuses by now",
    **dict.fromkeys(
        (
            "test_DistributedDataParallel_SyncBatchNorm",
            "test_DistributedDataParallel_SyncBatchNorm_2D_Input",
            "test_DistributedDataParallel_SyncBatchNorm_Channels_Last",
            "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value",
            "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient",
            "test_DistributedDataParallel_SyncBatchNorm_No_Affine",
            "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process",
            "test_DistributedDataParallel_SyncBatchNorm_half",
            "test_ddp_inference",
            "test_ddp_uneven_inputs_stop_iteration_sync_bn",
            "test_sync_bn_logged",
        ),
        _SYNC,
    ),
    **dict.fromkeys(
        (
            "test_average_parameters",
            "test_batch_isend_irecv_mixed_backend_err",
            "test_monitored_barrier_allreduce_hang",
            "test_monitored_barrier_allreduce_hang_wait_all_ranks",
            "test_nccl_high_priority_stream",
        ),
        _NCCL,
    ),
    **dict.fromkeys(
        (
            "test_ddp_apply_optim_in_backward",
            "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false",
            "test_ddp_apply_optim_in_backward_ignored_params",
            "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none",
            "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none",
            "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none",
            "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none",
        ),
        _STREAMS,
    ),
    **dict.fromkeys(("test_ddp_device", "test_ddp_logging_data_gpu"), _NUMBER),
}


def names() -> list[str]:
    return [name for name in dir(theirs().DistributedTest._DistTestBase) if name[:5] == "test_"]


class Teams:
    """Teams of ranks that are started in one way, one team after the other."""

    def __init__(self, start: str, at: Path) -> None:
        self._start, self._at, self._made = start, at, 0
        self._team: Team | None = None

    def run(self, name: str) -> Verdict:
        """Run a test in a team that has run others.

        A test that fails there has failed. It runs again in new processes, as PyTorch runs all
        tests, to tell whether earlier tests left something behind.
        """
        verdict, alone = self._run(name)
        if verdict.word != FAILED or alone:
            return verdict
        if self._run(name)[0].word == FAILED:
            return verdict
        return Verdict(FAILED, f"It fails after other tests only.\n{verdict.text}")

    def _run(self, name: str) -> tuple[Verdict, bool]:
        """The verdict, and whether the test was the first one of its team."""
        if self._team is None:
            self._made += 1
            self._team = Team(self._start, BACKEND, self._at / str(self._made))
        team = self._team
        verdict = team.run(name)
        if verdict.word == FAILED:
            self._team = None
        return verdict, team.tests == 1

    def end(self) -> None:
        if self._team is not None:
            self._team.end()


@pytest.fixture(scope="module", params=STARTS)
def teams(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Teams]:
    made = Teams(request.param, tmp_path_factory.mktemp("teams"))
    yield made
    made.end()


@pytest.mark.timeout(2000)
@pytest.mark.parametrize("name", names())
def test_of_pytorch(name: str, teams: Teams) -> None:
    if name in NOT_RUN:
        pytest.skip(NOT_RUN[name])
    verdict = teams.run(name)
    if verdict.word == SKIPPED:
        pytest.skip(verdict.text)
    assert verdict.word != FAILED, verdict.text
