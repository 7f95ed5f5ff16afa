"""cache_control as a hint: it pins the prompt, and usage says what was read and what was added."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dovetail_testing.fakes.async_engine import FakeAsyncEngine, fake_spec
from support.serving import USER, app_for, client_of, send
from support.whole_app import served_app

IGNORED = "x-dovetail-ignored-fields"
FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
RULES = "You are a careful assistant. " * 20


def text(words: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": words} | ({"cache_control": mark} if mark else {})


def ask(app: Any, turns: Any, **fields: Any) -> Any:
    return send(app, "POST", "/v1/messages", {"messages": turns, "max_tokens": 9, **fields})


def user(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [text("5", HOUR)]}
SAID = {"role": "assistant", "content": "a"}
NOTE = {"role": "system", "content": "two agents"}


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"turns": user(text("hi", FIVE))}, 300),
        ({"turns": user(text("hi", HOUR), text("there", FIVE))}, 300),
        ({"turns": user(RESULT)}, 3600),
        ({"turns": [*user(text("hi", FIVE)), NOTE]}, 300),
        ({"turns": USER, "cache_control": HOUR}, 3600),
        ({"turns": user(text("hi", FIVE)), "cache_pin_s": 900}, 900),
        ({"turns": USER, "system": [text("rules", FIVE)], "cache_pin_s": 9}, 300),
        ({"turns": user(text("hi", FIVE)), "system": [text("rules", HOUR)]}, 300),
    ],
)
def test_a_mark_in_the_last_turn_pins_the_prompt(fields: Any, seconds: float) -> None:
    app, engine = app_for()
    answer = ask(app, fields.pop("turns"), **fields)
    assert (answer.status_code, IGNORED in answer.headers) == (200, False)
    assert engine.asked[-1][2]["cache_pin_s"] == seconds


@pytest.mark.parametrize(
    "fields",
    [
        {"turns": user(text("hi", {"type": "ephemeral", "ttl": "1y"}))},
        {"turns": user(text("hi", {"type": "for ever"}))},
    ],
)
def test_other_marks_are_named(fields: Any) -> None:
    app, engine = app_for()
    answer = ask(app, fields.pop("turns"), **fields)
    assert (answer.status_code, answer.headers[IGNORED]) == (200, "cache_control")
    assert "cache_pin_s" not in engine.asked[-1][2]


@pytest.mark.parametrize(
    ("fields", "seconds", "marked"),
    [
        ({"turns": USER, "system": [text("rules", HOUR)]}, 3600, "system\nrules<|im_end|>"),
        ({"turns": user(text("hi", FIVE), text("there"))}, 300, "user\nhi"),
        (
            {"turns": [*user(text("hi", FIVE)), SAID, *user(text("and?"))], "system": "rules"},
            300,
            "user\nhi<|im_end|>",
        ),
        (
            {"turns": [*USER, {**SAID, "content": [text("a", HOUR)]}, *user(text("and?"))]},
            3600,
            "assistant\na",
        ),
    ],
)
def test_an_earlier_mark_pins_the_prompt_up_to_it(fields: Any, seconds: float, marked: str) -> None:
    app, engine = app_for()
    answer = ask(app, fields.pop("turns"), **fields)
    assert (answer.status_code, IGNORED in answer.headers) == (200, False)
    how = engine.asked[-1][2]
    assert how["cache_pin_s"] == seconds
    pinned = engine.tokenizer.decode(how["prompt"][: how["cache_pin_tokens"]])
    assert marked in pinned
    assert pinned.index(marked) + len(marked) + len("\n<|im_start|>assistant\n") >= len(pinned)


def test_a_mark_that_cannot_be_rendered_alone_is_named() -> None:
    template = "{{ raise_exception('alone') if messages|length < 3 }}{{ messages|length }}"
    app, engine = app_for(chat_template=template)
    turns = [*user(text("hi", FIVE)), SAID, *user(text("and?"))]
    answer = ask(app, turns)
    assert (answer.status_code, answer.headers[IGNORED]) == (200, "cache_control")
    assert "cache_pin_s" not in engine.asked[-1][2]


def test_without_a_prefix_cache_a_mark_is_named() -> None:
    spec = fake_spec()
    cache = msgspec.structs.replace(spec.cache, uses_prefix_cache=False)
    engine = FakeAsyncEngine(spec=msgspec.structs.replace(spec, cache=cache))
    app, _ = app_for(engine=engine)
    answer = ask(app, user(text("hi", FIVE)))
    assert (answer.status_code, answer.headers[IGNORED]) == (200, "cache_control")


@pytest.mark.parametrize("is_earlier", [False, True])
def test_usage_says_what_was_added_and_what_was_read(is_earlier: bool) -> None:
    async def main() -> list[dict[str, Any]]:
        flags = ("--disable-frontend-multiprocessing", "--enable-prompt-tokens-details")
        async with served_app(*flags) as app, client_of(app) as http:
            http.timeout = 60
            asked: dict[str, Any] = {"max_tokens": 1}
            asked["system"] = [text(RULES, HOUR)] if is_earlier else RULES
            turns = [USER] * 3 if is_earlier else [user(text("hi", HOUR))] * 3
            answers = [
                await http.post("/v1/messages", json={"messages": one, **asked}) for one in turns
            ]
            return [answer.json()["usage"] for answer in answers]

    first, second, third = asyncio.run(main())
    added = first["cache_creation_input_tokens"]
    assert added > 0 == first["cache_read_input_tokens"]
    by_time = {"ephemeral_1h_input_tokens": added, "ephemeral_5m_input_tokens": 0}
    assert first["cache_creation"] == by_time
    for later in (second, third):
        assert later["cache_creation_input_tokens"] == 0
        assert later["cache_read_input_tokens"] >= added
    counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert len({sum(one[name] for name in counts) for one in (first, second, third)}) == 1


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_marked_prefix_stays_where_others_would_displace_it(is_marked: bool) -> None:
    flags = ("--num-gpu-blocks-override", "48", "--max-model-len", "512")

    async def main() -> int:
        served = served_app(
            "--disable-frontend-multiprocessing", "--enable-prompt-tokens-details", *flags
        )
        async with served as app, client_of(app) as http:
            http.timeout = 60

            async def read(system: Any) -> int:
                body = {"system": system, "messages": USER, "max_tokens": 1}
                usage = (await http.post("/v1/messages", json=body)).json()["usage"]
                return int(usage["cache_read_input_tokens"])

            await read([text(RULES, HOUR if is_marked else None)])
            for number in range(8):
                await read(f"Rules number {number} of the house. " * 20)
            return await read(RULES)

    num_read = asyncio.run(main())
    assert num_read > 100 if is_marked else num_read == 0
