"""ClientProgram: a program that `dovetail launch` sets up to use a server, and runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTarget:
    """A server (`url` ends before /v1) and the program's own folder, which may not exist yet."""

    url: str
    model: str
    folder: Path
    api_key: str | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """Added variables, files (path within the folder -> text), and what precedes the arguments."""

    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


class ClientProgram(Plugin):
    """`program` is the command to run, `install` says how to get it."""

    program: ClassVar[str]
    install: ClassVar[str]

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def settings(self, server: LaunchTarget) -> LaunchSettings:
        """Return what makes the program use this server. Reads and writes no files"""
