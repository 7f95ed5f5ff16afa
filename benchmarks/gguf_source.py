"""A real model in bfloat16 to be quantized, made of weights that a GGUF file held in blocks.

`python -m benchmarks.gguf_source JOB.json` reads a model as benchmarks.quality_reference does and
writes a folder of safetensors. A model that was read from quantized blocks can be quantized to the
same blocks without any error. So its weights are changed, and what it computes stays the same:

- columns of the matrices after a norm are multiplied by numbers near 1, its weights divided,
- rows of `v_proj` and `up_proj` are, and columns of the matrix after them divided,
- where rows are no multiple of 256 (which K types need), zeros widen hidden states, MLPs and, with
  more heads, attention; norms are of more values then, so their weights and epsilon shrink.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality_reference import _tied, load, write_tokenizer

BLOCK = 256
SPREAD = 0.4
"""Logarithm of the largest factor over the smallest."""
PLAIN = ("llama", "mistral", "qwen2", "qwen3")
"""Types of models that can be widened: only norms look at all hidden states together."""
PLUS_ONE = ("gemma", "gemma2", "gemma3_text")
"""Types of models whose norms add one to their weights."""
State = dict[str, torch.Tensor]


def spread(state: State, config: Any, seed: int) -> None:
    """Give every matrix of a block values of its own, without a change of what it computes.
    Mutates: state"""
    offset = float(config.model_type in PLUS_ONE)
    generator = torch.Generator().manual_seed(seed)
    for number in range(config.num_hidden_layers):
        block = f"model.layers.{number}."
        before_mlp = f"{block}pre_feedforward_layernorm"
        if f"{before_mlp}.weight" not in state:
            before_mlp = f"{block}post_attention_layernorm"
        heads = [f"{block}self_attn.{name}_proj" for name in "qkv"]
        wide = [f"{block}mlp.{name}_proj" for name in ("gate", "up")]
        for norm, after in ((f"{block}input_layernorm", heads), (before_mlp, wide)):
            weight = state[f"{norm}.weight"] + offset
            factors = _factors(len(weight), generator)
            state[f"{norm}.weight"] = weight / factors - offset
            for name in after:
                state[f"{name}.weight"] = state[f"{name}.weight"] * factors
        key_heads = config.num_key_value_heads
        groups = config.num_attention_heads // key_heads
        _scale(state, heads[2], f"{block}self_attn.o_proj", key_heads, groups, generator)
        _scale(state, wide[1], f"{block}mlp.down_proj", 1, 1, generator)


def _factors(size: int, generator: torch.Generator) -> torch.Tensor:
    return ((torch.rand(size, generator=generator) - 0.5) * SPREAD).exp()


def _scale(
    state: State, first: str, second: str, num_heads: int, groups: int, generator: torch.Generator
) -> None:
    """Multiply the rows of a matrix, and divide the columns that take them; each head of rows goes
    to `groups` heads of columns. Mutates: state"""
    factors = _factors(len(state[f"{first}.weight"]), generator)
    state[f"{first}.weight"] = state[f"{first}.weight"] * factors[:, None]
    if f"{first}.bias" in state:
        state[f"{first}.bias"] = state[f"{first}.bias"] * factors
    columns = factors.view(num_heads, 1, -1).expand(-1, groups, -1).reshape(-1)
    state[f"{second}.weight"] = state[f"{second}.weight"] / columns


def widened(state: State, config: Any) -> None:
    """Widen hidden states, attention and MLPs with zeros up to whole blocks. Mutates: state,
    config"""
    if config.model_type not in PLAIN:
        return
    size, key_heads = config.hidden_size, config.num_key_value_heads
    head_size = getattr(config, "head_dim", None) or size // config.num_attention_heads
    groups = config.num_attention_heads // key_heads
    wide, inner = _whole(size, BLOCK), _whole(config.intermediate_size, BLOCK)
    own = config.num_attention_heads * head_size
    heads = own // head_size if own % BLOCK == 0 else wide // head_size
    assert heads % key_heads == 0, "heads of zeros would not share keys evenly"
    for name, tensor in list(state.items()):
        if name.endswith("norm.weight") and len(tensor) == size:
            tensor = _padded(tensor, 0, wide) * (size / wide) ** 0.5
        elif "q_proj" in name:
            rows = tensor.reshape(key_heads, groups, head_size, *tensor.shape[1:])
            tensor = _padded(rows, 1, heads // key_heads).flatten(0, 2)
        elif "o_proj" in name:
            columns = tensor.view(size, key_heads, groups, head_size)
            tensor = _padded(columns, 2, heads // key_heads).flatten(1)
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensor = _padded(tensor, 0, inner)
        elif "down_proj" in name:
            tensor = _padded(tensor, 1, inner)
        if tensor.dim() == 2:
            axis = int(not name.endswith(("o_proj.weight", "down_proj.weight")))
            tensor = _padded(tensor, axis, wide)
        state[name] = tensor
    config.hidden_size, config.intermediate_size = wide, inner
    config.num_attention_heads, config.head_dim = heads, head_size
    config.rms_norm_eps *= size / wide


def _whole(size: int, block: int) -> int:
    """Return a size rounded up to whole blocks."""
    return -(-size // block) * block


def _padded(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Return a tensor with zeros at the end of an axis."""
    shape = list(tensor.shape)
    shape[axis] = size - shape[axis]
    return torch.cat([tensor, tensor.new_zeros(shape)], axis)


def main() -> int:
    """Write the folder of a job."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    model, out = load(Path(job["model"])), Path(job["out"])
    tied = _tied(model)
    state = {name: one for name, one in model.state_dict().items() if name not in tied}
    with torch.inference_mode():
        spread(state, model.config, job["seed"])
        widened(state, model.config)
    made = type(model)(model.config)
    missing, unknown = made.load_state_dict(state, strict=False)
    assert set(missing) <= tied and not unknown, (missing, unknown)
    made.to(torch.bfloat16).save_pretrained(out)
    settings = json.loads((out / "config.json").read_text(encoding="utf-8"))
    text = json.dumps({**settings, "dtype": "bfloat16"}, indent=1)
    (out / "config.json").write_text(text, encoding="utf-8")
    write_tokenizer(Path(job["model"]), out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
