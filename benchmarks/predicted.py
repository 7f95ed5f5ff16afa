"""Edits of a file with and without its old text as the prediction (OpenAI's predicted outputs).

A model is asked to rewrite a program with one change: a name, a line, a function more. The old
program is its prediction. Both ways run in one process and take turns; printed are the medians of
the rounds and the ratio. The answers must be equal. Run with
PYTHONPATH=core:plugins:kernels from the repository root:

    python -m benchmarks.predicted MODEL [--tokens 15] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from dovetail import LLM, SamplingParams

SOURCE = Path(__file__).parents[1] / "plugins" / "dovetail_plugins" / "lazy_heap.py"
EDITS = (
    "Rename the class LazyHeap to OwnerHeap everywhere.",
    "Change the first line of the module's docstring to: A heap of owners.",
    "Remove the method __len__.",
)
ASKED = """Here is a file:

```python
{source}```

{edit} Answer with the whole new file in a block of code and nothing else."""


def timed(llm: LLM, text: str, params: SamplingParams) -> tuple[float, tuple[int, ...]]:
    """Return the seconds of an answer whose prompt is cached, and its tokens."""
    start_s = time.perf_counter()
    (found,) = llm.chat([{"role": "user", "content": text}], params, use_tqdm=False)
    return time.perf_counter() - start_s, tuple(found.outputs[0].token_ids)


def main() -> None:
    """Print a line for each edit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=600)
    options = parser.parse_args()
    speculation = {"method": "prediction", "num_speculative_tokens": options.tokens}
    llm = LLM(
        model=options.model, speculative_config=speculation, max_model_len=4096, max_num_seqs=1
    )
    source = SOURCE.read_text(encoding="utf-8")
    block = f"```python\n{source}```"
    predicted = tuple(llm.tokenizer.encode(block, add_special_tokens=False))
    ratios = []
    for edit in EDITS:
        prompt = ASKED.format(source=source, edit=edit)
        plain = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
        drafted = SamplingParams(
            temperature=0.0, max_tokens=options.max_tokens, prediction=predicted
        )
        timed(llm, prompt, SamplingParams(temperature=0.0, max_tokens=1))
        seconds: dict[bool, list[float]] = {False: [], True: []}
        answers = set()
        for _ in range(options.rounds):
            for is_predicted, params in ((False, plain), (True, drafted)):
                took_s, tokens = timed(llm, prompt, params)
                seconds[is_predicted].append(took_s)
                answers.add(tokens)
        without_s, with_s = (statistics.median(seconds[way]) for way in (False, True))
        ratios.append(without_s / with_s)
        same = "equal" if len(answers) == 1 else f"{len(answers)} DIFFERENT"
        print(
            f"{edit[:44]:44} {len(tokens):4} tokens {without_s:6.2f} s, predicted {with_s:6.2f} s: "
            f"{ratios[-1]:.2f} times as fast, answers {same}"
        )
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
