#!/usr/bin/env bash
# JAX 0.4.35: `jax.tree_util.tree_flatten_with_path` and `tree_map_with_path` name the leaves of a
# defaultdict wrongly where its keys were not inserted in sorted order: the value of "a" comes with
# the path ["b"], and the other way round. The leaves are in the order of sorted keys, the paths in
# that of insertion.
#
# So a rule by name, such as "no weight decay for the bias", acts on another parameter, and a
# checkpoint by paths exchanges two arrays of one shape, without an error. A dict is right, and so is
# a defaultdict in JAX 0.10.2.
#
# Seen (x86-64, Python 3.11):
#   0.4.35: dict [('a', 1), ('b', 2)], defaultdict [('b', 1), ('a', 2)]
#   0.10.2: dict [('a', 1), ('b', 2)], defaultdict [('a', 1), ('b', 2)]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import collections

import jax

given, found = {"b": 2, "a": 1}, []
for kind in (dict, lambda given: collections.defaultdict(int, given)):
    paths, _ = jax.tree_util.tree_flatten_with_path(kind(given))
    found.append([(path[0].key, leaf) for path, leaf in paths])
print(*found)
PROGRAM
for version in 0.4.35 0.10.2; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check \
        "jax==$version" "jaxlib==$version" "numpy<2.3"
    echo "$version: $("$folder/$version/bin/python" "$folder/program.py")" | tee -a "$folder/seen"
done
diff "$folder/seen" - <<'EXPECTED'
0.4.35: [('a', 1), ('b', 2)] [('b', 1), ('a', 2)]
0.10.2: [('a', 1), ('b', 2)] [('a', 1), ('b', 2)]
EXPECTED
