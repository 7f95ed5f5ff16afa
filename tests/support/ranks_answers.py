"""A script for launchers, and what it imports: an LLM's answers, printed as one line of JSON.

`python ranks_answers.py FLAGS` with the LLM's flags as JSON; with "crooked" among the variables
rank 1 asks for other requests than rank 0.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from dovetail import LLM, SamplingParams
from dovetail.interfaces.constraint import Regex

ENGINE: dict[str, Any] = {
    "max_model_len": 64,
    "max_num_batched_tokens": 24,
    "dtype": "float32",
    "use_tqdm_on_load": False,
}
MARK = "answers: "
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=4)
SEEDED = SamplingParams(temperature=1, seed=7, max_tokens=14, ignore_eos=True, logprobs=4)
UNSEEDED = SamplingParams(temperature=1, max_tokens=6, ignore_eos=True)
PROMPTS = [list(range(3, 22)), list(range(40, 73)), [5, 6, 7], [11, 12, 13, 14] * 6]


def answers(flags: dict[str, Any], prompts: list[list[int]] = PROMPTS) -> list[dict[str, Any]]:
    """Return an LLM's answers: greedy, seeded, guided, and last one that draws its own seed."""
    with LLM(**{**ENGINE, **flags}) as llm:
        compiled = llm.compile_constraint(Regex("[ab]{3}c[0-9]+"))
        guided = SamplingParams(temperature=1, seed=3, max_tokens=14, constraint=compiled)
        results = llm.generate(prompts, [GREEDY, SEEDED, guided, UNSEEDED], use_tqdm=False)
    told = []
    for result in results:
        (output,) = result.outputs
        logprobs = [[round(place.logprob, 3)] for place in output.logprobs or ()]
        told.append(
            {"ids": list(output.token_ids), "logprobs": logprobs, "error": str(result.error)}
        )
    return told


def read(lines: str) -> list[list[dict[str, Any]]]:
    """Return the answers of each process among what they have printed."""
    found = [line.partition(MARK)[2] for line in lines.splitlines() if MARK in line]
    return [json.loads(text) for text in found]


if __name__ == "__main__":
    is_crooked = os.environ.get("CROOKED") == os.environ.get("RANK")
    asked = [[9, 9, 9], *PROMPTS[1:]] if is_crooked else PROMPTS
    print(MARK + json.dumps(answers(json.loads(sys.argv[1]), asked)), flush=True)
