"""What the ngram drafter costs and what it brings on text, without a model.

Cost: microseconds per call on text and on noise, at several lengths. Gain: each text file given is
cut in half; the second half is "drawn" after the first, and the tokens per step are counted. What
a verified position costs more than none is the model's business; two prices show what is left.

    PYTHONPATH=core:plugins:kernels python benchmarks/drafting.py FILE.py FILE.md ...
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import find_model
from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.parts.drafting import Drafting
from dovetail.engine.request import RUNNING, Request
from dovetail.engine.step_stats import StepCounter
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import DraftSpec
from dovetail.interfaces.data.step import RowResult
from dovetail_plugins.drafters.ngram import NgramDrafter, NgramOptions
from dovetail_testing.contract import model_spec
from dovetail_testing.simulate import SimSettings

VOCAB_SIZE = 32_000
PRICES = (0.05, 0.2)
"""Time of one more verified position, in steps of one position."""


def call_times_us(tokens: Sequence[int], num_calls: int) -> list[float]:
    """Return the microseconds of calls while the last `num_calls` tokens come one by one."""
    drafter = NgramDrafter(NgramOptions(), model_spec(vocab_size=VOCAB_SIZE), 4)
    known, times = list(tokens[:-num_calls]), []
    drafter.propose("r", known, 4)
    for token_id in tokens[-num_calls:]:
        known.append(token_id)
        start_s = time.perf_counter()
        drafter.propose("r", known, 4)
        times.append((time.perf_counter() - start_s) * 1e6)
    return times


def phrases(num_tokens: int, vocab_size: int, rng: random.Random) -> list[int]:
    """Return a sequence of phrases, some of them common."""
    known = [[rng.randrange(vocab_size) for _ in range(rng.randint(2, 6))] for _ in range(300)]
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens += known[min(int(rng.expovariate(0.02)), 299)]
    return tokens[:num_tokens]


def replay(tokens: Sequence[int], spec: DraftSpec) -> tuple[int, int, int, int]:
    """Return (steps, tokens, drafts' tokens, those kept) of drawing the second half."""
    sim = SimSettings()
    counter = StepCounter(KVCacheManager(sim.layout(), sim.cache(), b"key"))
    model = model_spec(vocab_size=VOCAB_SIZE)
    drafter = registry.make(spec.drafter, model, spec.max_tokens)
    drafting = Drafting(spec, drafter, model, counter)
    place = half = len(tokens) // 2
    request = Request(
        request_id="r",
        prompt_ids=tokens[:half],
        sampling=SamplingParams(max_tokens=None, ignore_eos=True),
        seed=0,
        max_model_tokens=1 << 30,
    )
    request.status = RUNNING
    num_steps = 0
    while place < len(tokens):
        coming = tokens[place : place + len(request.draft_ids) + 1]
        pairs = zip(request.draft_ids, coming[:-1], strict=False)
        kept = next((i for i, (a, b) in enumerate(pairs) if a != b), len(coming) - 1)
        request.num_draft_tokens += len(request.draft_ids)
        request.num_accepted_tokens += kept
        request.append(RowResult(row=0, token_ids=tuple(coming[: kept + 1])))
        drafting.update([request], 1)
        place += kept + 1
        num_steps += 1
    return num_steps, place - half, request.num_draft_tokens, request.num_accepted_tokens


def main(paths: Sequence[str]) -> int:
    """Print both tables."""
    rng = random.Random(1)
    for length in (512, 4096, 32_768):
        for name, vocab_size in (("phrases", VOCAB_SIZE), ("noise of 8 letters", 8)):
            tokens = [rng.randrange(8) for _ in range(length + 2000)]
            if name == "phrases":
                tokens = phrases(length + 2000, vocab_size, rng)
            times = sorted(call_times_us(tokens, 2000))
            median, high = statistics.median(times), times[1980]
            print(f"{name:<20}{length:>7} tokens: {median:5.1f} us a call, 99th {high:5.1f}")
    tokenizer = Tokenizer.from_file(str(find_model(None) / "tokenizer.json"))
    texts = [tokenizer.encode(Path(path).read_text()).ids for path in paths]
    drafter = registry.choose("drafter", "ngram")
    for max_tokens in (2, 4, 6, 8) if texts else ():
        counts = [replay(t, DraftSpec(drafter=drafter, max_tokens=max_tokens)) for t in texts]
        steps, drawn, drafted, kept = (sum(column) for column in zip(*counts, strict=True))
        speeds = [drawn / (steps + price * drafted) for price in PRICES]
        print(
            f"longest draft {max_tokens}: {drawn / steps:.2f} tokens a step, "
            f"{kept / max(1, drafted):.0%} of drafts kept; speed-up {speeds[0]:.2f} where a "
            f"position costs 5% of a step, {speeds[1]:.2f} at 20%"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
