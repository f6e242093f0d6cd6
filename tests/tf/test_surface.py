"""Names, signatures and modules of Horovod's front ends for TensorFlow and Keras."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
from tf.given import hvd

import gradred.horovod

hvd_keras = pytest.importorskip("gradred.keras")

NAMES = """
    allreduce grouped_allreduce allgather grouped_allgather broadcast broadcast_ alltoall
    reducescatter grouped_reducescatter join size_op rank_op local_size_op local_rank_op
    process_set_included_op broadcast_variables broadcast_object broadcast_object_fn
    allgather_object DistributedOptimizer DistributedGradientTape PartialDistributedGradientTape
    SyncBatchNormalization Compression elastic init shutdown is_initialized start_timeline
    stop_timeline size local_size cross_size rank local_rank cross_rank is_homogeneous
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built
    ccl_built cuda_built rocm_built ProcessSet global_process_set add_process_set
    remove_process_set Average Sum Adasum Min Max Product _executing_eagerly util mpi_ops
    check_num_rank_power_of_2 vars_to_refs refs_to_vars
"""
SIGNATURES = {
    "allreduce": "tensor average device_dense device_sparse compression op prescale_factor "
    "postscale_factor name process_set ignore_name_scope",
    "grouped_allreduce": "tensors average device_dense device_sparse compression op "
    "prescale_factor postscale_factor process_set ignore_name_scope name",
    "allgather": "tensor name ignore_name_scope process_set",
    "broadcast": "tensor root_rank name ignore_name_scope process_set",
    "broadcast_": "variables root_rank name process_set",
    "alltoall": "tensor splits name ignore_name_scope process_set",
    "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope "
    "prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors device_dense compression op process_set prescale_factor "
    "postscale_factor",
    "size_op": "process_set_id name",
    "broadcast_variables": "variables root_rank process_set inplace",
    "broadcast_object": "obj root_rank session name process_set",
    "allgather_object": "obj session name process_set",
    "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression "
    "sparse_as_dense backward_passes_per_step op gradient_predivide_factor "
    "average_aggregated_gradients num_groups groups process_set scale_local_gradients",
    "DistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense "
    "op gradient_predivide_factor num_groups groups process_set scale_local_gradients",
}
OF_KERAS = {
    "DistributedOptimizer": "optimizer name device_dense device_sparse compression "
    "sparse_as_dense gradient_predivide_factor op backward_passes_per_step "
    "average_aggregated_gradients num_groups groups process_set scale_local_gradients",
    "allreduce": "value name average prescale_factor postscale_factor op compression",
    "allgather": "value name",
    "broadcast": "value root_rank name",
    "reducescatter": "value name op",
    "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
}


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("wanted", NAMES.split())
def test_names_of_horovod(wanted: str) -> None:
    assert hasattr(hvd, wanted)


@pytest.mark.parametrize("wanted", SIGNATURES)
def test_parameters_are_horovods(wanted: str) -> None:
    assert parameters(getattr(hvd, wanted)) == SIGNATURES[wanted].split()


@pytest.mark.parametrize("wanted", OF_KERAS)
def test_parameters_of_keras_are_horovods(wanted: str) -> None:
    assert parameters(getattr(hvd_keras, wanted)) == OF_KERAS[wanted].split()


def test_modules_are_the_same_under_horovods_names() -> None:
    gradred.horovod.install()
    for name, module in {
        "horovod.tensorflow": hvd,
        "horovod.tensorflow.mpi_ops": hvd.mpi_ops,
        "horovod.tensorflow.elastic": hvd.elastic,
        "horovod.tensorflow.keras": hvd_keras,
        "horovod.tensorflow.keras.callbacks": hvd_keras.callbacks,
        "horovod.tensorflow.keras.elastic": hvd_keras.elastic,
        "horovod.keras": hvd_keras,
        "horovod.keras.callbacks": hvd_keras.callbacks,
    }.items():
        assert importlib.import_module(name) is module


def test_what_is_absent_says_what_to_use() -> None:
    with pytest.raises(AttributeError, match="backward_passes_per_step"):
        _ = hvd.LocalGradientAggregationHelper
    with pytest.raises(AttributeError, match=r"dataset\.shard"):
        _ = hvd.data
