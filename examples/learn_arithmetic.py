"""Teach the bundled model to add by reinforcement learning, on two cores in a few minutes.

The engine draws several answers to each question. The trainer, which is transformers and torch,
raises the probability of answers that are better than their question's average (GRPO without a
penalty), and returns its weights to the engine through shared memory. Printed are the share of
right answers, and the mismatch: how far the engine's log probabilities of the drawn tokens are
from the trainer's. The trainer's forward pass uses the engine's operations, so the mismatch is 0;
with torch's operations it would not be.

`python examples/learn_arithmetic.py --steps 70`
"""

from __future__ import annotations

import argparse
import random
import re
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dovetail import LLM, RequestOutput, SamplingParams
from dovetail_plugins.weight_transfer.same_operations import SameOperations, drawn_logprobs
from dovetail_plugins.weight_transfer.shared_weights import SharedWeights

QUESTIONS, ANSWERS = 16, 8
"""Questions a step, and answers to each."""
LEARNING_RATE = 4e-4
NO_TARGET = -100
SUMS = [(a, b) for a in range(7) for b in range(7)]


def chat(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {a} plus {b}?"}]


def reward(text: str, a: int, b: int) -> float:
    """Return 1 for an answer that ends with the sum, 0 for any other."""
    numbers = re.findall(r"\d+", text)
    return float(bool(numbers) and int(numbers[-1]) == a + b)


def share_right(llm: LLM, sums: list[tuple[int, int]]) -> float:
    """Return the share of right answers without randomness."""
    found = llm.chat([chat(*one) for one in sums], SamplingParams(temperature=0, max_tokens=24),
                     use_tqdm=False)  # fmt: skip
    right = [reward(one.outputs[0].text, *ab) for one, ab in zip(found, sums, strict=True)]
    return sum(right) / len(sums)


def padded(rows: list[list[Any]], filler: Any) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])


def step(
    model: Any,
    same: SameOperations,
    optimizer: torch.optim.Optimizer,
    found: list[RequestOutput],
    rewards: torch.Tensor,
) -> tuple[float, float]:
    """Learn from drawn answers; return the largest difference between log probabilities, and what
    it would be with torch's operations.
    Shapes: rewards [questions, answers]. Mutates: model, optimizer"""
    spread = rewards.std(1, keepdim=True) + 0.1
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread).flatten()
    drawn = [(one.prompt_token_ids, answer) for one in found for answer in one.outputs]
    ids = padded([[*prompt, *answer.token_ids] for prompt, answer in drawn], 0)
    targets = padded(
        [[NO_TARGET] * len(prompt) + [*answer.token_ids] for prompt, answer in drawn], NO_TARGET
    )
    is_drawn = targets[:, 1:] != NO_TARGET
    chosen = targets[:, 1:][is_drawn]
    same.is_on = False
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[:, :-1][is_drawn]
        torchs = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
    same.is_on = True
    own = drawn_logprobs(model(ids, use_cache=False).logits[:, :-1][is_drawn], chosen)
    engines = torch.tensor(
        [
            at[token].logprob
            for _, answer in drawn
            for token, at in zip(answer.token_ids, answer.logprobs, strict=True)
        ]
    )
    weights = advantages[:, None].expand_as(is_drawn)[is_drawn]
    loss = -(weights * own).sum() / len(drawn)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with_own, with_torch = ((one.detach() - engines).abs().max() for one in (own, torchs))
    return float(with_own), float(with_torch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--every", type=int, default=10, help="steps between printed lines")
    args = parser.parse_args()
    rng = random.Random(0)
    with LLM(dtype="float32", use_tqdm_on_load=False) as llm, SharedWeights() as shared:
        model = AutoModelForCausalLM.from_pretrained(
            llm.spec.run.model.path, dtype=torch.float32, attn_implementation="eager"
        )
        same = SameOperations(model, llm.spec.run)
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        print(f"step 0: {share_right(llm, SUMS):.0%} of all sums are right")
        worst = worst_of_torch = 0.0
        for number in range(1, args.steps + 1):
            sums = [rng.choice(SUMS) for _ in range(QUESTIONS)]
            params = SamplingParams(
                temperature=1, n=ANSWERS, max_tokens=24, logprobs=0, seed=number
            )
            found = llm.chat([chat(*one) for one in sums], params, use_tqdm=False)
            rewards = torch.tensor(
                [
                    [reward(answer.text, *ab) for answer in one.outputs]
                    for one, ab in zip(found, sums, strict=True)
                ]
            )
            mismatch, of_torch = step(model, same, optimizer, found, rewards)
            worst, worst_of_torch = max(worst, mismatch), max(worst_of_torch, of_torch)
            key = shared.write(model.named_parameters())
            update = {"path": shared.path, "key": key, "version": str(number)}
            llm.collective_rpc("update_weights", kwargs=update)
            if number % args.every == 0 or number == args.steps:
                print(
                    f"step {number}: {share_right(llm, SUMS):.0%} of all sums are right, "
                    f"{rewards.mean():.0%} of the drawn answers, mismatch {mismatch} "
                    f"({of_torch:.1e} with torch's operations)"
                )
        print(f"largest mismatch: {worst} ({worst_of_torch:.1e} with torch's operations)")


if __name__ == "__main__":
    main()
