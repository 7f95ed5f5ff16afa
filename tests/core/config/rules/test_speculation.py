"""--speculative-config: each key reaches its place, and what cannot be is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.config.config import Config
from dovetail.config.rules.speculation import draft_spec
from dovetail.errors import ConfigError, UnknownPlugin
from dovetail.interfaces.spec import DraftSpec, Selection
from dovetail.testing.simulate import SimSettings

pytest.importorskip("dovetail_plugins")

CONTINUOUS = Selection(
    kind="scheduler",
    name="continuous",
    target="dovetail_plugins.schedulers.continuous:ContinuousScheduler",
)
FAKE = Selection(
    kind="scheduler", name="fake", target="dovetail.testing.fake_scheduler:FakeScheduler"
)


def resolved(
    asked: dict[str, Any], scheduler: Selection = CONTINUOUS, **fields: Any
) -> DraftSpec | None:
    config = Config.from_fields({"speculative_config": asked, **fields})
    return draft_spec(config, SimSettings(max_step_tokens=24).schedule(), scheduler)


def test_nothing_asked_nobody_guesses() -> None:
    assert resolved({}) is None


def test_every_key_has_its_place() -> None:
    spec = resolved(
        {
            "method": "ngram",
            "num_speculative_tokens": "3",
            "prompt-lookup-max": 4,
            "disable_by_batch_size": 8,
        },
        plugin_options={"drafter": {"prompt_lookup_min": 3}},
    )
    assert spec is not None
    assert (spec.drafter.name, spec.max_tokens, spec.pause_above_requests) == ("ngram", 3, 8)
    assert spec.drafter.options == {"prompt_lookup_min": 3, "prompt_lookup_max": 4}


@pytest.mark.parametrize(
    ("asked", "where", "text"),
    [
        ({"num_speculative_tokens": 3}, "method", "no method"),
        ({"method": "ngrams"}, "method", "ngram"),
        ({"method": 3}, "method", "not a name"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens", "out of"),
        ({"method": "ngram", "num_speculative_tokens": 24}, "num_speculative_tokens", "most 23"),
        ({"method": "ngram", "num_speculative_tokens": "x"}, "num_speculative_tokens", "int"),
        ({"method": "ngram", "lookup_max": 3}, "lookup_max", "prompt_lookup_max"),
        ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max", "below 1"),
        ({"method": "ngram", "disable_by_batch_size": -1}, "disable_by_batch_size", "out of"),
    ],
)
def test_what_cannot_be_names_its_key(asked: dict[str, Any], where: str, text: str) -> None:
    with pytest.raises((ConfigError, UnknownPlugin)) as caught:
        resolved(asked)
    assert text in str(caught.value)
    assert caught.value.where == f"--speculative-config.{where}"


def test_a_scheduler_without_drafts_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not plan drafts"):
        resolved({"method": "ngram"}, FAKE)


def test_the_command_line_takes_keys(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--speculative-config.method", "no-such", "--speculative-config", '{"x": 1}']
    assert main(["serve", *words]) == 2
    told = capsys.readouterr().err
    assert "--speculative-config.method" in told and "ngram" in told
