"""The named constants for flags whose choices are values, kind by kind.

Such a flag names a Value; what core receives is its `value`. Imports nothing that a value refers
to.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

_SHA256 = "dovetail.engine.kv.prefix_hash:SHA256"
_HASHES = "dovetail_plugins.hash_algorithms"
_ROPE_RULES = "dovetail.layers.attention.rotary"

# Number types of weights and activations: the choices of --dtype.
# `value` is torch's name of the type; None leaves the choice to the checkpoint and the device.
DTYPE_AUTO = Value(
    summary="the checkpoint's type, or float32 where the device is slow with that", value=None
)
DTYPE_HALF = Value(summary="another name for float16", value="float16")
DTYPE_FLOAT16 = Value(summary="16 bits: 5 exponent, 10 mantissa", value="float16")
DTYPE_BFLOAT16 = Value(summary="16 bits: 8 exponent, 7 mantissa", value="bfloat16")
DTYPE_FLOAT = Value(summary="another name for float32", value="float32")
DTYPE_FLOAT32 = Value(summary="32 bits", value="float32")

# Number types of adapters: the choices of --lora-dtype. None uses the type of the weights.
LORA_DTYPE_AUTO = Value(summary="the data type of the model's weights", value=None)

# Number types of the KV cache: the choices of --kv-cache-dtype.
# `value` is torch's name of the type; None takes the type the model computes in.
KV_CACHE_DTYPE_AUTO = Value(summary="the data type of the weights", value=None)
KV_CACHE_DTYPE_FLOAT32 = Value(summary="32 bits", value="float32")
KV_CACHE_DTYPE_FLOAT16 = Value(summary="16 bits: 5 exponent, 10 mantissa", value="float16")
KV_CACHE_DTYPE_BFLOAT16 = Value(summary="16 bits: 8 exponent, 7 mantissa", value="bfloat16")
# The same for states of recurrent layers.
MAMBA_CACHE_DTYPE_AUTO = Value(
    summary="that of the weights for a layer's latest inputs, float32 for sums over all of them",
    value=None,
)
MAMBA_CACHE_DTYPE_FLOAT32 = Value(summary="32 bits", value="float32")
MAMBA_CACHE_DTYPE_FLOAT16 = Value(summary="16 bits: 5 exponent, 10 mantissa", value="float16")
MAMBA_CACHE_DTYPE_BFLOAT16 = Value(summary="16 bits: 8 exponent, 7 mantissa", value="bfloat16")
KV_CACHE_DTYPE_INT8 = Value(
    summary="8 bits, a scale per token and kv head (native_cpu, triton)", value="int8"
)
KV_CACHE_DTYPE_K8V4 = Value(
    summary="keys in 8 bits, values in 4: 6.25 bits a number and a scale (native_cpu, triton)",
    value="k8v4",
)
KV_CACHE_DTYPE_INT4 = Value(
    summary="4 bits: 4.75 bits a number and a scale, less exact (native_cpu, triton)",
    value="int4",
)
KV_CACHE_DTYPE_FP8 = Value(summary="the same as fp8_e4m3", value="float8_e4m3fn")
KV_CACHE_DTYPE_FP8_E4M3 = Value(
    summary="8 bits: 4 exponent, 3 mantissa, up to 448; a scale per layer for keys and for values",
    value="float8_e4m3fn",
)
KV_CACHE_DTYPE_FP8_E5M2 = Value(
    summary="8 bits: 5 exponent, 2 mantissa, up to 57344; the same scales", value="float8_e5m2"
)

# Tokens per KV cache block: the choices of --block-size. `value` is the number.
BLOCK_SIZE_1 = Value(summary="1 token: finest prefix sharing, longest block tables", value=1)
BLOCK_SIZE_8 = Value(summary="8 tokens", value=8)
BLOCK_SIZE_16 = Value(summary="16 tokens", value=16)
BLOCK_SIZE_32 = Value(summary="32 tokens", value=32)
BLOCK_SIZE_64 = Value(summary="64 tokens", value=64)
BLOCK_SIZE_128 = Value(summary="128 tokens: short block tables, more unused slots", value=128)
BLOCK_SIZE_256 = Value(summary="256 tokens: required by flash-attn 2", value=256)

# Hashes by which equal prefixes are found: the choices of --prefix-caching-hash-algo.
# `value` is the "module:attribute" of a BlockHash (`dovetail.interfaces.data.block_hash`). All of
# them are keyed with a secret of the running engine, at full length, so names taken over from other
# servers are no weaker here.
HASH_SHA256 = Value(summary="keyed SHA-256", value=_SHA256)
HASH_BLAKE2B = Value(
    summary="keyed BLAKE2b: faster where the CPU has no SHA-256 instructions",
    value=f"{_HASHES}:BLAKE2B",
)
HASH_SHA256_CBOR = Value(summary="keyed SHA-256 over CBOR text", value=f"{_HASHES}:SHA256_CBOR")
HASH_BUILTIN = Value(summary="an older name for sha256", value=_SHA256)
HASH_SHA256_CBOR_64BIT = Value(
    summary="an older name for sha256_cbor", value=f"{_HASHES}:SHA256_CBOR"
)

# How the rotary embedding is stretched: rope_type in --rope-scaling and in checkpoints.
# `value` is the "module:function" of the rule: it takes RopeSettings and returns Frequencies (see
# `dovetail.layers.attention.rotary`).
ROPE_TYPE_DEFAULT = Value(summary="no scaling", value=f"{_ROPE_RULES}:default")
ROPE_TYPE_LINEAR = Value(summary="positions divided by factor", value=f"{_ROPE_RULES}:linear")
ROPE_TYPE_DYNAMIC = Value(
    summary="the base grows with the served length (NTK)", value=f"{_ROPE_RULES}:dynamic"
)
ROPE_TYPE_YARN = Value(
    summary="low frequencies divided by factor, high ones kept", value=f"{_ROPE_RULES}:yarn"
)
ROPE_TYPE_LONGROPE = Value(
    summary="one factor per frequency, for short and for long contexts",
    value=f"{_ROPE_RULES}:longrope",
)
ROPE_TYPE_NTK = Value(
    summary="a larger base, and angles a little smaller", value=f"{_ROPE_RULES}:ntk"
)
ROPE_TYPE_PROPORTIONAL = Value(
    summary="the first pairs of a head turn as without scaling, the others stay",
    value=f"{_ROPE_RULES}:proportional",
)
ROPE_TYPE_LLAMA3 = Value(
    summary="the same as yarn, with the two bounds of Llama 3", value=f"{_ROPE_RULES}:llama3"
)

# Layouts of a checkpoint's settings: the choices of --config-format.
# `value` names the function that reads one (see `config.formats`); None recognises it from the
# files.
CONFIG_FORMAT_AUTO = Value(summary="recognised from the files in the folder", value=None)
CONFIG_FORMAT_HF = Value(
    summary="config.json, as transformers or a model card has it",
    value="dovetail_plugins.published.config:read_config",
)
CONFIG_FORMAT_GGUF = Value(
    summary="the metadata of a GGUF file", value="dovetail_plugins.gguf._config:read_config"
)
CONFIG_FORMAT_MISTRAL = Value(
    summary="params.json as Mistral publishes it",
    value="dovetail_plugins.mistral._params:read_config",
)

# Where default sampling settings come from: the named choices of --generation-config.
# Any other word is a folder with a generation_config.json. `value` "model" is the model's folder,
# None is nowhere.
GENERATION_CONFIG_AUTO = Value(
    summary="generation_config.json in the model's folder", value="model"
)
GENERATION_CONFIG_DOVETAIL = Value(summary="dovetail's own defaults", value=None)
GENERATION_CONFIG_VLLM = Value(
    summary="the same as dovetail, for command lines of vLLM", value=None
)

# Whose code runs the model: the choices of --model-impl.
# `value` is "dovetail" or "transformers"; None takes dovetail's own model where there is one.
MODEL_IMPL_AUTO = Value(
    summary="dovetail's own model if there is one, else transformers'", value=None
)
MODEL_IMPL_DOVETAIL = Value(summary="dovetail's own model, or an error", value="dovetail")
MODEL_IMPL_VLLM = Value(summary="the same as dovetail, for command lines of vLLM", value="dovetail")
MODEL_IMPL_TRANSFORMERS = Value(
    summary="the model class of transformers with dovetail's attention and linear layers",
    value="transformers",
)

# The use of a model: the choices of --runner and, for older command lines, of --task.
# `value` is the word; None leaves it to the checkpoint.
RUNNER_AUTO = Value(summary="chosen by the checkpoint", value=None)
RUNNER_GENERATE = Value(summary="text generation", value="generate")
RUNNER_POOLING = Value(summary="vectors, scores or classes of prompts", value="pooling")

# Conversions of a generative model into a pooling model: the choices of --convert.
# `value` is what its hidden states become; None: no conversion.
CONVERT_AUTO = Value(summary="chosen by the checkpoint", value=None)
CONVERT_NONE = Value(summary="no conversion: as the checkpoint says", value=None)
CONVERT_EMBED = Value(summary="vectors of prompts", value="embed")
CONVERT_CLASSIFY = Value(summary="classes of prompts", value="classify")
CONVERT_REWARD = Value(summary="rewards of tokens", value="reward")

# How safetensors files are read: the choices of --safetensors-load-strategy.
# `value` is the load format's option `reading`.
LOAD_STRATEGY_LAZY = Value(
    summary="files are memory-mapped; tensors are read when they are needed", value="lazy"
)
LOAD_STRATEGY_EAGER = Value(
    summary="each file is read completely at once, for slow or remote disks", value="eager"
)

# How far steps are made fast: the levels of --compilation-config (-O).
# `value` is a set of words: "fused", operators joined into one kernel where the device has it;
# "captured", steps recorded and replayed if the device can; "compiled", the model's pass
# through torch.compile where that is faster.
COMPILATION_0 = Value(summary="torch's operators, one by one", value=frozenset())
COMPILATION_1 = Value(summary="fused operators, one by one", value=frozenset({"fused"}))
COMPILATION_2 = Value(
    summary="captured steps (CUDA graphs), or recorded ones on a CPU",
    value=frozenset({"fused", "captured"}),
)
COMPILATION_3 = Value(
    summary="as 2, with torch.compile for the parts between attention where that is faster",
    value=frozenset({"fused", "captured", "compiled"}),
)

# Sizes of steps for what matters more: the choices of --performance-mode.
# `value` is (factor of the default of --max-num-batched-tokens, factor of that of
# --max-num-seqs).
PERFORMANCE_BALANCED = Value(summary="the usual sizes", value=(1, 1))
PERFORMANCE_INTERACTIVITY = Value(
    summary="short steps: half as many tokens each, so that tokens come more evenly",
    value=(0.5, 1),
)
PERFORMANCE_THROUGHPUT = Value(
    summary="long steps: twice as many tokens and requests each", value=(2, 2)
)

# The values reported as logprobs: the choices of --logprobs-mode.
# `value` is (stage, scale): "raw" logits are the model's own, "processed" ones have gone through
# processors, penalties, temperature and filters; the scale is "logprobs" or "logits".
LOGPROBS_MODE_RAW_LOGPROBS = Value(
    summary="logprobs of the model's own logits", value=("raw", "logprobs")
)
LOGPROBS_MODE_RAW_LOGITS = Value(summary="the model's own logits", value=("raw", "logits"))
LOGPROBS_MODE_PROCESSED_LOGPROBS = Value(
    summary="logprobs of the distribution that tokens are sampled from",
    value=("processed", "logprobs"),
)
LOGPROBS_MODE_PROCESSED_LOGITS = Value(
    summary="logits after processors, penalties, temperature and filters",
    value=("processed", "logits"),
)

# How chat templates see message content: the choices of --chat-template-content-format.
# `value` is "string" or "openai"; None is decided by looking at the template.
CHAT_CONTENT_AUTO = Value(summary="chosen by the template's text", value=None)
CHAT_CONTENT_STRING = Value(summary="content as one string", value="string")
CHAT_CONTENT_OPENAI = Value(summary="content as a list of parts with a type", value="openai")

# The names under which chat answers carry thinking: the choices of --reasoning-field.
# `value` is a tuple of those names.
REASONING_FIELD_BOTH = Value(summary="both names", value=("reasoning", "reasoning_content"))
REASONING_FIELD_REASONING = Value(summary="reasoning only", value=("reasoning",))
REASONING_FIELD_REASONING_CONTENT = Value(
    summary="reasoning_content only", value=("reasoning_content",)
)

# Forms of the log's lines: the choices of --log-format.
# `value` is "module:class" of a logging.Formatter, made with the text before every line.
LOG_FORMAT_TEXT = Value(
    summary="a line of text for each message", value="dovetail.observability.logging:LineFormatter"
)
LOG_FORMAT_JSON = Value(
    summary="a JSON object for each message: time, level, logger, message, request_id",
    value="dovetail_plugins.json_log:JsonFormatter",
)

# Severities of dovetail's own log: the choices of --log-level.
# `value` is the name of Python's logging level.
LOG_LEVEL_DEBUG = Value(summary="everything", value="DEBUG")
LOG_LEVEL_INFO = Value(summary="single events, and regular statistics", value="INFO")
LOG_LEVEL_WARNING = Value(summary="problems that need attention", value="WARNING")
LOG_LEVEL_ERROR = Value(summary="failures", value="ERROR")
LOG_LEVEL_CRITICAL = Value(summary="failures that end the process", value="CRITICAL")

# Severities of the HTTP server's log: the choices of --uvicorn-log-level.
# `value` is the word uvicorn takes.
UVICORN_LOG_TRACE = Value(summary="every ASGI message", value="trace")
UVICORN_LOG_DEBUG = Value(summary="everything but ASGI messages", value="debug")
UVICORN_LOG_INFO = Value(summary="start, stop and requests", value="info")
UVICORN_LOG_WARNING = Value(summary="problems that need attention", value="warning")
UVICORN_LOG_ERROR = Value(summary="failures", value="error")
UVICORN_LOG_CRITICAL = Value(summary="failures that end the server", value="critical")

# Parts whose time is added up for every request: the choices of --collect-detailed-traces.
# `value` names the times in a span: of the model, of the worker, or both.
TRACE_MODULE_MODEL = Value(summary="the model's forward passes", value=("model",))
TRACE_MODULE_WORKER = Value(summary="the worker's steps, from call to result", value=("worker",))
TRACE_MODULE_ALL = Value(summary="both", value=("model", "worker"))

# The rest of choices of earlier generations. `value` is its name.
PREEMPTION_RECOMPUTE = Value(summary="preempted requests are recomputed", value="recompute")
PREEMPTION_SWAP = Value(
    summary="the KV cache of preempted requests is swapped to host memory and back", value="swap"
)

# How several engines are started: the choices of --data-parallel-backend. `value` is the
# "module:class" of an EngineStarter (`dovetail.interfaces.engine_starter`); that of `mp` accepts
# the engines of other machines.
DATA_PARALLEL_MP = Value(
    summary="each engine in a process of its own on this machine",
    value="dovetail_plugins.joining.remote_engines:JoiningEngines",
)
DATA_PARALLEL_RAY = Value(
    summary="each engine in an actor on a machine of a Ray cluster",
    value="dovetail_plugins.ray_engines:RayEngines",
    requires=("ray",),
    extra="ray",
)

# Which rank holds which experts: the choices of --expert-placement-strategy.
# `value` is the "module:function" of an ExpertPlacement (`dovetail.interfaces.expert_placement`).
EXPERTS_LINEAR = Value(
    summary="consecutive experts on each rank", value="dovetail_plugins.expert_placements:linear"
)
EXPERTS_ROUND_ROBIN = Value(
    summary="experts dealt out to the ranks in turn, so that neighbors are on different ranks",
    value="dovetail_plugins.expert_placements:round_robin",
)

# Kinds of media in prompts: the keys of --limit-mm-per-prompt and --media-io-kwargs.
MODALITY_IMAGE = Value(summary="still images", value="image")
MODALITY_VIDEO = Value(summary="videos, of which frames are taken", value="video")
MODALITY_AUDIO = Value(summary="sound", value="audio")

MM_CACHE_LRU = Value(
    summary="in the memory of each API process, what was used last the longest", value="lru"
)
MM_CACHE_SHM = Value(
    summary="in shared memory, one for all API processes of the server", value="shm"
)
MM_ENCODER_TP_MODE_WEIGHTS = Value(
    summary="each rank has a part of the encoder's matrices", value="weights"
)
MM_ENCODER_TP_MODE_DATA = Value(
    summary="each rank has the whole encoder, and encodes a part of a step's items", value="data"
)
