"""Served names in Anthropic's shape, for clients that send its version header.

Source: the Anthropic API reference, models.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from dovetail_plugins.apis._anthropic_lists import time_of
from dovetail_plugins.apis.models.protocol import ModelCard

HEADER = "anthropic-version"


def is_asked(request: Request) -> bool:
    """Return whether a request comes from a client of Anthropic's API."""
    return HEADER in request.headers


def model_of(card: ModelCard) -> dict[str, Any]:
    """Return a card as Anthropic's model."""
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": time_of(card.created),
        "lifecycle": "active",
        "max_input_tokens": card.max_model_len,
        "max_tokens": card.max_model_len,
    }
