"""Reading chat templates as text: which syntax a template uses."""

from __future__ import annotations

from typing import Any


def unmentioned(template: Any, *groups: str | tuple[str, ...]) -> list[str]:
    """Return a reason for every text that a chat template lacks; of a tuple one text is enough.

    A value that is not a template (None asks nothing) gives no reasons.
    """
    if not isinstance(template, str):
        return []
    alternatives = [(group,) if isinstance(group, str) else group for group in groups]
    return [
        f"the chat template does not mention {' or '.join(group)}"
        for group in alternatives
        if not any(text in template for text in group)
    ]
