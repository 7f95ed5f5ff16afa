"""From flags to prompts: the tokenizer that counts them, and the dataset that draws them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.config.checkpoint.sources.model_path import DEMO_NAME, DEMO_PATH, find_tokenizer
from dovetail.config.rules.model.checkpoint_code import CodePin, hub_revision, with_code
from dovetail.config.rules.selections import reads_tokenizer, select
from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchDataset, BenchPrompt, DatasetQuery
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.bench.settings import DatasetFlags, TargetFlags

logger = logging.getLogger("dovetail_plugins.bench")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
"""Hub ids with an owner; a bare name is more often a server's alias than a hub id."""


def draw_prompts(
    flags: DatasetFlags,
    *,
    seed: int,
    tokenizer: Tokenizer | None,
    vocab_tokens: int | None = None,
    needs_text: bool = False,
    num_extra: int = 0,
    options: Mapping[str, Any] | None = None,
) -> list[BenchPrompt]:
    """Return the measured prompts, then `num_warmups` and `num_extra` more. Raises: ConfigError"""
    query = DatasetQuery(
        num_prompts=flags.num_prompts + flags.num_warmups + num_extra,
        seed=seed,
        input_tokens=flags.input_len,
        output_tokens=flags.output_len,
        range_ratio=flags.range_ratio,
        prefix_tokens=flags.prefix_len,
        prefix_share=flags.prefix_share,
        path=flags.dataset_path,
        tokenizer=tokenizer,
        vocab_tokens=vocab_tokens,
        needs_text=needs_text,
    )
    chosen = registry.choose(
        "bench_dataset", flags.dataset_name, query=query, options=options, where="--dataset-name"
    )
    dataset_class = registry.admin.load_selection(chosen)
    if not isinstance(dataset_class, type):
        raise ConfigError("a dataset must be a class.", where="--dataset-name")
    dataset: BenchDataset = registry.make(chosen)
    return dataset.draw(query)


def tokenizer_of(flags: TargetFlags, named_by_server: str) -> Tokenizer | None:
    """Return the requested tokenizer, or that of the folder or hub id that the server names.

    None if no tokenizer is found. Raises: ConfigError if the requested one is missing.
    """
    requested, pin = flags.tokenizer, hub_revision(flags.code_revision)
    name = requested or named_by_server
    if requested is not None:
        return load_tokenizer(_found(requested, Path(requested), pin), _code(flags, name))
    folder = DEMO_PATH if name == DEMO_NAME else Path(name)
    if folder.is_dir():
        is_readable = reads_tokenizer("auto", folder)
        return load_tokenizer(folder, _code(flags, name)) if is_readable else None
    if not _HUB_ID.fullmatch(name):
        return None
    try:
        return load_tokenizer(_found(name, folder, pin), _code(flags, name))
    except ConfigError as error:
        if flags.trust_remote_code:
            raise
        logger.debug("no tokenizer found for %s: %s", named_by_server, error)
        return None


def _found(name: str, folder: Path, revision: str | None) -> Path:
    fits = partial(reads_tokenizer, "auto")
    return find_tokenizer(name, folder, revision=revision, fits=fits)


def _code(flags: TargetFlags, name: str) -> CodePin | None:
    """Return the code that the tokenizer with this name may run; None if it may run none."""
    return CodePin(name, flags.code_revision) if flags.trust_remote_code else None


def load_tokenizer(folder: Path, code: CodePin | None = None) -> Tokenizer:
    """Return the tokenizer of a folder, which may run the pinned code. Raises: ConfigError"""
    chosen = select("tokenizer", "auto", query=str(folder), where="--tokenizer")
    tokenizer_class = registry.admin.load_selection(chosen)
    if not isinstance(tokenizer_class, type):
        raise ConfigError("a tokenizer must be a class.", where="--tokenizer")
    if code is not None:
        chosen = with_code(chosen, code.source(folder), Hub())
    tokenizer: Tokenizer = registry.make(chosen, str(folder))
    return tokenizer
