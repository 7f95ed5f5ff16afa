"""Train the demo model from nothing: its own text, tokenizer and weights.

`nice python train.py` takes about half an hour on two free CPU cores and writes a Hugging Face
checkpoint. Seeds and the thread count are fixed, so a run can be repeated. This module does not
know how good the model is; `evaluate.py` measures that.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from data import TOOL_SHARE, samples
from rendering import training_pair
from tokenizer import save_tokenizer, train_tokenizer, without_marks
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

DEFAULT_FOLDER = Path(__file__).parents[2] / "core" / "dovetail" / "demo_model"
SEED = 20
THREADS = 2
VOCABULARY_SIZE = 2048
CONTEXT_TOKENS = 2048
BATCH_TOKENS = 4096
BLOCK_SAMPLES = 4096
TOKENIZER_SAMPLES = 20000
LONGEST_TOKENS = 1024
PROMPT_WEIGHT = 0.1  # the prompt is learned a little: it teaches copying early
PEAK_RATE = 4e-3  # embedding and norms
MATRIX_RATE = 0.02
WARMUP_STEPS = 100

Encoded = tuple[list[int], int]  # token ids, length of the prompt
Batch = tuple[torch.Tensor, torch.Tensor]  # token ids, weight of each token as a target


def model_config(tokenizer: Tokenizer) -> Qwen3Config:
    """The shape: Qwen3 with about two million parameters."""
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    return Qwen3Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=CONTEXT_TOKENS,
        rms_norm_eps=1e-6,
        initializer_range=0.02,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        use_cache=True,
        bos_token_id=pad,
        eos_token_id=end,
        pad_token_id=pad,
    )


def encode(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> list[Encoded]:
    """Token ids of prompt and answer; long samples are dropped."""
    prompts = tokenizer.encode_batch([prompt for prompt, _ in pairs], add_special_tokens=False)
    answers = tokenizer.encode_batch([answer for _, answer in pairs], add_special_tokens=False)
    rows = [(p.ids + a.ids, len(p.ids)) for p, a in zip(prompts, answers, strict=True)]
    return [row for row in rows if len(row[0]) <= LONGEST_TOKENS]


def to_batch(rows: list[Encoded], pad: int) -> Batch:
    """Pad on the right; causal attention makes a mask needless."""
    width = max(len(ids) for ids, _ in rows)
    tokens = torch.full((len(rows), width), pad)
    weights = torch.zeros(len(rows), width)
    for index, (ids, prompt_length) in enumerate(rows):
        tokens[index, : len(ids)] = torch.tensor(ids)
        weights[index, : len(ids)] = PROMPT_WEIGHT
        weights[index, prompt_length : len(ids)] = 1.0
    return tokens, weights


def batches(tokenizer: Tokenizer, tool_share: float = TOOL_SHARE) -> Iterator[Batch]:
    """Endless batches of like length; every block of samples is fresh."""
    pad, rng = int(tokenizer.token_to_id("<|endoftext|>") or 0), Random(SEED)
    for block in range(10**6):
        pairs = [training_pair(s) for s in samples(SEED + 1 + block, BLOCK_SAMPLES, tool_share)]
        rows = sorted(encode(pairs, tokenizer), key=lambda row: len(row[0]))
        groups: list[list[Encoded]] = [[]]
        for row in rows:
            if len(row[0]) * (len(groups[-1]) + 1) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        yield from (to_batch(group, pad) for group in groups if group)


def weighted_loss(
    logits: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Cross entropy of the next token, weighted."""
    weights = weights[:, 1:].flatten()
    losses = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    return (losses * weights).sum() / weights.sum()


def make_optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_share(done: float, step: int) -> float:
    """The share of the peak rate: warm-up, then a cosine to almost nothing."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def train(model: Qwen3ForCausalLM, tokenizer: Tokenizer, steps: int) -> None:
    """Run the optimizer and print the loss now and then."""
    optimizers = make_optimizers(model)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    started, seen, total = time.monotonic(), 0, 0.0
    for step, (tokens, weights) in enumerate(batches(tokenizer)):
        if step >= steps:
            break
        for optimizer, rates in zip(optimizers, peaks, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * rate_share(step / steps, step)
        loss = weighted_loss(model(tokens, use_cache=False).logits, tokens, weights)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen, total = seen + tokens.numel(), total + loss.item()
        if (step + 1) % 50 == 0:
            seconds = time.monotonic() - started
            print(
                f"step {step + 1}/{steps} loss {total / 50:.4f} "
                f"tokens {seen} seconds {seconds:.0f}",
                flush=True,
            )
            total = 0.0


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint with bf16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    model.generation_config = GenerationConfig(
        bos_token_id=pad,
        eos_token_id=[end, pad],
        pad_token_id=pad,
        do_sample=False,
        temperature=0.0,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(tokenizer, folder, CONTEXT_TOKENS)
    for file in folder.iterdir():
        file.chmod(0o644)


def tokenizer_texts() -> Iterator[str]:
    """Samples for the tokenizer, every tenth in upper case so that shouting has tokens too."""
    for index, sample in enumerate(samples(SEED, TOKENIZER_SAMPLES)):
        text = without_marks("\n".join(training_pair(sample)))
        yield text.upper() if index % 10 == 0 else text


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--steps", type=int, default=2200)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(SEED)
    tokenizer = train_tokenizer(tokenizer_texts(), VOCABULARY_SIZE)
    model = Qwen3ForCausalLM(model_config(tokenizer))
    print(json.dumps({"parameters": model.num_parameters(), "tokens": tokenizer.get_vocab_size()}))
    started = time.monotonic()
    train(model, tokenizer, options.steps)
    save(model, tokenizer, options.out)
    print(f"trained in {time.monotonic() - started:.0f} s, written to {options.out.name}")


if __name__ == "__main__":
    main()
