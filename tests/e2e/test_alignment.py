"""Where a decoder's prompt attends to what was heard: as transformers' own attention, median filter
and dynamic time warping have it; alone, in a crowded batch, in chunks, on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.engine.client.requests.encoder_prompt import EncoderPrompt
from dovetail.engine.client.results.outputs import numbers
from dovetail.errors import RequestError
from dovetail.interfaces.data.media import Feature, PartPlace, PromptPart
from dovetail.interfaces.data.sampling_params import Alignment
from dovetail_kernels.time_warp import path, prominence
from dovetail_testing.tiny.families import VOCAB_SIZE
from support.tiny_encoder_decoders import write_encoder_decoder

whisper = pytest.importorskip("transformers.models.whisper.generation_whisper")
NUM_ROWS = 43
FIRST = 2
ASKED = SamplingParams(
    temperature=0, max_tokens=1, alignment=Alignment(first=FIRST, num_rows=NUM_ROWS)
)
PLAIN = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def reference_path(weights: torch.Tensor) -> np.ndarray:
    """Return transformers' first row of each token. Shapes: weights [h, T, rows]"""
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    smooth = whisper._median_filter((weights - mean) / deviation, 7)
    tokens, rows = whisper._dynamic_time_warping(-smooth.mean(0)[FIRST:].double().numpy())
    return rows[np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)]


@pytest.mark.parametrize("shape", [(3, 2, 5), (4, 9, 40), (2, 30, 31), (1, 40, 12), (2, 1, 20)])
def test_the_path_is_that_of_transformers(shape: tuple[int, int, int]) -> None:
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.1
    if shape[1] <= FIRST:
        assert path(np.ones(shape[1:])).tolist() == [0] * shape[1]
        return
    ours = path(prominence(weights).mean(0)[FIRST:].numpy())
    assert ours.tolist() == reference_path(weights).tolist()


def prompts() -> list[tuple[EncoderPrompt, np.ndarray, list[int]]]:
    rng, made = np.random.default_rng(5), []
    for count in (24, 3, 40):
        spectrogram = rng.standard_normal((8, 100), dtype=np.float32)
        feature = Feature("input_features", "float32", spectrogram.shape, spectrogram.tobytes())
        place = PartPlace(str(spectrogram.sum()), "audio", (), 50)
        ids = [VOCAB_SIZE, *rng.integers(3, VOCAB_SIZE, count + FIRST).tolist()]
        prompt = EncoderPrompt(
            encoder=PromptPart(place=place, features=(feature,)), decoder=tuple(ids), is_whole=True
        )
        made.append((prompt, spectrogram, ids))
    return made


@torch.inference_mode()
def attention_of(model: Any, spectrogram: np.ndarray, ids: list[int]) -> torch.Tensor:
    """Return the attention of the upper layers, as if the sound ended at NUM_ROWS."""
    model.set_attn_implementation("eager")
    told = model(
        input_features=torch.from_numpy(spectrogram)[None],
        decoder_input_ids=torch.tensor([ids]),
        output_attentions=True,
    ).cross_attentions
    upper = torch.cat([one[0] for one in told[len(told) // 2 :]])[..., :NUM_ROWS]
    return upper / upper.sum(-1, keepdim=True)


def aligned(llm: LLM) -> list[list[int]]:
    """Return the rows of each prompt's tokens; others generate in the same steps."""
    found = llm.generate(
        [one for one, _, _ in prompts()] * 2, [ASKED] * 3 + [PLAIN] * 3, use_tqdm=False
    )
    assert all(len(one.outputs[0].token_ids) == 6 for one in found[3:])
    assert not any(one.outputs[0].token_ids for one in found[:3])
    return [numbers(one.pooled).astype(int).tolist() for one in found[:3] if one.pooled is not None]


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"attention_backend": "torch_sdpa"},
        {"max_num_batched_tokens": 16, "max_num_seqs": 6},
        pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.e2e),
    ],
    ids=["plain", "torch", "chunks", "ranks"],
)
def test_rows_are_those_of_transformers(flags: dict[str, Any], tmp_path: Path) -> None:
    model = write_encoder_decoder(tmp_path, "WhisperForConditionalGeneration")
    wanted = [
        reference_path(attention_of(model, heard, ids)).tolist() for _, heard, ids in prompts()
    ]
    sizes = {"max_model_len": 100, "kv_cache_memory_bytes": 1 << 22, "disable_log_stats": True}
    with LLM(str(tmp_path), dtype="float32", **{**sizes, **flags}) as llm:
        assert aligned(llm) == wanted
        assert aligned(llm) == wanted  # what others have cached counts for nothing


def test_who_cannot_be_aligned(tmp_path: Path) -> None:
    with (
        LLM(disable_log_stats=True) as llm,
        pytest.raises(RequestError, match="only a model with an encoder"),
    ):
        llm.generate("hello", ASKED, use_tqdm=False)
    write_encoder_decoder(tmp_path, "WhisperForConditionalGeneration")
    params = SamplingParams(max_tokens=1, alignment=Alignment(first=0, num_rows=51))
    with (
        LLM(str(tmp_path), dtype="float32", disable_log_stats=True) as llm,
        pytest.raises(RequestError, match="rows that there are not"),
    ):
        llm.generate([prompts()[0][0]], params, use_tqdm=False)
