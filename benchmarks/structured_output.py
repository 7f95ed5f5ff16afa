"""What structured output costs: compiling and masks at 128k tokens, and answers beside free ones.

    PYTHONPATH=core:plugins:kernels python benchmarks/structured_output.py [--only masks|answers]
        [--backend NAME]... [--model FOLDER] [--rounds 5] [--tokens 128]

The vocabulary is made up: every byte, then words, numbers and pieces of JSON as byte-level BPE
would have them. Times are medians in one process with one thread. Answers are a model's, the demo
model's unless another is named: 16 held to a schema against the same 16 free, at equal numbers of
tokens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import string
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dovetail import registry
from dovetail.errors import PluginError
from dovetail.interfaces.data.constraint import Choice, Constraint, JsonSchema, Literal, Regex
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail.llm.llm import LLM

NUM_REQUESTS = 16
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "odd"]}, "maxItems": 4},
        "about": {"type": "string"},
    },
    "required": ["name", "age", "tags", "about"],
    "additionalProperties": False,
}
TEXT = b'{"name": "Ada Lovelace", "age": 36, "tags": ["new", "odd"], "about": "wrote the first '
TEXT += b'program, and 12 letters to \\"Charles\\", in 1843"}'
CONSTRAINTS: dict[str, tuple[Constraint, bytes]] = {
    "schema": (JsonSchema(PERSON), TEXT),
    "any object": (JsonSchema({"type": "object"}), b'{"a": [1, {"b": "a member"}], "c": null}'),
    "regex": (Regex(r"\d{4}-\d{2}-\d{2} \w+( \w+)*"), b"2024-02-29 some words that follow"),
    "choice": (Choice(tuple(Literal(f"answer {n}") for n in range(200))), b"answer 17"),
    "free string": (JsonSchema({"type": "string"}), b'"' + b"words, and more of them. " * 3 + b'"'),
}  # fmt: skip


def made_up(size: int) -> Vocabulary:
    """Return a vocabulary of so many tokens; 0 is the end."""
    chance = random.Random(0)
    tokens = dict.fromkeys(bytes([byte]) for byte in range(256))
    pieces = (
        '":',
        '": ',
        '",',
        ', "',
        '"}',
        '{"',
        "[]",
        "{}",
        "]}",
        "},",
        "\\n",
        '\\"',
        "  ",
        "\n  ",
    )
    tokens |= dict.fromkeys(piece.encode() for piece in pieces)
    tokens |= dict.fromkeys(str(number).encode() for number in range(1000))
    while len(tokens) < size - 1:
        word = "".join(
            chance.choices(string.ascii_lowercase, k=min(9, 2 + int(chance.expovariate(0.25))))
        )
        style = chance.random()
        word = word.capitalize() if style < 0.2 else word
        word = f" {word}" if chance.random() < 0.6 else word
        word += chance.choice((",", ".", '"', "_", ":")) if chance.random() < 0.05 else ""
        if style > 0.93:
            word = "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(2))
        tokens[word.encode()] = None
    ids = {token: i for i, token in enumerate(tokens, start=1)}
    return Vocabulary(
        tokens=[b"", *tokens],
        special={"<|end|>": 0},
        special_ids=frozenset((0,)),
        eos_ids=(0,),
        size=size,
        encode=lambda text: longest_first(text.encode(), ids),
    )


def longest_first(text: bytes, ids: Mapping[bytes, int]) -> list[int]:
    """Return the tokens of a text."""
    found, at = [], 0
    while at < len(text):
        end = next(e for e in range(min(len(text), at + 24), at, -1) if text[at:e] in ids)
        found.append(ids[text[at:end]])
        at = end
    return found


def masks(size: int, names: list[str]) -> None:
    """Print for each backend the time to make it, to compile, to load, and per step."""
    vocabulary = made_up(size)
    print(
        f"{size} tokens; ms to compile and to load (cold), us per mask of the "
        "first answer and of the next: median, highest; us per token"
    )
    for name in names:
        try:
            plugin = registry.load("structured_output_backend", name)
        except PluginError as error:
            print(f"{name}: {error}")
            continue
        begun_s = time.perf_counter()
        backend = plugin(plugin.Options(), vocabulary)
        print(f"{name}: vocabulary {time.perf_counter() - begun_s:.1f} s")
        for word, (constraint, text) in CONSTRAINTS.items():
            token_ids = vocabulary.encode(text.decode())
            assert token_ids is not None
            print(f"    {word:<14}{_one(backend, constraint, token_ids)}", flush=True)


def _one(backend: StructuredOutputBackend, constraint: Constraint, ids: list[int]) -> str:
    size = getattr(backend, "vocabulary").size  # noqa: B009
    begun_s = time.perf_counter()
    try:
        artifact = backend.compile(constraint)
    except InvalidConstraint as error:
        return f"refused: {error}"
    compiled_s = time.perf_counter()
    loaded = backend.load(artifact)
    loaded_s = time.perf_counter()
    first_s: list[float] = []
    fills_s: list[float] = []
    for _ in range(2):  # the second answer finds what the first left in caches
        first_s, fills_s, accepts_s = fills_s, [], []
        matcher = loaded.matcher()
        for token_id in ids:
            mask = np.zeros(-(-size // 32), dtype=np.uint32)
            start_s = time.perf_counter()
            matcher.fill(mask)
            filled_s = time.perf_counter()
            if not matcher.accept(token_id):
                break
            fills_s.append(filled_s - start_s)
            accepts_s.append(time.perf_counter() - filled_s)
    if not fills_s:
        return "the text is not taken"
    return (
        f"{(compiled_s - begun_s) * 1e3:>9.1f}{(loaded_s - compiled_s) * 1e3:>9.1f}"
        f"{statistics.median(first_s) * 1e6:>9.0f}{max(first_s) * 1e6:>9.0f}"
        f"{statistics.median(fills_s) * 1e6:>9.0f}{max(fills_s) * 1e6:>9.0f}"
        f"{statistics.median(accepts_s) * 1e6:>8.0f}   {len(artifact)} bytes, {len(fills_s)} steps"
    )


def applying(size: int) -> None:
    """Print what applying 16 masks costs in torch, on rows of logits of this size."""
    masks_of = [
        np.random.default_rng(n).integers(0, 2**32, -(-size // 32), dtype=np.uint32)
        for n in range(16)
    ]
    logits = torch.randn(16, size)
    times_s = []
    for _ in range(30):
        start_s = time.perf_counter()
        for index, mask in enumerate(masks_of):
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            forbidden = torch.from_numpy(bits[:size] == 0)
            logits[index].masked_fill_(forbidden, float("-inf"))
        times_s.append((time.perf_counter() - start_s) / 16)
    print(f"a mask applied to {size} logits: {statistics.median(times_s) * 1e6:.0f} us")


def answers(model: str | None, names: list[str], num_rounds: int, num_tokens: int) -> None:
    """Print the tokens a second of 16 constrained requests against the same free, round by
    round."""
    with LLM(model=model, disable_log_stats=True, max_model_len=512) as llm:
        for name in (None, *names):
            _rate(llm, name, num_tokens=4)  # compiles the constraint, fills caches
        rates: dict[str, list[float]] = {}
        for _ in range(num_rounds):
            for name in (None, *names):
                rates.setdefault(name or "free", []).append(_rate(llm, name, num_tokens))
    for name, found in rates.items():
        ratios = [one / free for one, free in zip(found, rates["free"], strict=True)]
        print(
            f"{name:<20}{statistics.median(found):>8.0f} tokens/s "
            f"({min(found):.0f} to {max(found):.0f}){statistics.median(ratios):>7.2f}x"
        )


def _rate(llm: LLM, backend: str | None, num_tokens: int) -> float:
    compiled = None
    if backend is not None:
        compiled = llm.compile_constraint(
            JsonSchema({"type": "array", "items": PERSON, "minItems": 40}), backend=backend
        )
    params = [
        SamplingParams(
            temperature=1.0, seed=n, max_tokens=num_tokens, ignore_eos=True, constraint=compiled
        )
        for n in range(NUM_REQUESTS)
    ]
    start_s = time.perf_counter()
    results = llm.generate(["List people as JSON: "] * NUM_REQUESTS, params, use_tqdm=False)
    took_s = time.perf_counter() - start_s
    return sum(len(result.outputs[0].token_ids) for result in results) / took_s


def main() -> None:
    """Print all of it, or a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=128_000)
    parser.add_argument("--backend", action="append")
    parser.add_argument("--only", choices=("masks", "answers"))
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names = chosen.backend or registry.names("structured_output_backend")
    if chosen.only != "answers":
        masks(chosen.vocab, names)
        applying(chosen.vocab)
    if chosen.only != "masks":
        answers(chosen.model, names, chosen.rounds, chosen.tokens)


if __name__ == "__main__":
    main()
