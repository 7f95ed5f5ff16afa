"""SpeculativeConfig: speculative decoding, which verifies several draft tokens in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Speculation."""

    speculative_config: Mapping[str, Any] = flag(
        {},
        kind="drafter",
        short="-sc",
        help="speculative decoding, which drafts tokens and verifies several in one step. "
        "method: the drafter; num_speculative_tokens: the longest draft (default 4); "
        "disable_by_batch_size: with more requests than this, running or waiting, nothing "
        "is drafted; max_model_len: the length at which a request is not drafted any more; "
        "acceptance_method: which drafts are kept, by rejection_sampler (the default), or by "
        "typical_acceptance_sampler with posterior_threshold and posterior_alpha, which changes "
        "the answers' distribution; model, revision, quantization, draft_tensor_parallel_size: "
        "the draft model of drafters that have one, which without a method also says which; "
        "disable_logprobs and disable_mqa_scorer change nothing; other keys are options of the "
        "drafter, for ngram prompt_lookup_max and prompt_lookup_min",
        default_note="no guessing",
    )
