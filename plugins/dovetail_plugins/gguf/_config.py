"""A GGUF file's settings as the config.json that the same model has elsewhere. Imports no torch.

Source: the key names of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and the values of
llama.cpp's converters.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf._architectures import UNREAD
from dovetail_plugins.gguf.families import families
from dovetail_plugins.gguf.families.family import Family
from dovetail_plugins.gguf.families.parts import common, ends, num_drafting, sizes
from dovetail_plugins.gguf.families.pooled import pooled
from dovetail_plugins.gguf.projectors.join import with_projector
from dovetail_plugins.gguf.reading.file import GgufModel, find_file, read_model
from dovetail_plugins.gguf.reading.metadata import Settings
from dovetail_plugins.gguf.reading.names import stored_types
from dovetail_plugins.gguf.reading.older import usual_numbers
from dovetail_plugins.gguf.reading.stacks import GATES_AND_UPS, num_alone
from dovetail_plugins.gguf.vocabulary.missing import completed

log = logging.getLogger(__name__)


def read_config(path: Path, mmproj: str | None = None) -> dict[str, Any] | None:
    """Return the config.json equivalent of a GGUF file, None if the path has no such file.

    `mmproj` is its projector's file, "" for none, None for a fitting one next to it. Raises:
    ConfigError for a file that is malformed or whose architecture is not read.
    """
    file = find_file(path)
    if file is None:
        return None
    model = read_model(file)
    return with_projector(model, config_of(model), mmproj)


def config_of(model: GgufModel) -> dict[str, Any]:
    """Return the config.json that a file's settings mean. Raises: ConfigError"""
    _check_kind(Settings(model))
    model = replace(model, settings=completed(model.path, model.settings))
    settings = Settings(model)
    family = _family_of(settings)
    _check_blocks(settings)
    _say_left_out(settings, family)
    shared = common(settings) if family.has_heads else sizes(settings)
    types = stored_types(model)
    stored = {"quantization_config": {"quant_method": "gguf", "types": types}} if types else {}
    config = shared | ends(settings) | family.config(settings) | stored
    config |= usual_numbers(settings, config)
    config |= pooled(settings, config["architectures"][0])
    _check(settings, family, config)
    return config


_FLAGS = {"adapter": "--lora-modules NAME=FILE", "mmproj": "--mmproj FILE"}
"""`general.type` of files that are not models -> the flag that takes them."""


def _check_kind(settings: Settings) -> None:
    """Raises: ConfigError for a file that only belongs to a model."""
    kind = str(settings.find("general.type", str))
    if kind in _FLAGS:
        raise ConfigError(
            f"it is not a model: its general.type is {kind}.",
            where=str(settings.model.path),
            fix=f"name the model's own file, and this one with {_FLAGS[kind]}.",
        )


def _family_of(settings: Settings) -> Family:
    """Return how a file's architecture is read. Raises: ConfigError for one that is not: why not"""
    known, name = families(), settings.architecture
    if name not in known:
        unread = UNREAD.get(name)
        raise ConfigError(
            f'general.architecture "{name}" is not supported in GGUF files: '
            f"{unread.why if unread else 'its name is not known'}.",
            where=str(settings.model.path),
            fix=unread.fix
            if unread
            else f"use one of {', '.join(sorted(known))}, or another checkpoint.",
        )
    return known[name]


def _say_left_out(settings: Settings, family: Family) -> None:
    """Log once how many blocks draft further tokens in a way that is not known here."""
    drafting = num_drafting(settings)
    if drafting and not family.names.has_drafts:
        _warn_once(
            f"{settings.model.path}: leaving out {drafting} block(s) at its end, which draft "
            "further tokens."
        )


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _check_blocks(settings: Settings) -> None:
    """Raises: ConfigError if the number of blocks is not the stated one, before any are made."""
    names = (one.name.removeprefix("enc.") for one in settings.model.extents)
    blocks = {name.split(".")[1] for name in names if name.startswith("blk.")}
    stated = settings.number(".block_count") - _num_empty(settings)
    _compare(settings, {"blocks": stated}, {"blocks": len(blocks)})


def _num_empty(settings: Settings) -> int:
    """Return the number of blocks that neither attend nor feed forward: they have no tensors."""
    parts = (".attention.head_count", ".feed_forward_length")
    if not all(isinstance(settings.find(part, (int, list)), list) for part in parts):
        return 0
    return sum(not any(sizes) for sizes in zip(*map(settings.per_block, parts), strict=True))


def _check(settings: Settings, family: Family, config: Mapping[str, Any]) -> None:
    """Raises: ConfigError if a size differs from the tensors': otherwise the model would be built
    before a tensor fails to fit."""
    stated = {"token_embd.weight": config["hidden_size"]}
    table = settings.tensor("token_embd.weight")
    found = {"token_embd.weight": table.shape[1] if table else 0}
    experts = _num_experts(config)
    alone = num_alone(settings.model.extents)
    if experts is not None and alone:
        stated["ffn_up.N.weight"], found["ffn_up.N.weight"] = experts, alone
    for name, size in _rows(family, config).items():
        extent = settings.first(name)
        if extent is not None and size is not None:
            stated[extent.name], found[extent.name] = size, extent.shape[0]
    _compare(settings, stated, found)


def _compare(settings: Settings, stated: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Raises: ConfigError that names the first size that the file has otherwise."""
    wrong = [name for name in stated if stated[name] != found[name]]
    if wrong:
        raise ConfigError(
            f"{wrong[0]}: the file holds {found[wrong[0]]}, its settings say {stated[wrong[0]]}.",
            where=str(settings.model.path),
            fix="download the file again.",
        )


def _rows(family: Family, config: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rows that matrices must have, None if the config does not say."""
    experts = _num_experts(config)
    return {"ffn_up_exps.weight": experts, f"{GATES_AND_UPS}.weight": experts} | dict(
        family.rows(config)
    )


def _num_experts(config: Mapping[str, Any]) -> int | None:
    counts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return next((config[name] for name in counts if config.get(name)), None)
