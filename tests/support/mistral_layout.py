"""A checkpoint as Mistral publishes it, written from one that transformers has saved.

The rules are those of https://github.com/mistralai/mistral-inference, read backwards.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WHOLE = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
}
PARTS = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "block_sparse_moe.experts": "feed_forward.experts",
    "block_sparse_moe.gate": "feed_forward.gate",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NUM_SPECIAL = 24
WORDS = (b"th", b"he", b"the", b" the", b"in", b" in", b"\xc3\xa9", b"ab", b"aba", b"abab")
SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")


def write_mistral(source: Path, folder: Path, *, num_files: int = 1) -> Path:
    """Write consolidated files, params.json and tekken.json; return the folder."""
    folder.mkdir(parents=True)
    config = json.loads((source / "config.json").read_text())
    tensors = {}
    for file in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
            key = heads.get(name.split(".")[-2])
            tensors[name_of(name)] = neighbours(tensor, config[key]) if key else tensor.clone()
    names = sorted(tensors)
    for number in range(num_files):
        part = {name: tensors[name] for name in names[number::num_files]}
        suffix = "" if num_files == 1 else f"-{number + 1:05}-of-{num_files:05}"
        save_file(part, folder / f"consolidated{suffix}.safetensors")
    (folder / "params.json").write_text(json.dumps(params_of(config)))
    write_tekken(folder, config["vocab_size"])
    return folder


def name_of(name: str) -> str:
    """Return Mistral's name of a tensor."""
    if name in WHOLE:
        return WHOLE[name]
    name = name.removeprefix("model.")
    for theirs, own in PARTS.items():
        name = name.replace(f".{theirs}.", f".{own}.")
    return name


def neighbours(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return the rows with the two halves of each head dealt out in turn."""
    heads = tensor.view(num_heads, -1, *tensor.shape[1:])
    first, second = heads.chunk(2, dim=1)
    return torch.stack([first, second], dim=2).reshape(tensor.shape)


def params_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return params.json of a config.json."""
    params = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "head_dim": config["head_dim"],
        "hidden_dim": config["intermediate_size"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "sliding_window": config["sliding_window"],
        "max_seq_len": config["max_position_embeddings"],
        "tied_embeddings": config["tie_word_embeddings"],
    }
    if "num_local_experts" in config:
        params["moe"] = {
            "num_experts": config["num_local_experts"],
            "num_experts_per_tok": config["num_experts_per_tok"],
        }
    return params


def write_tekken(folder: Path, vocab_size: int, **changes: Any) -> Path:
    """Write a tekken.json of all bytes and a few words; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*(bytes([i]) for i in range(256)), *WORDS]
    words += [b"zq%d" % i for i in range(vocab_size - NUM_SPECIAL - len(words))]
    content = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(words),
            "default_vocab_size": vocab_size,
            "default_num_special_tokens": NUM_SPECIAL,
            "version": "v7",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
            for i, word in enumerate(words)
        ],
        "special_tokens": [
            {"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(SPECIAL)
        ],
    }
    path = folder / "tekken.json"
    path.write_text(json.dumps(content | changes))
    return path
