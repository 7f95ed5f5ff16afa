"""Mistral's own settings file (params.json) as an equivalent config.json.

Source: https://github.com/mistralai/mistral-inference (args.py, moe.py). A key that changes what
the model computes and has no counterpart here is an error, never left out. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.json_values import json_value

FILE = "params.json"
WEIGHTS = "consolidated*.safetensors"
DEFAULT_POSITIONS = 32768
"""Length of the checkpoints that state none (7B v0.1 to v0.3, 8x7B)."""
MAX_HEADER_BYTES = 100_000_000

_RENAMED = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings",
    "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
}
_ELSEWHERE = {"moe", "yarn", "quantization", "dtype", "use_biases", "causal"}
_NEEDED = ("dim", "hidden_dim", "n_layers", "n_heads", "vocab_size")
_HARMLESS = {"max_batch_size", "model_type", "_sliding_window", "model_max_length"}
_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def read_config(path: Path) -> dict[str, Any] | None:
    """Return the contents that config.json would have, None if the path has no params.json.

    Raises: ConfigError
    """
    file = path / FILE
    return hf_config(path, read_json(file)) if file.is_file() else None


def hf_config(path: str | Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents that config.json would have. Raises: ConfigError naming params.json and
    the key."""
    where = str(Path(path) / FILE)
    _check(params, where)
    config = {new: params[old] for old, new in _RENAMED.items() if params.get(old) is not None}
    experts = params.get("moe")
    config["architectures"] = ["MixtralForCausalLM" if experts else "MistralForCausalLM"]
    config["model_type"] = "mixtral" if experts else "mistral"
    # No checkpoint's file names them: every Mistral tokenizer begins with <unk>, <s>, </s>.
    config |= {"bos_token_id": 1, "eos_token_id": 2}
    config.setdefault("max_position_embeddings", DEFAULT_POSITIONS)
    config.setdefault("sliding_window", None)
    config.setdefault("rope_theta", 10_000.0 if config["sliding_window"] else 1_000_000.0)
    config.setdefault("tie_word_embeddings", False)
    dtype = params.get("dtype") or stored_type(path)
    return {
        **config,
        **({"torch_dtype": dtype} if dtype else {}),
        **(_experts(experts, where) if experts else {}),
        **(_yarn(params["yarn"], config["rope_theta"], where) if params.get("yarn") else {}),
        **_quantization(params.get("quantization"), where),
    }


def stored_type(path: str | Path) -> str | None:
    """Return the type of the embedding table in the weight files; None if none can be read."""
    for file in sorted(Path(path).glob(WEIGHTS)):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(length) if length <= MAX_HEADER_BYTES else b""
        try:
            entry = json_value(text)["tok_embeddings.weight"]
            return _TYPES.get(entry["dtype"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # in another file, or damaged: the check of the weights reports that
    return None


def _check(params: Mapping[str, Any], where: str) -> None:
    """Raises: ConfigError for keys that are missing, or mean something that is not supported."""
    missing = [key for key in _NEEDED if key not in params]
    if missing:
        raise ConfigError(
            f"{missing[0]} is missing.", where=where, fix="download the file again, or set "
            f"--hf-overrides.{_RENAMED[missing[0]]} and use config.json."
        )  # fmt: skip
    given = {key for key, value in params.items() if value not in (None, False, {}, [])}
    strange = sorted(given - set(_RENAMED) - _ELSEWHERE - _HARMLESS)
    strange += [key for key in ("use_biases",) if params.get(key)]
    strange += [key for key in ("sliding_window",) if isinstance(params.get(key), list)]
    strange += ["causal"] if params.get("causal") is False else []
    if strange:
        raise ConfigError(
            f"{strange[0]} = {json.dumps(params[strange[0]])[:60]} asks for something that is not "
            "built for Mistral's own layout.",
            where=where,
            fix="use the checkpoint in Hugging Face layout with --config-format hf.",
        )


def _experts(moe: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings of Mixtral's experts. Raises: ConfigError for other mixtures."""
    known = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}
    if set(moe) != set(known):
        odd = sorted(set(moe) ^ set(known))[0]
        raise ConfigError(
            f"moe.{odd}: only Mixtral's mixture of experts ({', '.join(known)}) is supported.",
            where=where,
            fix="use the checkpoint in Hugging Face layout with --config-format hf.",
        )
    return {new: moe[old] for old, new in known.items()}


def _yarn(yarn: Mapping[str, Any], theta: float, where: str) -> dict[str, Any]:
    """Return the settings of a stretched rotary embedding. Source: Peng et al. 2023 (YaRN)."""
    try:
        rope = {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": float(yarn["factor"]),
            "original_max_position_embeddings": int(yarn["original_max_position_embeddings"]),
            "beta_fast": float(yarn.get("beta", 32)),
            "beta_slow": float(yarn.get("alpha", 1)),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"yarn: {error} is missing or wrong.", where=where) from error
    if not yarn.get("apply_scale", True):
        rope["attention_factor"] = 1.0
    return {"rope_scaling": rope}


def _quantization(stored: Any, where: str) -> dict[str, Any]:
    """Return the entry that names the method. Raises: ConfigError when it is unknown."""
    if not stored:
        return {}
    if isinstance(stored, Mapping) and "quant_method" in stored:
        return {"quantization_config": dict(stored)}
    if isinstance(stored, Mapping) and stored.get("qformat_weight") == "fp8_e4m3":
        scheme = {"TENSOR": "static", "NO_SCALES": "dynamic"}.get(str(stored.get("qscheme_act")))
        if scheme:
            method = {"quant_method": "fp8", "activation_scheme": scheme}
            return {"quantization_config": method}
    raise ConfigError(
        f"quantization = {json.dumps(stored)[:80]} is not known.",
        where=where,
        fix="use the checkpoint in Hugging Face layout with --config-format hf.",
    )
