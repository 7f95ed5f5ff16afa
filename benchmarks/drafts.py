"""What drafters bring on the bundled demo model: tokens a second with each against none.

The prompts are the held-out questions of examples/demo_model, answered greedily, so many at a time;
then the worst case, texts of random tokens at temperature 1.5, where no guess comes true for long
and what counts is that drafting pauses. All engines live in one process and take turns, so that
each round is one moment of the machine; the figures are medians of rounds. Only steps that read no
prompt are timed. With `--cpu` what is told is the processor time of the engine's thread (run it
with OMP_NUM_THREADS=1): where other work is on the machine, that is less rough.

    PYTHONPATH=core:plugins:kernels python -m benchmarks.drafts [METHOD ...] [--rows 1 8 32]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.engine.client.offline.sync_engine import SyncEngine
from dovetail.interfaces.data.sampling_params import SamplingParams

EXAMPLES = Path(__file__).parents[1] / "examples" / "demo_model"
NONE = "none"
METHODS = ("ngram", "suffix", "draft_model", "eagle", "mlp_speculator", "mtp")
TEXTS = ("questions", "random")
PROMPT_TOKENS = 32
GREEDY = {"temperature": 0.0, "max_tokens": 128}
WILD = {"temperature": 1.5, "max_tokens": 128, "ignore_eos": True, "seed": 1}


@dataclass(slots=True)
class Tally:
    """What the decode steps of some requests brought. `drafted` and `accepted` by place."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0
    drafted: list[int] = field(default_factory=lambda: [0] * 16)
    accepted: list[int] = field(default_factory=lambda: [0] * 16)

    @property
    def rate(self) -> float:
        """Return tokens a second."""
        return self.num_tokens / self.seconds

    def shares(self) -> str:
        """Return how many of the drafted tokens of each place were accepted."""
        pairs = zip(self.accepted, self.drafted, strict=True)
        return " ".join(f"{kept / drafted:.0%}" for kept, drafted in pairs if drafted)


def questions(count: int, seed: int) -> list[str]:
    """Return prompts of the demo model's evaluation, rendered for it."""
    sys.path.insert(0, str(EXAMPLES))
    from held_out import all_cases
    from rendering import render

    cases = random.Random(seed).sample(all_cases(), count)
    return [
        render(
            one.messages, tools=one.tools, add_generation_prompt=True, enable_thinking=one.thinking
        )
        for one in cases
    ]


def noise(count: int, seed: int, vocab_size: int) -> list[list[int]]:
    """Return prompts of random tokens."""
    rng = random.Random(seed)
    return [[rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def run(
    engine: SyncEngine,
    prompts: Sequence[str | list[int]],
    rows: int,
    params: SamplingParams,
    clock_s: Callable[[], float],
) -> Tally:
    """Return the tally of some prompts, `rows` of them at a time."""
    tally, waiting, live = Tally(), list(prompts), 0
    core = engine.core
    while waiting or live:
        while waiting and live < rows:
            prepared = engine.prepare(waiting.pop(), params)
            for request in prepared.requests:
                core.add(request)
            live += 1
        is_full = live == rows
        start_s = clock_s()
        output = core.step()
        step_s = clock_s() - start_s
        live -= sum(update.finish_reason is not None for update in output.updates)
        if output.stats is None or output.stats.prompt_tokens or not is_full:
            continue  # a prompt may wait for one that begins like it, so it comes a step later
        tally.seconds += step_s
        tally.num_steps += 1
        tally.num_tokens += sum(len(update.token_ids) for update in output.updates)
        for place, number in enumerate(output.stats.drafted_at):
            tally.drafted[place] += number
            tally.accepted[place] += output.stats.accepted_at[place]
    return tally


def params_of(engine: SyncEngine, fields: Mapping[str, Any]) -> SamplingParams:
    """Return params over the model's own."""
    return SamplingParams(**{**engine.spec.default_sampling, **fields})


def engines_of(
    methods: Sequence[str], folder: str, settings: Mapping[str, Any], stack: ExitStack
) -> dict[str, SyncEngine]:
    """Return an engine without drafts and one of each method. `folder`: where checkpoints lie that
    are not bundled, by method. `settings`: more keys of --speculative-config."""
    made = {}
    for method in (NONE, *methods):
        asked: dict[str, Any] = {"method": method, **settings}
        if folder and (Path(folder) / method).is_dir():
            asked["model"] = str(Path(folder) / method)
        flags = {} if method == NONE else {"speculative_config": asked}
        config = Config.from_fields({"seed": 0, "max_num_seqs": 32, **flags})
        made[method] = SyncEngine(resolve(config))
        stack.callback(made[method].shutdown)
    return made


def measure(
    engines: dict[str, SyncEngine],
    rows: int,
    rounds: int,
    clock_s: Callable[[], float],
    *,
    count: int,
    is_wild: bool,
) -> None:
    """Print a line per method, of so many requests a round."""
    found: dict[str, list[Tally]] = {name: [] for name in engines}
    for turn in range(rounds + 1):
        for name, engine in engines.items():
            size = engine.spec.run.model.vocab_size
            seed = 100 * rows + turn  # what a drafter has seen before it would know by heart
            prompts = noise(count, seed, size) if is_wild else questions(count, seed)
            params = params_of(engine, WILD if is_wild else GREEDY)
            tally = run(engine, prompts, rows, params, clock_s)
            if turn:  # the first round records
                found[name].append(tally)
    print(f"\n{'random tokens, temperature 1.5' if is_wild else 'questions, greedy'}, {rows} rows")
    for name, tallies in found.items():
        pairs = zip(tallies, found[NONE], strict=True)
        ratios = sorted(one.rate / none.rate for one, none in pairs)
        rate = statistics.median(one.rate for one in tallies)
        tokens = sum(one.num_tokens for one in tallies) / rows
        each = tokens / sum(one.num_steps for one in tallies)
        step_us = 1e6 * statistics.median(one.seconds / one.num_steps for one in tallies)
        shares = tallies[-1].shares()
        print(
            f"{name:<15}{rate:>8.0f} tokens/s{statistics.median(ratios):>7.2f}x "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}){each:>7.2f} tokens a step of "
            f"{step_us:>6.0f} us  accepted by place: {shares}",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=0, help="a round; 50 times the rows")
    parser.add_argument("--folder", default="", help="checkpoints that are not bundled, by method")
    parser.add_argument("--cpu", action="store_true", help="tell processor time")
    parser.add_argument("--set", type=json.loads, default={}, help="keys of --speculative-config")
    parser.add_argument("--texts", choices=TEXTS, nargs="*", default=TEXTS)
    parser.add_argument(
        "--profile", action="store_true", help="show where the last one's time goes"
    )
    options = parser.parse_args()
    clock_s = time.thread_time if options.cpu else time.perf_counter
    with ExitStack() as stack:
        engines = engines_of(options.methods, options.folder, options.set, stack)
        for text in options.texts:
            for rows in options.rows:
                count = options.requests or 50 * rows
                is_wild = text == "random"
                measure(engines, rows, options.rounds, clock_s, count=count, is_wild=is_wild)
        if options.profile:
            name = options.methods[-1]
            params = params_of(engines[name], GREEDY)
            profile = cProfile.Profile()
            profile.runcall(run, engines[name], questions(32, 1), options.rows[0], params, clock_s)
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
