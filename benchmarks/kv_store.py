"""Time to the first token of a long prompt: computed, from host memory, from a folder that an
earlier engine has written, from another engine; and what a connector costs that finds nothing.

Where each pays follows from the bytes that a token keeps and the time that computing it takes.

Engines run in this process, one after the other, on a checkpoint of random weights. Of each way the
best and the median of several prompts are reported, in one run, so that ratios hold on any machine.
What a connector costs is processor time of all threads of this process, for the same short answers
of engines with and without one in turns, so that what else the machine does weighs little.

    python benchmarks/kv_store.py --tokens 4000 --hidden 1024 --layers 16
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from dovetail import LLM, SamplingParams
from dovetail_testing.tiny.models import write_tiny_checkpoint

ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4000, help="tokens of a prompt")
    parser.add_argument("--prompts", type=int, default=3, help="prompts of each way")
    parser.add_argument("--hidden", type=int, default=512, help="hidden size of the model")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model")
    parser.add_argument("--decodes", type=int, default=64, help="steps of an answer")
    parser.add_argument("--rounds", type=int, default=40, help="answers of each engine")
    parser.add_argument("--only", choices=("first", "overhead"), help="measure one of both")
    return parser.parse_args()


def write_model(folder: Path, args: argparse.Namespace, *, beyond: int) -> Path:
    """Write the checkpoint, for as many positions as a prompt has tokens and some beyond."""
    return write_tiny_checkpoint(
        folder,
        "LlamaForCausalLM",
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        num_key_value_heads=max(1, args.hidden // 256),
        head_dim=64,
        max_position_embeddings=args.tokens + beyond,
    )


def prompt_of(number: int, args: argparse.Namespace) -> list[int]:
    """Return a prompt that begins like no other."""
    return [3 + (number * 31 + i * i + i // 7) % 60 for i in range(args.tokens)]


def engine(path: Path, args: argparse.Namespace, **flags: Any) -> LLM:
    """Return an engine whose cache holds two prompts."""
    return LLM(
        model=str(path),
        max_model_len=args.tokens + 64,
        num_gpu_blocks_override=2 * (args.tokens // 16 + 8),
        max_num_batched_tokens=2048,
        use_tqdm_on_load=False,
        **flags,
    )


def keeping(folder: Path, host_bytes: int) -> dict[str, Any]:
    """Return the flag of an engine that offloads."""
    extra = {"folder": str(folder), "host_bytes": host_bytes}
    names = {"kv_connector": "offloading", "kv_role": "kv_both"}
    return {"kv_transfer_config": {**names, "kv_connector_extra_config": extra}}


def peer(rank: int, port: int, host_bytes: int) -> dict[str, Any]:
    """Return the flag of one of two engines that ask each other."""
    ports = {"kv_port": port, "kv_rank": rank, "kv_parallel_size": 2}
    names = {"kv_connector": "p2p", "kv_role": "kv_both"}
    extra = {"kv_connector_extra_config": {"host_bytes": host_bytes}}
    return {"kv_transfer_config": {**names, **ports, **extra}}


def from_a_peer(
    path: Path, args: argparse.Namespace, timed: list[list[int]], evicting: list[list[int]]
) -> list[float]:
    """Return the times of prompts that another engine has computed."""
    port = 20_000 + os.getpid() % 900 * 40
    with engine(path, args, **peer(0, port, 8 << 30)) as giver:
        for prompt in timed:
            seconds(giver, prompt)
        giver._engine.core.step()  # brings the last blocks to its memory
        with engine(path, args, **peer(1, port, 0)) as taker:
            seconds(taker, evicting[0])
            found = [seconds(taker, prompt) for prompt in timed]
            assert taker._engine.core.cache.num_loaded_tokens > 0.9 * args.prompts * args.tokens
    return found


def tell_where_it_pays(times: dict[str, list[float]], num_bytes: int, tokens: int) -> None:
    """Print the arithmetic: a way pays that brings a token's bytes before they are computed."""
    computed = statistics.median(times["computed"]) / tokens
    each = num_bytes / tokens
    print(f"a token keeps {each:.0f} bytes and takes {computed * 1e6:.1f} us to compute,")
    print(f"so whatever brings more than {each / computed / 1e6:.1f} MB/s pays")
    for way, found in times.items():
        if way != "computed":
            print(f"{way:9} brings {num_bytes / statistics.median(found) / 1e6:8.1f} MB/s")


def seconds(llm: LLM, prompt: list[int]) -> float:
    """Return the time to the first token."""
    began_s = time.perf_counter()
    llm.generate([prompt], ONE, use_tqdm=False)
    return time.perf_counter() - began_s


def first_tokens(path: Path, args: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Return the times of every way: prompts are evicted from the device by others between."""
    others = args.prompts + 1
    prompts = [prompt_of(number, args) for number in range(others + 2)]
    timed, evicting = prompts[: args.prompts], prompts[args.prompts :]
    with engine(path, args) as llm:
        seconds(llm, evicting[0])
        computed = [seconds(llm, prompt) for prompt in timed]
    with engine(path, args, **keeping(folder, 8 << 30)) as llm:
        for prompt in (*timed, *evicting):
            seconds(llm, prompt)
        from_host = [seconds(llm, prompt) for prompt in timed]
        assert llm._engine.core.cache.num_loaded_tokens > 0.9 * args.prompts * args.tokens
    with engine(path, args, **keeping(folder, 0)) as llm:
        from_folder = [seconds(llm, prompt) for prompt in timed]
        assert llm._engine.core.cache.num_loaded_tokens > 0.9 * args.prompts * args.tokens
        block_bytes = llm._engine.core.layout.all_bytes
    num_bytes = block_bytes * (args.tokens // 16)
    print(f"a prompt's blocks: {num_bytes / 2**20:.1f} MiB")
    peers = from_a_peer(path, args, timed, evicting)
    times = {"computed": computed, "host": from_host, "folder": from_folder, "peer": peers}
    tell_where_it_pays(times, num_bytes, args.tokens)
    return times


def processor_time(llm: LLM, number: int, steps: int) -> float:
    """Return the processor time of an answer of so many steps to a prompt that is new."""
    many = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
    prompt = [3 + number % 60, *(3 + (number // 60 + i * i) % 60 for i in range(31))]
    began_s = time.process_time()
    llm.generate([prompt], many, use_tqdm=False)
    return time.process_time() - began_s


def overhead(path: Path, args: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Return the processor times of answers: without a connector, with one that looks and finds
    nothing, and with one that also keeps what becomes full, in turns."""
    looking, keeping_too = keeping(folder, 1 << 30), keeping(folder / "kept", 1 << 30)
    looking["kv_transfer_config"]["kv_role"] = "kv_consumer"
    found: dict[str, list[float]] = {"without": [], "looking": [], "keeping": []}
    with (
        engine(path, args) as plain,
        engine(path, args, **looking) as one,
        engine(path, args, **keeping_too) as other,
    ):
        engines = dict(zip(found, (plain, one, other), strict=True))
        for number in range(-2, args.rounds):
            turn = list(engines.items())
            for name, llm in turn[number % 3 :] + turn[: number % 3]:
                took_s = processor_time(llm, number + 2, args.decodes)
                if number >= 0:
                    found[name].append(took_s)
    return found


def tell_overhead(found: dict[str, list[float]], steps: int) -> None:
    """Print what a step costs more, by the median of the pairs of turns, and how sure that is."""
    base = found["without"]
    step = statistics.median(base) / steps
    print(f"a step takes {step * 1e6:.0f} us of processor time without a connector")
    for name in ("looking", "keeping"):
        ratios = [mine / plain for mine, plain in zip(found[name], base, strict=True)]
        more = statistics.median(ratios) - 1
        error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5
        print(
            f"{name}: {100 * more:+.2f} % of a step, {more * step * 1e6:+.1f} us "
            f"(standard error {100 * error:.2f} %, {len(ratios)} turns)"
        )


def tell_first_tokens(times: dict[str, list[float]]) -> None:
    """Print how long the first token took by each way."""
    base = statistics.median(times["computed"])
    for way, found in times.items():
        median = statistics.median(found)
        print(
            f"{way:9} best {min(found) * 1e3:8.1f} ms, median {median * 1e3:8.1f} ms, "
            f"{base / median:6.1f} times as fast as computing"
        )


def main() -> None:
    """Measure and print."""
    args = arguments()
    told: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="kv-store") as name:
        path = write_model(Path(name) / "model", args, beyond=64)
        if args.only != "overhead":
            times = first_tokens(path, args, Path(name) / "store")
            tell_first_tokens(times)
            told |= times
        if args.only != "first":
            costs = overhead(path, args, Path(name) / "empty")
            tell_overhead(costs, args.decodes)
            told |= costs
    print(json.dumps(told))


if __name__ == "__main__":
    main()
