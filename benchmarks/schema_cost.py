"""What a new schema costs in processor time, and how many times what raw llguidance takes.

    PYTHONPATH=core:plugins:kernels python benchmarks/schema_cost.py [--words 152000] [--rounds 25]

Each line is a schema: rewriting, compiling and the trial of first tokens, beside compiling the same
schema with llguidance alone. The least of all rounds counts, in one process with one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structured_output import PERSON, made_up

from dovetail import registry
from dovetail.interfaces.data.constraint import JsonSchema
from dovetail.structured_output.first_token_probe import FirstTokenProbe
from dovetail.structured_output.schemas import rewritten_constraint

PUBLISHED = Path(__file__).resolve().parents[1] / "tests" / "data" / "schemas" / "openapi.json"
NUM_PUBLISHED = 3


def main() -> None:
    """Print a line for each schema."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=152_000)
    parser.add_argument("--rounds", type=int, default=25)
    chosen = parser.parse_args()
    vocabulary = made_up(chosen.words)
    plugin = registry.load("structured_output_backend", "guidance")
    backend = plugin(plugin.Options(), vocabulary)
    probe = FirstTokenProbe(vocabulary)
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    schemas = {"person": PERSON} | dict(list(published.items())[:NUM_PUBLISHED])
    print(f"{'schema':24}{'ours, ms':>10}{'raw, ms':>10}{'ratio':>8}")
    for name, schema in schemas.items():

        def ours(schema: Any = schema) -> None:
            probe.compiled(backend, rewritten_constraint(JsonSchema(schema)))

        def raw(schema: Any = schema) -> None:
            alone(backend, schema)

        ours_ms, raw_ms = least_ms(ours, chosen.rounds), least_ms(raw, chosen.rounds)
        print(f"{name[:23]:24}{ours_ms:10.2f}{raw_ms:10.2f}{ours_ms / raw_ms:8.1f}")


def alone(backend: Any, schema: Any) -> None:
    """Compile a schema with llguidance as it comes. Raises: ValueError"""
    from llguidance import LLMatcher

    text = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matcher = LLMatcher(backend._tokenizer, text, log_level=0)
    if matcher.is_error():
        raise ValueError(matcher.get_error())


def least_ms(work: Callable[[], None], rounds: int) -> float:
    """Return the minimum processor time of `rounds` calls, in milliseconds."""
    times = []
    for _ in range(rounds):
        begun_s = time.process_time()
        work()
        times.append(time.process_time() - begun_s)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
