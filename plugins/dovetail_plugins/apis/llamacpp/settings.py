"""How tokens are drawn, in llama.cpp's words: the chain of samplers, biases, adapters, and what an
answer reports of its settings.

Source: the API page of llama.cpp's server, /completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.server.endpoint import App, ModelText
from dovetail_plugins.apis.llamacpp.protocol import TEXT_MARK, ContinueRequest, LoraScale
from dovetail_plugins.logits_processors.samplers._order import LLAMA, chain_of

Request = TypeVar("Request", bound=ContinueRequest)
INFILL = "infill"
"""The sampler that ends a filled-in text early; editors ask for it in every request."""


def with_chain(body: Request, *, fills_in: bool) -> tuple[Request, list[str]]:
    """Return (the body with its chain for the samplers to read, the names of those without effect).
    Raises: RequestError"""
    if not body.samplers:
        return body, []
    chain = chain_of(body.samplers)
    if INFILL in chain and not fills_in:
        raise RequestError("infill belongs to /infill.", where="samplers", code="unsupported_field")
    found = body.model_copy()
    assert found.model_extra is not None, "bodies take further fields"
    found.model_extra["samplers"] = [name for name in chain if name != INFILL]
    return found, [f"samplers.{INFILL}"] if INFILL in chain else []


async def biases_of(text: ModelText, body: ContinueRequest) -> dict[int, float]:
    """Return the biases by token id; a text biases each of its tokens. Raises: RequestError"""
    found: dict[int, float] = {}
    for key, bias in (body.logit_bias or {}).items():
        if not key.startswith(TEXT_MARK):
            found[int(key)] = bias
            continue
        text.check_text("logit_bias")
        ids = await text.tokenize(key.removeprefix(TEXT_MARK), add_special_tokens=False)
        found |= dict.fromkeys(ids, bias)
    return found


async def adapter_name(server: App, body: ContinueRequest) -> str | None:
    """Return the model's or adapter's name that a body asks for by `lora` or `model`.

    Raises: RequestError for scales that cannot be had
    """
    if body.lora is None:
        return body.model
    names = [source.name for source in await server.adapters.all()]
    name = scaled_adapter(body.lora, names, "lora")
    return body.model if name is None else name


def scaled_adapter(scales: Sequence[LoraScale], names: Sequence[str], where: str) -> str | None:
    """Return the adapter with scale 1; None if all are 0. Raises: RequestError for other scales,
    several adapters, or one that is not there"""
    for one in scales:
        if not 0 <= one.id < len(names):
            raise RequestError(
                f"{one.id} is not the id of an adapter.",
                where=where,
                fix="use one that GET /lora-adapters lists.",
            )
    used = [one for one in scales if one.scale != 0]
    if len(used) > 1 or any(one.scale != 1 for one in used):
        raise RequestError(
            "adapters cannot be mixed or scaled in a request.",
            where=where,
            fix="give one of them the scale 1.",
            code="unsupported_field",
        )
    return names[used[0].id] if used else None


def check_probabilities(server: App, body: ContinueRequest) -> None:
    """Raise RequestError if probabilities after sampling are not what this server reports"""
    run = server.engine.spec.run
    is_after = (run.logprobs_stage, run.logprobs_scale) == ("processed", "logprobs")
    if body.n_probs and body.post_sampling_probs and not is_after:
        raise RequestError(
            "this server reports probabilities before sampling.",
            where="post_sampling_probs",
            fix="leave it out, or start the server with --logprobs-mode processed_logprobs.",
            code="unsupported_field",
        )


def generation_settings(
    params: SamplingParams, body: ContinueRequest, *, lora: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the settings of an answer as it was generated."""
    n_predict = -1 if body.max_tokens is None or body.max_tokens < 0 else body.max_tokens
    constraint = body.structured_outputs
    return {
        "seed": RANDOM if params.seed is None else params.seed,
        "temperature": params.temperature,
        "top_k": max(params.top_k, 0),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        **{name: params.extra_args.get(name, value) for name, value in UNSET.items()},
        "stop": list(params.stop),
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": params.ignore_eos,
        "stream": body.stream,
        "logit_bias": [{"token": key, "bias": bias} for key, bias in params.logit_bias.items()],
        "n_probs": body.n_probs,
        "grammar": (constraint.grammar or "") if constraint is not None else "",
        "samplers": chain_of(body.samplers) if body.samplers else list(LLAMA),
        "timings_per_token": body.timings_per_token,
        "post_sampling_probs": body.post_sampling_probs,
        "lora": list(lora),
    }


UNSET: Mapping[str, Any] = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "repeat_last_n": -1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "min_keep": 0,
}
"""What answers show of samplers that a request does not set."""
RANDOM = (1 << 32) - 1
"""How llama.cpp writes a random seed."""
