"""/api/generate with a `template` of its own.

One in Go's language needs no permission: it is bounded, it reaches nothing but the conversation,
and it can write nothing that `raw` could not. One in Jinja needs the server's flag.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.server.endpoint import App
from dovetail_plugins.apis.ollama.protocol import OllamaGenerateRequest
from dovetail_plugins.renderers.go_template.template import is_go

SUFFIX = "suffix"
"""The variable by which a Go template gets the text after the answer."""


def renders_suffix(server: App, body: OllamaGenerateRequest) -> bool:
    """Return whether the template of a request or of the server has a place for a suffix."""
    source = body.template or server.text.renderer.source
    return is_go(source) and ".Suffix" in source


def trusting(server: App, template: str | None) -> App:
    """Return the server as it is for a request with this template: trusting, if it is in Go's
    language."""
    if not template or not is_go(template):
        return server
    frontend = replace(server.text.frontend, trust_request_chat_template=True)
    return replace(server, text=replace(server.text, frontend=frontend), adapter_texts={})
