"""What the tools, items and parts of a response request mean here, in three tables.

Source: the OpenAI API reference, responses.
"""

from __future__ import annotations

from dovetail.server.endpoint import Words, words_of

TOOLS: Words = {
    **words_of("honoured", "a function of the client", "function"),
    **words_of(
        "honoured", "tools of a server that --tool-server names; others are left out", "mcp"
    ),
    **words_of("mapped", "a function of one text; its call comes back as a custom one", "custom"),
    **words_of("mapped", "its tools, each named NAMESPACE__NAME to the model", "namespace"),
    **words_of(
        "mapped",
        "a function of this name; a call is answered with the item type of the tool",
        "apply_patch",
        "local_shell",
        "shell",
    ),
    **words_of(
        "left out",
        "what a service runs itself",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "programmatic_tool_calling",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    ),
}
"""What the tool types mean. Unlisted ones are left out too."""

_CALL = "a call of the tool of this name, with the item's other fields as its arguments"
_CLIENT_CALL = "a call of the function that the model sees as this tool"
_OUTPUT = "the result of that call, as text or as an image"
_HOSTED = "what a service did itself; the answer that followed is read"

ITEMS: Words = {
    **words_of("honoured", "a turn", "message", read_as="message"),
    **words_of(
        "honoured",
        "thinking, as text or as this server sealed it",
        "reasoning",
        read_as="reasoning",
    ),
    **words_of("honoured", "a call of a function", "function_call", read_as="function"),
    **words_of("honoured", "its result", "function_call_output", read_as="output"),
    **words_of(
        "honoured", "a call that the server made, and its result", "mcp_call", read_as="mcp"
    ),
    **words_of("honoured", "an item of a stored response or conversation", "item_reference"),
    **words_of("mapped", "a call of the tool's function", "custom_tool_call", read_as="custom"),
    **words_of("mapped", "its result", "custom_tool_call_output", read_as="output"),
    **words_of(
        "mapped",
        _CLIENT_CALL,
        "apply_patch_call",
        "local_shell_call",
        "shell_call",
        read_as="client",
    ),
    **words_of("mapped", _CALL, "computer_call", "tool_search_call", read_as="call"),
    **words_of(
        "mapped",
        _OUTPUT,
        "apply_patch_call_output",
        "computer_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "tool_search_output",
        read_as="result",
    ),
    **words_of("honoured", "nothing: the model sees what is offered now", "mcp_list_tools"),
    **words_of("honoured", "tools that are offered in addition to `tools`", "additional_tools"),
    **words_of(
        "left out",
        _HOSTED,
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "program",
        "program_output",
        "web_search_call",
    ),
    **words_of(
        "honoured",
        "a summary that this server sealed, in place of earlier turns; one of another is left out",
        "compaction",
        read_as="compaction",
    ),
    **words_of(
        "honoured", "as the last item: the answer is a compaction item", "compaction_trigger"
    ),
    **words_of("left out", "text that only the service can read", "context_compaction"),
    **words_of(
        "left out",
        "instructions for the service",
        "configuration_update",
        "mcp_approval_request",
        "mcp_approval_response",
    ),
}
"""What the input item types mean. Unlisted ones are refused."""

PARTS: Words = {
    **words_of(
        "honoured",
        "text",
        "input_text",
        "output_text",
        "reasoning_text",
        "refusal",
        "summary_text",
        "text",
        read_as="text",
    ),
    **words_of(
        "honoured",
        "a medium, for models that take it; one that a service keeps (file_id) is refused",
        "input_audio",
        "input_image",
        read_as="medium",
    ),
    **words_of(
        "honoured",
        "the text of a text file in `file_data`; PDF, other files and addresses are refused",
        "input_file",
        read_as="medium",
    ),
    **words_of("mapped", "an image", "computer_screenshot", read_as="medium"),
}
"""What the part types mean. Unlisted ones are refused."""
