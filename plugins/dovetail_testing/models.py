"""Test models: one replays scripts of tokens, one gives uniform or random logits. No weights.

Both own one tiny attention layer, so that KV accounting is real. They are model plugins, which no
entry point offers to users: the two `write_` functions make folders that can be served inside a
`with registered():` block.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.model import BuildContext, Model, RowView, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention import Attention
from dovetail.layers.context import forward_context
from dovetail.registry import discovery

ENTRY_POINTS = """[dovetail.model]
ReplayForCausalLM = dovetail_testing.models:ReplayModel
RandomLogitsForCausalLM = dovetail_testing.models:RandomLogitsModel
"""
HEAD_SIZE = 8
SCRIPTED_LOGIT = 100.0
NUM_RANDOM_STATES = 16
NO_SCRIPT: Mapping[str, Any] = {"tokens": ()}
SCRIPT_KEYS = frozenset({"tokens", "cue", "nan_at", "crash_at", "delay_s"})
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


class _TinyCache(nn.Module):
    """Writes one small key and value per token, as a real layer would."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=HEAD_SIZE, scale=1.0)
        self.attention = Attention("layers.0.attention", spec)

    def forward(self, positions: torch.Tensor) -> None:
        ones = torch.ones(len(positions), HEAD_SIZE, dtype=self.dtype, device=positions.device)
        self.attention(ones, ones, ones)


class ReplayModel(nn.Module, Model):
    """Emits scripted tokens, whatever the input says.

    config.json: `replay` is a list of scripts {"tokens": [ids], "cue": [ids], "nan_at": p,
    "crash_at": p, "delay_s": s}; after its tokens a script gives the end token for ever. The last
    script whose cue is in the prompt is taken; without one, the last prompt token among cue_base ..
    cue_base + number of scripts - 1 picks the script; else it is the first one. At output position
    p, `nan_at` gives NaN logits and `crash_at` raises; `delay_s` (seconds) is slept in every step
    that computes the row. Behaviour depends on positions, so recomputed rows continue alike. A
    prompt of only zeros (a warm-up) gets no script, and so no fault and no delay.
    """

    info = Info(summary="test model: replays scripted tokens, faults and delays")
    capabilities = frozenset({"no_weights", "needs_host_rows"})

    def __init__(self, options: Any, context: BuildContext) -> None:
        nn.Module.__init__(self)
        config = context.model.hf_config
        self.vocab_size = context.model.vocab_size
        self.scripts = _checked_scripts(config.get("replay"), self.vocab_size)
        self.cued = [(_text(script["cue"]), script) for script in self.scripts if "cue" in script]
        self.cue_base: int | None = config.get("cue_base")
        self.end_id = context.model.eos_token_ids[0] if context.model.eos_token_ids else 0
        self.cache = _TinyCache(torch.get_default_dtype())

    def weight_map(self) -> WeightMap:
        """Return an empty map."""
        return WeightMap()

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return per token (next token, 1 if its logits are NaN). Shapes: [T] -> [T, 2] float64"""
        self.cache(positions)
        rows = forward_context().rows
        delay_s = max((self._script(row).get("delay_s", 0.0) for row in rows), default=0.0)
        if delay_s > 0.0:
            time.sleep(delay_s)
        states = [state for row in rows for state in self._row_states(row)]
        return torch.tensor(states, dtype=torch.float64, device=token_ids.device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits that all but name the scripted token. Shapes: [S, 2] -> [S, V] float32"""
        logits = torch.zeros(len(hidden), self.vocab_size, device=hidden.device)
        logits.scatter_(1, hidden[:, :1].long(), SCRIPTED_LOGIT)
        return logits.masked_fill_(hidden[:, 1:] > 0, float("nan"))

    def _script(self, row: RowView) -> Mapping[str, Any]:
        prompt = row.token_ids[: row.num_prompt_tokens]
        if not any(prompt):
            return NO_SCRIPT
        text = _text(prompt) if self.cued else ""
        for cue, script in self.cued[::-1]:
            if cue in text:
                return script
        if self.cue_base is not None:
            for token_id in reversed(prompt):
                if 0 <= token_id - self.cue_base < len(self.scripts):
                    return self.scripts[token_id - self.cue_base]
        return self.scripts[0]

    def _row_states(self, row: RowView) -> list[tuple[float, float]]:
        script, ids = self._script(row), row.token_ids
        states = []
        for position in range(row.start, row.start + row.num_tokens):
            output = position + 1 - row.num_prompt_tokens
            if output < 0:
                states.append((float(ids[position + 1]), 0.0))
                continue
            if output == script.get("crash_at"):
                raise RuntimeError(f"scripted crash at output position {output}")
            tokens = script["tokens"]
            token_id = tokens[output] if output < len(tokens) else self.end_id
            states.append((float(token_id), float(output == script.get("nan_at"))))
        return states


class RandomLogitsModel(nn.Module, Model):
    """Uniform logits, or random ones that depend only on token, position and seed.

    config.json: `logits` is "uniform" (default) or "random"; `logits_seed` an integer.
    """

    info = Info(summary="test model: uniform or random logits")
    capabilities = frozenset({"no_weights"})

    def __init__(self, options: Any, context: BuildContext) -> None:
        nn.Module.__init__(self)
        config = context.model.hf_config
        self.vocab_size = context.model.vocab_size
        kind = config.get("logits", "uniform")
        if kind not in ("uniform", "random"):
            raise ConfigError(
                f'"logits" is {kind!r}', where="config.json", fix='use "uniform" or "random".'
            )
        self.cache = _TinyCache(torch.get_default_dtype())
        generator = torch.Generator().manual_seed(config.get("logits_seed", 0))
        shape = (NUM_RANDOM_STATES if kind == "random" else 1, self.vocab_size)
        table = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        table = table if kind == "random" else torch.zeros_like(table)
        self.register_buffer("table", table.to(context.device), persistent=False)

    def weight_map(self) -> WeightMap:
        """Return an empty map."""
        return WeightMap()

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return per token which line of the table it has. Shapes: [T] -> [T, 1] int64"""
        self.cache(positions)
        return ((token_ids * 31 + positions * 17) % len(self.get_buffer("table"))).unsqueeze(1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the lines of the table. Shapes: hidden [S, 1] -> [S, V] float32"""
        return self.get_buffer("table")[hidden.squeeze(1)]


@contextmanager
def registered() -> Iterator[None]:
    """Offer both models by their architectures, here and in the processes started meanwhile.

    What offers them is a distribution on sys.path, from which child processes import as well.
    """
    with tempfile.TemporaryDirectory(prefix="dovetail-test-models-") as folder:
        about = Path(folder) / "dovetail_test_models-1.0.dist-info"
        about.mkdir()
        facts = "Metadata-Version: 2.1\nName: dovetail-test-models\nVersion: 1.0\n"
        (about / "METADATA").write_text(facts, encoding="utf-8")
        (about / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
        sys.path.append(folder)
        discovery.forget()
        try:
            yield
        finally:
            sys.path.remove(folder)
            discovery.forget()


def write_replay_checkpoint(
    folder: str | Path,
    *,
    tokenizer_from: str | Path | None,
    scripts: Sequence[Mapping[str, Any]],
    cue_base: int | None = None,
    vocab_size: int | None = None,
    eos_token_id: int | None = None,
    max_position_tokens: int = 4096,
) -> Path:
    """Write a folder that serves ReplayModel; return its path.

    Without `cue_base`, cues are the ids after the tokenizer's own, one per script; the vocabulary
    is enlarged by them, so prompts with cues are then given as token ids.
    Raises: ConfigError when the vocabulary cannot be known from the tokenizer's files.
    """
    facts = _tokenizer_facts(tokenizer_from, vocab_size, eos_token_id)
    if cue_base is None:
        cue_base = facts["vocab_size"]
        facts["vocab_size"] += len(scripts)
    extra = {"replay": [dict(s) for s in scripts], "cue_base": cue_base}
    return _write(folder, "ReplayForCausalLM", tokenizer_from, facts, max_position_tokens, extra)


def write_random_checkpoint(
    folder: str | Path,
    *,
    tokenizer_from: str | Path | None,
    logits: str = "uniform",
    logits_seed: int = 0,
    vocab_size: int | None = None,
    eos_token_id: int | None = None,
    max_position_tokens: int = 4096,
) -> Path:
    """Write a folder that serves RandomLogitsModel; return its path. Raises: ConfigError"""
    facts = _tokenizer_facts(tokenizer_from, vocab_size, eos_token_id)
    extra = {"logits": logits, "logits_seed": logits_seed}
    return _write(
        folder, "RandomLogitsForCausalLM", tokenizer_from, facts, max_position_tokens, extra
    )


def _write(
    folder: str | Path,
    architecture: str,
    tokenizer_from: str | Path | None,
    facts: Mapping[str, int],
    max_position_tokens: int,
    extra: Mapping[str, Any],
) -> Path:
    """Write config.json and copy the tokenizer's files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [architecture],
        "model_type": "dovetail_test",
        "hidden_size": HEAD_SIZE,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HEAD_SIZE,
        "intermediate_size": HEAD_SIZE,
        "max_position_embeddings": max_position_tokens,
        "torch_dtype": "float32",
        **facts,
        **extra,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    if tokenizer_from is not None:
        for source in (Path(tokenizer_from) / name for name in TOKENIZER_FILES):
            if source.is_file():
                shutil.copy(source, folder / source.name)
    return folder


def _tokenizer_facts(
    tokenizer_from: str | Path | None, vocab_size: int | None, eos_token_id: int | None
) -> dict[str, int]:
    """Return vocab_size and eos_token_id, read from the tokenizer's folder unless given."""
    read: dict[str, Any] = {}
    if tokenizer_from is not None:
        read = _read_facts(Path(tokenizer_from))
    size = vocab_size if vocab_size is not None else read.get("vocab_size")
    end = eos_token_id if eos_token_id is not None else read.get("eos_token_id")
    if size is None:
        raise ConfigError(
            "the size of the vocabulary is unknown.",
            where=str(tokenizer_from),
            fix="pass vocab_size, or a tokenizer folder with tokenizer.json or config.json.",
        )
    facts = {"vocab_size": int(size)}
    if end is not None:
        facts["eos_token_id"] = int(end[0] if isinstance(end, list) else end)
    return facts


def _read_facts(folder: Path) -> dict[str, Any]:
    """Return the vocabulary's facts from config.json and tokenizer.json of a folder."""
    facts: dict[str, Any] = {}
    tokenizer = read_json(folder / "tokenizer.json", is_required=False)
    added = {t["content"]: t["id"] for t in tokenizer.get("added_tokens", ())}
    vocab = tokenizer.get("model", {}).get("vocab", {})
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    if tokenizer:
        facts["vocab_size"] = max([*ids, *added.values()]) + 1
    end = read_json(folder / "tokenizer_config.json", is_required=False).get("eos_token")
    end = end.get("content") if isinstance(end, dict) else end
    if end in added:
        facts["eos_token_id"] = added[end]
    elif end is not None and isinstance(vocab, dict) and end in vocab:
        facts["eos_token_id"] = vocab[end]
    config = read_json(folder / "config.json", is_required=False)
    wanted = ("vocab_size", "eos_token_id")
    return {**facts, **{k: config[k] for k in wanted if config.get(k) is not None}}


def _text(token_ids: Sequence[int]) -> str:
    """Return one character per token, so that a text search finds a run of tokens."""
    return "".join(map(chr, token_ids))


def _checked_scripts(scripts: Any, vocab_size: int) -> list[Mapping[str, Any]]:
    """Return the scripts of config.json. Raises: ConfigError when one is malformed."""
    if not isinstance(scripts, list) or not scripts:
        raise ConfigError(
            '"replay" must be a list of scripts, at least one.', where="config.json", fix=_EXAMPLE
        )
    for number, script in enumerate(scripts):
        where = f"config.json replay[{number}]"
        if not isinstance(script, dict) or set(script) - SCRIPT_KEYS or "tokens" not in script:
            raise ConfigError(f"a script has the keys {sorted(SCRIPT_KEYS)}", where=where)
        ids = [*script["tokens"], *script.get("cue", ())]
        if any(not 0 <= token_id < vocab_size for token_id in ids):
            raise ConfigError(f"token ids must be below {vocab_size}", where=where)
    return scripts


_EXAMPLE = 'write {"replay": [{"tokens": [1, 2, 3]}]}'
