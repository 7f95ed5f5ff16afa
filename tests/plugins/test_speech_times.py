"""The rules of a transcript's times, held against transformers' processor of logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import RowTokens
from dovetail_plugins.logits_processors.speech_times import NAME, SpeechTimes

WORDS = 20
"""Ids of text come first, then the end, then what says that there are no times, then times."""
END, NO_TIMES, FIRST, NUM_TIMES, MOST_FIRST = WORDS, WORDS + 1, WORDS + 2, 40, 5
SIZE = FIRST + NUM_TIMES
RULES: dict[str, Any] = {
    "first_time": FIRST,
    "end": END,
    "no_times": NO_TIMES,
    "most_first": MOST_FIRST,
    "suppressed": [3, 4],
    "suppressed_first": [5],
}
OUTPUTS: list[list[int]] = [
    [],
    [FIRST + 2],
    [FIRST + 2, 7],
    [FIRST + 2, 7, FIRST + 9],
    [FIRST + 2, 7, FIRST + 9, FIRST + 9],
    [FIRST + 2, 7, FIRST + 9, FIRST + 9, 8, 9],
    [FIRST, FIRST],
]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("likely", ["text", "times"])
def test_what_is_banned_is_what_transformers_bans(output: list[int], likely: str) -> None:
    hf = pytest.importorskip("transformers")
    config = hf.GenerationConfig(
        no_timestamps_token_id=NO_TIMES,
        eos_token_id=END,
        max_initial_timestamp_index=MOST_FIRST,
    )
    theirs = hf.WhisperTimeStampLogitsProcessor(config, begin_index=1)
    logits = torch.randn(1, SIZE, generator=torch.Generator().manual_seed(len(output)))
    logits[0, 7] += 9.0 if likely == "text" else -9.0
    wanted = logits.clone()
    wanted[0, RULES["suppressed"]] = -torch.inf
    if not output:
        wanted[0, RULES["suppressed_first"]] = -torch.inf
    wanted = theirs(torch.tensor([[0, *output]]), wanted)
    made = SpeechTimes(None, SIZE)
    params = SamplingParams(logits_processors={NAME: RULES})
    assert SpeechTimes.wants(params)
    SpeechTimes.verify(params, SIZE)
    made.add_row(RowTokens(row=0, params=params, prompt_ids=(0,), output_ids=output))
    made.apply(logits, [(0, 0)])
    assert torch.equal(logits, wanted)


def test_without_times_some_ids_alone_are_banned() -> None:
    rules: dict[str, Any] = {**RULES, "first_time": None}
    made = SpeechTimes(None, SIZE)
    params = SamplingParams(logits_processors={NAME: rules})
    made.add_row(RowTokens(row=0, params=params, prompt_ids=(0,), output_ids=[]))
    logits = torch.zeros(1, SIZE)
    made.apply(logits, [(0, 0)])
    assert torch.isinf(logits[0]).nonzero().flatten().tolist() == [3, 4, 5]
