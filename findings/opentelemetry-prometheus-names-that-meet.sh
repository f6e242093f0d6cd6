#!/usr/bin/env bash
# opentelemetry-exporter-prometheus 0.66b2: attributes whose names differ only in characters that
# Prometheus does not have, such as "rank.id" and "rank_id", become one label with the value of the
# last one. Metrics whose names do so become one name, with two samples of the same labels in one
# answer. No error is raised and nothing is logged.
#
# By OpenTelemetry's specification of such metrics in Prometheus, these values are joined with ";".
# prometheus_client's parser reads both samples; a table by name and labels keeps one of them.
#
# Seen (OpenTelemetry 1.45.2, prometheus-client 0.26.0, Python 3.11):
#   grad_norm_total{} 1.0
#   grad_norm_total{} 2.0
#   steps_total{rank_id="b"} 8.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  opentelemetry-exporter-prometheus==0.66b2 opentelemetry-sdk==1.45.2 prometheus-client==0.26.0
cat > "$folder/program.py" <<'PROGRAM'
import sys

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

meter = MeterProvider(metric_readers=[PrometheusMetricReader()]).get_meter("training")
meter.create_counter("grad.norm").add(1)
meter.create_counter("grad_norm").add(2)
meter.create_counter("steps").add(8, {"rank.id": "a", "rank_id": "b"})
seen = []
for family in text_string_to_metric_families(generate_latest(REGISTRY).decode()):
    for sample in family.samples:
        if sample.name in ("grad_norm_total", "steps_total"):
            pairs = sample.labels.items()
            labels = (f'{key}="{value}"' for key, value in pairs if "otel" not in key)
            seen.append(f"{sample.name}{{{', '.join(labels)}}} {sample.value}")
seen.sort()
print(*seen, sep="\n")
expected = ["grad_norm_total{} 1.0", "grad_norm_total{} 2.0", 'steps_total{rank_id="b"} 8.0']
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
