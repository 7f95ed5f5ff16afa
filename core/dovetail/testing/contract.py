"""What contract files are written with: `requires`, clause names, option objects. Needs pytest."""

from __future__ import annotations

from typing import Any

import pytest

REQUIRES = "dovetail_requires"


def requires(word: str) -> pytest.MarkDecorator:
    """Return a mark: the clause runs only for plugins that claim this capability."""
    mark: pytest.MarkDecorator = getattr(pytest.mark, REQUIRES)(word)
    return mark


def without(word: str) -> pytest.MarkDecorator:
    """Return a mark: the clause runs only for plugins that do not claim this capability."""
    mark: pytest.MarkDecorator = getattr(pytest.mark, REQUIRES)(word, claimed=False)
    return mark


def clause_name(function: str, parameters: str = "") -> str:
    """Return the name of a clause as `expected_failures` spells it: window[8-16]."""
    name = function.removeprefix("test_")
    return f"{name}[{parameters}]" if parameters else name


def default_options(plugin: type[Any]) -> Any:
    """Return the plugin's options with every default."""
    return plugin.Options()
