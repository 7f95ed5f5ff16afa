"""Flags that change how a checkpoint is read, against transformers with the same change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.errors import ConfigError
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import core_of

TOLERANCE = 1e-4
NEW_TOKENS = 6
FLAGS: dict[str, Any] = {
    "max_model_len": 120,
    "max_logprobs": -1,
    "num_gpu_blocks_override": 80,
    "block_size": 8,
    "dtype": "float32",
    "use_tqdm_on_load": False,
}
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "factor": 8.0,
}
WHOLE = SamplingParams(
    temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=-1, prompt_logprobs=-1
)


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


def reference(path: Path, **changes: Any) -> Any:
    """Return transformers' model whose config is changed."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(path)
    for name, value in changes.items():
        setattr(config, name, value)
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float()


def worst(model: Any, result: GenerationResult) -> float:
    """Return the largest difference of any logprob at any position, prompt and answer."""
    (completion,) = result.outputs
    tokens = [*result.prompt_token_ids, *completion.token_ids]
    wanted = logits_of(model, tokens)[:-1].log_softmax(-1)
    assert result.prompt_logprobs is not None and completion.logprobs is not None
    ours = torch.full_like(wanted, float("nan"))
    for position, entry in enumerate([*result.prompt_logprobs[1:], *completion.logprobs]):
        ours[position, list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
    return float((ours - wanted).abs().max())


def generated(path: Path, length: int = 60, **fields: Any) -> GenerationResult:
    with LLM(model=str(path), **{**FLAGS, **fields}) as llm:
        (result,) = llm.generate([prompt(length)], WHOLE, use_tqdm=False)
    assert result.error is None
    return result


def rope(rule: str, **values: Any) -> dict[str, Any]:
    return {"rope_type": rule, "rope_theta": 10000.0, **values}


ROPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "theta": ("LlamaForCausalLM", {"rope_theta": 700.0}, rope("default", rope_theta=700.0)),
    "linear": (
        "LlamaForCausalLM",
        {"rope_scaling": {"type": "linear", "factor": 2.5}},
        rope("linear", factor=2.5),
    ),
    "both": (
        "Qwen3ForCausalLM",
        {"rope_scaling": {"rope_type": "linear", "factor": 3}, "rope_theta": "500"},
        rope("linear", factor=3.0, rope_theta=500.0),
    ),
    "yarn": (
        "MistralForCausalLM",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        rope("yarn", factor=4.0),
    ),
    "llama3": (
        "LlamaForCausalLM",
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        rope("llama3", **LLAMA3),
    ),
    "backed": (
        "Jais2ForCausalLM",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 900.0},
        rope("linear", factor=2.0, rope_theta=900.0),
    ),
}


@pytest.mark.e2e
@pytest.mark.parametrize("case", ROPES)
@pytest.mark.parametrize("spelling", ["newer", "older"])
def test_rope_flags_do_what_the_same_config_does_in_transformers(
    case: str, spelling: str, tmp_path: Path
) -> None:
    name, fields, wanted = ROPES[case]
    path = write_tiny_checkpoint(tmp_path / "model", name)
    unchanged = reference(path)
    changed = reference(path, rope_parameters=wanted)
    if spelling == "older":
        config = json.loads((path / "config.json").read_text())
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        (path / "config.json").write_text(json.dumps(config))
    result = generated(path, **fields)
    assert worst(changed, result) <= TOLERANCE
    assert worst(unchanged, result) > 0.01


@pytest.mark.e2e
def test_rope_flags_mean_full_attention_where_layers_differ(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "Gemma3ForCausalLM")
    changed = reference(path)
    stored = changed.config.rope_parameters
    full = {**stored["full_attention"], "rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0}
    changed = reference(path, rope_parameters={**stored, "full_attention": full})
    flags = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 3000.0}
    assert worst(changed, generated(path, **flags)) <= TOLERANCE


@pytest.mark.e2e
@pytest.mark.parametrize("impl", ["auto", "transformers"])
@pytest.mark.parametrize("name", ["MistralForCausalLM", "Gemma3ForCausalLM"])
def test_without_sliding_window_all_layers_attend_and_keep_everything(
    name: str, impl: str, tmp_path: Path
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", name, sliding_window=48)
    changed = reference(path, sliding_window=None if name[0] == "M" else 1000)
    flags = {**FLAGS, "max_model_len": None, "model_impl": impl, "disable_sliding_window": True}
    with LLM(model=str(path), **flags) as llm:
        assert llm.spec.run.max_model_tokens == 48
        groups = core_of(llm).layout.groups
        assert [group.window_tokens for group in groups] == [None]
        (result,) = llm.generate([prompt(40)], WHOLE, use_tqdm=False)
    assert worst(changed, result) <= TOLERANCE
    with pytest.raises(ConfigError, match="at most 48"):
        LLM(model=str(path), **{**flags, "max_model_len": 49})


@pytest.mark.e2e
def test_windowed_layers_keep_as_much_as_the_others(tmp_path: Path) -> None:
    """--disable-hybrid-kv-cache-manager: the answers stay, the cache holds fewer tokens."""
    path = write_tiny_checkpoint(tmp_path / "model", "Gemma3ForCausalLM", sliding_window=16)
    tight: dict[str, Any] = {"max_model_len": None, "max_num_batched_tokens": 16}
    tight |= {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 40_000}
    longest = {}
    for keeps in (False, True):
        flags = {**FLAGS, "disable_hybrid_kv_cache_manager": keeps}
        with LLM(model=str(path), **flags) as llm:
            windows = {group.window_tokens for group in core_of(llm).layout.groups}
            (result,) = llm.generate([prompt(60)], WHOLE, use_tqdm=False)
        assert windows == ({None} if keeps else {None, 16})
        assert worst(reference(path), result) <= TOLERANCE
        spec = resolve(Config.from_fields({"model": str(path), **flags, **tight}))
        longest[keeps] = spec.run.max_model_tokens
    assert longest[True] < longest[False]


@pytest.mark.e2e
def test_config_of_another_folder(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    changed = reference(path, rms_norm_eps=0.5)
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((path / "config.json").read_text()) | {"rms_norm_eps": 0.5}
    (other / "config.json").write_text(json.dumps(config))
    (path / "config.json").unlink()
    result = generated(path, hf_config_path=str(other))
    assert worst(changed, result) <= TOLERANCE


@pytest.mark.e2e
@pytest.mark.parametrize("stage", ["raw", "processed"])
@pytest.mark.parametrize("scale", ["logprobs", "logits"])
def test_logprobs_modes_from_the_models_logits(stage: str, scale: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM")
    model = reference(path)
    wishes = [
        {"n": 2, "temperature": 0.7, "top_p": 0.8, "frequency_penalty": 0.5},
        {"temperature": 1.3, "presence_penalty": 1.0, "top_p": 0.95},
        {"temperature": 0.0, "frequency_penalty": 0.9},
    ]
    params = [
        SamplingParams(seed=3, max_tokens=8, ignore_eos=True, logprobs=-1, prompt_logprobs=1, **w)
        for w in wishes
    ]
    with LLM(model=str(path), **FLAGS, logprobs_mode=f"{stage}_{scale}") as llm:
        results = llm.generate([prompt(9 + i, i) for i in range(3)], params, use_tqdm=False)
    for wish, result in zip(wishes, results, strict=True):
        start = len(result.prompt_token_ids)
        for completion in result.outputs:
            drawn = list(completion.token_ids)
            logits = logits_of(model, [*result.prompt_token_ids, *drawn]).double()
            assert completion.logprobs is not None
            for i, entry in enumerate(completion.logprobs):
                told = logits[start - 1 + i]
                told = told if stage == "raw" else after_all(told, drawn[:i], wish)
                told = told.log_softmax(0) if scale == "logprobs" else told
                ours = torch.tensor(entry.top_logprobs).double()
                theirs = told[list(entry.top_ids)].clamp(min=-9999.0)
                assert (ours - theirs).abs().max() <= 5e-4
        told = logits[0].log_softmax(0) if scale == "logprobs" else logits[0]
        assert result.prompt_logprobs is not None
        first = result.prompt_logprobs[1]
        assert first is not None
        assert first.logprob == pytest.approx(told[first.token_id].item(), abs=5e-4)


def after_all(logits: torch.Tensor, drawn: list[int], wish: dict[str, Any]) -> torch.Tensor:
    """Return logits after penalties, temperature and top-p, by their definitions."""
    x = logits.clone()
    for token in set(drawn):
        x[token] -= wish.get("presence_penalty", 0.0)
        x[token] -= wish.get("frequency_penalty", 0.0) * drawn.count(token)
    if not wish["temperature"]:
        return x
    x = x / wish["temperature"]
    order = x.argsort(descending=True)
    share = x[order].softmax(0)
    x[order[(share.cumsum(0) - share) >= wish.get("top_p", 1.0)]] = -torch.inf
    return x
