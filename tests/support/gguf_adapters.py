"""LoRA adapters of PEFT as GGUF files, written by the gguf package as llama.cpp's converter has
them: its names, and the order of rows that it gives to Llama's queries and keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from support.gguf_families import TURNED
from support.gguf_files import ARCHITECTURES

Array = np.ndarray[Any, Any]
PREFIX = "base_model.model."
_PARTS = {
    ".lora_A.weight": "lora_a",
    ".lora_B.weight": "lora_b",
    ".lora_embedding_A": "lora_a",
    ".lora_embedding_B": "lora_b",
}


def write_gguf_adapter(
    base: Path,
    adapter: Path,
    target: Path,
    *,
    type_name: str = "F32",
    changed: Callable[[dict[str, Array]], dict[str, Array]] = lambda tensors: tensors,
    **settings: Any,
) -> Path:
    """Write PEFT's folder `adapter` for the checkpoint `base` as one GGUF file; return it.

    `changed` may alter the file's tensors, and `settings` its metadata: None leaves one out, and
    "__" stands for a dot.
    """
    import gguf

    config = json.loads((base / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    own = json.loads((adapter / "adapter_config.json").read_text())
    usual = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(own["lora_alpha"]),
    }
    stated = {**usual, **{key.replace("__", "."): value for key, value in settings.items()}}
    writer = gguf.GGUFWriter(target, stated.pop("general.architecture", architecture))
    for key, value in stated.items():
        _add(writer, key, value)
    tensors = _tensors(architecture, config, load_file(adapter / "adapter_model.safetensors"))
    for name, values in changed(tensors).items():
        kind = gguf.GGMLQuantizationType[type_name]
        values = np.ascontiguousarray(values, dtype=np.float32)
        if type_name == "F32" or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        writer.add_float32(key, value)


def _tensors(
    architecture: str, config: Mapping[str, Any], tensors: Mapping[str, Array]
) -> dict[str, Array]:
    """Return an adapter's tensors under GGUF's names, in llama.cpp's shapes."""
    import gguf

    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.get("num_hidden_layers") or config["n_layer"])
    found: dict[str, Array] = {}
    for name, values in tensors.items():
        end = next((end for end in _PARTS if name.endswith(end)), "")
        if not end:  # the table itself, which PEFT saves with its change and the converter skips
            assert name.endswith(".base_layer.weight"), name
            continue
        module = name.removeprefix(PREFIX).removesuffix(end)
        ours = names.get_name(f"{module}.weight", try_suffixes=(".weight",)) or names.get_name(
            f"{module.removeprefix('transformer.')}.weight", try_suffixes=(".weight",)
        )
        assert ours is not None, module
        if end == ".lora_B.weight" and architecture in TURNED:
            values = _turned(config, module, values)
        if end == ".lora_embedding_A":
            values = values.T
        found[f"{ours}.{_PARTS[end]}"] = values
    return found


def _turned(config: Mapping[str, Any], module: str, rows: Array) -> Array:
    """Return the rows of queries and keys in the order of pairs."""
    if not module.endswith(("q_proj", "k_proj")):
        return rows
    heads = config["num_attention_heads" if module.endswith("q_proj") else "num_key_value_heads"]
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
