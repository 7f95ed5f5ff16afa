"""Tools of the client whose calls have their own item format: local_shell, shell, apply_patch.

The model sees each as a function. Its call comes back as the item that the client expects, and such
items in the input become calls of that function again.
Source: the OpenAI API reference, responses: local shell, shell and apply patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail_plugins.apis._content_blocks import ContentBlock
from dovetail_plugins.apis.responses.output_items import Emit, Event, OutputItem
from dovetail_plugins.apis.responses.protocol import Item

Schema = dict[str, Any]


def _object(required: list[str], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _number(description: str) -> Schema:
    return {"type": "integer", "description": description}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool type. Its calls are items of type `TYPE_call`, with the arguments in `field`; an item
    of a call that cannot be made has `empty` there, and the status `unfinished`. `constants` are
    further values in `field`, `beside` next to it."""

    type: str
    prefix: str
    field: str
    description: str
    parameters: Schema
    empty: Mapping[str, Any]
    constants: Mapping[str, Any]
    beside: Mapping[str, Any]
    unfinished: str = "incomplete"

    def function(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        """Return the function that the model sees of a request's tool."""
        description = "\n".join([self.description, *_skills(tool.get("environment"))])
        return {"name": self.type, "description": description, "parameters": self.parameters}

    def value(self, arguments: Any) -> dict[str, Any] | None:
        """Return the value of `field` in the item of a call; None if the arguments do not fit."""
        inner = self._inner(arguments)
        if inner is None or not _fits(inner, self._schema):
            return None
        known = {name: inner.get(name, self.empty.get(name)) for name in self._names(inner)}
        return {**self.constants, **known}

    def arguments(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return the function's arguments of an item's call."""
        value = item.get(self.field)
        given = value if isinstance(value, dict) else {}
        kept = {n: v for n, v in given.items() if n not in self.constants and v is not None}
        return {self.field: kept} if self._is_nested else kept

    @property
    def _is_nested(self) -> bool:
        return self.field in self.parameters["properties"]

    @property
    def _schema(self) -> Schema:
        inner = self.parameters["properties"].get(self.field, self.parameters)
        assert isinstance(inner, dict)
        return inner

    def _inner(self, arguments: Any) -> dict[str, Any] | None:
        """Return the object with the values, which some models put into `field`, some do not."""
        if not isinstance(arguments, dict):
            return None
        inner = arguments.get(self.field, arguments)
        return inner if isinstance(inner, dict) else None

    def _names(self, inner: Mapping[str, Any]) -> list[str]:
        """Return the names of the item's fields: those of the schema that the values fit."""
        fitting = [one for one in self._schema.get("anyOf", (self._schema,)) if _fits(inner, one)]
        return list(fitting[0]["properties"])


def _skills(environment: Any) -> list[str]:
    """Return a line for each skill that a shell's environment has, for the model to read up."""
    found = environment.get("skills") if isinstance(environment, dict) else None
    skills = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    head = ["Skills, each with the folder of its SKILL.md:"] if skills else []
    return head + [f"- {s.get('name')}: {s.get('description')} ({s.get('path')})" for s in skills]


def _fits(value: Any, schema: Schema) -> bool:
    """Return whether a value fits one of the schemas above. A null stands for a missing field."""
    if "anyOf" in schema:
        return any(_fits(value, one) for one in schema["anyOf"])
    match schema["type"]:
        case "object":
            return isinstance(value, dict) and _fields_fit(value, schema)
        case "array":
            return isinstance(value, list) and all(_fits(one, schema["items"]) for one in value)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case _:
            return isinstance(value, str) and value in schema.get("enum", (value,))


def _fields_fit(value: Mapping[str, Any], schema: Schema) -> bool:
    found = {name: one for name, one in value.items() if one is not None}
    others = schema["additionalProperties"]
    schemas = {name: schema["properties"].get(name, others) for name in found}
    has_all = set(schema["required"]) <= set(found)
    return has_all and all(_fits(found[n], one) for n, one in schemas.items() if one)


_PATH = _text("the file, relative to the working directory")
_PATCH = _text(
    "what changes. create_file: each line of the new file after a +. update_file: for each place a "
    "line @@ (or @@ and the line of the function or class around it), then lines that begin with a "
    "blank (context), - (removed) or + (added)."
)

LOCAL_SHELL = ClientTool(
    type="local_shell",
    prefix="lsh",
    field="action",
    description="Runs a program on the user's computer and returns its output.",
    parameters=_object(
        ["command"],
        command=_texts('the program and its arguments, for example ["bash", "-lc", "ls"]'),
        working_directory=_text("where it runs"),
        env={
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": {"type": "string"},
            "description": "environment variables",
        },
        timeout_ms=_number("the longest time that it may take, in milliseconds"),
        user=_text("the user that it runs as"),
    ),
    empty={"command": [], "env": {}},
    constants={"type": "exec"},
    beside={},
)
SHELL = ClientTool(
    type="shell",
    prefix="sh",
    field="action",
    description="Runs shell commands on the user's computer and returns the output of each.",
    parameters=_object(
        ["commands"],
        commands=_texts("the commands, as they are typed"),
        timeout_ms=_number("the longest time that they may take, in milliseconds"),
        max_output_length=_number("the most characters of output wanted of each"),
    ),
    empty={"commands": []},
    constants={},
    beside={"environment": {"type": "local"}},
)
APPLY_PATCH = ClientTool(
    type="apply_patch",
    prefix="apc",
    field="operation",
    description="Creates, changes or deletes one file.",
    parameters=_object(
        ["operation"],
        operation={
            "anyOf": [
                _object(
                    ["type", "path", "diff"],
                    type={"type": "string", "enum": ["create_file", "update_file"]},
                    path=_PATH,
                    diff=_PATCH,
                ),
                _object(
                    ["type", "path"],
                    type={"type": "string", "enum": ["delete_file"]},
                    path=_PATH,
                ),
            ]
        },
    ),
    empty={"type": "update_file", "path": "", "diff": ""},
    constants={},
    beside={},
    unfinished="in_progress",
)
CLIENT_TOOLS = {tool.type: tool for tool in (LOCAL_SHELL, SHELL, APPLY_PATCH)}
"""Type -> tool. The type is also the name of its function."""


class ClientCall(OutputItem):
    """A call of such a tool. The item appears when its arguments are complete."""

    def __init__(self, block: ContentBlock, index: int, tool: ClientTool) -> None:
        self.prefix = tool.prefix
        super().__init__(block, index)
        self._tool = tool

    @property
    def is_broken(self) -> bool:
        """Return whether the arguments are incomplete, or do not fit."""
        return self._tool.value(self.block.arguments) is None

    def as_item(self, status: str) -> Item:
        """Return the item so far. A patch has no status for a call that cannot be made."""
        return super().as_item(self._tool.unfinished if status == "incomplete" else status)

    def fields(self) -> Item:
        tool = self._tool
        value = tool.value(self.block.arguments) or {**tool.constants, **tool.empty}
        head = {"type": f"{tool.type}_call", "call_id": self.block.call_id}
        return {**head, tool.field: value, **tool.beside}

    def opened(self, emit: Emit) -> list[Event]:
        return []

    def grown(self, text: str, emit: Emit) -> list[Event]:
        return []

    def closed(self, emit: Emit) -> list[Event]:
        return [self.added(emit)]


class ShellCall(ClientCall):
    """A call of the shell: each of its commands has its own events."""

    def closed(self, emit: Emit) -> list[Event]:
        action = self.fields()["action"]
        events = [self.added(emit, action=action | {"commands": []})]
        for number, command in enumerate(action["commands"]):
            place = {**self._place, "command_index": number}
            events += [
                emit("response.shell_call_command.added", command="", **place),
                emit("response.shell_call_command.delta", delta=command, **place),
                emit("response.shell_call_command.done", command=command, **place),
            ]
        return events


def client_call(block: ContentBlock, index: int, tool: ClientTool) -> ClientCall:
    """Return the item of a call."""
    return (ShellCall if tool is SHELL else ClientCall)(block, index, tool)
