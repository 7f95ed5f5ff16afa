"""Outlier channels cost a quantized model no more than rounding them among their neighbours does.

Every built-in method, every GGUF type: logits of a model whose norms make two channels 60 times
larger, by default options, against float32 products of the matrices that are meant. In trained
models norms do so to a few channels, and the weights of those channels are as large as any
(Dettmers et al., LLM.int8(), 2022; Xiao et al., SmoothQuant, 2023). A method's stored tensors are
filled with random codes, so nothing here knows a packing: the matrix that a layer means is the one
its method tells, which is compared with other libraries elsewhere.

Errors are roots of mean squares, in deviations of the logits. Each model's bound is half of what
int8 with a scale a token would cost in the layers of integers, and what a scale for 32 inputs costs
is half of the bound at most; both are simulated in torch, for each case anew:

| | a scale a token | a scale for 32 inputs | token / 32 |
|---|---|---|---|
| int8, int4 while loading: llama | 0.117 | 0.025 | 4.6 |
| qwen3 | 0.104 to 0.108 | 0.020 | 5.2 |
| gemma3 | 0.054 | 0.011 | 4.7 |
| mixtures of experts | 0.060 to 0.083 | 0.012 to 0.017 | 4.9 |
| GPTQ of 2, 3, 4 and 8 bits, Marlin | 0.06 to 0.20 | 0.012 to 0.034 | 4.5 to 15 |
| AWQ, compressed-tensors, hqq, torchao, bitsandbytes | 0.08 to 0.13 | 0.017 to 0.023 | 4.5 to 5.7 |
| GGUF | 0.08 to 0.17 | 0.017 to 0.034 | 4.6 to 5.4 |

Float activations err by 4e-6 at most, bfloat16 beside small floats by 0.003 to 0.006.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dovetail import registry
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.layers.weights import finish_weights
from dovetail_plugins.gguf.blocks.types import BY_NAME, QUANTIZED, TABLES
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.reference_products import error, meant, per_group, per_token, rounded

BOUND, MARGIN = 0.1, 2.0
"""The largest error of any model, and by how much the simulations of each lie on either side of its
own bound."""
FLOAT_BOUND = 0.01
"""Where weights are floats, activations and tables may become bfloat16."""
EXACT = 2e-5
"""Float32 sums in another order."""
SAME = 5e-3
"""The same rounding, but for numbers between two steps that fall to either side."""
HIDDEN, INNER, HEAD_SIZE = 1024, 512, 64
CHANNELS, FACTOR = (5, 19), 60.0
"""Which channels the norms before attention and feed-forward make so many times larger."""
QUERY_ROWS, QUIET = 6 * HEAD_SIZE, 0.3
"""Weights of queries and keys are made smaller: the softmax else picks one token and the rounding
of a score decides which."""
TOKENS = torch.randint(3, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A method over a checkpoint that its `config` describes, None for one in full precision.
    `step` of its codes makes weights about as large as others are; `seed` draws them."""

    method: str
    config: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    step: float = 0.007
    architecture: str = "Qwen3ForCausalLM"
    seed: int = 0


def tensors(bits: int, *, group: int = 128, **more: Any) -> dict[str, Any]:
    """Return a scheme of compressed-tensors."""
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    weights = {"num_bits": bits, "type": "int", "symmetric": True, **strategy}
    return {"config_groups": {"0": {"targets": ["Linear"], "weights": weights, **more}},
            "ignore": ["lm_head"]}  # fmt: skip


def torchao(name: str, **data: Any) -> dict[str, Any]:
    return {"quant_type": {"default": {"_type": name, "_data": data}}}


def hqq(bits: int) -> dict[str, Any]:
    return {"quant_config": {"weight_quant_params": {"nbits": bits, "group_size": 64, "axis": 1}}}


TOKEN8 = {"input_activations": {"num_bits": 8, "type": "int", "strategy": "token"}}
GPTQ, BYTE = {"bits": 4, "group_size": 128}, 0.0004
CASES = {
    "int8": Case(method="int8"),
    "int8, llama": Case(method="int8", architecture="LlamaForCausalLM"),
    "int8, gemma": Case(method="int8", architecture="Gemma3ForCausalLM"),
    "int4": Case(method="int4"),
    "int4, llama": Case(method="int4", architecture="LlamaForCausalLM"),
    "int4, gemma": Case(method="int4", architecture="Gemma3ForCausalLM"),
    "int4, zero points": Case(method="int4-plain", options={"symmetric": False, "head": "int4"}),
    "tpu_int8": Case(method="tpu_int8"),
    "neuron_quant": Case(method="neuron_quant"),
    "experts_int8": Case(method="experts_int8", architecture="Qwen3MoeForCausalLM"),
    "gptq": Case(method="gptq", config=GPTQ),
    "gptq, llama": Case(method="gptq", config=GPTQ, architecture="LlamaForCausalLM"),
    "gptq, experts": Case(method="gptq", config=GPTQ, architecture="Qwen3MoeForCausalLM"),
    "gptq 2": Case(method="gptq", config={**GPTQ, "bits": 2}, step=0.03),
    "gptq 3": Case(method="gptq", config={**GPTQ, "bits": 3}, step=0.014),
    "gptq 8": Case(method="gptq", config={**GPTQ, "bits": 8}, step=BYTE),
    "gptq_marlin": Case(method="gptq_marlin", config=GPTQ),
    "marlin": Case(method="marlin", config=GPTQ),
    "gptq_marlin_24": Case(method="gptq_marlin_24", config=GPTQ),
    "gptq_marlin_24 8": Case(method="gptq_marlin_24", config={"bits": 8, "group_size": -1},
                             step=BYTE),
    "awq": Case(method="awq", config=GPTQ),
    "awq_marlin": Case(method="awq_marlin", config=GPTQ),
    "auto-round": Case(method="auto-round", config=GPTQ),
    "ipex": Case(method="ipex", config={"quant_method": "gptq", **GPTQ}),
    "W4A16": Case(method="compressed-tensors", config={"format": "pack-quantized", **tensors(4)}),
    "W8A16": Case(method="compressed-tensors", step=BYTE,
                  config={"format": "pack-quantized", **tensors(8, group=0)}),
    "int-quantized": Case(method="compressed-tensors", step=BYTE,
                          config={"format": "int-quantized", **tensors(8, group=0)}),
    "W8A8": Case(method="compressed-tensors", step=BYTE,
                 config={"format": "int-quantized", **tensors(8, group=0, **TOKEN8)}),
    "W4A8": Case(method="compressed-tensors",
                 config={"format": "pack-quantized", **tensors(4, **TOKEN8)}),
    "qqq": Case(method="qqq", config={"wbits": 4, "group_size": 128}, step=0.08),
    "hqq 2": Case(method="hqq", config=hqq(2), step=0.03),
    "hqq 4": Case(method="hqq", config=hqq(4)),
    "hqq 8": Case(method="hqq", config=hqq(8), step=BYTE),
    "torchao int8": Case(method="torchao", config=torchao("Int8WeightOnlyConfig"), step=BYTE),
    "torchao W8A8": Case(method="torchao", step=BYTE,
                         config=torchao("Int8DynamicActivationInt8WeightConfig")),
    "torchao int4": Case(method="torchao", config=torchao("Int4WeightOnlyConfig", group_size=64)),
    "bitsandbytes int8": Case(method="bitsandbytes", config={"load_in_8bit": True},
                              step=127 * BYTE),
    "nf4": Case(method="bitsandbytes"),
    "fp8": Case(method="fp8"),
    "deepspeedfp": Case(method="deepspeedfp"),
    "nvfp4": Case(method="modelopt", config={"quant_algo": "NVFP4"}, step=0.1),
    "mxfp4": Case(method="mxfp4", config={}, architecture="Qwen3MoeForCausalLM"),
    "aqlm": Case(method="aqlm", config={"in_group_size": 8, "out_group_size": 1,
                                        "num_codebooks": 1, "nbits_per_codebook": 8}, step=1.0),
    "none": Case(method="none"),
}  # fmt: skip
OTHERS = {
    "latents": "DeepseekV2ForCausalLM",
    "states": "Mamba2ForCausalLM",
    "convolutions": "Lfm2ForCausalLM",
    "chunks": "Llama4ForCausalLM",
    "deltas": "Qwen3_5ForCausalLM",
}
"""Families of other layers, by what sets them apart."""
CASES |= {f"int8, {word}": Case(method="int8", architecture=name) for word, name in OTHERS.items()}
CASES["int8, deltas"] = Case(method="int8", architecture=OTHERS["deltas"], seed=1)
TOKEN_SCALES = {"W8A8", "W4A8", "qqq", "torchao W8A8"}
"""Those that say that activations are int8, a scale a token."""
FLOATS = {"nf4", "fp8", "deepspeedfp", "nvfp4", "mxfp4", "aqlm", "none",
          *(f"gguf {name}" for name in TABLES)}  # fmt: skip
"""Those whose weights are floats to a product."""
PACKED_ALIKE = {
    "int8, llama", "int8, gemma", "int8, convolutions", "int8, chunks", "int4, llama",
    "int4, gemma", "tpu_int8", "neuron_quant", "gptq, llama", "gptq_marlin", "marlin",
    "gptq_marlin_24", "gptq_marlin_24 8", "awq_marlin", "auto-round", "ipex", "deepspeedfp",
    "torchao int8", "torchao int4", "bitsandbytes int8", "gguf Q4_1", "gguf Q5_1", "gguf Q3_K",
    "gguf Q5_K", "gguf IQ2_XS", "gguf IQ2_S", "gguf IQ3_S", "gguf IQ1_M", "gguf IQ4_XS",
    "gguf TQ2_0", "gguf MXFP4", "gguf NVFP4", "gguf Q4_K, llama", "gguf Q8_0, llama",
}  # fmt: skip
"""Cases whose weights, once loaded, are multiplied by the same code as those of another case."""
LEAVES = [f"{n}_proj" for n in ("q", "k", "v", "o", "gate", "up", "down")]
"""The matrices of a block."""
HOLDER = {**dict.fromkeys(LEAVES[:4], "self_attn"), **dict.fromkeys(LEAVES[4:], "mlp")}


def gguf(type_name: str) -> Case:
    names = [f"model.layers.0.{HOLDER[leaf]}.{leaf}" for leaf in LEAVES]
    return Case(method="gguf", config={"types": dict.fromkeys(names, type_name)})


CASES |= {f"gguf {name}": gguf(name) for name in QUANTIZED}
CASES |= {
    f"gguf {name}, llama": replace(gguf(name), architecture="LlamaForCausalLM")
    for name in ("Q4_K", "Q8_0")
}


SHAPES: dict[str, dict[str, Any]] = {
    "Mamba2ForCausalLM": {"num_heads": 32, "layer_types": None},
    "Lfm2ForCausalLM": {"layer_types": ["conv"], "block_auto_adjust_ff_dim": False},
    "Llama4ForCausalLM": {"layer_types": ["chunked_attention"], "intermediate_size_mlp": INNER},
    "Qwen3_5ForCausalLM": {
        "layer_types": ["linear_attention"],
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), HEAD_SIZE),
    },
    "DeepseekV2ForCausalLM": {
        "head_dim": None,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
    },
}
"""What families of other layers have beside or instead (None: nothing in its place)."""


@cache
def facts(architecture: str, folder: Path) -> ModelSpec:
    """Return a model's spec: wide, so that one group of 32 inputs is few of them."""
    shape: dict[str, Any] = {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "moe_intermediate_size": INNER,
        "num_hidden_layers": 1, "head_dim": HEAD_SIZE, "layer_types": ["full_attention"],
        "num_experts": 2, "num_experts_per_tok": 2, **SHAPES.get(architecture, {}),
    }  # fmt: skip
    shape = {name: value for name, value in shape.items() if value is not None}
    path = write_tiny_checkpoint(folder / architecture, architecture, **shape)
    return msgspec.structs.replace(load_model_facts(path, dtype="float32"), weight_dtype="bfloat16")


def built(case: Case, folder: Path, **options: Any) -> PagedModel:
    """Return the case's model, its tensors the same for all options."""
    spec = facts(case.architecture, folder)
    plugin: Any = registry.load("quantization", case.method)
    if case.config is not None:
        stored = {"quant_method": plugin.stored_as[0], **case.config}
        spec = msgspec.structs.replace(
            spec, hf_config={**spec.hf_config, "quantization_config": stored}
        )
    assert not plugin.why_not(spec)
    quant = plugin(plugin.Options(**{**case.options, **options}), spec)
    model: Any = registry.load("model", spec.architecture)
    module = model(model.Options(), BuildContext(model=spec, quant=quant, device="cpu"))
    random = torch.Generator().manual_seed(case.seed)
    with torch.inference_mode():
        for name, parameter in module.named_parameters():
            parameter.data.copy_(drawn(name, parameter, case, random))
        plant(module, case.architecture)
        finish_weights(module)
    return PagedModel(module.eval())


def drawn(name: str, like: torch.Tensor, case: Case, random: torch.Generator) -> torch.Tensor:
    """Return what a checkpoint could hold in the place of a parameter."""
    leaf, dtype, shape = name.rpartition(".")[2], like.dtype, like.shape
    if leaf in BY_NAME:
        return gguf_rows(leaf, shape, QUIET if "qkv" in name else 1.0)
    if vars(like).get("default") is not None or leaf.endswith(("g_idx", "zero_point")):
        return torch.full(shape, -1 if leaf.endswith("g_idx") else 0).to(dtype)
    if leaf in ("W_q", "zero"):
        levels = 2 ** case.config["quant_config"]["weight_quant_params"]["nbits"]
        middle = torch.full(shape, levels / 2 - 0.25)
        values = torch.randint(levels, shape, generator=random)
        return values.to(dtype) if leaf == "W_q" else middle
    if leaf == "qzeros":
        return halves(case.config["bits"], shape)
    if "scale" in leaf or leaf in ("absmax", "s", "SCB", "s_channel", "s_group"):
        if dtype == torch.uint8:  # exponents of two
            return torch.randint(121, 123, shape, generator=random).to(dtype)
        spread = torch.rand(shape, generator=random) * 0.5 + 0.75
        return (spread * case.step).to(dtype)
    if not dtype.is_floating_point:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        return torch.randint(low, high, shape, generator=random).to(dtype)
    return floats(name, like, case, random)


def halves(bits: int, shape: torch.Size) -> torch.Tensor:
    """Return packed zero points in the middle of values, less one. Shapes: [G, words] int32"""
    packed = sum(((1 << bits - 1) - 1) << bits * place for place in range(32))
    words = [packed >> 32 * place & 0xFFFFFFFF for place in range(bits)]
    signed = torch.tensor([word - (word >> 31 << 32) for word in words], dtype=torch.int32)
    return signed.repeat(shape[1] // bits).expand(shape)


def floats(name: str, like: torch.Tensor, case: Case, random: torch.Generator) -> torch.Tensor:
    """Return norms of about one, and matrices whose products are about as large as what they are
    given."""
    values = torch.randn(like.shape, generator=random)
    if "norm" in name:
        return values * 0.1 + (1 - ones_added(case.architecture, name))
    is_table = "embed" in name and "Gemma" not in case.architecture
    values = values if is_table or like.dim() < 2 else values * like.shape[-1] ** -0.5
    if "qkv" in name:
        values[:QUERY_ROWS] *= QUIET
    return values.to(like.dtype)


def ones_added(architecture: str, name: str) -> int:
    """Return 1 where a norm multiplies by 1 + weight, else 0."""
    adds_one = architecture.startswith(("Gemma", "Qwen3_5")) and "linear_attn" not in name
    return int(adds_one)


OFFSETS = {"Q4_K": (2, 7.5), "Q5_K": (2, 15.5)}
"""Types of which random blocks are made: where the offsets' step lies, in parts of the scales', for
values to be about zero on average."""


def gguf_rows(type_name: str, shape: torch.Size, size: float) -> torch.Tensor:
    """Return rows of blocks of a GGUF type. Shapes: [N, bytes] uint8"""
    from support.gguf_files import quantized

    known = BY_NAME[type_name]
    wide = shape[-1] // known.block_bytes * known.values
    random = torch.Generator().manual_seed(shape[0])
    values = torch.randn(shape[0], wide, generator=random) * wide**-0.5 * size
    rows = torch.from_numpy(quantized(values.numpy(), type_name)[0].copy()).view(shape)
    if type_name in OFFSETS:
        place, middle = OFFSETS[type_name]
        blocks = rows.view(-1, known.block_bytes)
        steps = blocks[:, :2].contiguous().view(torch.float16) * middle
        blocks[:, place : place + 2] = steps.view(torch.uint8)
    return rows


USUAL_NORMS = ("input_layernorm", "post_attention_layernorm")
NORMS = {
    "Gemma3ForCausalLM": ("input_layernorm", "pre_feedforward_layernorm"),
    "Mamba2ForCausalLM": ("norm",),
}
"""The norms before products."""


def plant(module: torch.nn.Module, architecture: str) -> None:
    """Make a few channels of the norms before products larger. Mutates: module"""
    for name in NORMS.get(architecture, USUAL_NORMS):
        one = ones_added(architecture, name)
        weight = module.get_parameter(f"model.layers.0.{name}.weight").data
        own = weight[list(CHANNELS)] + one
        weight[list(CHANNELS)] = own * FACTOR - one


NAMES = [
    pytest.param(name, marks=pytest.mark.any_isa if name in PACKED_ALIKE else ()) for name in CASES
]


def logits(model: PagedModel) -> torch.Tensor:
    """Return the logits after every token. Shapes: -> [T, V]"""
    return model.forward([(len(model.rows), TOKENS)])[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outliers")


@cache
def simulated(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """Return logits of the matrices that are meant: "exact", activations left alone; "meant", a
    scale a token where the checkpoint says so; "token" and "groups", of all other integers."""
    with meant():
        model = built(CASES[name], folder)
    found = {}
    for word, rounding, of_token in (
        ("exact", None, None),
        ("meant", None, per_token),
        ("token", per_token, per_token),
        ("groups", per_group, per_token),
    ):
        with rounded(rounding, of_token=of_token):
            found[word] = logits(model)
    return found


def bound_of(name: str, wanted: dict[str, torch.Tensor]) -> float:
    """Return what a case may err by: products of integers, a part of what a scale a token costs."""
    if name in FLOATS:
        return FLOAT_BOUND
    return min(BOUND, error(wanted["token"], wanted["meant"]) / MARGIN)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", NAMES)
def test_by_default(name: str, folder: Path) -> None:
    wanted = simulated(name, folder)
    found = logits(built(CASES[name], folder))
    if name in TOKEN_SCALES:
        assert error(found, wanted["meant"]) <= SAME
        assert error(found, wanted["exact"]) >= MARGIN * SAME
    else:
        assert error(found, wanted["exact"]) <= bound_of(name, wanted)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", NAMES)
def test_the_bound_tells_them_apart(name: str, folder: Path) -> None:
    wanted = simulated(name, folder)
    by_token, by_group = (error(wanted[word], wanted["meant"]) for word in ("token", "groups"))
    if name in TOKEN_SCALES or name in FLOATS:
        assert by_token == by_group == 0
    else:
        assert by_token >= MARGIN * bound_of(name, wanted)
        assert by_group <= bound_of(name, wanted) / MARGIN


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", NAMES)
def test_float_activations(name: str, folder: Path) -> None:
    """Nothing is rounded, also where the checkpoint says that it should be."""
    found = logits(built(CASES[name], folder, activations="float"))
    assert error(found, simulated(name, folder)["exact"]) <= EXACT


def test_every_method_has_a_case() -> None:
    """Others that stand for the same layers: names of kernels, and methods of float8 alone."""
    alike = {"fbgemm_fp8", "modelopt_fp4"}
    missing = set(registry.names("quantization")) - {case.method for case in CASES.values()} - alike
    assert not missing
