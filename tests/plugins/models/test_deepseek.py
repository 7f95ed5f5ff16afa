"""DeepSeek's models beside what tests of all families say: the native kernels, FP8 blocks as they
are published, absorbed and expanded attention, V3.2's indexer, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any, cast

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.rules.steps.cache_size import token_bytes
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.model import Model
from dovetail.layers.attention.latent import LatentAttention, LatentConfig
from dovetail.layers.context import ForwardContext, use_context
from dovetail.layers.linear import Linear
from dovetail_plugins.layers.attention.indexed import IndexedAttention
from dovetail_plugins.layers.attention.indexer import Indexer
from dovetail_plugins.models.deepseek import has_indexer, routing_rule
from dovetail_testing.harness import PagedModel, load_model, load_plugin
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.thread_ranks import divided_both_ways

TOKENS = torch.randint(3, VOCAB_SIZE, (70,), generator=torch.Generator().manual_seed(1)).tolist()
BLOCK = 128


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a V3 of two layers."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("v3"), "DeepseekV3ForCausalLM")


def logits(path: Path, **changes: Any) -> torch.Tensor:
    """Return the logits of TOKENS, in pieces."""
    model = PagedModel(load_model(path, **changes), backend=native())
    return pieces_of(model)


def pieces_of(model: PagedModel) -> torch.Tensor:
    cuts = ((0, 30), (30, 31), (31, 32), (32, 70))
    return torch.cat([model.forward([(0, TOKENS[a:b])])[0] for a, b in cuts])


def native() -> AttentionBackend:
    return load_plugin(AttentionBackend, "attention_backend", "native_cpu")  # type: ignore[type-abstract]


def change(path: Path, **fields: Any) -> Path:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return path


def test_native_kernels_compute_what_the_definition_does(tiny: Path) -> None:
    plain = pieces_of(PagedModel.load(tiny))
    assert (logits(tiny) - plain).abs().max() < 1e-4
    model = PagedModel(load_model(tiny), backend=native())
    wide = PagedModel(load_model(tiny), backend=native(), block_tokens=16)
    assert torch.equal(pieces_of(model), pieces_of(wide)), "bits depend on the blocks"


def test_absorbed_and_expanded_attention_are_the_same(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one row of 40 tokens behind 30 others, with real numbers in float32."""
    model = PagedModel(load_model(tiny), backend=native())
    model.forward([(0, TOKENS[:30])])
    layer = next(m for m in model.layers if isinstance(m, LatentAttention))
    row = model._extend(0, TOKENS[30:])
    prepared = model.backend.prepare(model._layout([row]))
    random = torch.Generator().manual_seed(2)
    q = torch.randn(40, layer.spec.num_heads * layer.head_size, generator=random)
    latent = torch.randn(40, layer.spec.size, generator=random)
    found = []
    for least in (2, 1000):
        monkeypatch.setattr(LatentConfig, "min_expanded", least)
        context = ForwardContext(
            backend=model.backend, prepared={layer.name: prepared}, caches=model.caches
        )
        with use_context(context), torch.inference_mode():
            found.append(layer._attend(q, latent))
        assert bool(context.once) == (least == 2)
    assert found[0].std() > 0.05
    assert (found[0] - found[1]).abs().max() < 1e-5


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a checkpoint in FP8 blocks, and one of the same values in full precision."""
    root = tmp_path_factory.mktemp("fp8")
    sizes = {"hidden_size": 160, "intermediate_size": 256, "moe_intermediate_size": 128}
    plain = write_tiny_checkpoint(
        root / "plain", "DeepseekV3ForCausalLM", **sizes, kv_lora_rank=136
    )
    blocks = copytree(plain, root / "blocks")
    tensors, kept = load_file(plain / "model.safetensors"), {}
    for name, weight in tensors.items():
        layer = name.rpartition(".")[0]
        if weight.dim() != 2 or layer.endswith(("mlp.gate", "embed_tokens", "lm_head")):
            kept[name] = weight
            continue
        codes, scales, tensors[name] = in_blocks(weight)
        kept |= {name: codes, f"{layer}.weight_scale_inv": scales}
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(kept, blocks / "model.safetensors", metadata={"format": "pt"})
    quant = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
    change(blocks, quantization_config=quant | {"activation_scheme": "dynamic"})
    return blocks, plain


def in_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a matrix as float8 codes, the scale of each block, and the values that are meant."""
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    scales, meant = torch.empty(rows, columns), torch.empty_like(weight)
    for r in range(rows):
        for c in range(columns):
            part = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
            scales[r, c] = weight[part].abs().max() / 448
            codes[part] = (weight[part] / scales[r, c]).to(torch.float8_e4m3fn)
            meant[part] = codes[part].float() * scales[r, c]
    return codes, scales, meant


def test_fp8_blocks_as_they_are_published(stored: tuple[Path, Path]) -> None:
    blocks, plain = stored
    found, wanted = logits(blocks), logits(plain)
    assert wanted.std() > 0.05
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()


def test_corrected_scores_pick_experts_and_do_not_weigh_them(tiny: Path, tmp_path: Path) -> None:
    """As transformers does, of whose tiny models the correction is zero."""
    path = copytree(tiny, tmp_path / "corrected")
    tensors = load_file(path / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("e_score_correction_bias"))
    tensors[name] = torch.randn(8, generator=torch.Generator().manual_seed(3))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        wanted = theirs.eval()(torch.tensor([TOKENS])).logits[0]
    found = logits(path)
    assert (found - wanted).abs().max() < 1e-4
    assert (found - logits(tiny)).abs().max() > 0.1


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a V3.2 that attends to 8 tokens. Eight heads of its indexer: with two, a quarter of
    the scores were zero, equal, and transformers' order of equal ones is not said."""
    path = tmp_path_factory.mktemp("v32")
    return write_tiny_checkpoint(path, "DeepseekV32ForCausalLM", index_topk=8, index_n_heads=8)


def of_transformers(path: Path) -> torch.Tensor:
    """Return transformers' logits of TOKENS."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        found: torch.Tensor = theirs.eval()(torch.tensor([TOKENS])).logits[0]
    return found


@pytest.mark.parametrize("backend", ["native_cpu", "torch_sdpa", None])
def test_v32_attends_to_what_its_indexer_picks(
    sparse: Path, tmp_path: Path, backend: str | None
) -> None:
    """As transformers does, where 8 of 70 tokens are attended to; all of them give other logits."""
    wanted = of_transformers(sparse)
    found = pieces_of(PagedModel.load(sparse, backend=backend))
    assert (found - wanted).abs().max() < 1e-4
    every = change(copytree(sparse, tmp_path / "every"), index_topk=128)
    dense = logits(every)
    assert (found[:8] - dense[:8]).abs().max() < 1e-4
    assert (found[8:] - dense[8:]).abs().max() > 0.1


def test_long_rows_hide_what_is_not_picked(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values made of all latents compute what picked latents do."""
    wanted = of_transformers(sparse)
    for most in (0, 1000):
        monkeypatch.setattr(IndexedAttention, "_max_expanded", lambda self, count, most=most: most)
        model = PagedModel.load(sparse, backend="native_cpu")
        first = model.forward([(0, TOKENS[:12])])[0]
        rest, whole = model.forward([(0, TOKENS[12:]), (1, TOKENS[:65])])
        assert (torch.cat([first, rest]) - wanted).abs().max() < 1e-4
        assert (whole - wanted[:65]).abs().max() < 1e-4


def test_v32_needs_no_indexer_as_far_as_all_tokens_are_picked(sparse: Path) -> None:
    def indexers(max_tokens: int) -> int:
        model = load_model(sparse, max_tokens=max_tokens)
        return sum(isinstance(module, Indexer) for module in model.modules())

    assert indexers(8) == 0
    assert indexers(9) == 2


def test_steps_are_captured_as_long_as_nothing_is_picked(sparse: Path) -> None:
    """A graph would go on attending to all tokens, or to those picked, whatever rows come."""
    models = [load_model(sparse, max_tokens=count) for count in (8, 9)]
    reasons = [cast(Model, model).no_graphs_because for model in models]
    assert reasons == ["", "whether an indexer picks depends on how long rows are"]


def test_estimates_count_index_keys(sparse: Path, tiny: Path) -> None:
    """A latent of 16 + 8 numbers, and an index key of 16, as the layers themselves keep."""
    facts = load_model_facts(sparse, dtype="float32")
    assert token_bytes(facts, "float32") == (24 + 16) * 4
    assert token_bytes(load_model_facts(tiny, dtype="float32"), "float32") == 24 * 4
    layer = next(m for m in load_model(sparse).modules() if isinstance(m, IndexedAttention))
    (latents, keys) = (layer.spec.size, layer.index.head_size)
    assert (latents, keys) == (24, 16)


def test_picks_do_not_depend_on_the_batch(sparse: Path) -> None:
    """Bit for bit, decodes of a row alone and beside others."""
    alone, beside = (PagedModel(load_model(sparse), backend=native()) for _ in range(2))
    alone.forward([(0, TOKENS[:30])])
    beside.forward([(0, TOKENS[:30])])
    beside.forward([(1, TOKENS[5:40]), (2, TOKENS[:3])])
    for token in TOKENS[30:]:
        (own,) = alone.forward([(0, [token])])
        _, found, _ = beside.forward([(1, [token]), (0, [token]), (2, [token])])
        assert torch.equal(own, found)


def test_ranks_and_stages_pick_the_same(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two ranks that divide the heads, and in two stages."""
    wanted = of_transformers(sparse)
    for model in divided_both_ways(sparse, monkeypatch):
        pieces = [model.forward([(0, TOKENS[a:b])])[0] for a, b in ((0, 30), (30, 31), (31, 70))]
        assert (torch.cat(pieces) - wanted).abs().max() < 1e-4


def test_layers_share_picks_within_a_stage_alone(tmp_path: Path) -> None:
    fields = {"index_topk": 8, "indexer_types": ["full", "shared"]}
    path = write_tiny_checkpoint(tmp_path, "GlmMoeDsaForCausalLM", **fields)
    second = RankSpec(rank=1, world_size=2, stage=1, num_stages=2, stage_layers=(1, 1))
    with pytest.raises(ConfigError, match="layer 1 attends to what an earlier layer"):
        load_model(path, rank=second)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, "FFFFFF"),
        ({"index_topk_freq": 2}, "FFSFSF"),
        ({"index_topk_pattern": "FSSFSS"}, "FSSFSS"),
        ({"indexer_types": ["full", "shared"] * 3}, "FSFSFS"),
    ],
)
def test_which_layers_pick(fields: dict[str, Any], wanted: str) -> None:
    """As transformers' config class works it out."""
    theirs = transformers.GlmMoeDsaConfig(num_hidden_layers=6, **fields)
    assert "".join(one[0].upper() for one in theirs.indexer_types) == wanted
    assert "".join("F" if has_indexer(fields, i) else "S" for i in range(6)) == wanted


def test_kimi_k2_is_v3_by_another_name(tiny: Path, tmp_path: Path) -> None:
    path = change(copytree(tiny, tmp_path / "k2"), model_type="kimi_k2", topk_method="noaux_tc")
    assert torch.equal(logits(path), logits(tiny))


def test_layers_behind_the_last_are_a_drafter_s(tiny: Path, tmp_path: Path) -> None:
    path = copytree(tiny, tmp_path / "mtp")
    tensors = load_file(path / "model.safetensors")
    last = {name: t for name, t in tensors.items() if ".layers.1." in name}
    more = {name.replace(".layers.1.", ".layers.2."): t.clone() for name, t in last.items()}
    save_file(tensors | more, path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(logits(change(path, num_nextn_predict_layers=1)), logits(tiny))


def test_what_absorbs_takes_no_adapters(tiny: Path) -> None:
    module = load_model(tiny)
    without = {n.rpartition(".")[2] for n, m in linears(module) if m.no_adapters}
    assert without == {"kv_b_proj"}


def linears(module: torch.nn.Module) -> list[tuple[str, Linear]]:
    return [(name, m) for name, m in module.named_modules() if isinstance(m, Linear)]


@pytest.mark.parametrize(
    "fields", [{"topk_method": "random"}, {"scoring_func": "tanh"}, {"norm_topk_prob": True}]
)
def test_other_ways_to_pick_experts_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="experts"):
        routing_rule({"num_experts_per_tok": 2, **fields}, "softmax")


def test_fp8_blocks_with_scales_that_are_powers_of_two(
    stored: tuple[Path, Path], tmp_path: Path
) -> None:
    """V3.1: scales without a mantissa, as float32 and as their exponents alone."""
    blocks, plain = stored
    tensors = load_file(blocks / "model.safetensors")
    meant = load_file(plain / "model.safetensors")
    exponents = dict(tensors)
    for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
        weight = name.removesuffix("_scale_inv")
        tensors[name] = torch.exp2(tensors[name].log2().ceil())
        exponents[name] = tensors[name].to(torch.float8_e8m0fnu)
        meant[weight] = tensors[weight].float() * each_block(tensors[name], tensors[weight].shape)
    wanted = saved(plain, tmp_path / "plain", meant)
    for kind, held in (("floats", tensors), ("exponents", exponents)):
        path = saved(blocks, tmp_path / kind, held)
        config = json.loads((path / "config.json").read_text())["quantization_config"]
        change(path, quantization_config=config | {"scale_fmt": "ue8m0"})
        found = logits(path)
        assert (found - logits(wanted)).abs().max() < 1e-3 * logits(wanted).abs().max(), kind


def each_block(scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a scale for every value of a matrix."""
    spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return spread[: shape[0], : shape[1]]


def saved(source: Path, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Return a copy of a checkpoint with other tensors."""
    path = copytree(source, folder)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_packed_experts_as_kimi_k2_has_them(tmp_path: Path) -> None:
    """Experts in 4 bits of groups of 32, everything else whole: lists of expressions say so."""
    group = 32
    sizes = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64}
    plain = write_tiny_checkpoint(tmp_path / "plain", "DeepseekV3ForCausalLM", **sizes)
    meant, packed = load_file(plain / "model.safetensors"), {}
    for name, weight in meant.items():
        if ".mlp.experts." not in name:
            packed[name] = weight
            continue
        layer = name.removesuffix(".weight")
        runs = weight.unflatten(1, (-1, group))
        scales = (runs.abs().amax(-1) / 7.5).bfloat16().float()
        codes = (runs / scales.unsqueeze(-1)).round().clamp(-8, 7)
        meant[name] = (codes * scales.unsqueeze(-1)).flatten(1)
        nibbles = (codes.flatten(1).long() + 8).unflatten(1, (-1, 8))
        words = (nibbles << (4 * torch.arange(8))).sum(-1)
        packed |= {
            f"{layer}.weight_packed": (words - (words >> 31 << 32)).to(torch.int32),
            f"{layer}.weight_scale": scales.bfloat16(),
            f"{layer}.weight_shape": torch.tensor(weight.shape),
        }
    stored = saved(plain, tmp_path / "packed", packed)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
               "group_size": group, "dynamic": False, "observer": "minmax"}  # fmt: skip
    one = {"targets": ["Linear"], "weights": weights, "input_activations": None,
           "output_activations": None}  # fmt: skip
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
               "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]  # fmt: skip
    change(
        stored,
        model_type="kimi_k2",
        topk_method="noaux_tc",
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "kv_cache_scheme": None,
            "config_groups": {"group_0": one},
            "ignore": ignored,
        },
    )
    found, wanted = logits(stored), logits(saved(plain, tmp_path / "meant", meant))
    assert wanted.std() > 0.05
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()


IGNORED = [
    "lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
]
"""What Kimi K2 Thinking's config.json leaves as it is: all but the experts that are picked."""
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


def packed(values: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a matrix as compressed-tensors packs it in 4 bits, eight in a word, and what it means.
    Shapes: [N, K]"""
    groups = values.unflatten(1, (-1, 32))
    scales = (groups.abs().amax(-1) / 7).to(torch.bfloat16)
    codes = (groups / scales.float().unsqueeze(-1)).round().clamp(-8, 7)
    words = (codes.flatten(1).int() + 8).unflatten(1, (-1, 8)) << torch.arange(0, 32, 4)
    tensors = {
        "weight_packed": words.sum(-1, dtype=torch.int32),
        "weight_scale": scales,
        "weight_shape": torch.tensor(values.shape),
    }
    return tensors, (codes * scales.float().unsqueeze(-1)).flatten(1)


def test_experts_as_kimi_k2_thinking_packs_them(tmp_path: Path) -> None:
    """Experts alone are integers of 4 bits in groups of 32; the rest is as it was."""
    sizes = {"moe_intermediate_size": 32, "tie_word_embeddings": False}
    source = write_tiny_checkpoint(tmp_path / "source", "DeepseekV3ForCausalLM", **sizes)
    path = copytree(source, tmp_path / "packed")
    meant, stored = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if ".mlp.experts." in name:
            own, meant[name] = packed(tensor.float())
            stored |= {name.removesuffix("weight") + leaf: one for leaf, one in own.items()}
        else:
            meant[name] = stored[name] = tensor
    assert len(meant) < len(stored)
    save_file(meant, source / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    change(
        path,
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
            "ignore": IGNORED,
        },
    )
    wanted = logits(source)
    found = logits(path)
    assert (found - wanted).abs().max() <= 0.03 * wanted.abs().max()
