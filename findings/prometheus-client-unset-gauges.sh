#!/usr/bin/env bash
# prometheus-client 0.26.0 with several processes (PROMETHEUS_MULTIPROC_DIR): a gauge that a process
# has defined and never set counts as 0. So a gauge of the mode "min" is 0, and one of the mode "max"
# whose values are negative is 0 too, as soon as one more process has imported the metrics: a
# launcher, a loader of data, the server that collects. A gauge that all have set is right.
#
# The mode "mostrecent" knows of unset gauges and is right. Minimum and maximum take the file of a
# process as it was made, and it was made with 0 in it.
#
# Seen (x86-64, Python 3.11), three processes set the gauge to -5, -7 and -6 or to 5, 7 and 6:
#   all have set it: max -5.0, min 5.0, mostrecent -6.0
#   a fourth has only defined it: max 0.0, min 0.0, mostrecent -6.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check prometheus-client==0.26.0
cat > "$folder/worker.py" <<'PROGRAM'
import sys

from prometheus_client import Gauge

score = Gauge("score", "negative", multiprocess_mode="max")
loss = Gauge("loss", "positive", multiprocess_mode="min")
latest = Gauge("latest", "negative", multiprocess_mode="mostrecent")
for number in map(float, sys.argv[1:]):
    score.set(-number)
    loss.set(number)
    latest.set(-number)
PROGRAM
cat > "$folder/collect.py" <<'PROGRAM'
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

registry = CollectorRegistry()
MultiProcessCollector(registry)
value = registry.get_sample_value
print(f"max {value('score')}, min {value('loss')}, mostrecent {value('latest')}")
PROGRAM
export PROMETHEUS_MULTIPROC_DIR=$folder/metrics
mkdir "$PROMETHEUS_MULTIPROC_DIR"
for number in 5 7 6; do
  "$folder/env/bin/python" "$folder/worker.py" $number
done
set_by_all=$("$folder/env/bin/python" "$folder/collect.py")
echo "all have set it: $set_by_all"
"$folder/env/bin/python" "$folder/worker.py"
one_unset=$("$folder/env/bin/python" "$folder/collect.py")
echo "a fourth has only defined it: $one_unset"
[ "$set_by_all" = "max -5.0, min 5.0, mostrecent -6.0" ]
[ "$one_unset" = "max 0.0, min 0.0, mostrecent -6.0" ]
