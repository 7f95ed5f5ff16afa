"""Tiny random decoders for vectors, classes and rewards: as transformers saves them, or in layouts
that it has no class for, with what it makes of a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dovetail_testing.tiny import models as tiny_models

SIZE = 32
"""The hidden size of all of them."""


def tiny_model(class_name: str, family: str, **overrides: Any) -> Any:
    """Return a random model of a class of transformers, of the config of a family in
    `tiny_models.FAMILIES`."""
    import transformers

    config = tiny_models.tiny_config(family, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(class_name))
        model = getattr(transformers, class_name)(config)
    tiny_models.randomize(model, seed=len(class_name))
    return model.eval()


def saved(model: Any, folder: Path, **config: Any) -> Path:
    """Save a model with a tokenizer; `config` is written over fields of its config.json."""
    model.save_pretrained(folder)
    tiny_models.write_tiny_tokenizer(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, **config}))
    return folder


def as_internlm2(folder: Path, architecture: str, **config: Any) -> Path:
    """Give a saved Llama the names of InternLM2, each kv head's queries, key and value behind each
    other in one matrix, and `config` written over fields of its config.json; return the folder.
    Mutates: the files"""
    from safetensors.torch import load_file, save_file

    said = json.loads((folder / "config.json").read_text())
    named = {"architectures": [architecture], "model_type": "internlm2"}
    said |= {**named, "bias": said.pop("attention_bias"), **config}
    (folder / "config.json").write_text(json.dumps(said))
    tensors = load_file(folder / "model.safetensors")
    stored = {_internlm2_name(name): x for name, x in tensors.items() if "_proj" not in name}
    for name in [name for name in tensors if "_proj" in name]:
        layer, leaf, kind = name.rsplit(".", 2)
        if leaf in ("k_proj", "v_proj"):
            continue
        x = tensors[name]
        if leaf == "q_proj":
            parts = [tensors[f"{layer}.{n}_proj.{kind}"] for n in "qkv"]
            groups = said["num_key_value_heads"]
            x = torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)
        stored[_internlm2_name(name)] = x.contiguous()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


_INTERNLM2 = {
    "embed_tokens": "tok_embeddings",
    "self_attn": "attention",
    "mlp": "feed_forward",
    "q_proj": "wqkv",
    "o_proj": "wo",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "lm_head": "output",
}
"""Words of Llama's names -> InternLM2's."""


def _internlm2_name(name: str) -> str:
    return ".".join(_INTERNLM2.get(word, word) for word in name.split("."))


NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "internlm3": ("InternLM3ForCausalLM", {}),
    "minicpm": ("MiniCPMForCausalLM", {}),
    "minimax_text_01": ("MiniMaxText01ForCausalLM", {}),
    "exaone": (
        "ExaoneForCausalLM",
        {
            "model.embed_tokens": "transformer.wte",
            "model.layers": "transformer.h",
            "model.norm": "transformer.ln_f",
            "self_attn": "attn.attention",
            "o_proj": "out_proj",
            "gate_proj": "c_fc_0",
            "up_proj": "c_fc_1",
            "down_proj": "c_proj",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
        },
    ),
}
"""Model types that transformers does not have -> class, and words of Llama's names -> theirs."""


def renamed(folder: Path, model_type: str, *, gone: Iterable[str] = (), **config: Any) -> Path:
    """Give a saved model the names of another type in NAMES, without its fields `gone` and with
    `config` written over others (None: none); return the folder. Mutates: the files"""
    from safetensors.torch import load_file, save_file

    architecture, words = NAMES[model_type]
    said = json.loads((folder / "config.json").read_text())
    said |= {"architectures": [architecture], "model_type": model_type, **config}
    kept = {k: v for k, v in said.items() if k not in gone and (v is not None or k not in config)}
    (folder / "config.json").write_text(json.dumps(kept))
    stored = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for old, new in words.items():
            name = name.replace(old, new)
        stored[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def add_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Add tensors to a saved model's weights. Mutates: the file"""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, metadata={"format": "pt"})


def write_modules(
    folder: Path,
    *,
    pooling: dict[str, Any] | None,
    behind: Sequence[tuple[str, nn.Module | None]] = (),
    prompts: dict[str, str] | None = None,
    **settings: Any,
) -> Path:
    """Write modules.json of sentence-transformers: a Transformer with `settings`, a Pooling, and
    modules of these names behind it, and `prompts` by name; return the folder."""
    from safetensors.torch import save_file

    names = ["Transformer", *(["Pooling"] if pooling is not None else []), *(n for n, _ in behind)]
    paths = ["", *(f"{i}_{name}" for i, name in enumerate(names) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    told = json.dumps({"prompts": prompts or {}})
    (folder / "config_sentence_transformers.json").write_text(told)
    for path in paths[1:]:
        (folder / path).mkdir()
    if pooling is not None:
        (folder / paths[1] / "config.json").write_text(json.dumps(pooling))
    for path, (_, module) in zip(paths[-len(behind) :] if behind else (), behind, strict=True):
        if isinstance(module, nn.Linear):
            config: dict[str, Any] = {
                "in_features": module.in_features,
                "out_features": module.out_features,
                "bias": module.bias is not None,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
            name = "linear"
        elif isinstance(module, nn.LayerNorm):
            config, name = {"dimension": module.normalized_shape[0]}, "norm"
        else:
            continue
        (folder / path / "config.json").write_text(json.dumps(config))
        tensors = {f"{name}.{key}": value for key, value in module.state_dict().items()}
        save_file(tensors, folder / path / "model.safetensors")
    return folder


@torch.inference_mode()
def hidden_states(model: Any, ids: Sequence[int], *, sees_all: bool = False) -> torch.Tensor:
    """Return what a trunk of transformers makes of a prompt, its tokens seeing all others where
    that is asked for. Shapes: ids n -> [n, E]"""
    mask = torch.zeros(1, 1, len(ids), len(ids)) if sees_all else None
    out = model(input_ids=torch.tensor([list(ids)]), attention_mask=mask)
    states: torch.Tensor = out.last_hidden_state[0]
    return states


def to_length_1(x: torch.Tensor) -> torch.Tensor:
    """Shapes: x [..., E] -> [..., E]"""
    return nn.functional.normalize(x, dim=-1)
