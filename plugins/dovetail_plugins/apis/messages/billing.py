"""The billing line of Claude Code: the first line of its system prompt, for Anthropic's service.

It differs from request to request, so no prefix of the prompt after it could be reused. It is known
by its form alone: a text of the system prompt that begins with BILLING_LINE.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail_plugins.apis.messages.protocol import Block

BILLING_LINE = "x-anthropic-billing-header:"
BILLING_NAME = "system.x-anthropic-billing-header"
"""The name under which a response header reports a line that was left out."""


def has_billing_line(system: str | Sequence[Block] | None) -> bool:
    """Return whether a text of the system prompt begins with a billing line."""
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    return any(text is not None and text.startswith(BILLING_LINE) for text in texts)


def without_billing_line(system: str | list[Block] | None) -> str | list[Block] | None:
    """Return the system prompt without billing lines, and without blocks that had nothing else."""
    if not has_billing_line(system):
        return system
    if isinstance(system, str):
        return _rest(system)
    blocks = [_shown(block) for block in system or ()]
    return [block for block in blocks if block is not None]


def _shown(block: Block) -> Block | None:
    if block.text is None or not block.text.startswith(BILLING_LINE):
        return block
    rest = _rest(block.text)
    return block.model_copy(update={"text": rest}) if rest else None


def _rest(text: str) -> str:
    """Return a text after its first line, and after empty lines that follow."""
    return text.partition("\n")[2].lstrip("\n")
