"""LogitsProcessor: touches only the rows it was given, and the same way in any batch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams, ThinkingBudget
from dovetail.interfaces.logits import STAGES, LogitsProcessor, ProcessorContext, RowTokens
from dovetail.interfaces.structured_output import Vocabulary
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_testing.tiny.transformer import tiny_run

VOCAB = 32
WANTS = (
    SamplingParams(allowed_token_ids=(1, 5, 9), max_tokens=8),
    SamplingParams(bad_words=("x",), bad_words_token_ids=((3,), (4, 5)), max_tokens=8),
    SamplingParams(logit_bias={2: 5.0, 7: -100.0}, max_tokens=8),
    SamplingParams(min_tokens=4, max_tokens=8, stop_token_ids=(6,), eos_token_ids=(0,)),
    SamplingParams(min_p=0.2, max_tokens=8),
    SamplingParams(thinking=ThinkingBudget(tokens=2, end="bc", end_ids=(11, 12)), max_tokens=8),
)
VOCABULARY = Vocabulary(
    tokens=[bytes([ord("a") + i % 26]) for i in range(VOCAB)],
    special={},
    eos_ids=(),
    special_ids=frozenset(),
    size=VOCAB,
)


def wanting_params(plugin: Any, name: str) -> SamplingParams:
    """Return sampling params that this processor wants. Skips when the kit finds none."""
    own = SamplingParams(logits_processors={name: {}}, max_tokens=8)
    claimed = [SamplingParams(extra_args={name: 1}, max_tokens=8) for name in plugin.claims]
    for params in (*WANTS, own, *claimed):
        if plugin.wants(params) and (params not in claimed or takes(plugin, params)):
            return params
    pytest.skip("the kit knows no request that wants this processor")


def takes(plugin: Any, params: SamplingParams) -> bool:
    """Return whether a claimed field may have this value."""
    try:
        plugin.verify(params, VOCAB)
    except RequestError:
        return False
    return True


@pytest.fixture
def params(plugin: Any, entry: Any) -> SamplingParams:
    """Return a request that uses the processor."""
    return wanting_params(plugin, entry.name)


def no_tokenizer() -> Tokenizer:
    """Skip the clause: no tokenizer has the few ids of these clauses."""
    pytest.skip("the processor loads a tokenizer, and the kit's small vocabulary has none")


def new_processor(plugin: Any) -> LogitsProcessor:
    """Return a processor over a small vocabulary, as the runner makes it."""
    processor: LogitsProcessor = plugin(plugin.Options(), VOCAB)
    processor.set_up(
        ProcessorContext(
            model=msgspec.structs.replace(tiny_run().model, vocab_size=VOCAB),
            device=torch.device("cpu"),
            max_rows=8,
            max_model_tokens=64,
            tokenizer_path="",
            tokenizer=no_tokenizer,
            vocabulary=lambda: VOCABULARY,
        )
    )
    return processor


@pytest.fixture
def processor(plugin: Any) -> LogitsProcessor:
    """Return the processor over a small vocabulary."""
    return new_processor(plugin)


def row(number: int, params: SamplingParams, output_ids: list[int]) -> RowTokens:
    """Return a row as the runner hands it over."""
    return RowTokens(row=number, params=params, prompt_ids=(1, 2, 3, 4), output_ids=output_ids)


def random_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    """Return logits [S, V]."""
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed))


class TestLogitsProcessor:
    """Clauses of logits processors."""

    kind = "logits_processor"

    def test_stage_exists(self, plugin: Any) -> None:
        """The stage is one of those that fix the order."""
        assert plugin.stage in STAGES

    def test_plain_requests_are_left_alone(self, plugin: Any) -> None:
        """A request that asks for nothing does not use it."""
        assert plugin.wants(SamplingParams(temperature=0.7, max_tokens=8)) is False

    def test_verify_accepts_what_it_wants(self, plugin: Any, params: SamplingParams) -> None:
        """A proper request passes verify; ids beyond the vocabulary raise only RequestError."""
        plugin.verify(params, VOCAB)
        try:
            plugin.verify(params, 2)
        except RequestError as error:
            assert error.what

    def test_other_rows_stay(self, processor: LogitsProcessor, params: SamplingParams) -> None:
        """Only the given indices of the logits change, bit for bit."""
        processor.add_row(row(7, params, [5, 4]))
        logits = random_logits(4)
        before = logits.clone()
        processor.apply(logits, [(2, 7)])
        for index in (0, 1, 3):
            assert torch.equal(logits[index], before[index])

    def test_never_makes_nan(self, processor: LogitsProcessor, params: SamplingParams) -> None:
        """The result has no NaN, no +inf, and at least one token left."""
        processor.add_row(row(0, params, []))
        logits = random_logits(1)
        processor.apply(logits, [(0, 0)])
        assert not logits.isnan().any()
        assert not (logits == float("inf")).any()
        assert logits.isfinite().any()

    def test_batch_does_not_matter(
        self, plugin: Any, processor: LogitsProcessor, params: SamplingParams
    ) -> None:
        """A row gets the same logits by itself, in a batch, and in another order."""
        outputs: list[list[int]] = [[], [4], [5, 4, 3]]
        logits = random_logits(3)
        alone = []
        for number, output_ids in enumerate(outputs):
            single = new_processor(plugin)
            single.add_row(row(number, params, output_ids))
            alone.append(logits[number : number + 1].clone())
            single.apply(alone[-1], [(0, number)])
            processor.add_row(row(number, params, output_ids))
        for order in ((0, 1, 2), (2, 0, 1)):
            batch = logits[list(order)].clone()
            processor.apply(batch, [(index, number) for index, number in enumerate(order)])
            assert torch.equal(batch, torch.cat([alone[number] for number in order]))

    def test_sees_tokens_as_they_come(
        self, plugin: Any, processor: LogitsProcessor, params: SamplingParams
    ) -> None:
        """`output_ids` is live: a row followed step by step equals a row added late."""
        output_ids: list[int] = []
        processor.add_row(row(0, params, output_ids))
        for token_id in (5, 4, 4, 3, 9, 1):
            late = new_processor(plugin)
            late.add_row(row(3, params, list(output_ids)))
            followed, fresh = random_logits(1), random_logits(1)
            processor.apply(followed, [(0, 0)])
            late.apply(fresh, [(0, 3)])
            assert torch.equal(followed, fresh)
            output_ids.append(token_id)

    def test_rows_are_forgotten(self, processor: LogitsProcessor, params: SamplingParams) -> None:
        """A removed row's number can be used again; unknown rows are ignored."""
        processor.remove_row(5)
        processor.add_row(row(5, params, [3, 3, 3]))
        processor.remove_row(5)
        processor.remove_row(5)
        processor.add_row(row(5, params, []))
        reused, fresh = random_logits(1), random_logits(1)
        processor.apply(reused, [(0, 5)])
        single = new_processor(type(processor))
        single.add_row(row(0, params, []))
        single.apply(fresh, [(0, 0)])
        assert torch.equal(reused, fresh)

    def test_filters_keep_the_best(
        self, processor: LogitsProcessor, params: SamplingParams
    ) -> None:
        """A filter never removes the most likely token."""
        if processor.stage != "filter":
            pytest.skip("not a filter")
        logits = random_logits(8)
        best = logits.argmax(dim=-1)
        for number in range(8):
            processor.add_row(row(number, params, []))
        processor.apply(logits, [(number, number) for number in range(8)])
        assert torch.equal(logits.argmax(dim=-1), best)
