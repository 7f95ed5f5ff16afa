"""LLM under the names and shapes of vLLM's documented API."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
import torch
import transformers

from dovetail import LLM, RequestOutput, TextPrompt, TokensPrompt
from dovetail.errors import RequestError
from dovetail.llm.facts import ABSENT
from dovetail.outputs import CompletionOutput, Logprob
from dovetail.sampling_params import BeamSearchParams, SamplingParams, StructuredOutputsParams
from support.inside import engine_of

PROMPT = "Question: What is the capital of France?\nAnswer:"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=128, max_num_seqs=8, dtype="float32", use_tqdm_on_load=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(llm: LLM) -> transformers.PreTrainedModel:
    path = llm.model_config.model
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def test_a_stop_string_may_be_written_alone(llm: LLM) -> None:
    assert (
        SamplingParams(stop=".")
        == SamplingParams(
            stop=[
                ".",
            ]
        )
        == SamplingParams(stop=(".",))
    )
    assert SamplingParams(stop=None, logit_bias=None, bad_words=None) == SamplingParams()
    (plain,) = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    text = plain.outputs[0].text
    stop = text[3]
    params = SamplingParams(temperature=0, max_tokens=8, stop=stop)
    (cut,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert cut.outputs[0].stop_reason == stop


def test_results_have_the_names_and_shapes(llm: LLM, reference: torch.nn.Module) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    (result,) = llm.generate([TextPrompt(prompt=PROMPT)], params, use_tqdm=False)
    assert isinstance(result, RequestOutput) and result.finished is True
    (completion,) = result.outputs
    assert isinstance(completion, CompletionOutput) and completion.finished()
    ids = [*result.prompt_token_ids, *completion.token_ids]
    with torch.inference_mode():
        wanted = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert result.prompt_logprobs is not None and result.prompt_logprobs[0] is None
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)
    assert completion.logprobs is not None
    entries = [*result.prompt_logprobs[1:], *completion.logprobs]
    tokenizer = llm.get_tokenizer()
    for at, (token_id, entry) in enumerate(zip(ids[1:], entries, strict=True)):
        assert entry is not None
        assert isinstance(entry, dict) and next(iter(entry)) == token_id
        for each, told in entry.items():
            assert isinstance(told, Logprob)
            assert told.logprob == pytest.approx(wanted[at, each].item(), abs=1e-2)
            assert told.decoded_token == tokenizer.decode([each])
            above = (wanted[at] > wanted[at, each] + 1e-2).sum().item()
            assert told.rank is not None and told.rank >= above + 1
    total = sum(
        one[i].logprob for i, one in zip(completion.token_ids, completion.logprobs, strict=True)
    )
    assert completion.cumulative_logprob == pytest.approx(total)


def test_chosen_tokens_have_no_rank_that_they_do_not_have(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprob_token_ids=[5, 6])
    (result,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert result.outputs[0].logprobs is not None
    (entry,) = result.outputs[0].logprobs
    assert entry[5].rank is None and math.isfinite(entry[5].logprob)


def test_get_tokenizer_is_that_of_transformers(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": "hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    (chat,) = llm.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False)
    assert chat.prompt == text
    ids = tokenizer.encode(text, add_special_tokens=False)
    (plain,) = llm.generate(TokensPrompt(prompt_token_ids=ids), SamplingParams(max_tokens=1))
    assert list(plain.prompt_token_ids) == list(chat.prompt_token_ids) == ids


def test_facts_of_the_model(llm: LLM) -> None:
    config = llm.model_config
    assert config.max_model_len == 128
    assert config.hf_config.hidden_size == config.hf_config["hidden_size"]
    assert config.get_hidden_size() == config.hf_config.hidden_size
    assert isinstance(config.dtype, torch.dtype)
    assert llm.get_default_sampling_params() == llm.default_params()


def test_names_that_are_absent_say_what_to_use(llm: LLM) -> None:
    for name, instead in ABSENT.items():
        with pytest.raises(AttributeError) as caught:
            getattr(llm, name)
        assert instead in str(caught.value)
    with pytest.raises(AttributeError, match="no attribute 'generat'"):
        _ = llm.generat


@pytest.mark.parametrize(
    ("fields", "is_right"),
    [
        ({"choice": ["Paris", "London"]}, lambda text: text in ("Paris", "London")),
        ({"regex": "[a-c]{3}"}, lambda text: len(text) == 3 and set(text) <= set("abc")),
        (
            {"json": {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"],
                      "additionalProperties": False}},
            lambda text: json.loads(text) == {"a": 7},
        ),
        (
            {"json": '{"enum": ["x"]}'},
            lambda text: json.loads(text) == "x",
        ),
        ({"grammar": 'root ::= "yes" | "no"'}, lambda text: text in ("yes", "no")),
    ],
)  # fmt: skip
def test_structured_outputs(llm: LLM, fields: dict, is_right) -> None:
    wanted = StructuredOutputsParams(**fields)
    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs=wanted)
    results = llm.generate([PROMPT, "Hello"], params, use_tqdm=False)
    assert all(is_right(result.outputs[0].text) for result in results)


def test_structured_outputs_that_are_wrong_are_refused(llm: LLM) -> None:
    for fields in ({}, {"regex": "a", "choice": ["b"]}):
        with pytest.raises(ValueError, match="set exactly one"):
            StructuredOutputsParams(**fields)
    wrong = SamplingParams(structured_outputs=StructuredOutputsParams(json="{"))
    with pytest.raises(RequestError, match=r"structured_outputs\.json"):
        llm.generate(PROMPT, wrong)
    with pytest.raises(RequestError, match="not compiled"):
        engine_of(llm).prepare(
            "x", SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
        )


def test_the_prefix_cache_is_forgotten(llm: LLM) -> None:
    ids = list(range(10, 90))
    params = SamplingParams(temperature=0, max_tokens=1)
    for _ in range(2):
        (result,) = llm.generate([ids], params, use_tqdm=False)
    assert result.num_cached_tokens > 0
    assert llm.reset_prefix_cache() is True
    (result,) = llm.generate([ids], params, use_tqdm=False)
    assert result.num_cached_tokens == 0


def test_beam_search_is_that_of_transformers(llm: LLM, reference: torch.nn.Module) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    outputs = llm.beam_search([PROMPT, {"prompt": "Hello"}], params)
    tokenizer = llm.get_tokenizer()
    for prompt, output in zip([PROMPT, "Hello"], outputs, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt)])
        with torch.inference_mode():
            wanted = reference.generate(
                ids, num_beams=3, num_return_sequences=3, max_new_tokens=6, do_sample=False,
                early_stopping=False,
            )  # fmt: skip
        best = [token for token in wanted[0].tolist() if token != tokenizer.pad_token_id]
        ours = output.sequences[0]
        assert len(output.sequences) == 3
        assert ours.tokens[: len(best)] == best
        assert ours.text.startswith(prompt)
    with pytest.raises(RequestError, match="temperature"):
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=2, max_tokens=2, temperature=0.7))
