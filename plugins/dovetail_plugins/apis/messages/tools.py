"""Tools of a request as chat functions: the client's own, and Anthropic's that a client runs.

The latter have a type and no schema: their parameters are documented. A tool that a server would
run is left out. Source: the Anthropic API reference, tool use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.errors import RequestError
from dovetail_plugins.apis.messages.protocol import CountRequest, MessageTool
from dovetail_plugins.apis.messages.words import TOOLS, tool_word

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
POINT: Schema = {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}
UNDO_UNTIL = "20250124"
"""The last date of the text editor with the command undo_edit and the name str_replace_editor."""


_EDITS: Schema = {
    "path": TEXT,
    "view_range": POINT,
    "file_text": TEXT,
    "old_str": TEXT,
    "new_str": TEXT,
    "insert_line": WHOLE,
}
"""Parameters of a tool that views and edits files."""


def offered_tools(body: CountRequest) -> list[Schema] | None:
    """Return the tools that the model sees. Raises: RequestError"""
    tools = []
    for number, tool in enumerate(body.tools or ()):
        describe = _FUNCTIONS.get(tool_word(tool.type))
        if describe is None:
            continue
        function = describe(tool)
        function["name"] = tool.name or function.get("name")
        _check_name(function["name"], f"tools[{number}].name")
        tools.append({"function": {k: v for k, v in function.items() if v is not None}})
    return tools or None


def check_choice(body: CountRequest) -> None:
    """Raise RequestError if a call is demanded of a tool that is left out."""
    choice, tools = body.tool_choice, body.tools or ()
    left = {tool.name: tool.type for tool in tools if tool_word(tool.type) not in _FUNCTIONS}
    is_demanded = choice is not None and (
        (choice.type == "tool" and choice.name in left)
        or (choice.type == "any" and tools and len(left) == len(tools))
    )
    if is_demanded:
        raise RequestError(
            f"a service would have to run {', '.join(str(kind)[:64] for kind in left.values())}, "
            "and this server runs no tools.",
            where="tool_choice",
            fix="offer a tool that the client runs, or leave tool_choice out.",
            code="unsupported_field",
        )


def left_out_tools(body: CountRequest) -> list[str]:
    """Return the names to report for tools that are left out."""
    kinds = dict.fromkeys(tool.type or "custom" for tool in body.tools or ())
    return [f"tools.{kind}" for kind in kinds if tool_word(kind) not in _FUNCTIONS]


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or name.split() != [name]:
        raise RequestError("must be a name without blanks.", where=where)


def _custom(tool: MessageTool) -> Schema:
    return {
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }


def _bash(tool: MessageTool) -> Schema:
    return {
        "name": "bash",
        "description": "Runs a command in a bash shell that stays open between calls, and returns "
        "what it prints. With restart, the shell is started anew.",
        "parameters": _object(command=TEXT, restart={"type": "boolean"}),
    }


def _text_editor(tool: MessageTool) -> Schema:
    date = (tool.type or "").rpartition("_")[2]
    is_old = date <= UNDO_UNTIL
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if is_old else [])]
    inserted = {} if is_old else {"insert_text": TEXT}
    return {
        "name": "str_replace_editor" if is_old else "str_replace_based_edit_tool",
        "description": "Views, creates and edits files. view shows a file, or its lines "
        "view_range, or a folder. create writes file_text. str_replace replaces old_str, which "
        "must occur once, by new_str. insert adds "
        f"{'new_str' if is_old else 'insert_text'} after the line insert_line (0: at the start).",
        "parameters": _object(
            "command",
            "path",
            command={"type": "string", "enum": commands},
            **_EDITS,
            **inserted,
        ),
    }


def _memory(tool: MessageTool) -> Schema:
    commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
    return {
        "name": "memory",
        "description": "Keeps notes as files in the folder /memories, over several conversations. "
        "view shows a file or folder, create writes file_text, str_replace replaces old_str by "
        "new_str, insert adds insert_text after the line insert_line, delete removes path, rename "
        "moves old_path to new_path.",
        "parameters": _object(
            "command",
            command={"type": "string", "enum": commands},
            **_EDITS,
            insert_text=TEXT,
            old_path=TEXT,
            new_path=TEXT,
        ),
    }


_ACTIONS = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click"),
    *("middle_click", "double_click", "screenshot", "cursor_position"),
)
_LATER_ACTIONS = ("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click")
FIRST_COMPUTER = "20241022"


def _computer(tool: MessageTool) -> Schema:
    is_first = (tool.type or "").endswith(FIRST_COMPUTER)
    actions = [*_ACTIONS, *(() if is_first else _LATER_ACTIONS)]
    more: Schema = {}
    if not is_first:
        directions = ["up", "down", "left", "right"]
        more = {
            "start_coordinate": POINT,
            "scroll_direction": {"type": "string", "enum": directions},
            "scroll_amount": WHOLE,
            "duration": {"type": "number"},
        }
    if tool.enable_zoom:
        actions.append("zoom")
        more["region"] = POINT | {"minItems": 4, "maxItems": 4}
    size = ""
    if tool.display_width_px and tool.display_height_px:
        size = f" The screen has {tool.display_width_px} x {tool.display_height_px} pixels."
    action = {"type": "string", "enum": actions}
    return {
        "name": "computer",
        "description": "Uses a screen, a keyboard and a mouse, and takes screenshots. coordinate "
        f"is [x, y] in pixels; text is what to type, or a key such as ctrl+s.{size}",
        "parameters": _object("action", action=action, coordinate=POINT, text=TEXT, **more),
    }


def _object(*required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_FUNCTIONS: dict[str, Callable[[MessageTool], Schema]] = {
    "custom": _custom,
    "bash": _bash,
    "text_editor": _text_editor,
    "memory": _memory,
    "computer": _computer,
}
assert {word for word, meant in TOOLS.items() if meant.how != "left out"} == _FUNCTIONS.keys()
