"""Names in quantization configs: the file's, those of the writer's model, in lists and strings, and
layers in full precision that no list names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail import LLM
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.dequantized import dequantized_model, found_logprobs, wanted_logprobs
from support.packed_layers import (
    GROUP,
    Tensors,
    as_awq,
    as_gptq,
    eight_bit_gptq,
    eight_bit_matrix,
    four_bits,
)
from support.tiny_media import write_media_checkpoint

pytestmark = pytest.mark.any_isa  # which layers have which codes: kernels are tried elsewhere

pytest.importorskip("PIL.Image", reason="Pillow is not installed")

EXACT = 1e-3
TEXT_FILE = {"Qwen3VLForConditionalGeneration": "model.language_model.",
             "Gemma3ForConditionalGeneration": "language_model.model.",
             "LlamaForCausalLM": "model."}  # fmt: skip
"""What the files call the text model."""
Packs = Callable[[str], bool]
"""Whether a layer, by the name in the file, is quantized."""


def as_float8(weight: torch.Tensor) -> Tensors:
    scale = weight.float().abs().max() / 448
    return {"weight": (weight.float() / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def eight_bits(weight: torch.Tensor) -> torch.Tensor:
    stored = as_float8(weight)
    return stored["weight"].float() * stored["weight_scale"]


FORMATS = {"gptq": (as_gptq, four_bits), "awq": (as_awq, four_bits),
           "fp8": (as_float8, eight_bits), "modelopt": (as_float8, eight_bits),
           "compressed-tensors": (as_float8, eight_bits)}  # fmt: skip


def written(folder: Path, architecture: str, packs: Packs, config: dict[str, Any]) -> Path:
    """Write a checkpoint whose chosen layers are quantized."""
    if architecture.endswith("ConditionalGeneration"):
        write_media_checkpoint(folder, architecture, intermediate_size=64)
    else:
        write_tiny_checkpoint(folder, architecture, hidden_size=64, intermediate_size=64)
    write, _ = FORMATS[config["quant_method"]]
    file, tensors = folder / "model.safetensors", {}
    for name, tensor in load_file(file).items():
        layer = name.removesuffix(".weight")
        made = write(tensor) if name.endswith("_proj.weight") and packs(layer) else None
        more = {name: tensor} if made is None else {f"{layer}.{k}": v for k, v in made.items()}
        tensors |= {k: v.contiguous() for k, v in more.items()}
    facts = json.loads((folder / "config.json").read_text())
    save_file(tensors, file, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**facts, "quantization_config": config}))
    return folder


def reference(folder: Path, architecture: str, packs: Packs, method: str) -> Any:
    """Return transformers' model of the matrices that are meant."""
    import transformers

    meant = FORMATS[method][1]
    prefix = TEXT_FILE[architecture]
    if architecture == "LlamaForCausalLM":
        path = write_tiny_checkpoint(folder, architecture, hidden_size=64, intermediate_size=64)
        return dequantized_model(
            path, lambda n, w: meant(w) if n[-5:] == "_proj" and packs(n) else w
        )
    path = write_media_checkpoint(folder, architecture, intermediate_size=64)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for name, module in model.model.language_model.named_modules():
            if isinstance(module, nn.Linear) and packs(f"{prefix}{name}"):
                module.weight.copy_(meant(module.weight))
    return model


def agrees(tmp_path: Path, architecture: str, packs: Packs, **config: Any) -> None:
    """Assert that a checkpoint of this config is served as what it means."""
    path = written(tmp_path / "model", architecture, packs, config)
    model = reference(tmp_path / "plain", architecture, packs, config["quant_method"])
    random = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, VOCAB_SIZE, (n,), generator=random).tolist() for n in (17, 9)]
    wanted, deviation = wanted_logprobs(model, prompts)
    options = {"quantization": {"activations": "float"}}
    with LLM(
        str(path), dtype="float32", plugin_options=options, max_model_len=64, max_logprobs=-1
    ) as llm:
        found = found_logprobs(llm, prompts)
    assert (found - wanted).abs().max() <= EXACT * max(deviation, 1)


BITS = {"bits": 4, "group_size": GROUP}
LEFT = ("layers.0.self_attn.o_proj", "layers.1.mlp.down_proj")


def is_packed(layer: str) -> bool:
    """Return whether a layer is of the text model, and not left in full precision."""
    return ".layers." in layer and "vision" not in layer and not layer.endswith(LEFT)


def named(prefix: str) -> list[str]:
    return [f"{prefix}{name}" for name in LEFT]


PREFIXES = ("model.language_model.", "language_model.model.", "model.", "language_model.")
SIGHTED = ("Qwen3VLForConditionalGeneration", "Gemma3ForConditionalGeneration")


def config_of(method: str, prefix: str) -> dict[str, Any]:
    """Return a config that names the layers left alone behind a prefix, as each tool does it."""
    names = named(prefix)
    groups = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float",
              "strategy": "tensor", "symmetric": True}}  # fmt: skip
    return {
        "gptq": {
            **BITS,
            "dynamic": {f"-:{name.replace('.', chr(92) + '.')}": {} for name in names},
        },
        "awq": {**BITS, "modules_to_not_convert": names},
        "fp8": {"modules_to_not_convert": names, "activation_scheme": "dynamic"},
        "modelopt": {"quant_algo": "FP8", "exclude_modules": [f"{name}*" for name in names]},
        "compressed-tensors": {
            "format": "float-quantized",
            "ignore": [*names, r"re:.*vision.*", r"re:.*visual.*"],
            "config_groups": {"group_0": groups},
        },
    }[method]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("architecture", SIGHTED)
@pytest.mark.parametrize("method", FORMATS)
def test_names_behind_a_prefix(method: str, architecture: str, prefix: str, tmp_path: Path) -> None:
    """Whichever prefix the tool wrote, and whichever the file has."""
    agrees(tmp_path, architecture, is_packed, quant_method=method, **config_of(method, prefix))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("method", FORMATS)
@pytest.mark.parametrize("architecture", [*SIGHTED, "LlamaForCausalLM"])
def test_a_layer_in_full_precision_that_no_list_names(
    method: str, architecture: str, tmp_path: Path
) -> None:
    config = config_of(method, "")
    for key in ("dynamic", "modules_to_not_convert", "exclude_modules", "ignore"):
        config.pop(key, None)
    agrees(tmp_path, architecture, is_packed, quant_method=method, **config)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_targets_of_groups_behind_a_prefix(prefix: str, tmp_path: Path) -> None:
    """Only the named layers are quantized."""
    config = config_of("compressed-tensors", prefix)
    config["config_groups"]["group_0"]["targets"] = named(prefix)
    config["ignore"] = []
    agrees(
        tmp_path,
        "Qwen3VLForConditionalGeneration",
        lambda layer: layer.endswith(LEFT) and "layers" in layer,
        quant_method="compressed-tensors",
        **config,
    )


@pytest.mark.parametrize(
    "skipped",
    ["o_proj", "self_attn.o_proj, visual", ["o_proj", "model.visual"], ["attn.o_pro"]],
    ids=["one string", "with commas", "a list", "part of a word"],
)
def test_lists_in_other_forms(skipped: Any, tmp_path: Path) -> None:
    agrees(
        tmp_path,
        "Qwen3VLForConditionalGeneration",
        lambda layer: "layers" in layer and not layer.endswith("o_proj"),
        quant_method="awq",
        modules_to_not_convert=skipped,
        **BITS,
    )


def test_an_expression_that_looks_for_what_is_not_there(tmp_path: Path) -> None:
    """It means the file's own names: none but the text model is quantized."""
    config = config_of("compressed-tensors", "")
    config["ignore"] = [r"re:^(?!.*language_model).*$", "re:.*o_proj"]
    agrees(
        tmp_path,
        "Qwen3VLForConditionalGeneration",
        lambda layer: "layers" in layer and not layer.endswith("o_proj"),
        quant_method="compressed-tensors",
        **config,
    )


PART = (("q_proj", "up_proj"), ("k_proj",), ("v_proj", "gate_proj"))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("alone", PART, ids="+".join)
@pytest.mark.parametrize("method", FORMATS)
def test_one_of_a_fused_layer_in_full_precision(
    method: str, alone: tuple[str, ...], tmp_path: Path
) -> None:
    """Whether a list names it or not."""

    def packs(layer: str) -> bool:
        return "layers.0" not in layer or not layer.endswith(alone)

    config = config_of(method, "")
    for key in ("dynamic", "modules_to_not_convert", "exclude_modules", "ignore"):
        config.pop(key, None)
    agrees(tmp_path, "LlamaForCausalLM", packs, quant_method=method, **config)


@pytest.mark.parametrize("alone", PART, ids="+".join)
def test_one_of_a_fused_layer_in_another_width(alone: tuple[str, ...], tmp_path: Path) -> None:
    def meant(weight: torch.Tensor, name: str) -> torch.Tensor:
        return eight_bit_matrix(weight) if name.endswith(alone) else four_bits(weight)

    folder = write_tiny_checkpoint(
        tmp_path / "m", "LlamaForCausalLM", hidden_size=64, intermediate_size=64
    )
    model = dequantized_model(folder, lambda n, w: meant(w, n) if n.endswith("_proj") else w)
    tensors: Tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if not layer.endswith("_proj"):
            tensors[name] = tensor
            continue
        made = (eight_bit_gptq if layer.endswith(alone) else as_gptq)(tensor)
        tensors |= {f"{layer}.{leaf}": one.contiguous() for leaf, one in made.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    facts = json.loads((folder / "config.json").read_text())
    dynamic = {f"+:.*{name}": {"bits": 8} for name in alone}
    facts["quantization_config"] = {"quant_method": "gptq", **BITS, "dynamic": dynamic}
    (folder / "config.json").write_text(json.dumps(facts))
    prompts = [torch.randint(3, VOCAB_SIZE, (17,)).tolist()]
    wanted, deviation = wanted_logprobs(model, prompts)
    options = {"quantization": {"activations": "float"}}
    with LLM(
        str(folder), dtype="float32", plugin_options=options, max_model_len=64, max_logprobs=-1
    ) as llm:
        found = found_logprobs(llm, prompts)
    assert (found - wanted).abs().max() <= EXACT * max(deviation, 1)


@pytest.mark.parametrize("method", ["gptq", "fp8"])
@pytest.mark.parametrize("architecture", ["Qwen3MoeForCausalLM", "MixtralForCausalLM"])
def test_one_matrix_of_all_experts_in_full_precision(
    architecture: str, method: str, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "intermediate_size": 64}
    folder = write_tiny_checkpoint(tmp_path / "m", architecture, mlp_only_layers=[], **sizes)
    write, meant = FORMATS[method]
    tensors: Tensors = {}
    plain = load_file(folder / "model.safetensors")
    for name, tensor in list(plain.items()):
        layer = name.removesuffix(".weight")
        if ".experts." not in layer or layer.endswith(("up_proj", "w3")):
            tensors[name] = tensor
            continue
        tensors |= {f"{layer}.{leaf}": one.contiguous() for leaf, one in write(tensor).items()}
        plain[name] = meant(tensor).contiguous()
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    model = dequantized_model(folder, lambda name, weight: weight)
    prompts = [torch.randint(3, VOCAB_SIZE, (17,)).tolist()]
    wanted, deviation = wanted_logprobs(model, prompts)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    facts = json.loads((folder / "config.json").read_text())
    facts["quantization_config"] = {"quant_method": method, **BITS}
    (folder / "config.json").write_text(json.dumps(facts))
    options = {"quantization": {"activations": "float"}}
    with LLM(
        str(folder), dtype="float32", plugin_options=options, max_model_len=64, max_logprobs=-1
    ) as llm:
        found = found_logprobs(llm, prompts)
    assert (found - wanted).abs().max() <= EXACT * max(deviation, 1)
