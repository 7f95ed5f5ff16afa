"""Renderer: what the messages say is in the prompt, the same each time, in any thread."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.renderer import TEMPLATES, Renderer, RendererFacts, RendererInput
from dovetail_testing.contract import default_options, requires, without
from dovetail_testing.fakes.async_engine import FakeFacts

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORMS = ("string", "openai")
SYSTEM = {"role": "system", "content": "Answer in one word."}
QUESTION = {"role": "user", "content": "What grows on an oak?"}
ANSWER = {"role": "assistant", "content": "Acorns."}
NEXT = {"role": "user", "content": "And on a beech?"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": {"tree": "beech", "most": 3}},
}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "beechnuts", "tool_call_id": "call_1"}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
TALK = (SYSTEM, QUESTION, ANSWER, NEXT)
WITH_CALLS = (*TALK, CALLING, RESULT)
STRANGE: dict[str, Sequence[dict[str, Any]]] = {
    "empty": ({"role": "user", "content": ""},),
    "result": (QUESTION, RESULT),
    "answer_first": (ANSWER, QUESTION),
    "two_questions": (QUESTION, NEXT),
    "unknown_role": ({"role": "narrator", "content": "Once"},),
}


@pytest.fixture
def renderer(plugin: Any, tmp_path: Any) -> Renderer:
    """Return the renderer with default options, for a model that has no chat template."""
    template = TEMPLATE if TEMPLATES in plugin.capabilities else None
    facts = RendererFacts(
        path=str(tmp_path),
        model_type="",
        tokenizer=FakeFacts(chat_template=None),
        template=template,
    )
    found: Renderer = plugin(default_options(plugin), facts)
    return found


def talk(
    renderer: Renderer, messages: Sequence[dict[str, Any]] = TALK, **fields: Any
) -> RendererInput:
    """Return a conversation in the form that the renderer reads."""
    turns = copy.deepcopy(list(messages))
    if renderer.reads(has_tools=bool(fields.get("tools"))).content == "openai":
        turns = [turn | {"content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
    return RendererInput(messages=turns, **fields)


def _takes_tools(renderer: Renderer) -> bool:
    try:
        renderer.reads(has_tools=True)
    except RequestError:
        return False
    return True


class TestRenderer:
    """Clauses of renderers."""

    kind = "renderer"

    def test_says_what_it_reads(self, renderer: Renderer) -> None:
        """It reads content as "string" or as "openai"; tools it may refuse."""
        assert renderer.reads(has_tools=False).content in FORMS
        with contextlib.suppress(RequestError):
            assert renderer.reads(has_tools=True).content in FORMS

    def test_every_turn_is_there(self, renderer: Renderer) -> None:
        """The text of each message is in the prompt, in the order of the messages."""
        text, at = renderer.render(talk(renderer)), 0
        for turn in TALK:
            at = text.index(turn["content"], at) + len(turn["content"])

    def test_calls_and_results_are_there(self, renderer: Renderer) -> None:
        """A conversation with tools, a call and its result is rendered, or refused as a whole."""
        try:
            text = renderer.render(talk(renderer, WITH_CALLS, tools=[copy.deepcopy(TOOL)]))
        except RequestError as error:
            assert error.what
        else:
            assert RESULT["content"] in text and "look_up" in text

    def test_the_opening_comes_last(self, renderer: Renderer) -> None:
        """Asked for the opening of the model's turn, it adds something to the end, or nothing."""
        text = renderer.render(talk(renderer))
        assert text.startswith(renderer.render(talk(renderer, adds_generation_prompt=False)))

    def test_leaves_the_conversation_alone(self, renderer: Renderer) -> None:
        """Rendering does not change what it is given."""
        tools = [copy.deepcopy(TOOL)] if _takes_tools(renderer) else []
        given = talk(renderer, WITH_CALLS if tools else TALK, tools=tools)
        before = copy.deepcopy(given)
        with contextlib.suppress(RequestError):
            renderer.render(given)
        assert given == before

    def test_conversations_do_not_mix(self, renderer: Renderer) -> None:
        """The same conversation has the same text, whatever other threads render."""
        lengths = [2, 4] * 8
        wanted = {count: renderer.render(talk(renderer, TALK[:count])) for count in (2, 4)}
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda count: renderer.render(talk(renderer, TALK[:count])), lengths)
            assert list(found) == [wanted[count] for count in lengths]

    def test_an_answer_can_be_continued(self, renderer: Renderer) -> None:
        """The text of a final answer that is to be continued is in the prompt as it is."""
        given = talk(renderer, TALK[:3], adds_generation_prompt=False, continues_final_message=True)
        assert ANSWER["content"] in renderer.render(given)

    @pytest.mark.parametrize("name", STRANGE)
    def test_odd_conversations_are_client_errors(self, renderer: Renderer, name: str) -> None:
        """A conversation that is none raises RequestError, or is rendered: nothing else."""
        try:
            text = renderer.render(talk(renderer, STRANGE[name]))
        except RequestError as error:
            assert error.what
        else:
            assert isinstance(text, str)

    @requires(TEMPLATES)
    def test_renders_by_the_template_of_a_request(self, renderer: Renderer) -> None:
        """A request's template takes the place of the model's."""
        other = renderer.with_template("{{ messages | length }} turns")
        assert other.render(talk(other)) == "4 turns"

    @without(TEMPLATES)
    def test_refuses_the_template_of_a_request(self, renderer: Renderer) -> None:
        """A request's template is refused, not ignored."""
        with pytest.raises(RequestError):
            renderer.with_template(TEMPLATE)
