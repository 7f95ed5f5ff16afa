"""The table of environment variables that do not belong to one flag.

A name of another server is a `Setting` (it sets a flag), has `NoEffect` (what it asks for always
happens, or concerns nothing here), is `Refused`, or is `ReadBy` somebody else. Which names there
are: the reference list that tests/reference/env_vars.json holds. `environment.read` applies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PREFIX = "DOVETAIL_"
FOREIGN_PREFIX = "VLLM_"

CONFIG = "DOVETAIL_CONFIG"
OWN = {
    CONFIG: "YAML file of settings; those of --config are laid over it",
    "DOVETAIL_PLUGINS": "packages whose plugins may be used, by comma; empty: built-in ones alone",
    "DOVETAIL_CPU_ISA": "highest instruction set of the native kernels: base, avx2, avx512, "
    "avx512bf16, neon, or none to run on torch",
    "DOVETAIL_VERBOSE": "1 shows tracebacks of errors, as --verbose does",
}
"""Variables that are not flags, and what they mean."""

_TRUE = ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable of another name that sets a field. `fields` takes its text."""

    today: str
    fields: Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A variable that asks for what always happens here, or for nothing of ours."""

    always: str


@dataclass(frozen=True, slots=True)
class ReadBy:
    """A variable that is somebody else's affair: `who` reads it, and what that means here."""

    who: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A variable whose effect is not supported; `passing` are the texts that ask for nothing."""

    missing: str
    passing: tuple[str, ...] = ("", "0", "false")
    fix: str = ""


Row = Setting | NoEffect | ReadBy | Refused


def _field(name: str) -> Setting:
    return Setting("--" + name.replace("_", "-"), lambda text: {name: text})


def _gib(text: str) -> dict[str, Any]:
    """0 is the other server's word for its own default."""
    size_bytes = int(float(text) * 2**30)
    return {"kv_cache_memory_bytes": size_bytes} if size_bytes else {}


def _cores(text: str) -> dict[str, Any]:
    """One worker runs, so cores of further ranks (after a bar) would be left out in silence."""
    if "|" in text:
        raise ValueError("one worker runs, so there is one list of cores, without |")
    return {} if text.lower() in ("all", "auto", "nobind") else {"cpu_cores": text}


def _log_level(text: str) -> dict[str, Any]:
    word = text.strip().lower()
    return {"log_level": {"warn": "warning", "fatal": "critical"}.get(word, word)}


def _seconds(name: str, per_second: int = 1) -> Callable[[str], dict[str, Any]]:
    return lambda text: {name: float(text) / per_second}


def _log_interval(text: str) -> dict[str, Any]:
    """A negative number is the other server's word for no such line."""
    interval_s = float(text)
    options = {"stat_logger": {"log": {"interval_s": interval_s}}}
    return {"plugin_options": options} if interval_s > 0 else {}


def _triton_attention(text: str) -> dict[str, Any]:
    return {"attention_backend": "TRITON_FLASH_ATTN"} if text.lower() in _TRUE else {}


def _hide_notes(text: str) -> dict[str, Any]:
    return {"show_notes": text.lower() not in _TRUE}


_REPORTS = NoEffect("dovetail sends no usage statistics")
_BUILD = NoEffect("native kernels are compiled at the first start from a checkout, or by pip")
_MEDIA = NoEffect("prompts are text, so nothing is downloaded for them")
_STEPS = (
    "--calculate-kv-scales: the scale of {} is the largest measured value, divided by this ({})"
)
_S3 = ReadBy("loaders from S3, which are not supported")
_HUB = "the hub's client, huggingface_hub"
_RAY = Refused("Ray is not supported")
_GPU_KERNELS = Refused(
    "the kernels that it selects are not supported",
    fix="unset it; --attention-backend and --quantization choose among those that are.",
)
_NCCL = Refused("NCCL is not used yet")
_TPU = Refused("TPUs are not supported")
_OPENVINO = Refused("OpenVINO is not supported")

FOREIGN: dict[str, Row] = {
    # What a request or an operator can see.
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": _field("allow_long_max_model_len"),
    "VLLM_API_KEY": _field("api_key"),
    "VLLM_ATTENTION_BACKEND": _field("attention_backend"),
    "VLLM_CONFIGURE_LOGGING": _field("configure_logging"),
    "VLLM_CPU_KVCACHE_SPACE": Setting("--kv-cache-memory-bytes", _gib),
    "VLLM_CPU_OMP_THREADS_BIND": Setting("--cpu-cores", _cores),
    "VLLM_DP_MASTER_IP": _field("data_parallel_address"),
    "VLLM_DP_MASTER_PORT": _field("data_parallel_rpc_port"),
    "VLLM_DP_RANK": _field("data_parallel_rank"),
    "VLLM_DP_SIZE": _field("data_parallel_size"),
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": Setting(
        "--engine-step-timeout", _seconds("engine_step_timeout")
    ),
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": _field("keep_alive_on_engine_death"),
    "VLLM_LOGGING_CONFIG_PATH": _field("log_config_file"),
    "VLLM_LOGGING_LEVEL": Setting("--log-level", _log_level),
    "VLLM_LOGGING_PREFIX": _field("log_prefix"),
    "VLLM_LOG_BATCHSIZE_INTERVAL": Setting(
        "--plugin-options.stat_logger.log.interval_s", _log_interval
    ),
    "VLLM_MM_INPUT_CACHE_GIB": _field("mm_processor_cache_gb"),
    "VLLM_NO_DEPRECATION_WARNING": Setting("--no-show-notes", _hide_notes),
    "VLLM_PLUGINS": ReadBy(
        "dovetail's registry where DOVETAIL_PLUGINS is not set: names of plugins or packages that "
        "may be used, by comma; empty: built-in ones alone"
    ),
    "VLLM_RPC_BASE_PATH": _field("socket_dir"),
    "VLLM_RPC_TIMEOUT": Setting(
        "--engine-reply-timeout", _seconds("engine_reply_timeout", per_second=1000)
    ),
    "VLLM_SERVER_DEV_MODE": _field("enable_dev_endpoints"),
    "VLLM_TEST_FORCE_LOAD_FORMAT": _field("load_format"),
    "VLLM_USE_TRITON_FLASH_ATTN": Setting("--attention-backend", _triton_attention),
    # What always happens, or concerns nothing here.
    "VLLM_ASSETS_CACHE": NoEffect("no sample files are downloaded"),
    "VLLM_AUDIO_FETCH_TIMEOUT": _MEDIA,
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
    "VLLM_IMAGE_FETCH_TIMEOUT": _MEDIA,
    "VLLM_MLA_DISABLE": NoEffect("dovetail has no special path for latent attention"),
    "VLLM_NO_USAGE_STATS": _REPORTS,
    "VLLM_PORT": NoEffect("processes talk over Unix sockets; clients come to --port"),
    "VLLM_RINGBUFFER_WARNING_INTERVAL": NoEffect("dovetail has no ring buffer"),
    "VLLM_SKIP_P2P_CHECK": NoEffect("nothing is copied between GPUs"),
    "VLLM_TARGET_DEVICE": NoEffect("one installation supports all devices; --device chooses one"),
    "VLLM_TEST_DYNAMO_FULLGRAPH_CAPTURE": NoEffect("-O3 always compiles whole graphs"),
    "VLLM_TEST_USE_PRECOMPILED_NIGHTLY_WHEEL": _BUILD,
    "VLLM_USAGE_SOURCE": _REPORTS,
    "VLLM_USAGE_STATS_SERVER": _REPORTS,
    "VLLM_USE_PRECOMPILED": _BUILD,
    "VLLM_USE_TRITON_AWQ": NoEffect("on a GPU, Triton kernels are always used for AWQ"),
    "VLLM_USE_V1": NoEffect("dovetail has only one engine"),
    "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": NoEffect("the outputs of a step are processed together"),
    "VLLM_VIDEO_FETCH_TIMEOUT": _MEDIA,
    # What is not supported.
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": Refused("LoRA adapters are not supported yet"),
    "VLLM_CI_USE_S3": Refused("loading from S3 is not supported"),
    "VLLM_CUDART_SO_PATH": Refused("dovetail uses the CUDA runtime of torch"),
    "VLLM_DISABLED_KERNELS": Refused(
        "kernels cannot be disabled by name", fix="unset it; DOVETAIL_CPU_ISA=none runs on torch."
    ),
    "VLLM_ENABLE_MOE_ALIGN_BLOCK_SIZE_TRITON": _GPU_KERNELS,
    "VLLM_FLASH_ATTN_VERSION": Refused("the newest flash-attn that is installed is used"),
    "VLLM_LOGITS_PROCESSOR_THREADS": Refused(
        "logits processors run one after another", passing=("", "0", "1")
    ),
    "VLLM_MARLIN_USE_ATOMIC_ADD": _GPU_KERNELS,
    "VLLM_NCCL_SO_PATH": _NCCL,
    "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION": _OPENVINO,
    "VLLM_OPENVINO_DEVICE": _OPENVINO,
    "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS": _OPENVINO,
    "VLLM_OPENVINO_KVCACHE_SPACE": _OPENVINO,
    "VLLM_PP_LAYER_PARTITION": Refused("pipeline parallelism is not supported yet"),
    "VLLM_RAY_BUNDLE_INDICES": _RAY,
    "VLLM_RAY_PER_WORKER_GPUS": _RAY,
    "VLLM_ROCM_FP8_PADDING": Refused("ROCm is not supported"),
    "VLLM_TEST_FORCE_FP8_MARLIN": _GPU_KERNELS,
    "VLLM_TORCH_PROFILER_DIR": Refused("the torch profiler cannot be started from outside yet"),
    "VLLM_TPU_DISABLE_TOPK_TOPP_OPTIMIZATION": _TPU,
    "VLLM_TRACE_FUNCTION": Refused("function calls are not recorded"),
    "VLLM_USE_FLASHINFER_SAMPLER": _GPU_KERNELS,
    "VLLM_USE_HPU_CONTIGUOUS_CACHE_FETCH": Refused("Gaudi devices are not supported"),
    "VLLM_USE_MODELSCOPE": Refused("models come from a folder or from the Hugging Face hub"),
    "VLLM_USE_RAY_COMPILED_DAG": _RAY,
    "VLLM_USE_RAY_COMPILED_DAG_NCCL_CHANNEL": _RAY,
    "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM": _RAY,
    "VLLM_USE_RAY_SPMD_WORKER": _RAY,
    "VLLM_V0_USE_OUTLINES_CACHE": Refused("compiled grammars are not cached on disk"),
    "VLLM_WORKER_MULTIPROC_METHOD": Refused(
        "processes are always spawned, never forked", passing=("", "spawn")
    ),
    "VLLM_XLA_CACHE_PATH": _TPU,
    "VLLM_XLA_CHECK_RECOMPILATION": _TPU,
    # Names that belong to others: set on many machines, and never an error.
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
"""Other names than a flag's own: VLLM_* and what the reference lists without a prefix."""
