"""Horovod's names and signatures, under `gradred.torch` and under the alias, in one table each.

As of Horovod 0.28.1: the name of an argument, its position, and whether it is optional.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from typing import Any

import pytest

from gradred import horovod

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

# `=` after an argument: it is optional. A line without parentheses: only a name.
REDUCES = "average=, name=, op=, prescale_factor=, postscale_factor=, process_set="
WITH_COMPRESSION = REDUCES.replace("op=", "compression=, op=")
SCATTERS = "name=, op=, process_set=, prescale_factor=, postscale_factor="
SCATTERS_NOW = SCATTERS.replace("op=", "compression=, op=")
OPERATIONS = f"""
allreduce(tensor, {WITH_COMPRESSION})
allreduce_(tensor, {REDUCES})
allreduce_async(tensor, {REDUCES})
allreduce_async_(tensor, {REDUCES})
grouped_allreduce(tensors, {WITH_COMPRESSION})
grouped_allreduce_(tensors, {REDUCES})
grouped_allreduce_async(tensors, {REDUCES})
grouped_allreduce_async_(tensors, {REDUCES})
sparse_allreduce_async(tensor, name, op, process_set=)
allgather(tensor, name=, process_set=)
allgather_async(tensor, name=, process_set=)
grouped_allgather(tensors, name=, process_set=)
grouped_allgather_async(tensors, name=, process_set=)
broadcast(tensor, root_rank, name=, process_set=)
broadcast_(tensor, root_rank, name=, process_set=)
broadcast_async(tensor, root_rank, name=, process_set=)
broadcast_async_(tensor, root_rank, name=, process_set=)
alltoall(tensor, splits=, name=, process_set=)
alltoall_async(tensor, splits=, name=, process_set=)
reducescatter(tensor, {SCATTERS_NOW})
reducescatter_async(tensor, {SCATTERS})
grouped_reducescatter(tensors, {SCATTERS_NOW})
grouped_reducescatter_async(tensors, {SCATTERS})
join(device=)
barrier(process_set=)
poll(handle)
synchronize(handle)
init(comm=, process_sets=)
shutdown()
is_initialized()
start_timeline(file_path, mark_cycles=)
stop_timeline()
size()
local_size()
cross_size()
rank()
local_rank()
cross_rank()
mpi_threads_supported()
mpi_enabled()
mpi_built(verbose=)
gloo_enabled()
gloo_built(verbose=)
nccl_built(verbose=)
ddl_built(verbose=)
ccl_built(verbose=)
cuda_built(verbose=)
rocm_built(verbose=)
ProcessSet(ranks_or_comm)
global_process_set
Average
Sum
Adasum
Min
Max
Product
HorovodInternalError
"""
FUNCTIONS = """
broadcast_parameters(params, root_rank)
broadcast_optimizer_state(optimizer, root_rank, model=)
broadcast_object(obj, root_rank=, name=, process_set=)
allgather_object(obj, name=)
"""
OPTIMIZER = """
DistributedOptimizer(optimizer, named_parameters=, compression=, backward_passes_per_step=, op=, \
gradient_predivide_factor=, num_groups=, groups=, sparse_as_dense=, process_set=)
"""
BATCH_NORM = "SyncBatchNorm(num_features, eps=, momentum=, affine=, track_running_stats=)"
UTIL = """
extension_available(ext_base_name, verbose=)
mpi_built(verbose=)
gloo_built(verbose=)
nccl_built(verbose=)
ddl_built(verbose=)
ccl_built(verbose=)
gpu_available(ext_base_name, verbose=)
_cache
env
split_list
num_rank_is_power_2(num_rank)
is_iterable
is_version_greater_equal_than(ver, target)
check_extension(ext_name, ext_env_var, pkg_path)
check_installed_version(name, version, exception=)
get_ext_suffix()
get_extension_full_path(pkg_path)
get_average_backwards_compatibility_fun(reduce_ops)
"""
STATES = "State(bcast_object=, get_rank=)\nObjectState(bcast_object=, get_rank=)"
RUN = """
run(func, args=, kwargs=, num_proc=, min_num_proc=, max_num_proc=, slots=, reset_limit=, \
cooldown_range=, hosts=, hostfile=, host_discovery_script=, start_timeout=, ssh_port=, \
ssh_identity_file=, disable_cache=, output_filename=, verbose=, use_gloo=, use_mpi=, mpi_args=, \
network_interface=, network_interfaces=, executable=, np=, min_np=, max_np=)
"""
MODULES = {
    "horovod": RUN + "__version__",
    "horovod.torch": OPERATIONS
    + FUNCTIONS
    + OPTIMIZER
    + BATCH_NORM
    + """
        add_process_set(process_set)
        remove_process_set(process_set)
        Compression
        elastic
        mpi_ops
        functions
        optimizer
        compression
        sync_batch_norm
        _check_has_gpu
        """,
    "horovod.torch.mpi_ops": OPERATIONS
    + """
        _basics
        is_homogeneous()
        handle_average_backwards_compatibility(op, average)
        gpu_available
        num_rank_is_power_2(num_rank)
        """,
    "horovod.torch.functions": FUNCTIONS,
    "horovod.torch.optimizer": OPTIMIZER,
    "horovod.torch.compression": "Compression\nCompressor\nNoneCompressor\nFP16Compressor",
    "horovod.torch.sync_batch_norm": BATCH_NORM,
    "horovod.torch.elastic": """
        run(func)
        TorchState(model=, optimizer=)
        ObjectState
        ElasticSampler
        """,
    "horovod.torch.elastic.state": STATES
    + """
        TorchState(model=, optimizer=)
        StateHandler(value)
        ModelStateHandler
        OptimizerStateHandler
        SamplerStateHandler
        get_handler_registry()
        set_handler_registry(registry)
        """,
    "horovod.torch.elastic.sampler": "ElasticSampler(dataset, shuffle=, seed=)",
    "horovod.common.basics": "HorovodBasics(pkg_path=)",
    "horovod.common.elastic": STATES + "\nrun_fn(func, reset=)\nnotification_manager",
    "horovod.common.exceptions": """
        HorovodInternalError
        HostsUpdatedInterrupt(skip_sync=)
        HorovodVersionMismatchError(name, version, installed_version)
        get_version_mismatch_message(name, version, installed_version)
        """,
    "horovod.common.process_sets": """
        ProcessSet(ranks_or_comm)
        global_process_set
        add_process_set(process_set)
        remove_process_set(process_set)
        """,
    "horovod.common.util": UTIL,
    "horovod.data": """
        BaseDataLoader()
        AsyncDataLoaderMixin(async_loader_queue_size=, debug_data_loader=)
        """,
    "horovod.data.data_loader_base": "BaseDataLoader\nAsyncDataLoaderMixin",
    "horovod.runner": RUN,
    "horovod.runner.launch": "run_commandline()",
    "horovod.runner.common.util.env": "get_env_rank_and_size()",
    "horovod.runner.common.util.hosts": """
        HostInfo(hostname, slots)
        SlotInfo(hostname, rank, local_rank, cross_rank, size, local_size, cross_size)
        parse_hosts(hosts_string)
        parse_host_files(filename)
        get_host_assignments(hosts, min_num_proc, max_num_proc=)
        """,
    "horovod.runner.elastic.worker": "HostUpdateResult",
    "horovod.runner.util.threads": "in_thread(target, args=, name=, daemon=, silent=)",
}
ROWS = [
    (module, line.strip())
    for module, table in MODULES.items()
    for line in table.splitlines()
    if line.strip()
]
ATTRIBUTES = [
    (lambda: hvd.ProcessSet([0]), "size rank included process_set_id ranks mpi_comm"),
    (
        lambda: hvd.elastic.TorchState,
        "save restore sync commit check_host_updates reset on_reset register_reset_callbacks",
    ),
    (
        lambda: hvd.elastic.ElasticSampler(range(4)),
        "set_epoch record_batch load_state_dict state_dict reset epoch processed_num num_replicas "
        "rank num_samples total_size remaining_indices",
    ),
    (
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1)], lr=0.1)),
        "_parameter_names backward_passes_per_step set_backward_passes_per_step synchronize "
        "skip_synchronize step zero_grad load_state_dict",
    ),
    (lambda: hvd.Compression, "none fp16"),
    (
        lambda: hvd.mpi_ops._basics,
        "init shutdown is_initialized rank size local_rank local_size cross_rank cross_size "
        "is_homogeneous mpi_built gloo_built nccl_built mpi_enabled gloo_enabled start_timeline "
        "stop_timeline mpi_threads_supported _get_process_set_ids_and_ranks _process_set_rank "
        "_process_set_size Average Sum Adasum Min Max Product",
    ),
]


def words_of(function: Any) -> list[str]:
    """The arguments of a function, in the form of the table."""
    return [
        one.name + ("" if one.default is inspect.Parameter.empty else "=")
        for one in inspect.signature(function).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]


@pytest.mark.parametrize(("module", "row"), ROWS, ids=lambda value: value.partition("(")[0])
def test_name_is_there_with_its_arguments(module: str, row: str) -> None:
    horovod.install()
    name, has_arguments, rest = row.partition("(")
    found = getattr(importlib.import_module(module), name)
    if has_arguments:
        expected = [word.strip() for word in rest.rstrip(")").split(",") if word.strip()]
        assert words_of(found)[: len(expected)] == expected


@pytest.mark.usefixtures("initialised")
@pytest.mark.parametrize(("make", "names"), ATTRIBUTES)
def test_objects_have_horovods_attributes(make: Any, names: str) -> None:
    found = make()
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_every_operation_is_the_same_object_under_both_names() -> None:
    horovod.install()
    alias = importlib.import_module("horovod.torch")
    assert alias is hvd
    assert importlib.import_module("horovod.torch.elastic.state") is hvd.elastic.state


def test_versions_that_do_not_fit_are_an_import_error() -> None:
    horovod.install()
    exceptions = importlib.import_module("horovod.common.exceptions")
    error = exceptions.HorovodVersionMismatchError("torch", "2.13.0", "2.1.0")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "2.13.0", "2.1.0")
    assert "2.13.0" in str(error)
    assert "2.1.0" in str(error)


@pytest.mark.usefixtures("initialised")
def test_basics_know_the_process_sets() -> None:
    basics = hvd.mpi_ops._basics
    assert basics._process_set_rank(0) == hvd.rank()
    assert basics._process_set_size(0) == hvd.size()
    with pytest.raises(ValueError, match="process set 99"):
        basics._process_set_size(99)


def test_batches_are_loaded_ahead_in_a_thread() -> None:
    horovod.install()
    data = importlib.import_module("horovod.data")

    class Numbers(data.BaseDataLoader):  # type: ignore[misc, name-defined]
        def __init__(self, last: int) -> None:
            self.last = last

        def __len__(self) -> int:
            return self.last

        def _iterate(self) -> Any:
            yield from range(self.last)
            if self.last == 3:
                raise OSError("no more")

        def _process_batch(self, batch: int) -> int:
            return batch * 10

    class Ahead(data.AsyncDataLoaderMixin, Numbers):  # type: ignore[misc, name-defined]
        pass

    for ahead in (0, 1, 64):
        loader = Ahead(ahead, False, 5)
        assert list(loader) == list(loader) == [0, 10, 20, 30, 40]
        assert next(iter(loader)) == 0  # the test leaves the iterator unfinished
        loader.close_async_loader()
    with pytest.raises(OSError, match="no more"):
        list(Ahead(2, False, 3))


def test_ranks_get_the_slots_of_hosts_in_their_order() -> None:
    horovod.install()
    hosts = importlib.import_module("horovod.runner.common.util.hosts")
    found = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:1"), 3)
    places = [(one.hostname, one.rank, one.local_rank, one.cross_rank) for one in found]
    assert places == [("a", 0, 0, 0), ("a", 1, 1, 0), ("b", 2, 0, 1)]
    sizes = [(one.size, one.local_size, one.cross_size) for one in found]
    assert sizes == [(3, 2, 2), (3, 2, 1), (3, 1, 2)]
    assert len(hosts.get_host_assignments(hosts.parse_hosts("a:2,b:2"), 1, 3)) == 3
    with pytest.raises(ValueError, match="3 slots"):
        hosts.get_host_assignments(hosts.parse_hosts("a:2,b:1"), 4)


def test_rank_and_size_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    horovod.install()
    env = importlib.import_module("horovod.runner.common.util.env")
    for name in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        monkeypatch.delenv(f"{name}_RANK", raising=False)
        monkeypatch.delenv(f"{name}_SIZE", raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "2")
    with pytest.raises(RuntimeError, match="only together"):
        env.get_env_rank_and_size()
    monkeypatch.setenv("PMI_SIZE", "3")
    assert env.get_env_rank_and_size() == (2, 3)


def test_functions_run_in_a_thread_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    horovod.install()
    in_thread = importlib.import_module("horovod.runner.util.threads").in_thread
    seen: list[Any] = []
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda found: failures.append(found.exc_type))
    thread = in_thread(seen.append, (3,), name="own")
    assert thread.daemon
    assert thread.name == "own"
    thread.join(10)
    for silent in (False, True):
        in_thread(int, ("no number",), silent=silent).join(10)
    assert (seen, failures) == ([3], [ValueError])
    with pytest.raises(ValueError, match="not a tuple"):
        in_thread(seen.append, 3)


def test_changes_of_hosts_are_flags() -> None:
    horovod.install()
    result = importlib.import_module("horovod.runner.elastic.worker").HostUpdateResult
    assert result.removed | result.added == result.mixed
    assert [int(one) for one in (result.no_update, result.removed, result.added)] == [0, 1, 2]
