"""The same numbers whatever way pooled prompts are computed: divided over ranks and stages, by
several engines, after a sleep, in pieces, behind an instruction; and what has no effect is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dovetail import LLM
from dovetail.engine.client.pooling.input_processor import PooledInput
from dovetail.engine.client.requests.input_processor import InputProcessor
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.core import StepOutput
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.pooling_params import PoolingParams
from support.inside import core_of
from support.tiny_decoders import SIZE, hidden_states, saved, tiny_model, to_length_1, write_modules

pytestmark = pytest.mark.e2e

ENGINE: dict[str, Any] = {
    "max_model_len": 64,
    "max_num_batched_tokens": 24,
    "dtype": "float32",
    "runner": "pooling",
    "use_tqdm_on_load": False,
}
PROMPTS = [list(range(3, 22)), list(range(40, 73)), [5, 6, 7], list(range(3, 30)), [9]]
TOKENS = PoolingParams(task="token_embed")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("LlamaModel", "LlamaForCausalLM", num_key_value_heads=1)


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def wanted(model: Any) -> list[np.ndarray]:
    """Return the vectors of all tokens of each prompt."""
    return [to_length_1(hidden_states(model, ids)).numpy() for ids in PROMPTS]


def assert_vectors(llm: LLM, wanted: Sequence[np.ndarray]) -> None:
    """Assert the vectors of prompts, of those in the prefix cache, and of each of their tokens."""
    for params in (None, None, TOKENS):
        told = llm.encode(PROMPTS, params, use_tqdm=False)
        for one, vectors in zip(told, wanted, strict=True):
            assert one.error is None, one.error
            right = vectors if params is TOKENS else vectors[-1]
            np.testing.assert_allclose(one.data, right, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"tensor_parallel_size": 2, "enable_sleep_mode": True},
        {"pipeline_parallel_size": 2},
        {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
        {"data_parallel_size": 2},
    ],
    ids=["two ranks", "two stages", "a divided cache", "two engines"],
)
def test_divided_equals_whole(
    flags: dict[str, Any], folder: Path, wanted: list[np.ndarray]
) -> None:
    with LLM(model=str(folder), **ENGINE, **flags) as llm:
        assert_vectors(llm, wanted)
        if flags.get("enable_sleep_mode"):
            llm.sleep(1)
            with pytest.raises(RequestError, match="asleep"):
                llm.encode(PROMPTS, use_tqdm=False)
            llm.wake_up()
            assert_vectors(llm, wanted)


def test_preempted_prompts_are_computed_again(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several prompts come in parts at once, in a cache that holds one and a half of them."""
    ids = [[3 + (7 * i + k) % 300 for i in range(n)] for k, n in enumerate((50, 49, 51, 48, 60))]
    flags = {
        "max_num_partial_prefills": 3,
        "long_prefill_token_threshold": 8,
        "block_size": 8,
        "num_gpu_blocks_override": 12,
        "plugin_options": {"scheduler": {"growth_blocks": 0}},
    }
    counts = []
    with LLM(model=str(folder), **ENGINE, **flags) as llm:
        core = core_of(llm)
        step = core.step

        def counted() -> StepOutput:
            output = step()
            counts.append(output.stats.preemptions if output.stats else 0)
            return output

        monkeypatch.setattr(core, "step", counted)
        for params in (TOKENS, None):
            told = llm.encode(ids, params, use_tqdm=False)
            assert sum(counts) > 0
            counts.clear()
            for one, prompt in zip(told, ids, strict=True):
                states = hidden_states(model, prompt)
                right = to_length_1(states if params is TOKENS else states[-1])
                np.testing.assert_allclose(one.data, right.numpy(), rtol=0, atol=1e-5)


CHUNKED = {"enable_chunked_processing": True}


@pytest.mark.parametrize("pooling_type", ["MEAN", "LAST", "CLS"])
def test_long_prompts_in_pieces(pooling_type: str, model: Any, folder: Path) -> None:
    """The mean of the pieces' vectors, weighted by their lengths, of length 1."""
    config = {**CHUNKED, "pooling_type": pooling_type, "max_embed_len": 200}
    ids = [3 + i % 300 for i in range(150)]
    pools = {
        "MEAN": lambda x: x.mean(dim=0),
        "LAST": lambda x: x[-1],
        "CLS": lambda x: x[0],
    }
    parts = [ids[:64], ids[64:128], ids[128:]]
    vectors = [to_length_1(pools[pooling_type](hidden_states(model, part))) for part in parts]
    lengths = torch.tensor([[64.0], [64.0], [22.0]])
    whole = to_length_1((torch.stack(vectors) * lengths).sum(dim=0))
    with LLM(model=str(folder), pooler_config=config, **ENGINE) as llm:
        long, short = llm.encode([ids, ids[:30]], use_tqdm=False)
        np.testing.assert_allclose(long.data, whole.numpy(), rtol=0, atol=1e-5)
        alone = to_length_1(pools[pooling_type](hidden_states(model, ids[:30])))
        np.testing.assert_allclose(short.data, alone.numpy(), rtol=0, atol=1e-5)
        text = "the quick brown fox " * 10
        assert len(llm.encode([text], use_tqdm=False)[0].prompt_token_ids) > 64
        for params in (PoolingParams(task="embed"), TOKENS):
            too_long = [5] * (201 if params.task == "embed" else 65)
            with pytest.raises(RequestError, match="the prompt has"):
                llm.encode([too_long], params, use_tqdm=False)


def test_an_instruction_may_be_left_out_of_the_mean(model: Any, tmp_path: Path) -> None:
    """Of texts behind an instruction some models pool the text alone; the model reads both. Texts
    are read in lower case, and modules stand behind the pooler in their order."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        dense, norm = nn.Linear(SIZE, 24), nn.LayerNorm(24)
        nn.init.normal_(norm.weight)
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    behind = [("Normalize", None), ("Dense", dense), ("LayerNorm", norm), ("Dropout", None)]
    folder = write_modules(
        saved(model, tmp_path),
        pooling=pooling,
        behind=behind,
        prompts={"query": "Query: "},
        do_lower_case=True,
    )
    with LLM(model=str(folder), **ENGINE) as llm:
        tokenizer = llm.tokenizer
        vocabularies = Vocabularies(llm.spec, tokenizer)
        made = PooledInput(llm.spec, vocabularies, InputProcessor(llm.spec, vocabularies))
        vectors = PoolingParams(task="embed")
        prepared = made.prepare("A Brown Fox", vectors, "1", prefix="Query: ")
        again = made.prepare("Query: A Brown Fox", vectors, "1")
        assert again.requests[0].pooling == prepared.requests[0].pooling
        assert list(prepared.prompt_ids) == list(tokenizer.encode("query: a brown fox"))
        told = llm.encode([prepared.prompt_ids], prepared.requests[0].pooling, use_tqdm=False)[0]
        alone = PoolingParams(task="embed", unpooled_tokens=3)
        empty, other = llm.encode([[5, 6, 7], [5, 6, 7, 8]], alone, use_tqdm=False)
        assert empty.error is not None and "beside its instruction" in empty.error
        assert other.error is None
        instruction = len(tokenizer.encode("query: ", add_special_tokens=False))
        states = hidden_states(model, prepared.prompt_ids)
        with torch.inference_mode():
            vector = norm(dense(to_length_1(states[instruction:].mean(dim=0))))
    np.testing.assert_allclose(told.data, vector.numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"speculative_config": {"method": "ngram"}}, "--speculative-config: the model draws no"),
        (
            {
                "hf_overrides": {"is_causal": False},
                "tensor_parallel_size": 4,
                "decode_context_parallel_size": 2,
            },
            "--decode-context-parallel-size: the model keeps nothing",
        ),
        (
            {"pooler_config": {"pooling_type": "MAX", "enable_chunked_processing": True}},
            "the pooler max makes of the pieces of a long prompt cannot be averaged",
        ),
        ({"pooler_config": {"max_embed_len": 100}}, "is the length of texts that are embedded in"),
        ({"pooler_config": {"dimensions": 33}}, "must be 1 to 32"),
        ({"pooler_config": {"step_tag_id": 320}}, "must be 0 to 319"),
        (
            {"convert": "classify", "pooler_config": {"returned_token_ids": [2]}},
            "must be 0 to 1, numbers of classes",
        ),
        (
            {"pooler_config": {"softmax": True, "use_activation": False}},
            "use_activation and softmax: say different things",
        ),
        ({"pooler_config": {"activation": "tanh"}}, "one of identity, sigmoid, softmax"),
        ({"pooler_config": {"pooling_type": "middle"}}, 'there is no pooler "middle"'),
        ({"pooler_config": {"poling": "MEAN"}}, "the keys are pooling_type"),
        ({"plugin_options": {"pooler": {"width": 3}}}, "--plugin-options.pooler.width"),
    ],
)
def test_what_cannot_be_meant_is_refused(flags: dict[str, Any], told: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(model=str(folder), **{**ENGINE, **flags})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("structured_outputs_config", {"backend": "guidance"}),
        ("logits_processors", ["min_p"]),
        ("max_logprobs", 3),
        ("logprobs_mode", "raw_logits"),
        ("pooler_config", {"softmax": True}),
    ],
)
def test_what_has_no_effect_is_logged(
    flag: str, value: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(model=str(folder), **{**ENGINE, flag: value}) as llm:
        (result,) = llm.embed([[5, 6, 7]], use_tqdm=False)
        assert result.error is None
    (line,) = [record.getMessage() for record in caplog.records if "no effect" in record.message]
    assert line.startswith("--" + flag.replace("_", "-"))
