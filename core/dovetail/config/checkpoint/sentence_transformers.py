"""Settings of a sentence-transformers folder, in addition to config.json.

Format: `modules.json` lists the modules in order, each with a folder for its settings: a
Transformer (`sentence_bert_config.json`), a Pooling (`config.json`), Dense, LayerNorm, Normalize;
`config_sentence_transformers.json` has prompts. Source: sbert.net, "Creating Custom Models".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from dovetail.config.checkpoint.json_files import read_json, read_value
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ProjectionSpec

MODULES = "modules.json"
WHOLE, PAIR = "sentence_settings", "pair_template"
"""Fields of a model in one file: its SentenceSettings; for a decoder that ranks, the text around
{query} and, behind it, {document}."""
_POOLERS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_UNUSUAL = {
    "pooling_mode_mean_sqrt_len_tokens": "the mean divided by the root of the length",
    "pooling_mode_weightedmean_tokens": "a mean weighted by position",
}
_WITHOUT_EFFECT = ("Dropout",)
_TRANSFORMERS, _SPLADE = ("Transformer", "MLMTransformer"), "SpladePooling"
_KNOWN = (*_TRANSFORMERS, "Pooling", _SPLADE, "Dense", "LayerNorm", "Normalize", *_WITHOUT_EFFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSettings:
    """`pooler` is the name of a pooler. It is None if modules.json has no Pooling; each token then
    gets a vector. `max_tokens` is the maximum prompt length. `prompts` maps names to text that is
    prepended; `default_prompt` is used if a request names none. `includes_prompt`: tokens of
    prompts are pooled too. `lowers_case`: text is lowercased. `has_modules`: the folder has a
    modules.json. `is_sparse`: vectors are weights of the vocabulary's words (SPLADE)."""

    pooler: str | None = None
    projections: tuple[ProjectionSpec, ...] = ()
    is_normalized: bool = False
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    includes_prompt: bool = True
    lowers_case: bool = False
    has_modules: bool = False
    is_sparse: bool = False


def sentence_settings(
    folder: Path, facts: Mapping[str, Any] = MappingProxyType({})
) -> SentenceSettings | None:
    """Return the settings, None if there are none; those of a model in one file are in its config
    (`facts`). Raises: ConfigError naming the file"""
    file = folder / MODULES
    if not file.is_file():
        return msgspec.convert(facts.get(WHOLE), SentenceSettings | None)
    modules = read_value(file)
    if not isinstance(modules, list):
        raise ConfigError("it is not a list of modules.", where=str(file))
    found: dict[str, Any] = {}
    behind: list[ProjectionSpec] = []
    for module in modules:
        name = str(module.get("type", "")).rpartition(".")[2]
        path = folder / str(module.get("path", ""))
        if name not in _KNOWN:
            raise ConfigError(
                f'the module "{module.get("type")}" is not supported.',
                where=str(file),
                fix=f"there are: {', '.join(_KNOWN)}.",
            )
        if name in _TRANSFORMERS:
            found |= _transformer(path)
        elif name == "Pooling":
            found |= _pooling(path / "config.json")
        elif name == _SPLADE:
            found |= _splade(path / "config.json")
        elif name not in _WITHOUT_EFFECT:
            behind.append(_BEHIND[name](path))
    if behind and behind[-1].kind == "normalize":
        found["is_normalized"] = bool(behind.pop())
    layers = tuple(behind)
    return SentenceSettings(**found, **_prompts(folder), projections=layers, has_modules=True)


def _transformer(folder: Path) -> dict[str, Any]:
    """Return the encoder's maximum prompt length, and whether it lowercases text."""
    settings = read_json(folder / "sentence_bert_config.json", is_required=False)
    length = settings.get("max_seq_length")
    return {
        "max_tokens": length if isinstance(length, int) and length > 0 else None,
        "lowers_case": bool(settings.get("do_lower_case")),
    }


def _pooling(file: Path) -> dict[str, Any]:
    """Return the pooler, and whether it includes prompts. Raises: ConfigError"""
    settings = read_json(file)
    modes = [name for name in (*_POOLERS, *_UNUSUAL) if settings.get(name)]
    if isinstance(settings.get("pooling_mode"), str):
        modes = [name for name in _POOLERS if _POOLERS[name] == settings["pooling_mode"]] or modes
    if len(modes) != 1 or modes[0] not in _POOLERS:
        words = ", ".join(_UNUSUAL.get(mode, _POOLERS.get(mode, mode)) for mode in modes)
        raise ConfigError(
            f"pooling by {words or 'nothing'} is not supported.",
            where=str(file),
            fix="there are: cls, mean, max and last, one at a time.",
        )
    return {
        "pooler": _POOLERS[modes[0]],
        "includes_prompt": bool(settings.get("include_prompt", True)),
    }


def _splade(file: Path) -> dict[str, Any]:
    """Return the pooler of words' weights. Raises: ConfigError for another rule than SPLADE's"""
    settings = read_json(file)
    rule = (settings.get("pooling_strategy", "max"), settings.get("activation_function", "relu"))
    if rule != ("max", "relu"):
        raise ConfigError(
            f"pooling words' weights by {' of '.join(map(str, rule))} is not supported.",
            where=str(file),
            fix="use a checkpoint with max of relu.",
        )
    return {"pooler": "max", "is_sparse": True}


def _dense(folder: Path) -> ProjectionSpec:
    """Return a Dense layer. Raises: ConfigError"""
    file = folder / "config.json"
    settings = read_json(file)
    try:
        return ProjectionSpec(
            folder=str(folder),
            in_size=int(settings["in_features"]),
            out_size=int(settings["out_features"]),
            has_bias=bool(settings.get("bias", True)),
            activation=_activation(str(settings.get("activation_function", ""))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{error} is missing or not a whole number.", where=str(file)) from error


def _layer_norm(folder: Path) -> ProjectionSpec:
    """Return a LayerNorm. Raises: ConfigError"""
    file = folder / "config.json"
    size = read_json(file).get("dimension")
    if not isinstance(size, int):
        raise ConfigError("dimension is missing or not a whole number.", where=str(file))
    return ProjectionSpec(folder=str(folder), in_size=size, out_size=size, kind="norm")


_NORMALIZE = ProjectionSpec(folder="", in_size=0, out_size=0, kind="normalize")
_BEHIND: dict[str, Callable[[Path], ProjectionSpec]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": lambda folder: _NORMALIZE,
}


def _activation(path: str) -> str:
    """Return the name of an activation given as a torch class; "" for none."""
    name = path.rpartition(".")[2].lower()
    return "" if name == "identity" else name or "tanh"


def _prompts(folder: Path) -> dict[str, Any]:
    settings = read_json(folder / "config_sentence_transformers.json", is_required=False)
    prompts = settings.get("prompts")
    named = prompts if isinstance(prompts, dict) else {}
    return {
        "prompts": {str(k): str(v) for k, v in named.items()},
        "default_prompt": str(settings.get("default_prompt_name") or ""),
    }
