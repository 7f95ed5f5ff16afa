"""A checkpoint's config.json as plain facts, without importing transformers.

Format: the Hugging Face model folder (config.json, generation_config.json). Field names differ
between model types; `_NAMES` lists the ones in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.formats import read_settings
from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.checkpoint.model_facts import facts_of, unused_positions
from dovetail.config.checkpoint.odd_values import odd_values_named
from dovetail.config.checkpoint.quant_files import add_quantization
from dovetail.config.checkpoint.rope import rope_rules
from dovetail.config.checkpoint.spellings import DTYPES, WHOLE_FIRST, override_with_part, settled
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EncoderSpec, ModelSpec
from dovetail.registry.files import import_target

_NAMES: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed", "emb_dim", "dim"),
    "num_layers": (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "decoder_layers",
        "num_decoder_layers",
    ),
    "num_heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "attention_heads",
        "decoder_attention_heads",
        "num_decoder_attention_heads",
    ),
    "num_kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
        "kv_n_heads",
    ),
    "head_size": ("head_dim", "kv_channels", "attention_head_dim"),
    "max_position_tokens": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "n_ctx",
        "model_max_length",
    ),
}
CONFIG = "config.json"
GENERATES = "ForCausalLM"
"""Suffix of class names that the model type's `runs_as` replaces."""
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
ALONE = "ForCausalLM"
"""Suffix of decoder classes without the encoder that their model type may have."""
DEFAULT_POSITIONS = 2048
"""Maximum length for checkpoints that state none."""


def load_model_facts(
    path: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    dtype: str = "auto",
    config_path: str | Path | None = None,
    config_format: str = "auto",
    mmproj: str | None = None,
) -> ModelSpec:
    """Return the facts of the checkpoint at `path`; `dtype` is passed through.

    `config_path` is the folder of config.json if it is another one, `config_format` the layout of
    the settings (see `config.formats`), `mmproj` the value of --mmproj. Raises: ConfigError naming
    the file and the field at fault.
    """
    model_path, path = path, config_path or path
    raw = read_settings(path, config_format, mmproj)
    with odd_values_named(Path(path) / CONFIG, raw, are_the_cause=True):
        override_with_part(raw, _text_part(raw), overrides or {})
        return _facts(path, model_path, raw, dtype)


def _facts(
    path: str | Path, model_path: str | Path, raw: Mapping[str, Any], dtype: str
) -> ModelSpec:
    """Return the facts in these settings. Raises: ConfigError"""
    _refuse_parts_elsewhere(path, raw)
    text = text_config(raw)
    generation = read_json(Path(model_path) / "generation_config.json", is_required=False)
    num_heads = _count(path, text, "num_heads")
    hidden_size = _count(path, text, "hidden_size")
    num_layers = _count(path, text, "num_layers")
    _verify_windows(path, text, num_layers)
    facts = facts_of(text)
    name = architecture(path, raw)
    encoder = None if name.endswith(ALONE) else _encoder(text, generation)
    has_own_cache = bool(facts.cache) and (encoder is not None or not facts.encoder_input)
    row = import_target(facts.cache)(text) if has_own_cache else None
    return ModelSpec(
        path=str(model_path),
        architecture=name,
        hf_config=text,
        rope_rules=rope_rules(text),
        dtype=dtype,
        vocab_size=_count(path, text, "vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_kv_heads(path, text, num_heads),
        head_size=_head_size(path, text, hidden_size, num_heads),
        max_position_tokens=_positions(text),
        eos_token_ids=eos_token_ids(text, generation),
        bos_token_id=_first_id(text.get("bos_token_id")),
        cache=row,
        encoder=encoder,
        whole_config=dict(raw) if has_text_part(raw) or facts_of(raw).media else {},
    )


def read_config(path: Path) -> dict[str, Any] | None:
    """Return config.json, None if the folder has none. Raises: ConfigError."""
    file = path / CONFIG
    if not file.is_file():
        return None
    config = read_json(file)
    add_quantization(path, config, _text_part(config))
    return config


def _refuse_parts_elsewhere(path: str | Path, raw: Mapping[str, Any]) -> None:
    """Raise ConfigError if the text model is another checkpoint, as in Ultravox."""
    elsewhere = raw.get("text_model_id")
    if elsewhere and not has_text_part(raw):
        raise ConfigError(
            f"its text model is another checkpoint, {elsewhere}, and no part of this one.",
            where=f"{path}/config.json: text_model_id",
            fix="serve that one for texts alone; what joins the two is code that is not run here.",
        )


def has_text_part(raw: Mapping[str, Any]) -> bool:
    """Return whether the text model is one part of the checkpoint."""
    return _text_part(raw) is not None


def _text_part(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    return next((raw[key] for key in _TEXT_CONFIGS if isinstance(raw.get(key), dict)), None)


def text_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's settings: the nested ones of a multimodal checkpoint, else all.

    Missing values get the defaults of the model type. A setting that the type calls by another name
    is available under the usual name too.
    """
    nested = _text_part(raw)
    own = dict(raw) if nested is None else dict(nested)
    if nested is not None:
        whole = {key: raw[key] for key in WHOLE_FIRST if raw.get(key) is not None}
        if any(key in whole for key in DTYPES):
            own = {key: value for key, value in own.items() if key not in DTYPES}
        own |= whole
    own = settled(own)
    facts = facts_of(own)
    other = {usual: own[name] for usual, name in facts.attribute_map.items() if name in own}
    stated = {**facts.defaults, **other, **own}
    renamed = {usual: stated[name] for usual, name in facts.attribute_map.items() if name in stated}
    return renamed | stated | other


def architecture(path: str | Path, raw: Mapping[str, Any]) -> str:
    """Return the class name that the checkpoint was saved with. For a generating class it is the
    model type's own name, if the type shares the class with other types."""
    names = raw.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        own = facts_of(raw).runs_as
        return own if own and names[0].endswith(GENERATES) else names[0]
    raise ConfigError(
        '"architectures" names no model class.',
        where=str(Path(path) / "config.json"),
        fix="--hf-overrides.architectures '[\"LlamaForCausalLM\"]' with the model's class.",
    )


def eos_token_ids(text: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids that end an answer: config.json's, then others of generation_config.json."""
    ids = [*_ids(text.get("eos_token_id")), *_ids(generation.get("eos_token_id"))]
    return tuple(dict.fromkeys(ids))


def _find(text: Mapping[str, Any], fact: str) -> int | None:
    for holder in (text, text.get("attn_config")):
        if not isinstance(holder, Mapping):
            continue
        for name in _NAMES[fact]:
            value = holder.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _count(path: str | Path, text: Mapping[str, Any], fact: str) -> int:
    value = _find(text, fact)
    if value is None and fact == "num_layers":
        value = len(text.get("layers_block_type") or ()) or None
    if value is None:
        name = _NAMES[fact][0]
        has_none = ": models without attention are not supported" if fact == "num_heads" else ""
        raise ConfigError(
            f"{name} is missing or not a positive whole number{has_none}.",
            where=str(Path(path) / "config.json"),
            fix=f"set it with `--hf-overrides.{name} N`{' if the model has it' * bool(has_none)}.",
        )
    return value


def _verify_windows(path: str | Path, text: Mapping[str, Any], num_layers: int) -> None:
    """Raise ConfigError for an invalid window, or if only some layers have a type."""
    window, kinds = text.get("sliding_window"), text.get("layer_types")
    where = str(Path(path) / "config.json")
    if window is not None and (type(window) is not int or window < 0):
        raise ConfigError(
            f"sliding_window is {window!r}, which is not a number of tokens.",
            where=where,
            fix="set it with `--hf-overrides.sliding_window N`, or null for none.",
        )
    if isinstance(kinds, list) and 0 < len(kinds) < num_layers:
        raise ConfigError(
            f"layer_types names the kinds of {len(kinds)} layers, and there are {num_layers}.",
            where=where,
            fix="give the kind of each layer, or leave layer_types out.",
        )


def _encoder(text: Mapping[str, Any], generation: Mapping[str, Any]) -> EncoderSpec | None:
    """Return the encoder of a generating encoder-decoder, or None. The decoder's first tokens are
    the start token and the forced first token, if there is one."""
    facts = facts_of(text)
    if not facts.encoder_input:
        return None
    names = ("decoder_start_token_id", "forced_bos_token_id")
    stated = (_first_id(generation.get(name, text.get(name))) for name in names)
    start_ids = tuple(token_id for token_id in stated if token_id is not None)
    max_rows = text.get(facts.encoder_rows) if facts.encoder_rows else 0
    return EncoderSpec(
        kind=facts.encoder_input,
        max_rows=max_rows if isinstance(max_rows, int) else 0,
        start_ids=start_ids,
        alignment_heads=_head_pairs(generation.get("alignment_heads")),
    )


def _head_pairs(value: Any) -> tuple[tuple[int, int], ...]:
    """Return the (layer, head) pairs of a generation config; empty if it contains no valid ones."""
    pairs = value if isinstance(value, list) else ()
    return tuple(
        (pair[0], pair[1])
        for pair in pairs
        if isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(one, int) and one >= 0 for one in pair)
    )


def _positions(text: Mapping[str, Any]) -> int:
    """Return the maximum length for which the model has positions."""
    stated = _find(text, "max_position_tokens")
    return DEFAULT_POSITIONS if stated is None else stated - unused_positions(text)


def _kv_heads(path: str | Path, text: Mapping[str, Any], num_heads: int) -> int:
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        return 1  # how Falcon and BigCode state it; the count is then unused
    num_kv_heads = _find(text, "num_kv_heads") or num_heads
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"{num_heads} query heads cannot share {num_kv_heads} key and value heads.",
            where=str(Path(path) / "config.json"),
            fix="check num_attention_heads and num_key_value_heads.",
        )
    return num_kv_heads


def _head_size(path: str | Path, text: Mapping[str, Any], hidden: int, num_heads: int) -> int:
    stated = _find(text, "head_size")
    if stated is not None:
        return stated
    if hidden % num_heads:
        raise ConfigError(
            f"hidden_size {hidden} is not divisible by {num_heads} heads and head_dim is missing.",
            where=str(Path(path) / "config.json"),
            fix="set it with `--hf-overrides.head_dim N`.",
        )
    return hidden // num_heads


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]


def _first_id(value: Any) -> int | None:
    return next(iter(_ids(value)), None)
