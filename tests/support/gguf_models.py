"""What tests of GGUF files share: the model of a file, and transformers' of the same weights."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from dovetail import registry
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.interfaces.load_format import Checkpoint
from dovetail.interfaces.model import BuildContext
from dovetail.layers.weights import load_weights
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.families import COMMON, FAMILIES, VOCAB_SIZE
from dovetail_testing.tiny.models import randomize, write_tiny_checkpoint, write_tiny_tokenizer
from support import gguf_recent


def loaded(path: Path, *, activations: str = "float") -> PagedModel:
    """Return the model of a file, as the engine would choose its plugins."""
    spec = load_model_facts(path, dtype="float32")
    spec = msgspec.structs.replace(spec, weight_dtype=str(spec.hf_config["dtype"]))
    stored = spec.hf_config.get("quantization_config") or {}
    method = registry.load("quantization", stored.get("quant_method", "none"))
    options = method.Options(**({"activations": activations} if stored else {}))
    context = BuildContext(model=spec, quant=method(options, spec), device="cpu")
    is_native = spec.architecture in registry.names("model")
    plugin = registry.load("model", spec.architecture if is_native else "transformers")
    module = plugin(plugin.Options(), context)
    reader = registry.load("load_format", "auto")
    tensors = reader(reader.Options()).tensors(Checkpoint(path=str(path)))
    with torch.inference_mode():
        load_weights(module, module.weight_map(), tensors)
    return PagedModel(module.eval())


def checkpoint(folder: Path, name: str, **changes: Any) -> Path:
    """Write a tiny random checkpoint, also of a class that is served over transformers."""
    import transformers

    if name in FAMILIES:
        return write_tiny_checkpoint(folder, name, **changes)
    kind, fields = gguf_recent.TINY[name]
    config = transformers.AutoConfig.for_model(kind, **{**COMMON, **fields, **changes})
    torch.manual_seed(len(name))
    model = getattr(transformers, name)(config)
    randomize(model, seed=len(name))
    model.save_pretrained(folder)
    return write_tiny_tokenizer(folder)


@cache
def transformers_model(folder: Path) -> Any:
    import transformers

    config = json.loads((folder / "config.json").read_text())
    return (
        getattr(transformers, config["architectures"][0])
        .from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


def reference(folder: Path, meant: dict[str, Any], tokens: list[int], tmp: Path) -> torch.Tensor:
    """Return transformers' logits with the weights that the gguf package dequantized."""
    write_meant(folder, meant, tmp)
    return logits_of(transformers_model(tmp), tokens)


def write_meant(folder: Path, meant: dict[str, Any], tmp: Path) -> None:
    """Write a checkpoint with the weights that a file means."""
    from safetensors.torch import save_file

    shutil.copytree(folder, tmp, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = {name: torch.from_numpy(np.array(v, order="C")) for name, v in meant.items()}
    save_file(tensors, tmp / "model.safetensors", metadata={"format": "pt"})
