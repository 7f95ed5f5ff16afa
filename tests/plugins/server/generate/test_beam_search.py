"""Beam search against that of transformers, on random models; and what best_of chooses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.server.generate.beam_search import Beam, Beams, BeamSettings
from dovetail_testing.fakes.async_engine import Script
from support.samples import sample_of
from support.serving import app_for, chat, complete

transformers = pytest.importorskip("transformers")
VOCAB, PROMPT, LIMIT = 23, [3, 5, 7], 12


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.7,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def searched(model: Any, settings: BeamSettings, ends: frozenset[int]) -> list[Beam]:
    beams = Beams(settings=settings, end_ids=ends, max_tokens=LIMIT)
    while beams.live:
        ids = torch.tensor([[*PROMPT, *beam.tokens] for beam in beams.live])
        with torch.no_grad():
            logprobs = model(ids).logits[:, -1].float().log_softmax(dim=-1)
        top = logprobs.topk(min(beams.num_wanted, VOCAB), dim=-1)
        beams.grow(
            [
                TokenLogprobs(
                    token_id=ids[0],
                    logprob=values[0],
                    rank=1,
                    top_ids=tuple(ids),
                    top_logprobs=tuple(values),
                )
                for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
            ]
        )
    return beams.best()


@pytest.mark.sampled
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("ends", [(), (11,), (2, 11)])
def test_the_beams_are_those_of_transformers(
    ends: tuple[int, ...], penalty: float, is_early: bool
) -> None:
    for seed in range(sample_of(6, 2)):
        model = model_of(seed)
        settings = BeamSettings(width=4, count=3, length_penalty=penalty, is_early=is_early)
        found = searched(model, settings, frozenset(ends))
        wanted = model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            num_beams=4,
            num_return_sequences=3,
            max_new_tokens=LIMIT,
            do_sample=False,
            length_penalty=penalty,
            early_stopping=is_early,
            eos_token_id=list(ends) or None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        for beam, ids, score in zip(found, wanted.sequences, wanted.sequences_scores, strict=True):
            told = ids[len(PROMPT) :].tolist()
            assert list(beam.tokens) == told[: len(beam.tokens)], (seed, found, wanted.sequences)
            assert set(told[len(beam.tokens) :]) <= {0, *ends[:1]}  # what it fills up with
            assert beam.score(penalty) == pytest.approx(score.item(), rel=1e-4)


def test_the_fields_of_a_request() -> None:
    app, engine = app_for(Script(pieces=["a"]))
    body = complete(
        app, use_beam_search=True, n=2, best_of=4, max_tokens=3, length_penalty=0.5
    ).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert all(choice["finish_reason"] == "length" for choice in body["choices"])
    params = engine.asked[0][1]
    assert (params.max_tokens, params.n, params.ignore_eos) == (1, 1, True)
    assert params.logprobs == 8
    assert len(engine.asked) <= 1 + 4 + 4
    streamed = chat(app, use_beam_search=True, n=2, max_tokens=2, stream=True)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert not engine.running
    error = chat(app, best_of=2).json()["error"]
    assert error["param"] == "best_of"


def test_the_likeliest_of_several_are_told() -> None:
    texts = ["--", "a-", "ab", "--"]  # a dash has no probability in the fake engine
    app, engine = app_for(lambda text, index: Script(pieces=list(texts[index])))
    body = complete(app, n=1, best_of=4).json()
    assert [choice["text"] for choice in body["choices"]] == ["ab"]
    assert body["choices"][0]["index"] == 0
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 8
    two = complete(app, n=2, best_of=4).json()["choices"]
    assert [(choice["index"], choice["text"]) for choice in two] == [(0, "ab"), (1, "a-")]
    assert engine.asked[0][1].n == 4
