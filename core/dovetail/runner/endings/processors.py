"""Creates the logits processors that a run selected."""

from __future__ import annotations

from typing import cast

import torch

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import NO_TOKENIZER, RunSpec
from dovetail.interfaces.logits import LogitsProcessor, ProcessorContext
from dovetail.interfaces.structured_output import Vocabulary
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.select_backend import none_installed


def chosen_processors(
    run: RunSpec, device: torch.device, cache: ConstraintCache | None
) -> dict[str, LogitsProcessor]:
    """Return the selected processors, with no rows added yet. `cache` has the tokens as bytes.
    Raises: BrokenPlugin"""
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
        vocabulary=lambda: _vocabulary(cache),
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


def _vocabulary(cache: ConstraintCache | None) -> Vocabulary:
    """Return the tokens as bytes. Raises: RequestError if nothing reads them"""
    if cache is None:
        raise none_installed()
    return cache.vocabulary
