"""The tokenizer: its files, the plugin that reads them, and the code that it may run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.config.checkpoint.sources.model_path import find_tokenizer
from dovetail.config.config import Config
from dovetail.config.rules import selections
from dovetail.config.rules.model import checkpoint_code
from dovetail.config.sections.model import ModelConfig
from dovetail.interfaces.data.spec import Selection


def tokenizer_path(model_config: ModelConfig, model_path: Path, hub: Hub) -> Path:
    """Return the folder of the tokenizer, or a file that contains the whole model. Raises:
    ConfigError if there is none"""
    if model_config.skip_tokenizer_init:
        return model_path
    return find_tokenizer(
        model_config.tokenizer,
        model_path,
        revision=checkpoint_code.hub_revision(model_config.tokenizer_revision)
        or model_config.revision,
        hub=hub,
        fits=partial(selections.reads_tokenizer, model_config.tokenizer_mode),
    )


def select_tokenizer(config: Config, path: Path, hub: Hub) -> Selection:
    """Return the tokenizer plugin for a path, with the code that it may run. Raises: ConfigError"""
    if config.model.skip_tokenizer_init:
        return selections.no_tokenizer(config.model, config.frontend, config.origins)
    options = config.plugin.options_of("tokenizer")
    checkpoint_code.refuse_option(options)
    mode = config.model.tokenizer_mode
    chosen = selections.select(
        "tokenizer", mode, query=str(path), options=options, where="--tokenizer-mode"
    )
    if not config.model.trust_remote_code:
        return chosen
    source = checkpoint_code.tokenizer_source(config.model, path)
    return checkpoint_code.with_code(chosen, source, hub)
