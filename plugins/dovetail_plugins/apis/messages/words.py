"""What the tools and content blocks of a message request mean here, in two tables.

Tool types are listed without their date. Source: the Anthropic API reference, messages.
"""

from __future__ import annotations

import re

from dovetail.server.endpoint import Words, words_of

TOOLS: Words = {
    **words_of("honoured", "a function of the client", "custom"),
    **words_of(
        "mapped",
        "a function with the documented parameters, which the client runs",
        "bash",
        "computer",
        "memory",
        "text_editor",
    ),
    **words_of(
        "left out",
        "what a service runs itself, or a set of tools whose calls have their own form",
        "advisor",
        "browser_toolset",
        "code_execution",
        "computer_toolset",
        "mcp_toolset",
        "tool_search_tool_bm25",
        "tool_search_tool_regex",
        "web_fetch",
        "web_search",
    ),
}
"""What the tool types mean. Unlisted ones are left out too."""

BLOCKS: Words = {
    **words_of("honoured", "text", "text", read_as="text"),
    **words_of(
        "honoured",
        "an image in base64 or by URL, for models that take it",
        "image",
        read_as="image",
    ),
    **words_of(
        "mapped",
        "its text, with title and context; a PDF is refused",
        "document",
        read_as="document",
    ),
    **words_of("mapped", "its text, with title and source", "search_result", read_as="found"),
    **words_of("mapped", "its text", "compaction", read_as="compaction"),
    **words_of("honoured", "thinking; a signature must be this server's", "thinking"),
    **words_of("honoured", "a call", "tool_use"),
    **words_of("honoured", "its result", "tool_result"),
    **words_of(
        "left out",
        "thinking that only the service can read, unless this server sealed it",
        "redacted_thinking",
    ),
    **words_of(
        "left out",
        "what a service did itself; the text that followed is read",
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "browser_state",
        "code_execution_tool_result",
        "container_upload",
        "fallback",
        "mcp_tool_listing",
        "mcp_tool_result",
        "mcp_tool_use",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_addition",
        "tool_reference",
        "tool_removal",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    ),
}
"""What the block types mean. Unlisted ones are refused."""

_DATE = re.compile(r"_\d{8}$")


def tool_word(kind: str | None) -> str:
    """Return a tool's type without its date, as in the table."""
    return _DATE.sub("", kind or "custom")
