"""A model whose layers keep states against a plain decoder and against transformers.

Random weights in bfloat16 of about the same size: Mamba 2, LFM2 (short convolutions, some layers
attend) and Llama. Times of a decode step with 1 and 8 rows, of a prompt, of a prompt whose first
part is in the prefix cache, and of going on after a preemption, by recomputing and by swapping; all
engines run in turn in one process, medians of a few rounds. With `--cpu` times are processor time,
which a machine that others use tells better; `--own` leaves transformers out.

    PYTHONPATH=core:plugins:kernels python benchmarks/states.py [--threads 2] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dovetail import LLM, SamplingParams

PROMPT_TOKENS, TAIL_TOKENS, NEW_TOKENS = 1024, 32, 32
COMMON: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "pad_token_id": 0,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Mamba 2": (
        "mamba2",
        {
            "num_hidden_layers": 24,
            "num_heads": 32,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 1,
            "expand": 2,
        },
    ),
    "LFM2": (
        "lfm2",
        {
            "num_hidden_layers": 16,
            "intermediate_size": 4096,
            "block_auto_adjust_ff_dim": False,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "layer_types": ["conv", "conv", "conv", "full_attention"] * 4,
        },
    ),
    "Llama": (
        "llama",
        {
            "num_hidden_layers": 14,
            "intermediate_size": 3072,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
        },
    ),
}
Clock = Callable[[], float]
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def write(folder: Path, model_type: str, fields: dict[str, Any]) -> Any:
    """Write a checkpoint of random weights in bfloat16; return transformers' model of it."""
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **COMMON, **fields)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.save_pretrained(folder)
    return model


def seconds(run: Callable[[], object], clock: Clock) -> float:
    """Return how long a call takes."""
    start = clock()
    run()
    return clock() - start


def prompt(length: int, seed: int) -> dict[str, list[int]]:
    """Return a prompt of random tokens."""
    draw = torch.Generator().manual_seed(seed)
    return {"prompt_token_ids": torch.randint(3, 31000, (length,), generator=draw).tolist()}


def engine(folder: Path, threads: int, **flags: Any) -> LLM:
    """Return an engine on a checkpoint."""
    usual: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "num_threads": threads,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
    }
    return LLM(**(usual | flags))


def times(llm: LLM, number: int, clock: Clock) -> dict[str, float]:
    """Return the milliseconds of one round, with prompts that no round has seen."""

    def run(prompts: list[Any], params: SamplingParams) -> float:
        return 1e3 * seconds(lambda: llm.generate(prompts, params, use_tqdm=False), clock)

    seed = 1000 * number
    found: dict[str, float] = {}
    for rows in (1, 8):
        prompts = [prompt(16, seed + i) for i in range(rows)]
        first = run(prompts, ONE)
        found[f"decode, {rows} rows"] = (run(prompts, GREEDY) - first) / (NEW_TOKENS - 1)
    whole = prompt(PROMPT_TOKENS, seed + 20)
    found[f"prompt of {PROMPT_TOKENS}"] = run([whole], ONE)
    tail = prompt(TAIL_TOKENS, seed + 21)["prompt_token_ids"]
    longer = {"prompt_token_ids": whole["prompt_token_ids"] + tail}
    found[f"{TAIL_TOKENS} tokens behind it"] = run([longer], ONE)
    return found


def theirs(model: Any, number: int, clock: Clock) -> dict[str, float]:
    """Return the milliseconds of one round in transformers, with its own cache."""
    found: dict[str, float] = {}
    with torch.inference_mode():
        for rows in (1, 8):
            ids = torch.tensor([prompt(16, number + i)["prompt_token_ids"] for i in range(rows)])
            state = model(ids, use_cache=True)
            name = "past_key_values" if "past_key_values" in state else "cache_params"
            step = partial(model, ids[:, -1:], use_cache=True, **{name: state[name]})
            step()
            laps = [seconds(step, clock) for _ in range(8)]
            found[f"decode, {rows} rows"] = 1e3 * statistics.median(laps)
        ids = torch.tensor([prompt(PROMPT_TOKENS, number)["prompt_token_ids"]])
        whole = partial(model, ids, use_cache=True)
        found[f"prompt of {PROMPT_TOKENS}"] = 1e3 * seconds(whole, clock)
    return found


def preempted(folder: Path, threads: int, clock: Clock, *, swaps: bool) -> dict[str, float]:
    """Return how long eight requests take in room for all, and for about half of them, in
    milliseconds."""
    with engine(folder, threads) as roomy:
        prompts = [prompt(480, 77 + i) for i in range(8)]
        params = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True)
        found = {}
        if not swaps:
            run = partial(roomy.generate, prompts, params, use_tqdm=False)
            found["8 requests"] = 1e3 * seconds(run, clock)
        one = roomy._engine.core._scheduler._cache.blocks_for(576, 480)
    few = 4 * one + 1
    flags: dict[str, Any] = {"num_gpu_blocks_override": few, "enable_prefix_caching": False}
    flags["plugin_options"] = {"scheduler": {"growth_blocks": 0}}
    with engine(folder, threads, swap_space=1 if swaps else 0, max_model_len=640, **flags) as llm:
        run = partial(llm.generate, prompts, params, use_tqdm=False)
        how = "swapped" if swaps else "computed again"
        found[f"8 requests in half the room, {how}"] = 1e3 * seconds(run, clock)
    return found


def measure(threads: int, rounds: int, clock: Clock, *, is_alone: bool) -> dict[str, Any]:
    """Return the medians by model, who computes, and what."""
    report: dict[str, Any] = {}
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as root:
        for name, (model_type, fields) in SHAPES.items():
            folder = Path(root) / model_type
            model = write(folder, model_type, fields)
            size = sum(p.numel() for p in model.parameters())
            laps: dict[str, list[dict[str, float]]] = {"dovetail": [], "transformers": []}
            with engine(folder, threads) as llm:
                times(llm, 99, clock)
                for number in range(rounds):
                    laps["dovetail"].append(times(llm, number, clock))
                    if not is_alone:
                        laps["transformers"].append(theirs(model, number, clock))
            del model
            found_after = {
                key: took
                for swaps in (False, True)
                for key, took in preempted(folder, threads, clock, swaps=swaps).items()
            }
            found = {
                who: {key: statistics.median(lap[key] for lap in own) for key in (own or [{}])[0]}
                for who, own in laps.items()
            }
            found["dovetail"] |= found_after
            report[name] = {"parameters": size, **found}
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="processor time instead of time")
    parser.add_argument("--own", action="store_true", help="without transformers")
    asked = parser.parse_args()
    clock = time.process_time if asked.cpu else time.perf_counter
    report = measure(asked.threads, asked.rounds, clock, is_alone=asked.own)
    if asked.json:
        print(json.dumps(report, indent=2))
        return
    for name, found in report.items():
        print(f"{name}, {found['parameters'] / 1e6:.0f} M parameters, {asked.threads} threads")
        for key, own in found["dovetail"].items():
            other = found["transformers"].get(key)
            ratio = "" if other is None else f", transformers {other:.2f} ({other / own:.2f}x)"
            print(f"  {key}: {own:.2f} ms{ratio}")


if __name__ == "__main__":
    main()
