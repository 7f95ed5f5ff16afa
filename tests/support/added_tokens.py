"""Adapters that add tokens, as PEFT saves them for transformers' models whose vocabulary was
enlarged, and as vLLM reads them. Needs transformers and peft."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.peft_adapters import peft_warns

NUM_ADDED = 5
WEIGHTS = "adapter_model.safetensors"


def enlarged(base: Any, num_added: int = NUM_ADDED) -> Any:
    """Return a copy of a model with more tokens, whose vectors are large enough to be drawn."""
    size = base.config.vocab_size
    wide = copy.deepcopy(base)
    with peft_warns():
        wide.resize_token_embeddings(size + num_added, mean_resizing=False)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        layers = wide.get_input_embeddings(), wide.get_output_embeddings()
        for table in {layer.weight for layer in layers if layer is not None}:
            scale = 3 * table[:size].std()
            table[size:] = torch.randn(num_added, table.shape[1], generator=generator) * scale
    return wide.eval()


def saved(wide: Any, config: Any, folder: Path, *, seed: int = 0, **how: Any) -> Any:
    """Return a copy of an enlarged model with a random adapter, saved as PEFT does it."""
    import peft

    with peft_warns(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = peft.get_peft_model(copy.deepcopy(wide), config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    with peft_warns():
        model.save_pretrained(folder, **how)
    return model


def saved_for_vllm(wide: Any, config: Any, folder: Path, *, seed: int = 0) -> Any:
    """Return what `saved` does; the vectors of added tokens lie in a file of their own."""
    model = saved(wide, config, folder, seed=seed, save_embedding_layers=False)
    tensors = load_file(folder / WEIGHTS)
    assert not any(name.endswith(("base_layer.weight", "embed_tokens.weight")) for name in tensors)
    vectors = {
        "input_embeddings": wide.get_input_embeddings().weight[-NUM_ADDED:],
        "output_embeddings": wide.get_output_embeddings().weight[-NUM_ADDED:],
    }
    save_file(
        {name: rows.detach().clone() for name, rows in vectors.items()},
        folder / "new_embeddings.safetensors",
    )
    return model
