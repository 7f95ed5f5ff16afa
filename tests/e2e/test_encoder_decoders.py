"""Models with an encoder beside the decoder give transformers' distribution at every token: alone,
in a crowded batch, after preemptions by recompute and swap, on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.engine.client.requests.encoder_prompt import EncoderPrompt
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.media import Feature, PartPlace, PromptPart
from dovetail_testing.tiny.families import VOCAB_SIZE
from support.inside import core_of, recorder_of, runner_of, watch_preemptions
from support.older_transformers import skip_where_older
from support.tiny_encoder_decoders import FAMILIES, write_encoder_decoder

TOLERANCE = 1e-4
LENGTHS = (5, 19, 40, 1, 26)
EVERYTHING = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=-1)
SPEECH = "WhisperForConditionalGeneration"


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]


def spectrograms() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.standard_normal((8, 100), dtype=np.float32) for _ in range(4)]


def heard(spectrogram: np.ndarray) -> EncoderPrompt:
    feature = Feature("input_features", "float32", spectrogram.shape, spectrogram.tobytes())
    place = PartPlace(str(spectrogram.sum()), "audio", (), 50)
    return EncoderPrompt(
        encoder=PromptPart(place=place, features=(feature,)),
        decoder=(VOCAB_SIZE, 7, 8),
        is_whole=True,
    )


def asked(name: str) -> tuple[list[Any], list[Any], list[list[int]]]:
    """Return prompts, transformers' inputs, and what the decoder begins with."""
    if name == SPEECH:
        sounds = spectrograms()
        inputs = [{"input_features": torch.from_numpy(one)[None]} for one in sounds]
        return [heard(one) for one in sounds], inputs, [[VOCAB_SIZE, 7, 8]] * len(sounds)
    return texts(), [{"input_ids": torch.tensor([one])} for one in texts()], [[2]] * len(LENGTHS)


def worst_difference(
    reference: Any, inputs: Any, start: list[int], result: GenerationResult
) -> float:
    """Return the largest difference of any logprob at any drawn position, for each four of the
    largest logit: without T5's factor some are in the hundreds."""
    (completion,) = result.outputs
    drawn = list(completion.token_ids)
    with torch.inference_mode():
        logits = reference(
            **inputs, decoder_input_ids=torch.tensor([start + drawn[:-1]]), use_cache=False
        ).logits[0]
    wanted = logits[len(start) - 1 :].log_softmax(-1)
    worst = 0.0
    for row, told in zip(wanted, completion.logprobs or (), strict=True):
        ours = torch.empty(len(row))
        ours[list(told.top_ids)] = torch.tensor(told.top_logprobs)
        worst = max(worst, float((ours - row).abs().max()))
    return worst / max(1.0, float(logits.abs().max()) / 4)


def served(path: Path, **flags: Any) -> LLM:
    usual: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 100,
        "max_logprobs": -1,
        "disable_log_stats": True,
        "kv_cache_memory_bytes": 1 << 22,
    }
    return LLM(str(path), **{**usual, **flags})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["native_cpu", "torch_sdpa"])
@pytest.mark.parametrize("name", FAMILIES)
def test_distributions(name: str, backend: str, tmp_path: Path) -> None:
    skip_where_older(name)
    reference = write_encoder_decoder(tmp_path, name)
    prompts, inputs, starts = asked(name)
    device = "cpu" if backend == "native_cpu" else "auto"
    with served(tmp_path, attention_backend=backend, device=device) as llm:
        together = llm.generate(prompts, EVERYTHING, use_tqdm=False)
        alone = llm.generate(prompts[:1], EVERYTHING, use_tqdm=False)
        recorded = recorder_of(runner_of(llm))
        assert (recorded.reason is None and bool(recorded.sizes)) == (backend == "native_cpu")
    assert alone[0].outputs[0].token_ids == together[0].outputs[0].token_ids
    for result, own, start in zip(together, inputs, starts, strict=True):
        assert worst_difference(reference, own, start, result) <= TOLERANCE


@pytest.mark.sampled(1)
@pytest.mark.parametrize("swap_space", [0, 0.01], ids=["recompute", "swap"])
@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", SPEECH])
def test_preemption(name: str, swap_space: float, tmp_path: Path) -> None:
    reference = write_encoder_decoder(tmp_path, name)
    prompts, inputs, starts = asked(name)
    flags: dict[str, Any] = {
        "num_gpu_blocks_override": 16,
        "max_model_len": 64,
        "swap_space": swap_space,
        "plugin_options": {"scheduler": {"growth_blocks": 0}},
    }
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=-1)
    with served(tmp_path, **flags) as llm:
        core = core_of(llm)
        preempted = watch_preemptions(core)
        results = llm.generate(prompts * 2, params, use_tqdm=False)
        assert preempted
        assert (core.cache.num_swaps > 0) == (swap_space > 0)
        core.check_idle()
    for result, own, start in zip(results, inputs * 2, starts * 2, strict=True):
        assert worst_difference(reference, own, start, result) <= TOLERANCE


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("T5ForConditionalGeneration", "tensor_parallel_size"),
        (SPEECH, "tensor_parallel_size"),
        ("T5ForConditionalGeneration", "pipeline_parallel_size"),
    ],
)
def test_two_ranks_or_stages(name: str, flag: str, tmp_path: Path) -> None:
    reference = write_encoder_decoder(tmp_path, name)
    prompts, inputs, starts = asked(name)
    with served(tmp_path, **{flag: 2}) as llm:
        results = llm.generate(prompts, EVERYTHING, use_tqdm=False)
    for result, own, start in zip(results, inputs, starts, strict=True):
        assert worst_difference(reference, own, start, result) <= TOLERANCE


def test_the_decoder_begins_with_what_is_sent(tmp_path: Path) -> None:
    reference = write_encoder_decoder(tmp_path, "BartForConditionalGeneration")
    (text, *_) = texts()
    prompt = {"encoder_prompt": {"prompt_token_ids": text}, "decoder_prompt": [9, 10]}
    with served(tmp_path) as llm:
        (given,) = llm.generate([prompt], EVERYTHING, use_tqdm=False)
        (plain,) = llm.generate([text], EVERYTHING, use_tqdm=False)
        (said,) = llm.generate("user: hello", EVERYTHING, use_tqdm=False)
    assert given.prompt_token_ids == plain.prompt_token_ids == tuple(text)
    assert said.outputs[0].text
    own = {"input_ids": torch.tensor([text])}
    assert worst_difference(reference, own, [2, 9, 10], given) <= TOLERANCE
    assert worst_difference(reference, own, [2], plain) <= TOLERANCE


def test_what_an_encoder_cannot_read(tmp_path: Path) -> None:
    write_encoder_decoder(tmp_path, "BartForConditionalGeneration")
    with served(tmp_path) as llm:
        with pytest.raises(RequestError, match="at most 128"):
            llm.generate([[5] * 129])
        with pytest.raises(RequestError, match="no logprobs of its prompt"):
            llm.generate([[5]], SamplingParams(prompt_logprobs=1))
    with pytest.raises(ConfigError, match="encoder beside its decoder"):
        served(tmp_path, enable_lora=True)


def test_a_model_of_speech_reads_no_text(tmp_path: Path) -> None:
    write_encoder_decoder(tmp_path, SPEECH)
    with served(tmp_path) as llm, pytest.raises(RequestError, match="reads audio, not text"):
        llm.generate(["hello"])
    with pytest.raises(ConfigError, match="stages: the times of words"):
        served(tmp_path, pipeline_parallel_size=2)


def test_prompts_in_pairs_need_an_encoder() -> None:
    with LLM(disable_log_stats=True) as llm, pytest.raises(RequestError, match="no encoder"):
        llm.generate([{"encoder_prompt": "a", "decoder_prompt": "b"}])
