"""Two ranks that divide each request's KV cache against two that repeat its KV head.

The model has one KV head, so that two tensor-parallel ranks would both cache it all. Both engines
get the same memory and run in turn; a prompt is computed once and then found in the prefix cache,
so that what is timed is decoding.

    PYTHONPATH=core:plugins:kernels python benchmarks/context_parallel.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from dovetail import LLM, SamplingParams

CACHE_BYTES = 256 << 20
NEW_TOKENS = 24
SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": 8000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
    "bos_token_id": 0,
}


def engine(folder: str, **flags: Any) -> LLM:
    """Return an engine of two ranks with a thread each."""
    usual: dict[str, Any] = {
        "model": folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "tensor_parallel_size": 2,
        "num_threads": 1,
        "kv_cache_memory_bytes": CACHE_BYTES,
        "max_model_len": 6144,
        "max_num_seqs": 64,
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
    }
    return LLM(**(usual | flags))


def seconds_of(llm: LLM, rows: int, prompt: int, new: int) -> float:
    """Return how long an engine takes for some answers."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    prompts = [
        [7 + (11 * row + 3 * place) % 7900 for place in range(prompt)] for row in range(rows)
    ]
    started_s = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - started_s


def per_step_s(llm: LLM, rows: int, prompt: int, new: int = NEW_TOKENS) -> float:
    """Return the time of a decode step: what more tokens take than one does."""
    return (seconds_of(llm, rows, prompt, 1 + new) - seconds_of(llm, rows, prompt, 1)) / new


def measure_context(folder: str, rounds: int) -> None:
    """Print the tokens that fit, and decoded tokens a second, of both engines."""
    with engine(folder) as repeated, engine(folder, decode_context_parallel_size=2) as divided:
        engines = {"repeated": repeated, "divided": divided}
        for name, llm in engines.items():
            print(
                f"{name}: {capacity_tokens(llm):,} tokens fit into {CACHE_BYTES >> 20} MiB a rank"
            )
        for rows, prompt in ((1, 256), (1, 4096), (8, 4096)):
            times: dict[str, list[float]] = {name: [] for name in engines}
            for number in range(rounds + 1):
                for name, llm in engines.items():
                    taken_s = per_step_s(llm, rows, prompt)
                    if number:  # the first round computes the prompts
                        times[name].append(taken_s)
            ratios = [a / b for a, b in zip(times["repeated"], times["divided"], strict=True)]
            rates = {name: rows / statistics.median(taken) for name, taken in times.items()}
            print(
                f"{rows} x {prompt} tokens of context: repeated {rates['repeated']:.1f}, divided "
                f"{rates['divided']:.1f} tokens/s, ratio {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )


def capacity_tokens(llm: LLM) -> int:
    """Return how many tokens an engine's KV cache holds."""
    layout = llm._engine.core.layout
    return int((layout.num_blocks - 1) * layout.block_tokens)


def main() -> None:
    """Measure both engines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        measure_context(folder, args.rounds)


if __name__ == "__main__":
    main()
