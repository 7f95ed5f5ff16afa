"""Environment variables of vLLM, and the meaning of each here.

The reference list of names is tests/reference/env_vars.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.config.parse.foreign_variables import (
    NoEffect,
    ReadBy,
    Row,
    Setting,
    UnsupportedVariable,
)
from dovetail.interfaces.plugin import Value

_TRUE = ("1", "true", "yes", "on")


def _field(name: str) -> Setting:
    return Setting("--" + name.replace("_", "-"), lambda text: {name: text})


def _gib(text: str) -> dict[str, Any]:
    """0 means the other server's default."""
    size_bytes = int(float(text) * 2**30)
    return {"kv_cache_memory_bytes": size_bytes} if size_bytes else {}


def _log_level(text: str) -> dict[str, Any]:
    word = text.strip().lower()
    return {"log_level": {"warn": "warning", "fatal": "critical"}.get(word, word)}


def _seconds(name: str, per_second: int = 1) -> Callable[[str], dict[str, Any]]:
    return lambda text: {name: float(text) / per_second}


def _log_interval(text: str) -> dict[str, Any]:
    """A negative number means no such line."""
    interval_s = float(text)
    options = {"stat_logger": {"log": {"interval_s": interval_s}}}
    return {"plugin_options": options} if interval_s > 0 else {}


def _triton_attention(text: str) -> dict[str, Any]:
    return {"attention_backend": "TRITON_FLASH_ATTN"} if text.lower() in _TRUE else {}


def _traces(text: str) -> dict[str, Any]:
    return {"profiler_config": {"torch_profiler_dir": text}} if text else {}


def _hide_notes(text: str) -> dict[str, Any]:
    return {"show_notes": text.lower() not in _TRUE}


_REPORTS = NoEffect("dovetail sends no usage statistics")
_BUILD = NoEffect("native kernels are compiled at the first start from a checkout, or by pip")
_STEPS = (
    "--calculate-kv-scales: the scale of {} is the largest measured value, divided by this ({})"
)
_S3 = ReadBy("loaders from S3, which are not supported")
_HUB = "the hub's client, huggingface_hub"
_RAY = NoEffect("plans and results go over dovetail's own sockets between Ray's actors")
_KERNELS = UnsupportedVariable("kernel_choice")
_TPU = UnsupportedVariable("tpu")
_OPENVINO = UnsupportedVariable("openvino")

VARIABLES: dict[str, Row] = {
    # Settings that a user or an operator can observe.
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": _field("allow_long_max_model_len"),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": _field("allow_runtime_lora_updating"),
    "VLLM_API_KEY": _field("api_key"),
    "VLLM_AUDIO_FETCH_TIMEOUT": _field("audio_fetch_timeout"),
    "VLLM_ATTENTION_BACKEND": _field("attention_backend"),
    "VLLM_CONFIGURE_LOGGING": _field("configure_logging"),
    "VLLM_CPU_KVCACHE_SPACE": Setting("--kv-cache-memory-bytes", _gib),
    "VLLM_CPU_OMP_THREADS_BIND": _field("cpu_cores"),
    "VLLM_DP_MASTER_IP": _field("data_parallel_address"),
    "VLLM_DP_MASTER_PORT": _field("data_parallel_rpc_port"),
    "VLLM_DP_RANK": _field("data_parallel_rank"),
    "VLLM_DP_SIZE": _field("data_parallel_size"),
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": Setting(
        "--engine-step-timeout", _seconds("engine_step_timeout")
    ),
    "VLLM_IMAGE_FETCH_TIMEOUT": _field("image_fetch_timeout"),
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": _field("keep_alive_on_engine_death"),
    "VLLM_LOGGING_CONFIG_PATH": _field("log_config_file"),
    "VLLM_LOGGING_LEVEL": Setting("--log-level", _log_level),
    "VLLM_LOGGING_PREFIX": _field("log_prefix"),
    "VLLM_LOG_BATCHSIZE_INTERVAL": Setting(
        "--plugin-options.stat_logger.log.interval_s", _log_interval
    ),
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": _field("max_audio_clip_filesize_mb"),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": _field("media_url_allow_redirects"),
    "VLLM_MM_INPUT_CACHE_GIB": _field("mm_processor_cache_gb"),
    "VLLM_NO_DEPRECATION_WARNING": Setting("--no-show-notes", _hide_notes),
    "VLLM_PLUGINS": ReadBy(
        "dovetail's registry where DOVETAIL_PLUGINS is not set: names of plugins or packages that "
        "may be used, by comma; empty: built-in ones alone"
    ),
    "VLLM_PP_LAYER_PARTITION": _field("pipeline_layer_split"),
    "VLLM_RPC_BASE_PATH": _field("socket_dir"),
    "VLLM_RPC_TIMEOUT": Setting(
        "--engine-reply-timeout", _seconds("engine_reply_timeout", per_second=1000)
    ),
    "VLLM_SERVER_DEV_MODE": _field("enable_dev_endpoints"),
    "VLLM_TEST_FORCE_LOAD_FORMAT": _field("load_format"),
    "VLLM_TORCH_PROFILER_DIR": Setting("--profiler-config", _traces),
    "VLLM_USE_MODELSCOPE": _field("use_modelscope"),
    "VLLM_USE_TRITON_FLASH_ATTN": Setting("--attention-backend", _triton_attention),
    "VLLM_VIDEO_FETCH_TIMEOUT": _field("video_fetch_timeout"),
    # Variables for what always happens, or for what does not exist here.
    "VLLM_ASSETS_CACHE": NoEffect("no sample files are downloaded"),
    "VLLM_CACHE_ROOT": NoEffect("dovetail has no cache folder; --download-dir moves the hub's"),
    "VLLM_CONFIG_ROOT": NoEffect("only the files of --config are read"),
    "VLLM_CPU_MOE_PREPACK": NoEffect(
        "native kernels always pack the experts' weights while loading"
    ),
    "VLLM_DO_NOT_TRACK": _REPORTS,
    "VLLM_ENABLE_V1_MULTIPROCESSING": NoEffect(
        "a server's engine runs in its own process, an offline engine in its caller's"
    ),
    "VLLM_FLASHINFER_FORCE_TENSOR_CORES": NoEffect(
        "every step uses flashinfer's prefill kernels, which use tensor cores"
    ),
    "VLLM_FUSED_MOE_CHUNK_SIZE": NoEffect(
        "an expert gets all its tokens of a step, which --max-num-batched-tokens limits"
    ),
    "VLLM_HOST_IP": NoEffect("processes talk over Unix sockets; clients come to --host"),
    "VLLM_MLA_DISABLE": NoEffect(
        "models with latent attention always keep latents; prompts that gain by it are attended to "
        "with keys and values made of them"
    ),
    "VLLM_NO_USAGE_STATS": _REPORTS,
    "VLLM_PORT": NoEffect("processes talk over Unix sockets; clients come to --port"),
    "VLLM_RINGBUFFER_WARNING_INTERVAL": NoEffect("dovetail has no ring buffer"),
    "VLLM_SKIP_P2P_CHECK": NoEffect("NCCL tries which GPUs can reach each other"),
    "VLLM_TARGET_DEVICE": NoEffect("one installation supports all devices; --device chooses one"),
    "VLLM_TEST_DYNAMO_FULLGRAPH_CAPTURE": NoEffect("-O3 always compiles whole graphs"),
    "VLLM_TEST_USE_PRECOMPILED_NIGHTLY_WHEEL": _BUILD,
    "VLLM_USAGE_SOURCE": _REPORTS,
    "VLLM_USAGE_STATS_SERVER": _REPORTS,
    "VLLM_USE_PRECOMPILED": _BUILD,
    "VLLM_USE_TRITON_AWQ": NoEffect("on a GPU, Triton kernels are always used for AWQ"),
    "VLLM_USE_V1": NoEffect("dovetail has only one engine"),
    "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": NoEffect("the outputs of a step are processed together"),
    # Unsupported variables.
    "VLLM_CI_USE_S3": UnsupportedVariable("s3"),
    "VLLM_CUDART_SO_PATH": UnsupportedVariable("cuda_runtime"),
    "VLLM_DISABLED_KERNELS": UnsupportedVariable("disabled_kernels"),
    "VLLM_ENABLE_MOE_ALIGN_BLOCK_SIZE_TRITON": _KERNELS,
    "VLLM_FLASH_ATTN_VERSION": UnsupportedVariable("flash_attn_version"),
    "VLLM_LOGITS_PROCESSOR_THREADS": UnsupportedVariable(
        "processor_threads", passing=("", "0", "1")
    ),
    "VLLM_MARLIN_USE_ATOMIC_ADD": _KERNELS,
    "VLLM_NCCL_SO_PATH": UnsupportedVariable("cuda_runtime"),
    "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION": _OPENVINO,
    "VLLM_OPENVINO_DEVICE": _OPENVINO,
    "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS": _OPENVINO,
    "VLLM_OPENVINO_KVCACHE_SPACE": _OPENVINO,
    "VLLM_RAY_BUNDLE_INDICES": UnsupportedVariable("ray_bundles"),
    "VLLM_RAY_PER_WORKER_GPUS": UnsupportedVariable("ray_bundles", passing=("", "1", "1.0")),
    "VLLM_ROCM_FP8_PADDING": UnsupportedVariable("rocm"),
    "VLLM_TEST_FORCE_FP8_MARLIN": _KERNELS,
    "VLLM_TPU_DISABLE_TOPK_TOPP_OPTIMIZATION": _TPU,
    "VLLM_TRACE_FUNCTION": UnsupportedVariable("function_trace"),
    "VLLM_USE_FLASHINFER_SAMPLER": _KERNELS,
    "VLLM_USE_HPU_CONTIGUOUS_CACHE_FETCH": UnsupportedVariable("hpu"),
    "VLLM_USE_RAY_COMPILED_DAG": _RAY,
    "VLLM_USE_RAY_COMPILED_DAG_NCCL_CHANNEL": _RAY,
    "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM": _RAY,
    "VLLM_USE_RAY_SPMD_WORKER": _RAY,
    "VLLM_V0_USE_OUTLINES_CACHE": UnsupportedVariable("grammar_cache"),
    "VLLM_WORKER_MULTIPROC_METHOD": UnsupportedVariable("fork", passing=("", "spawn")),
    "VLLM_XLA_CACHE_PATH": _TPU,
    "VLLM_XLA_CHECK_RECOMPILATION": _TPU,
    # Variables of other programs: set on many machines, and never an error.
    "CMAKE_BUILD_TYPE": ReadBy("builds with CMake, which dovetail does not use"),
    "CUDA_HOME": ReadBy("tools that compile for GPUs; dovetail compiles only CPU kernels"),
    "CUDA_VISIBLE_DEVICES": ReadBy("CUDA, and by --device auto: empty or -1 hides all GPUs"),
    "HF_HUB_OFFLINE": ReadBy(f"{_HUB}: 1 forbids fetching; models come from folders and its cache"),
    "HF_TOKEN": ReadBy(f"{_HUB}: the token for gated models; --hf-token wins over it"),
    "HUGGING_FACE_HUB_TOKEN": ReadBy(f"{_HUB}, where HF_TOKEN is not set"),
    "K_SCALE_CONSTANT": ReadBy(_STEPS.format("keys", 200)),
    "LD_LIBRARY_PATH": ReadBy("the system's loader of libraries"),
    "LOCAL_RANK": ReadBy("no part of dovetail; the one worker has rank 0"),
    "MAX_JOBS": ReadBy(
        "the build of the native kernels: most files compiled at once (default: number of CPUs)"
    ),
    "NVCC_THREADS": ReadBy("no part of dovetail; no CUDA code is compiled"),
    "Q_SCALE_CONSTANT": ReadBy("no part of dovetail; queries are not rounded to fp8"),
    "S3_ACCESS_KEY_ID": _S3,
    "S3_ENDPOINT_URL": _S3,
    "S3_SECRET_ACCESS_KEY": _S3,
    "VERBOSE": ReadBy("no part of dovetail; pip -v shows how the kernels are compiled"),
    "V_SCALE_CONSTANT": ReadBy(_STEPS.format("values", 100)),
}
"""Variables other than a flag's own: VLLM_*, and names of the reference without a prefix."""

VLLM = Value(summary="environment variables of vLLM", value=VARIABLES)
