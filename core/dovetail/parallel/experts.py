"""Which of a layer's experts this rank holds, where whole experts are on each rank.

The ranks of a tensor group have the same tokens, so nothing is sent to an expert: each rank adds
what its own experts make of all tokens, and the sum over the ranks is the layer's output.
"""

from __future__ import annotations

from itertools import chain

from dovetail.errors import BrokenPlugin
from dovetail.parallel.groups import Group
from dovetail.registry.files import import_target


def held_experts(placement: str, num_experts: int, group: Group) -> tuple[int, ...]:
    """Return this rank's experts by the "module:function" of an ExpertPlacement.

    Raises: ConfigError where they cannot be divided, BrokenPlugin
    """
    each = group.share(num_experts, "experts", "--enable-expert-parallel")
    divided = [tuple(part) for part in import_target(placement)(num_experts, group.size)]
    is_even = len(divided) == group.size and {*map(len, divided)} == {each}
    if not is_even or sorted(chain(*divided)) != list(range(num_experts)):
        raise BrokenPlugin(
            f"{placement} does not give each of {group.size} ranks {each} of {num_experts} "
            "experts of its own.",
            where="--expert-placement-strategy",
            fix="use linear, or mend the plugin.",
        )
    return divided[group.rank]
