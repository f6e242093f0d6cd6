"""How a model and its batch are divided among GPUs: columns of a table, and what they contradict.

A replica of the model has `tensor_parallel` x `pipeline_parallel` GPUs. Neighbours hold the parts
of a layer, then come the replicas, then the stages (Narayanan et al., 2021, arXiv 2104.04473).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradred_lab.simulate import networks, tables
from gradred_lab.simulate.networks import Shape
from gradred_lab.simulate.tables import Column

SHARDINGS = {
    **{"": "", "none": "", "ddp": ""},
    **{"zero1": "zero1", "zero2": "zero2", "zero3": "zero3", "fsdp": "zero3"},
}
"""What each name means; ZeRO's stages by Rajbhandari et al., 2020 (arXiv 1910.02054)."""

MOST_REPLICAS = 4096
"""Among which collective operations of a divided model are simulated."""

Found = tuple[str, str, str]
"""A column, what is wrong with it, and the remedy."""


def sharding(text: str) -> str | None:
    """ZeRO's stage; None: each replica has all of gradients, parameters and optimizer."""
    name = text.lower().replace("-", "").replace(" ", "").replace("_", "")
    if name not in SHARDINGS:
        raise ValueError(f"is {text!r}, and there are {', '.join(filter(None, SHARDINGS))}")
    return SHARDINGS[name] or None


COLUMNS = {
    "sharding": Column(sharding, may_lack=True),
    "tensor_parallel": Column(tables.optional_count, may_lack=True),
    "pipeline_parallel": Column(tables.optional_count, may_lack=True),
    "micro_batches": Column(tables.optional_count, may_lack=True),
    "global_batch": Column(tables.optional_count, may_lack=True),
}


def contradiction(record: Mapping[str, Any]) -> Found | None:
    """What the values of a line say that cannot all be true; None: nothing."""
    return next(_contradictions(record), None)


def _contradictions(record: Mapping[str, Any]) -> Iterator[Found]:
    parts, stages = record["tensor_parallel"] or 1, record["pipeline_parallel"] or 1
    gpus, nodes, replica = record["gpus"], record["nodes"], parts * stages
    divided = "tensor_parallel" if parts > 1 else "pipeline_parallel"
    if gpus % replica:
        found = f"a replica has {parts} x {stages} GPUs, and {gpus} are no multiple of it"
        yield divided, found, "Change gpus, tensor_parallel or pipeline_parallel"
        return
    replicas = gpus // replica
    yield from _of_the_batch(record, replicas)
    if stages == 1 and (record["micro_batches"] or 1) > 1:
        found = f"it is {record['micro_batches']}, and there is one stage"
        yield "micro_batches", found, "Leave it out, or give pipeline_parallel"
    if replica == 1 and not record["sharding"]:
        return
    where = divided if replica > 1 else "sharding"
    if gpus % nodes:
        yield "nodes", f"{gpus} GPUs are no multiple of {nodes} nodes", "Give as many to each node"
    if replicas > MOST_REPLICAS:
        found = f"there are {replicas:,} replicas, and at most {MOST_REPLICAS:,} are simulated"
        yield where, found, "Ask for fewer GPUs"
    if "parameter server" in f"{record['options']} {record['framework']}".lower():
        found = "a divided model has no parameter servers, which options or framework names"
        yield where, found, "Leave out one of both"
    if replica > 1:
        yield from _of_the_model(record, parts, stages)


def _of_the_batch(record: Mapping[str, Any], replicas: int) -> Iterator[Found]:
    batch, whole, pieces = (record[name] for name in ("batch", "global_batch", "micro_batches"))
    if batch is None and whole is None:
        yield "batch", "it is empty, and so is global_batch", "Fill one of both"
        return
    if whole is not None and whole % replicas:
        found = f"it is {whole}, which {replicas} replicas cannot share equally"
        yield "global_batch", found, f"Give a multiple of {replicas}"
        return
    if whole is not None and batch is not None and batch * replicas != whole:
        found = f"it is {whole}, and {replicas} replicas with a batch of {batch} make "
        found += f"{batch * replicas}"
        yield "global_batch", found, "Leave out one of both"
        return
    each = whole // replicas if whole is not None else batch
    if pieces is not None and each % pieces:
        found = f"it is {pieces}, and a replica has a batch of {each}"
        yield "micro_batches", found, f"Give a divisor of {each}"


def _of_the_model(record: Mapping[str, Any], parts: int, stages: int) -> Iterator[Found]:
    shape = networks.find(record["model"], record["options"]).shape
    where = "tensor_parallel" if parts > 1 else "pipeline_parallel"
    if shape is None:
        found = f"nobody knows how many elements the layers of {record['model']!r} pass on"
        yield where, found, "Write the model as h4096 l32 s8192 v128256"
        return
    yield from _of_the_shape(shape, parts, stages)


def _of_the_shape(shape: Shape, parts: int, stages: int) -> Iterator[Found]:
    if shape.hidden % parts:
        found = f"it is {parts}, and layers have a width of {shape.hidden}"
        yield "tensor_parallel", found, f"Give a divisor of {shape.hidden}"
    if shape.layers % stages:
        found = f"it is {stages}, and the model has {shape.layers} layers"
        yield "pipeline_parallel", found, f"Give a divisor of {shape.layers}"
