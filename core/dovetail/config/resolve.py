"""Resolve a Config to an EngineSpec: decide every "auto", run every check that needs no weights.

Imports no torch. Each rule is in its own file; this one puts them in order.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.context_length import without_window
from dovetail.config.checkpoint.kv_scales import kv_scales, kv_steps
from dovetail.config.checkpoint.odd_values import odd_values_named
from dovetail.config.config import Config
from dovetail.config.rules import selections
from dovetail.config.rules.adapters import (
    adapter_search,
    adapter_spec,
    check_adapter_flags,
    first_adapters,
)
from dovetail.config.rules.checks import checked
from dovetail.config.rules.drafts import speculation
from dovetail.config.rules.drafts.worker import draft_bytes, runs_on_worker, worker_drafts
from dovetail.config.rules.io_processors import select_io_processor
from dovetail.config.rules.machine.cores import chosen_cores
from dovetail.config.rules.machine.device import (
    block_tokens,
    check_dtypes,
    check_quantization,
    select_platform,
)
from dovetail.config.rules.machine.host_memory import (
    HOST_MEMORY,
    may_sleep,
    offload_bytes,
    swap_bytes,
)
from dovetail.config.rules.machine.platform import available_bytes, default_threads
from dovetail.config.rules.model import checkpoint_code
from dovetail.config.rules.model.checkpoint import (
    check_files,
    hub_of,
    load_options,
    model_folder,
    model_spec,
    sampling_of,
    served_names,
    with_code,
)
from dovetail.config.rules.model.encoder_decoder import check_encoder
from dovetail.config.rules.model.shared_layers import leaves_out_tokens
from dovetail.config.rules.model.tokenizer import select_tokenizer, tokenizer_path
from dovetail.config.rules.multimodal.media import (
    encoder_mode,
    encodings_bytes,
    media_spec,
    sound_settings,
    takes_vectors,
)
from dovetail.config.rules.observability.log_config import log_fields
from dovetail.config.rules.observability.profiling import profile_spec
from dovetail.config.rules.parallel import stages
from dovetail.config.rules.parallel.context_parallel import check_context
from dovetail.config.rules.parallel.engines import HOST_CORES, engine_numbers, with_engines
from dovetail.config.rules.parallel.experts import expert_settings, over_engines, select_all2all
from dovetail.config.rules.parallel.placement import launched, max_restarts, places_ranks
from dovetail.config.rules.parallel.ranks import (
    cached_model,
    check_division,
    check_executor,
    rank_processors,
    rank_spec,
    select_communicator,
)
from dovetail.config.rules.parallel.worker_extension import worker_extension
from dovetail.config.rules.pooling.purpose import Purpose, purpose
from dovetail.config.rules.steps.attention import attention_dtype, select_attention
from dovetail.config.rules.steps.cache_size import (
    STATE_BLOCK_TOKENS,
    cpu_cache_bytes,
    fit_schedule,
    kv_bytes,
)
from dovetail.config.rules.steps.compile_level import step_making
from dovetail.config.rules.steps.halves import halves_spec
from dovetail.config.rules.steps.kv_transfer import check_parts, events_spec, transfer_spec
from dovetail.config.rules.steps.schedule import finds_prefixes, schedule_spec
from dovetail.config.rules.structured_output import structured_output_spec
from dovetail.errors import ConfigError
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import (
    CacheSpec,
    EngineSpec,
    ModelSpec,
    RankSpec,
    RunSpec,
    Selection,
    WorkerDraftSpec,
)
from dovetail.interfaces.platform import Platform
from dovetail.registry import hooks
from dovetail.registry.blame import blaming


@blaming("reading the configuration")
def resolve(config: Config) -> EngineSpec:
    """Return the resolved engine. Raises: ConfigError for the first fault."""
    config = checked(config)
    chosen, platform = select_platform(config.device, config.plugin)
    executor = _executor(config, platform)  # checked first: fetching a model may take long
    folder = model_folder(config.model, config.load, config.parallel)
    model = model_spec(config.model, config.load, folder, platform)
    with odd_values_named(Path(model.path, "config.json"), model.hf_config):
        spec = _resolved(config, purpose(config, model), platform, executor)
        spec = with_engines(spec, config.parallel, config.device, config.plugin, platform)
        spec = msgspec.structs.replace(spec, platform=chosen)
        platform.check(spec)
    if registry.admin.hook_entries():
        hooks.tell(hooks.config_resolved, {"spec": spec})
    return spec


def _resolved(config: Config, aim: Purpose, platform: Platform, executor: Selection) -> EngineSpec:
    model = with_code(config.model, config.load, aim.model)
    schedule = schedule_spec(config, model, platform, aim.max_tokens)
    if config.model.disable_sliding_window:
        model = without_window(model)
    aim = replace(aim, model=model)
    requested = registry.admin.value_of("kv_cache_dtype", config.cache.kv_cache_dtype)
    kv_dtype = requested or platform.defaults().kv_dtype or model.weight_dtype
    check_dtypes(platform, weight_dtype=model.weight_dtype, kv_dtype=kv_dtype)
    rank = stages.staged(rank_spec(config.parallel), config.parallel, model)
    cached = cached_model(model, rank)
    if config.scheduler.disable_hybrid_kv_cache_manager:
        cached = without_window(cached)
    speculation.check_states(config.speculative, config.parallel, model)
    aim = replace(aim, drafts=_worker_drafts(config, aim, schedule, kv_dtype, platform))
    beside = draft_bytes(aim.drafts, kv_dtype, rank.tensor_size)
    cache = cache_spec(config, cached, schedule, kv_dtype, platform, beside)
    schedule = fit_schedule(
        config.model, config.parallel, cached, schedule, cache, kv_dtype, beside
    )
    return _engine_spec(config, aim, schedule, cache, kv_dtype, platform, executor)


def cache_spec(
    config: Config,
    model: ModelSpec,
    schedule: ScheduleSpec,
    kv_dtype: str,
    platform: Platform,
    draft_bytes: int = 0,
) -> CacheSpec:
    """Return the KV cache's size and rules. A drafter caches another `draft_bytes` per token."""
    section = config.cache
    memory = section.kv_cache_memory_bytes
    rank = rank_spec(config.parallel)
    block = _block_tokens(config, model, platform) * rank.context_size
    if memory is None and HOST_MEMORY in platform.capabilities:
        share = (
            section.gpu_memory_utilization if config.is_given("gpu_memory_utilization") else None
        )
        step_tokens = schedule.max_step_tokens
        slack = step_tokens + 2 * block
        count = max(1, len(engine_numbers(config.parallel)))
        free = available_bytes() // (count * rank.local_size)
        max_tokens = schedule.max_model_tokens + slack
        one = kv_bytes(
            model, kv_dtype, max_tokens, step_tokens, rank.context_size, draft_bytes=draft_bytes
        )
        memory = cpu_cache_bytes(free, share, schedule.max_rows * one)
    return CacheSpec(
        block_tokens=block,
        num_blocks=section.num_gpu_blocks_override,
        memory_bytes=memory,
        memory_share=section.gpu_memory_utilization,
        uses_prefix_cache=section.enable_prefix_caching
        and finds_prefixes(config.model, config.multimodal, model),
        hash_algorithm=registry.admin.value_of("hash_algorithm", section.prefix_caching_hash_algo),
        keeps_windows=config.scheduler.disable_hybrid_kv_cache_manager,
    )


def _executor(config: Config, platform: Platform) -> Selection:
    """Return the executor that drives the ranks. Raises: ConfigError if it cannot drive them all"""
    rank = rank_spec(config.parallel)
    parallel, usual = config.parallel, platform.defaults()
    executor = selections.select_executor(parallel, config.plugin, usual, rank.world_size)
    check_executor(executor, rank)
    return executor


def _block_tokens(config: Config, model: ModelSpec, platform: Platform) -> int:
    """Return the tokens per block. Models that cache only recurrent states get larger blocks."""
    facts = model.cache
    if facts is None or facts.num_attention_layers or config.cache.block_size is not None:
        return block_tokens(config.cache, platform)
    return STATE_BLOCK_TOKENS


def _worker_drafts(
    config: Config, aim: Purpose, schedule: ScheduleSpec, kv_dtype: str, platform: Platform
) -> WorkerDraftSpec | None:
    """Return the drafter that runs on the worker of a generating model, if one was requested."""
    choice = speculation.asked_drafter(config.model, config.load, config.speculative, config.plugin)
    if choice is None or not runs_on_worker(registry.admin.load_selection(choice.drafter)):
        return None
    if aim.pooling is not None:
        raise ConfigError(
            "the model does not generate, so there is nothing to draft.",
            where="--speculative-config",
            fix="leave the flag out.",
        )
    hub = hub_of(config.model, config.load)
    return worker_drafts(config, choice, aim.model, schedule, kv_dtype, platform, hub)


def _engine_spec(
    config: Config,
    aim: Purpose,
    schedule: ScheduleSpec,
    cache: CacheSpec,
    kv_dtype: str,
    platform: Platform,
    executor: Selection,
) -> EngineSpec:
    model = aim.model
    run = _run_spec(config, model, schedule, cache, kv_dtype, platform)
    hub, names = hub_of(config.model, config.load), served_names(config.model)
    path = tokenizer_path(config.model, Path(model.path), hub)
    tokenizer = select_tokenizer(config, path, hub)
    check_adapter_flags(config)
    adapters = adapter_spec(config.lora, config.prompt_adapter, config.plugin, model, tokenizer)
    run = msgspec.structs.replace(run, pooling=aim.pooling, drafts=aim.drafts, adapters=adapters)
    check_quantization(platform, run.quantization)
    check_files(config.load, config.parallel, run)
    is_used = model.code is not None or checkpoint_code.OPTION in tokenizer.options
    checkpoint_code.tell_unused(config.model, is_used=is_used)
    if aim.pooling is None:
        structured_output = structured_output_spec(
            config.structured, config.plugin, model, tokenizer, str(path)
        )
        run = msgspec.structs.replace(run, structured_output=structured_output)
    usual = platform.defaults()
    scheduler = selections.select_scheduler(config.scheduler, config.plugin, config.origins, usual)
    worker = selections.select_worker(config.parallel, config.plugin, config.engine, usual)
    stages.check_parts(run.rank, scheduler, executor, worker)
    host_bytes = swap_bytes(config.cache, config.origins, platform, scheduler, worker)
    profile = profile_spec(config.observability, executor)
    run = msgspec.structs.replace(run, transfer=transfer_spec(config, run), profile=profile)
    run = msgspec.structs.replace(run, tokenizer=tokenizer, tokenizer_path=str(path))
    check_parts(run.transfer, scheduler, executor, worker)
    media = media_spec(config.model, config.lora, config.multimodal, config.parallel, model)
    return EngineSpec(
        run=run,
        cache=msgspec.structs.replace(cache, host_bytes=host_bytes),
        schedule=schedule,
        scheduler=scheduler,
        policy=selections.select(
            "scheduling_policy",
            config.scheduler.scheduling_policy,
            where="--scheduling-policy",
            options=config.plugin.options_of("scheduling_policy"),
        ),
        kv_policy=selections.select_kv_policy(config.cache, config.plugin, usual),
        executor=executor,
        worker=worker,
        tokenizer=tokenizer,
        tokenizer_path=str(path),
        drafting=speculation.draft_spec(config, model, schedule, scheduler),
        stat_loggers=selections.select_stat_loggers(config.observability, config.plugin),
        hooks=hooks.selections() if registry.admin.hook_entries() else (),
        served_names=names,
        request_seed=_request_seed(config),
        max_logprobs=config.model.max_logprobs,
        processor_pattern=_pattern(config.model.logits_processor_pattern),
        stop_conditions=selections.select_installed("stop_condition", config.plugin),
        default_sampling=sampling_of(config.model, model.path),
        **log_fields(config.observability),
        step_timeout_s=config.engine.engine_step_timeout,
        max_restarts=max_restarts(config.engine.max_engine_restarts, config.parallel),
        reply_timeout_s=config.engine.engine_reply_timeout,
        socket_dir=config.engine.socket_dir,
        times_steps=bool(config.observability.collect_detailed_traces),
        can_sleep=may_sleep(config.model, executor, worker),
        adapters=first_adapters(config.lora, config.prompt_adapter, hub, names),
        adapter_search=adapter_search(config.model, config.lora, config.plugin, names, hub, model),
        events=events_spec(config.cache, config.engine),
        media=media,
        sounds=sound_settings(config.multimodal, model),
        takes_vectors=takes_vectors(config.model, run),
        io_processor=select_io_processor(config.model, config.plugin, run.pooling),
    )


def _run_spec(
    config: Config,
    model: ModelSpec,
    schedule: ScheduleSpec,
    cache: CacheSpec,
    kv_dtype: str,
    platform: Platform,
) -> RunSpec:
    rank = stages.staged(rank_spec(config.parallel), config.parallel, model)
    model_plugin = selections.select_model(config.model, config.multimodal, config.plugin, model)
    check_division(model, model_plugin, rank)
    stages.check_model(model_plugin, rank)
    stages.check_sources(model, rank)
    check_context(model, rank)
    check_encoder(config.speculative, config.lora, model, rank)
    load, parallel, plugins, origins = config.load, config.parallel, config.plugin, config.origins
    load_format = selections.select_load_format(load, plugins, origins, model.path)
    rank = over_engines(config.model, parallel, model, rank)
    placement, balance = expert_settings(config.cache, parallel, origins, model, rank, load_format)
    processors = chosen_cores(config.device.cpu_cores)
    of_ranks, threads = _rank_threads(config, rank, processors, platform)
    offloaded = offload_bytes(config.model, config.cache, platform)
    stage, scale = registry.admin.value_of("logprobs_mode", config.model.logprobs_mode)
    conv_dtype = registry.admin.value_of("mamba_cache_dtype", config.cache.mamba_cache_dtype)
    state_dtype = registry.admin.value_of("mamba_cache_dtype", config.cache.mamba_ssm_cache_dtype)
    recorded, rows = platform.defaults().recorded_rows, schedule.max_rows
    communicator = select_communicator(parallel, plugins, platform, rank)
    making = step_making(
        config.model, config.scheduler, config.engine, recorded_rows=recorded, max_rows=rows
    )
    return RunSpec(
        model=model,
        device=platform.device_type,
        ops=dict(platform.ops),
        kv_dtype=kv_dtype,
        conv_state_dtype=conv_dtype or model.weight_dtype or model.dtype,
        state_dtype=state_dtype or conv_dtype or "float32",
        leaves_out_tokens=leaves_out_tokens(config.cache, model, model_plugin),
        attention_dtype=attention_dtype(config.model, model),
        encoder_mode=encoder_mode(config.multimodal),
        encodings_bytes=encodings_bytes(config.model, config.multimodal, model, schedule),
        block_tokens=cache.block_tokens,
        max_rows=rows,
        max_step_tokens=schedule.max_step_tokens,
        max_model_tokens=schedule.max_model_tokens,
        seed=config.model.seed or 0,
        model_plugin=model_plugin,
        load_format=load_format,
        quantization=selections.select_quantization(config.model, load, plugins, model),
        attention=select_attention(config, model, kv_dtype, platform),
        logits_processors=selections.select_logits_processors(config.model, plugins),
        num_threads=config.device.num_threads or threads,
        processors=processors,
        rank=rank,
        rank_processors=of_ranks,
        expert_placement=placement,
        expert_balance=balance,
        worker_extension=worker_extension(parallel),
        communicator=communicator,
        halves=halves_spec(parallel, origins, rank, communicator),
        all2all=select_all2all(parallel, plugins, origins, rank),
        thread_spin_us=config.device.thread_spin_us,
        logprobs_stage=stage,
        logprobs_scale=scale,
        pins_threads=config.device.pin_threads,
        is_eager=making.is_eager or offloaded > 0 or rank.data_size > 1,
        graph_sizes=making.graph_sizes,
        uses_fused_ops=making.uses_fused_ops,
        compiles=making.compiles and offloaded == 0 and rank.world_size * rank.data_size == 1,
        memory_share=config.cache.gpu_memory_utilization,
        async_steps=schedule.chains_steps,
        shows_progress=load.use_tqdm_on_load,
        load_options=load_options(load, parallel),
        kv_scales=kv_scales(config, model, kv_dtype),
        kv_steps=kv_steps(os.environ) if config.cache.calculate_kv_scales else None,
        offload_bytes=offloaded,
        acceptance=speculation.acceptance_of(config.speculative, plugins),
    )


def _rank_threads(
    config: Config, rank: RankSpec, processors: tuple[int, ...], platform: Platform
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the processors of each rank, () for no choice, and a rank's number of threads."""
    on_cores = HOST_CORES in platform.capabilities
    is_alone = len(engine_numbers(config.parallel)) == 1  # several engines share the processors
    of_ranks = rank_processors(config.device, rank, on_cores=on_cores) if is_alone else ()
    if not on_cores or places_ranks(config.parallel):
        return of_ranks, 0
    return of_ranks, default_threads(of_ranks[0] if of_ranks else processors)


def _request_seed(config: Config) -> int | None:
    """Return --seed; without it, engines that step together use one common seed."""
    launch = launched(config.parallel)
    if config.model.seed is not None or launch is None:
        return config.model.seed
    return launch.seed


def _pattern(given: str | None) -> str | None:
    """Return --logits-processor-pattern. Raises: ConfigError unless it is a valid expression"""
    try:
        re.compile(given or "")
    except re.error as error:
        raise ConfigError(
            f"is not a regular expression: {error}.",
            where="--logits-processor-pattern",
            fix="write one such as my_package|min_p.",
        ) from error
    return given
