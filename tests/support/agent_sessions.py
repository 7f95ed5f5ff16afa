"""Sessions of coding agents in short: ten turns with calls of tools, as each program sends them.

The words are made up; what differs between the programs is what they re-order and re-write from
turn to turn. The model's answers are a script: the last digit of a prompt is its turn's number.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.interfaces.stats import RequestStats
from dovetail_testing.models import write_replay_checkpoint

NUM_TURNS = 10
DIGIT_0 = 15
"""The first digit's id in the demo model's vocabulary; the others follow."""
END = "<|im_end|>"
WORDS = [
    "read",
    "the",
    "file",
    "then",
    "run",
    "its",
    "tests",
    "and",
    "say",
    "what",
    "fails",
    "before",
    "you",
    "change",
    "a",
    "line",
]
NAMES = ("read_file", "write_file", "run_command", "search", "list_folder", "apply_patch")

Json = dict[str, Any]


def sentence(rng: random.Random, size: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(size))


def tools(rng: random.Random) -> list[Json]:
    """Return tools as functions of OpenAI's chat."""
    return [
        {
            "name": name,
            "description": sentence(rng, 40),
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": sentence(rng, 8)},
                    "text": {"type": "string", "description": sentence(rng, 8)},
                    "line": {"type": "integer"},
                },
                "required": ["path"],
            },
        }
        for name in NAMES
    ]


def arguments(turn: int) -> Json:
    """Return the arguments of a turn's call, not in the order of their names."""
    letter = "abcdefghij"[turn]
    return {"text": f'if {letter} < "é": return', "path": f"src/{letter}.py", "line": None}


def hermes(text: str, name: str, written: str) -> str:
    return f'{text}\n<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'


def answers(spell: Callable[[Json], str]) -> list[str]:
    """Return the model's answers, each with a call whose arguments are spelled so."""
    rng = random.Random(1)
    return [
        hermes(sentence(rng, 6), NAMES[turn % len(NAMES)], spell(arguments(turn)))
        for turn in range(NUM_TURNS)
    ]


def write_model(folder: Path, texts: Sequence[str]) -> Path:
    """Write a model that answers the turn of the last digit in its prompt by these texts."""
    tokenizer = Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    scripts = [
        {"tokens": [*tokenizer.encode(text, add_special_tokens=False).ids, end]} for text in texts
    ]
    return write_replay_checkpoint(
        folder,
        tokenizer_from=DEMO_PATH,
        scripts=scripts,
        cue_base=DIGIT_0,
        max_position_tokens=16384,
    )


@dataclass(frozen=True, kw_only=True)
class Habits:
    """What a program does with a conversation before it sends it again: the order of its tools, of
    the names in their schemas, and how it writes the arguments of earlier calls."""

    shuffles_tools: bool = False
    shuffles_names: bool = False
    rewrites: Callable[[str], str] = str
    clock: bool = False


def shuffled(rng: random.Random, value: Any) -> Any:
    """Return a value with the names of its objects in another order."""
    if isinstance(value, Mapping):
        names = list(value)
        rng.shuffle(names)
        return {name: shuffled(rng, value[name]) for name in names}
    return [shuffled(rng, part) for part in value] if isinstance(value, list) else value


class Program:
    """A program with habits; a subclass knows an API."""

    path = ""

    def __init__(self, habits: Habits, name: str) -> None:
        """Programs of other names share no word of their prompts, and so no prefix."""
        self.habits = habits
        self.rng = random.Random(2)
        self.words = random.Random(name)
        self.system = f"{name}: {sentence(self.words, 400)}"
        self.offered = tools(self.words)
        self.turns: list[Any] = []

    def functions(self) -> list[Json]:
        """Return the tools of this turn."""
        found = list(self.offered)
        if self.habits.shuffles_tools:
            self.rng.shuffle(found)
        return shuffled(self.rng, found) if self.habits.shuffles_names else found

    def instructions(self, turn: int) -> str:
        clock = f" It is minute {'abcdefghij'[turn]} of the hour." if self.habits.clock else ""
        return self.system + clock

    async def run(self, client: httpx.AsyncClient) -> None:
        """Send ten turns; a call's result is the next turn's message."""
        self.say("Mend the failing test. Step 0")
        for turn in range(NUM_TURNS):
            response = await client.post(self.path, json=self.body(turn))
            assert response.status_code == 200, response.text
            self.note(response.json(), f"{sentence(self.words, 60)} exit {(turn + 1) % 10}")

    def say(self, text: str) -> None:
        raise NotImplementedError

    def body(self, turn: int) -> Json:
        raise NotImplementedError

    def note(self, answer: Json, result: str) -> None:
        """Append the answer and the result of its call."""
        raise NotImplementedError


class Chat(Program):
    """OpenCode, Cline and Aider: /v1/chat/completions."""

    path = "/v1/chat/completions"

    def say(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def body(self, turn: int) -> Json:
        system = {"role": "system", "content": self.instructions(turn)}
        return {
            "messages": [system, *self.turns],
            "tools": [{"type": "function", "function": one} for one in self.functions()],
        }

    def note(self, answer: Json, result: str) -> None:
        message = answer["choices"][0]["message"]
        (call,) = message["tool_calls"]
        function = call["function"]
        function["arguments"] = self.habits.rewrites(function["arguments"])
        message = {"role": "assistant", "content": message["content"], "tool_calls": [call]}
        self.turns += [message, {"role": "tool", "tool_call_id": call["id"], "content": result}]


class Messages(Program):
    """Claude Code: /v1/messages, where arguments are objects."""

    path = "/v1/messages"

    def say(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def body(self, turn: int) -> Json:
        return {
            "max_tokens": 1000,
            "system": [{"type": "text", "text": self.instructions(turn)}],
            "messages": self.turns,
            "tools": [
                {
                    "name": one["name"],
                    "description": one["description"],
                    "input_schema": one["parameters"],
                }
                for one in self.functions()
            ],
        }

    def note(self, answer: Json, result: str) -> None:
        blocks = answer["content"]
        (call,) = [block for block in blocks if block["type"] == "tool_use"]
        call["input"] = json.loads(self.habits.rewrites(json.dumps(call["input"])))
        output = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
        self.turns += [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [output]},
        ]


class Responses(Program):
    """Codex: /v1/responses, stateless."""

    path = "/v1/responses"

    def say(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        self.turns.append({"type": "message", "role": "user", "content": [part]})

    def body(self, turn: int) -> Json:
        return {
            "instructions": self.instructions(turn),
            "input": self.turns,
            "tools": [{"type": "function", **one} for one in self.functions()],
            "store": False,
        }

    def note(self, answer: Json, result: str) -> None:
        for item in answer["output"]:
            if item["type"] == "function_call":
                item["arguments"] = self.habits.rewrites(item["arguments"])
                output = {"type": "function_call_output", "call_id": item["call_id"]}
                self.turns += [item, output | {"output": result}]
            else:
                self.turns.append(item)


def share_of_repeated(requests: Sequence[RequestStats]) -> float:
    """Return the cached share of what a session repeats: of each turn's prompt and answer, all that
    the next turn's prompt consists of again."""
    repeated = sum(one.prompt_tokens + one.generated_tokens for one in requests[:-1])
    return sum(one.cached_tokens for one in requests[1:]) / repeated
