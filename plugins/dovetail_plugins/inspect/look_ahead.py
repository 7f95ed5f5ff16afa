"""What a server would choose for a model, determined without an engine or weights.

The tokenizer is loaded: its facts include the chat template, and the template determines the
parsers.
"""

from __future__ import annotations

from dovetail import registry
from dovetail.config.config import Config
from dovetail.engine.client.requests.input_processor import load_tokenizer
from dovetail.interfaces.adapter_resolver import ResolverFacts
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.server.generate.rendering.building import choose_renderer, renderer_facts
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail.server.generate.tools.parsers import build_parsers, choose_parsers
from dovetail.server.launch.settings import Preview


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
