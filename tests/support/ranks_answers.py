"""A script for launchers, and what it imports: an LLM's answers, printed as one line of JSON.

`python ranks_answers.py FLAGS [apart]` with the LLM's flags as JSON. With the word, each rank asks
for something else at the end, which must not be answered.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from dovetail import LLM, SamplingParams
from dovetail.interfaces.data.constraint import Regex

ENGINE: dict[str, Any] = {
    "max_model_len": 64,
    "max_num_batched_tokens": 24,
    "dtype": "float32",
    "use_tqdm_on_load": False,
}
MARK, CALLED = "answers: ", "called: "
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=4)
SEEDED = SamplingParams(temperature=1, seed=7, max_tokens=14, ignore_eos=True, logprobs=4)
UNSEEDED = SamplingParams(temperature=1, max_tokens=6, ignore_eos=True)
PROMPTS = [list(range(3, 22)), list(range(40, 73)), [5, 6, 7], [11, 12, 13, 14] * 6]


class Methods:
    """What is added to each rank's worker."""

    run: Any

    def place(self) -> int:
        """Return the rank."""
        number: int = self.run.rank.rank
        return number


def answers(flags: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of an LLM with these flags."""
    with LLM(**{**ENGINE, **flags}) as llm:
        return answers_of(llm)


def answers_of(llm: LLM) -> list[dict[str, Any]]:
    """Return an LLM's answers: greedy, seeded, guided, and last one that draws its own seed."""
    compiled = llm.compile_constraint(Regex("[ab]{3}c[0-9]+"))
    guided = SamplingParams(temperature=1, seed=3, max_tokens=14, constraint=compiled)
    results = llm.generate(PROMPTS, [GREEDY, SEEDED, guided, UNSEEDED], use_tqdm=False)
    told = []
    for result in results:
        (output,) = result.outputs
        logprobs = [[round(place.logprob, 3)] for place in output.logprobs or ()]
        told.append(
            {"ids": list(output.token_ids), "logprobs": logprobs, "error": str(result.error)}
        )
    return told


def say(mark: str, found: Any) -> None:
    """Print a line in one write: ranks share the pipe, and print() may write its end apart."""
    sys.stdout.write(f"{mark}{json.dumps(found)}\n")
    sys.stdout.flush()


def read(lines: str, mark: str = MARK) -> list[list[Any]]:
    """Return the answers of each process among what they have printed."""
    found = [line.partition(mark)[2] for line in lines.splitlines() if mark in line]
    return [json.loads(text) for text in found]


if __name__ == "__main__":
    with LLM(**{**ENGINE, **json.loads(sys.argv[1])}) as opened:
        say(MARK, answers_of(opened))
        if opened.spec.run.worker_extension:
            say(CALLED, opened.collective_rpc("place", 20.0))
        if "apart" in sys.argv:
            opened.generate([[9, 9, int(os.environ["RANK"])]], GREEDY, use_tqdm=False)
