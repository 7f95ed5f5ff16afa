"""The most used flags of SGLang's server, and each in our words.

Source: https://docs.sglang.ai/advanced_features/server_arguments.html
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value
from dovetail_plugins.foreign_flags._lines import (
    LIST,
    MODEL,
    SWITCH,
    absent,
    by_value,
    needless,
    same,
    table,
    to,
)

_DRAFTERS = {
    "EAGLE": "--speculative-config.method eagle",
    "EAGLE3": "--speculative-config.method eagle3",
    "NEXTN": "--speculative-config.method mtp",
    "NGRAM": "--speculative-config.method ngram",
    "STANDALONE": "--speculative-config.method draft_model",
}
_ORDERS = {
    "fcfs": "--scheduling-policy fcfs",
    "lpm": "--scheduling-policy longest-prefix",
    "priority": "--scheduling-policy priority",
}
_KERNELS = "kernels are chosen by the device; --attention-backend names those that are here"
_APART = "prompts and answers are not computed by different servers by this flag; see the how-to "
_APART += "many_engines for --kv-transfer-config"

SGLANG = Value(
    summary="command lines of SGLang",
    value=table(
        ("sglang serve", "-m sglang.launch_server", "sglang.launch_server"),
        to("--model-path --model", MODEL),
        same("--host --port --api-key --dtype --quantization --load-format --device --revision"),
        same("--tokenizer-mode --served-model-name --chat-template --download-dir --log-level"),
        same("--attention-backend --tool-call-parser --reasoning-parser"),
        same("--kv-cache-dtype --cpu-offload-gb --nnodes"),
        same("--stream-interval --max-lora-rank --node-rank --pipeline-parallel-size"),
        same("--tensor-parallel-size --data-parallel-size"),
        same("--trust-remote-code --skip-tokenizer-init --enable-lora --enable-eplb", SWITCH),
        same("--disable-custom-all-reduce", SWITCH),
        to("--tokenizer-path", "--tokenizer {}"),
        to("--context-length", "--max-model-len {}"),
        to("--tp-size --tp", "--tensor-parallel-size {}"),
        to("--pp-size --pp", "--pipeline-parallel-size {}"),
        to("--dp-size --dp", "--data-parallel-size {}"),
        by_value(
            "--ep-size --ep --expert-parallel-size",
            {"1": ""},
            "experts are placed on all devices by --enable-expert-parallel, not on a number of "
            "them",
        ),
        to(
            "--mem-fraction-static",
            "--gpu-memory-utilization {}",
            note="here it also covers what a step needs, so a little more may be given",
        ),
        to("--max-running-requests", "--max-num-seqs {}"),
        to(
            "--chunked-prefill-size",
            "--max-num-batched-tokens {}",
            note="the tokens of answers count too",
            values={"-1": "--no-enable-chunked-prefill"},
        ),
        needless("--max-prefill-tokens", "--max-num-batched-tokens limits a step"),
        absent("--max-total-tokens", "the KV cache is sized by --kv-cache-memory-bytes"),
        to("--page-size", "--block-size {}"),
        by_value("--schedule-policy", _ORDERS, "this order is not supported"),
        needless("--schedule-conservativeness", "a request starts when its whole prompt fits"),
        to("--random-seed", "--seed {}"),
        to("--watchdog-timeout", "--engine-step-timeout {}"),
        to("--log-level-http", "--uvicorn-log-level {}"),
        to("--log-requests", "--enable-log-requests", SWITCH),
        to("--file-storage-path", "--file-storage {}"),
        to("--json-model-override-args", "--hf-overrides {}"),
        to("--preferred-sampling-params", "--override-generation-config {}"),
        to("--lora-paths", "--enable-lora --lora-modules {}", LIST),
        to("--max-loras-per-batch", "--max-loras {}"),
        absent("--lora-target-modules", "an adapter is applied to all its layers", LIST),
        to("--grammar-backend", "--structured-outputs-config.backend {}"),
        needless(
            "--sampling-backend --lora-backend --moe-runner-backend --mm-attention-backend "
            "--prefill-attention-backend --decode-attention-backend",
            _KERNELS,
        ),
        absent("--moe-a2a-backend", "--all2all-backend has other names"),
        by_value("--speculative-algorithm", _DRAFTERS, "this drafter is not supported"),
        to(
            "--speculative-draft-model-path --speculative-draft-model",
            "--speculative-config.model {}",
        ),
        to("--speculative-num-draft-tokens", "--speculative-config.num_speculative_tokens {}"),
        needless(
            "--speculative-num-steps", "--speculative-num-draft-tokens says how long a draft is"
        ),
        by_value("--speculative-eagle-topk", {"1": ""}, "a draft is one row of tokens, no tree"),
        to("--disable-radix-cache", "--no-enable-prefix-caching", SWITCH),
        to("--disable-cuda-graph", "-O1", SWITCH),
        to("--cuda-graph-max-bs", "--compilation-config.max_capture_size {}"),
        to("--cuda-graph-bs", "--cuda-graph-sizes {}", LIST),
        to("--enable-torch-compile", "-O3", SWITCH),
        to("--disable-overlap-schedule", "--no-async-scheduling", SWITCH),
        to("--is-embedding", "--runner pooling", SWITCH),
        to("--enable-memory-saver", "--enable-sleep-mode", SWITCH),
        to("--enable-two-batch-overlap", "--enable-dbo", SWITCH),
        absent(
            "--dist-init-addr --nccl-init-addr",
            "torchrun or --data-parallel-address joins several machines",
        ),
        absent("--enable-dp-attention", "attention is divided as the other layers are", SWITCH),
        absent("--base-gpu-id", "set CUDA_VISIBLE_DEVICES"),
        absent("--torchao-config", "--quantization names the methods that are here"),
        absent("--enable-hierarchical-cache", "use --kv-offloading-size GIB", SWITCH),
        absent("--disaggregation-mode", _APART),
        absent("--load-balance-method", "--data-parallel-router has other names"),
        needless("--enable-metrics --enable-cache-report", "always on", SWITCH),
        needless("--enable-multimodal", "models with media take them without a flag", SWITCH),
        needless("--enable-mixed-chunk", "prompts and answers always share steps", SWITCH),
        needless(
            "--enable-p2p-check --disable-cuda-graph-padding --skip-server-warmup "
            "--disable-outlines-disk-cache --show-time-cost",
            "nothing here depends on it",
            SWITCH,
        ),
        needless("--decode-log-interval", "the log's line comes by time, not by steps"),
        defaults=[("--port", "--port 30000", "SGLang's default port")],
    ),
)
"""Programs, flags and defaults, as `_lines.table` describes them."""
