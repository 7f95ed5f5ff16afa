"""Random checkpoints of a few kB, as transformers itself would save them, with a tiny tokenizer.

Needs transformers; everything stays in the given folder. Weights are drawn widely enough that
a mistake in a norm, a bias or a soft cap shows in the logits.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from dovetail_testing.tiny.families import COMMON, FAMILIES, OF_OWN_NAMES, VOCAB_SIZE

DERIVED = {"slope_rate", "query_decay", "key_decay", "diagonal_decay"}
"""Buffers that checkpoints hold though they follow from the config."""


def write_tiny_checkpoint(folder: str | Path, architecture: str, **overrides: Any) -> Path:
    """Write config, safetensors weights and tokenizer of a random model; return the folder.

    `overrides` are config fields; the weights depend on the architecture's name and on them.
    Needs: transformers. Raises: KeyError for an architecture not in FAMILIES.
    """
    import torch
    import transformers

    folder = Path(folder)
    config = tiny_config(architecture, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(architecture))
        model = getattr(transformers, architecture)(config)
    randomize(model, seed=len(architecture))
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return folder


def tiny_config(architecture: str, **overrides: Any) -> Any:
    """Return transformers' config of a family, with `overrides` of its fields.

    Needs: transformers. Raises: KeyError for an architecture not in FAMILIES.
    """
    import transformers

    model_type, fields = FAMILIES[architecture]
    merged = {**COMMON, **fields, **overrides}
    if model_type in OF_OWN_NAMES:
        dropped = set(COMMON) - {"vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"}
        merged = {k: value for k, value in merged.items() if k not in dropped or k in fields}
    return transformers.AutoConfig.for_model(model_type, **merged)


def randomize(model: Any, *, seed: int) -> None:
    """Move every parameter, and every stored buffer of floats that does not follow from the config,
    away from its initial value.

    Mutates: model
    """
    import torch

    stored_names = {name for name in model.state_dict() if name.rsplit(".", 1)[-1] not in DERIVED}
    stored = [b for n, b in model.named_buffers() if n in stored_names and b.is_floating_point()]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (*model.parameters(), *stored):
            width = 0.1 if parameter.dim() == 1 else 0.2
            parameter.add_(torch.randn(parameter.shape, generator=generator) * width)
        for name, table in model.named_buffers():
            if name.endswith("tid2eid"):  # which experts a token id picks
                scores = model.get_parameter(name.replace("tid2eid", "weight"))
                shape = (len(table), len(scores))
                picked = torch.rand(shape, generator=generator).argsort(dim=-1)
                table.copy_(picked[:, : table.shape[1]])


def write_tiny_tokenizer(folder: str | Path, *, chat_template: str | None = None) -> Path:
    """Write tokenizer.json and tokenizer_config.json of the byte-level tokenizer; return folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template or CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

TRAINING_TEXT = (
    "the quick brown fox jumps over the lazy dog and the dog does not mind at all",
    "user: what is the name of the dog? assistant: the dog has no name, and that is fine",
    "counting one two three four five six seven eight nine ten and on and on and on",
)


@cache
def _tokenizer_json() -> str:
    """Return a byte-level BPE tokenizer of VOCAB_SIZE tokens: 3 special, 256 bytes, merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|begin|>", "<|end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return str(tokenizer.to_str())
