"""Writes a GGUF file with random numbers in the shape of a mixture of experts.

Per layer: attention like Qwen3's, a router in float32, and experts in Q4_K. The rows of a router
differ in length (a log-normal distribution with the deviation `skew`), so that some experts are
picked more often than others, as in trained models. The vocabulary is not in the file: serve it
with `--tokenizer core/dovetail/demo_model`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

VOCABULARY = 2048
_BLOCK_VALUES, _BLOCK_BYTES = 256, 144


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a mixture of experts. The defaults are Qwen3-30B-A3B's, with fewer layers."""

    layers: int = 12
    hidden: int = 2048
    inner: int = 768
    experts: int = 128
    picked: int = 4
    heads: int = 16
    kv_heads: int = 2
    head_size: int = 128
    skew: float = 0.25

    @property
    def expert_bytes(self) -> int:
        """Return the bytes of one expert of one layer in the file."""
        return 3 * self.hidden * self.inner * _BLOCK_BYTES // _BLOCK_VALUES


def write_mixture(target: Path, shape: Shape) -> None:
    """Write a mixture of experts. Raises: OSError"""
    _write(target, shape, has_experts=True)


def write_dense(target: Path, shape: Shape) -> None:
    """Write a model of the same size without experts, in more layers. Raises: OSError"""
    expert_bytes = shape.experts * shape.expert_bytes * shape.layers
    wide = replace(shape, inner=8192)
    _write(target, replace(wide, layers=expert_bytes // wide.expert_bytes), has_experts=False)


def _write(target: Path, shape: Shape, *, has_experts: bool, seed: int = 0) -> None:
    import gguf

    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(target, "qwen3moe" if has_experts else "qwen3")
    for name, value in (
        ("context_length", 2048), ("embedding_length", shape.hidden),
        ("feed_forward_length", shape.inner), ("block_count", shape.layers),
        ("head_count", shape.heads), ("head_count_kv", shape.kv_heads),
        ("key_length", shape.head_size), ("value_length", shape.head_size),
        ("vocab_size", VOCABULARY),
        ("layer_norm_rms_eps", 1e-6), ("rope_freq_base", 10000.0),
        ("expert_count", shape.experts), ("expert_used_count", shape.picked),
        ("expert_feed_forward_length", shape.inner),
    )[: None if has_experts else -3]:  # fmt: skip
        getattr(writer, f"add_{name}")(value)

    def add(name: str, *sizes: int) -> None:
        writer.add_tensor(name, _blocks(generator, sizes), raw_dtype=gguf.GGMLQuantizationType.Q4_K)

    def add_ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, dtype=np.float32))

    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    add("token_embd.weight", VOCABULARY, shape.hidden)
    add("output.weight", VOCABULARY, shape.hidden)
    add_ones("output_norm.weight", shape.hidden)
    for number in range(shape.layers):
        block = f"blk.{number}"
        for name, size in (
            ("attn_norm", shape.hidden), ("ffn_norm", shape.hidden),
            ("attn_q_norm", shape.head_size), ("attn_k_norm", shape.head_size),
        ):  # fmt: skip
            add_ones(f"{block}.{name}.weight", size)
        add(f"{block}.attn_q.weight", queries, shape.hidden)
        add(f"{block}.attn_k.weight", keys, shape.hidden)
        add(f"{block}.attn_v.weight", keys, shape.hidden)
        add(f"{block}.attn_output.weight", shape.hidden, queries)
        if not has_experts:
            add(f"{block}.ffn_gate.weight", shape.inner, shape.hidden)
            add(f"{block}.ffn_up.weight", shape.inner, shape.hidden)
            add(f"{block}.ffn_down.weight", shape.hidden, shape.inner)
            continue
        router = generator.standard_normal((shape.experts, shape.hidden)) * 0.02
        router *= generator.lognormal(0.0, shape.skew, (shape.experts, 1))
        writer.add_tensor(f"{block}.ffn_gate_inp.weight", router.astype(np.float32))
        for name in ("gate", "up"):
            add(f"{block}.ffn_{name}_exps.weight", shape.experts, shape.inner, shape.hidden)
        add(f"{block}.ffn_down_exps.weight", shape.experts, shape.hidden, shape.inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _blocks(generator: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
    """Return random Q4_K blocks whose values have about the mean 0. Shapes: [.., rows, bytes]"""
    count = int(np.prod(sizes)) // _BLOCK_VALUES
    raw = np.frombuffer(generator.bytes(count * _BLOCK_BYTES), dtype=np.uint8)
    blocks = raw.reshape(count, _BLOCK_BYTES).copy()
    for place, step in ((0, 1e-4), (2, 7.5e-4)):
        blocks[:, place : place + 2] = np.frombuffer(np.float16(step).tobytes(), dtype=np.uint8)
    return blocks.reshape(*sizes[:-1], -1)
