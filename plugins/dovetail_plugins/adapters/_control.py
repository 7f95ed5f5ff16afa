"""A control vector in a GGUF file, as llama.cpp's --control-vector takes it: for a layer N, the
tensor "direction.N" is added to what leaves that layer.

Layers count from 0, and the first has no direction. A vector is a shift of the last module of a
block, whose output is added to the residual stream unchanged: families that scale or norm it, and
mixtures of experts, have no such module. Source for names, shapes and layers:
https://github.com/ggml-org/llama.cpp/blob/master/common/common.cpp (common_control_vector_load),
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-adapter.cpp
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterWeights, ModuleChange
from dovetail.interfaces.data.spec import ModelSpec
from dovetail_plugins.gguf.reading.file import GgufModel, TensorExtent

CONTROL = "controlvector"
"""The architecture that such a file states."""
_DIRECTION = re.compile(r"direction\.(\d{1,5})")
_DOWN = "model.layers.{}.mlp.down_proj"
LAST_MODULES = {
    "LlamaForCausalLM": _DOWN,
    "MistralForCausalLM": _DOWN,
    "Qwen2ForCausalLM": _DOWN,
    "Qwen3ForCausalLM": _DOWN,
    "Phi3ForCausalLM": _DOWN,
    "GemmaForCausalLM": _DOWN,
    "StableLmForCausalLM": _DOWN,
    "CohereForCausalLM": _DOWN,
    "Starcoder2ForCausalLM": "model.layers.{}.mlp.c_proj",
    "PhiForCausalLM": "model.layers.{}.mlp.fc2",
    "GPT2LMHeadModel": "transformer.h.{}.mlp.c_proj",
    "GPTNeoXForCausalLM": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
}
"""Classes of models, and the path of a block's last module in their checkpoints."""


def control_weights(
    found: GgufModel, model: ModelSpec, numbers: Callable[[TensorExtent], torch.Tensor]
) -> AdapterWeights:
    """Return the changes of a file's directions. `numbers` reads a tensor. Raises: ConfigError"""
    path = LAST_MODULES.get(model.architecture)
    if path is None:
        raise ConfigError(
            f"control vectors are not applied to {model.architecture}.",
            where=str(found.path),
            fix=f"use a model of one of these classes: {', '.join(LAST_MODULES)}.",
        )
    changes = {}
    for extent in found.extents:
        module = path.format(_layer(found, extent, model))
        changes[module] = ModuleChange(shift=_vector(extent, model, numbers))
    if not changes:
        raise ConfigError("the file has no directions.", where=str(found.path))
    return AdapterWeights(changes=changes)


def _layer(found: GgufModel, extent: TensorExtent, model: ModelSpec) -> int:
    """Return the layer of a direction. Raises: ConfigError"""
    name = _DIRECTION.fullmatch(extent.name)
    layer = int(name[1]) if name else 0
    if not 0 < layer < model.num_layers:
        raise ConfigError(
            f"directions of this model are direction.1 to direction.{model.num_layers - 1}.",
            where=f"{found.path}: {extent.name}",
            fix="name a control vector that was made for this model.",
        )
    return layer


def _vector(
    extent: TensorExtent, model: ModelSpec, numbers: Callable[[TensorExtent], torch.Tensor]
) -> torch.Tensor:
    """Return a direction. Raises: ConfigError. Shapes: -> [E]"""
    vector = numbers(extent).float()
    if vector.shape != (model.hidden_size,):
        raise ConfigError(
            f"it has the shape {list(vector.shape)}, and the model's vectors {model.hidden_size} "
            "numbers.",
            where=f"{extent.path}: {extent.name}",
            fix="name a control vector that was made for this model.",
        )
    return vector
