"""config.json under the class name of a model card, as the class that serves it has it.

The first entry of `architectures` that is served wins, then the class that `model_type` names, as
with the auto classes of transformers. A checkpoint that brings the code of its class along is read
under another class only where a table here says that it is the same model.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from dovetail.config.checkpoint.hf import read_config as read_plain
from dovetail.config.rules.drafts.methods import WHOLE_MODEL, method_for
from dovetail.errors import ConfigError
from dovetail.interfaces.data.checkpoint_code import CAUSAL
from dovetail_plugins.published.fallback import class_of, is_known
from dovetail_plugins.published.layout import CONFIG, Json, Published
from dovetail_plugins.published.layouts import BY_TYPE, LAYOUTS, REFUSED
from dovetail_plugins.published.pages import with_model_below
from dovetail_plugins.published.wholes import WHOLES

log = logging.getLogger(__name__)

PUBLISHED: dict[str, Published] = {**WHOLES, **LAYOUTS}
BY_FILE = {"XLMRobertaModel": ("colbert_linear.pt", "BgeM3EmbeddingModel")}
"""Class in config.json -> a file beside the weights, and the class that reads it too."""
NAMES = "published_names"
"""The setting with the names of tensors, which the loader reads."""


def read_config(path: Path) -> Json | None:
    """Return config.json as a class that is served has it, None if the folder has none. Logs one
    line where that is another class. Raises: ConfigError naming the file and the key"""
    raw = read_plain(path)
    if raw is None:
        return None
    try:
        return as_served(_by_files(with_model_below(raw, path), path))
    except ConfigError as error:
        where = str(path / CONFIG) + str(error.where).removeprefix(CONFIG)
        raise ConfigError(error.what, where=where, fix=error.fix) from error


def _by_files(raw: Json, folder: Path) -> Json:
    """Return config.json with the class that files beside the weights show; it states the class
    without them."""
    for own, (file, served) in BY_FILE.items():
        if raw.get("architectures") == [own] and (folder / file).is_file():
            _tell(f"{own} with {file} is served by {served}")
            return {**raw, "architectures": [served]}
    return raw


def as_served(raw: Json) -> Json:
    """Return a config.json's content as a class that is served has it; unchanged if its own class
    is served, no other one is known, or it only drafts for another model. Raises: ConfigError"""
    names = raw.get("architectures")
    names = [one for one in names if isinstance(one, str)] if isinstance(names, list) else []
    published = PUBLISHED.get(names[0]) if names else None
    is_own = bool(names) and published is None and is_known(names[0])
    if not names or is_own or method_for(raw) != WHOLE_MODEL:
        return raw
    own, *others = names
    if published is not None:
        return _read(raw, own, published)
    code = raw.get("auto_map")
    if own not in BY_TYPE and isinstance(code, dict) and CAUSAL in code:
        return raw
    if own in REFUSED:
        raise ConfigError(
            f"{own} is not served: {REFUSED[own]}.",
            where=f"{CONFIG}: architectures",
            fix="use another model; docs/reference/architectures.md lists what is served.",
        )
    for other in others:
        if other in PUBLISHED or is_known(other):
            _tell(f"{own} is unknown here; its next class, {other}, serves it")
            return as_served({**raw, "architectures": others[others.index(other) :]})
    served = class_of(raw, own)
    if served is None:
        return raw
    _tell(f"{own} is served by {served}, the class of model_type {raw['model_type']}")
    return {**raw, "architectures": [served]}


def _read(raw: Json, own: str, published: Published) -> Json:
    """Return the config of the class that serves a published one, with its names of tensors."""
    config = published.config(raw)
    (served,) = config["architectures"]
    lacks = f", its text part alone; {published.lacks} are not read" if published.lacks else ""
    _tell(f"{own} is served by {served}{lacks}")
    names = {
        "prefixes": [list(pair) for pair in published.prefixes],
        "renames": [list(pair) for pair in published.renames],
        "ignored": list(published.ignored),
    }
    text = config.get("text_config")
    parts = {"text_config": {**text, NAMES: names}} if isinstance(text, dict) else {}
    return {**config, **parts, NAMES: names}  # the loader reads the text model's config


@cache
def _tell(text: str) -> None:
    """Log a line, once in a process."""
    log.info("%s", text)
