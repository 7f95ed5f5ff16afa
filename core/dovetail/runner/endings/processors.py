"""Creates the logits processors that a run selected."""

from __future__ import annotations

from typing import cast

import torch

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import NO_TOKENIZER, RunSpec
from dovetail.interfaces.logits import LogitsProcessor, ProcessorContext
from dovetail.interfaces.tokenizer import Tokenizer


def chosen_processors(run: RunSpec, device: torch.device) -> dict[str, LogitsProcessor]:
    """Return the selected processors, with no rows added yet. Raises: BrokenPlugin"""
    processors = {
        one.name: registry.make(one, run.model.vocab_size) for one in run.logits_processors
    }
    context = ProcessorContext(
        model=run.model,
        device=device,
        max_rows=run.max_rows,
        max_model_tokens=run.max_model_tokens,
        tokenizer_path=run.tokenizer_path,
        tokenizer=lambda: _tokenizer(run),
    )
    for processor in processors.values():
        processor.set_up(context)
    return processors


def _tokenizer(run: RunSpec) -> Tokenizer:
    """Return the model's tokenizer. Raises: ConfigError"""
    if run.tokenizer is None or run.tokenizer.name == NO_TOKENIZER:
        raise ConfigError(
            "a logits processor asks for the tokenizer, and the engine runs without one.",
            where="--skip-tokenizer-init",
            fix="leave the flag out.",
        )
    return cast(Tokenizer, registry.make(run.tokenizer, run.tokenizer_path))
