"""Every family on a GPU tells a CPU's distribution at every token: prompts in parts beside decodes,
captured steps, a prefix that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail_testing.tiny.families import FAMILIES, VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gpus import CPU, CUDA, NEEDS_GPU, engine
from support.tiny_encoder_decoders import FAMILIES as ENCODER_DECODERS
from support.tiny_encoder_decoders import write_encoder_decoder

pytestmark = NEEDS_GPU
TOLERANCE = 2e-4
"""Float32 sums in another order, after a few layers."""
EVERYTHING = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=-1)
SPEECH = "WhisperForConditionalGeneration"


def prompts() -> list[Any]:
    draw = torch.Generator().manual_seed(7)
    lengths = (5, 40, 19)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=draw).tolist() for n in lengths]


def told(llm: LLM) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """Return each answer's tokens and distributions, the longest prompt's last once more."""
    asked = prompts()
    results = llm.generate(asked, EVERYTHING, use_tqdm=False)
    results += llm.generate([asked[1]], EVERYTHING, use_tqdm=False)
    assert [one.error for one in results] == [None] * len(results)
    found = []
    for result in results:
        (answer,) = result.outputs
        rows = torch.empty(len(answer.token_ids), len(answer.logprobs[0].top_ids))
        for row, entry in zip(rows, answer.logprobs, strict=True):
            row[list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
        found.append((tuple(answer.token_ids), rows))
    return found


def check(folder: Path, where: str = CUDA, **flags: Any) -> None:
    """Compare an engine on a GPU with one on a CPU."""
    flags |= {"max_num_batched_tokens": 24, "max_logprobs": -1, "skip_tokenizer_init": True}
    found = []
    for device in (where, CPU):
        with engine(device, folder, **flags) as llm:
            found.append(told(llm))
    for (ours, rows), (theirs, others) in zip(*found, strict=True):
        assert ours == theirs
        assert (rows - others).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", list(FAMILIES))
def test_decoders(family: str, tmp_path: Path) -> None:
    check(write_tiny_checkpoint(tmp_path / "model", family))


@pytest.mark.parametrize("family", [name for name in ENCODER_DECODERS if name != SPEECH])
def test_encoders_beside_decoders(family: str, tmp_path: Path) -> None:
    write_encoder_decoder(tmp_path, family)
    check(tmp_path)
