"""Which experts should stay in memory: misses by how fast a choice fades, over simulated choices.

Routers' choices have three causes: some experts are popular, a topic (250 tokens) has experts of
its own, and neighbouring tokens choose alike. Each row mixes them otherwise. The memory holds a
sixth of the experts. In the last row no choice says anything
about the next ones.

    python benchmarks/expert_choices.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LAYERS, EXPERTS, CHOSEN, SHARE = 4, 128, 8, 1 / 6
TOPIC_TOKENS, TOKENS = 250, 3000
HALF_LIVES = (0.02, 2.0, 4.0, 8.0, 16.0, 64.0, 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """Standard deviations of popularity and topic, beside a noise of 1 whose correlation from token
    to token is `neighbour`."""

    popularity: float
    topic: float
    neighbour: float


CASES = (
    Causes(popularity=0.5, topic=0.8, neighbour=0.0),
    Causes(popularity=0.5, topic=0.8, neighbour=0.3),
    Causes(popularity=0.5, topic=0.8, neighbour=0.6),
    Causes(popularity=1.0, topic=0.3, neighbour=0.6),
    Causes(popularity=0.3, topic=0.5, neighbour=0.3),
    Causes(popularity=0.3, topic=0.3, neighbour=0.6),
    Causes(popularity=0.2, topic=0.2, neighbour=0.8),
    Causes(popularity=0.0, topic=0.0, neighbour=0.0),
)


def choices(causes: Causes, seed: int = 0) -> np.ndarray:
    """Return simulated choices. Shapes: [tokens, layers, chosen] int64"""
    generator = np.random.default_rng(seed)
    shape = LAYERS, EXPERTS
    popular = generator.normal(0, causes.popularity, shape)
    noise, found = np.zeros(shape), []
    for token in range(TOKENS):
        if token % TOPIC_TOKENS == 0:
            topic = generator.normal(0, causes.topic, shape)
        fresh = np.sqrt(1 - causes.neighbour**2) * generator.normal(0, 1, shape)
        noise = causes.neighbour * noise + fresh
        found.append(np.argpartition(-(popular + topic + noise), CHOSEN, axis=1)[:, :CHOSEN])
    return np.array(found)


def missed(chosen: np.ndarray, half_life: float) -> float:
    """Return the share of choices that were not in memory. Shapes: chosen [tokens, layers, A]"""
    room = int(SHARE * LAYERS * EXPERTS)
    scores, there = np.zeros(LAYERS * EXPERTS), np.zeros(LAYERS * EXPERTS, dtype=bool)
    use, misses = 1.0, 0
    for token in chosen:
        use *= 2 ** (1 / half_life)
        if use > 1e100:
            scores, use = scores / use, 1.0
        for layer, experts in enumerate(token):
            numbers = layer * EXPERTS + experts
            misses += int((~there[numbers]).sum())
            scores[numbers] += use
            there[numbers] = True
            excess = int(there.sum()) - room
            if excess > 0:
                may_go = np.where(there, scores, np.inf)
                may_go[numbers] = np.inf
                there[np.argpartition(may_go, excess)[:excess]] = False
    return misses / chosen.size


def main() -> None:
    """Print a row for each mixture of causes."""
    print(f"{'popular topic neighbour':<26}" + "".join(f"{value:>10g}" for value in HALF_LIVES))
    for causes in CASES:
        chosen = choices(causes)
        row = f"{causes.popularity:>7} {causes.topic:>5} {causes.neighbour:>9}"
        cells = (f"{missed(chosen, half_life):>10.3f}" for half_life in HALF_LIVES)
        print(f"{row:<26}" + "".join(cells))


if __name__ == "__main__":
    main()
