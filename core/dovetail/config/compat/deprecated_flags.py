"""Translated flags: deprecated ones and newer spellings, each with one note to the user.

Such a flag is a field of `DeprecatedFlags` or `NewerFlags` and has a row in `MAPPED`, which turns
its value into current fields. Every source of settings calls `translate`, so the rest of dovetail
never sees these flags. A flag without an equivalent accepts only values that request what always
happens anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dovetail.config.sections.field import Flag, flag, flags_of
from dovetail.config.sections.frontend import NO_PARSER
from dovetail.errors import ConfigError
from dovetail.unsupported import remedy, sentence, what

Fields = dict[str, Any]
_NOTHING = "nothing: "
_GUIDED_WORDS = {
    "no-fallback": "disable_fallback",
    "disable-any-whitespace": "disable_any_whitespace",
    "no-additional-properties": "disable_additional_properties",
}
"""Word after a backend's name and a colon -> its current key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeprecatedFlags:
    """Spellings of earlier generations."""

    disable_log_requests: bool | None = flag(None, help="do not log requests, which is the default")
    task: str | None = flag(None, kind="task", help="what the model is run for")
    worker_use_ray: bool | None = flag(None, help="drive workers through Ray")
    enable_reasoning: bool | None = flag(None, help="separate reasoning from the answer")
    guided_decoding_backend: str | None = flag(
        None, kind="structured_output_backend", help="backend for structured outputs"
    )
    guided_decoding_disable_fallback: bool | None = flag(
        None,
        help="reject a request whose constraint the backend cannot enforce, instead of trying "
        "another backend",
    )
    guided_decoding_disable_any_whitespace: bool | None = flag(
        None, help="allow no optional white space in JSON"
    )
    guided_decoding_disable_additional_properties: bool | None = flag(
        None, help="treat JSON schemas as if additionalProperties were false"
    )
    override_pooler_config: Mapping[str, Any] = flag(
        {}, kind="pooler", help="settings of pooling models"
    )
    speculative_model: str | None = flag(None, help="[ngram], or a draft model")
    num_speculative_tokens: int | None = flag(None, ge=1, unit="tokens", help="longest draft")
    ngram_prompt_lookup_max: int | None = flag(
        None, ge=1, unit="tokens", help="longest n-gram that is looked up"
    )
    ngram_prompt_lookup_min: int | None = flag(
        None, ge=1, unit="tokens", help="shortest n-gram that is looked up"
    )
    speculative_disable_by_batch_size: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="maximum number of requests with which speculation stays on",
    )
    speculative_model_quantization: str | None = flag(
        None, kind="quantization", help="quantization method of the draft model"
    )
    speculative_draft_tensor_parallel_size: int | None = flag(
        None, ge=1, short="-spec-draft-tp", help="number of devices of the draft model"
    )
    speculative_max_model_len: int | None = flag(
        None, ge=1, unit="tokens", help="maximum context length of the draft model"
    )
    eplb_log_balancedness: bool | None = flag(None, help="log how evenly the experts are used")
    eplb_step_interval: int | None = flag(
        None, ge=1, unit="steps", help="number of steps between rearrangements of experts"
    )
    eplb_window_size: int | None = flag(
        None, ge=1, unit="steps", help="number of steps over which the experts' load is measured"
    )
    num_redundant_experts: int | None = flag(
        None, ge=0, help="number of additional copies of experts"
    )
    enable_multimodal_encoder_data_parallel: bool | None = flag(
        None, help="divide an encoder's batch over the devices"
    )
    disable_mm_preprocessor_cache: bool | None = flag(None, help="do not cache processed media")
    disable_cascade_attn: bool = flag(
        False,
        help="do not use cascade attention (attention to a shared prefix once for all requests)",
    )
    max_context_len_to_capture: int | None = flag(
        None, ge=0, unit="tokens", help="longest context for captured steps"
    )
    max_seq_len_to_capture: int | None = flag(
        None, ge=0, unit="tokens", help="longest context for captured steps"
    )
    qlora_adapter_name_or_path: str | None = flag(
        None, help="a LoRA adapter over quantized weights; requests name it as it is named here"
    )
    override_neuron_config: Mapping[str, Any] = flag({}, help="settings of AWS Neuron devices")
    preemption_mode: str | None = flag(
        None, kind="preemption_mode", help="how a preempted request gets its KV cache back"
    )
    num_lookahead_slots: int = flag(
        0, ge=0, unit="slots", help="cache slots reserved for drafted tokens"
    )
    num_scheduler_steps: int = flag(1, ge=1, unit="steps", help="steps planned at once")
    multi_step_stream_outputs: bool = flag(True, help="stream every token at once")
    scheduler_delay_factor: float = flag(0.0, ge=0, help="delay before the next prefill")
    use_v2_block_manager: bool = flag(True, help="the second of two block managers")
    disable_async_output_proc: bool = flag(False, help="process outputs within the step")
    disable_logprobs_during_spec_decoding: bool | None = flag(
        None, help="report no logprobs with speculative decoding"
    )
    spec_decoding_acceptance_method: str = flag(
        "rejection_sampler", kind="acceptance", help="how drafted tokens are accepted"
    )
    speculative_disable_mqa_scorer: bool | None = flag(
        None, help="verify each drafted token in a separate row"
    )
    typical_acceptance_sampler_posterior_threshold: float | None = flag(
        None, ge=0, le=1, help="minimum probability of an accepted draft token"
    )
    typical_acceptance_sampler_posterior_alpha: float | None = flag(
        None, ge=0, help="how the acceptance threshold depends on the entropy"
    )
    tokenizer_pool_size: int = flag(0, ge=0, help="number of tokenizer processes")
    tokenizer_pool_type: str = flag("ray", kind="tokenizer_pool", help="kind of tokenizer pool")
    tokenizer_pool_extra_config: Mapping[str, Any] = flag(
        {}, kind="tokenizer_pool", help="options of the tokenizer pool"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewerFlags:
    """Newer spellings of what other flags set."""

    attention_config: Mapping[str, Any] = flag(
        {}, kind="attention_backend", short="-ac", help="settings of attention; backend is read"
    )
    optimization_level: int | None = flag(
        None, ge=0, le=3, help="optimization level of steps, as -O"
    )
    kv_offloading_size: float | None = flag(
        None, ge=0, unit="GiB", help="host memory for KV cache blocks that leave the device"
    )
    kv_offloading_backend: str | None = flag(
        None, metavar="NAME", help="what moves KV cache blocks to host memory: native"
    )
    spec_method: str | None = flag(None, kind="drafter", help="drafter of speculative decoding")
    spec_model: str | None = flag(None, metavar="MODEL", help="draft model")
    spec_tokens: int | None = flag(None, ge=1, unit="tokens", help="longest draft")


NEWER_SUPPORTED = (
    "default_chat_template_kwargs",
    "disable_access_log_for_endpoints",
    "enable_log_deltas",
    "enable_per_request_metrics",
    "performance_mode",
    "sse_keep_alive_interval",
    "ssl_ciphers",
    "stream_interval",
)
"""Flags that other servers have had only for a short time, supported here under the same name."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """The translation of a deprecated flag: the current `flag`, for users, and its `fields`.

    If it waits for a missing `feature`, `fields` accepts only values that do not request it.
    """

    flag: str
    fields: Callable[[Any], Fields]
    feature: str | None = None

    @property
    def today(self) -> str:
        """Return the current spelling of the flag, as a user writes it."""
        return self.flag if self.feature is None else f"{_NOTHING}{what(self.feature)}"


def _field(name: str) -> Mapped:
    return Mapped("--" + name.replace("_", "-"), lambda value: {name: value})


def _key(name: str, key: str) -> Mapped:
    flag_name = "--" + name.replace("_", "-")
    return Mapped(f"{flag_name}.{key}", lambda value: {name: {key: value}})


def _settled(always: str, *passing: Any) -> Mapped:
    """Return the row of a flag that accepts only values for what always happens."""

    def check(value: Any) -> Fields:
        if not _is_one_of(value, passing):
            raise ConfigError(f"{always}.", fix="leave the flag out.")
        return {}

    return Mapped(f"{_NOTHING}{always}", check)


def _waits_for(feature: str, *passing: Any) -> Mapped:
    """Return the row of a flag that requests a missing feature, except with one of these values."""

    def check(value: Any) -> Fields:
        if not _is_one_of(value, passing):
            raise ConfigError(sentence(feature), fix=remedy(feature, "leave the flag out"))
        return {}

    return Mapped(_NOTHING, check, feature)


def _is_one_of(value: Any, passing: tuple[Any, ...]) -> bool:
    """Return whether a value is among these. True == 1 in Python, but a switch is not a number."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in passing)


def _task(value: Any) -> Fields:
    known: dict[str, Fields] = {
        "auto": {},
        "generate": {"runner": "generate"},
        "draft": {"runner": "draft"},
        "transcription": {"runner": "generate"},
        "classify": {"runner": "pooling", "convert": "classify"},
        "reward": {"runner": "pooling", "convert": "reward"},
        "embed": {"runner": "pooling", "convert": "embed"},
        "embedding": {"runner": "pooling", "convert": "embed"},
        "score": {"runner": "pooling"},
    }
    if value not in known:
        raise ConfigError(
            f'"{value}" is not a task.', fix=f"use one of {', '.join(sorted(known))}."
        )
    return known[value]


def _guided_backend(value: Any) -> Fields:
    """A backend may include its options, as in "xgrammar:no-fallback,disable-any-whitespace"."""
    name, _, rest = str(value).partition(":")
    words = rest.split(",")
    if rest and set(words) <= set(_GUIDED_WORDS):
        settings: Fields = {"backend": name, **{_GUIDED_WORDS[word]: True for word in words}}
    else:
        settings = {"backend": value}
    return {"structured_outputs_config": settings}


def _speculative_model(value: Any) -> Fields:
    is_lookup = value in ("[ngram]", "ngram")
    guesser = {"method": "ngram"} if is_lookup else {"model": value}
    return {"speculative_config": guesser}


def _qlora(value: Any) -> Fields:
    """Adapters of quantized weights work as any other; this one is loaded at the start."""
    if value is None:
        return {}
    module = json.dumps({"name": value, "path": value})
    return {"enable_lora": True, "lora_modules": (module,)}


def _preemption(value: Any) -> Fields:
    known: dict[Any, Fields] = {
        None: {},
        "recompute": {"swap_space": 0.0},
        "swap": {"swap_space": 4.0},
    }
    if value not in known:
        raise ConfigError(f'unknown preemption mode "{value}".', fix="use recompute or swap.")
    return known[value]


def _ray(value: Any) -> Fields:
    return {"distributed_executor_backend": "ray"} if value else {}


def _reasoning(value: Any) -> Fields:
    return {} if value else {"reasoning_parser": NO_PARSER}


def _offloading(size_gib: float) -> dict[str, Any]:
    if not size_gib:
        return {}
    extra = {"host_bytes": int(size_gib * 2**30)}
    names = {"kv_connector": "offloading", "kv_role": "kv_both"}
    return {"kv_transfer_config": {**names, "kv_connector_extra_config": extra}}


def _attention(value: Any) -> Fields:
    """Take the backend; all other settings choose among kernels that do not exist here."""
    given = {key: one for key, one in value.items() if one not in (None, False)}
    backend = given.pop("backend", None)
    if given:
        key = next(iter(given))
        raise ConfigError(f"the key {key} is not supported.", fix="give backend alone.")
    return {} if backend is None else {"attention_backend": str(backend).lower()}


_WHATEVER_THE_CONTEXT = Mapped(
    f"{_NOTHING}steps are captured per batch size, for any context length", lambda value: {}
)
_POOL = _waits_for("tokenizer_pool", 0, "ray", {})

MAPPED: dict[str, Mapped] = {
    "disable_log_requests": Mapped(
        "--no-enable-log-requests", lambda value: {"enable_log_requests": not value}
    ),
    "task": Mapped("--runner and --convert", _task),
    "worker_use_ray": Mapped("--distributed-executor-backend ray", _ray),
    "enable_reasoning": Mapped("--reasoning-parser, which turns it on", _reasoning),
    "guided_decoding_backend": Mapped("--structured-outputs-config.backend", _guided_backend),
    "guided_decoding_disable_fallback": _key("structured_outputs_config", "disable_fallback"),
    "guided_decoding_disable_any_whitespace": _key(
        "structured_outputs_config", "disable_any_whitespace"
    ),
    "guided_decoding_disable_additional_properties": _key(
        "structured_outputs_config", "disable_additional_properties"
    ),
    "override_pooler_config": _field("pooler_config"),
    "speculative_model": Mapped("--speculative-config.model", _speculative_model),
    "num_speculative_tokens": _key("speculative_config", "num_speculative_tokens"),
    "ngram_prompt_lookup_max": _key("speculative_config", "prompt_lookup_max"),
    "ngram_prompt_lookup_min": _key("speculative_config", "prompt_lookup_min"),
    "speculative_disable_by_batch_size": _key("speculative_config", "disable_by_batch_size"),
    "speculative_model_quantization": _key("speculative_config", "quantization"),
    "speculative_draft_tensor_parallel_size": _key(
        "speculative_config", "draft_tensor_parallel_size"
    ),
    "speculative_max_model_len": _key("speculative_config", "max_model_len"),
    "eplb_log_balancedness": _key("eplb_config", "log_balancedness"),
    "eplb_step_interval": _key("eplb_config", "step_interval"),
    "eplb_window_size": _key("eplb_config", "window_size"),
    "num_redundant_experts": _key("eplb_config", "num_redundant_experts"),
    "enable_multimodal_encoder_data_parallel": Mapped(
        "--mm-encoder-tp-mode data",
        lambda value: {"mm_encoder_tp_mode": "data"} if value else {},
    ),
    "disable_mm_preprocessor_cache": Mapped(
        "--mm-processor-cache-gb 0", lambda value: {"mm_processor_cache_gb": 0} if value else {}
    ),
    "disable_cascade_attn": _settled("cascade attention is not used", True, False),
    "max_context_len_to_capture": _WHATEVER_THE_CONTEXT,
    "max_seq_len_to_capture": _WHATEVER_THE_CONTEXT,
    "qlora_adapter_name_or_path": Mapped("--lora-modules with --enable-lora", _qlora),
    "override_neuron_config": _waits_for("neuron", {}),
    "preemption_mode": Mapped("--swap-space", _preemption),
    "num_lookahead_slots": Mapped(
        f"{_NOTHING}slots for a draft are allocated when its step is planned", lambda value: {}
    ),
    "num_scheduler_steps": _settled(
        "steps are planned one by one; --async-scheduling plans one ahead", 1
    ),
    "multi_step_stream_outputs": _settled("every token is always streamed at once", True),
    "scheduler_delay_factor": _settled("prefills are not delayed", 0),
    "use_v2_block_manager": _settled("there is one block manager", True),
    "disable_async_output_proc": _settled(
        "outputs are always processed during the next step", False
    ),
    "disable_logprobs_during_spec_decoding": _key("speculative_config", "disable_logprobs"),
    "spec_decoding_acceptance_method": _key("speculative_config", "acceptance_method"),
    "speculative_disable_mqa_scorer": _key("speculative_config", "disable_mqa_scorer"),
    "typical_acceptance_sampler_posterior_threshold": _key(
        "speculative_config", "posterior_threshold"
    ),
    "typical_acceptance_sampler_posterior_alpha": _key("speculative_config", "posterior_alpha"),
    "tokenizer_pool_size": _POOL,
    "tokenizer_pool_type": _POOL,
    "tokenizer_pool_extra_config": _POOL,
    "attention_config": Mapped("--attention-backend", _attention),
    "optimization_level": Mapped(
        "--compilation-config.level", lambda value: {"compilation_config": {"level": value}}
    ),
    "kv_offloading_size": Mapped("--kv-transfer-config", _offloading),
    "kv_offloading_backend": _settled(
        "blocks are always moved to host memory by dovetail itself (native)", None, "native"
    ),
    "spec_method": _key("speculative_config", "method"),
    "spec_model": _key("speculative_config", "model"),
    "spec_tokens": _key("speculative_config", "num_speculative_tokens"),
}


@cache
def deprecated_flags() -> dict[str, Flag]:
    """Return all translated flags, older and newer ones, by field name."""
    return {flag.name: flag for flag in (*flags_of(DeprecatedFlags), *flags_of(NewerFlags))}


def is_newer(name: str) -> bool:
    """Return whether a translated flag is a newer spelling."""
    return any(flag.name == name for flag in flags_of(NewerFlags))


def _today_of(name: str) -> str:
    word = "" if is_newer(name) else "now "
    return f"{word}{MAPPED[name].today}"


def translate(name: str, value: Any) -> tuple[Fields, str]:
    """Return the current fields for a deprecated flag's value, and the note to show.

    Raises: ConfigError for a value without an equivalent.
    """
    row, spelling = MAPPED[name], deprecated_flags()[name].spelling
    nothing = row.today.removeprefix(_NOTHING)
    change = f"changes nothing: {nothing}" if nothing != row.today else f"is {_today_of(name)}"
    try:
        return row.fields(value), f"{spelling} {change}."
    except ConfigError as error:
        raise ConfigError(error.what, where=spelling, fix=error.fix) from error
