"""The most used flags of llama.cpp's server, and each in our words.

Source: tools/server/README.md of llama.cpp; docs/how_to/from_llama_server.md explains them.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value
from dovetail_plugins.foreign_flags._lines import (
    MODEL,
    SWITCH,
    absent,
    by_value,
    needless,
    same,
    table,
    to,
)

_CACHE = {
    "f32": "--kv-cache-dtype float32",
    "f16": "--kv-cache-dtype float16",
    "bf16": "--kv-cache-dtype bfloat16",
    "q8_0": "--kv-cache-dtype int8",
}
_FOUR_BITS = ("q4_0", "q4_1", "iq4_nl")
_KEYS = _CACHE | dict.fromkeys(_FOUR_BITS, "--kv-cache-dtype int4")
_VALUES = _CACHE | dict.fromkeys(_FOUR_BITS, "--kv-cache-dtype k8v4")
_BOTH = {
    "int8 k8v4": "k8v4",
    "float16 k8v4": "k8v4",
    "bfloat16 k8v4": "k8v4",
    "int4 k8v4": "int4",
    "int4 int8": "int8",
}
"""Types of keys and of values that were named apart, in one: no less exact than asked for."""
_SWITCHES = {"on": "", "auto": "", "1": "", "enabled": ""}
_ALL_LAYERS = "all layers are on the device of --device; --cpu-offload-gb leaves a part of the "
_ALL_LAYERS += "weights in host memory"
_IN_REQUEST = "a request says it: the field "

LLAMA_CPP = Value(
    summary="command lines of llama.cpp",
    value=table(
        ("llama-server", "llama serve"),
        to("-m --model -hf -hfr --hf-repo", MODEL),
        absent("-hff --hf-file", "name the quantization behind a colon: USER/MODEL:QUANT"),
        absent("-mu --model-url", "`dovetail pull` fetches a model from the hub"),
        to("-hft --hf-token", "--hf-token {}"),
        to("-mm --mmproj", "--mmproj {}"),
        to("--no-mmproj", "--no-mmproj", SWITCH),
        to("-a --alias", "--served-model-name {}"),
        to("-c --ctx-size", "--max-model-len {}", note="for each request", values={"0": ""}),
        to("-np --parallel", "--max-num-seqs {}", values={"-1": ""}),
        to(
            "-b --batch-size",
            "--max-num-batched-tokens {}",
            note="for all requests of a step together",
        ),
        needless("-ub --ubatch-size", "a step is not divided further"),
        needless(
            "-cb --cont-batching --warmup --metrics --slots --props --jinja --no-slots --mlock "
            "--no-warmup --kv-unified -kvu",
            "it is always so, or nothing here depends on it",
            SWITCH,
        ),
        absent("--no-cont-batching -nocb", "all requests share the steps", SWITCH),
        absent("--no-jinja", "templates are always Jinja or Go", SWITCH),
        to("-t --threads", "--num-threads {}", values={"-1": ""}),
        needless("-tb --threads-batch", "--num-threads is for prompts and answers"),
        to("--threads-http", "--api-server-count {}", note="each is a process", values={"-1": ""}),
        to("-Cr --cpu-range", "--cpu-cores {}"),
        absent("-C --cpu-mask", "use --cpu-cores with a list of CPUs"),
        by_value("--cpu-strict", {"0": "", "1": "--pin-threads"}, "use 0 or 1"),
        absent("--numa", "use --cpu-cores, or start dovetail by numactl"),
        by_value(
            "-ngl --gpu-layers --n-gpu-layers",
            {**dict.fromkeys(("-1", "99", "999", "auto", "all"), ""), "0": "--device cpu"},
            _ALL_LAYERS,
        ),
        absent("-cmoe --cpu-moe", _ALL_LAYERS, SWITCH),
        absent("-ncmoe --n-cpu-moe -ot --override-tensor", _ALL_LAYERS),
        absent("-dev --device -mg --main-gpu", "set CUDA_VISIBLE_DEVICES"),
        by_value(
            "-sm --split-mode",
            {"none": ""},
            "use --tensor-parallel-size or --pipeline-parallel-size with the number of devices",
        ),
        absent("-ts --tensor-split", "devices of --tensor-parallel-size have equal parts"),
        by_value("-fa --flash-attn", _SWITCHES, "use --attention-backend"),
        by_value("-ctk --cache-type-k", _KEYS, "this type of KV cache is not supported"),
        by_value("-ctv --cache-type-v", _VALUES, "this type of KV cache is not supported"),
        absent("-nkvo --no-kv-offload", "the KV cache is where the model is", SWITCH),
        needless("--mmap", "weights are mapped", SWITCH),
        absent("--no-mmap", "use --safetensors-load-strategy eager for files that can", SWITCH),
        to("--rope-scale", "--rope-scaling.factor {}"),
        to("--rope-scaling", "--rope-scaling.rope_type {}"),
        to("--yarn-orig-ctx", "--rope-scaling.original_max_position_embeddings {}"),
        to("--rope-freq-base", "--rope-theta {}"),
        absent("--override-kv", "--hf-overrides has the names of config.json"),
        absent("--lora", "use --enable-lora --lora-modules NAME=FILE; a request names it"),
        absent("--lora-scaled", "an adapter applies at full strength"),
        absent("--context-shift", "a context never shifts", SWITCH),
        absent("-n --predict --n-predict", f"{_IN_REQUEST}max_tokens"),
        to("--temp --temperature", "--override-generation-config.temperature {}"),
        to("--top-k", "--override-generation-config.top_k {}"),
        to("--top-p", "--override-generation-config.top_p {}"),
        to("--min-p", "--override-generation-config.min_p {}"),
        to("--repeat-penalty", "--override-generation-config.repetition_penalty {}"),
        to("--presence-penalty", "--override-generation-config.presence_penalty {}"),
        to("--frequency-penalty", "--override-generation-config.frequency_penalty {}"),
        absent("--samplers", f"{_IN_REQUEST}samplers"),
        absent("--grammar -j --json-schema", f"{_IN_REQUEST}grammar or json_schema"),
        absent("-r --reverse-prompt", f"{_IN_REQUEST}stop"),
        to("-s --seed", "--seed {}", values={"-1": ""}),
        same("--host --port --reasoning-budget --reasoning-budget-message --chat-template"),
        to("--chat-template-file", "--chat-template {}"),
        to("--chat-template-kwargs", "--default-chat-template-kwargs {}"),
        by_value(
            "--reasoning-format",
            {"none": "--reasoning-parser none", "auto": "", "deepseek": ""},
            "--reasoning-parser names the parsers",
        ),
        to("--api-key", "--api-key {}"),
        absent("--api-key-file", "use --api-key, or --api-keys-file with `dovetail keys add`"),
        to("--ssl-key-file", "--ssl-keyfile {}"),
        to("--ssl-cert-file", "--ssl-certfile {}"),
        to("--api-prefix", "--root-path {}"),
        to("-to --timeout", "--timeout-keep-alive {}", note="for idle connections alone"),
        to("--media-path", "--allowed-local-media-path {}"),
        to("--no-webui --no-ui", "--no-ui", SWITCH),
        to("--embedding --embeddings --rerank --reranking", "--runner pooling", SWITCH),
        to("--pooling", "--pooler-config.pooling_type {}"),
        to("-md --model-draft", "--speculative-config.method draft_model "
           "--speculative-config.model {}"),
        to("--draft-max --draft --draft-n --spec-draft-n-max",
           "--speculative-config.num_speculative_tokens {}"),
        needless("--draft-min --draft-n-min -ngld --gpu-layers-draft", "a draft is as long as its "
                 "drafter is sure of, on the device of the model"),
        needless("--cache-reuse -ctxcp --ctx-checkpoints", "every prompt reuses what any left"),
        needless("-cram --cache-ram", "--kv-offloading-size adds host memory to the cache"),
        to("-v --verbose", "--log-level debug", SWITCH),
        absent("--log-file", "the log goes to standard error"),
        defaults=[("--port", "--port 8080", "llama.cpp's default port")],
        joined={"--kv-cache-dtype": _BOTH},
    ),
)  # fmt: skip
"""Programs, flags and defaults, as `_lines.table` describes them."""
