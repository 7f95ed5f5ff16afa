"""config.json of models that compare queries with pages as pictures, by vectors of their tokens.

The settings of the model below (`vlm_config`) become the checkpoint's own; the query's words come
from its processor's settings.
Source: config.json and processor_config.json of vidore/colpali-v1.3-hf, vidore/colqwen2-v1.0-hf and
ModernVBERT/colmodernvbert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail_plugins.published.layout import Json, refuse

BELOW = "vlm_config"
QUERY = "query"
NUM_ROOM_TOKENS = 10
"""How many tokens without words follow a query, as room for vectors."""
USUAL_SIZE = 128


def _colpali(folder: Path, settings: Mapping[str, Any], tokens: Mapping[str, Any]) -> str:
    begin = _word(tokens, "bos_token", "<bos>")
    first = "" if _is_added(folder, begin) else begin
    room = _word(tokens, "pad_token", "<pad>") * NUM_ROOM_TOKENS
    return f"{first}{settings.get('query_prefix') or 'Question: '}{{text}}{room}\n"


def _colqwen2(folder: Path, settings: Mapping[str, Any], tokens: Mapping[str, Any]) -> str:
    room = _word(tokens, "pad_token", "<|endoftext|>") * NUM_ROOM_TOKENS
    return f"{settings.get('query_prefix') or 'Query: '}{{text}}{room}\n"


def _colmodernvbert(folder: Path, settings: Mapping[str, Any], tokens: Mapping[str, Any]) -> str:
    room = "<end_of_utterance>" * NUM_ROOM_TOKENS
    return f"{settings.get('query_prefix') or ''}{{text}}{room}"


def _is_added(folder: Path, word: str) -> bool:
    """Return whether the tokenizer itself puts a special token around texts."""
    file = folder / "tokenizer.json"
    content = file.read_text(encoding="utf-8") if file.is_file() else ""
    _, _, rest = content.partition('"post_processor"')
    return f'"{word}"' in rest.partition('"model"')[0]


QUERIES: dict[str, Callable[[Path, Mapping[str, Any], Mapping[str, Any]], str]] = {
    "colpali": _colpali,
    "colqwen2": _colqwen2,
    "colmodernvbert": _colmodernvbert,
}
"""Model type -> the words around a query, by the settings of the processor and the tokenizer."""
SEES_ALL = ("colpali",)
"""Types whose decoder attends in both directions."""


def with_model_below(raw: Json, folder: Path) -> Json:
    """Return the settings with those of the model below as the checkpoint's own; other types are
    returned unchanged. Raises: ConfigError without such settings"""
    model_type = str(raw.get("model_type"))
    if model_type not in QUERIES:
        return raw
    below = raw.get(BELOW)
    if not isinstance(below, dict):
        raise refuse("the model below has no settings.", BELOW, "fetch config.json again.")
    text = below.get("text_config")
    text = dict(text) if isinstance(text, dict) else {**below, "model_type": "qwen2_vl_text"}
    text["dim"] = raw.get("embedding_dim", USUAL_SIZE)
    if model_type in SEES_ALL:
        text["is_causal"] = False
    names = ("vision_config", "image_token_id", "image_token_index")
    own = {name: below[name] for name in names if name in below}
    settings = read_json(folder / "processor_config.json", is_required=False)
    tokens = read_json(folder / "tokenizer_config.json", is_required=False)
    prompts = {QUERY: QUERIES[model_type](folder, settings, tokens)}
    return {**raw, **own, "text_config": text, "prompts": prompts}


def _word(tokens: Mapping[str, Any], name: str, usual: str) -> str:
    """Return the text of a special token."""
    word = tokens.get(name)
    word = word.get("content") if isinstance(word, dict) else word
    return word if isinstance(word, str) else usual
