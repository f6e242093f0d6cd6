"""PyTorch's own tests of the backends of torch.distributed, with the backend "gradred".

The tests are those of the installed PyTorch, which needs expecttest for them. For another backend:

    TESTED_BACKEND=gloo python -m pytest tests/frameworks
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from frameworks.torch_team import FAILED, SKIPPED, Team, Verdict, theirs

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's tests need it")
BACKEND = os.environ.get("TESTED_BACKEND", "gradred")

# Tests that are not run, with the reason; gloo fails them here, too.
NOT_RUN = {
    "test_SyncBatchNorm_process_group": "takes torchvision, and does not ask for it",
    "test_batch_isend_irecv_mixed_backend_err": "takes NCCL, and does not ask for it",
    "test_new_subgroups_with_group_param": "takes 4 ranks, and does not ask for them",
    **dict.fromkeys(
        (
            "test_all_to_all_cuda",
            "test_all_to_all_cuda_complex",
            "test_all_to_all_full_group_cuda",
            "test_all_to_all_group_cuda",
            "test_batch_isend_irecv_op_err",
        ),
        "takes GPUs, and does not ask for them",
    ),
}


def names() -> list[str]:
    return [name for name in dir(theirs().DistributedTest._DistTestBase) if name[:5] == "test_"]


class Teams:
    """Teams of ranks, one after the other; each has its own folder."""

    def __init__(self, at: Path) -> None:
        self._at, self._made = at, 0
        self._team: Team | None = None

    def run(self, name: str) -> Verdict:
        """If a test fails in a team that has run other tests, run it again in a new team.

        PyTorch runs all tests in new processes.
        """
        if self._team is None:
            self._made += 1
            self._team = Team(BACKEND, self._at / str(self._made))
        team = self._team
        verdict = team.run(name)
        if verdict.word == FAILED:
            self._team = None
            if team.tests > 1:
                return self.run(name)
        return verdict

    def end(self) -> None:
        if self._team is not None:
            self._team.end()


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    made = Teams(tmp_path_factory.mktemp("teams"))
    yield made
    made.end()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", names())
def test_of_pytorch(name: str, teams: Teams) -> None:
    if name in NOT_RUN:
        pytest.skip(NOT_RUN[name])
    verdict = teams.run(name)
    if verdict.word == SKIPPED:
        pytest.skip(verdict.text)
    assert verdict.word != FAILED, verdict.text
