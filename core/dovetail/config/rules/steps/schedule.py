"""The limits of a step: its tokens and requests, and how prompts are divided into parts."""

from __future__ import annotations

import logging

from dovetail import registry
from dovetail.config.checkpoint.context_length import model_tokens, window_tokens, within_window
from dovetail.config.checkpoint.model_facts import facts_of, media_see_all
from dovetail.config.config import Config
from dovetail.config.rules.adapters import long_factors
from dovetail.config.rules.machine.device import at_most
from dovetail.config.rules.multimodal.kinds import allowed_kinds, has_processor
from dovetail.config.sections.lora import LoRAConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.multimodal import MultiModalConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.config.sections.scheduler import SchedulerConfig
from dovetail.config.sections.speculative import SpeculativeConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import SOUND, ModelSpec
from dovetail.interfaces.platform import Platform, PlatformDefaults

log = logging.getLogger(__name__)

STEP_TOKENS = "--max-num-batched-tokens"
KEPT_ENCODER_ROWS = 8192
"""Minimum number of media vectors that are cached for other requests."""
SPOKEN_ROWS = 1
"""Usual rows of a model of speech. A row takes seconds, in which the engine answers nothing."""
SEEN_WHOLE = "taking images in prompts that see themselves both ways"


def schedule_spec(
    config: Config, model: ModelSpec, platform: Platform, most_tokens: int | None = None
) -> ScheduleSpec:
    """Return the limits of a step. A context length that no flag sets is at most `most_tokens`.

    Raises: ConfigError if they are contradictory.
    """
    scheduler = config.scheduler
    may_exceed = config.model.allow_long_max_model_len
    may_exceed = may_exceed or _is_for_adapters(config.model, config.lora, model)
    length = model_tokens(config.model.max_model_len, model, may_exceed=may_exceed)
    if most_tokens is not None and config.model.max_model_len is None:
        length = min(length, most_tokens)
    finds = finds_prefixes(config.model, config.multimodal, model)
    is_divisible = model.is_causal and finds
    if config.model.disable_sliding_window:
        length = within_window(config.model.max_model_len, length, model)
    if not finds and window_tokens(model.hf_config) is not None:
        length = within_window(config.model.max_model_len, length, model, SEEN_WHOLE)
    usual, limits = platform.defaults(), platform.limits()
    mode = scheduler.performance_mode
    is_chunked = scheduler.enable_chunked_prefill and is_divisible
    of_tokens, of_rows = registry.admin.value_of(
        "performance_mode", mode, where="--performance-mode"
    )
    asked_tokens, largest = scheduler.max_num_batched_tokens, limits.step_tokens
    usual_tokens = int(usual.step_tokens * of_tokens)
    step_tokens = at_most(asked_tokens, usual_tokens, largest, STEP_TOKENS, platform)
    if not is_chunked:
        step_tokens = _whole_prompt_tokens(asked_tokens, step_tokens, length)
        at_most(step_tokens, 0, largest, STEP_TOKENS, platform)
    usual_rows = min(int(usual.rows * of_rows), step_tokens)
    if model.head == SOUND:
        usual_rows = min(usual_rows, SPOKEN_ROWS)
    rows = at_most(scheduler.max_num_seqs, usual_rows, limits.rows, "--max-num-seqs", platform)
    if rows > step_tokens:
        raise ConfigError(
            f"{rows} requests cannot each get a token out of {step_tokens} per step.",
            where="--max-num-seqs",
            fix=f"use at most {step_tokens}, or raise --max-num-batched-tokens.",
        )
    return ScheduleSpec(
        max_rows=rows,
        max_step_tokens=step_tokens,
        max_model_tokens=length,
        uses_chunked_prefill=is_chunked,
        long_prefill_tokens=scheduler.long_prefill_token_threshold,
        async_steps=_plans_ahead(config.scheduler, config.speculative, config.parallel, usual),
        max_partial=_max_partial(scheduler),
        max_long_partial=scheduler.max_long_partial_prefills,
        long_prompt_tokens=scheduler.long_prefill_token_threshold or step_tokens,
        num_stages=config.parallel.pipeline_parallel_size,
        encoder_rows=step_tokens,
        kept_encoder_rows=max(step_tokens, KEPT_ENCODER_ROWS),
        keeps_parts_whole=config.multimodal.disable_chunked_mm_input
        or media_see_all(model.whole_config),
    )


def finds_prefixes(
    model_config: ModelConfig, multimodal: MultiModalConfig, model: ModelSpec
) -> bool:
    """Return whether the cache of a prompt's prefix is valid for all prompts with that prefix. It
    is not if prompts with media use full attention and are therefore computed in one step."""
    takes_media = has_processor(model) and bool(allowed_kinds(model_config, multimodal, model))
    return not (takes_media and facts_of(model.whole_config).prompts_see_all)


def _plans_ahead(
    scheduler: SchedulerConfig,
    speculative: SpeculativeConfig,
    parallel: ParallelConfig,
    usual: PlatformDefaults,
) -> bool:
    """Return whether a step is planned while the previous one runs. By default only if nothing has
    to wait for that step's tokens: no draft and no stage."""
    flag = scheduler.async_scheduling
    if flag is not None:
        return flag
    is_alone = parallel.pipeline_parallel_size == 1
    return usual.async_steps and is_alone and not speculative.speculative_config


def _is_for_adapters(model_config: ModelConfig, lora: LoRAConfig, model: ModelSpec) -> bool:
    """Return whether the context length is reachable for adapters with a RoPE scaling."""
    asked, largest = model_config.max_model_len, max(long_factors(lora), default=1.0)
    return isinstance(asked, int) and 0 < asked <= model.max_position_tokens * largest


def _max_partial(scheduler: SchedulerConfig) -> int | None:
    """Return the maximum number of partial prefills, None for no limit. Raises: ConfigError for
    contradictory limits."""
    limit, most_long = scheduler.max_num_partial_prefills, scheduler.max_long_partial_prefills
    if not scheduler.enable_chunked_prefill and max(limit or 1, most_long or 1) > 1:
        log.warning(
            "--max-num-partial-prefills and --max-long-partial-prefills have no effect: they need "
            "chunked prefill"
        )
        return None
    if limit is not None and most_long is not None and most_long > limit:
        raise ConfigError(
            f"{most_long} long partial prefills are more than {limit} partial prefills in total.",
            where="--max-long-partial-prefills",
            fix=f"give at most {limit}, or raise --max-num-partial-prefills.",
        )
    return limit


def _whole_prompt_tokens(requested: int | None, default: int, length: int) -> int:
    if requested is not None and requested < length:
        raise ConfigError(
            f"without chunked prefill a step must hold a whole prompt of {length} tokens.",
            where="--max-num-batched-tokens",
            fix=f"use at least {length}, lower --max-model-len, or allow chunked prefill.",
        )
    return max(default, length)
