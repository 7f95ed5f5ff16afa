"""A random Nomic BERT with experts as published, and what its code computes, in plain torch.

Source: the tensors and config.json of nomic-ai/nomic-embed-text-v2-moe; Nussbaum and Duderstadt
2025.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from dovetail_testing.tiny.models import write_tiny_tokenizer
from support.gguf_encoders import add_setting, add_tensor, add_word_pieces
from support.gguf_files import quantized

CONFIG: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "activation_function": "gelu",
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 2,
    "n_inner": 48,
    "n_positions": 64,
    "layer_norm_epsilon": 1e-5,
    "rotary_emb_base": 10000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "qkv_proj_bias": True,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "use_rms_norm": None,
    "prenorm": False,
    "parallel_block": False,
    "type_vocab_size": 1,
    "vocab_size": 64,
    "num_experts": 4,
    "moe_top_k": 2,
    "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False,
    "expert_choice_router": False,
    "num_shared_experts": 0,
    "torch_dtype": "float32",
}
Tensors = dict[str, torch.Tensor]


def write_nomic_moe(folder: Path, vocab_size: int, **changes: Any) -> Tensors:
    """Write the checkpoint; return its tensors."""
    config = {**CONFIG, "vocab_size": vocab_size, **changes}
    tensors = _random(config)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    write_tiny_tokenizer(folder)
    return tensors


def _random(config: dict[str, Any]) -> Tensors:
    size, inner, count = config["n_embd"], config["n_inner"], config["num_experts"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], size),
        "embeddings.token_type_embeddings.weight": (1, size),
        "emb_ln.weight": (size,),
        "emb_ln.bias": (size,),
    }
    for n in range(config["n_layer"]):
        at = f"encoder.layers.{n}."
        for norm in ("norm1", "norm2"):
            shapes |= {f"{at}{norm}.weight": (size,), f"{at}{norm}.bias": (size,)}
        shapes |= {f"{at}attn.Wqkv.weight": (3 * size, size), f"{at}attn.Wqkv.bias": (3 * size,)}
        shapes |= {f"{at}attn.out_proj.weight": (size, size), f"{at}attn.out_proj.bias": (size,)}
        if n % config["moe_every_n_layers"] == 1:
            joined = (count * inner, size)
            shapes |= {f"{at}mlp.experts.mlp.w1": joined, f"{at}mlp.experts.mlp.w2": joined}
            shapes |= {f"{at}mlp.router.layer.weight": (count, size)}
            shapes |= {f"{at}mlp.experts.bias": (size,)}
        else:
            shapes |= {f"{at}mlp.fc1.weight": (inner, size), f"{at}mlp.fc1.bias": (inner,)}
            shapes |= {f"{at}mlp.fc2.weight": (size, inner), f"{at}mlp.fc2.bias": (size,)}
    generator = torch.Generator().manual_seed(3)
    found = {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}
    return {name: one + 1 if "n" in name and _is_norm(name) else one for name, one in found.items()}


def _is_norm(name: str) -> bool:
    return name.endswith(("norm1.weight", "norm2.weight", "emb_ln.weight"))


def write_nomic_gguf(
    tensors: Tensors, config: dict[str, Any], file: Path, type_name: str
) -> Tensors:
    """Write the GGUF file as llama.cpp's converter does; return the tensors that it means."""
    import gguf

    own, meant = "nomic-bert-moe", dict[str, torch.Tensor]()
    writer = gguf.GGUFWriter(file, own)
    for key, value in {
        "block_count": config["n_layer"],
        "context_length": config["n_positions"],
        "embedding_length": config["n_embd"],
        "feed_forward_length": config["n_inner"],
        "attention.head_count": config["n_head"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "attention.causal": False,
        "pooling_type": 1,
        "rope.freq_base": float(config["rotary_emb_base"]),
        "expert_count": config["num_experts"],
        "expert_used_count": config["moe_top_k"],
        "moe_every_n_layers": config["moe_every_n_layers"],
    }.items():
        add_setting(writer, f"{own}.{key}", value)
    add_word_pieces(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.NOMIC_BERT_MOE, config["n_layer"])
    for name, tensor in tensors.items():
        if name.endswith("experts.bias"):
            continue
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert ours is not None, name
        values = tensor.numpy()
        if name.endswith((".w1", ".w2")):
            ours = f"{ours}.weight"
            values = tensor.unflatten(0, (config["num_experts"], -1)).numpy()
            values = values.transpose(0, 2, 1) if name.endswith(".w2") else values
        values = _added(writer, ours, np.ascontiguousarray(values), type_name)
        if name.endswith((".w1", ".w2")):
            values = values.transpose(0, 2, 1) if name.endswith(".w2") else values
            values = values.reshape(tensor.shape)
        meant[name] = torch.from_numpy(np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def _added(writer: Any, name: str, values: Any, type_name: str) -> Any:
    """Add a tensor, each expert's matrix quantized; return what it means."""
    import gguf

    if values.ndim < 3 or type_name == "F32":
        return add_tensor(writer, name, values, type_name)
    pairs = [quantized(one, type_name) for one in values]
    stored = np.stack([one for one, _ in pairs])
    writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType[type_name])
    return np.stack([floats for _, floats in pairs])


def states(tensors: Tensors, config: dict[str, Any], ids: list[int]) -> torch.Tensor:
    """Return the last states of a text. Shapes: -> [n, E]"""
    eps = config["layer_norm_epsilon"]

    def norm(x: torch.Tensor, at: str) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], tensors[f"{at}.weight"], tensors[f"{at}.bias"], eps)

    def linear(x: torch.Tensor, at: str) -> torch.Tensor:
        return F.linear(x, tensors[f"{at}.weight"], tensors[f"{at}.bias"])

    x = tensors["embeddings.word_embeddings.weight"][ids]
    x = norm(x + tensors["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for n in range(config["n_layer"]):
        at = f"encoder.layers.{n}."
        heads = linear(x, f"{at}attn.Wqkv").view(len(ids), 3, config["n_head"], -1)
        q, k, v = heads.permute(1, 2, 0, 3)
        q, k = _turned(q, config), _turned(k, config)
        out = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        x = norm(x + linear(out, f"{at}attn.out_proj"), f"{at}norm1")
        if f"{at}mlp.router.layer.weight" in tensors:
            inner = _mixture(x, tensors, f"{at}mlp.", config)
        else:
            inner = linear(F.gelu(linear(x, f"{at}mlp.fc1")), f"{at}mlp.fc2")
        x = norm(x + inner, f"{at}norm2")
    return x


def _turned(x: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Rotate the halves of heads. Shapes: x [H, n, D]"""
    half = x.shape[-1] // 2
    rates = config["rotary_emb_base"] ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[1])[:, None] * rates
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _mixture(x: torch.Tensor, tensors: Tensors, at: str, config: dict[str, Any]) -> torch.Tensor:
    count = config["num_experts"]
    w1 = tensors[f"{at}experts.mlp.w1"].view(count, -1, x.shape[1])
    w2 = tensors[f"{at}experts.mlp.w2"].view(count, -1, x.shape[1])
    scores = F.linear(x, tensors[f"{at}router.layer.weight"]).softmax(-1)
    weights, picked = scores.topk(config["moe_top_k"])
    rows = [
        sum(w * (F.gelu(row @ w1[e].T) @ w2[e]) for w, e in zip(ws, es, strict=True))
        for row, ws, es in zip(x, weights, picked.tolist(), strict=True)
    ]
    bias = tensors.get(f"{at}experts.bias", torch.zeros(x.shape[1]))
    return torch.stack(rows) + bias
