"""StoredModel: one model that lies on this machine, and the name by which it is asked for."""

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

    `label` is how a GGUF file's name says that it is quantized. What another program tells of its
    model stands in `family` and `label`. `fault` says why it cannot be served, if it cannot.
    """

    name: str
    store: str
    path: Path
    num_bytes: int
    label: str = ""
    family: str = ""
    fault: str = ""
