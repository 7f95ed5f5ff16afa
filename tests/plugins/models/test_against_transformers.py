"""Every model plugin computes the logits that transformers computes, however a row is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.layers.attention.latent import LatentAttention
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.families import FAMILIES, VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.older_transformers import skip_where_older
from support.thread_ranks import divided_both_ways
from support.tiny_decoders import as_internlm2, renamed
from support.tiny_media import MEDIA_FAMILIES, SOUND_FAMILIES

TOLERANCE = 1e-4
BACKED = ("PersimmonForCausalLM", "Jais2ForCausalLM")
REFUSED = {
    "FalconForCausalLM": "attention interface",
    "BloomForCausalLM": "counts positions itself",
}
"""Families whose code in transformers cannot be backed."""
NATIVE = tuple(name for name in FAMILIES if name not in BACKED)
PAIRS = ("T5For", "MT5For", "UMT5For", "BartFor", "MBartFor", "PegasusFor", "Marian", "Whisper")
"""What architectures of an encoder and a decoder start with."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-biases": (
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama3-rope": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "qwen2-windows": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3moe-windows": (
        "Qwen3MoeForCausalLM",
        {"use_sliding_window": True, "sliding_window": 5, "mlp_only_layers": [1]},
    ),
    "llama4-other": (
        "Llama4ForCausalLM",
        {
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "no_rope_layers": [0, 1],
            "interleave_moe_layer_step": 1,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "ernie-moe-tied": (
        "Ernie4_5_MoeForCausalLM",
        {"use_bias": False, "tie_word_embeddings": True, "moe_num_shared_experts": 0},
    ),
    "phimoe-longrope": (
        "PhimoeForCausalLM",
        {
            "sliding_window": 7,
            "attention_bias": False,
            "max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1000.0,
                "short_factor": [1.0, 1.5, 2.0, 4.0],
                "long_factor": [2.0, 3.0, 4.0, 8.0],
                "short_mscale": 1.2,
                "long_mscale": 1.4,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "hunyuan-moe-alpha": (
        "HunYuanMoEV1ForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "factor": 1.0,
                "rope_theta": 100.0,
                "alpha": 50.0,
            }
        },
    ),
    "glm-moe-plain": (
        "Glm4MoeForCausalLM",
        {"use_qk_norm": False, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    ),
    "rwkv-halved": ("RwkvForCausalLM", {"num_hidden_layers": 3, "rescale_every": 2}),
    "mixtral-window": ("MixtralForCausalLM", {"sliding_window": 5}),
    "phi3-longrope": (
        "Phi3ForCausalLM",
        {
            "original_max_position_embeddings": 128,
            "max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.5, 2.0, 4.0],
                "long_factor": [2.0, 3.0, 4.0, 8.0],
            },
        },
    ),
    "phi3-partial": (
        "Phi3ForCausalLM",
        {
            "sliding_window": 7,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "deepseek-v2-lite": (
        "DeepseekV2ForCausalLM",
        {"q_lora_rank": None, "topk_method": "greedy", "n_group": None, "topk_group": None},
    ),
    "deepseek-v3-yarn": (
        "DeepseekV3ForCausalLM",
        {
            "q_lora_rank": None,
            "rope_interleave": False,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "beta_fast": 4.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "opt-350m": (
        "OPTForCausalLM",
        {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
    ),
    "gpt2-scaled": (
        "GPT2LMHeadModel",
        {"scale_attn_by_inverse_layer_idx": True, "n_inner": 40},
    ),
    "olmo3-yarn": (
        "Olmo3ForCausalLM",
        {
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 500.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
        },
    ),
    "cohere-plain": ("CohereForCausalLM", {"use_qk_norm": False, "attention_bias": True}),
    "nemotron-biases": (
        "NemotronForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
    ),
    "smollm3-windows": (
        "SmolLM3ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 6, "no_rope_layer_interval": 2},
    ),
    "exaone4-full": (
        "Exaone4ForCausalLM",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "neox-sequential": ("GPTNeoXForCausalLM", {"use_parallel_residual": False}),
    "bigcode-all-heads": (
        "GPTBigCodeForCausalLM",
        {"multi_query": False, "num_key_value_heads": 4},
    ),
    "phi-norms": ("PhiForCausalLM", {"qk_layernorm": True}),
    "stablelm-12b": (
        "StableLmForCausalLM",
        {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "ernie-biases": ("Ernie4_5ForCausalLM", {"use_bias": True}),
    "hunyuan-alpha": (
        "HunYuanDenseV1ForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 500.0,
                "factor": 1.0,
                "alpha": 50.0,
            }
        },
    ),
}
VARIANTS |= {
    "bloom-normed": ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}),
    "bloom-six": ("BloomForCausalLM", {"hidden_size": 48, "n_head": 6}),
    "falcon-groups": (
        "FalconForCausalLM",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon-one-norm": (
        "FalconForCausalLM",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": 40,
            "tie_word_embeddings": False,
        },
    ),
    "mpt-six": (
        "MptForCausalLM",
        {
            "d_model": 48,
            "n_heads": 6,
            "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.3},
        },
    ),
    "gptj-inner": ("GPTJForCausalLM", {"n_inner": 40, "rotary_dim": 8}),
    "falconh1-normed": (
        "FalconH1ForCausalLM",
        {
            "mamba_rms_norm": True,
            "mamba_d_ssm": None,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
        },
    ),
    "falcon-rw": (
        "FalconForCausalLM",
        {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
    ),
}
_INDEX: dict[str, Any] = {"index_topk": 8, "index_n_heads": 8}
VARIANTS |= {
    "deepseek-v32-sparse": ("DeepseekV32ForCausalLM", _INDEX),
    "axk2-sparse": ("AXK2ForCausalLM", {**_INDEX, "n_group": None, "topk_group": None}),
    "minimax-m3-sparse": (
        "MiniMaxM3VLForCausalLM",
        {"index_topk_blocks": 3, "index_local_blocks": 2, "layer_types": ["minimax_m3_sparse"] * 2},
    ),
    "hyv4-sparse": (
        "HYV4ForCausalLM",
        {**_INDEX, "num_hidden_layers": 3, "indexer_types": ["full", "shared", "full"]},
    ),
    "glm-dsa-sparse": (
        "GlmMoeDsaForCausalLM",
        {**_INDEX, "num_hidden_layers": 3, "indexer_types": ["full", "shared", "full"]},
    ),
    "kimi-linear-as-released": (
        "KimiLinearForCausalLM",
        {
            "layer_types": None,
            "mlp_layer_types": None,
            "linear_attn_config": {
                "head_dim": 8,
                "num_heads": 4,
                "short_conv_kernel_size": 3,
                "full_attn_layers": [2],
                "kda_layers": [1],
            },
        },
    ),
    "olmohybrid-turned": (
        "OlmoHybridForCausalLM",
        {
            "linear_allow_neg_eigval": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "hyperclovax-plain": ("HyperCLOVAXForCausalLM", {"use_post_norm": False}),
    "lfm3-plain": (
        "Lfm3ForCausalLM",
        {"use_sandwich_norm": False, "use_attention_gate": False, "attention_bias": True},
    ),
    "granite4-dense": (
        "GraniteMoeHybridForCausalLM",
        {
            "layer_types": ["full_attention"] * 2,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
        },
    ),
    "gemma3n-unshared": (
        "Gemma3nForCausalLM",
        {"num_kv_shared_layers": 0, "altup_correct_scale": False, "altup_active_idx": 1},
    ),
    "gemma4-experts": (
        "Gemma4ForCausalLM",
        {
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "jamba-dense": ("JambaForCausalLM", {"num_experts": 1, "mamba_dt_rank": "auto"}),
    "nemotronh-whole-experts": (
        "NemotronHForCausalLM",
        {"moe_latent_size": None, "n_group": 2, "topk_group": 1, "norm_topk_prob": False},
    ),
    "nemotronh-dense": (
        "NemotronHForCausalLM",
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    ),
    "lfm2moe-uncorrected": (
        "Lfm2MoeForCausalLM",
        {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5},
    ),
    "zamba2-plain": (
        "Zamba2ForCausalLM",
        {
            "num_mem_blocks": 1,
            "use_mem_rope": False,
            "use_shared_attention_adapter": False,
            "add_bias_linear": True,
            "mamba_ngroups": 2,
        },
    ),
    "bamba-biases": (
        "BambaForCausalLM",
        {
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "attention_bias": True,
            "time_step_limit": (0.3, 0.9),
        },
    ),
}
CASES = {**{name: (name, {}) for name in NATIVE}, **VARIANTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("tiny")

    @cache
    def written(case: str) -> Path:
        name, overrides = CASES.get(case, (case, {}))
        skip_where_older(name)
        return write_tiny_checkpoint(root / case, name, **overrides)

    yield written


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


@cache
def reference(path: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """Return transformers' logits of one whole row."""
    with torch.inference_mode():
        return transformers_model(path)(torch.tensor([tokens])).logits[0]


@cache
def transformers_model(path: Path) -> Any:
    import transformers

    model_type = json.loads((path / "config.json").read_text())["model_type"]
    how = "sdpa" if model_type == "falcon" else "eager"  # which adds Falcon's ALiBi twice
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=how
    ).eval()


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.05, "logits this flat would hide mistakes"
    assert (ours - theirs).abs().max().item() <= TOLERANCE


def check_all_ways(path: Path, model: PagedModel) -> None:
    """Prefill whole, in chunks, token by token, mixed with other rows, after a prefix hit and
    after losing the cache."""
    long, short, third = (prompt(n, n) for n in (21, 9, 14))
    want_long, want_short, want_third = (reference(path, tuple(p)) for p in (long, short, third))
    (whole,) = model.forward([(0, long)])
    assert_same(whole, want_long)

    pieces = [model.forward([(1, long[a:b])])[0] for a, b in ((0, 5), (5, 6), (6, 16), (16, 21))]
    assert_same(torch.cat(pieces), want_long)

    steps = [model.forward([(2, [token])])[0] for token in short]
    assert_same(torch.cat(steps), want_short)

    first, lead = model.forward([(3, long[:10]), (4, short[:8])])
    last, mid, start = model.forward([(4, short[8:]), (3, long[10:20]), (5, third[:3])])
    end, rest = model.forward([(3, long[20:]), (5, third[3:])])
    assert_same(torch.cat([first, mid, end]), want_long)
    assert_same(torch.cat([lead, last]), want_short)
    assert_same(torch.cat([start, rest]), want_third)

    model.share(3, 6, 12)
    (after_hit,) = model.forward([(6, long[12:])])
    assert_same(after_hit, want_long[12:])

    model.free(2)
    (again,) = model.forward([(2, short)])
    assert_same(again, want_short)


@pytest.mark.sampled(every=2)
@pytest.mark.few_isa
@pytest.mark.parametrize("case", CASES)
def test_native(folder: Any, case: str) -> None:
    path = folder(case)
    check_all_ways(path, PagedModel.load(path, backend="torch_sdpa"))


@pytest.mark.sampled(every=3)
@pytest.mark.few_isa
@pytest.mark.parametrize("case", NATIVE)
def test_products_may_be_written_over_residuals(
    folder: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As products are on a GPU (layers/residual.py): no layer reads what it has handed on."""
    for where in ("dovetail.layers.residual", "dovetail_plugins.layers.stored.matrix_linear"):
        monkeypatch.setattr(f"{where}.adds_in_place", lambda residual: True)
    monkeypatch.setattr(
        "dovetail_plugins.layers.stored.matrix_linear.runs_natively", lambda device, dtype: False
    )
    path, tokens = folder(case), prompt(21, 21)
    (found,) = PagedModel.load(path, backend="torch_sdpa").forward([(0, tokens)])
    assert_same(found, reference(path, tuple(tokens)))


@pytest.mark.parametrize(
    "fields", [{}, {"attention_bias": True, "tie_word_embeddings": True}], ids=["plain", "biases"]
)
def test_internlm2_is_llama_by_other_names(
    tmp_path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family that transformers does not have: Llama's numbers of Llama's weights."""
    as_llama = write_tiny_checkpoint(tmp_path / "llama", "LlamaForCausalLM", **fields)
    path = as_internlm2(copytree(as_llama, tmp_path / "named"), "InternLM2ForCausalLM")
    check_divided(path, as_llama, monkeypatch)


def check_divided(path: Path, like: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a checkpoint gives another's numbers: whole, on two ranks, in two stages."""
    tokens = prompt(21, 21)
    whole = PagedModel.load(path, backend="torch_sdpa")
    for model in (whole, *divided_both_ways(path, monkeypatch)):
        pieces = [model.forward([(0, tokens[a:b])])[0] for a, b in ((0, 5), (5, 20), (20, 21))]
        assert_same(torch.cat(pieces), reference(like, tuple(tokens)))


def test_mimo_is_qwen2_beside_its_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that transformers does not have: Qwen2's numbers of Qwen2's weights."""
    as_qwen2 = write_tiny_checkpoint(tmp_path / "qwen2", "Qwen2ForCausalLM")
    path = copytree(as_qwen2, tmp_path / "mimo")
    config = json.loads((path / "config.json").read_text())
    changed = config | {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
    (path / "config.json").write_text(json.dumps(changed))
    check_divided(path, as_qwen2, monkeypatch)


def as_released(name: str) -> str:
    """Return what a released checkpoint of Dory calls a tensor that transformers saves."""
    for i in range(4):
        for own, block, named in (
            ("self_attn", 2 * i, "mixer"),
            ("mlp", 2 * i + 1, "mixer"),
            ("lambda_1", 2 * i, "attn_alpha"),
            ("lambda_2", 2 * i + 1, "mlp_alpha"),
        ):
            start = f"backbone.layers.{i}.{own}"
            if name.startswith(start):
                return f"backbone.layers.{block}.{named}{name.removeprefix(start)}"
    return name


def test_dory_by_its_released_names(folder: Any, tmp_path: Path) -> None:
    """transformers saves a layer of attention and one of an MLP as one."""
    saved, tokens = folder("DoryForCausalLM"), prompt(21, 21)
    path = copytree(saved, tmp_path / "released")
    weights = load_file(path / "model.safetensors")
    released = {as_released(name): weight for name, weight in weights.items()}
    assert "backbone.layers.7.mixer.suv_up" in released
    save_file(released, path / "model.safetensors", {"format": "pt"})
    (found,) = PagedModel.load(path, backend="torch_sdpa").forward([(0, tokens)])
    assert_same(found, reference(saved, tuple(tokens)))


JOINED = {
    "mlstm_layer.qkv_opreact.weight": ("q.weight", "k.weight", "v.weight", "ogate_preact.weight"),
    "mlstm_layer.ifgate_preact.weight": ("igate_preact.weight", "fgate_preact.weight"),
    "mlstm_layer.ifgate_preact.bias": ("igate_preact.bias", "fgate_preact.bias"),
    "ffn.proj_up_gate_z.weight": ("proj_up_gate.weight", "proj_up.weight"),
}
"""What xLSTM's checkpoints hold that are not stored apart."""


def test_xlstm_of_open_gates_and_joined_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of random weights transformers' input gates are as good as shut. It makes no model of joined
    matrices."""
    apart = write_tiny_checkpoint(tmp_path / "apart", "xLSTMForCausalLM")
    weights = load_file(apart / "model.safetensors")
    for name in weights:
        if name.endswith("igate_preact.bias"):
            weights[name] += 12.0
    save_file(weights, apart / "model.safetensors", {"format": "pt"})
    path = copytree(apart, tmp_path / "joined")
    for block in ("backbone.blocks.0.", "backbone.blocks.1."):
        for name, parts in JOINED.items():
            folder = block + name.partition(".")[0]
            weights[block + name] = torch.cat([weights.pop(f"{folder}.{part}") for part in parts])
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    check_divided(apart, apart, monkeypatch)
    check_divided(path, apart, monkeypatch)


INTERNLM3 = {"qkv_bias": True, "bias": True}
EXAONE = {
    "num_layers": 2,
    "num_hidden_layers": None,
    "layer_norm_epsilon": 1e-6,
    "activation_function": "silu",
}
MINICPM = {"scale_emb": 3.0, "scale_depth": 1.4, "dim_model_base": 8}
SCALED = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 1.4 / 2**0.5,
    "logits_scaling": 4.0,
    "attention_multiplier": 8**-0.5,
}
WEIGHED = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_attn_alpha_factor": 1.5,
    "full_attn_beta_factor": 0.75,
    "mlp_alpha_factor": 0.5,
}
MINIMAX = {
    "attn_type_list": [0, 1],
    "layernorm_linear_attention_alpha": 1.5,
    "layernorm_full_attention_beta": 0.75,
    "layernorm_mlp_alpha": 0.5,
    "postnorm": True,
    "rotary_dim": 8,
}


@pytest.mark.parametrize(
    ("name", "family", "fields", "said"),
    [
        ("internlm3", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, INTERNLM3),
        ("exaone", "LlamaForCausalLM", {}, EXAONE),
        ("minicpm", "GraniteForCausalLM", SCALED, MINICPM),
        ("minimax_text_01", "MiniMaxForCausalLM", WEIGHED, MINIMAX),
    ],
)
def test_families_by_other_names(
    tmp_path: Path,
    name: str,
    family: str,
    fields: dict[str, Any],
    said: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Families that transformers does not have: the numbers of those that they are like."""
    source = write_tiny_checkpoint(tmp_path / "source", family, **fields)
    path = renamed(copytree(source, tmp_path / "named"), name, gone=fields, **said)
    check_divided(path, source, monkeypatch)


@pytest.mark.parametrize("case", ["DeepseekV2ForCausalLM", "deepseek-v3-yarn"])
def test_long_rows_of_latents_are_expanded(folder: Any, case: str) -> None:
    """Rows of many tokens make keys and values of latents, beside others that do not: both kinds
    compute the same, behind a prefix and in one step."""
    path = folder(case)
    model = PagedModel.load(path, backend="torch_sdpa")
    least = next(m for m in model.layers if isinstance(m, LatentAttention)).config.min_expanded
    long, other, short = (prompt(n, n) for n in (70, 65, 9))
    assert 20 < least < 60
    first, lead = model.forward([(0, long[:5]), (2, short[:8])])
    last, rest, whole = model.forward([(2, short[8:]), (0, long[5:]), (1, other)])
    want_long, want_other, want_short = (reference(path, tuple(p)) for p in (long, other, short))
    assert_same(torch.cat([first, rest]), want_long)
    assert_same(torch.cat([lead, last]), want_short)
    assert_same(whole, want_other)


@pytest.mark.parametrize("case", ["LlamaForCausalLM", "Gemma2ForCausalLM", "DeepseekV3ForCausalLM"])
def test_native_over_the_slow_reference(folder: Any, case: str) -> None:
    path = folder(case)
    check_all_ways(path, PagedModel.load(path))


@pytest.mark.parametrize(
    "case", [*BACKED, "HyperCLOVAXForCausalLM", "Gemma3ForCausalLM", "Qwen3MoeForCausalLM"]
)
def test_transformers_backed(folder: Any, case: str) -> None:
    path = folder(case)
    model = PagedModel.load(path, model_name="transformers", backend="torch_sdpa")
    check_all_ways(path, model)


def test_a_backed_model_leaves_layers_that_draft(folder: Any, tmp_path: Path) -> None:
    path = copytree(folder("Qwen3ForCausalLM"), tmp_path / "drafts")
    layers = {f"mtp.{name}": one for name, one in layer_tensors(path)}
    save_file(layers, path / "model-mtp.safetensors", metadata={"format": "pt"})
    tokens = prompt(9, 1)
    model = PagedModel.load(path, model_name="transformers", backend="torch_sdpa")
    assert_same(model.forward([(0, tokens)])[0], reference(path, tuple(tokens)))


def layer_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a checkpoint's first layer, by their names within the model."""
    for name, tensor in load_file(path / "model.safetensors").items():
        if name.startswith("model.layers.0."):
            yield name.removeprefix("model."), tensor


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_backed_is_refused_with_the_reason(folder: Any, case: str) -> None:
    path = folder(case)
    with pytest.raises(ConfigError, match=REFUSED[case]):
        PagedModel.load(path, model_name="transformers")


def test_every_registered_architecture_has_a_case() -> None:
    registered = set(registry.names("model"))
    builtin = {e.name for e in registry.entries("model") if "dovetail_plugins.models" in e.target}
    encoders = {name for name in builtin if name.endswith("Model") and name not in NATIVE}
    encoders |= {"HF_ColBERT"}
    media = {*MEDIA_FAMILIES, *SOUND_FAMILIES}  # test_media.py and test_sound.py have theirs
    pairs = {name for name in builtin if name.startswith(PAIRS)}  # tests/e2e has theirs
    apart = {"transformers", "InternLM2ForCausalLM", "MiMoForCausalLM"}
    apart |= {"BaichuanForCausalLM", "BaiChuanForCausalLM", "MPTForCausalLM"}
    apart |= {"MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM"}
    apart |= {"Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"}
    apart |= {"ExaoneForCausalLM", "InternLM3ForCausalLM", "MiniCPMForCausalLM"}
    apart |= {"Gemma3nForConditionalGeneration", "Gemma4ForConditionalGeneration"}
    apart |= {name for name in builtin if name.startswith(("Lfm2Vl", "Lfm3Vl", "MiniCPM"))}
    apart |= {"transformers_encoder"}  # test_backed_encoders.py
    apart |= {"DeepseekForCausalLM", "DeciLMForCausalLM"}  # gguf/test_uneven_families.py
    apart |= {name for name in builtin if name.startswith("Glm5Next")}  # test_glm5_next.py
    apart |= {name for name in builtin if name.startswith("HYV4VL")}  # test_hy_v4.py
    apart |= {"NemotronH_Omni_Reasoning_V3"}  # test_transformers_media.py
    apart |= {"Dots3NoteForConditionalGeneration"}  # test_dots3_note.py
    apart |= {"Qwen4ExpForConditionalGeneration"}  # test_qwen4_exp.py
    apart |= {"SarvamMoEForCausalLM"}  # test_architectures.py has these
    apart |= {"Phi4MultimodalForCausalLM", "transformers_media"}  # have tests of their own
    apart |= {"PaliGemmaForConditionalGeneration"}  # whose prompts are never cut: likewise
    apart |= {name for name in builtin if name.endswith("ForRetrieval")}  # e2e/test_pages.py
    apart |= {"PhiMoEForCausalLM"}  # Phimoe by the name that its checkpoints have
    assert builtin - apart - encoders - media - pairs <= set(NATIVE), "add a tiny checkpoint for it"
    assert set(NATIVE) <= registered
