"""ClientProgram: a program that `dovetail launch` starts against a server: a coding agent, a chat.

The plugin says what makes the program use a server. The command writes the files and runs it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTarget:
    """A server, its model, and the program's own folder, which may not exist yet. `url` ends before
    /v1."""

    url: str
    model: str
    folder: Path
    api_key: str | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """`env` is added to the user's variables, `files` (path within the folder -> text) are written
    beforehand, `arguments` precede the user's."""

    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


class ClientProgram(Plugin):
    """`program` is the command to run, `install` says how to get it."""

    interface_version: ClassVar[int] = 1
    program: ClassVar[str]
    install: ClassVar[str]

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def settings(self, server: LaunchTarget) -> LaunchSettings:
        """Return what makes the program use this server. Reads and writes no files"""
