"""LLM.chat renders as a server does, and chooses its renderer once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.llm.llm import LLM
from dovetail_testing.fakes.engine import fake_spec


def asked(llm: LLM, *texts: str, **options: Any) -> list[str | None]:
    """Return the prompts of conversations of one message each."""
    talks = [[{"role": "user", "content": text}] for text in texts]
    return [result.prompt for result in llm.chat(talks, use_tqdm=False, **options)]


def test_chat_renders_with_the_template(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with LLM.from_spec(fake_spec(default_sampling={"max_tokens": 3})) as llm:
        (result,) = llm.chat([{"role": "user", "content": "hi"}], use_tqdm=False)
        assert result.prompt == "user: hi\nassistant: "
        assert len(result.outputs[0].token_ids) == 3
        assert asked(llm, "a", "b") == ["user: a\nassistant: ", "user: b\nassistant: "]
    assert caplog.text.count("renderer auto:") == 1


def test_a_call_brings_its_template() -> None:
    with LLM.from_spec(fake_spec(default_sampling={"max_tokens": 3})) as llm:
        assert asked(llm, "a", chat_template="<{{ messages[0].content }}>") == ["<a>"]
        assert asked(llm, "a") == ["user: a\nassistant: "]
        with pytest.raises(RequestError, match="never"):
            asked(llm, "a", chat_template="{{ raise_exception('never') }}")
