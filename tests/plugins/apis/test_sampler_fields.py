"""Fields of samplers in every dialect: they reach the engine, neutral ones do nothing, wrong ones
are refused by the name that was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI

from dovetail import registry
from dovetail.config.checkpoint.generation import default_sampling
from dovetail.errors import ConfigError
from dovetail_testing.fakes.async_engine import FakeAsyncEngine
from support.serving import USER, app_for, send, with_samplers

Fields = dict[str, Any]
Served = tuple[FastAPI, FakeAsyncEngine]
DIALECTS: dict[str, Callable[[Fields], Fields]] = {
    "/v1/chat/completions": lambda f: {"messages": USER, **f},
    "/v1/completions": lambda f: {"prompt": "hi", **f},
    "/v1/responses": lambda f: {"input": "hi", **f},
    "/v1/messages": lambda f: {"messages": USER, "max_tokens": 9, **f},
    "/completion": lambda f: {"prompt": "hi", **f},
    "/api/chat": lambda f: {"model": "fake", "messages": USER, "stream": False, "options": f},
    "/api/generate": lambda f: {"model": "fake", "prompt": "hi", "stream": False, "options": f},
}
FIELDS: tuple[tuple[Fields, Any], ...] = (
    ({"dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 64,
      "dry_sequence_breakers": ["\n", "."]}, "strong"),
    ({"dry_multiplier": 0.8, "dry_range": 100, "dry_sequence_breakers": '["a"]'}, 101),
    ({"xtc_probability": 0.5, "xtc_threshold": 0.2}, 1.5),
    ({"typical_p": 0.5}, -0.1),
    ({"typical": 0.5}, 2),
    ({"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2}, 3),
    ({"mirostat_mode": 1}, 1.5),
    ({"tfs_z": 0.9}, 1.1),
    ({"tfs": 0.9}, "x"),
    ({"top_a": 0.2}, -1),
    ({"top_n_sigma": 1.5}, "x"),
    ({"nsigma": 1.5}, True),
    ({"dynatemp_range": 0.5, "dynatemp_exponent": 2}, -1),
    ({"smoothing_factor": 0.3, "smoothing_curve": 2}, -1),
    ({"epsilon_cutoff": 3}, 10_000),
    ({"eta_cutoff": 3}, [1]),
    ({"no_repeat_ngram_size": 3}, 2.5),
    ({"repeat_last_n": 64}, -2),
    ({"repetition_penalty_range": 64}, "x"),
    ({"encoder_repetition_penalty": 1.2}, 0),
    ({"adaptive_target": 0.5, "adaptive_decay": 0.8}, 2),
    ({"min_keep": 3}, -1),
    ({"samplers": ["top_k", "temperature"]}, ["mirror"]),
    ({"sampler_priority": ["top_k", "temperature"]}, ["typ_p"]),
    ({"sampler_order": [6, 0, 1, 3, 4, 2, 5]}, [9]),
    ({"temperature_last": True}, "late"),
)  # fmt: skip
"""Fields that go together -> a wrong value of the first."""
ASKED = {"repetition_penalty": 1.2, "temperature": 0.6, "top_k": 20, "min_p": 0.1}


def asking(path: str) -> Fields:
    return {**ASKED, "repeat_penalty": 1.2} if path.startswith("/api/") else ASKED


@pytest.fixture(scope="module")
def served() -> Served:
    return app_for(engine=with_samplers())


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize(("fields", "wrong"), FIELDS, ids=lambda one: str(one)[:24])
def test_fields_of_samplers(served: Served, path: str, fields: Fields, wrong: Any) -> None:
    app, engine = served
    engine.asked.clear()
    answer = send(app, "POST", path, DIALECTS[path](asking(path) | fields))
    assert answer.status_code == 200, answer.text
    ignored = answer.headers.get("x-dovetail-ignored-fields", "")
    assert not any(name in ignored for name in fields), ignored
    params = engine.asked[-1][1]
    extra = params.extra_args
    own = {"samplers", "sampler_priority", "sampler_order", "temperature_last", "min_keep"}
    assert all(extra.get(name) == value for name, value in fields.items() if name not in own)
    assert own.isdisjoint(fields) or {"steps", "own"} <= extra["sampler_steps"].keys()
    first = next(iter(fields))
    faulty = send(app, "POST", path, DIALECTS[path](asking(path) | fields | {first: wrong}))
    assert faulty.status_code == 400, faulty.text
    assert f"{first}: " in faulty.text
    assert len(engine.asked) == 1


NEUTRAL: Fields = {
    "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":"], "xtc_probability": 0, "xtc_threshold": 0.1,
    "typical_p": 1,
    "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "tfs_z": 1, "top_a": 0, "nsigma": 0,
    "dynatemp_range": 0, "dynatemp_exponent": 1, "smoothing_factor": 0, "smoothing_curve": 1,
    "epsilon_cutoff": 0, "eta_cutoff": 0, "no_repeat_ngram_size": 0, "repetition_penalty_range": 0,
    "repeat_last_n": -1, "encoder_repetition_penalty": 1, "adaptive_target": -1, "min_keep": 0,
    "temperature_last": False, "samplers": None, "sampler_order": [],
}  # fmt: skip


@pytest.mark.parametrize("path", DIALECTS)
def test_neutral_values_do_nothing(served: Served, path: str) -> None:
    app, engine = served
    engine.asked.clear()
    sent = [asking(path), asking(path) | NEUTRAL]
    answers = [send(app, "POST", path, DIALECTS[path](fields)) for fields in sent]
    assert [answer.status_code for answer in answers] == [200, 200], answers[1].text
    plain, neutral = (asked[1] for asked in engine.asked)
    for name in plain.__struct_fields__:
        assert name == "extra_args" or getattr(plain, name) == getattr(neutral, name)
    for one in engine.spec.run.logits_processors:
        cls = registry.admin.load_selection(one)
        assert cls.wants(neutral) == cls.wants(plain)


def test_defaults_of_the_server_may_have_samplers() -> None:
    laid = default_sampling(None, "", {"top_k": 5, "typical_p": 0.5, "mirostat_tau": 3})
    assert laid == {"top_k": 5, "extra_args": {"typical_p": 0.5, "mirostat_tau": 3}}
    with pytest.raises(ConfigError, match="typical_p must be a number"):
        default_sampling(None, "", {"typical_p": 7})
    with pytest.raises(ConfigError, match="warmth cannot have a default"):
        default_sampling(None, "", {"warmth": 7})


def test_a_request_overrides_defaults_one_by_one() -> None:
    engine = with_samplers()
    laid = {"extra_args": {"typical_p": 0.5, "top_a": 0.3}}
    engine.spec = msgspec.structs.replace(engine.spec, default_sampling=laid)
    app, _ = app_for(engine=engine)
    body = {"prompt": "hi", "typical_p": 1.0}
    assert send(app, "POST", "/v1/completions", body).status_code == 200
    assert engine.asked[-1][1].extra_args == {"typical_p": 1.0, "top_a": 0.3}


def test_a_default_that_no_sampler_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_beams cannot have a default"):
        default_sampling("model", "nowhere", {"num_beams": 2})
