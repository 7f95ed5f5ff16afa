"""A GGUF file from one of our own checkpoints (qwen3 or llama, one safetensors file).

Writes f16, bf16, q8_0 and q4_0 matrices and float32 norms with the gguf package. Key and tensor
names: the gguf package's constants.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open

TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
MATRIX_TYPES = {
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
FILE_TYPES = {
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


def write_gguf(checkpoint: Path, target: Path, kind: str) -> None:
    """Write `target` with matrices of `kind`."""
    config = json.loads((checkpoint / "config.json").read_text())
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(str(partial), config["model_type"])
    _add_shape(writer, config)
    writer.add_name(checkpoint.name)
    writer.add_file_type(FILE_TYPES[kind])
    _add_tokenizer(writer, checkpoint, config["vocab_size"])
    with safe_open(checkpoint / "model.safetensors", "pt") as tensors:
        for name in tensors.offset_keys():
            _add_tensor(writer, config, name, tensors.get_tensor(name).float(), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or config
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, vocab_size: int) -> None:
    data = json.loads((checkpoint / "tokenizer.json").read_text())
    tokens = {index: token for token, index in data["model"]["vocab"].items()}
    specials = {entry["id"] for entry in data["added_tokens"]}
    normal, control, unused = (
        gguf.TokenType.NORMAL,
        gguf.TokenType.CONTROL,
        gguf.TokenType.UNUSED,
    )
    names = [tokens.get(index, f"[unused{index}]") for index in range(vocab_size)]
    kinds = [
        control if index in specials else normal if index in tokens else unused
        for index in range(vocab_size)
    ]
    merges = data["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template((checkpoint / "chat_template.jinja").read_text())


def gguf_name(name: str) -> str:
    """Return the GGUF name of a checkpoint's tensor."""
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{TENSORS[rest]}.weight"


def interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return q or k rows in llama's GGUF order: the halves of a head become pairs.

    Shapes: weight [H * D, E]
    """
    num_rows, hidden = weight.shape
    halves = weight.reshape(num_heads, 2, num_rows // num_heads // 2, hidden)
    return halves.transpose(1, 2).reshape(num_rows, hidden)


def _add_tensor(
    writer: gguf.GGUFWriter, config: dict[str, Any], name: str, weight: torch.Tensor, kind: str
) -> None:
    target = gguf_name(name)
    if config["model_type"] == "llama" and target.endswith("attn_q.weight"):
        weight = interleaved(weight, config["num_attention_heads"])
    if config["model_type"] == "llama" and target.endswith("attn_k.weight"):
        weight = interleaved(weight, config["num_key_value_heads"])
    values = np.ascontiguousarray(weight.numpy())
    if values.ndim == 1:
        writer.add_tensor(target, values)
        return
    matrix = MATRIX_TYPES[kind]
    if kind == "q4_0" and target in ("token_embd.weight", "output.weight"):
        # llama.cpp's own tool would use Q6_K here, which the gguf package cannot write.
        matrix = MATRIX_TYPES["q8_0"]
    writer.add_tensor(target, gguf.quants.quantize(values, matrix), raw_dtype=matrix)
