"""JSON of strangers is read by one reader, whose faults are one error."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BARE = re.compile(r"\bjson\.loads?\(|\bmsgspec\.json\.decode\(")
READER = "core/dovetail/json_values.py"
BY_THEMSELVES = frozenset(
    [
        "core/dovetail/batch/progress.py",
        "core/dovetail/batch/results.py",
        "core/dovetail/bench/answers.py",
        "core/dovetail/bench/compare.py",
        "core/dovetail/bench/profiling.py",
        "core/dovetail/bench/serve.py",
        "core/dovetail/bench/serve_pooled.py",
        "core/dovetail/cli/client.py",
        "core/dovetail/cli/collect_env.py",
        "core/dovetail/config/checkpoint/kv_scales.py",
        "core/dovetail/config/checkpoint/modelscope.py",
        "core/dovetail/config/checkpoint/weights_check.py",
        "core/dovetail/config/rules/adapters.py",
        "core/dovetail/config/rules/log_config.py",
        "core/dovetail/config/sections/convert.py",
        "core/dovetail/engine/client/text_worker.py",
        "core/dovetail/gateway/connections.py",
        "core/dovetail/inspect/trial.py",
        "core/dovetail/inspect/warnings.py",
        "core/dovetail/interfaces/block_files.py",
        "core/dovetail/interfaces/constraint.py",
        "core/dovetail/multimodal/voxtral.py",
        "core/dovetail/quantize/job.py",
        "core/dovetail/registry/options.py",
        "core/dovetail/server/api/batches/lines.py",
        "core/dovetail/server/api/batches/runner.py",
        "core/dovetail/server/api/batches/storage.py",
        "core/dovetail/server/api/responses/input.py",
        "core/dovetail/server/api/responses/mcp.py",
        "core/dovetail/server/api/responses/routes.py",
        "core/dovetail/server/api/responses/tool_turns.py",
        "core/dovetail/server/generate/content_blocks.py",
        "core/dovetail/server/generate/structured_outputs.py",
        "core/dovetail/server/generate/template/messages.py",
        "core/dovetail/server/launch/beats.py",
        "core/dovetail/server/launch/records.py",
        "core/dovetail/structured_output/unique_items/json_place.py",
        "core/dovetail/syntax/json_text.py",
        "plugins/dovetail_plugins/bench_datasets/jsonl.py",
        "plugins/dovetail_plugins/bench_datasets/sharegpt.py",
        "plugins/dovetail_plugins/executors/_launched_ranks.py",
        "plugins/dovetail_plugins/gguf/_grids.py",
        "plugins/dovetail_plugins/gguf/_vocabulary_write.py",
        "plugins/dovetail_plugins/kv_connectors/multi.py",
        "plugins/dovetail_plugins/load_formats/_safetensors_header.py",
        "plugins/dovetail_plugins/mistral/_params.py",
        "plugins/dovetail_plugins/quantization/bitsandbytes.py",
        "plugins/dovetail_plugins/tokenizers/_fast.py",
        "plugins/dovetail_plugins/tokenizers/_plain_words.py",
    ]
)
"""Files that name a parser's exceptions themselves, or read what this server has written. A new one
uses `dovetail.json_values`; one that does so leaves the list."""


def test_new_places_read_json_by_the_one_reader() -> None:
    found = {
        str(path.relative_to(ROOT))
        for part in ("core", "plugins")
        for path in (ROOT / part).rglob("*.py")
        if BARE.search(path.read_text(encoding="utf-8"))
    }
    found = {name for name in found if "/testing/" not in name} - {READER}
    assert found - BY_THEMSELVES == set(), "use dovetail.json_values here"
    assert BY_THEMSELVES - found == set(), "no longer read JSON by themselves"
