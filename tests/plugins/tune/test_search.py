"""`dovetail tune` adopts what is better and as accurate, and gives reasons for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.parse.yaml_files import read_fields
from dovetail.config.rules.checks import checked
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail_plugins.tune import report, search
from dovetail_plugins.tune.messages import Answered
from dovetail_plugins.tune.search import Outcome, Search, perplexity_rise
from dovetail_plugins.tune.settings import TuneFlags
from dovetail_plugins.tune.trial import TrialError
from dovetail_testing.tiny.models import write_tiny_checkpoint

Judge = Callable[[EngineSpec], float]


@dataclass(kw_only=True)
class FakeTrial:
    """An engine whose speed, accuracy and memory follow from its spec."""

    spec: EngineSpec
    seconds: Judge
    loss: Judge
    num_running: list[int]
    is_running: bool = True

    def texts(self, path: str | None, num_texts: int, text_tokens: int) -> list[list[int]]:
        return [[1, 2, 3, 4]] * num_texts

    def logprobs(self, texts: list[list[int]]) -> list[float]:
        return [-2.0 - math.log1p(self.loss(self.spec))] * 3 * len(texts)

    def answer(self, prompts: list[list[int]], answer_tokens: int) -> Answered:
        assert self.is_running
        seconds = self.seconds(self.spec) * len(prompts)
        return Answered(total_s=seconds)

    def memory_bytes(self) -> int:
        assert self.is_running
        return int(self.seconds(self.spec) * 2**20)

    def end(self) -> None:
        if self.is_running:
            self.is_running = False
            self.num_running.append(-1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tune") / "model"
    return str(write_tiny_checkpoint(folder, "LlamaForCausalLM", num_hidden_layers=1))


@pytest.fixture
def searched(model: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Search]:
    """Return a function that searches with engines of the given speed and accuracy."""

    def run(seconds: Judge, loss: Judge = lambda _: 0.0, given: Any = (), **flags: Any) -> Search:
        running: list[int] = []

        def start(spec: EngineSpec) -> FakeTrial:
            if seconds(spec) < 0:
                raise TrialError("it does not load")
            running.append(1)
            return FakeTrial(spec=spec, seconds=seconds, loss=loss, num_running=running)

        monkeypatch.setattr(search.Trial, "start", start)
        config = checked(Config.from_fields({"model": model, **dict(given)}))
        outcomes: list[Outcome] = []
        lengths = {"prompt_tokens": 16, "answer_tokens": 4}
        found = Search(config=config, flags=TuneFlags(**lengths | flags), say=outcomes.append)
        found.run()
        assert sum(running) == 0, "every engine is ended"
        assert outcomes == found.outcomes
        return found

    return run


def quantization(spec: EngineSpec) -> str:
    return spec.run.quantization.name


def test_the_fastest_setting_within_the_bound_is_adopted(searched: Any) -> None:
    speeds, losses = (
        {"none": 4.0, "int8": 2.0, "int4": 1.0},
        {"none": 0, "int8": 0.001, "int4": 0.02},
    )
    found = searched(lambda s: speeds[quantization(s)], lambda s: losses[quantization(s)])
    assert found.best["quantization"] == "int8"
    by_value = {one.fields.get("quantization"): one for one in found.outcomes}
    assert by_value["int8"].ratio == pytest.approx(0.5)
    assert by_value["int4"].loss == pytest.approx(0.02)
    assert by_value["int4"].ratio is None, "what is too inaccurate is not timed"
    assert found.value == pytest.approx(2.0)
    wider = searched(
        lambda s: speeds[quantization(s)], lambda s: losses[quantization(s)], max_loss=3.0
    )
    assert wider.best["quantization"] == "int4"


def test_noise_is_no_gain(searched: Any) -> None:
    speeds = {"none": 1.0, "int8": 0.98, "int4": 1.2}
    assert searched(lambda s: speeds[quantization(s)]).best == {}


def test_later_settings_are_tried_with_the_best_earlier_ones(searched: Any) -> None:
    seen: list[tuple[str, bool]] = []

    def seconds(spec: EngineSpec) -> float:
        seen.append((quantization(spec), spec.drafting is not None))
        return (0.5 if quantization(spec) == "int8" else 1.0) * (0.5 if spec.drafting else 1.0)

    found = searched(seconds)
    assert found.best["quantization"] == "int8"
    assert found.best["speculative_config"]["method"] == "ngram"
    assert ("none", True) not in seen


def test_what_the_user_gave_stays(searched: Any) -> None:
    found = searched(lambda s: 1.0, given={"quantization": "int8", "num_threads": 1})
    tried = {name for one in found.outcomes for name in one.fields}
    assert tried == {"speculative_config", "kv_cache_dtype"}


def test_a_setting_that_does_not_load_ends_nothing(searched: Any) -> None:
    found = searched(lambda s: {"none": 2.0, "int8": -1.0, "int4": 1.0}[quantization(s)])
    assert "it does not load" in found.outcomes[0].refusal
    assert found.best["quantization"] == "int4"


def test_a_refused_value_says_why(searched: Any) -> None:
    found = searched(lambda s: 1.0, try_drafter=("mtp",))
    (refused,) = [one for one in found.outcomes if one.fields.get("speculative_config")]
    assert "layers for further tokens" in refused.refusal


def test_after_the_time_nothing_is_tried(searched: Any, monkeypatch: Any) -> None:
    now = iter(range(0, 10**6, 50))
    monkeypatch.setattr(search.time, "monotonic", lambda: next(now))
    found = searched(lambda s: 1.0, minutes=2.0)
    assert len(found.outcomes) == 2
    assert {"kv_cache_dtype": "int8"} in found.untried


def test_for_memory_one_engine_runs_at_a_time(searched: Any) -> None:
    sizes = {"none": 400.0, "int8": 200.0, "int4": 110.0}
    found = searched(lambda s: sizes[quantization(s)], goal="memory", context=100)
    assert found.best["quantization"] == "int4"
    settings = report.settings_of(found)
    assert settings["max-model-len"] == 100
    assert settings["kv-cache-memory-bytes"] > 0


def test_the_yaml_file_is_one_that_serve_reads(searched: Any, tmp_path: Path) -> None:
    given = {"seed": 3, "api_key": ("secret",)}
    found = searched(lambda s: 1.0 if quantization(s) == "none" else 0.5, given=given)
    text = report.yaml_text(found, "a processor")
    assert "secret" not in text
    file = tmp_path / "tuned.yaml"
    file.write_text(text)
    fields = read_fields(str(file))
    assert fields["quantization"] == "int8"
    assert fields["seed"] == 3
    checked(Config.from_fields(fields))


def test_perplexity_rise_of_known_probabilities() -> None:
    plain, other = [math.log(0.5)] * 4, [math.log(0.5), math.log(0.25)] * 2
    perplexities = [math.exp(-sum(x) / len(x)) for x in (plain, other)]
    assert perplexity_rise(plain, other) == pytest.approx(perplexities[1] / perplexities[0] - 1)


@pytest.mark.parametrize("goal", ["latency", "throughput", "memory"])
def test_outcomes_are_lines_with_units(goal: str) -> None:
    outcome = Outcome(fields={"num_threads": 2}, ratio=0.5, loss=0.001, value=0.25, is_adopted=True)
    line = report.outcome_line(TuneFlags(goal=goal), outcome)
    assert "--num-threads 2" in line
    assert "2.00 times as good" in line
    assert "+0.10 %" in line


def test_requests_longer_than_the_model_takes(searched: Any) -> None:
    with pytest.raises(ConfigError, match="128 tokens"):
        searched(lambda s: 1.0, prompt_tokens=200)
