"""The tests of the gate that start jobs: one of each kind. The nightly run has all of them."""

from __future__ import annotations

_IN_FAULTS = "tests/faults/test_faults.py::test_"
_IN_JOBS = "tests/jobs/test_"

# One test for each kind of fault, on MPICH.
FAULTS = {
    "kill": f"{_IN_FAULTS}killed_peer_raises_peer_lost_within_two_seconds[shared memory-small]",
    "stop": f"{_IN_FAULTS}silent_peer_raises_timeout_error_on_every_rank[messages-stopped-small]",
    "absent": (
        f"{_IN_FAULTS}silent_peer_raises_timeout_error_on_every_rank"
        "[shared memory-never calls-large non-blocking]"
    ),
    "late rank": "tests/faults/test_reports.py"
    "::test_wait_in_a_first_call_is_reported_once_per_host[blocking]",
    "Ctrl-C": f"{_IN_FAULTS}control_c_on_one_rank_raises_peer_lost_on_the_others[messages-small]",
    "mismatch": "tests/faults/test_refused.py::test_timeout_says_what_the_ranks_disagree_about",
    "bad array": "tests/faults/test_refused.py"
    "::test_peer_that_ends_is_lost_to_ranks_that_wait_with_an_error[exits-7-refuses]",
    "full /dev/shm": "tests/faults/test_resources.py"
    "::test_full_shared_memory_changes_nothing_for_ranks_that_have_started",
    "cut link": "tests/hosts/test_links.py"
    "::test_cut_link_raises_timeout_error_on_every_rank_and_the_launcher_ends_the_job[messages]",
    "device lost": f"{_IN_JOBS}device.py"
    "::test_lost_device_is_an_error_that_names_it_and_the_peers_hear_of_it",
}

# One test for each command, on MPICH. (tests/unit/test_cli.py tests `gradred run` and `info`.)
COMMANDS = {
    "run, on two hosts": "tests/hosts/test_run.py"
    "::test_ranks_fill_hosts_and_get_environment_and_folder[list]",
    "run --preload": f"{_IN_JOBS}preload.py::test_every_kind_of_call_is_exact_and_gradreds[2]",
    "ps": f"{_IN_FAULTS}ps_shows_operation_and_stack_of_each_rank[shared memory]",
    "bench": f"{_IN_JOBS}bench.py::test_two_ranks_print_one_table_and_write_the_record",
    "explain": f"{_IN_JOBS}explain.py"
    "::test_small_job_on_this_host_measures_what_is_explained[False]",
    "doctor": f"{_IN_JOBS}doctor.py::test_job_of_this_host_reports_what_every_check_reads[False]",
    "profile": f"{_IN_JOBS}profile.py::test_table_is_printed_once_by_rank_0_with_the_share_last",
    "without an MPI": f"{_IN_JOBS}without_mpi.py"
    "::test_errors_reach_all_and_the_communicator_goes_on",
}

# The laboratory's tests with PyTorch, on Open MPI. Its stage also runs all of tests/lab on MPICH.
LABORATORY = {
    "train": "tests/lab/test_train_torch.py::test_all_peers_train_a_residual_network_alike",
    "models of train": "tests/lab/test_train_models.py"
    "::test_gradients_have_the_sizes_and_the_order_of_the_record",
    "recorded programs": "tests/lab/test_simulate_record.py"
    "::test_gradients_have_their_sizes_in_the_order_of_backward",
}

# One test for each front end, on Open MPI with PyTorch. (`make test` tests mpi4py's.)
FRONT_ENDS = {
    "torch.distributed": f"{_IN_JOBS}torchrun.py::test_examples_learn[ddp.py]",
    "Horovod": f"{_IN_JOBS}torch_examples.py::test_examples_learn[horovod_digits.py]",
    "streams of a GPU": f"{_IN_JOBS}torch_streams.py::test_streams_that_come_late[some]",
    "elastic": f"{_IN_JOBS}elastic.py::test_lost_ranks_are_replaced",
}
