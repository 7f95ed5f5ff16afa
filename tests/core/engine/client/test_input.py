"""InputProcessor: what is wrong is refused by name, what is missing is filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dovetail.engine.client.requests.fanout import child_seed, root_seed
from dovetail.engine.client.requests.input_processor import InputProcessor, load_tokenizer
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_testing.fakes.engine import EOS, VOCAB_SIZE, ByteTokenizer, fake_spec


class Picky(LogitsProcessor):
    """Refuses everything it is asked for."""

    info = Info(summary="test processor")

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        return "picky" in params.logits_processors

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        raise RequestError(f"not with {vocab_size} tokens.", where="picky")

    def add_row(self, tokens: RowTokens) -> None:
        raise NotImplementedError

    def remove_row(self, row: int) -> None:
        raise NotImplementedError

    def apply(self, logits: Any, rows: Sequence[tuple[int, int]]) -> None:
        raise NotImplementedError


def processor(**changes: Any) -> InputProcessor:
    spec = fake_spec(max_model_tokens=32, **changes)
    return InputProcessor(spec, Vocabularies(spec, ByteTokenizer(None, "")), name="api")


def prepare(prompt: str | Sequence[int], **fields: Any) -> Any:
    return processor().prepare(prompt, SamplingParams(**fields), "req")


def refusal(prompt: str | Sequence[int], **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        prepare(prompt, **fields)
    return caught.value


def test_text_becomes_ids_and_the_room_is_filled() -> None:
    request = prepare("hello").requests[0]
    assert request.prompt_ids == tuple(b"hello")
    assert request.sampling.max_tokens == 32 - 5
    assert request.sampling.eos_token_ids == (EOS,)
    assert request.request_id.startswith("req/")


class WiderTokenizer(ByteTokenizer):
    """Makes a token that the model has no row for of "new"."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if text.strip() == "new":
            return [97, VOCAB_SIZE]
        return list(super().encode(text, add_special_tokens=add_special_tokens))


def test_a_bad_word_that_the_model_cannot_write_is_left_out() -> None:
    spec = fake_spec(max_model_tokens=32)
    made = InputProcessor(spec, Vocabularies(spec, WiderTokenizer(None, "")), name="api")
    sampling = SamplingParams(bad_words=("new", "a"))
    assert made.prepare("x", sampling, "req").params.bad_words_token_ids == ((97,), (32, 97))


def test_max_tokens_are_clamped_to_the_room_and_min_tokens_refused_above_it() -> None:
    sampling = prepare("x" * 30, max_tokens=100, min_tokens=2).params
    assert (sampling.max_tokens, sampling.min_tokens) == (2, 2)
    for fields in ({"min_tokens": 3}, {"min_tokens": 50, "max_tokens": 100}):
        error = refusal("x" * 30, **fields)
        assert (error.where, error.what) == (
            "min_tokens", "only 2 tokens of the context are left."
        )  # fmt: skip


@pytest.mark.parametrize("length", [32, 33, 1000])
def test_a_prompt_without_room_names_both_numbers(length: int) -> None:
    error = refusal("x" * length)
    assert error.code == "context_length_exceeded"
    assert str(length) in error.what and "32" in error.what


def test_the_longest_prompt_has_room_for_one_token() -> None:
    assert prepare("x" * 31).params.max_tokens == 1


@pytest.mark.parametrize(
    ("keep", "max_tokens", "left"), [(3, None, "hij"), (-1, 4, "x" * 18 + "abcdefghij")]
)
def test_truncation_keeps_the_end(keep: int, max_tokens: int | None, left: str) -> None:
    made = prepare("x" * 90 + "abcdefghij", truncate_prompt_tokens=keep, max_tokens=max_tokens)
    assert bytes(made.prompt_ids).decode() == left


def test_truncation_to_what_fits_leaves_half_for_a_greedy_answer() -> None:
    made = prepare("x" * 90, truncate_prompt_tokens=-1, max_tokens=10_000)
    assert (len(made.prompt_ids), made.params.max_tokens) == (16, 16)


@pytest.mark.parametrize(
    ("prompt", "fields", "where"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([1, VOCAB_SIZE], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([True], {}, "prompt"),
        ([1 << 80], {}, "prompt"),
        ("half \ud800 pair", {}, "prompt"),
        ("x", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("x", {"stop_token_ids": (VOCAB_SIZE,)}, "stop_token_ids"),
        ("x", {"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ("x", {"allowed_token_ids": (0, -5)}, "allowed_token_ids"),
        ("x", {"bad_words": ("  ",)}, "bad_words"),
        ("x", {"logprobs": 21}, "logprobs"),
        ("x", {"logprobs": -1}, "logprobs"),
        ("x", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("x", {"stop": ("a",), "detokenize": False}, "stop"),
        ("x", {"logits_processors": {"nobody": {}}}, "logits_processors"),
        ("x", {"temperature": float("nan")}, "temperature"),
        ("x", {"n": 0}, "n"),
        ("x", {"stop": 5}, "stop"),
        ("x", {"max_tokens": 2.5}, "max_tokens"),
        ("x", {"stop_token_ids": ("7",)}, "stop_token_ids[0]"),
        ("x", {"logits_processors": {"p": {"object": object()}}}, "sampling params"),
        ("x", {"stop": ("\ud800",)}, "stop"),
        ("x", {"bad_words": ("\ud800",)}, "bad_words"),
    ],
)
def test_refusals_name_the_field(
    prompt: str | list[int], fields: dict[str, Any], where: str
) -> None:
    error = refusal(prompt, **fields)
    assert error.where == where
    assert error.status == 400


def test_lists_are_as_good_as_tuples() -> None:
    made = prepare("x", stop=["a"], stop_token_ids=[1], logit_bias={5: 1})
    assert (made.params.stop, made.params.stop_token_ids) == (("a",), (1,))


def test_salt_and_id_must_be_text_too() -> None:
    for fields in ({"cache_salt": "\ud800"}, {"request_id": "\ud800"}):
        with pytest.raises(RequestError, match="Unicode"):
            processor().prepare("x", SamplingParams(), **{"request_id": "r"} | fields)


def test_any_number_of_logprobs_when_the_bound_is_off() -> None:
    spec = msgspec.structs.replace(fake_spec(), max_logprobs=-1)
    made = InputProcessor(spec, Vocabularies(spec, ByteTokenizer(None, "")))
    size = spec.run.model.vocab_size
    assert made.prepare("x", SamplingParams(logprobs=-1), "r").params.logprobs == size


def test_bad_words_at_the_start_and_after_a_space() -> None:
    made = prepare("x", bad_words=(" no",))
    assert set(made.params.bad_words_token_ids) == {tuple(b"no"), tuple(b" no")}


def test_processors_verify_only_what_wants_them() -> None:
    selection = Selection(
        kind="logits_processor", name="picky", target=f"{__file__}:Picky", options={}
    )
    made = processor(logits_processors=(selection,))
    assert made.prepare("x", SamplingParams(), "r")
    with pytest.raises(RequestError, match="not with 258 tokens"):
        made.prepare("x", SamplingParams(logits_processors={"picky": {}}), "r")


def test_fan_out_gives_each_child_its_own_seed_and_only_one_the_prompt() -> None:
    made = prepare("x", n=4, seed=7, prompt_logprobs=1)
    seeds = [request.seed for request in made.requests]
    assert seeds[0] == 7 and len(set(seeds)) == 4
    assert seeds == [request.seed for request in prepare("x", n=4, seed=7).requests]
    assert [r.sampling.n for r in made.requests] == [1] * 4
    assert [r.sampling.prompt_logprobs for r in made.requests] == [1, None, None, None]
    assert len({request.request_id for request in made.requests}) == 4


def test_seeds_fit_a_signed_number_and_differ_without_being_asked() -> None:
    assert all(0 <= root_seed(seed) < 1 << 63 for seed in (-1, 0, (1 << 64) - 1, None))
    assert all(0 <= child_seed(5, i) < 1 << 63 for i in range(100))
    assert prepare("x").requests[0].seed != prepare("x").requests[0].seed


def test_a_missing_tokenizer_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(fake_spec(tokenizer_path="missing"))


@pytest.mark.parametrize(("pattern", "is_taken"), [(None, True), ("pick", True), ("min_p$", False)])
def test_a_pattern_says_which_processors_may_be_named(
    pattern: str | None, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--logits-processor-pattern (logits_processor_pattern), as the engine's spec has it."""
    spec = msgspec.structs.replace(fake_spec(max_model_tokens=32), processor_pattern=pattern)
    made = InputProcessor(spec, Vocabularies(spec, ByteTokenizer(None, "")), name="api")
    monkeypatch.setattr(made._params, "_processors", {"picky": Picky})
    with pytest.raises(RequestError) as caught:
        made.prepare("a", SamplingParams(logits_processors={"picky": {}}), "req")
    assert caught.value.where == ("picky" if is_taken else "logits_processors")
