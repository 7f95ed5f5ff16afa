"""StoredModel: one model on this machine, and the name that requests it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HUB = "hub cache"
FOLDER = "--model-dir"
MODELSCOPE = "ModelScope"
LM_STUDIO = "LM Studio"
OLLAMA = "Ollama"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """`path` is what is served: a folder, or the (first) file that is a model.

    `label` is the quantization in a GGUF file's name. Another program's store states its models'
    `family` and `label`. `fault` is the reason why the model cannot be served, if any.
    """

    name: str
    store: str
    path: Path
    num_bytes: int
    label: str = ""
    family: str = ""
    fault: str = ""
