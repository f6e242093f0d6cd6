"""What importing the laboratory loads: neither an MPI nor a framework."""

from __future__ import annotations

import pytest
from unit.test_import import MPI_FREE, run_fresh


@pytest.mark.parametrize(
    ("modules", "table"),
    [
        ("gradred.schemes, gradred_lab.cli.schemes", "gradred.schemes.SCHEMES"),
        (
            "gradred_lab.train.run, gradred_lab.cli.train",
            "gradred_lab.train.framework.find('pytorch').models",
        ),
    ],
)
def test_tables_load_no_mpi_and_no_framework(modules: str, table: str) -> None:
    found = run_fresh(f"{MPI_FREE.replace('import gradred', f'import {modules}', 1)}{table}\n")
    assert "mpi4py.MPI" not in found["modules"]
    assert "torch" not in found["modules"]
    assert not found["libmpi"]
