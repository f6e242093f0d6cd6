#!/usr/bin/env bash
# TensorFlow 2.21.0: `all_reduce` of a replica context adds tensors of different shapes by place,
# without an error, if they have as many elements: (2, 3) and (3, 2) give both replicas a sum, each
# in its own shape, whose elements belong to different places.
#
# Whether it does depends on what should not matter. MirroredStrategy on CPUs, two replicas:
#   HierarchicalCopyAllReduce        adds, in tf.function and eagerly
#   the same with num_packs=0        raises
#   ReductionToOneDevice             raises
#   the default (collective ops)     adds in tf.function, raises eagerly
# The cause: a lone tensor is packed, which makes it flat, and only flat shapes are compared. So a
# replica that has transposed a gradient trains on with wrong numbers, where the same program with
# another option, or outside of tf.function, stops.
#
# Seen on x86-64, Python 3.11, as above. Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0
cat > "$folder/program.py" <<'PROGRAM'
import sys

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
SHAPES = ((2, 3), (3, 2))


def total(x):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)


def outcome(operations, function):
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"], operations)
    given = strategy.experimental_distribute_values_from_function(
        lambda one: tf.reshape(tf.range(6.0) * 10**one.replica_id_in_sync_group,
                               SHAPES[one.replica_id_in_sync_group])
    )
    try:
        found = strategy.experimental_local_results(strategy.run(function, args=(given,)))
    except (ValueError, tf.errors.OpError):
        return "raises"
    assert all(one.numpy().ravel().tolist() == [0, 11, 22, 33, 44, 55] for one in found)
    return "adds, shapes " + " and ".join(str(tuple(one.shape)) for one in found)


WAYS = {
    "HierarchicalCopyAllReduce": tf.distribute.HierarchicalCopyAllReduce,
    "HierarchicalCopyAllReduce(num_packs=0)": lambda: tf.distribute.HierarchicalCopyAllReduce(0),
    "ReductionToOneDevice": tf.distribute.ReductionToOneDevice,
    "the default": lambda: None,
}
FORMS = {"tf.function": lambda: tf.function(total), "eager": lambda: total}
seen = {}
for way, make in WAYS.items():
    for form, function in FORMS.items():
        seen[way, form] = outcome(make(), function())
        print(f"{way}, {form}: {seen[way, form]}")
ADDS = {("HierarchicalCopyAllReduce", "tf.function"), ("HierarchicalCopyAllReduce", "eager"),
        ("the default", "tf.function")}
sys.exit(any(text.startswith("adds") != (row in ADDS) for row, text in seen.items()))
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 "$folder/env/bin/python" "$folder/program.py" 2> "$folder/errors" ||
    { tail -5 "$folder/errors"; exit 1; }
