"""Flags that change nothing where they are given: logged, and the start goes on."""

from __future__ import annotations

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.pooling.flags import check_pooled_flags
from dovetail.config.rules.steps.schedule import _max_partial
from dovetail.config.sections.scheduler import SchedulerConfig
from dovetail.errors import ConfigError
from dovetail_plugins.batch.settings import BatchFlags, check_flags
from dovetail_testing.fakes.engine import fake_spec


def test_parts_of_prompts_without_chunked_prefill(caplog: pytest.LogCaptureFixture) -> None:
    given = SchedulerConfig(enable_chunked_prefill=False, max_num_partial_prefills=3)
    assert _max_partial(given) is None
    assert "--max-num-partial-prefills and" in caplog.text and "no effect" in caplog.text


def test_the_address_of_metrics_that_are_off(caplog: pytest.LogCaptureFixture) -> None:
    check_flags(BatchFlags(input_file="in", output_file="out"), ["port", "url"])
    assert caplog.text.count("has no effect without --enable-metrics") == 2


def test_flags_about_drawn_tokens_of_a_model_that_draws_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = fake_spec().run.model
    check_pooled_flags(
        Config.from_fields({"max_logprobs": 3, "logprobs_mode": "raw_logits"}), model
    )
    assert caplog.text.count("has no effect: the model draws no tokens") == 2
    with pytest.raises(ConfigError, match="nothing to draft"):
        check_pooled_flags(Config.from_fields({"speculative_config": {"method": "ngram"}}), model)
