"""dovetail, llama.cpp and transformers on models of experts, latents, states and convolutions.

    python -m benchmarks.peers.families --venvs DIR --models DIR [--threads 2] [NAME...]

One command makes the checkpoints (random weights in bfloat16, the proportions of published models
scaled down) and their GGUF files in Q8_0, which the `gguf` package writes, then lets the engines
take turns as `gguf_files` does: dovetail and llama.cpp on the same file, transformers on the
checkpoint. Behind a step stands what it reads at least, and which part of the read bandwidth of the
same minutes that is. What exists is kept.

On a machine that others use, `--cpu` compares processor time instead: of a step, that of a run of
many tokens less that of a run of one; of a prompt, that of a run of one token. One thread is right
for it, since threads that wait for others may count as busy.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.engine_process import EngineFailed, EngineProcess
from benchmarks.peers.gguf_files import LIMIT_S, MEASURES, engines, measured
from benchmarks.peers.make_models import corpus, train_bpe
from benchmarks.peers.probe import probe

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

VOCAB, CORPUS_CHARS = 16384, 6_000_000
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    # Qwen3-30B-A3B's proportions at half the width, 6 of 48 layers.
    "qwen3-moe": (
        "qwen3_moe",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 6,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "intermediate_size": 3072,
            "moe_intermediate_size": 384,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
    ),
    # V2: its latents under 16 heads, and experts. (llama.cpp takes V2-Lite with 27 layers alone.)
    "deepseek2": (
        "deepseek_v2",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 4096,
            "q_lora_rank": 384,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 32,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 352,
            "first_k_dense_replace": 1,
            "topk_method": "greedy",
            "tie_word_embeddings": False,
        },
    ),
    "mamba2": (
        "mamba2",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 16,
            "num_heads": 32,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 1,
            "expand": 2,
            "tie_word_embeddings": True,
        },
    ),
    "lfm2": (
        "lfm2",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 10,
            "intermediate_size": 4096,
            "block_auto_adjust_ff_dim": False,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "layer_types": ["conv", "conv", "full_attention", "conv", "conv"] * 2,
            "tie_word_embeddings": True,
        },
    ),
    "falcon-h1": (
        "falcon_h1",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 8,
            "intermediate_size": 2048,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "mamba_d_ssm": 1536,
            "mamba_n_heads": 24,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "tie_word_embeddings": False,
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A model's files."""

    checkpoint: Path
    file: Path


def make(name: str, folder: Path) -> Made:
    """Return a model's checkpoint and its GGUF file; what is not there yet is written."""
    checkpoint, file = folder / name, folder / f"{name}-q8_0.gguf"
    if not (checkpoint / "tokenizer_config.json").exists():
        write_checkpoint(name, checkpoint)
    if not file.exists():
        from support.gguf_files import write_gguf

        part = file.with_suffix(".part")
        write_gguf(checkpoint, part, lambda _: "Q8_0")
        part.replace(file)
    return Made(checkpoint=checkpoint, file=file)


def write_checkpoint(name: str, folder: Path) -> None:
    """Write a checkpoint of random weights with a tokenizer of as many tokens."""
    import torch
    import transformers

    model_type, fields = SHAPES[name]
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **fields,
    )
    torch.manual_seed(1234)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    bpe = train_bpe(corpus(CORPUS_CHARS), VOCAB)
    assert bpe.get_vocab_size() == VOCAB, "the standard library gives too few words"
    ends = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, **ends).save_pretrained(folder)


def least_bytes(file: Path) -> Callable[[int], float]:
    """Return what tells how many bytes of weights a step of so many rows reads at least: all but
    the token table where the head has its own, and of the experts those that evenly choosing rows
    meet.
    """
    import gguf

    reader = gguf.GGUFReader(file)
    settings = {
        key.partition(".")[2]: field.contents()
        for key, field in reader.fields.items()
        if key.endswith((".expert_count", ".expert_used_count"))
    }
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
    if "output.weight" in sizes:
        del sizes["token_embd.weight"]
    routed = sum(size for name, size in sizes.items() if "_exps." in name)
    whole = sum(sizes.values()) - routed

    def of(rows: int) -> float:
        if not routed:
            return float(whole)
        missed = 1 - settings["expert_used_count"] / settings["expert_count"]
        return whole + routed * (1 - missed**rows)

    return of


def processor_ms(running: dict[str, EngineProcess], measure: str, rounds: int) -> dict[str, float]:
    """Return each engine's least milliseconds of processor time: of a step, or of a prompt."""
    rows, num_prompt, num_new = MEASURES[measure]
    prompts = [[400 + 7 * i + j for j in range(num_prompt)] for i in range(rows)]
    shape = {"sequences": rows, "tokens_each": num_prompt + num_new + 8}
    least: dict[str, float] = {}
    for process in running.values():
        process.ask({"do": "prepare", **shape}, LIMIT_S)
    for name, process in [pair for _ in range(rounds) for pair in running.items()]:
        cpu_s = []
        for count in sorted({1, num_new}):
            run = {"do": "run", "prompts": prompts, "num_new": count}
            cpu_s.append(process.ask(run, LIMIT_S)["cpu_s"])
        took = (cpu_s[-1] - cpu_s[0]) / (num_new - 1) if num_new > 1 else cpu_s[0]
        least[name] = min(least.get(name, 1e9), 1e3 * took)
    return least


def compare(name: str, made: Made, asked: argparse.Namespace) -> None:
    """Print the times and ratios of one model, and the bytes of a step over what can be read."""
    running: dict[str, EngineProcess] = {}
    try:
        for engine in engines(asked.threads, "xllamacpp", has_checkpoint=True):
            is_plain = engine.driver == "transformers"
            try:
                process = EngineProcess(
                    engine,
                    python=engine.python(asked.venvs, sys.executable),
                    model=made.checkpoint if is_plain else made.file,
                    checkpoint=made.checkpoint,
                    num_threads=asked.threads,
                    log=Path(tempfile.gettempdir(), f"families_{engine.driver}.log"),
                )
                process.ask({"do": "prepare", "sequences": 1, "tokens_each": 64}, LIMIT_S)
                running[engine.name] = process
            except (EngineFailed, FileNotFoundError) as error:
                print(f"{name}: {engine.name} is left out: {error}", flush=True)
        if "dovetail" not in running:
            return
        read = probe(asked.threads).get("read_gb_s")
        least = least_bytes(made.file)
        for measure, (rows, prompt, new) in MEASURES.items():
            times = (processor_ms if asked.cpu else measured)(running, measure, asked.rounds)
            ours = times["dovetail"]
            said = [f"dovetail {ours:.2f} ms"]
            said += [
                f"{n} {t:.2f} ms ({t / ours:.2f}x)" for n, t in times.items() if n != "dovetail"
            ]
            if new > 1:
                reached = least(rows) / ours / 1e6
                share = f", {reached / read:.0%} of {read:.1f}" if read else ""
                said.append(f"{least(rows) / 1e6:.0f} MB a step, {reached:.1f} GB/s{share}")
            label = f"{measure} ({rows} x {prompt} + {new})"
            print(f"{name:<12}{label:<24}{'; '.join(said)}", flush=True)
    finally:
        for process in running.values():
            process.stop()


def main() -> int:
    """Make the models and compare the engines on each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHAPES)}; all where none is named")
    parser.add_argument("--venvs", type=Path, required=True, help="folder with the peers' venvs")
    parser.add_argument("--models", type=Path, required=True, help="where the models are made")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="processor time, on a busy machine")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(SHAPES)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    asked.models.mkdir(parents=True, exist_ok=True)
    for name in asked.names or SHAPES:
        compare(name, make(name, asked.models), asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
