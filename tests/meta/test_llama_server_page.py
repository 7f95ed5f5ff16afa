"""The page for those who come from llama-server names what dovetail has."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail import registry
from dovetail.config.config import flags
from dovetail.server.families import own_apis

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "from_llama_server.md"
OF_OTHERS = {"--help", "--version"}
"""Flags of the command line itself."""
THEIRS = {
    "--agent", "--alias", "--api-key", "--api-key-file", "--api-prefix", "--batch-size",
    "--cache-idle-slots", "--cache-list", "--cache-prompt", "--cache-ram", "--cache-reuse",
    "--cache-type-k", "--cache-type-v", "--chat-template", "--chat-template-file",
    "--chat-template-kwargs", "--check-tensors", "--cont-batching", "--context-shift",
    "--control-vector", "--cors-credentials", "--cors-headers", "--cors-methods",
    "--cors-origins", "--cpu-mask", "--cpu-moe", "--cpu-range", "--cpu-strict",
    "--ctx-checkpoints", "--ctx-size", "--device", "--docker-repo", "--embd-normalize",
    "--embedding", "--fit", "--flash-attn", "--gpu-layers", "--grammar", "--hf-file",
    "--hf-repo", "--hf-token", "--host", "--ignore-eos", "--image-max-tokens",
    "--image-min-tokens", "--jinja", "--json-schema", "--keep", "--kv-offload",
    "--kv-unified-per-slot", "--lazy-mode", "--list-devices", "--load-mode", "--log-file",
    "--log-jsonl", "--log-prompts-dir", "--logit-bias", "--lora",
    "--lora-init-without-apply", "--lora-scaled", "--main-gpu", "--mcp-servers-config",
    "--media-path", "--metrics", "--min-p", "--mmproj", "--model", "--model-draft",
    "--model-url", "--models-autoload", "--models-dir", "--models-max", "--models-preset",
    "--n-cpu-moe", "--no-mmproj", "--no-ui", "--numa", "--offline", "--override-kv",
    "--override-tensor", "--parallel", "--path", "--poll", "--pooling", "--port",
    "--predict", "--prefill-assistant", "--prio", "--props", "--reasoning",
    "--reasoning-budget", "--reasoning-budget-message", "--reasoning-format", "--repack",
    "--repeat-penalty", "--rerank", "--reuse-port", "--reverse-prompt", "--rope-freq-base",
    "--rope-scale", "--rope-scaling", "--sampler-seq", "--samplers", "--seed",
    "--skip-chat-parsing", "--sleep-idle-seconds", "--slot-prompt-similarity",
    "--slot-save-path", "--slots", "--spec-draft-n-max", "--spec-type", "--special",
    "--split-mode", "--spm-infill", "--sse-ping-interval", "--ssl-cert-file",
    "--ssl-key-file", "--swa-full", "--temp", "--tensor-split", "--threads",
    "--threads-batch", "--threads-http", "--timeout", "--tools", "--top-k", "--top-p",
    "--ubatch-size", "--ui", "--ui-config", "--ui-mcp-proxy", "--verbosity", "--version",
    "--warmup", "--yarn-orig-ctx",
}  # fmt: skip
"""Flags of llama-server. Source: tools/server/README.md of llama.cpp."""


def rows(title: str) -> list[tuple[str, str]]:
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)
    return found[1:]


def known_flags() -> set[str]:
    spellings = {one for flag in flags().values() for one in flag.spellings}
    return spellings | {f"--no-{one[2:]}" for one in spellings} | OF_OTHERS


def test_every_flag_on_our_side_exists() -> None:
    ours = {name for _, right in rows("Flags") for name in re.findall(r"(--[a-z][\w-]+)", right)}
    assert len(ours) > 40
    assert ours - known_flags() == set()


def test_their_flags_have_one_row_each() -> None:
    names = [name for left, _ in rows("Flags") for name in re.findall(r"`(-[\w-]+)", left)]
    assert {name for name in names if name.startswith("--")} == THEIRS
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def test_paths_that_are_the_same_exist() -> None:
    routes = {route.path for one in own_apis() for route in registry.make(one).routes}
    for left, right in rows("Paths"):
        for path in re.findall(r"(?:GET )?(/[\w/-]+)", left):
            is_absent = right.startswith(("not here", "refused")) or path.startswith("/slots/")
            assert is_absent or path in routes, path
