"""Command lines as people have them, of five generations: each resolves to what it asks for, or
ends with the sentence that says what is missing. The bundled demo model stands in for theirs.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


@dataclass(frozen=True, kw_only=True)
class Line:
    """`words` as typed after `serve`, variables in front; MODEL, FOLDER and FILE are replaced.

    `gives` are settings as resolved, `fails` is the error's one line, `notes` stand in the log.
    """

    words: str
    file: str = ""
    gives: Mapping[str, Any] = field(default_factory=dict)
    fails: str = ""
    notes: tuple[str, ...] = ()


LINES: dict[str, Line] = {
    "004: a plain start": Line(
        words="--model MODEL --dtype half --max-model-len 512 --gpu-memory-utilization 0.4 "
        "--tensor-parallel-size 1 --max-num-seqs 16 --swap-space 4 --disable-log-requests",
        gives={"dtype": "float16", "max_model_len": 512, "max_num_seqs": 16, "model": "MODEL"},
        notes=("--disable-log-requests is now --no-enable-log-requests.",),
    ),
    "004: multi-step scheduling": Line(
        words="MODEL --num-scheduler-steps 8 --enable-chunked-prefill=True",
        gives={"enable_chunked_prefill": True},
        notes=(
            "--num-scheduler-steps changes nothing: steps are planned one by one; "
            "--async-scheduling plans one ahead.",
        ),
    ),
    "004: lookup speculation": Line(
        words="--model MODEL --speculative-model [ngram] --num-speculative-tokens 4 "
        "--ngram-prompt-lookup-max 3 --use-v2-block-manager",
        gives={"speculative_config": NGRAM},
        notes=("--use-v2-block-manager changes nothing: there is one block manager.",),
    ),
    "004: workers through Ray": Line(
        words="--model MODEL --worker-use-ray --engine-use-ray",
        fails="dovetail serve: unknown flag --engine-use-ray.",
    ),
    "000: a task and an fp8 cache": Line(
        words="MODEL --task generate --enable-prefix-caching --kv-cache-dtype fp8_e5m2",
        gives={"kv_cache_dtype": "float8_e5m2", "enable_prefix_caching": True},
    ),
    "000: reasoning and tools": Line(
        words="MODEL --enable-reasoning --reasoning-parser deepseek_r1 --enable-auto-tool-choice "
        "--tool-call-parser hermes --chat-template FOLDER/chat.jinja",
        gives={
            "reasoning_parser": "deepseek_r1",
            "tool_call_parser": "hermes",
            "chat_template": "FOLDER/chat.jinja",
        },
        notes=("--enable-reasoning is now --reasoning-parser, which turns it on.",),
    ),
    "000: media by pairs": Line(
        words="MODEL --limit-mm-per-prompt image=4,video=2",
        gives={"limit_mm_per_prompt": {"image": 4, "video": 2}},
    ),
    "000: nothing given twice": Line(
        words="MODEL --quantization None --preemption-mode None --tokenizer-pool-size 0",
        gives={"quantization": "none"},
    ),
    "000: two devices": Line(
        words="MODEL -tp 2 --distributed-executor-backend mp",
        gives={"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    ),
    "002: a file": Line(
        words="--config FILE --max-num-seqs=9",
        file="""
            model: MODEL
            served-model-name: [first, second]
            max_model_len: 1k
            enable-prefix-caching: false
            max-num-seqs: 4
            max-log-len: null
            hf-overrides:
              rope_parameters: {rope_theta: 20000.0}
            override-generation-config.temperature: 0
            """,
        gives={
            "served_model_name": ["first", "second"],
            "max_model_len": 1000,
            "enable_prefix_caching": False,
            "max_num_seqs": 9,
            "max_log_len": None,
            "hf_overrides": {"rope_parameters": {"rope_theta": 20000.0}},
            "override_generation_config": {"temperature": 0},
        },
    ),
    "002: a file with a slip": Line(
        words="MODEL --config=FILE",
        file="max-model-length: 100",
        fails='FILE: there is no setting "max-model-length".',
    ),
    "002: a container": Line(
        words="VLLM_API_KEY=sk-one VLLM_ATTENTION_BACKEND=TORCH_SDPA VLLM_CPU_KVCACHE_SPACE=1 "
        "VLLM_USE_V1=1 VLLM_LOGGING_LEVEL=DEBUG DOVETAIL_MAX_NUM_SEQS=8 HF_HOME=FOLDER "
        "--host 0.0.0.0 --port 8080 --model MODEL",
        gives={
            "api_key": "***",
            "attention_backend": "TORCH_SDPA",
            "kv_cache_memory_bytes": 2**30,
            "log_level": "debug",
            "max_num_seqs": 8,
            "host": "0.0.0.0",
        },
        notes=("VLLM_API_KEY is --api-key, or DOVETAIL_API_KEY.",),
    ),
    "002: a container with an empty variable and a stranger": Line(
        words="DOVETAIL_SEED= DOVETAIL_MAX_NUM_SEQ=8 --model MODEL",
        gives={"seed": None},
        notes=(
            "DOVETAIL_MAX_NUM_SEQ is not a variable of dovetail; did you mean "
            "DOVETAIL_MAX_NUM_SEQS?",
        ),
    ),
    "002: -O with a level": Line(
        words="MODEL -O3 --enforce_eager false --max_num_batched_tokens=4k",
        gives={"compilation_config": {"level": 3}, "max_num_batched_tokens": 4000},
    ),
    "002: a decoder in JSON": Line(
        words="""MODEL -O='{"level": 1}' --speculative-config """
        """'{"method": "ngram", "num_speculative_tokens": 4}' """
        """--speculative-config.prompt_lookup_max 3""",
        gives={"compilation_config": {"level": 1}, "speculative_config": NGRAM},
    ),
    "003: switches both ways": Line(
        words="MODEL --no-enable-prefix-caching --async-scheduling --api-server-count 2 "
        "--uvicorn-log-level warning --disable-uvicorn-access-log --max-log-len 0 "
        "--enable-prompt-tokens-details --no-enable-force-include-usage",
        gives={
            "enable_prefix_caching": False,
            "async_scheduling": True,
            "api_server_count": 2,
            "max_log_len": 0,
            "enable_prompt_tokens_details": True,
        },
    ),
    "003: experts": Line(
        words="MODEL --enable-expert-parallel --num-redundant-experts 32 --eplb-window-size 9",
        gives={
            "enable_expert_parallel": True,
            "eplb_config": {"num_redundant_experts": 32, "window_size": 9},
        },
    ),
    "003: a slip of the pen": Line(
        words="MODEL --tensor-paralel-size 2",
        fails="dovetail serve: unknown flag --tensor-paralel-size.",
    ),
    "003: more context than there is": Line(
        words="MODEL --max-model-len 25.6k",
        fails="--max-model-len: 25600 tokens is more than the checkpoint's 2048.",
    ),
    "003: code of strangers": Line(
        words="MODEL --trust-remote-code",
        gives={"trust_remote_code": True},
    ),
    "001: the newest words": Line(
        words="MODEL --kv-cache-memory-bytes 64M --logprobs-mode processed_logprobs "
        "--max-logprobs -1 --scheduler-cls vllm.v1.core.sched.scheduler.Scheduler "
        "--enable-log-requests --no-enable-log-outputs --disable-cascade-attn",
        gives={
            "kv_cache_memory_bytes": 64 * 2**20,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,
            "scheduler_cls": "continuous",
        },
        notes=("--disable-cascade-attn changes nothing: cascade attention is not used.",),
    ),
    "001: a dotted line": Line(
        words="MODEL --speculative-config.method ngram --speculative-config.prompt_lookup_max=3 "
        "--speculative_config.num_speculative_tokens=4 --override-generation-config.top_k 7 "
        "--plugin-options.stat_logger.log.interval_s 5",
        gives={
            "speculative_config": NGRAM,
            "override_generation_config": {"top_k": 7},
            "plugin_options": {"stat_logger": {"log": {"interval_s": 5}}},
        },
    ),
    "001: replicas without a server": Line(
        words="MODEL --data-parallel-size 2 --headless --data-parallel-start-rank 1 "
        "--data-parallel-address 10.99.48.128 --data-parallel-rpc-port 13345",
        fails="--data-parallel-secret: a secret that the server and engines of other machines "
        "prove to each other is needed.",
    ),
    "001: replicas behind one server": Line(
        words="MODEL -dp 2 -dpl 2 -dpb mp -dpa 10.0.0.1 -dpp 13345 --api-server-count 2",
        gives={"data_parallel_size": 2, "data_parallel_size_local": 2, "api_server_count": 2},
    ),
    "001: replicas behind a balancer of one's own": Line(
        words="MODEL -dp 8 --data-parallel-hybrid-lb -dpr 4 -dpl 2",
        gives={"data_parallel_hybrid_lb": True, "data_parallel_start_rank": 4},
    ),
    "001: a replica that does not exist": Line(
        words="MODEL --data-parallel-size 2 --data-parallel-rank 2",
        fails="--data-parallel-rank: there is no rank 2 among 2.",
    ),
    "001: caches that move": Line(
        words="""MODEL --kv-transfer-config '{"kv_connector": "NixlConnector"}'""",
        fails="--kv-transfer-config.kv_role: no role is given.",
    ),
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DOVETAIL_", "VLLM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("name", LINES)
def test_a_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = LINES[name]
    (tmp_path / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    file = tmp_path / "settings.yaml"
    places = {"MODEL": str(DEMO_PATH), "FOLDER": str(tmp_path), "FILE": str(file)}

    def placed(text: str) -> str:
        for word, place in places.items():
            text = text.replace(word, place)
        return text

    file.write_text(placed(line.file), encoding="utf-8")
    words = [placed(word) for word in shlex.split(line.words)]
    while "=" in words[0] and not words[0].startswith("-"):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    status = main(["config", "show", "--json", "--origin", *words])
    shown = capsys.readouterr()
    if line.fails:
        assert status == 2
        told = f"dovetail: error: {placed(line.fails)}".replace("serve:", "config show:")
        assert told in shown.err.splitlines()
        assert shown.err.splitlines()[-1].startswith("fix: ")
        return
    assert status == 0, shown.err
    settings = json.loads(shown.out)["settings"]
    wanted = json.loads(placed(json.dumps(dict(line.gives))))
    assert {key: settings[key]["value"] for key in wanted} == wanted
    for note in line.notes:
        assert note in shown.err


def test_there_are_twenty_of_five_generations() -> None:
    assert len(LINES) >= 20
    assert {name.partition(":")[0] for name in LINES} == {"000", "001", "002", "003", "004"}
