"""How chat templates see message content: the choices of --chat-template-content-format.

`value` is "string" or "openai"; None is decided by looking at the template.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="chosen by the template's text", value=None)
STRING = Value(summary="content as one string", value="string")
OPENAI = Value(summary="content as a list of parts with a type", value="openai")
