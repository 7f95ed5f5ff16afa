"""Artificial step plans: the first steps of a runner, and the largest possible step.

Pure functions, independent of devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.interfaces.data.media import READY, VECTORS, Encode, Feature, PartPlace
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import KVLayout, NewRow, RowStep, StepPlan

WARM_UP_TOKENS = 8
AHEAD_S = 0.3
"""How long to record sizes of steps with drafts in advance: for small models, running their steps
from Python takes twice as long."""
LARGE_BYTES = 2 << 30
"""Reading so many bytes of weights once more takes longer than what a second step prepares."""
ENCODING = "warm-up"
"""The key of the encoding that the rows of these plans attend to."""
ALIGNED_TOKENS = 64
LONGEST_ROUTE = SamplingParams(top_k=4, top_p=0.9, logprobs=1)
"""The way to draw a token that takes the most operations and memory."""


def most_tokens(layout: KVLayout, run: RunSpec) -> int:
    """Return the longest prompt that may be computed in one step."""
    cache_tokens = min(layout.num_blocks * layout.block_tokens, run.max_model_tokens)
    return min(run.max_step_tokens, cache_tokens - 1)


def read_by_encoder(layout: KVLayout, size: int, num_rows: int = 1) -> tuple[Encode, ...]:
    """Return the encoding that these plans' rows attend to, if a model has an encoder: all zeros,
    which no encoder makes. `size` is its width."""
    if not any(group.cross_rows for group in layout.groups):
        return ()
    zeros = Feature(READY, "float32", (num_rows, size), bytes(4 * num_rows * size))
    return (Encode(ENCODING, VECTORS, num_rows, (zeros,)),)


def first_steps(
    layout: KVLayout,
    num_tokens: int,
    read: tuple[Encode, ...] = (),
    *,
    is_compiling: bool,
    draws: bool = True,
) -> Iterator[StepPlan]:
    """Yield the first steps of a runner, none longer than `num_tokens`: a short prompt and, if it
    generates, two draws.

    `is_compiling`: kernels are compiled on first use, and again for numbers of tokens divisible by
    16. `read`: see `read_by_encoder`.
    """
    count = min(WARM_UP_TOKENS, num_tokens)
    yield warm_up_prompt(layout, (0,) * count, read)
    if draws:
        yield second_step(layout, count)
    yield emptied(1)
    if is_compiling and num_tokens >= ALIGNED_TOKENS:
        yield warm_up_prompt(layout, (0,) * ALIGNED_TOKENS, read)
        yield emptied(1)


def warm_up_prompt(
    layout: KVLayout, token_ids: tuple[int, ...], read: tuple[Encode, ...] = ()
) -> StepPlan:
    """Return a plan that computes some tokens on row 0 and draws in the most expensive way."""
    count = len(token_ids)
    blocks = tuple(range(-(-(count + 1) // layout.block_tokens)))
    num_groups = len(layout.groups)
    new = NewRow(
        row=0,
        request_id="warm-up",
        token_ids=token_ids,
        num_prompt_tokens=count,
        num_computed_tokens=0,
        blocks=_in_groups(layout, blocks),
        sampling=LONGEST_ROUTE,
        seed=0,
        parts=_places(read),
    )
    step = RowStep(row=0, start=0, num_tokens=count, samples=True, new_blocks=((),) * num_groups)
    return StepPlan(step_id=-1, rows=(step,), new_rows=(new,), encode=read)


def _in_groups(layout: KVLayout, blocks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return a row's blocks in each group; for encodings no more than they can fill."""
    max_blocks = (
        -(-group.cross_rows // layout.block_tokens) or len(blocks) for group in layout.groups
    )
    return tuple(blocks[:count] for count in max_blocks)


def _places(read: tuple[Encode, ...]) -> tuple[PartPlace, ...]:
    return tuple(PartPlace(one.key, one.kind, (), one.num_rows) for one in read)


def second_step(layout: KVLayout, count: int) -> StepPlan:
    """Return a plan that computes one more token on row 0, after `count` tokens."""
    again = RowStep(
        row=0, start=count, num_tokens=1, samples=True, new_blocks=((),) * len(layout.groups)
    )
    return StepPlan(step_id=-1, rows=(again,))


def largest_plan(
    layout: KVLayout,
    *,
    max_rows: int,
    max_step_tokens: int,
    max_model_tokens: int,
    read: tuple[Encode, ...] = (),
) -> StepPlan:
    """Return a step with the maximum rows and tokens, which all share their blocks. `read`: see
    `read_by_encoder`."""
    no_blocks = ((),) * len(layout.groups)
    blocks = _in_groups(layout, tuple(range(1, layout.num_blocks)))
    new_rows, steps, left = [], [], max_step_tokens
    for row in range(max_rows):
        count = max(1, min(max_model_tokens - 1, left - (max_rows - 1 - row)))
        left -= count
        new_rows.append(
            NewRow(
                row=row,
                request_id=f"largest-{row}",
                token_ids=(0,) * count,
                num_prompt_tokens=count,
                num_computed_tokens=0,
                blocks=blocks,
                sampling=LONGEST_ROUTE,
                seed=row,
                parts=_places(read),
            )
        )
        steps.append(
            RowStep(row=row, start=0, num_tokens=count, samples=True, new_blocks=no_blocks)
        )
    return StepPlan(step_id=-1, rows=tuple(steps), new_rows=tuple(new_rows), encode=read)


def emptied(max_rows: int) -> StepPlan:
    """Return a plan that frees all rows and drops the encoding they attended to."""
    freed_rows = tuple(range(max_rows))
    return StepPlan(step_id=-1, rows=(), freed_rows=freed_rows, dropped_encodings=(ENCODING,))
