"""What a plugin raises names the plugin and where its code is: one faulty plugin of every kind.

Each is a class of dovetail's own with one method that raises. The error, the result or a line of
the log says which plugin it was.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams, registry
from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.errors import DovetailError
from dovetail.observability.logging import LineFormatter, name_plugin
from dovetail.registry.blame import described
from dovetail.sampling_params import StructuredOutputsParams
from support.server_process import ServerProcess
from support.serving import app_for, send
from support.third_party import installed
from support.tiny_berts import write_bert
from support.written_lora import CONFIG, write_lora

pytestmark = pytest.mark.e2e
CLASS = "{file}:Faulty"
CODE = """
import inspect
from dovetail.interfaces.plugin import Info
from {module} import {name} as Base

static = inspect.getattr_static(Base, "{method}")
times = [{times}]

def {method}(*args, **kwargs):
    if times[0]:
        times[0] -= 1
        raise ZeroDivisionError("by {method}")
    return getattr(Base, "{method}")(*args, **kwargs)

whole = static.__func__ if isinstance(static, classmethod) else static
{method}.__signature__ = inspect.signature(whole)

class Faulty(Base):
    info = Info(summary="Raises in one method.")

setattr(Faulty, "{method}", classmethod({method}) if whole is not static else {method})
"""
SCHEMA = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}})
GREEDY = SamplingParams(temperature=0, max_tokens=8)
WARM = SamplingParams(temperature=1, max_tokens=8, min_p=0.1, seed=1)
Ask = Callable[[LLM], Any]


def generate(params: SamplingParams) -> Ask:
    """Return what asks for an answer to a prompt that repeats itself, so that drafts are made."""
    return lambda llm: llm.generate(["Hello there. " * 8], params, use_tqdm=False)


def broken_file(folder: Path, target: str, method: str, times: int = 1000) -> Path:
    """Write a plugin file whose class, Faulty, raises the first times that a method is called."""
    module, _, name = target.partition(":")
    kind = module.split(".")[-2]
    file = folder / f"faulty_{kind}_{name}_{method.strip('_')}.py"
    file.write_text(CODE.format(module=module, name=name, method=method, times=times))
    return file


greedy = generate(GREEDY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Methods of a class that raise one after the other, and the flags that choose the plugin."""

    target: str
    methods: tuple[str, ...]
    flags: dict[str, Any]
    ask: Ask = greedy
    model: str = ""


PLUGINS = "dovetail_plugins."
FAULTS = {
    "attention_backend": Fault(
        target=PLUGINS + "attention.native_cpu:NativeCpu",
        methods=("kv_shape", "prepare", "forward"),
        flags={"attention_backend": CLASS},
    ),
    "quantization": Fault(
        target=PLUGINS + "quantization.none:Unquantized",
        methods=("linear",),
        flags={"quantization": CLASS},
    ),
    "load_format": Fault(
        target=PLUGINS + "load_formats.safetensors:Safetensors",
        methods=("tensors",),
        flags={"load_format": CLASS},
    ),
    "structured_output_backend": Fault(
        target=PLUGINS + "structured_output.guidance:Guidance",
        methods=("__init__", "compile", "load"),
        flags={"structured_outputs_config": {"backend": CLASS, "disable_fallback": True}},
        ask=generate(SamplingParams(max_tokens=8, structured_outputs=SCHEMA)),
    ),
    "scheduler": Fault(
        target=PLUGINS + "schedulers.continuous:ContinuousScheduler",
        methods=("__init__", "add", "plan", "update", "counts"),
        flags={"scheduler_cls": CLASS},
    ),
    "scheduling_policy": Fault(
        target=PLUGINS + "scheduling_policies.fcfs:Fcfs",
        methods=("__init__", "key"),
        flags={"scheduling_policy": CLASS},
    ),
    "drafter": Fault(
        target=PLUGINS + "drafters.ngram:NgramDrafter",
        methods=("__init__", "propose", "forget"),
        flags={"speculative_config": {"method": CLASS, "num_speculative_tokens": 2}},
    ),
    "acceptance": Fault(
        target=PLUGINS + "acceptance.typical_acceptance_sampler:TypicalAcceptanceSampler",
        methods=("__init__", "chance"),
        flags={
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "acceptance_method": CLASS,
            }
        },
        ask=generate(SamplingParams(temperature=0.01, max_tokens=32, seed=1)),
    ),
    "platform": Fault(
        target=PLUGINS + "platforms.cpu:CpuPlatform",
        methods=("__init__", "check", "defaults", "dtypes", "limits"),
        flags={"device": CLASS},
    ),
    "kv_policy": Fault(
        target="dovetail.engine.kv.paged:Paged",
        methods=("plan", "accounting"),
        flags={"kv_policy": CLASS},
    ),
    "kv_connector": Fault(
        target=PLUGINS + "kv_connectors.offloading:Offloading",
        methods=("__init__", "index", "store"),
        flags={"kv_transfer_config": {"kv_connector": CLASS, "kv_role": "kv_both"}},
    ),
    "kv_eviction": Fault(
        target=PLUGINS + "kv_evictions.lru:LRU",
        methods=("__init__", "add"),
        flags={
            "kv_transfer_config": {
                "kv_connector": "offloading",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"eviction": CLASS},
            }
        },
    ),
    "kv_event_publisher": Fault(
        target=PLUGINS + "kv_event_publishers.null:NullPublisher",
        methods=("__init__", "publish"),
        flags={"kv_events_config": {"enable_kv_cache_events": True, "publisher": CLASS}},
    ),
    "executor": Fault(
        target=PLUGINS + "executors.uni:UniExecutor",
        methods=("__init__", "kv_layers", "allocate", "submit", "shutdown"),
        flags={"distributed_executor_backend": CLASS},
    ),
    "communicator": Fault(
        target=PLUGINS + "communicators.shared_memory:SharedMemoryCommunicator",
        methods=("all_reduce",),
        flags={"tensor_parallel_size": 2, "communicator": CLASS},
    ),
    "worker": Fault(
        target=PLUGINS + "workers.cpu:CpuWorker",
        methods=("__init__", "load", "allocate", "begin", "shutdown"),
        flags={"worker_cls": CLASS},
    ),
    "pooler": Fault(
        target=PLUGINS + "poolers.mean:MeanPooler",
        methods=("__init__", "pool"),
        flags={"pooler_config": {"pooling_type": CLASS}},
        ask=lambda llm: llm.embed(["cat"], use_tqdm=False),
        model="bert",
    ),
    "io_processor": Fault(
        target="conformance.wrong_io_processors:RightProcessor",
        methods=("__init__", "prompts", "answer"),
        flags={"io_processor_plugin": CLASS},
        ask=lambda llm: llm.encode({"data": {"columns": ["a"], "rows": [["cat"]]}}),
        model="bert",
    ),
    "model": Fault(
        target=PLUGINS + "models.qwen3:Qwen3ForCausalLM",
        methods=("__init__", "weight_map", "forward", "logits"),
        flags={"model_impl": CLASS},
    ),
    "tokenizer": Fault(
        target=PLUGINS + "tokenizers.hf:HfTokenizer",
        methods=("__init__", "encode", "facts", "stream"),
        flags={"tokenizer_mode": CLASS},
    ),
    "logits_processor": Fault(
        target=PLUGINS + "logits_processors.min_p:MinP",
        methods=("__init__", "wants", "verify", "add_row", "apply"),
        flags={"logits_processors": [CLASS]},
        ask=generate(WARM),
    ),
}
CASES = [(kind, method) for kind, fault in FAULTS.items() for method in fault.methods]
SERVED = {
    "renderer": (PLUGINS + "renderers.template:Template", "render"),
    "tool_parser": (PLUGINS + "tool_parsers.hermes:Hermes", "parse"),
    "reasoning_parser": (PLUGINS + "reasoning_parsers.qwen3:Qwen3", "starts_inside"),
    "stat_logger": (PLUGINS + "stat_loggers.jsonl:RequestLines", "request"),
    "adapter_resolver": (PLUGINS + "adapter_resolvers.folder:FolderResolver", "find"),
    "api": ("dovetail_plugins.apis.adapters.routes:AdaptersApi", "tasks_of"),
    "router": (PLUGINS + "routers.round_robin:RoundRobin", "choose"),
}
ELSEWHERE = {
    "client": "test_commands",
    "gate": "test_a_gate_that_raises",
    "model_store": "test_a_model_store_of_a_package",
    "command": "test_a_command_of_a_package",
    "stop_condition": "test_a_stop_condition_of_a_package",
    "adapter": "test_an_adapter_of_a_package",
    "quantizer": "test_commands",
    "bench_dataset": "test_commands",
    "all2all": "test_what_exchanges_of_experts_raise",
}


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Give what is logged meanwhile, as the log has it."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(LineFormatter())
    handler.addFilter(name_plugin)
    logger = logging.getLogger("dovetail")
    logger.addHandler(handler)
    try:
        yield text
    finally:
        logger.removeHandler(handler)


def filled(value: Any, target: str) -> Any:
    """Return flags with the plugin's target."""
    return json.loads(json.dumps(value).replace(CLASS, target))


def said(model: str | None, flags: dict[str, Any], ask: Ask) -> str:
    """Return what an LLM raises, answers and logs, without tracebacks."""
    words = []
    sizes = {"max_model_len": 128, "max_num_seqs": 4, "use_tqdm_on_load": False}
    with logged() as log:
        try:
            with LLM(model=model, **sizes, **flags) as llm:
                words = [str(result.error) for result in ask(llm)]
        except DovetailError as error:
            words.append(str(error))
        except Exception as error:
            words.append(described(error))
    lines = [line for line in log.getvalue().splitlines() if not line.startswith("  | ")]
    return "\n".join([*words, *lines])


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert") / "tiny"
    write_bert(folder)
    return folder


def test_every_kind_has_a_faulty_plugin() -> None:
    classes = {kind.name for kind in registry.KINDS.values() if not kind.is_value}
    assert classes == {*FAULTS, *SERVED, *ELSEWHERE}


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_what_a_plugin_raises_names_it(kind: str, method: str, tmp_path: Path, bert: Path) -> None:
    fault = FAULTS[kind]
    file = broken_file(tmp_path, fault.target, method)
    model = str(bert) if fault.model else None
    text = said(model, filled(fault.flags, f"{file}:Faulty"), fault.ask)
    named = [line for line in text.splitlines() if str(file) in line]
    assert any(f"by {method}" in line or "raised by" in line for line in named), text


def test_an_adapter_of_a_package(tmp_path: Path) -> None:
    source = tmp_path / "adapter"
    write_lora(source)
    config = json.loads((source / CONFIG).read_text())
    (source / CONFIG).write_text(json.dumps({**config, "peft_type": "MINE"}))
    file = broken_file(tmp_path, PLUGINS + "adapters.lora:LoraAdapter", "open")
    code = file.read_text() + 'Faulty.peft_types = ("MINE",)\n'
    with installed(tmp_path / "site", "mender", code, {"adapter": {"mine": "mender:Faulty"}}):
        text = said(None, {"enable_lora": True}, lambda llm: [llm.load_adapter("a", str(source))])
    assert "by open" in text and "adapter mine, mender:Faulty of mender" in text


@pytest.mark.parametrize("method", ["__init__", "watch"])
def test_a_stop_condition_of_a_package(method: str, tmp_path: Path) -> None:
    target = PLUGINS + "stop_conditions.repetition_detection:RepetitionDetection"
    code = broken_file(tmp_path, target, method).read_text()
    entries = {"stop_condition": {"mine": "mender:Faulty"}}
    with installed(tmp_path / "site", "mender", code, entries):
        text = said(None, {}, generate(WARM))
    assert f"by {method}" in text and "mender:Faulty" in text


def test_a_command_of_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = broken_file(tmp_path, PLUGINS + "commands.ps:PsCommand", "run").read_text()
    with installed(tmp_path / "site", "mender", code, {"command": {"mend": "mender:Faulty"}}):
        assert main(["mend"]) == 2
    said = capsys.readouterr().err
    assert "by run" in said and "mender:Faulty of mender" in said


def test_a_gate_that_raises(tmp_path: Path) -> None:
    file = broken_file(tmp_path, PLUGINS + "gates.keys:Keys", "enter")
    app, _ = app_for(gate=f"{file}:Faulty")
    with logged() as text:
        assert send(app, "GET", "/health").status_code == 500
    assert "by enter" in text.getvalue() and str(file) in text.getvalue()


def test_a_model_store_of_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = broken_file(tmp_path, PLUGINS + "model_stores.ollama:Ollama", "models").read_text()
    with installed(tmp_path / "site", "mender", code, {"model_store": {"mend": "mender:Faulty"}}):
        assert main(["list"]) == 2
    said = capsys.readouterr().err
    assert "by models" in said and "mender:Faulty of mender" in said


@pytest.mark.parametrize(
    ("target", "method", "words"),
    [
        ("quantizers.int8:Int8", "quantize", "quantize MODEL --method CLASS --out OUT"),
        ("bench_datasets.random:Random", "draw", "bench throughput MODEL --dataset-name CLASS"),
        ("clients.codex:Codex", "settings", "launch CLASS --print --model MODEL --port 1"),
    ],
)
def test_commands(
    target: str, method: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = broken_file(tmp_path, PLUGINS + target, method)
    for word, meant in (
        ("MODEL", str(DEMO_PATH)),
        ("CLASS", f"{file}:Faulty"),
        ("OUT", str(tmp_path / "out")),
    ):
        words = words.replace(word, meant)
    assert main(words.split()) == 2
    told = capsys.readouterr().err
    assert f"by {method}" in told and str(file) in told


API = '''
from fastapi import Request
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info

async def fail(request: Request):
    """Raise."""
    raise ZeroDivisionError("by fail")

class Faulty(Api):
    info = Info(summary="One route, which raises.")
    routes = (Route(method="GET", path="/fail", endpoint=fail),)
'''


RESOLVER = """
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Options:
    path: str = "FOLDER"

Faulty.Options = Options
"""


def test_a_server_names_them_and_goes_on(tmp_path: Path) -> None:
    files = {
        kind: broken_file(tmp_path, target, method, 1)
        for kind, (target, method) in SERVED.items()
        if kind != "api"
    }
    files["api"] = tmp_path / "faulty_api.py"
    files["api"].write_text(API)
    target = {kind: f"{file}:Faulty" for kind, file in files.items()}
    resolver = files["adapter_resolver"]
    resolver.write_text(f"{resolver.read_text()}{RESOLVER}".replace("FOLDER", str(tmp_path)))
    flags = [
        *("--port", "0", "--max-model-len", "256", "--enable-lora", "--data-parallel-size", "2"),
        *("--tool-call-parser", target["tool_parser"], "--enable-auto-tool-choice"),
        *("--reasoning-parser", target["reasoning_parser"], "--renderer", target["renderer"]),
        *("--stat-loggers", target["stat_logger"], "--api", target["api"]),
        *("--lora-resolvers", target["adapter_resolver"]),
        *("--data-parallel-router", target["router"]),
    ]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 40}
    forced = {**body, "tools": [tool], "tool_choice": "required"}
    with ServerProcess(*flags) as server, server.wait_ready().client() as client:
        assert client.get("/fail").status_code == 500
        asked = [client.post("/v1/chat/completions", json=one) for one in [forced] * 5 + [body]]
        assert {answer.status_code for answer in asked[:-1]} == {200, 500}
        assert asked[-1].status_code == 200
        client.post("/v1/chat/completions", json={**body, "model": "unknown"})
        lines = [line for line in server.lines if not line.startswith("  | ")]
    for kind, file in files.items():
        assert any(str(file) in line and "raised" in line for line in lines), (kind, lines)


def test_what_exchanges_of_experts_raise(tmp_path: Path) -> None:
    """A rank says it in its last words, as what a communicator raises."""
    target = PLUGINS + "all2all.allgather_reducescatter:AllGatherReduceScatter"
    file = broken_file(tmp_path, target, "exchange")
    exchange = registry.load("all2all", f"{file}:Faulty").exchange
    with pytest.raises(ZeroDivisionError) as caught:
        exchange(None, None, None)
    assert str(file) in described(caught.value)
