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

Request = TypeVar("Request", bound=ContinueRequest)
NO_PENALTY = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
TURNED_OFF: Mapping[str, Mapping[str, Any]] = {
    "penalties": NO_PENALTY,
    "dry": {"dry_multiplier": None},
    "top_n_sigma": {"top_n_sigma": None},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": None, "typical": None},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": None},
    "temperature": {"temperature": 1.0},
}
"""The samplers in the order of the chain -> the fields without them; None: the field is not there.
"""
CHAIN = tuple(TURNED_OFF)
NEWER = ("penalties", "top_n_sigma")
"""Samplers that older chains leave out although they apply."""
WHOLE = tuple([name for name in CHAIN if name not in NEWER[at:]] for at in range(len(NEWER) + 1))
"""The default chains, now and earlier. To send one is to ask for nothing."""
OTHER_NAMES = {
    "typical_p": "typ_p", "typ-p": "typ_p", "typical": "typ_p", "typical-p": "typ_p",
    "typ": "typ_p",
    "top-k": "top_k", "top-p": "top_p", "nucleus": "top_p", "min-p": "min_p", "temp": "temperature",
    "top-n-sigma": "top_n_sigma",
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p",
    "m": "min_p", "x": "xtc", "t": "temperature", "i": "infill",
}  # fmt: skip
"""Other spellings, and the letters of a chain that is one word."""
INFILL = "infill"
"""The sampler that ends a filled-in text early; editors ask for it in every request."""


def chain_of(samplers: str | Sequence[str] | None) -> list[str]:
    """Return the named samplers, spelled in one way; none named: the whole chain.

    Raises: RequestError for an unknown one, or for another order than the chain's
    """
    if not samplers:
        return list(CHAIN)
    names = [OTHER_NAMES.get(one, one) for one in samplers]
    unknown = [name for name in names if name not in CHAIN and name != INFILL]
    if unknown:
        raise RequestError(
            f'there is no sampler "{unknown[0][:64]}".',
            where="samplers",
            fix=f"choose among {', '.join(CHAIN)}.",
            code="unsupported_field",
        )
    if names != [name for name in (*CHAIN, INFILL) if name in names]:
        raise RequestError(
            "samplers have a fixed order here.",
            where="samplers",
            fix=f"leave out what you do not want of {', '.join(CHAIN)}.",
            code="unsupported_field",
        )
    return names


def with_chain(body: Request, *, fills_in: bool) -> tuple[Request, list[str]]:
    """Return (the body without the samplers that its chain leaves out, the names of those without
    effect). Raises: RequestError"""
    chain = chain_of(body.samplers)
    if INFILL in chain and not fills_in:
        raise RequestError("infill belongs to /infill.", where="samplers", code="unsupported_field")
    off: dict[str, Any] = {}
    for name in CHAIN if chain not in WHOLE else ():
        if name not in chain:
            off |= TURNED_OFF[name]
    declared = {name: value for name, value in off.items() if value is not None}
    if body.temperature == 0:
        declared.pop("temperature", None)
    found = body.model_copy(update=declared)
    for name in off.keys() - declared.keys():
        (found.model_extra or {}).pop(name, None)
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
    """Return the settings of an answer as it was generated. What has no sampler here has its
    neutral value."""
    n_predict = -1 if body.max_tokens is None or body.max_tokens < 0 else body.max_tokens
    constraint = body.structured_outputs
    return {
        "seed": RANDOM if params.seed is None else params.seed,
        "temperature": params.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": max(params.top_k, 0),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "top_n_sigma": params.extra_args.get("top_n_sigma", -1.0),
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": 1.0,
        "repeat_last_n": -1,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "stop": list(params.stop),
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": params.ignore_eos,
        "stream": body.stream,
        "logit_bias": [{"token": key, "bias": bias} for key, bias in params.logit_bias.items()],
        "n_probs": body.n_probs,
        "min_keep": 0,
        "grammar": (constraint.grammar or "") if constraint is not None else "",
        "samplers": chain_of(body.samplers),
        "timings_per_token": body.timings_per_token,
        "post_sampling_probs": body.post_sampling_probs,
        "lora": list(lora),
    }


RANDOM = (1 << 32) - 1
"""How llama.cpp writes a random seed."""
