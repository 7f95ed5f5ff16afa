"""Expert parallelism: which rank holds which whole experts, and how to balance them.

The ranks of a tensor-parallel group have the same tokens, so no token is sent to an expert. Each
rank computes its own experts' outputs for all tokens; their sum over the ranks is the layer's
output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from dovetail.errors import BrokenPlugin
from dovetail.parallel.groups import Group
from dovetail.registry.files import import_target

Held = tuple[tuple[int, ...], ...]
"""[rank][slot] -> expert. A slot holds one expert's matrices; every rank has the same number."""


def placed_experts(placement: str, num_experts: int, num_redundant: int, group: Group) -> Held:
    """Return the experts in each rank's slots by the "module:function" of an ExpertPlacement.

    There are `num_redundant` more slots than experts: they hold copies of the first experts.
    Raises: ConfigError if the slots cannot be divided evenly, BrokenPlugin
    """
    num_slots = num_experts + num_redundant
    each = group.share(num_slots, "experts", "--enable-expert-parallel")
    divided = [tuple(part) for part in import_target(placement)(num_slots, group.size)]
    is_even = len(divided) == group.size and {*map(len, divided)} == {each}
    if not is_even or sorted(chain(*divided)) != list(range(num_slots)):
        raise BrokenPlugin(
            f"{placement} does not give each of {group.size} ranks {each} of {num_slots} "
            "experts, and every expert to one rank.",
            where="--expert-placement-strategy",
            fix="use linear, or mend the plugin.",
        )
    return tuple(tuple(slot % num_experts for slot in part) for part in divided)


def rank_loads(loads: Sequence[int], placement: Held) -> list[float]:
    """Return the load of each rank. Copies of an expert have equal shares of its load."""
    copies = Counter(chain(*placement))
    return [sum(loads[expert] / copies[expert] for expert in experts) for experts in placement]


def balancedness(loads: Sequence[int], placement: Held) -> float:
    """Return the mean load of a rank divided by the maximum: 1 is perfectly even."""
    found = rank_loads(loads, placement)
    return sum(found) / len(found) / max(found) if any(found) else 1.0


def balanced(loads: Sequence[int], placement: Held) -> Held:
    """Return the placement of experts for these loads; `placement` if the new one is no better.

    Greedy, as in the DeepSeek-V3 report (2024, section 3.4). Redundant slots go to the experts with
    the largest load per copy. Then copies, the largest share first, go to the least loaded rank.
    Experts that stay on a rank stay in their slots.
    """
    num_slots = len(placement) * len(placement[0])
    copies = [1] * len(loads)
    for _ in range(num_slots - len(loads)):
        candidates = [e for e, count in enumerate(copies) if count < len(placement)] or range(
            len(loads)
        )
        copies[max(candidates, key=lambda e: (loads[e] / copies[e], -e))] += 1
    shares = [(loads[e] / count, e) for e, count in enumerate(copies) for _ in range(count)]
    packed = _pack(sorted(shares, key=lambda share: (-share[0], share[1])), len(placement))
    found = _settled(packed, placement)
    return found if max(rank_loads(loads, found)) < max(rank_loads(loads, placement)) else placement


def _pack(shares: Sequence[tuple[float, int]], num_ranks: int) -> list[list[int]]:
    """Return each rank's experts, the same number on each. Copies go to different ranks if
    possible."""
    each = len(shares) // num_ranks
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    totals = [0.0] * num_ranks
    for share, expert in shares:
        free = [rank for rank, experts in enumerate(ranks) if len(experts) < each]
        apart = [rank for rank in free if expert not in ranks[rank]]
        chosen = min(apart or free, key=lambda rank: (totals[rank], rank))
        ranks[chosen].append(expert)
        totals[chosen] += share
    return ranks


def _settled(packed: Sequence[Sequence[int]], placement: Held) -> Held:
    """Return the packing, its ranks reordered and experts put in slots so that few move."""
    left = {number: Counter(experts) for number, experts in enumerate(packed)}
    found = []
    for experts in placement:
        number = max(left, key=lambda n: ((left[n] & Counter(experts)).total(), -n))
        coming = left.pop(number)
        stays = []
        for expert in experts:
            stays.append(coming[expert] > 0)
            coming[expert] -= stays[-1]
        rest = (+coming).elements()
        found.append(
            tuple(e if is_kept else next(rest) for e, is_kept in zip(experts, stays, strict=True))
        )
    return tuple(found)
