"""Train drafters for the demo model: what it would say, learned from its own hidden states.

`nice python train_drafts.py` trains those that ship with dovetail, in about an hour on one
CPU core. The texts are those that the demo model learned from; what is to be guessed is what the
model itself makes of them. This module does not know how a drafter looks; `drafts.py` does.
"""

import argparse
import time
from pathlib import Path

import torch
from drafts import Drafter, DraftModel, Eagle, Medusa, MlpSpeculator, Mtp, Texts
from masked_drafts import DSpark
from tokenizers import Tokenizer
from train import MATRIX_RATE, PEAK_RATE, Batch, batches, rate_share
from transformers import Qwen3ForCausalLM

TARGET = Path(__file__).parents[2] / "core" / "dovetail" / "demo_model"
DRAFTERS: dict[str, type[Drafter]] = {
    "draft_model": DraftModel,
    "dspark": DSpark,
    "eagle": Eagle,
    "medusa": Medusa,
    "mlp_speculator": MlpSpeculator,
    "mtp": Mtp,
}
SHIPPED = ("draft_model", "eagle", "mtp")
SEED = 21


@torch.no_grad()
def texts_of(target: Qwen3ForCausalLM, batch: Batch) -> Texts:
    """Have the demo model read a batch."""
    tokens, weights = batch
    found = target.model(tokens, use_cache=False, output_hidden_states=True)
    states = found.last_hidden_state
    answers = torch.roll(weights == 1.0, -1, dims=1)  # where what comes next is of an answer
    answers[:, -1] = False
    chances = target.lm_head(states[answers]).softmax(-1)
    return Texts(
        tokens=tokens,
        answers=answers,
        states=states,
        inner=found.hidden_states[1:],
        chances=chances,
    )


def optimizers_of(drafter: Drafter) -> list[torch.optim.Optimizer]:
    """Muon for small matrices, AdamW for all that is as long as the vocabulary, and vectors."""
    learned = [p for p in drafter.parameters() if p.requires_grad]
    length = drafter.sizes["vocab_size"]
    matrices = [p for p in learned if p.ndim == 2 and length not in p.shape]
    others = [p for p in learned if p.ndim != 2 or length in p.shape]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=PEAK_RATE / 4, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(
    drafters: dict[str, Drafter], target: Qwen3ForCausalLM, tokenizer: Tokenizer, steps: int
) -> None:
    """Train all of them on the same texts; print the losses now and then."""
    optimizers = [one for drafter in drafters.values() for one in optimizers_of(drafter)]
    peaks = [[group["lr"] for group in one.param_groups] for one in optimizers]
    started, totals = time.monotonic(), dict.fromkeys(drafters, 0.0)
    for step, batch in zip(range(steps), batches(tokenizer), strict=False):
        texts = texts_of(target, batch)
        for one, rates in zip(optimizers, peaks, strict=True):
            for group, rate in zip(one.param_groups, rates, strict=True):
                group["lr"] = rate * rate_share(step / steps, step)
        for name, drafter in drafters.items():
            loss = drafter.loss(texts)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            totals[name] += loss.item()
        for one in optimizers:
            one.step()
            one.zero_grad()
        if (step + 1) % 20 == 0:
            losses = ", ".join(f"{name} {total / 20:.3f}" for name, total in totals.items())
            print(
                f"step {step + 1}/{steps}: {losses}; {time.monotonic() - started:.0f} s", flush=True
            )
            totals = dict.fromkeys(drafters, 0.0)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=sorted(DRAFTERS), nargs="*", default=SHIPPED)
    parser.add_argument("--out", type=Path, default=TARGET / "drafts")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    target = Qwen3ForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    target.requires_grad_(False)
    drafters: dict[str, Drafter] = {}
    for name in options.method:
        torch.manual_seed(SEED)  # so that each comes out the same whichever are trained beside it
        drafters[name] = DRAFTERS[name](target)
    train(drafters, target, tokenizer, options.steps)
    for name, drafter in drafters.items():
        folder = options.out.parent if name == "mtp" else options.out / name
        drafter.save(folder)
        for file in folder.glob("*.*"):
            file.chmod(0o644)


if __name__ == "__main__":
    main()
