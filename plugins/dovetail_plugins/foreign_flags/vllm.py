"""The flags of `vllm serve` 0.33 that have no flag of the same name here, and what becomes of each.

Mapped to what exists, taken with a note where nothing depends on them, or refused with the reason.
The names, types and defaults are facts of tests/reference/vllm_flags.json; another version's list
is compared by tests/support/help_flags.py.
"""

from __future__ import annotations

import re
from typing import Any

from dovetail.config.compat.deprecated_flags import Fields
from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Value
from dovetail.unsupported import what
from dovetail_plugins.foreign_flags._lines import table
from dovetail_plugins.foreign_flags._rows import (
    Table,
    key_of,
    mapped,
    refused,
    renamed,
    taken,
    with_short_names,
)

_KERNEL_KEYS = {"use_trtllm_attention", "mla_prefill_backend"}
"""Keys of --attention-config that choose among kernels which compute the same."""
_TAG = re.compile(r"\s*(</?[^<>\s]+>|\[/?[A-Z_]+\])\s*")
"""A tag that begins or ends a model's reasoning, such as </think>, <|end|> or [/THINK]."""
_LOGGING = {
    "log_level": "log_level",
    "formatter": "log_format",
    "configure_logging": "configure_logging",
    "pylogging_config_file": "log_config_file",
}
"""Key of --logging-config -> the field here."""


def _text_only(value: Any) -> Fields:
    return {"limit_mm_per_prompt": dict.fromkeys(("image", "video", "audio"), 0)} if value else {}


def _cpu_lists(value: Any) -> Fields:
    return {"cpu_cores": "|".join(value)} if value else {}


def _sizes(value: Any) -> Fields:
    if not all(text.isdecimal() for text in value):
        raise ConfigError("sizes are whole numbers.", fix="write them as in 1,2,4.")
    sizes = [int(text) for text in value]
    return {"compilation_config": {"cudagraph_capture_sizes": sizes}} if sizes else {}


def _half_batches(value: Any) -> Fields:
    if value > 2:
        raise ConfigError("a step is divided into two half batches at most.", fix="use 2.")
    return {"enable_dbo": True} if value == 2 else {}


def _external(value: Any) -> Fields:
    return {"data_parallel_size_local": 1} if value else {}


def _reasoning(value: Any) -> Fields:
    """Take the parser, and the words before the tag that ends the reasoning."""
    given = {key: one for key, one in value.items() if one not in (None, "")}
    parser, end = given.pop("reasoning_parser", None), given.pop("reasoning_end_str", None)
    start = given.pop("reasoning_start_str", None)
    _no_other(given)
    if start is not None and not _TAG.fullmatch(start):
        raise ConfigError(
            "reasoning begins with the tag of its parser, no other text.",
            fix="leave reasoning_start_str out, and choose a --reasoning-parser.",
        )
    fields = {} if parser is None else {"reasoning_parser": parser}
    if end is not None:
        tag = next((one for one in _TAG.finditer(end) if one.end() == len(end)), None)
        if tag is None:
            raise ConfigError(
                "reasoning ends with the tag of its parser, which this text does not end with.",
                fix="use --reasoning-budget-message for the words before the tag.",
            )
        words = end[: tag.start()]
        fields |= {"reasoning_budget_message": words} if words else {}
    return fields


def _logging(value: Any) -> Fields:
    given = {key: one for key, one in value.items() if one is not None}
    fields = {field: given.pop(key) for key, field in _LOGGING.items() if key in given}
    _no_other(given)
    if "log_level" in fields:
        fields["log_level"] = str(fields["log_level"]).lower()
    return fields


def _attention(value: Any) -> Fields:
    """Take the backend. Of the other settings, those in `_KERNEL_KEYS` change no result."""
    passing = {key for key, one in value.items() if one in (None, False)} | _KERNEL_KEYS
    given = {key: one for key, one in value.items() if key not in passing}
    backend = given.pop("backend", None)
    _no_other(given)
    return {} if backend is None else {"attention_backend": str(backend).lower()}


def _no_other(given: dict[str, Any]) -> None:
    if given:
        key = next(iter(given))
        raise ConfigError(f"the key {key} is not supported.", fix=f"leave {key} out.")


def _offloading(size_gib: Any) -> Fields:
    if size_gib < 0:
        raise ConfigError("the size is below 0.", fix="give it in GiB.")
    if not size_gib:
        return {}
    extra = {"host_bytes": int(size_gib * 2**30)}
    names = {"kv_connector": "offloading", "kv_role": "kv_both"}
    return {"kv_transfer_config": {**names, "kv_connector_extra_config": extra}}


_KERNELS = "it selects among vLLM's kernels, and dovetail has its own"
_TORCHRUN = (
    "run `torchrun --nnodes N --node-rank R --master-addr HOST --master-port PORT --nproc-per-node "
    "RANKS -m dovetail serve MODEL --distributed-executor-backend external_launcher`, or join "
    "whole engines by --data-parallel-address"
)
_SUPERVISOR = "start one server for each --data-parallel-rank; each has its own /health"
_METRICS = "docs/reference/metrics.md lists the metrics that are there"

_MAPPED: Table = {
    **mapped("--limit-mm-per-prompt with 0 of each", _text_only, language_model_only=False),
    **mapped("--cpu-cores, one list for each rank", _cpu_lists, numa_bind_cpus=list),
    **mapped("--compilation-config.cudagraph_capture_sizes", _sizes, cudagraph_capture_sizes=list),
    **key_of("compilation_config", "max_capture_size", max_cudagraph_capture_size=int),
    **key_of("compilation_config", "level", optimization_level=int),
    **mapped("--enable-dbo, two half batches", _half_batches, ubatch_size=0),
    **mapped(
        "--data-parallel-rank with --data-parallel-size-local 1",
        _external,
        data_parallel_external_lb=False,
    ),
    **mapped(
        "--reasoning-parser, which knows the tags, and --reasoning-budget-message",
        _reasoning,
        reasoning_config=dict,
    ),
    **mapped("--log-level, --log-format and --log-config-file", _logging, logging_config=dict),
    **mapped("--attention-backend", _attention, attention_config=dict),
    **mapped("--kv-transfer-config", _offloading, kv_offloading_size=float),
    **renamed("max_num_batched_tokens", max_num_scheduled_tokens=int),
    **renamed("max_num_seqs", max_num_active_seqs=int),
    **key_of("speculative_config", "method", spec_method=str),
    **key_of("speculative_config", "model", spec_model=str),
    **key_of("speculative_config", "num_speculative_tokens", spec_tokens=int),
}

_TAKEN: Table = {
    **taken(
        _KERNELS,
        moe_backend=str,
        linear_backend=str,
        kernel_config=dict,
        monokernel=False,
        ir_op_priority=dict,
        enable_flashinfer_autotune=bool,
        mamba_backend=str,
        sparse_indexer_topk_backend=str,
        gdn_prefill_backend=str,
        kda_prefill_backend=str,
        kda_decode_backend=str,
        mamba_ssu_algorithm=str,
        mm_encoder_attn_backend=str,
        use_replayssm=False,
        replayssm_buffer_len=16,
        specialize_active_lora=False,
        enable_mixed_moe_lora_format=False,
        enable_flash_late_interaction=True,
    ),
    **taken(
        "how ranks exchange tensors is chosen by --communicator",
        dcp_comm_backend=str,
        dcp_q_replicate=bool,
        mm_tensor_ipc="direct_rpc",
        enable_shm_tensor_arena=False,
        disable_nccl_for_dp_synchronization=bool,
        dp_sync_interval=16,
    ),
    **taken(
        "which rank has which positions of a request does not change its answer",
        dcp_kv_cache_interleave_size=1,
        cp_kv_cache_interleave_size=int,
    ),
    **taken(
        "weight files are read ahead by dovetail's own threads (--max-parallel-loading-workers)",
        safetensors_prefetch_num_threads=8,
        safetensors_prefetch_block_size=16777216,
    ),
    **taken("--safetensors-load-strategy says how files are read", enable_ep_weight_filter=False),
    **taken("random numbers of the sampler have 53 bits", use_fp64_gumbel=False),
    **taken("device memory is allocated by torch", enable_cumem_allocator=False),
    **taken("every method that is there is allowed", allow_deprecated_quantization=False),
    **taken("states follow --enable-prefix-caching", mamba_cache_mode=str),
    **taken("DeepSeek-V4.1, whose layers it concerns, is not served", swa_bounded_replay=True),
    **taken("it counts only with --nnodes above 1", master_addr="127.0.0.1", master_port=29501),
    **taken(
        "it counts only with --data-parallel-multi-port-external-lb",
        data_parallel_supervisor_port=9256,
        dp_supervisor_probe_interval_s=5.0,
        dp_supervisor_probe_timeout_s=5.0,
        dp_supervisor_probe_failure_threshold=3,
    ),
    **taken(
        "it counts only with --offload-group-size", offload_num_in_group=1, offload_prefetch_step=1
    ),
    **taken("it counts only with --enable-elastic-ep", elastic_ep_max_dp_size=int),
    **taken("it counts only with --enable-fault-tolerance", fault_tolerance_config=dict),
    **taken(
        "it counts only with --enable-mamba-cache-stochastic-rounding", mamba_cache_philox_rounds=0
    ),
    **taken("it counts only with --kv-cache-metrics", kv_cache_metrics_sample=0.01),
    **taken(
        "it counts only with --mm-encoder-attn-dtype fp8", mm_encoder_fp8_scale_save_margin=1.5
    ),
    **taken("the log's line counts all engines together", aggregate_engine_logging=False),
    **taken("requests with embeddings of media are always accepted", enable_mm_embeds=False),
    **taken(
        "requests may always carry media_io_kwargs and mm_processor_kwargs",
        trust_request_mm_kwargs=False,
    ),
    **taken("the model's media processor normalizes them", mm_device_do_normalize=True),
}

_PARALLEL: Table = {
    **refused("a launcher starts ranks on several machines", _TORCHRUN, nnodes=1, node_rank=0),
    **refused("a prompt is not divided over ranks", "use --decode-context-parallel-size or "
              "--tensor-parallel-size", prefill_context_parallel_size=1),
    **refused("the residual streams of HyperConnection models are not divided", enable_hc_sp=False),
    **refused("each row is sampled by one rank", enable_batch_sharded_sampling=False),
    **refused("processes are not bound to NUMA nodes", "use --cpu-cores with the CPUs of "
              "each node, or start dovetail by numactl", numa_bind=False, numa_bind_nodes=list),
    **refused("devices are numbered by the driver", "set CUDA_VISIBLE_DEVICES", device_ids=str),
    **refused("ranks wait for one another as long as --communicator does", "use "
              "--engine-step-timeout, which ends an engine whose step takes too long",
              distributed_timeout_seconds=int, cpu_distributed_timeout_seconds=int),
    **refused("one command does not start several servers", _SUPERVISOR,
              data_parallel_multi_port_external_lb=False),
    **refused(what("elastic_engines"), "start it again",
              enable_elastic_ep=False),
    **refused("a rank that has died is not replaced in a running engine", "use "
              "--max-engine-restarts, which starts the whole engine again",
              enable_fault_tolerance=False),
}  # fmt: skip

_ENGINE: Table = {
    **refused("quantization of each kind of layer is not given by a flag", "use --quantization, or "
              "a checkpoint that `dovetail quantize` has made", quantization_config=dict),
    **refused("answers do not report which experts were used",
              enable_return_routed_experts=False, aux_output_config=dict),
    **refused("answers do not report which tokens were allowed", return_sampling_mask=False),
    **refused("a request cannot set the tokens of its answer", enable_trace_replay=False),
    **refused("a class is not chosen by architecture", "install it as a plugin of the kind model, "
              "or choose it by --model-impl", model_class_overrides=dict),
    **refused("memory of a sleeping engine is released in one way", "use --enable-sleep-mode alone",
              passing=("cumem",), sleep_mode_backend="cumem", sleep_mode_offload_cudagraph=False,
              sleep_preserve_parameter_names=list, enable_nccl_comm_suspend=False),
    **refused("states are rounded to the nearest number", "use --mamba-ssm-cache-dtype float32",
              enable_mamba_cache_stochastic_rounding=False),
    **refused("states are stored with the blocks of the prefix cache", "use --block-size",
              mamba_block_size=int, prefix_match_unit=int, prefix_cache_retention_interval=0,
              enable_mamba_shared_prefix_checkpoint=False),
    **refused("the KV cache has one data type for all layers", "use --kv-cache-dtype auto",
              kv_cache_dtype_skip_layers=list),
    **refused("weights in host memory are copied in every step, not ahead by groups of layers",
              "use --cpu-offload-gb", passing=("uva",), offload_backend="auto",
              offload_group_size=0, offload_params=list),
    **refused("which weights stay in host memory is not chosen by name", "use --cpu-offload-gb "
              "alone", cpu_offload_params=list),
    **refused("blocks are moved to host memory by dovetail itself", "use native, or "
              "--kv-transfer-config for another connector", passing=("native",),
              kv_offloading_backend=str),
    **refused("a request starts when its whole prompt fits", scheduler_reserve_full_isl=True),
    **refused("what is left free is a number of blocks for each running request", "use "
              "--plugin-options.scheduler.growth_blocks", watermark=0.0),
    **refused("prompts may start in every step", "use --max-num-partial-prefills or "
              "--long-prefill-token-threshold", prefill_schedule_interval=1),
    **refused("the threshold does not follow the number of requests", "use "
              "--long-prefill-token-threshold", long_prefill_token_threshold_adaptive=False),
    **refused("answers are not watermarked", watermark_config=dict),
    **refused("models that write by diffusion are not supported", diffusion_config=dict),
    **refused("tables of n-gram embeddings are not supported", engram_config=dict),
    **refused("a trainer's weights come without a flag", "POST /init_weights_update_group or "
              "/update_weights", weight_transfer_config=dict),
}  # fmt: skip

_MEDIA: Table = {
    **refused("outputs of a media encoder are not sent between servers",
              ec_transfer_config=dict, ec_manager_config=dict),
    **refused("a server does not run the media encoder alone", mm_encoder_only=False),
    **refused("attention of media encoders is not computed in fp8", mm_encoder_attn_dtype=str,
              mm_encoder_fp8_scale_path=str, mm_encoder_fp8_scale_save_path=str),
    **refused("media are identified by SHA-256", "use sha256", passing=("sha256",),
              mm_hasher_algorithm="blake3"),
    **refused("tokens of a video are dropped by how like the frame before they are", "use evs",
              video_pruning_method="evs"),
    **refused("media are prepared on the CPU", "use cpu", passing=("cpu",),
              mm_processor_device="auto"),
    **refused("no device memory is set aside for the server's process", mm_ipc_gpu_memory_gb=0.0),
    **refused("adapters change the language model alone", enable_tower_connector_lora=False),
    **refused("an adapter is applied to every layer that its file names", "leave the others out of "
              "its file", lora_target_modules=list),
    **refused("each expert of an adapter has its own matrices", enable_moe_shared_loras=False),
    **refused("an adapter does not replace the head that classifies", max_lora_cls_labels=int),
}  # fmt: skip

_SERVER: Table = {
    **refused("there is no gRPC server", "use HTTP on --port", grpc=False, grpc_port=int),
    **refused("each server process has two threads for long prompts", "use --api-server-count",
              passing=(2,), renderer_num_workers=1),
    **refused("a request's reasoning_effort goes to the chat template as it is", "use "
              "--default-chat-template-kwargs", reasoning_effort_map=dict),
    **refused("how strictly tools are enforced follows the request", "set strict in the tool, or "
              "use --tool-parser-strict", tool_strict_level=str),
    **refused("there is no /cohere/v2/chat", "use /v1/chat/completions, whose chat template is the "
              "model's", cohere_is_reasoning_model=True, cohere_format="cmd4"),
    **refused("disabled thinking of the Messages API turns it off in the chat template",
              passing=("none",), anthropic_disabled_thinking_effort="auto"),
    **refused("preparing and answering a request on different servers is not supported",
              "use /v1/completions with token ids, and --skip-tokenizer-init", tokens_only=False,
              enable_scale_out=False),
    **refused("system_fingerprint is the version and a hash of the settings", passing=("hash",),
              fingerprint_mode="full", fingerprint_value=str),
    **refused("the pages at /docs load their scripts from the internet", "use /openapi.json",
              enable_offline_docs=False),
    **refused("an unknown variable gives a warning, no error", "`dovetail config check` shows it",
              fail_on_environ_validation=False),
    **refused("answers do not report how many drafted tokens were accepted", "use the metrics of "
              "speculative decoding", passing=("none",), per_request_spec_decode_metrics="none"),
    **refused("this is not measured", _METRICS, kv_cache_metrics=False, cudagraph_metrics=False,
              enable_mfu_metrics=False),
    **refused("the buckets of histograms are fixed", custom_histogram_buckets=dict),
    **refused("layers are not marked for NVTX", "use --profiler-config",
              enable_layerwise_nvtx_tracing=False),
    **refused("steps are not logged one by one", "use --collect-detailed-traces",
              enable_logging_iteration_details=False),
    **refused("kernels that are compiled late are not reported", passing=("warn",),
              jit_monitor_mode="warn", jit_monitor_verbose=False),
    **refused("there is no watchdog that writes stacks", "use --engine-step-timeout",
              watchdog_config=dict),
}  # fmt: skip

FLAGS: Table = with_short_names(
    _MAPPED | _TAKEN | _PARALLEL | _ENGINE | _MEDIA | _SERVER,
    {
        "attention_config": "-ac",
        "data_parallel_external_lb": "-dpe",
        "data_parallel_multi_port_external_lb": "-dpm",
        "diffusion_config": "-dc",
        "nnodes": "-n",
        "node_rank": "-r",
        "prefill_context_parallel_size": "-pcp",
    },
)
"""Field name of a flag -> the flag and what becomes of its value."""

VLLM = Value(summary="newer flags of vLLM", value=FLAGS)

VLLM_LINE = Value(
    summary="command lines of vLLM, whose flags are ours",
    value=table(
        ("vllm serve", "-m vllm.entrypoints.openai.api_server"),
        defaults=[
            ("--host --uds", "--host 0.0.0.0", "vLLM listens on every address of the machine")
        ],
    ),
)
"""Programs and defaults, as `_lines.table` describes them."""
