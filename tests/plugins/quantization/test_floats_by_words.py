"""Small floats and renamed methods: checkpoints written here by the formats' words, through the
engine, against transformers with the matrices that are meant."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail import LLM
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.interfaces.quantization import LinearSpec
from dovetail_kernels.gemm.weight import quantize_int8
from dovetail_plugins.quantization import bitsandbytes, deepspeedfp, qqq
from dovetail_plugins.quantization._float_formats import e8m0
from dovetail_testing.contract import model_spec
from dovetail_testing.harness import PagedModel, load_model
from dovetail_testing.ranks import TOKENS, RankModel, divided_logits
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.dequantized import dequantized_model, found_logprobs, wanted_logprobs

EXACT = 1e-4
"""Both sides sum float32 products of the same matrices; in deviations of all logits."""
DATA = Path(__file__).resolve().parents[2] / "data" / "quantized"
Make = Callable[[torch.Tensor], tuple[dict[str, torch.Tensor], torch.Tensor]]
"""A weight becomes the tensors of a checkpoint, by their last names, and the matrix they mean."""


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("floats") / "model"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    return write_tiny_checkpoint(folder, "Qwen3ForCausalLM", **sizes)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts") / "model"
    sizes = {"hidden_size": 64, "moe_intermediate_size": 96, "mlp_only_layers": []}
    return write_tiny_checkpoint(folder, "Qwen3MoeForCausalLM", num_hidden_layers=1, **sizes)


def flags(path: Path, quantization: str | None = None, **options: Any) -> dict[str, Any]:
    return {
        "model": str(path),
        "quantization": quantization,
        "plugin_options": {"quantization": {"activations": "float", **options}},
        "num_gpu_blocks_override": 64,
        "block_size": 16,
        "max_model_len": 64,
        "max_logprobs": -1,
        "use_tqdm_on_load": False,
        "dtype": "float32",
    }


def difference(
    path: Path, reference: Path, meant: Callable[[str, torch.Tensor], torch.Tensor], **asked: Any
) -> torch.Tensor:
    """Return every logprob's distance from transformers', in deviations of its logits."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (17, 1)]
    wanted, deviation = wanted_logprobs(dequantized_model(reference, meant), prompts)
    with LLM(**flags(path, **asked)) as llm:
        found = found_logprobs(llm, prompts)
    return (found - wanted).abs() / deviation


def stored(
    source: Path, folder: Path, make: Make, config: Mapping[str, Any], *, only: str = "proj"
) -> dict[str, torch.Tensor]:
    """Write a checkpoint, its layers with `only` in their names made; return what they mean."""
    shutil.copytree(source, folder)
    kept, meant = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if not layer.endswith("proj") or only not in layer:
            kept[name] = tensor
            continue
        made, meant[layer] = make(tensor)
        kept |= {f"{layer}.{leaf}": one for leaf, one in made.items()}
    save_file(kept, folder / "model.safetensors")
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": config}))
    return meant


def fp8_whole(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    scale = weight.abs().max() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    tensors = {"weight": values, "weight_scale": scale, "input_scale": torch.tensor(0.5)}
    return tensors, values.float() * scale


def fp8_blocks(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Blocks of 32 x 32; rows and columns of 96 and 16 leave some short."""
    rows, columns = (-(-n // 32) for n in weight.shape)
    scales = torch.empty(rows, columns)
    values = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    meant = torch.empty_like(weight)
    for row in range(rows):
        for column in range(columns):
            at = (slice(32 * row, 32 * row + 32), slice(32 * column, 32 * column + 32))
            scales[row, column] = weight[at].abs().max() / 448
            values[at] = (weight[at] / scales[row, column]).to(torch.float8_e4m3fn)
            meant[at] = values[at].float() * scales[row, column]
    return {"weight": values, "weight_scale_inv": scales}, meant


def fp8_outputs(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


FP8: dict[str, tuple[Make, dict[str, Any]]] = {
    "static": (fp8_whole, {"quant_method": "fp8", "activation_scheme": "static"}),
    "blocks": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [32, 32]}),
    "fbgemm": (fp8_outputs, {"quant_method": "fbgemm_fp8"}),
    "modelopt": (
        fp8_outputs, {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FP8))
def test_stored_float8(name: str, qwen: Path, tmp_path: Path) -> None:
    make, config = FP8[name]
    meant = stored(qwen, tmp_path / "model", make, config)
    found = difference(tmp_path / "model", qwen, lambda layer, w: meant.get(layer, w))
    assert found.max() <= EXACT


def test_layers_left_alone(qwen: Path, tmp_path: Path) -> None:
    config = {"quant_method": "fp8", "ignored_layers": ["model.layers.*.mlp.down_proj*",
              "re:.*self_attn.*"]}  # fmt: skip
    meant = stored(qwen, tmp_path / "model", fp8_whole, config, only="mlp.")
    path = tmp_path / "model"
    tensors = load_file(path / "model.safetensors")
    plain = load_file(qwen / "model.safetensors")
    down = "model.layers.0.mlp.down_proj"
    tensors = {n: t for n, t in tensors.items() if not n.startswith(down)}
    save_file({**tensors, f"{down}.weight": plain[f"{down}.weight"]}, path / "model.safetensors")
    del meant[down]
    assert difference(path, qwen, lambda layer, w: meant.get(layer, w)).max() <= EXACT


@pytest.mark.parametrize("name", ["static", "blocks"])
def test_float8_experts(name: str, experts: Path, tmp_path: Path) -> None:
    make, config = FP8[name]
    meant = stored(experts, tmp_path / "model", make, config)
    found = difference(tmp_path / "model", experts, expert_matrices(meant))
    assert found.max() <= EXACT


def expert_matrices(
    meant: Mapping[str, torch.Tensor],
) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """Return what finds the matrices of experts, which transformers asks for in their order."""
    asked: dict[str, int] = {}

    def find(name: str, weight: torch.Tensor) -> torch.Tensor:
        head, _, leaf = name.rpartition(".")
        if not head.endswith("experts"):
            return meant.get(name, weight)
        number = asked[name] = asked.get(name, -1) + 1
        words = ["down_proj"] if leaf == "down_proj" else ["gate_proj", "up_proj"]
        parts = [meant.get(f"{head}.{number}.{word}") for word in words]
        there = [part for part in parts if part is not None]
        return torch.cat(there) if there else weight

    return find


def test_mxfp4_experts(experts: Path, tmp_path: Path) -> None:
    """All experts in one tensor, as gpt-oss has them; transformers' own reading is the judge."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    path = tmp_path / "model"
    shutil.copytree(experts, path)
    kept = {
        name: t
        for name, t in load_file(path / "model.safetensors").items()
        if ".experts." not in name
    }
    random = torch.Generator().manual_seed(0)
    meant = {}
    for leaf, rows, inputs in (("gate_up_proj", 192, 64), ("down_proj", 64, 96)):
        name = f"model.layers.0.mlp.experts.{leaf}"
        shape = (4, rows, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), generator=random, dtype=torch.uint8)
        scales = torch.randint(121, 125, shape, generator=random, dtype=torch.uint8)
        kept |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        # The library gives the transposed matrix.
        wide = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        meant[name] = iter(wide.transpose(1, 2))
    save_file(kept, path / "model.safetensors")
    file = path / "config.json"
    config = {**json.loads(file.read_text()), "quantization_config": {"quant_method": "mxfp4"}}
    file.write_text(json.dumps(config))

    def find(name: str, weight: torch.Tensor) -> torch.Tensor:
        return next(meant[name]) if name in meant else weight

    assert difference(path, experts, find).max() <= EXACT


def test_e8m0() -> None:
    exponents = torch.arange(255, dtype=torch.uint8)
    wanted = torch.exp2(exponents.double() - 127).float()
    assert torch.equal(e8m0(exponents).float(), wanted)
    assert e8m0(torch.tensor([255], dtype=torch.uint8)).isnan().all()


def as_float8(weight: torch.Tensor) -> torch.Tensor:
    return fp8_outputs(weight)[1]


def as_e3m2(weight: torch.Tensor) -> torch.Tensor:
    """Return the nearest of all 63 values of e3m2, in groups of 32."""
    small = [m / 4 * 2.0**-2 for m in range(4)]
    levels = torch.tensor(
        [*small, *(2.0 ** (e - 3) * (1 + m / 4) for e in range(1, 8) for m in range(4))]
    )
    levels = torch.cat([-levels.flip(0), levels])
    grouped = weight.reshape(-1, 32)
    scale = grouped.abs().amax(1, keepdim=True) / 28
    near = (grouped / scale).unsqueeze(-1).sub(levels).abs().argmin(-1)
    return (levels[near] * scale).view(weight.shape)


def as_nf4(weight: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(bitsandbytes.NF4)
    padded = nn.functional.pad(weight, (0, -weight.shape[1] % 64)).view(len(weight), -1, 64)
    scale = padded.abs().amax(2, keepdim=True)
    near = (padded / scale).unsqueeze(-1).sub(table).abs().argmin(-1)
    return (table[near] * scale).view(len(weight), -1)[:, : weight.shape[1]]


def as_int8(weight: torch.Tensor) -> torch.Tensor:
    return quantize_int8(weight).dequantize()


LOADING: dict[str, tuple[str, dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "fp8": ("fp8", {}, as_float8),
    "neuron": ("neuron_quant", {"dtype": "f8e4m3fn", "skip": ["lm_head"]}, as_float8),
    "nf4": ("bitsandbytes", {}, as_nf4),
    "bitsandbytes_int8": ("bitsandbytes", {"kind": "int8"}, as_int8),
}


@pytest.mark.parametrize("name", list(LOADING))
def test_while_loading(name: str, qwen: Path) -> None:
    method, options, rounded = LOADING[name]

    def meant(layer: str, weight: torch.Tensor) -> torch.Tensor:
        return weight if layer == "lm_head" else rounded(weight)

    assert difference(qwen, qwen, meant, quantization=method, **options).max() <= EXACT


def test_the_load_format_asks_for_the_quantization(qwen: Path) -> None:
    config = Config.from_fields({**flags(qwen), "load_format": "bitsandbytes"})
    assert resolve(config).run.quantization.name == "bitsandbytes"


def test_deepspeedfp(qwen: Path, tmp_path: Path) -> None:
    shutil.copytree(qwen, tmp_path / "model")
    (tmp_path / "model" / deepspeedfp.FILE).write_text('{"bits": 6, "group_size": 32}')

    def meant(layer: str, weight: torch.Tensor) -> torch.Tensor:
        return weight if layer == "lm_head" else as_e3m2(weight)

    found = difference(tmp_path / "model", qwen, meant, quantization="deepspeedfp")
    # A weight in the middle of two levels may fall to either side.
    assert found.median() <= EXACT
    assert found.max() <= 0.1


@pytest.mark.parametrize("method", ["tpu_int8", "neuron_quant"])
def test_names_of_int8(method: str, qwen: Path) -> None:
    prompts = [[3, 5, 8, 13, 21]]
    found = []
    for name in ("int8", method):
        with LLM(**flags(qwen, name)) as llm:
            found.append(found_logprobs(llm, prompts))
    assert torch.equal(*found)


def test_experts_int8(experts: Path) -> None:
    """Experts alone are rounded."""

    def meant(name: str, weight: torch.Tensor) -> torch.Tensor:
        return as_int8(weight) if ".experts." in name else weight

    found = difference(experts, experts, meant, quantization="experts_int8")
    assert found.max() <= EXACT


def test_ipex_is_the_checkpoints_own_method(tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(DATA / "awq", path)
    write_tiny_tokenizer(path)
    found = []
    for name in ("ipex", "awq"):
        with LLM(**flags(path, name)) as llm:
            found.append(found_logprobs(llm, [[3, 5, 8, 13, 21]]))
    assert torch.equal(*found)


@pytest.mark.parametrize("group", [-1, 128])
def test_qqq(group: int) -> None:
    random = torch.Generator().manual_seed(0)
    inputs, sizes = 256, (64, 128)
    spec = LinearSpec(name="a.gate_up_proj", in_size=inputs, out_sizes=sizes, dtype="float32",
                      device="cpu")  # fmt: skip
    outputs = sum(sizes)
    low = -8 if group < 0 else 0
    values = torch.randint(low, low + 16, (inputs, outputs), generator=random)
    channel = torch.rand(outputs, generator=random) / 50 + 0.01
    words, tensors = tiled(values, is_grouped=group > 0), {}
    meant = values * channel
    tensors["s_channel"] = mixed((channel / (1 if group > 0 else 16)).view(1, -1), 32, CHANNEL)
    if group > 0:
        scales = (torch.rand(inputs // group, outputs, generator=random) + 0.5).half()
        tensors["s_group"] = mixed(scales, 64, GROUP)
        meant = (values - 8) * scales.float().repeat_interleave(group, 0) * channel
    base = model_spec()
    config = {"quant_method": "qqq", "wbits": 4, "group_size": group}
    base = msgspec.structs.replace(
        base, hf_config={**base.hf_config, "quantization_config": config}
    )
    method = qqq.Qqq(qqq.Qqq.Options(activations="float"), base)
    linear, layer = method.linear(spec), nn.Module()
    linear.create(layer, spec)
    for name, tensor in {"B": words, **tensors}.items():
        layer.get_parameter(name).data.copy_(tensor)
    linear.finish(layer)
    x = torch.randn(5, inputs, generator=random)
    right = x @ meant
    assert (linear.apply(layer, x, None) - right).abs().max() <= 1e-4 * right.abs().max()


CHANNEL = [n % 8 // 2 * 8 + n // 8 * 2 + n % 2 for n in range(32)]
GROUP = [8 * (n % 8) + n // 8 for n in range(64)]


def mixed(scales: torch.Tensor, run: int, places: list[int]) -> torch.Tensor:
    """Return scales [R, N] with output n of each run at places[n]."""
    out = torch.empty_like(scales)
    for n in range(scales.shape[1]):
        out[:, n // run * run + places[n % run]] = scales[:, n]
    return out


def tiled(values: torch.Tensor, *, is_grouped: bool) -> torch.Tensor:
    """Return values [I, O] as words [I / 16, 2 O], put in place one by one."""
    inputs, outputs = values.shape
    nibbles = torch.zeros(inputs // 16, outputs * 16, dtype=torch.int64)
    order = [0, 4, 1, 5, 2, 6, 3, 7] if is_grouped else [1, 3, 5, 7, 0, 2, 4, 6]
    for k in range(inputs):
        for n in range(outputs):
            lane = n % 8 * 4 + k % 16 // 4
            value = k % 4 + n % 16 // 8 * 4
            place = n // 64 * 1024 + lane * 32 + n % 64 // 16 * 8 + order[value]
            nibbles[k // 16, place] = int(values[k, n]) & 15
    words = (nibbles.view(inputs // 16, -1, 8) << torch.arange(8) * 4).sum(-1)
    return (words - (words >> 31 << 32)).int()


def test_tables_are_those_of_the_library() -> None:
    for kind, mine in (("nf4", bitsandbytes.NF4), ("fp4", bitsandbytes.FP4)):
        stored_tensors = load_file(DATA / f"bitsandbytes_{kind}" / "model.safetensors")
        table = next(t for n, t in stored_tensors.items() if n.endswith(".quant_map"))
        assert torch.allclose(table[: len(mine)], torch.tensor(mine), atol=1e-6)


def test_blocks_that_run_over_rows() -> None:
    """96 inputs: every second block of 64 lies in two rows."""
    random = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (64 * 96,), generator=random, dtype=torch.uint8)
    scales, table = torch.rand(96, generator=random), torch.tensor(bitsandbytes.NF4)
    packed = (codes[::2] << 4 | codes[1::2]).view(64, 48)
    weight = bitsandbytes.FourBits().weight(
        {"weight": packed, "absmax": scales, "quant_map": table}
    )
    meant = torch.stack([table[int(c)] * scales[i // 64] for i, c in enumerate(codes)])
    assert torch.equal(weight.dequantize(), meant.view(64, 96))


@pytest.mark.any_isa  # each product is one of those above
def test_two_ranks_equal_one(qwen: Path, tmp_path: Path) -> None:
    """Packed tensors are divided over ranks as full-precision ones are."""
    names = ("aqlm", "bitsandbytes_fp4", "bitsandbytes_int8", "bitsandbytes_nf4", "hqq_3", "hqq_4",
             "hqq_4_axis_0", "modelopt_fp8", "modelopt_nvfp4", "torchao_float8", "torchao_int4",
             "torchao_int8")  # fmt: skip
    models = [RankModel(str(DATA / name), "LlamaForCausalLM") for name in names]
    for name in ("static", "fbgemm"):
        stored(qwen, tmp_path / name, *FP8[name])
        models.append(RankModel(str(tmp_path / name), "Qwen3ForCausalLM"))
    for model, found in zip(models, divided_logits(models, tmp_path), strict=True):
        whole = PagedModel(load_model(model.path)).forward([(0, TOKENS)])[0]
        assert isinstance(found, torch.Tensor), found
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4 * float(whole.abs().max()))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size \[128\] is no"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, 'fmt "e5m2" is not read'),
        ({"quant_method": "qqq", "wbits": 8}, "wbits 8 is not read"),
    ],
)
def test_configs_that_are_not_read(
    config: dict[str, Any], message: str, qwen: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    shutil.copytree(qwen, path)
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": config}))
    with pytest.raises(ConfigError, match=message) as caught:
        load_model(path)
    assert "config.json" in str(caught.value)
