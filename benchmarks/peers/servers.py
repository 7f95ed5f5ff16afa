"""The servers that serve.py compares: how each is started on a port. Starts nothing itself."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
SEQUENCES, TOKENS_EACH = 16, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A command with {python}, {model}, {gguf}, {port} and {threads} to fill in.

    `body` is merged into every request; it keeps the work the same: no early end, no prompt cache.
    """

    name: str
    command: str
    venv: str | None = None
    body: dict[str, Any] = field(default_factory=lambda: {"ignore_eos": True})
    environment: dict[str, str] = field(default_factory=dict)

    def arguments(
        self, models: Path, model: str, venvs: Path, port: int, threads: int
    ) -> list[str]:
        """Return the command to run."""
        python = sys.executable if self.venv is None else str(venvs / self.venv / "bin" / "python")
        text = self.command.format(
            python=shlex.quote(python),
            model=shlex.quote(str(models / model)),
            gguf=shlex.quote(str(models / model)),
            port=port,
            threads=threads,
        )
        return shlex.split(text)


def _vllm(name: str, flags: str) -> Server:
    return Server(
        name=name,
        venv="vllm",
        command="{python} -m vllm.entrypoints.openai.api_server --model {model} --port {port} "
        "--served-model-name m --max-model-len 2048 --max-num-seqs 32 "
        f"--no-enable-prefix-caching {flags}",
        environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-{last}"},
    )


def _llamacpp(kind: str) -> Server:
    return Server(
        name=f"xllamacpp-{kind}",
        venv="xllamacpp",
        command="{python} -P -m benchmarks.peers.llamacpp_server {gguf}-"
        f"{kind}.gguf {{port}} {SEQUENCES} {TOKENS_EACH} {{threads}}",
        body={"ignore_eos": True, "cache_prompt": False},
        environment={"PYTHONPATH": str(CHECKOUT)},
    )


SERVERS: dict[str, Server] = {
    server.name: server
    for server in (
        _llamacpp("f16"),
        _llamacpp("q8_0"),
        _llamacpp("q4_0"),
        _vllm("vllm-bf16", "--dtype bfloat16 --enforce-eager"),
        _vllm("vllm-compiled-bf16", "--dtype bfloat16"),
        _vllm("vllm-f32", "--dtype float32 --enforce-eager"),
    )
}


def dovetail_server(text: str) -> Server:
    """Return ours from "NAME: FLAGS of dovetail serve". Raises: ValueError"""
    name, colon, flags = text.partition(":")
    if not colon:
        raise ValueError(f'--server {text!r} has no colon; write "NAME: FLAGS"')
    paths = ":".join(str(CHECKOUT / part) for part in ("core", "plugins", "kernels"))
    return Server(
        name=name.strip(),
        command="{python} -m dovetail serve {model} --port {port} --served-model-name m "
        "--max-model-len 2048 --max-num-seqs 32 --no-enable-prefix-caching "
        f"--kv-cache-memory-bytes 268435456 {flags}",
        environment={"PYTHONPATH": paths},
    )
