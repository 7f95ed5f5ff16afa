"""What the gate that let a request in says of its prompts: their owner, and their limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec.structs import replace

from dovetail.engine.client.requests.input_processor import PreparedRequest
from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.engine.messages import EngineRequest
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.observability.caller import CALLER, VISIT


def followed(
    prepared: PreparedRequest, outputs: AsyncGenerator[RequestOutput, None]
) -> AsyncGenerator[RequestOutput, None]:
    """Return a prompt's outputs, which the gate counts if it let the request in."""
    visit = VISIT.get()
    if visit is None:
        return outputs
    return visit.follow(len(prepared.prompt_ids), prepared.requests[0].adapter, outputs)


def owned(requests: tuple[EngineRequest, ...]) -> tuple[EngineRequest, ...]:
    """Return requests as their owner's, within the owner's limits."""
    caller, visit = CALLER.get(), VISIT.get()
    if caller is None or not caller.owner:
        return requests
    owner = (caller.owner, caller.weight)
    if visit is None:
        return tuple(replace(one, owner=owner) for one in requests)
    longest, first = visit.max_answer_tokens, visit.min_priority
    return tuple(
        replace(
            one,
            owner=owner,
            sampling=_shortened(one.sampling, longest),
            priority=one.priority if first is None else max(one.priority, first),
        )
        for one in requests
    )


def _shortened(sampling: SamplingParams, limit: int | None) -> SamplingParams:
    """Return params with a limit of the answer (None: as it is)."""
    if limit is None or (sampling.max_tokens is not None and sampling.max_tokens <= limit):
        return sampling
    return replace(sampling, max_tokens=limit, min_tokens=min(sampling.min_tokens, limit))
