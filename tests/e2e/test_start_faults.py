"""Planned start-up faults of the real command: cause and fix are its last words, nothing is left.

Each fault is one `dovetail serve` of its own. Of the faults that can be seen without weights, some
(in a full run all) run with a booby-trapped torch on the import path, so that they prove to be
found before anything heavy. Others are forked, but for those whose engine is killed while it
starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from support.demo_copies import demo_copy, with_file, with_header, with_weights
from support.samples import sample_of

pytestmark = pytest.mark.e2e

LIMIT_S = 30.0
LAST_LINES = 10
MARK = "DOVETAIL_E2E_MARK"
TRAP = 'raise AssertionError("torch was imported for a fault that needs no weights")\n'
Header = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one server ended."""

    code: int | None
    lines: list[str]
    left: list[str]
    seconds: float

    @property
    def end(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.lines[-LAST_LINES:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: how to bring it about, and what its report must hold (regular expressions)."""

    args: Callable[[Path], list[str]]
    cause: str
    fix: str
    starts_engine: bool = False
    uses_torch: bool = False
    env: dict[str, str] = field(default_factory=dict)
    code: int = 2
    meanwhile: Callable[[subprocess.Popen[str]], None] | None = None
    is_cold: bool = False


def _rename_norm(header: Header) -> None:
    header["model.some_other_norm.weight"] = header.pop("model.norm.weight")


def _flatten_norm(header: Header) -> None:
    entry = header["model.norm.weight"]
    entry["shape"] = [entry["shape"][0] // 2, 2]


def _bad_dtype(header: Header) -> None:
    header["model.norm.weight"]["dtype"] = "BF61"


def _missing_shard(folder: Path) -> list[str]:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    model = demo_copy(folder)
    return [with_file(model, "model.safetensors.index.json", json.dumps(index))]


def _taken_port(folder: Path) -> list[str]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    _HELD.append(sock)
    return ["--port", str(sock.getsockname()[1])]


_HELD: list[socket.socket] = []
"""Sockets that keep their ports until the module is done."""


def written(name: str, content: str, *flags: str) -> Callable[[Path], list[str]]:
    """Return args whose last word is a file of this content."""

    def make(folder: Path) -> list[str]:
        file = folder / name
        file.write_text(content)
        return [*flags, str(file)]

    return make


def flags(*words: str) -> Callable[[Path], list[str]]:
    """Return args that need no file."""
    return lambda folder: list(words)


def _plugin(folder: Path) -> list[str]:
    file = folder / "my_parser.py"
    file.write_text(
        "from dovetail import registry\n"
        '@registry.register("tool_parser", "mine")\n'
        "class Mine:\n"
        '    """A parser in name only."""\n'
    )
    return ["--tool-parser-plugin", str(file), "--tool-call-parser", "mine"]


def _coded(folder: Path) -> list[str]:
    name = "MyForCausalLM"
    code = {"AutoModelForCausalLM": f"my.{name}"}
    model = demo_copy(folder, architectures=[name], auto_map=code)
    return [with_file(model, "my.py", "raise SystemExit")]


def killing(module: str, after_s: float = 0.0) -> Callable[[subprocess.Popen[str]], None]:
    """Return what kills each child that runs this module, `after_s` after it can be seen: another
    takes the place of one that dies while it imports."""

    def kill(process: subprocess.Popen[str]) -> None:
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children():
                    if module in child.cmdline():
                        time.sleep(after_s)
                        child.kill()
            time.sleep(0.01)

    return kill


FAULTS: dict[str, Fault] = {
    "no such path": Fault(
        args=flags("./no/such/folder"), cause="no folder ./no/such/folder", fix="check the path"
    ),
    "a file instead of a folder": Fault(
        args=flags(str(DEMO_PATH / "model.safetensors")),
        cause="is a file",
        fix="name its folder",
    ),
    "hub id offline and not cached": Fault(
        args=flags("nobody/not-here"),
        cause="nobody/not-here is neither a folder nor",
        fix="unset HF_HUB_OFFLINE",
    ),
    "folder without config.json": Fault(
        args=lambda folder: [demo_copy(folder, "config.json")],
        cause="no config.json",
        fix="Hugging Face layout",
    ),
    "config.json is no JSON": Fault(
        args=lambda folder: [with_file(demo_copy(folder), "config.json", '{"a": ')],
        cause=r"config\.json: cannot be read as JSON",
        fix=r"fix: \w",
    ),
    "config.json is a list": Fault(
        args=lambda folder: [with_file(demo_copy(folder), "config.json", "[]")],
        cause=r"config\.json: must hold a JSON object",
        fix=r"fix: \w",
    ),
    "config.json lacks a number": Fault(
        args=lambda folder: [demo_copy(folder, num_hidden_layers=None)],
        cause="num_hidden_layers is missing",
        fix="--hf-overrides.num_hidden_layers",
    ),
    "no tokenizer": Fault(
        args=lambda folder: [demo_copy(folder, "tokenizer.json")],
        cause="no tokenizer",
        fix="--tokenizer",
    ),
    "broken tokenizer": Fault(
        args=lambda folder: [with_file(demo_copy(folder), "tokenizer.json", '{"version": 1}')],
        cause=r"tokenizer\.json",
        fix=r"fix: \w",
        starts_engine=True,
        uses_torch=True,
    ),
    "no weights": Fault(
        args=lambda folder: [demo_copy(folder, "model.safetensors", "model-mtp.safetensors")],
        cause="no weight files",
        fix="--load-format dummy",
        uses_torch=True,
    ),
    "unknown architecture": Fault(
        args=lambda folder: [
            demo_copy(folder, architectures=["Qwen3ForCausalML"], model_type="qwen33")
        ],
        cause="Qwen3ForCausalML",
        fix="Qwen3ForCausalLM",
    ),
    "unknown quantization in the checkpoint": Fault(
        args=lambda folder: [demo_copy(folder, quantization_config={"quant_method": "zip2"})],
        cause='quantization_config of the checkpoint: .*"?zip2',
        fix=r"fix: \w",
    ),
    "port taken": Fault(args=_taken_port, cause=r"port \d+ is in use", fix="--port"),
    "host not of this machine": Fault(
        args=flags("--host", "203.0.113.7", "--port", "0"), cause=r"203\.0\.113\.7", fix="--host"
    ),
    "context above the model's": Fault(
        args=flags("--max-model-len", "4096"),
        cause="4096 tokens is more than the checkpoint's 2048",
        fix="give at most 2048",
    ),
    "context above the cache": Fault(
        args=flags("--max-model-len", "2048", "--kv-cache-memory-bytes", "1000000"),
        cause="2048 tokens do not fit into",
        fix=r"use --max-model-len \d+",
    ),
    "cache of too few blocks": Fault(
        args=flags("--max-model-len", "2048", "--num-gpu-blocks-override", "8"),
        cause="2048 tokens do not fit into 8 blocks",
        fix="--num-gpu-blocks-override",
    ),
    "corrupt safetensors header": Fault(
        args=lambda folder: [with_weights(folder, lambda whole: b"\xff" * 8 + whole[8:])],
        cause=r"model\.safetensors: the file is damaged",
        fix="download the file again",
    ),
    "truncated safetensors": Fault(
        args=lambda folder: [with_weights(folder, lambda whole: whole[: len(whole) // 2])],
        cause=r"the file is damaged: it has \d+ bytes",
        fix="download the file again",
    ),
    "missing shard": Fault(
        args=_missing_shard,
        cause="missing: model-00002-of-00002.safetensors",
        fix="finish the download",
    ),
    "missing tensor": Fault(
        args=lambda folder: [with_header(folder, _rename_norm)],
        cause=r"norm\.weight",
        fix=r"fix: \w",
        starts_engine=True,
        uses_torch=True,
    ),
    "tensor of another shape": Fault(
        args=lambda folder: [with_header(folder, _flatten_norm)],
        cause=r"norm\.weight.*192",
        fix=r"fix: \w",
        starts_engine=True,
        uses_torch=True,
    ),
    "tensor of an unknown type": Fault(
        args=lambda folder: [with_header(folder, _bad_dtype)],
        cause="BF61",
        fix=r"fix: \w",
        starts_engine=True,
        uses_torch=True,
    ),
    "bad dtype": Fault(args=flags("--dtype", "float61"), cause="float61", fix="float16"),
    "unknown attention backend": Fault(
        args=flags("--attention-backend", "torch_sdp"), cause="torch_sdp", fix="torch_sdpa"
    ),
    "unknown tool parser": Fault(
        args=flags("--tool-call-parser", "hermez"), cause="hermez", fix="hermes"
    ),
    "tool choice without a parser": Fault(
        args=lambda folder: [
            demo_copy(folder),
            "--enable-auto-tool-choice",
            "--tool-call-parser=none",
        ],
        cause="needs a tool parser",
        fix="--tool-call-parser",
    ),
    "plugin with a syntax error": Fault(
        args=written("broken.py", "def parse(:\n", "--tool-parser-plugin"),
        cause=r"broken\.py.*(line 1|SyntaxError|syntax)",
        fix=r"fix: \w",
    ),
    "plugin file missing": Fault(
        args=flags("--tool-parser-plugin", "/no/such/parser.py"),
        cause="/no/such/parser.py",
        fix=r"fix: \w",
    ),
    "plugin that breaks the interface": Fault(args=_plugin, cause="mine", fix=r"fix: \w"),
    "logits processor of no module": Fault(
        args=flags("--logits-processors", "nosuch.module:Thing"),
        cause=r"nosuch\.module",
        fix=r"fix: \w",
    ),
    "bad JSON flag": Fault(
        args=flags("--hf-overrides", "{a: 1"), cause="--hf-overrides: .*JSON", fix=r"fix: \w"
    ),
    "unknown flag": Fault(
        args=flags("--max-model-length", "9"), cause="--max-model-length", fix="--max-model-len"
    ),
    "number out of range": Fault(
        args=flags("--gpu-memory-utilization", "7"),
        cause="--gpu-memory-utilization: .*7",
        fix=r"fix: \w",
    ),
    "port out of range": Fault(
        args=flags("--port", "70000"), cause="--port: .*70000", fix=r"fix: \w"
    ),
    "number that is none": Fault(
        args=flags("--max-num-seqs", "many"), cause="--max-num-seqs: .*many", fix=r"fix: \w"
    ),
    "bad YAML": Fault(
        args=written("bad.yaml", "port: [8000\n", "--config"),
        cause=r"bad\.yaml: not YAML.*line 2",
        fix="correct that line",
    ),
    "unknown YAML key": Fault(
        args=written("keys.yaml", "max-model-length: 9\n", "--config"),
        cause='no setting "max-model-length"',
        fix="max-model-len",
    ),
    "chat template with a syntax error": Fault(
        args=written("bad.jinja", "hello\n{% for m in messages %}x", "--chat-template"),
        cause=r"bad\.jinja.*line",
        fix=r"fix: \w",
    ),
    "chat template missing": Fault(
        args=flags("--chat-template", "/no/such.jinja"),
        cause=r"/no/such\.jinja",
        fix=r"name a template's file",
    ),
    "more stages than layers": Fault(
        args=flags("--pipeline-parallel-size", "64"),
        cause=r"--pipeline-parallel-size: \d+ layers cannot be divided over 64 stages",
        fix=r"use at most \d+",
    ),
    "code of the checkpoint": Fault(
        args=_coded, cause="does not run unless it is asked for", fix="give --trust-remote-code"
    ),
    "code of the checkpoint, any version": Fault(
        args=lambda folder: [*_coded(folder), "--trust-remote-code"],
        cause=r"nothing says which version",
        fix="--code-revision sha256:[0-9a-f]{64}",
    ),
    "engine killed at once": Fault(
        args=flags("--port", "0"),
        cause="engine process was killed by signal 9",
        fix=r"fix: .*memory",
        starts_engine=True,
        uses_torch=True,
        code=1,
        meanwhile=killing("dovetail.engine.process"),
        is_cold=True,
    ),
    "engine killed while loading": Fault(
        args=flags("--port", "0"),
        cause="engine process was killed by signal 9",
        fix=r"fix: .*memory",
        starts_engine=True,
        uses_torch=True,
        code=1,
        meanwhile=killing("dovetail.engine.process", after_s=0.5),
        is_cold=True,
    ),
    "API process killed while starting": Fault(
        args=flags("--api-server-count", "2"),
        cause="a server process ended while starting",
        fix="fix: .*--api-server-count",
        starts_engine=True,
        uses_torch=True,
        code=1,
        meanwhile=killing("dovetail.server.launch.api_process"),
    ),
    "cache above the memory": Fault(
        args=flags("--kv-cache-memory-bytes", "1000000000000000"),
        cause="MiB for one KV cache tensor cannot be allocated",
        fix="lower .*--kv-cache-memory-bytes",
        starts_engine=True,
        uses_torch=True,
    ),
    "setting of a wrong type in config.json": Fault(
        args=lambda folder: [demo_copy(folder, rms_norm_eps="tiny")],
        cause=r"config\.json: Qwen3ForCausalLM cannot be created: .*'tiny'",
        fix=r"check the values in config\.json",
        starts_engine=True,
        uses_torch=True,
    ),
    "chat template of the checkpoint": Fault(
        args=lambda f: [with_file(demo_copy(f), "chat_template.jinja", "{% for x %}")],
        cause="the checkpoint's chat template: .*line 1",
        fix="give another with --chat-template",
        starts_engine=True,
        uses_torch=True,
    ),
    "default above its bounds": Fault(
        args=lambda f: [with_file(demo_copy(f), "generation_config.json", '{"temperature": -3}')],
        cause="temperature must be from 0 to 100, not -3",
        fix=r"mend generation_config\.json",
    ),
    "API key is empty": Fault(
        args=flags("--api-key", ""),
        cause="--api-key: an API key is empty",
        fix="leave the flag out",
    ),
    "options of no plugin kind": Fault(
        args=flags("--plugin-options.tool_parsers.x", "1"),
        cause='no plugin kind "tool_parsers"',
        fix="dovetail plugins list",
    ),
}


def run_fault(fault: Fault, folder: Path, *, is_trapped: bool = False) -> Outcome:
    """Start the server, wait for its end, and look for what it left behind. With `is_trapped` it
    may not import torch, if the fault needs none."""
    folder.mkdir()
    mark = uuid.uuid4().hex
    args = fault.args(folder)
    port = [] if "--port" in args else ["--port", "0"]
    start_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "dovetail", "serve", *args, *port],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(fault, folder, is_trapped) | {MARK: mark},
    ) as process:
        if fault.meanwhile is not None:
            threading.Thread(target=fault.meanwhile, args=(process,), daemon=True).start()
        code: int | None
        try:
            text, _ = process.communicate(timeout=LIMIT_S)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code = None
            process.terminate()
            text, _ = process.communicate()
    seconds = time.monotonic() - start_s
    return Outcome(code=code, lines=text.splitlines(), left=_left(mark), seconds=seconds)


def _environment(fault: Fault, folder: Path, is_trapped: bool) -> dict[str, str]:
    paths = [path for path in sys.path if path]
    if is_trapped and not fault.uses_torch:
        (folder / "trap" / "torch").mkdir(parents=True)
        (folder / "trap" / "torch" / "__init__.py").write_text(TRAP)
        paths.insert(0, str(folder / "trap"))
    usual = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    if fault.is_cold:
        usual["STARTED_COLD"] = "1"  # no process that has the imports has this variable
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | usual | fault.env


def _left(mark: str) -> list[str]:
    """Return the command lines of living processes that carry the mark; wait a little for none.
    Forked ones do not show it: what is left of them keeps the log open until the time limit."""
    deadline_s = time.monotonic() + 2.0
    while True:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    found.append(" ".join(process.cmdline()))
        if not found or time.monotonic() > deadline_s:
            return found
        time.sleep(0.05)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """Run the faults that were asked for, two at a time, beside the tests that look at them."""
    root = tmp_path_factory.mktemp("faults")
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = [str(item.callspec.params["name"]) for item in items if item.originalname == TEST]
    step = sample_of(1, 6)
    with ThreadPoolExecutor(2) as pool:
        yield {
            name: pool.submit(
                run_fault, FAULTS[name], root / str(number), is_trapped=number % step == 0
            )
            for number, name in enumerate(names)
        }
    for sock in _HELD:
        sock.close()
    shutil.rmtree(root, ignore_errors=True)


TEST = "test_the_report_says_cause_and_fix"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", FAULTS)
def test_the_report_says_cause_and_fix(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    fault, outcome = FAULTS[name], outcomes[name].result()
    log = "\n".join(outcome.lines)
    assert outcome.code is not None, f"it hung:\n{log}"
    assert outcome.code == fault.code, log
    assert re.search(fault.cause, outcome.end, re.DOTALL), log
    assert re.search(fault.fix, outcome.end), log
    assert re.search(r"^fix: ", outcome.lines[-1]), log
    assert "Traceback" not in log, log
    assert outcome.left == []
    assert fault.starts_engine or "engine start-up" not in log


def test_verbose_shows_the_traceback(tmp_path: Path) -> None:
    fault = Fault(args=flags("--dtype", "float61", "--verbose"), cause="", fix="")
    outcome = run_fault(fault, tmp_path / "x")
    assert "Traceback" in "\n".join(outcome.lines)
    assert "float61" in outcome.end
