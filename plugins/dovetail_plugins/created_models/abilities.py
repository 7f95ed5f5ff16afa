"""What requests may ask of a model that is not loaded, as its files show it.

Its settings are resolved, its template is compiled and its parsers are chosen as a server does it.
The tokenizer is not built, which may take seconds: only the names of tokens are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.config import Config
from dovetail.engine.client.text.no_tokenizer import NoFacts
from dovetail.errors import DovetailError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.server.generate.rendering.building import choose_renderer, renderer_facts
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail.server.generate.tools.parsers import choose_parsers
from dovetail_plugins.apis._capabilities import Capabilities, capabilities_of
from dovetail_plugins.apis._infill import LAYOUTS
from dovetail_plugins.gguf.reading.file import read_head
from dovetail_plugins.gguf.vocabulary.missing import completed
from dovetail_plugins.mistral._templates import template_of
from dovetail_plugins.mistral._vocabulary import TEKKEN
from dovetail_plugins.tokenizers._files import chat_templates

GGUF_TEMPLATE, GGUF_TOKENS = "tokenizer.chat_template", "tokenizer.ggml.tokens"
DEFAULT = "default"


def stored_capabilities(config: Config, spec: EngineSpec) -> Capabilities:
    """Return what the model of a config and its spec can do. Raises: ConfigError, OSError"""
    path = Path(spec.tokenizer_path)
    named = templates_of(path)
    facts = NoFacts(chat_template=named.get(DEFAULT), chat_templates=dict(named))
    known = renderer_facts(spec, facts, config.frontend.chat_template)
    options = config.plugin.options_of("renderer")
    renderer = ChatRenderer(choose_renderer(config.frontend, known, options), known)
    parsers = choose_parsers(config, renderer.source)
    return capabilities_of(
        spec,
        source=renderer.source,
        chats=renderer.can_render,
        calls=parsers.tool is not None,
        thinks=parsers.reasoning is not None,
        fills_in=spec.has_tokenizer and _can_fill_in(path),
    )


def known_capabilities(config: Config, spec: EngineSpec) -> Capabilities | None:
    """Return the same, or None if a file does not show it: its server would say why."""
    try:
        return stored_capabilities(config, spec)
    except (DovetailError, OSError):
        return None


def templates_of(path: Path) -> Mapping[str, str]:
    """Return the chat templates in a model's files by name. Raises: ConfigError, OSError"""
    if path.is_file():
        found = completed(path, read_head(path).settings).get(GGUF_TEMPLATE)
        return {DEFAULT: found} if isinstance(found, str) else {}
    settings = read_json(path / "tokenizer_config.json", is_required=False)
    return chat_templates(path, settings) or _template_of_version(path)


def _template_of_version(path: Path) -> Mapping[str, str]:
    """Return the template of Mistral's own tokenizer, whose version stands for it."""
    facts = read_json(path / TEKKEN, is_required=False).get("config")
    version = facts.get("version") if isinstance(facts, dict) else None
    template = template_of(str(version)) if version else None
    return {DEFAULT: template} if template else {}


def _can_fill_in(path: Path) -> bool:
    """Return whether the vocabulary has the tokens of one of the known layouts."""
    marks = [{one.prefix, one.suffix, one.middle} - {""} for one in LAYOUTS]
    known = set().union(*marks)
    found = known.intersection(_token_names(path))
    return any(each <= found for each in marks)


def _token_names(path: Path) -> Iterator[str]:
    """Yield names of tokens in a model's files. Raises: ConfigError"""
    if path.is_file():
        yield from _texts(read_head(path).settings.get(GGUF_TOKENS))
        return
    file = read_json(path / "tokenizer.json", is_required=False)
    settings = read_json(path / "tokenizer_config.json", is_required=False)
    tekken = read_json(path / TEKKEN, is_required=False)
    model = file.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    rows = vocab if isinstance(vocab, list) else ()
    yield from vocab if isinstance(vocab, dict) else ()
    yield from _texts(row[0] for row in rows if isinstance(row, list) and row)
    decoder = settings.get("added_tokens_decoder")
    added = [*_rows(file.get("added_tokens")), *_rows(decoder)]
    yield from _texts(one.get("content") for one in added)
    yield from _texts(one.get("token_str") for one in _rows(tekken.get("special_tokens")))


def _texts(values: Any) -> list[str]:
    found = values if isinstance(values, Iterable) else ()
    return [one for one in found if isinstance(one, str)]


def _rows(values: Any) -> list[dict[str, Any]]:
    found = values.values() if isinstance(values, dict) else values
    return [one for one in found if isinstance(one, dict)] if isinstance(found, Iterable) else []
