"""Translated flags: deprecated ones and newer spellings, each with one note to the user.

A deprecated flag is a field of `DeprecatedFlags` and has a row in `MAPPED`, which turns its value
into current fields. Newer flags of other servers are in the tables of the kind `foreign_flags`.
Every source of settings calls `translate`, so the rest of dovetail never sees these flags.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dovetail.config.sections.field import Flag, flag, flags_of
from dovetail.config.sections.frontend import NO_PARSER
from dovetail.errors import ConfigError
from dovetail.unsupported import remedy, sentence, what

Fields = dict[str, Any]
KIND, NEWER = "foreign_flags", "NewerFlags"
"""The kind of the tables of newer flags, and the group of these flags."""
NOTHING = "nothing: "
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


@dataclass(frozen=True, slots=True)
class Mapped:
    """The translation of a deprecated flag: the current `flag`, for users, and its `fields`.

    If it waits for a missing `feature`, or is refused with what to do `instead`, `fields` accepts
    only values that do not request it.
    """

    flag: str
    fields: Callable[[Any], Fields]
    feature: str | None = None
    instead: str | None = None

    @property
    def today(self) -> str:
        """Return the current spelling of the flag, as a user writes it."""
        return self.flag if self.feature is None else f"{NOTHING}{what(self.feature)}"

    @property
    def state(self) -> str:
        """Return "mapped" to a current flag, "taken" without effect, or "refused"."""
        if self.instead is not None:
            return "refused"
        return "taken" if self.today.startswith(NOTHING) else "mapped"


def by_field(name: str) -> Mapped:
    """Return the row of another name for a flag."""
    return Mapped("--" + name.replace("_", "-"), lambda value: {name: value})


def by_key(name: str, key: str) -> Mapped:
    """Return the row of another name for a key of a JSON flag."""
    flag_name = "--" + name.replace("_", "-")
    return Mapped(f"{flag_name}.{key}", lambda value: {name: {key: value}})


def _settled(always: str) -> Mapped:
    """Return the row of a flag that changes nothing, whatever its value."""
    return Mapped(f"{NOTHING}{always}", lambda value: {})


def _waits_for(feature: str, *passing: Any) -> Mapped:
    """Return the row of a flag that requests a missing feature, except with one of these values."""

    def check(value: Any) -> Fields:
        if not is_one_of(value, passing):
            raise ConfigError(sentence(feature), fix=remedy(feature, "leave the flag out"))
        return {}

    return Mapped(NOTHING, check, feature)


def is_one_of(value: Any, passing: tuple[Any, ...]) -> bool:
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


_WHATEVER_THE_CONTEXT = _settled("steps are captured per batch size, for any context length")
_POOL = _settled(what("tokenizer_pool"))

MAPPED: dict[str, Mapped] = {
    "disable_log_requests": Mapped(
        "--no-enable-log-requests", lambda value: {"enable_log_requests": not value}
    ),
    "task": Mapped("--runner and --convert", _task),
    "worker_use_ray": Mapped("--distributed-executor-backend ray", _ray),
    "enable_reasoning": Mapped("--reasoning-parser, which turns it on", _reasoning),
    "guided_decoding_backend": Mapped("--structured-outputs-config.backend", _guided_backend),
    "guided_decoding_disable_fallback": by_key("structured_outputs_config", "disable_fallback"),
    "guided_decoding_disable_any_whitespace": by_key(
        "structured_outputs_config", "disable_any_whitespace"
    ),
    "guided_decoding_disable_additional_properties": by_key(
        "structured_outputs_config", "disable_additional_properties"
    ),
    "override_pooler_config": by_field("pooler_config"),
    "speculative_model": Mapped("--speculative-config.model", _speculative_model),
    "num_speculative_tokens": by_key("speculative_config", "num_speculative_tokens"),
    "ngram_prompt_lookup_max": by_key("speculative_config", "prompt_lookup_max"),
    "ngram_prompt_lookup_min": by_key("speculative_config", "prompt_lookup_min"),
    "speculative_disable_by_batch_size": by_key("speculative_config", "disable_by_batch_size"),
    "speculative_model_quantization": by_key("speculative_config", "quantization"),
    "speculative_draft_tensor_parallel_size": by_key(
        "speculative_config", "draft_tensor_parallel_size"
    ),
    "speculative_max_model_len": by_key("speculative_config", "max_model_len"),
    "eplb_log_balancedness": by_key("eplb_config", "log_balancedness"),
    "eplb_step_interval": by_key("eplb_config", "step_interval"),
    "eplb_window_size": by_key("eplb_config", "window_size"),
    "num_redundant_experts": by_key("eplb_config", "num_redundant_experts"),
    "enable_multimodal_encoder_data_parallel": Mapped(
        "--mm-encoder-tp-mode data",
        lambda value: {"mm_encoder_tp_mode": "data"} if value else {},
    ),
    "disable_mm_preprocessor_cache": Mapped(
        "--mm-processor-cache-gb 0", lambda value: {"mm_processor_cache_gb": 0} if value else {}
    ),
    "disable_cascade_attn": _settled("cascade attention is not used"),
    "max_context_len_to_capture": _WHATEVER_THE_CONTEXT,
    "max_seq_len_to_capture": _WHATEVER_THE_CONTEXT,
    "qlora_adapter_name_or_path": Mapped("--lora-modules with --enable-lora", _qlora),
    "override_neuron_config": _waits_for("neuron", {}),
    "preemption_mode": Mapped("--swap-space", _preemption),
    "num_lookahead_slots": _settled("slots for a draft are allocated when its step is planned"),
    "num_scheduler_steps": _settled(
        "steps are planned one by one; --async-scheduling plans one ahead"
    ),
    "multi_step_stream_outputs": _settled("every token is always streamed at once"),
    "scheduler_delay_factor": _settled("prefills are not delayed"),
    "use_v2_block_manager": _settled("there is one block manager"),
    "disable_async_output_proc": _settled("outputs are always processed during the next step"),
    "disable_logprobs_during_spec_decoding": by_key("speculative_config", "disable_logprobs"),
    "spec_decoding_acceptance_method": by_key("speculative_config", "acceptance_method"),
    "speculative_disable_mqa_scorer": by_key("speculative_config", "disable_mqa_scorer"),
    "typical_acceptance_sampler_posterior_threshold": by_key(
        "speculative_config", "posterior_threshold"
    ),
    "typical_acceptance_sampler_posterior_alpha": by_key("speculative_config", "posterior_alpha"),
    "tokenizer_pool_size": _POOL,
    "tokenizer_pool_type": _POOL,
    "tokenizer_pool_extra_config": _POOL,
}


@dataclass(frozen=True, slots=True)
class NewerFlag:
    """A row of a table of the kind `foreign_flags`: the flag, and what becomes of its value."""

    flag: Flag
    row: Mapped


@cache
def newer_flags() -> dict[str, NewerFlag]:
    """Return the newer flags of other servers by field name."""
    from dovetail import registry  # whose modules read settings

    tables = [registry.admin.value_of(KIND, server) for server in registry.names(KIND)]
    return {name: newer for table in tables for name, newer in table.items()}


@cache
def deprecated_flags() -> dict[str, Flag]:
    """Return the older flags by field name."""
    return {flag.name: flag for flag in flags_of(DeprecatedFlags)}


def translated_flags() -> Iterator[Flag]:
    """Yield the older flags, then the newer ones, whose tables are read only then."""
    yield from deprecated_flags().values()
    yield from (newer.flag for newer in newer_flags().values())


def flag_of(name: str) -> Flag | None:
    """Return an older flag by field name, or else a newer one."""
    return next((flag for flag in translated_flags() if flag.name == name), None)


def row_of(name: str) -> Mapped:
    """Return the translation of an older or a newer flag."""
    return MAPPED[name] if name in MAPPED else newer_flags()[name].row


def translate(name: str, value: Any) -> tuple[Fields, str]:
    """Return the current fields for a deprecated flag's value, and the note to show.

    Raises: ConfigError for a value without an equivalent.
    """
    row, spelling = row_of(name), "--" + name.replace("_", "-")
    nothing = row.today.removeprefix(NOTHING)
    word = "now " if name in MAPPED else ""
    change = f"changes nothing: {nothing}" if nothing != row.today else f"is {word}{row.today}"
    try:
        return row.fields(value), f"{spelling} {change}."
    except ConfigError as error:
        raise ConfigError(error.what, where=spelling, fix=error.fix) from error
