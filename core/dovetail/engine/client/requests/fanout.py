"""Fan-out: a request for n completions becomes n engine requests, each with its own seed.

Source of the mixing function: Steele, Lea, Flood, "Fast splittable pseudorandom number generators"
(OOPSLA 2014), splitmix64.
"""

from __future__ import annotations

import secrets

import msgspec

from dovetail.interfaces.data.sampling_params import SamplingParams

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# Seeds stay below 2**63, so that they fit a signed 64-bit tensor as well.
SEED_MASK = (1 << 63) - 1


def root_seed(seed: int | None) -> int:
    """Return the request's seed as a number from 0 to 2**63 - 1; a random one for None."""
    return secrets.randbits(63) if seed is None else seed & SEED_MASK


def child_seed(seed: int, index: int) -> int:
    """Return the seed of completion `index`; the first uses the request's own."""
    if index == 0:
        return seed
    z = (seed + index * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) & SEED_MASK


def child_params(params: SamplingParams, index: int) -> SamplingParams:
    """Return the params of completion `index`: n is 1, only the first has prompt logprobs."""
    if params.n == 1:
        return params
    prompt_logprobs = params.prompt_logprobs if index == 0 else None
    return msgspec.structs.replace(params, n=1, prompt_logprobs=prompt_logprobs)
