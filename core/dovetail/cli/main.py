"""`dovetail`: finds the subcommand, prints help and errors, returns the exit status.

Subcommands are plugins of the kind `command` (dovetail.interfaces.command). The list of them comes
from package metadata and source text, without imports; a command is imported to run it.
"""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dovetail import registry
from dovetail.errors import ConfigError, DovetailError
from dovetail.interfaces.command import Command
from dovetail.registry.summaries import summary_of

KIND = "command"
SUMMARY = "Serve large language models. Every part that has a choice is a plugin."
VERBOSE_VARIABLE = "DOVETAIL_VERBOSE"
TAIL = "dovetail COMMAND --help describes a command. dovetail --version prints the version."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, 1 (failed), 2 (wrong usage)."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_verbose = "--verbose" in words or _is_set(os.environ.get(VERBOSE_VARIABLE))
    with _told_verbose(is_verbose):
        return guarded(lambda: _dispatch(words), is_verbose=is_verbose)


@contextmanager
def _told_verbose(is_verbose: bool) -> Iterator[None]:
    """Inside the with block, log more if --verbose is given, here and in child processes."""
    before = os.environ.get(VERBOSE_VARIABLE)
    if is_verbose:
        os.environ[VERBOSE_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VERBOSE_VARIABLE, None)
        else:
            os.environ[VERBOSE_VARIABLE] = before


def guarded(call: Callable[[], int], *, is_verbose: bool = False) -> int:
    """Return the result of `call`; an error is reported and turned into an exit status."""
    try:
        return call()
    except ConfigError as error:
        _report(error, is_verbose)
        return 2
    except DovetailError as error:
        _report(error, is_verbose)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if _has_reader():
            raise  # another pipe broke, so show the fault
        return _quiet_pipe()


def _dispatch(words: list[str]) -> int:
    if not words or words[0].partition("=")[0] in ("-h", "--help"):
        print(_screen())
        return 0 if words else 2
    if words[0] in ("-v", "--version"):
        from dovetail.version import __version__

        print(f"dovetail {__version__}")
        return 0
    return _run(words[0], words[1:])


def _run(name: str, words: list[str]) -> int:
    """Run a command, or the part of it that the next word names."""
    command = load_command(name)
    if not command.parts:
        return _run_command(command, f"dovetail {name}", words)
    if not words or words[0].partition("=")[0] in ("-h", "--help"):
        print(_parts_screen(name, command))
        return 0 if words else 2
    if words[0] not in command.parts:
        fix = f"use one of {', '.join(command.parts)}."
        raise ConfigError(f"there is no {name} {words[0]!r}.", where=f"dovetail {name}", fix=fix)
    return _run_command(part_of(command, words[0]), f"dovetail {name} {words[0]}", words[1:])


def _run_command(command: Command, prog: str, words: list[str]) -> int:
    from dovetail.cli.helptext import show
    from dovetail.cli.parser import Parser, take_help, take_switch
    from dovetail.registry.blame import blaming

    parser = Parser(prog=prog, description=command.info.summary)
    command.add_arguments(parser)
    help_request = take_help(words)
    if help_request is None:
        rest, _ = take_switch(words, "--verbose")
        with blaming(f"`{prog}`"):
            return int(command.run(parser.parse(rest)))
    show(parser, help_request, command.common)
    return 0


def _parts_screen(name: str, command: Command) -> str:
    helps = {part: part_of(command, part).info.summary for part in command.parts}
    tail = f"dovetail {name} PART --help describes a part."
    return _commands_screen(f"dovetail {name} PART ...", command.info.summary, helps, tail)


def load_command(name: str) -> Command:
    """Return a subcommand. Raises: ConfigError with the nearest name, PluginError"""
    names = registry.names(KIND)
    if name in names:
        command: Command = registry.make(registry.choose(KIND, name, where="dovetail"))
        return command
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=1)
    fix = f"did you mean {near[0]}?" if near else f"commands are {', '.join(names)}."
    raise ConfigError(f"there is no command {name!r}.", where="dovetail", fix=fix)


def part_of(command: Command, part: str) -> Command:
    """Return a part of a command that has parts. Raises: PluginError"""
    cls: Any = registry.admin.load_target(KIND, command.parts[part])
    found: Command = cls(command.options)
    return found


def _screen() -> str:
    summaries = {entry.name: summary_of(entry) for entry in registry.entries(KIND)}
    return _commands_screen("dovetail COMMAND ...", SUMMARY, summaries, TAIL)


def _commands_screen(usage: str, summary: str, commands: dict[str, str], tail: str) -> str:
    width = max(map(len, commands)) + 2
    rows = [f"  {name:<{width}}{text}" for name, text in commands.items()]
    return "\n".join([f"usage: {usage}", "", summary, "", "commands:", *rows, "", tail])


def _report(error: DovetailError, is_verbose: bool) -> None:
    """Print the cause and the fix as the last lines of standard error."""
    sys.stdout.flush()
    if is_verbose:
        traceback.print_exception(error)
    where = f"{error.where}: " if error.where else ""
    print(f"dovetail: error: {where}{error.what}", file=sys.stderr)
    if error.fix:
        print(f"fix: {error.fix}", file=sys.stderr)
    sys.stderr.flush()


def _has_reader() -> bool:
    """Return whether standard output still has a reader."""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)  # errors are always reported
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in watch.poll(0))


def _quiet_pipe() -> int:
    # The reader has gone; a second write at interpreter exit would print a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _is_set(value: str | None) -> bool:
    return (value or "").lower() not in ("", "0", "false", "no", "off")
