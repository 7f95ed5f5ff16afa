"""What `dovetail inspect` says a quantized checkpoint keeps is what loading keeps, to the byte, and
what it says of activations is what products make of them.

Every method that is built in has a case: checkpoints that other libraries wrote, those written here
by a format's words, and plain ones quantized while they load.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import registry
from dovetail.cli.parser import Parser
from dovetail.config.parse.parse_config import parse_config
from dovetail.config.resolve import resolve
from dovetail.interfaces.data.headers import StoredLayer, TensorHeader
from dovetail.interfaces.quantization import LinearSpec
from dovetail.runner.load.loader import load_model, num_bytes
from dovetail_kernels.cpu.library import library
from dovetail_kernels.gemm.weight import Weight
from dovetail_plugins.commands._serve_flags import add_serve_arguments
from dovetail_plugins.gguf.blocks.types import QUANTIZED as QUANTIZED_TYPES
from dovetail_plugins.inspect.collect import inspect
from dovetail_plugins.inspect.facts import Inspected
from dovetail_plugins.inspect.stored_layers import purpose_of
from dovetail_plugins.layers.stored import matrix_linear
from dovetail_plugins.layers.stored.products import multiplied
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.gguf_files import write_gguf

pytest.importorskip("dovetail_plugins")


DATA = Path(__file__).resolve().parents[2] / "data"
QUANTIZED = sorted(file.parent.name for file in (DATA / "quantized").glob("*/config.json"))
COMPRESSED = sorted(file.stem for file in (DATA / "compressed_tensors").glob("*.safetensors"))
ROOMY = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "num_hidden_layers": 1}
LOADING: dict[str, list[str]] = {
    "int8": ["int8"],
    "int4": ["int4"],
    "int4-plain": ["int4-plain"],
    "int4 with zero points": ["int4-plain", "--plugin-options.quantization.symmetric", "false"],
    "fp8": ["fp8"],
    "nf4": ["bitsandbytes"],
    "bitsandbytes int8": ["bitsandbytes", "--plugin-options.quantization.kind", "int8"],
    "deepspeedfp": ["deepspeedfp"],
    "tpu_int8": ["tpu_int8"],
    "neuron_quant": ["neuron_quant"],
}
Tensors = dict[str, torch.Tensor]


def compare(path: Path, *flags: str) -> Inspected:
    parser = Parser(prog="inspect", description="")
    add_serve_arguments(parser)
    config = parse_config(parser.parse([str(path), *flags]), stream=io.StringIO())
    found = inspect(config)
    with noting() as noted:
        module = load_model(resolve(config).run, torch.device("cpu")).module
    assert found.memory is not None
    assert found.memory.is_exact, found.warnings
    assert found.memory.weights_bytes + found.memory.tables_bytes == num_bytes(module)
    if library() is not None:
        check_activations(found, noted)
    return found


@contextmanager
def noting() -> Iterator[list[tuple[str, str]]]:
    """Give the names of layers that are made inside a with block, and what their activations
    become."""
    noted: list[tuple[str, str]] = []

    def spied(weight: Weight, asked: str, spec: LinearSpec) -> tuple[Weight, str]:
        made, becomes = multiplied(weight, asked, spec)
        noted.append((spec.name, becomes))
        return made, becomes

    with patch.object(matrix_linear, "multiplied", spied):
        yield noted


HEADER = TensorHeader(name="weight", shape=(1, 1), dtype="float32", num_bytes=4, file="")
NATIVE = library()
INT8 = "int8 in groups of 32 inputs" + (
    "; 16-bit integers with 8-bit weights" if NATIVE is not None and NATIVE.isa == "avx2" else ""
)
WORDS_OF = {
    "int8": INT8,
    "token": "int8, a scale a token (the checkpoint's own)",
    "bfloat16": "bfloat16",
    "float": "float32",
}


def check_activations(found: Inspected, noted: list[tuple[str, str]]) -> None:
    told = {group.name: set(group.activations) for group in found.groups}
    made: dict[str, set[str]] = {name: set() for name in told}
    for name, becomes in noted:
        purpose = purpose_of(StoredLayer(name=name, tensors={"weight": HEADER}))
        purpose = "embedding" if purpose == "head" and "head" not in told else purpose
        if name and told[purpose]:  # a table that is no head goes without a name
            made[purpose].add(WORDS_OF[becomes])
    assert made == told


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", QUANTIZED)
def test_of_other_libraries(name: str, tmp_path: Path) -> None:
    shutil.copytree(DATA / "quantized" / name, tmp_path / "model")
    compare(write_tiny_tokenizer(tmp_path / "model"))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", COMPRESSED)
def test_of_compressed_tensors(name: str, tmp_path: Path) -> None:
    source, folder = DATA / "compressed_tensors", tmp_path / "model"
    folder.mkdir()
    tensors = load_file(source / f"{name}.safetensors")
    own = {key: value for key, value in tensors.items() if key not in ("token_ids", "logits")}
    base = load_file(source / "base" / "model.safetensors")
    save_file({**base, **own}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "base" / "config.json").read_text())
    stored = json.loads((source / f"{name}.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": stored}))
    compare(write_tiny_tokenizer(folder))


@pytest.mark.parametrize("name", LOADING)
def test_while_loading(name: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "Qwen3ForCausalLM", **ROOMY)
    compare(path, "--quantization", *LOADING[name])


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("type_name", ["F16", *(t for t in QUANTIZED_TYPES if t != "NVFP4")])
def test_of_gguf_files(type_name: str, tmp_path: Path) -> None:
    source = write_tiny_checkpoint(
        tmp_path / "source", "Qwen3ForCausalLM", hidden_size=256, intermediate_size=256,
        head_dim=64, num_hidden_layers=1,
    )  # fmt: skip
    file = tmp_path / "model.gguf"
    write_gguf(source, file, lambda name: "F32" if "norm" in name else type_name)
    compare(file)


def test_outputs_that_fill_no_panel(tmp_path: Path) -> None:
    """A vocabulary of 321, heads of 8 and a router of 4: packed matrices are filled up."""
    sizes = {"vocab_size": 321, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 1}
    for name in ("Qwen2ForCausalLM", "MixtralForCausalLM"):
        path = write_tiny_checkpoint(tmp_path / name, name, **sizes)
        for flags in ([], ["--quantization", "int8"]):
            compare(path, *flags)


def random_like(tensors: Tensors) -> Tensors:
    """Return tensors that hold anything; floats are no powers of two."""
    random = torch.Generator().manual_seed(0)
    found = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            values = torch.rand(tensor.shape, generator=random) + 0.1
        else:
            values = torch.randint(0, 100, tensor.shape, generator=random)
        found[name] = values.to(tensor.dtype)
    return found


def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def as_marlin(outputs: int, inputs: int) -> Tensors:
    return {"B": empty(torch.int32, inputs // 16, outputs * 2),
            "s": empty(torch.float16, inputs // 64, outputs)}  # fmt: skip


def as_sparse_marlin(outputs: int, inputs: int) -> Tensors:
    return {"B_24": empty(torch.int32, inputs // 32, outputs * 2),
            "s": empty(torch.float16, 1, outputs),
            "B_meta": empty(torch.int16, inputs // 32, outputs * 2)}  # fmt: skip


def as_qqq(outputs: int, inputs: int) -> Tensors:
    return {"B": empty(torch.int32, inputs // 16, outputs * 2),
            "s_channel": empty(torch.float32, 1, outputs)}  # fmt: skip


def as_float8(outputs: int, inputs: int) -> Tensors:
    return {"weight": empty(torch.float8_e4m3fn, outputs, inputs),
            "weight_scale": empty(torch.float32, outputs, 1)}  # fmt: skip


WORDS: dict[str, tuple[Callable[[int, int], Tensors], dict[str, Any]]] = {
    "marlin": (as_marlin, {"bits": 4, "group_size": 64}),
    "gptq_marlin_24": (as_sparse_marlin, {"bits": 4, "group_size": -1}),
    "qqq": (as_qqq, {"wbits": 4, "group_size": -1}),
    "fbgemm_fp8": (as_float8, {}),
}
"""quant_method -> the tensors of a layer, and the rest of its config."""


@pytest.mark.parametrize("quant_method", WORDS)
def test_by_a_formats_words(quant_method: str, tmp_path: Path) -> None:
    make, config = WORDS[quant_method]
    path = write_tiny_checkpoint(
        tmp_path, "Qwen3ForCausalLM", hidden_size=128, intermediate_size=128, head_dim=32,
        num_hidden_layers=1,
    )  # fmt: skip
    tensors: Tensors = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if not layer.endswith("_proj"):
            tensors[name] = tensor
            continue
        tensors |= {f"{layer}.{leaf}": t for leaf, t in random_like(make(*tensor.shape)).items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    put_config(path, {"quant_method": quant_method, **config})
    compare(path)


def put_config(path: Path, stored: dict[str, Any]) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": stored}))


def test_experts_in_4_bit_floats(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(
        tmp_path, "Qwen3MoeForCausalLM", **ROOMY | {"moe_intermediate_size": 64}
    )
    tensors = load_file(path / "model.safetensors")
    kept = {name: t for name, t in tensors.items() if ".experts." not in name}
    for leaf, outputs in (("gate_up_proj", 128), ("down_proj", 64)):
        name = f"model.layers.0.mlp.experts.{leaf}"
        kept[f"{name}_blocks"] = empty(torch.uint8, 4, outputs, 2, 16)
        kept[f"{name}_scales"] = empty(torch.uint8, 4, outputs, 2) + 120
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    put_config(path, {"quant_method": "mxfp4"})
    compare(path)


@pytest.mark.parametrize("asked", ["int8", "float"])
def test_what_is_asked_of_activations(asked: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "Qwen3ForCausalLM", **ROOMY)
    flags = ("--plugin-options.quantization.activations", asked, "--dtype", "bfloat16")
    found = compare(path, "--quantization", "int4", *flags)
    wanted = "float32" if asked == "float" else INT8
    told = {group.name: list(group.activations) for group in found.groups}
    assert told["attention"] == told["head"] == [wanted]
    assert told["norms"] == told["embedding"] == []


def test_every_method_tells() -> None:
    """A method without a word of its own would leave its layers a guess."""
    from dovetail.interfaces.quantization import QuantMethod

    silent = [
        name
        for name in registry.names("quantization")
        if registry.load("quantization", name).memory_estimate is QuantMethod.memory_estimate
    ]
    assert silent == ["none"]
