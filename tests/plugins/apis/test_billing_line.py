"""The billing line of Claude Code: neither shown nor hashed, so that prompts share a prefix."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dovetail_plugins.apis.messages.billing import without_billing_line
from dovetail_plugins.apis.messages.protocol import Block
from support.serving import USER, app_for, client_of, send
from support.whole_app import served_app

RULES = "You are a careful assistant. " * 40
SERVED = ("--disable-frontend-multiprocessing", "--enable-prompt-tokens-details")
KEPT = ("--plugin-options", '{"api": {"messages": {"keep_billing_line": true}}}')
IGNORED = "x-dovetail-ignored-fields"


def line_of(number: int) -> str:
    facts = f"cc_version=2.1.{number}; cc_entrypoint=cli; cch={number:05x};"
    return f"x-anthropic-billing-header: {facts}"


def cached_counts(*flags: str) -> list[tuple[int, int]]:
    """Return (cached, prompt tokens) of three turns that differ in their billing line alone."""

    async def main() -> list[tuple[int, int]]:
        counts = []
        async with served_app(*SERVED, *flags) as app, client_of(app) as http:
            http.timeout = 60
            for number in range(3):
                system = [{"type": "text", "text": text} for text in (line_of(number), RULES)]
                asked = {"system": system, "messages": USER, "max_tokens": 1}
                usage = (await http.post("/v1/messages", json=asked)).json()["usage"]
                read = usage["cache_read_input_tokens"]
                counts.append((read, usage["input_tokens"] + read))
        return counts

    return asyncio.run(main())


def test_prompts_with_other_billing_lines_share_their_prefix() -> None:
    _, *later = cached_counts()
    assert all(read >= 0.9 * prompt for read, prompt in later), later


def test_a_billing_line_that_is_kept_breaks_the_prefix() -> None:
    _, *later = cached_counts(*KEPT)
    assert all(read < 0.2 * prompt for read, prompt in later), later


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens?beta=true"])
@pytest.mark.parametrize(
    "system",
    [
        f"{line_of(1)}\n\nrules",
        [{"type": "text", "text": line_of(1)}, {"type": "text", "text": "rules"}],
        [{"type": "text", "text": f"{line_of(1)}\nrules"}],
    ],
)
def test_it_is_left_out_of_the_prompt_and_named(path: str, system: Any) -> None:
    app, engine = app_for()
    limit = {} if "count" in path else {"max_tokens": 9}
    plain, given = (
        send(app, "POST", path, {"messages": USER, "system": text, **limit})
        for text in ("rules", system)
    )
    assert given.status_code == 200
    assert given.headers[IGNORED] == "system.x-anthropic-billing-header"
    assert IGNORED not in plain.headers
    if limit:
        assert engine.asked[0][2]["prompt"] == engine.asked[1][2]["prompt"]
    else:
        assert given.json() == plain.json()


def test_a_system_prompt_of_the_line_alone_is_none() -> None:
    app, engine = app_for()
    for system in (None, line_of(3), [{"type": "text", "text": line_of(3)}]):
        fields = {} if system is None else {"system": system}
        send(app, "POST", "/v1/messages", {"messages": USER, "max_tokens": 9, **fields})
    assert len({tuple(asked[2]["prompt"]) for asked in engine.asked}) == 1


@pytest.mark.parametrize(
    "text", ["rules\nx-anthropic-billing-header: a", " x-anthropic-billing-header: a", "x", ""]
)
def test_other_texts_are_left_alone(text: str) -> None:
    assert without_billing_line(text) == text
    blocks = [Block(type="text", text=text)]
    assert without_billing_line(blocks) == blocks
