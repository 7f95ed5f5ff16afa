"""Names of Ollama's registry: MODEL, MODEL:TAG, and with its host USER/MODEL:TAG.

A name with a slash and without a host is one of the Hugging Face hub here. Source: Ollama's API
reference, "Model names".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dovetail_plugins.model_stores.ollama import HOST, NAMESPACE, TAG

HOSTS = (f"{HOST}/", "ollama.com/")
"""What names begin with that are never the hub's."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryName:
    """A model of the registry, with nothing left out."""

    namespace: str
    model: str
    tag: str

    @property
    def full(self) -> str:
        """Return the name with the registry's host."""
        return f"{HOST}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def short(self) -> str:
        """Return the name as `dovetail list` shows it."""
        owner = "" if self.namespace == NAMESPACE else f"{self.namespace}/"
        return f"{owner}{self.model}:{self.tag}"

    @property
    def manifest(self) -> Path:
        """Return the place of its manifest in a store's folder `manifests`."""
        return Path(HOST, self.namespace, self.model, self.tag)


def registry_name(text: str) -> RegistryName | None:
    """Return the model of the registry that a text names, None for other names."""
    host = next((host for host in HOSTS if text.lower().startswith(host)), "")
    bare, _, tag = text[len(host) :].partition(":")
    parts = bare.split("/")
    if len(parts) > (2 if host else 1):
        return None
    namespace, model = [NAMESPACE, *parts][-2:]
    tag = tag or TAG
    if not all(map(_PART.fullmatch, (namespace, model, tag))):
        return None
    return RegistryName(namespace=namespace, model=model, tag=tag)
