"""Texts that try a tool parser hard: random ones made of its own markers, and long ones made to be
slow. `python tests/support/parser_fuzz.py 10000` tries every tool parser and prints a table.

Knows no family: all it uses is what a parser declares.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from itertools import islice

from dovetail.errors import PluginError
from dovetail.interfaces.data.text import Layout, Markers, Tag
from dovetail.interfaces.tool_parser import ToolParser
from dovetail_testing.text_splits import damaged, parse_in_pieces, random_cuts

CUTS_PER_TEXT = 10
PIECE_CHARS = 16
THINKING = Markers(start="<think>", end="</think>")
NOISE = ("text ", "\n\n", " ", '{"name": "f", ', '"arguments": {', "}", "]", '"', "\\", "; ", ", ",
         "[", "```", "<think>", "</think>", "<", "\N{SNOWMAN}", "f(a=1)")  # fmt: skip


def registered() -> Iterator[tuple[str, ToolParser]]:
    """Yield every tool parser that can be loaded, with the first of its names."""
    from dovetail import registry

    first = {entry.target: entry for entry in reversed(registry.entries("tool_parser"))}
    for entry in reversed(first.values()):
        try:
            plugin = registry.admin.load_entry(entry)
        except PluginError:
            continue
        yield entry.name, plugin(plugin.Options())


def examples(layout: Layout) -> list[str]:
    """Return each text, and of each tag one that has its shape."""
    return [f"{w.start}{w.inside[:3]}>" if isinstance(w, Tag) else w for w in layout]


def random_text(parser: ToolParser, chance: random.Random) -> str:
    """Return samples, damaged and cut samples, markers and noise, one after the other."""
    parts = []
    for _ in range(chance.randint(1, 5)):
        sample = chance.choice(parser.samples).text
        marker = chance.choice(parser.markers)
        seed = chance.randrange(1 << 30)
        parts.append(
            chance.choice(
                (
                    sample,
                    sample,
                    sample[: chance.randrange(len(sample) + 1)],
                    next(damaged(sample, seed=seed, num=1)),
                    chance.choice(
                        (marker.start, marker.end, *parser.inner, *examples(parser.layout))
                    ),
                    chance.choice(NOISE),
                )
            )
        )
    return "".join(parts)


def mismatches(parser: ToolParser, num_cuts: int, seed: int = 0) -> list[list[str]]:
    """Return the pieces that came to something else than the text in one piece."""
    chance = random.Random(seed)
    wrong = []
    for number in range(-(-num_cuts // CUTS_PER_TEXT)):
        text = random_text(parser, chance)
        reasoning = THINKING if number % 3 == 0 else None
        whole = parse_in_pieces([text], tool_parser=parser, reasoning=reasoning)
        wrong += [
            pieces
            for pieces in random_cuts(text, seed=number, num=CUTS_PER_TEXT)
            if parse_in_pieces(pieces, tool_parser=parser, reasoning=reasoning) != whole
        ]
    return wrong


def long_texts(parser: ToolParser, num_chars: int) -> Iterator[str]:
    """Yield texts of about this length that invite a parser to read again and again."""
    for marker in parser.markers:
        inner = "".join(parser.inner)
        heads = ("", ' {"name": ', '{"name": "', '[{"name": "f", "arguments": {"a": "', "[", inner)
        for part in (marker.start + head for head in heads):
            yield part * (num_chars // len(part))
            yield part + "x" * num_chars
            yield (part + marker.end) * (num_chars // len(part + marker.end))
    for text in (sample.text for sample in parser.samples if sample.calls):
        yield text * (num_chars // len(text))


def longest_s(parser: ToolParser, num_chars: int, every: int = 1) -> float:
    """Return the most CPU seconds that one such text takes, in one piece or in small ones; of each
    `every`-th."""
    longest = 0.0
    for text in islice(long_texts(parser, num_chars), 0, None, every):
        small = [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]
        for pieces in (small, [text]):
            start_s = time.process_time()
            parse_in_pieces(pieces, tool_parser=parser, reasoning=THINKING)
            longest = max(longest, time.process_time() - start_s)
    return longest


def main(num_cuts: int, num_chars: int) -> None:
    """Try every registered tool parser and print what came of it."""
    print(f"{'tool parser':<18}{'cuts':>8}{'mismatches':>12}{f's for {num_chars} chars':>24}")
    for name, parser in registered():
        wrong = len(mismatches(parser, num_cuts))
        seconds = longest_s(parser, num_chars) if num_chars else 0.0
        print(f"{name:<18}{num_cuts:>8}{wrong:>12}{seconds:>24.2f}", flush=True)


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    main(words[0] if words else 10_000, words[1] if len(words) > 1 else 1_000_000)
