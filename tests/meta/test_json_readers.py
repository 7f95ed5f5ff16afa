"""JSON of strangers is read by one reader, whose faults are one error."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BARE = re.compile(
    r"\bjson\.loads?\(|\bmsgspec\.json\.(decode|Decoder)\(|\borjson\b|\bJSONDecoder\b"
    r"|\.(model_)?validate_json\("
)
READER = "core/dovetail/json_values.py"
BY_THEMSELVES = {
    "plugins/dovetail_plugins/inspect/trial.py": "a refusal that its own child process has written",
    "core/dovetail/interfaces/data/constraint.py": "constraints that this server has written",
    "core/dovetail/json_text.py": "the one reader of calls that models write",
    "plugins/dovetail_plugins/executors/_launched_ranks.py": "an address that rank 0 has written",
    "plugins/dovetail_plugins/gguf/blocks/grids.py": "a file of the package",
    "plugins/dovetail_plugins/packed_weights/entry_file.py": "an index with a digest of its own",
    "plugins/dovetail_plugins/apis/ollama/weights.py": "facts that this process has written",
    "plugins/dovetail_plugins/tokenizers/_plain_words.py": "a tokenizer's own state",
}
"""Files that read JSON by themselves, and who wrote it. A new one uses `dovetail.json_values`."""


def test_new_places_read_json_by_the_one_reader() -> None:
    found = {
        str(path.relative_to(ROOT))
        for part in ("core", "plugins")
        for path in (ROOT / part).rglob("*.py")
        if BARE.search(path.read_text(encoding="utf-8"))
    }
    found = {name for name in found if "/dovetail_testing/" not in name} - {READER}
    assert found - set(BY_THEMSELVES) == set(), "use dovetail.json_values here"
    assert set(BY_THEMSELVES) - found == set(), "no longer read JSON by themselves"
