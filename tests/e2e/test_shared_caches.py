"""Layers that share KV caches, through the engine: what is kept, every backend and type of cache,
and prompt tokens that pass the first layers only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail_plugins.layers.attention import shared as shared_attention
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import runner_of

FAMILIES = ("Gemma3nForCausalLM", "Gemma4ForCausalLM")
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
ENGINE: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 128,
    "max_num_batched_tokens": 24,
    "dtype": "float32",
    "use_tqdm_on_load": False,
}
PROMPTS = [
    torch.randint(3, 320, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    for n in (70, 9, 33, 1)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("shared")
    made: dict[str, Path] = {}

    def written(name: str) -> Path:
        if name not in made:
            made[name] = write_tiny_checkpoint(root / name, name)
        return made[name]

    return written


def answers(llm: LLM, params: SamplingParams = GREEDY) -> list[tuple[list[int], list[float]]]:
    """Return tokens and logprobs of all prompts, computed at once."""
    results = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [result.error for result in results] == [None] * len(results)
    told = []
    for result in results:
        (one,) = result.outputs
        assert one.logprobs is not None
        told.append((list(one.token_ids), [entry.logprob for entry in one.logprobs]))
    return told


def same(ours: list[Any], theirs: list[Any], within: float = 1e-4) -> None:
    """Assert that two runs drew the same tokens, as likely."""
    for (tokens, logprobs), (others, others_logprobs) in zip(ours, theirs, strict=True):
        assert tokens == others
        assert logprobs == pytest.approx(others_logprobs, abs=within)


@pytest.mark.e2e
@pytest.mark.parametrize("name", FAMILIES)
def test_backends_agree_and_sharing_layers_keep_nothing(folder: Any, name: str) -> None:
    with LLM(model=str(folder(name)), attention_backend="torch_sdpa", **ENGINE) as llm:
        kept = [layer.name for layer in runner_of(llm).kv_layers()]
        wanted = answers(llm)
    assert kept == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    with LLM(model=str(folder(name)), attention_backend="native_cpu", **ENGINE) as llm:
        same(answers(llm), wanted)


@pytest.mark.e2e
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8", "int8"])
def test_narrow_caches_are_read_as_they_were_written(folder: Any, kv_dtype: str) -> None:
    """The scales are those of the layer that wrote: beside wrong ones nothing would be alike."""
    path = str(folder("Gemma4ForCausalLM"))
    flags: dict[str, Any] = {"kv_cache_dtype": kv_dtype, "calculate_kv_scales": kv_dtype == "fp8"}
    with LLM(model=path, attention_backend="native_cpu", **ENGINE) as llm:
        exact = answers(llm)
    with LLM(model=path, attention_backend="native_cpu", **flags, **ENGINE) as llm:
        layers = shared_attention.shared_layers(runner_of(llm).model)
        rounded = answers(llm)
        scales = {layer.spec.k_scale for layer in layers}
    assert (scales == {1.0}) == (kv_dtype != "fp8")
    first, others = [logs[0] for _, logs in exact], [logs[0] for _, logs in rounded]
    assert others == pytest.approx(first, abs=0.15)


class Counted:
    """Counts the tokens that pass each layer that shares a cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens = 0
        forward = shared_attention.SharedAttention.forward

        def counting(layer: Any, q: torch.Tensor, *rest: Any) -> torch.Tensor:
            self.tokens += len(q)
            return forward(layer, q, *rest)

        monkeypatch.setattr(shared_attention.SharedAttention, "forward", counting)

    def taken(self) -> int:
        """Return the tokens since the last call. Mutates: self"""
        found, self.tokens = self.tokens, 0
        return found


@pytest.mark.e2e
@pytest.mark.parametrize("backend", ["torch_sdpa", "native_cpu"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_flag_leaves_tokens_out_and_changes_no_answer(
    folder: Any, name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in pieces beside rows that draw; asked for, all logprobs of a prompt are there."""
    counted, found = Counted(monkeypatch), []
    whole = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, logprobs=2, prompt_logprobs=1
    )
    for flag in (False, True):
        flags: dict[str, Any] = {"kv_sharing_fast_prefill": flag, "enable_prefix_caching": False}
        with LLM(model=str(folder(name)), attention_backend=backend, **flags, **ENGINE) as llm:
            counted.taken()
            drawn = answers(llm)
            tokens = counted.taken()
            told = llm.generate(PROMPTS[:1], whole, use_tqdm=False)[0].prompt_logprobs
            found.append((drawn, tokens, counted.taken(), told))
    (plain, all_tokens, all_told, wanted), (left_out, few_tokens, few_told, told) = found
    same(left_out, plain)
    num_layers, drawn_tokens = 2, 8 * len(PROMPTS)
    assert few_tokens == num_layers * drawn_tokens
    prompts = sum(len(prompt) for prompt in PROMPTS)
    assert all_tokens == num_layers * (prompts + drawn_tokens - len(PROMPTS))
    assert all_told == num_layers * (70 + 7)
    assert all_told - few_told == 0 and told is not None and wanted is not None
    ours, theirs = ([entry.logprob for entry in one if entry] for one in (told, wanted))
    assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.e2e
def test_drafts_of_the_engine_beside_left_out_tokens(folder: Any) -> None:
    path, found = str(folder("Gemma3nForCausalLM")), []
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    for flags in ({}, {"speculative_config": drafts, "kv_sharing_fast_prefill": True}):
        with LLM(model=path, attention_backend="torch_sdpa", **flags, **ENGINE) as llm:
            found.append(answers(llm))
    same(found[1], found[0])


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("Gemma4ForCausalLM", {"pipeline_parallel_size": 2}, "layer 2 reads the keys"),
        (
            "Gemma3nForCausalLM",
            {"pipeline_parallel_size": 2},
            "reads the keys and values of layer 0",
        ),
        (
            "Gemma3nForCausalLM",
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
            "not divided over ranks",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(
    folder: Any, name: str, fields: dict[str, Any], why: str
) -> None:
    asked = {"model": str(folder(name)), "max_model_len": 64, "cpu_cores": "nobind", **fields}
    with pytest.raises(ConfigError, match=why):
        resolve(Config.from_fields(asked))


def test_the_flag_reaches_the_worker(folder: Any) -> None:
    fields = {"model": str(folder("Gemma3nForCausalLM")), "kv_sharing_fast_prefill": True}
    assert resolve(Config.from_fields(fields)).run.leaves_out_tokens
