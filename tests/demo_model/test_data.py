"""Quick tests of the demo model's text, template and checkpoint; nothing is trained here.

The checkpoint tests are skipped where transformers is missing. How well the model answers is
measured by `examples/demo_model/evaluate.py`, not here.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "core" / "dovetail" / "demo_model"
LARGEST_WEIGHTS_BYTES = 5_000_000
sys.path.insert(0, str(ROOT / "examples" / "demo_model"))

import chats  # noqa: E402
import data  # noqa: E402
import held_out  # noqa: E402
import rendering  # noqa: E402
import tool_chats  # noqa: E402
from relations import FRAMES, HELD_FRAMES, RELATIONS, fill, parts  # noqa: E402
from talk import SYSTEMS, SYSTEMS_HELD, TALK, UNKNOWN_ASKS, UNKNOWN_HELD  # noqa: E402
from tool_kinds import KINDS  # noqa: E402

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
        },
    },
}
HELLO = [{"role": "user", "content": "Hello"}]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
        }
    ],
}


def bare(text: str) -> str:
    """A template without case and end marks, as noise may change it."""
    return " ".join(text.lower().rstrip("?.! ").split())


def assert_apart(train: list[str], held: list[str]) -> None:
    """No held-out template is a training template, whatever its case and end marks."""
    assert held and not {bare(t) for t in train} & {bare(t) for t in held}


def test_samples_are_deterministic() -> None:
    first = [json.dumps(sample) for sample in data.samples(5, 200)]
    assert first == [json.dumps(sample) for sample in data.samples(5, 200)]
    assert first != [json.dumps(sample) for sample in data.samples(6, 200)]


def test_cases_are_deterministic() -> None:
    first, second = held_out.all_cases(), held_out.all_cases()
    assert [case.messages for case in first] == [case.messages for case in second]


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name)
def test_held_fact_templates_are_apart(relation: Any) -> None:
    assert_apart(relation.train_templates(), relation.held_templates())


def test_other_held_templates_are_apart() -> None:
    assert_apart(parts(FRAMES), parts(HELD_FRAMES))
    assert_apart(parts(chats.JSON_FRAMES), parts(chats.JSON_HELD))
    assert_apart(parts(chats.PERSON_FRAMES), parts(chats.PERSON_HELD))
    assert_apart(parts(chats.FOLLOW_UPS), parts(chats.FOLLOW_UPS_HELD))
    assert_apart(parts(tool_chats.RANDOM_FRAMES), parts(tool_chats.RANDOM_HELD))
    assert_apart(parts(tool_chats.TASK_FRAMES), parts(tool_chats.TASK_HELD))
    assert_apart(parts(SYSTEMS), parts(SYSTEMS_HELD))
    assert_apart(parts(UNKNOWN_ASKS), parts(UNKNOWN_HELD))
    for asks, held, _ in chats.OPERATIONS.values():
        assert_apart(parts(asks), parts(held))
    for kind in KINDS.values():
        assert_apart(parts(kind.asks), parts(kind.held))
    every_ask = [ask for _, asks, _ in TALK for ask in parts(asks)]
    assert_apart(every_ask, [ask for _, _, held in TALK for ask in parts(held)])


def test_held_values_are_apart() -> None:
    assert not set(chats.CITIES) & set(chats.CITIES_HELD)
    assert not set(chats.NAMES) & set(chats.NAMES_HELD)


def test_no_held_question_in_training_text() -> None:
    asked = {
        bare(fill(template, subject))
        for relation in RELATIONS
        for template in relation.held_templates()
        for subject, _ in relation.pairs
    }
    for sample in data.samples(9, 3000):
        for message in sample["messages"]:
            if message["role"] == "user":
                assert bare(message["content"]) not in asked


def test_facts_answer_with_their_value() -> None:
    for relation in RELATIONS:
        for subject, value in relation.pairs:
            assert held_out.has(value)(relation.say(subject, value)), (relation.name, subject)


def test_template_thinking_switch() -> None:
    off = rendering.render(HELLO, add_generation_prompt=True)
    on = rendering.render(HELLO, add_generation_prompt=True, enable_thinking=True)
    assert on == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert off == on + "<think>\n\n</think>\n\n"


def test_template_tools_calls_and_results() -> None:
    chat = [
        *HELLO,
        CALL,
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "warm"}]},
    ]
    text = rendering.render(chat, tools=[WEATHER], add_generation_prompt=True)
    assert "get_weather(city: string, unit: celsius|fahrenheit) Get the weather" in text
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Oslo"}}\n</tool_call><|im_end|>\n'
    ) in text
    assert (
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n"
        "</tool_response><|im_end|>\n"
    ) in text


def test_template_arguments_as_object() -> None:
    call = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}],
    }
    assert rendering.render([*HELLO, call]) == rendering.render([*HELLO, CALL])


def test_template_content_parts_and_system() -> None:
    parts_of = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert rendering.render([{"role": "user", "content": parts_of}]) == rendering.render(HELLO)
    text = rendering.render([{"role": "system", "content": "Be brief."}, *HELLO])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")


def test_template_thoughts_only_after_last_question() -> None:
    answer = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi", "tool_calls": []}
    assert "hm" in rendering.render([*HELLO, answer])
    assert "hm" not in rendering.render([*HELLO, answer, *HELLO])


@pytest.fixture(scope="module")
def checkpoint() -> tuple[Any, Any]:
    """Tokenizer and model of the bundled checkpoint, in float32."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    return tokenizer, model.eval()


def reply(checkpoint: tuple[Any, Any], question: str, **options: Any) -> str:
    """The greedy answer to one question."""
    tokenizer, model = checkpoint
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
        **options,
    )
    output = model.generate(**inputs, do_sample=False, max_new_tokens=64)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_checkpoint_size_and_marks(checkpoint: tuple[Any, Any]) -> None:
    tokenizer, model = checkpoint
    assert (CHECKPOINT / "model.safetensors").stat().st_size <= LARGEST_WEIGHTS_BYTES
    assert model.config.model_type == "qwen3" and model.config.max_position_embeddings == 2048
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in model.generation_config.eos_token_id
    text = "<|im_start|><think>x</think><tool_call>y</tool_call><|im_end|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == 8
    assert tokenizer.decode(ids, skip_special_tokens=True) == (
        "<think>x</think><tool_call>y</tool_call>"
    )


def test_template_copy_is_the_same() -> None:
    copied = (CHECKPOINT / "chat_template.jinja").read_text(encoding="utf-8")
    assert copied == rendering.TEMPLATE_FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "question, expected",
    [
        ("What is the capital of France?", "The capital of France is Paris."),
        ("what is the capital of japan", "The capital of Japan is Tokyo."),
        ("What is the chemical symbol of gold?", "The chemical symbol of gold is Au."),
        ("Who wrote Hamlet?", "Hamlet was written by William Shakespeare."),
        ("Who are you?", "I am the demo model of dovetail"),
    ],
)
def test_checkpoint_answers(checkpoint: tuple[Any, Any], question: str, expected: str) -> None:
    assert reply(checkpoint, question).startswith(expected)


def test_checkpoint_calls_a_tool(checkpoint: tuple[Any, Any]) -> None:
    text = reply(checkpoint, "What is the weather in Marseille?", tools=[WEATHER])
    assert held_out.same_calls([("get_weather", {"city": "Marseille"})])(text)


def test_checkpoint_thinks_when_asked(checkpoint: tuple[Any, Any]) -> None:
    text = reply(checkpoint, "What is the capital of Italy?", enable_thinking=True)
    assert text.startswith("<think>\n") and text.endswith("The capital of Italy is Rome.")
