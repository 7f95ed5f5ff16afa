"""Whether a tree of drafts could pay on the demo model where a chain of them does.

A tree verifies several guesses for one place. Which of a drafter's candidates comes true, the first
or a later one, is counted on the demo model's own greedy answers to held-out questions, with the
bundled draft model. The best tree of so many drafts is the one of the likeliest nodes; it brings
what it would have brought in these answers, step by step. What verifying so many positions costs is
measured with drafts that never come true, in processor time. Drafting counts for nothing, which
favours the tree: it asks the drafter for more rows a depth.

    PYTHONPATH=core:plugins:kernels python -m benchmarks.draft_trees
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.drafts import GREEDY, params_of, questions
from dovetail.config.checkpoint.sources.model_path import find_model
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.engine.client.offline.sync_engine import SyncEngine
from dovetail.engine.parts.drafting import Drafting
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.plugin import Info

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Drafts of a tree or chain."""
MOST_RANKS = 6
"""The candidates for a place that a tree may hold."""
Node = tuple[int, ...]
"""The rank of the candidate at each depth, from 0 on."""


class Hopeless(Drafter):
    """Always proposes as many drafts as it may, of a token that is never said."""

    info = Info(summary="drafts that never come true")

    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        self._drafts = (0,) * max_draft_tokens

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return the same drafts each time."""
        return self._drafts[:max_tokens]

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""


def engine_of(num_drafts: int) -> SyncEngine:
    """Return an engine for which every step verifies so many drafts."""
    asked = {"method": f"{Path(__file__)}:Hopeless", "num_speculative_tokens": num_drafts}
    flags = {"speculative_config": asked} if num_drafts else {}
    engine = SyncEngine(resolve(Config.from_fields({"seed": 0, **flags})))
    drafting: Any
    for drafting in (part for part in engine.core._parts if isinstance(part, Drafting)):
        # neither pauses nor shortens what never comes true
        drafting._record = lambda *_: None
        drafting._price.pays = lambda _: True
    return engine


def answers(engine: SyncEngine, count: int) -> tuple[list[tuple[list[int], list[int]]], float]:
    """Return prompts and greedy answers, and the processor time of a step that verifies."""
    params, found, times = params_of(engine, GREEDY), [], []
    for prompt in questions(count, 5):
        (request,) = engine.prepare(prompt, params).requests
        engine.core.add(request)
        drawn: list[int] = []
        while True:
            start_s = time.thread_time()
            output = engine.core.step()
            times.append(time.thread_time() - start_s)
            drawn += [token for one in output.updates for token in one.token_ids]
            if any(one.finish_reason is not None for one in output.updates):
                break
        found.append((list(request.prompt_ids), drawn))
    return found, statistics.median(times)


@torch.inference_mode()
def ranks_of(told: Sequence[tuple[list[int], list[int]]]) -> list[list[int]]:
    """Return, for each token of the answers, its place among the draft model's candidates."""
    from transformers import AutoModelForCausalLM

    folder = Path(find_model(None)) / "drafts" / "draft_model"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt, answer in told:
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        own = logits.gather(1, torch.tensor(answer)[:, None])
        found.append((logits > own).sum(dim=1).tolist())
    return found


def best_tree(shares: Sequence[float], size: int) -> set[Node]:
    """Return the nodes that are reached most often, where a place's candidates come true with
    `shares`."""
    tree: set[Node] = set()
    edge: list[tuple[float, Node]] = [(-shares[0], (0,))]
    while len(tree) < size:
        value, node = heapq.heappop(edge)
        tree.add(node)
        heapq.heappush(edge, (value * shares[0], (*node, 0)))
        if node[-1] + 1 < len(shares):
            beside = value / shares[node[-1]] * shares[node[-1] + 1]
            heapq.heappush(edge, (beside, (*node[:-1], node[-1] + 1)))
    return tree


def tokens_a_step(ranks: Sequence[Sequence[int]], tree: set[Node]) -> float:
    """Return how many tokens a step of these answers would have brought."""
    num_tokens = num_steps = 0
    for answer in ranks:
        place = 1  # the first token is drawn after the prompt
        while place < len(answer):
            node: Node = ()
            while place < len(answer) and (*node, answer[place]) in tree:
                node, place = (*node, answer[place]), place + 1
            place, num_steps = place + 1, num_steps + 1
        num_tokens += len(answer) - 1
    return num_tokens / num_steps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=24)
    options = parser.parse_args()
    told, plain_s = answers(engine_of(0), options.answers)
    ranks = ranks_of(told)
    flat = [rank for answer in ranks for rank in answer[1:]]
    shares = [max(flat.count(rank), 0.5) / len(flat) for rank in range(MOST_RANKS)]
    print("candidates that come true: " + ", ".join(f"{share:.1%}" for share in shares))
    print("drafts  cost of a step  chain: tokens, gain  tree: tokens, gain  its depth")
    for size in SIZES:
        cost = answers(engine_of(size), 3)[1] / plain_s
        chain, tree = {(0,) * depth for depth in range(1, size + 1)}, best_tree(shares, size)
        lines = [tokens_a_step(ranks, one) for one in (chain, tree)]
        told_of = "  ".join(f"{tokens:12.2f} {tokens / cost:7.2f}x" for tokens in lines)
        depth = "chain" if tree == chain else str(max(map(len, tree)))
        print(f"{size:>6}  {cost:13.2f}x  {told_of}  {depth:>9}", flush=True)


if __name__ == "__main__":
    main()
