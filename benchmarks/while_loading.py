"""What methods that quantize while loading cost: loading, decoding and memory, side by side.

    python -m benchmarks.while_loading MODEL [--methods int4-plain,int4] [--rounds 5] [--threads 1]

Seconds are of processor time. A round loads the model with each method, the first one named first
in every other round, and then takes `--new` tokens from both in turns; the ratio after a
figure is the median over the rounds of its ratio to the first method's, so other load on the
machine cancels out.
Bits are those of the memory of layers that are multiplied, scales included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

PROMPT_TOKENS = 32
TURNS = 3
"""How often each model of a round decodes."""


def loaded(model: str, method: str, threads: int) -> tuple[Any, float]:
    """Return an LLM, and the processor time of loading its weights."""
    import torch

    from dovetail import LLM
    from dovetail.config.config import Config
    from dovetail.config.resolve import resolve
    from dovetail.runner.load.loader import load_model

    fields = {
        "model": model,
        "quantization": method,
        "max_model_len": 1024,
        "kv_cache_memory_bytes": 64 << 20,
        "weight_cache": False,
        "use_tqdm_on_load": False,
    }
    torch.set_num_threads(threads)
    run = resolve(Config.from_fields(fields)).run
    start_s = time.process_time()
    load_model(run, torch.device("cpu"))
    taken_s = time.process_time() - start_s
    return LLM(**fields, num_threads=threads), taken_s


def decoded(llm: Any, num_new: int) -> float:
    """Return the processor time of one answer's tokens."""
    from dovetail.interfaces.data.sampling_params import SamplingParams

    def taken(count: int) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        start_s = time.process_time()
        llm.generate([list(range(5, 5 + PROMPT_TOKENS))], params, use_tqdm=False)
        return time.process_time() - start_s

    taken(1)
    return taken(num_new + 1) - taken(1)


def bits(model: str, method: str) -> float:
    """Return the bits of a weight of the layers that are multiplied, a head that is the table of
    tokens among them."""
    from dovetail.config.config import Config
    from dovetail_plugins.inspect.collect import inspect

    found = inspect(Config.from_fields({"model": model, "quantization": method}))
    groups = [group for group in found.groups if group.activations]
    return 8 * sum(g.kept_bytes for g in groups) / sum(g.parameters for g in groups)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print a line for each method."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.while_loading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--methods", default="int4-plain,int4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args(words)
    methods = asked.methods.split(",")
    loads: dict[str, list[float]] = {name: [] for name in methods}
    decodes: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(asked.rounds):
        llms = {}
        for name in methods[:: -1 if turn % 2 else 1]:
            llms[name], taken_s = loaded(asked.model, name, asked.threads)
            loads[name].append(taken_s)
        for name, llm in (*llms.items(),) * (1 + TURNS):  # the first turn records the steps
            decodes[name].append(decoded(llm, asked.new))
        for name in methods:
            del decodes[name][-1 - TURNS]
        for llm in llms.values():
            llm.close()
    print("| method | loading, s | ratio | decoding, ms a token | ratio | bits a weight |")
    print("|---|---|---|---|---|---|")
    first = methods[0]
    for name in methods:
        cells = [
            f"{statistics.median(loads[name]):.2f}",
            f"{_ratio(loads[name], loads[first]):.2f}",
            f"{1e3 * statistics.median(decodes[name]) / asked.new:.2f}",
            f"{_ratio(decodes[name], decodes[first]):.2f}",
            f"{bits(asked.model, name):.2f}",
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    return 0


def _ratio(own: Sequence[float], first: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(own, first, strict=True))


if __name__ == "__main__":
    sys.exit(main())
