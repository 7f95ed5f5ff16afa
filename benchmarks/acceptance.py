"""How far typical acceptance moves the distribution, and how many more drafts it accepts.

Nothing is drawn: at each position of texts of the demo model the distribution of what stands there
is computed from the acceptance's own chances, and compared with the model's (total variation: half
the sum of differences, 0 for none, 1 for nothing in common). The drafter is the same model, which
sees the last few tokens alone. Needs transformers.

    PYTHONPATH=core:plugins:kernels python benchmarks/acceptance.py
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dovetail.config.checkpoint.sources.model_path import find_model
from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.plugin import NoOptions
from dovetail_plugins.acceptance.rejection_sampler import RejectionSampler
from dovetail_plugins.acceptance.typical_acceptance_sampler import (
    TypicalAcceptanceSampler,
    TypicalOptions,
)

PROMPTS = ("Once upon a time", "The", "A dog", "What is the", "One day", "My name", "Is it", "If")
NUM_TOKENS = 96
MOST = 64
"""Tokens that the drafter samples among, the most likely ones."""
EACH = 3
"""One position of so many is looked at."""
SEEN = 3
"""Tokens that the drafter sees."""
TEMPERATURES = (0.3, 0.7, 1.0, 1.3)
WAYS: tuple[tuple[str, Acceptance], ...] = (
    ("rejection", RejectionSampler(NoOptions())),
    ("typical 0.09", TypicalAcceptanceSampler(TypicalOptions())),
    ("typical 0.3", TypicalAcceptanceSampler(TypicalOptions(posterior_threshold=0.3))),
)


def outcome(
    acceptance: Acceptance, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what stands in place of each draft, and its chance. Shapes: [K, V], [K]"""
    chance = acceptance.chance(p, drafts, q).double()
    left = acceptance.residual(p, drafts, q)
    weight = p if left is None else left.double()
    total = weight.sum(dim=1, keepdim=True)
    instead = torch.where(total > 0, weight / total.clamp(min=1e-300), p)
    told = instead * (1 - chance).unsqueeze(1)
    return told.scatter_add(1, drafts.unsqueeze(1), chance.unsqueeze(1)), chance


def of_sampled(acceptance: Acceptance, p: torch.Tensor, q: torch.Tensor) -> tuple[float, float]:
    """Return total variation and acceptance at one position, over all drafts as q has them.

    Shapes: p, q [V] float64
    """
    share, drafts = q.topk(MOST)
    share /= share.sum()
    q = torch.zeros_like(q).scatter_(0, drafts, share)
    told, chance = outcome(acceptance, p.expand(MOST, -1), drafts, q.float().expand(MOST, -1))
    mixed = (told * share.unsqueeze(1)).sum(dim=0)
    return float((mixed - p).abs().sum()) / 2, float((chance * share).sum())


def of_certain(acceptance: Acceptance, p: torch.Tensor, q: torch.Tensor) -> tuple[float, float]:
    """Return the same where the draft is the drafter's most likely token."""
    told, chance = outcome(acceptance, p.unsqueeze(0), q.argmax().reshape(1), None)
    return float((told[0] - p).abs().sum()) / 2, float(chance)


@torch.inference_mode()
def logits_of_texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of the model and of the drafter at every position. Shapes: [N, V] twice"""
    folder = str(find_model(None))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(0)
    ours, theirs = [], []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        length = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS}
        whole = model.generate(ids, do_sample=True, temperature=1.0, **length)
        start = ids.shape[1] + SEEN
        ours.append(model(whole).logits[0, start:-1])
        parts = whole[0].unfold(0, SEEN, 1)[start - SEEN + 1 : -1]
        theirs.append(model(parts).logits[:, -1])
    return torch.cat(ours), torch.cat(theirs)


def main() -> int:
    """Print the table."""
    ours, theirs = logits_of_texts()
    print(
        f"{len(ours[::EACH])} positions, {ours.shape[1]} tokens; "
        "mean total variation / share accepted"
    )
    for name, of_one in (("sampled", of_sampled), ("most likely", of_certain)):
        for temperature in TEMPERATURES:
            cells = []
            for way, acceptance in WAYS:
                rows = [
                    of_one(acceptance, p, q)
                    for p, q in zip(
                        (ours.double() / temperature).softmax(1)[::EACH],
                        (theirs.double() / temperature).softmax(1)[::EACH],
                        strict=True,
                    )
                ]
                moved, kept = torch.tensor(rows).mean(dim=0).tolist()
                cells.append(f"{way} {moved:.3f} / {kept:.0%}")
            print(f"draft {name:<12} temperature {temperature}: {', '.join(cells)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
