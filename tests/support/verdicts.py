"""What dovetail makes of a checkpoint: served natively, over transformers, or refused; and whether
what it answers is what transformers' own code computes from the same files.

Needs torch and transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config.config import Config
from dovetail.errors import DovetailError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.llm.llm import LLM
from dovetail_plugins.inspect.collect import REFUSED as SERVE_REFUSES
from dovetail_plugins.inspect.collect import inspect

NATIVE, BACKED, REFUSED = "native", "backed", "refused"
WRONG, CRASH = "wrong", "crash"
BACKED_BY = "transformers"
TOLERANCE = 1e-3
"""Between logarithms of chances, in float32."""
LENGTHS = (21, 9, 2)
"""Of the prompts, which run side by side; the longest is cut into several steps."""
NEW_TOKENS = 8
STEP_TOKENS, CONTEXT = 8, 64
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": CONTEXT,
    "max_num_batched_tokens": STEP_TOKENS,
    "max_num_seqs": len(LENGTHS),
    "num_gpu_blocks_override": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a checkpoint. `reason` says why it was refused, or what went wrong."""

    state: str
    reason: str = ""


def verdict_of(folder: str | Path, *, reference: str | Path | None = None, **flags: Any) -> Verdict:
    """Return what the engine makes of a checkpoint, held against transformers and `inspect`.
    `reference` is the same model in transformers' own layout, if the checkpoint has another."""
    fields = {"model": str(folder), **FLAGS, **flags}
    promised = promise_of(fields)
    try:
        with LLM(**fields) as llm:
            by = llm.spec.run.model_plugin.name
            results = llm.generate(prompts(llm.spec.run.model.vocab_size), _params(), False)
    except DovetailError as error:
        if not promised:
            return Verdict(state=WRONG, reason=f"inspect promised it, but: {error}")
        return Verdict(state=REFUSED, reason=_reason(error))
    if promised:
        return Verdict(state=WRONG, reason=f"inspect refused it: {promised}")
    faults = [result.error for result in results if result.error]
    fault = faults[0] if faults else difference(reference or folder, results)
    if fault:
        return Verdict(state=WRONG, reason=fault)
    return Verdict(state=BACKED if by == BACKED_BY else NATIVE)


def promise_of(fields: Mapping[str, Any]) -> str:
    """Return why `dovetail inspect` says that serving would be refused, "" where it would not."""
    try:
        found = inspect(Config.from_fields(dict(fields)))
    except DovetailError as error:
        return str(error)
    refused = [line for line in found.warnings if line.startswith(SERVE_REFUSES)]
    return "" if found.would_start else "; ".join(refused) or "no reason"


def prompts(vocab_size: int) -> list[list[int]]:
    """Return prompts of token ids, the same for every checkpoint."""
    return [[3 + (7 * n + 11 * at) % (vocab_size - 3) for at in range(n)] for n in LENGTHS]


def _params() -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=1, prompt_logprobs=0
    )


def _reason(error: DovetailError) -> str:
    """Return an error's own sentence, without the place it names."""
    return str(error.what).rstrip(".")


def difference(folder: str | Path, results: Any) -> str:
    """Return in which token the results differ from transformers' own, "" where in none."""
    import torch
    import transformers

    (architecture,) = transformers.AutoConfig.from_pretrained(folder).architectures
    model = (
        getattr(transformers, architecture)
        .from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )
    for result in results:
        (answer,) = result.outputs
        told = list(result.prompt_token_ids) + list(answer.token_ids)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([told]), use_cache=False).logits[0]
        right = logits.float().log_softmax(-1)
        start = len(result.prompt_token_ids)
        said = [*(result.prompt_logprobs or ())[1:], *(answer.logprobs or ())]
        for at, (token, one) in enumerate(zip(told[1:], said, strict=True)):
            wanted = right[at, token].item()
            if not abs(one.logprob - wanted) <= TOLERANCE:
                return f"token {at + 1} of {len(told)}: logprob {one.logprob:.4f}, not {wanted:.4f}"
            if at + 1 >= start and right[at].max().item() - wanted > TOLERANCE:
                return f"token {at + 1} of {len(told)} is not the most likely one"
    return ""
