"""What a server would choose for this model, determined without an engine or weights.

The tokenizer is loaded: its facts include the chat template, and the template determines the
parsers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.report.show import DEFAULT, MODEL
from dovetail.engine.client.requests.input_processor import load_tokenizer
from dovetail.interfaces.adapter_resolver import ResolverFacts
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.server.generate.rendering.building import choose_renderer, renderer_facts
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail.server.generate.tools.parsers import ParserChoice, build_parsers, choose_parsers
from dovetail.server.http.addresses import DEFAULT_HOST
from dovetail.server.launch.engine_start import max_queued


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The facts of the tokenizer, and what reads and writes the text of a chat."""

    facts: TokenizerFacts
    renderer: ChatRenderer
    parsers: ParserChoice

    @property
    def template(self) -> str:
        """Return the text that shows the format of chats, empty if there is none."""
        return self.renderer.source

    @property
    def vocab_size(self) -> int:
        """Return the size of the tokenizer's vocabulary."""
        return self.facts.vocab_size


def look_ahead(config: Config, spec: EngineSpec) -> Preview:
    """Return the choices. Raises: ConfigError for an invalid tokenizer, template or parser"""
    tokenizer = load_tokenizer(spec)
    facts = tokenizer.facts()
    known = renderer_facts(spec, facts, config.frontend.chat_template)
    options = config.plugin.options_of("renderer")
    renderer = ChatRenderer(choose_renderer(config.frontend, known, options), known)
    parsers = choose_parsers(config, renderer.source)
    build_parsers(parsers, tokenizer)
    return Preview(facts=facts, renderer=renderer, parsers=parsers)


def make_parts(spec: EngineSpec) -> None:
    """Create the plugins that check their options only when created and need no weights. These are
    the adapter resolvers and the KV connector. Raises: ConfigError"""
    search = spec.adapter_search
    facts = ResolverFacts(base_names=search.base_names, model_path=spec.run.model.path)
    for resolver in search.resolvers:
        registry.make(resolver, facts)
    if spec.run.transfer is not None:
        registry.make(spec.run.transfer.connector)


def found(config: Config, spec: EngineSpec, ahead: Preview) -> dict[str, tuple[Any, str]]:
    """Return the HTTP flags that may be left open: (value, who decided it)."""
    by_model = "the model's" if ahead.facts.chat_template else None
    template = config.frontend.chat_template or by_model
    return {
        "renderer": (ahead.renderer.selection.name, MODEL),
        "chat_template": (template, MODEL if by_model else DEFAULT),
        "tool_call_parser": _named(ahead.parsers.tool),
        "reasoning_parser": _named(ahead.parsers.reasoning),
        "host": (config.frontend.host or DEFAULT_HOST, DEFAULT),
        "max_num_queued_reqs": (max_queued(config, spec), DEFAULT),
    }


def _named(selection: Selection | None) -> tuple[str | None, str]:
    return (None, DEFAULT) if selection is None else (selection.name, MODEL)
