"""The metrics of several API processes, told by any of them as one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

RECORD = """
from dovetail.observability import metrics
metrics.OPEN_REQUESTS.inc(3)
metrics.DISCONNECTS.inc(2)
metrics.gauge("dovetail:test_newest", "x").set({number})
print(metrics.exposition().decode())
"""


def test_counters_and_own_gauges_add_up_and_the_engines_are_the_newest(tmp_path: Path) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": paths}
    for number in (7, 5):
        code = RECORD.format(number=number)
        text = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }
    assert found["dovetail:open_http_requests"] == 6
    assert found["dovetail:disconnects_total"] == 4
    assert found["dovetail:test_newest"] == 5
