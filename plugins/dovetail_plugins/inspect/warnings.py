"""Warnings: what a checkpoint lacks, what is ignored, and contradictions. Reads no weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.dtypes import stored_dtype
from dovetail.interfaces.data.headers import StoredLayer
from dovetail.interfaces.data.spec import LOGITS, SOUND, ModelSpec
from dovetail.json_values import json_value
from dovetail_plugins.inspect.facts import Group, Memory, TextFacts, WeightFile
from dovetail_plugins.inspect.how import How
from dovetail_plugins.inspect.stored_layers import EMBEDDING, HEAD, UNUSED, num_blocks, purpose_of

_FLOATS = ("float32", "bfloat16", "float16")
_PICKLED = (".bin", ".pt", ".pth")
_SHOWN = 3
_RUNS = "it runs only with --trust-remote-code, where nothing else can"


def of_checkpoint(
    model: ModelSpec, layers: Sequence[StoredLayer], groups: Sequence[Group], how: How
) -> list[str]:
    """Return warnings about contradictions between tensors and settings."""
    if not layers:
        return []
    said = []
    purposes = [purpose_of(layer) for layer in layers]
    blocks = num_blocks(layers)
    if blocks and blocks != model.num_layers and model.head != SOUND:
        said.append(f"config.json says {model.num_layers} layers, the tensors are of {blocks}.")
    if HEAD not in purposes and not how.is_tied and model.head == LOGITS:
        said.append("no tensor of a head (lm_head), and tie_word_embeddings is not set.")
    if HEAD in purposes and how.is_tied and model.head == LOGITS:
        said.append(
            "the head is stored, but tied to the token table: loading refuses it if they differ."
        )
    if EMBEDDING not in purposes:
        said.append("no tensor looks like a token table.")
    said += _dtypes(model, groups)
    guessed = [group.name for group in groups if not group.is_exact]
    if guessed:
        said.append(f"memory is a guess for {', '.join(guessed)}: taken as large as in the files.")
    return said


def _dtypes(model: ModelSpec, groups: Sequence[Group]) -> list[str]:
    """Return a warning if floats are stored in another type than config.json states."""
    stated = stored_dtype(model.hf_config)
    counts: dict[str, int] = {}
    for group in groups:
        for form, parameters in group.stored.items():
            if form in _FLOATS and group.name != UNUSED:
                counts[form] = counts.get(form, 0) + parameters
    commonest = max(counts, key=lambda form: counts[form], default=stated)
    is_most = 2 * counts.get(str(commonest), 0) > sum(group.parameters for group in groups)
    if stated is None or commonest == stated or not is_most:
        return []
    return [f"config.json says {stated}, most weights are stored in {commonest}."]


def of_folder(path: Path, files: Sequence[WeightFile]) -> list[str]:
    """Return warnings about the other files of the folder, and about missing ones."""
    if path.is_file():
        return []
    said = []
    raw = _json(path / "config.json")
    if raw.get("auto_map"):
        names = ", ".join(sorted(map(str, raw["auto_map"])))
        said.append(f"config.json names code of its own ({names}): {_RUNS}.")
    scripts = sorted(file.name for file in path.glob("*.py"))
    if scripts:
        shown = ", ".join(scripts[:_SHOWN]) + (" ..." if len(scripts) > _SHOWN else "")
        said.append(f"the folder holds code ({shown}): {_RUNS}.")
    used = {file.name for file in files}
    if any(name.endswith(_PICKLED) for name in used):
        said.append("weights are torch.save files: tensors alone are read, nothing in them runs.")
    idle = sorted(
        file.name for end in _PICKLED for file in path.glob(f"*{end}") if file.name not in used
    )
    if idle and files:
        said.append(f"not read: {', '.join(idle[:_SHOWN])}{' ...' if len(idle) > _SHOWN else ''}.")
    if (path / "adapter_config.json").is_file():
        said.append("this is a LoRA adapter, or holds one: adapters are not part of a model.")
    return said + _index(path, files)


def _index(path: Path, files: Sequence[WeightFile]) -> list[str]:
    """Return a warning if the index and the files have different numbers of tensors."""
    said = []
    for index in sorted(path.glob("*.safetensors.index.json")):
        names = _json(index).get("weight_map")
        listed = len(names) if isinstance(names, dict) else 0
        there = sum(file.tensors or 0 for file in files)
        if there and listed != there:
            said.append(f"{index.name} lists {listed} tensors, the files hold {there}.")
    return said


def of_memory(memory: Memory | None) -> list[str]:
    """Return a warning if the model does not fit into memory."""
    if memory is None or memory.free_bytes is None or memory.from_disk is not None:
        return []
    needed = memory.weights_bytes + memory.tables_bytes
    if needed > memory.free_bytes:
        return [
            f"the weights take {needed / 2**30:.1f} GiB, {memory.device} has "
            f"{memory.free_bytes / 2**30:.1f} GiB free."
        ]
    return []


def of_text(model: ModelSpec, text: TextFacts | None) -> list[str]:
    """Return warnings about what the checkpoint lacks for chats."""
    if text is None:
        return ["no tokenizer that can be used: requests would have to carry token ids."]
    said = []
    generates = model.head == LOGITS
    if generates and not text.has_chat_template:
        said.append("no chat template: /v1/chat/completions needs --chat-template.")
    if text.vocab_size > model.vocab_size:
        said.append(
            f"the tokenizer has {text.vocab_size} tokens, the model knows {model.vocab_size}."
        )
    if generates and not text.end_tokens:
        said.append("no token ends an answer: it goes on to the limit of its length.")
    return said


def _json(file: Path) -> dict[str, Any]:
    """Return a file's JSON object; empty if it cannot be read, which its user reports."""
    try:
        content = json_value(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
