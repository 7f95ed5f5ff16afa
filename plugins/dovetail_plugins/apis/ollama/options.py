"""The `options` of a request: settings with other names in chat, and options without effect.

Source: Ollama's API reference and its Modelfile reference, parameters.
"""

from __future__ import annotations

from typing import Any

from dovetail.errors import RequestError
from dovetail.server.endpoint import App, fault_of, is_hint
from dovetail_plugins.apis.ollama.keep_alive import seconds_of
from dovetail_plugins.apis.ollama.protocol import OllamaEmbedFields, OllamaOptions, OllamaRequest
from dovetail_plugins.request_fields.samplers import SAMPLERS

LOADING = frozenset(
    {
        "embedding_only",
        "f16_kv",
        "logits_all",
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "penalize_newline",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    }
)
"""Options for how Ollama loads and runs a model: reported, without a warning."""
NAMES = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    **{
        name: f"options.{name}"
        for name in (
            *SAMPLERS,
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "stop",
            "presence_penalty",
            "frequency_penalty",
        )
    },
}
"""Chat's names of the settings -> their names here."""
_AS_THEY_ARE = ("temperature", "top_k", "min_p", "presence_penalty", "frequency_penalty")
NO_SEED = -1


def sampling_of(options: OllamaOptions | None) -> dict[str, Any]:
    """Return the settings as chat fields. Raises: RequestError

    A negative num_predict leaves the length to the context, a seed of -1 makes it random.
    """
    if options is None:
        return {}
    fields: dict[str, Any] = {name: getattr(options, name) for name in _AS_THEY_ARE}
    if options.num_predict == 0:
        raise RequestError(
            "an answer has at least one token.",
            where="options.num_predict",
            fix="use -1 for as many as the context holds.",
        )
    if options.num_predict is not None and options.num_predict > 0:
        fields["max_tokens"] = options.num_predict
    if options.seed != NO_SEED:
        fields["seed"] = options.seed
    if options.top_p is not None:
        fields["top_p"] = options.top_p or 1e-6  # 0 allows only the most likely token
    if options.stop:
        fields["stop"] = options.stop
    extra = options.model_extra or {}
    fields |= {name: extra[name] for name in SAMPLERS if name in extra}
    return {**fields, "repetition_penalty": options.repeat_penalty}


def check_fields(server: App, body: OllamaRequest | OllamaEmbedFields) -> list[str]:
    """Return the names of fields and options without effect. Raises: RequestError for an
    unsupported one that would change the answer"""
    names = server.fields.check(body, known=("messages.", "options."))
    if body.keep_alive is not None:
        seconds_of(body.keep_alive)
        names.append("keep_alive")
    if isinstance(body, OllamaRequest) and body.shift:
        names.append("shift")
    options = body.options
    if options is None:
        return names
    if options.num_ctx is not None and options.num_ctx > server.engine.spec.run.max_model_tokens:
        names.append("options.num_ctx")
    unknown = []
    for name, value in (options.model_extra or {}).items():
        if name in SAMPLERS and name in server.fields.claimed:
            continue
        fault = fault_of(name, value)
        if fault is not None:
            raise RequestError(fault, where=f"options.{name}", code="unsupported_field")
        names.append(f"options.{name}")
        if name not in LOADING and not is_hint(name):
            unknown.append(f"options.{name}")
    server.fields.report(unknown)
    return names
