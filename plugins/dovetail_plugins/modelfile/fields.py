"""A Modelfile as settings of a dovetail server.

Source of what parameters mean: https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_plugins.modelfile.model import Modelfile

SAMPLERS = ("mirostat", "mirostat_tau", "mirostat_eta", "typical_p", "tfs_z", "repeat_last_n")
SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    **{name: name for name in SAMPLERS},
}
"""Parameters, and their names in --override-generation-config."""
FLAGS = {"num_ctx": "max_model_len", "num_thread": "num_threads"}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "draft_num_predict": (0,),
    "penalize_newline": (True,),
    "low_vram": (False,),
    "vocab_only": (False,),
    "embedding_only": (False,),
}
"""Values that ask for nothing which a server does not do anyway."""
SMALLEST_TOP_P = 1e-6
"""What stands for a top_p of 0, which leaves the most likely token alone."""


@dataclass(frozen=True, slots=True)
class ServerFields:
    """`fields` are settings by name (as in the file of `serve --config`); `left_out` names what of
    the Modelfile has no equal."""

    fields: Mapping[str, Any]
    left_out: tuple[str, ...]


def fields_of(modelfile: Modelfile, *, name: str = "", folder: Path | None = None) -> ServerFields:
    """Return the settings that serve a model as its Modelfile says.

    `name` is the model's name for clients, by default the base's; `folder` is where relative paths
    begin. An adapter is served under the name, and its base under NAME-base.
    """
    fields: dict[str, Any] = {"model": _place(modelfile.base, folder)}
    if modelfile.projectors:
        fields["mmproj"] = _place(modelfile.projectors[0], folder)
    fields |= _names(modelfile, name, folder)
    fields |= {FLAGS[key]: value for key, value in modelfile.parameters.items() if key in FLAGS}
    sampling = sampling_of(modelfile.parameters)
    if sampling:
        fields["override_generation_config"] = sampling
    if modelfile.template:
        fields["chat_template"] = modelfile.template
    opening: dict[str, Any] = {"system": modelfile.system} if modelfile.system else {}
    if modelfile.messages:
        turns = [{"role": one.role, "content": one.content} for one in modelfile.messages]
        opening["messages"] = turns
    if opening:
        fields["plugin_options"] = {"renderer": opening}
    return ServerFields(fields, tuple(_left_out(modelfile)))


def sampling_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of sampling, named as in --override-generation-config."""
    found = {ours: parameters[name] for name, ours in SAMPLING.items() if name in parameters}
    if found.get("seed", 0) < 0:
        del found["seed"]
    if "top_p" in found:
        found["top_p"] = found["top_p"] or SMALLEST_TOP_P
    if "stop" in found:
        found["stop"] = list(found["stop"])
    if parameters.get("num_predict", 0) > 0:
        found["max_tokens"] = parameters["num_predict"]
    return found


def parameters_of(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return default sampling settings as parameters of a Modelfile."""
    names = {ours: name for name, ours in SAMPLING.items()} | {"max_tokens": "num_predict"}
    settings = {**sampling, **sampling.get("extra_args", {})}
    return {names[ours]: value for ours, value in settings.items() if ours in names}


def _names(modelfile: Modelfile, name: str, folder: Path | None) -> dict[str, Any]:
    """Return the names for clients; with an adapter, the name is the adapter's."""
    if not modelfile.adapters:
        return {"served_model_name": [name]} if name else {}
    own = name or Path(modelfile.adapters[0]).stem
    adapter = _place(modelfile.adapters[0], folder)
    return {
        "served_model_name": [f"{own}-base"],
        "enable_lora": True,
        "lora_modules": [f"{own}={adapter}"],
    }


def _place(name: str, folder: Path | None) -> str:
    """Return a path as it is from anywhere, or a model's name as it is."""
    path = Path(name).expanduser()
    if folder is not None and not path.is_absolute():
        path = folder / path
    is_path = name.startswith(("/", "./", "../", "~")) or path.exists()
    return str(path.resolve()) if is_path else name


def _left_out(modelfile: Modelfile) -> list[str]:
    """Return what no setting stands for."""
    taken = {*SAMPLING, *FLAGS, "num_predict"}
    names = [
        f"PARAMETER {name}"
        for name, value in modelfile.parameters.items()
        if name not in taken and value not in NEUTRAL.get(name, ())
    ]
    names += ["FROM, the third"] if len(modelfile.projectors) > 1 else []
    names += ["ADAPTER, the second"] if len(modelfile.adapters) > 1 else []
    names += ["LICENSE"] if modelfile.licenses else []
    names += ["REQUIRES"] if modelfile.requires else []
    names += ["quantize"] if modelfile.quantize else []
    return names
