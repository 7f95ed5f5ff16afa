"""`dovetail completion`: prints the script with which a shell completes dovetail's arguments.

The script calls `dovetail completion words -- WORD ...`, with the incomplete word last, and reads
one candidate per line. No plugins or heavy modules are imported, as the shell waits for it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence

from dovetail.errors import ConfigError, DovetailError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

WORDS = "words"
SHELLS = ("bash", "zsh", "fish")
PLACES = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}
_SCRIPTS = {
    "bash": """_dovetail() {
  local line="${COMP_LINE:0:COMP_POINT}" words=() whole part answer
  read -ra words <<< "$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  whole="${words[-1]}"
  part="${COMP_WORDS[COMP_CWORD]}"
  [[ $part == [:=] ]] && part=""
  mapfile -t answer < <("${words[0]}" completion words -- "${words[@]:1}" 2>/dev/null)
  COMPREPLY=("${answer[@]#"${whole%"$part"}"}")
}
complete -o default -F _dovetail dovetail
""",
    "zsh": """#compdef dovetail
_dovetail() {
  local -a answer
  answer=(${(f)"$(${words[1]} completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( ${#answer} )); then compadd -Q -- $answer; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _dovetail dovetail
""",
    "fish": """function __dovetail_words
  set -l words (commandline -opc)
  set -l program $words[1]
  set -e words[1]
  $program completion words -- $words (commandline -ct) 2>/dev/null
end
complete -c dovetail -a '(__dovetail_words)'
""",
}


class CompletionCommand(Command):
    """`dovetail completion`."""

    info = Info(summary="print the script that completes commands, flags and names in a shell")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the shell. Mutates: parser."""
        text = f"{', '.join(SHELLS)}; add to its start-up file: " + "; ".join(
            f"{place}: {_line(shell)}" for shell, place in PLACES.items()
        )
        parser.add_argument("shell", choices=(*SHELLS, WORDS), metavar="SHELL", help=text)
        parser.add_argument("words", nargs="*", help="what the scripts ask with")

    def run(self, args: argparse.Namespace) -> int:
        """Print the script or the candidates for a word; return the exit status."""
        if args.shell != WORDS:
            print(_SCRIPTS[args.shell], end="")
            return 0
        print("".join(f"{word}\n" for word in candidates(args.words)), end="")
        return 0


def _line(shell: str) -> str:
    if shell == "fish":
        return "dovetail completion fish | source"
    return f'eval "$(dovetail completion {shell})"'


def candidates(words: Sequence[str]) -> list[str]:
    """Return the possible completions of the last word."""
    *before, begun = words or [""]
    try:
        found = list(_possible(before, begun))
    except DovetailError:  # an earlier word is wrong: its command will report it
        return []
    return sorted({word for word in found if word.startswith(begun)})


def _possible(before: Sequence[str], begun: str) -> Iterable[str]:
    from dovetail import registry
    from dovetail.cli.main import KIND, load_command, part_of

    if not before:
        return ("--help", "--version") if begun[:1] == "-" else registry.names(KIND)
    command, rest = load_command(before[0]), before[1:]
    if not command.parts:
        return _of_command(command, rest, begun)
    if not rest:
        return command.parts
    if rest[0] not in command.parts:
        return ()
    return _of_command(part_of(command, rest[0]), rest[1:], begun)


def _of_command(command: Command, before: Sequence[str], begun: str) -> Iterable[str]:
    """Return the possible flags, flag values or positional arguments of one command."""
    from dovetail.cli.parser import Parser

    parser = Parser(prog="dovetail", description="")
    command.add_arguments(parser)
    options = {o: action for action in parser._actions for o in action.option_strings}
    flag, equals, _ = begun.partition("=")
    if equals and flag in options:
        return [f"{flag}={value}" for value in _values(options[flag])]
    if begun[:1] == "-":
        return [*options, "--help"]
    last = options.get(before[-1]) if before else None
    if last is not None and last.nargs != 0:
        return _values(last)
    taken = _num_placed(before, options)
    places = [action for action in parser._actions if not action.option_strings]
    if not places or (taken >= len(places) and places[-1].nargs not in ("*", "+")):
        return ()
    return set(_values(places[min(taken, len(places) - 1)])).difference(before)


def _num_placed(before: Sequence[str], options: dict[str, argparse.Action]) -> int:
    """Return how many words are positional arguments."""
    count = 0
    takes = False
    for word in before:
        if word[:1] == "-":
            takes = word in options and options[word].nargs != 0
        else:
            count += not takes
            takes = False
    return count


def _values(action: argparse.Action) -> Iterable[str]:
    """Return the names that an argument accepts; empty if it accepts any text."""
    from dovetail import registry
    from dovetail.config.parse.flags import FlagAction

    if isinstance(action, FlagAction):
        if action.dest == "model":
            return _models()
        return registry.names(action.flag.meta.kind) if action.flag.meta.kind else ()
    if action.choices:
        return [str(choice) for choice in action.choices if choice != WORDS]
    named = _NAMED.get(str(action.metavar or action.dest))
    return named() if named else ()


def _models() -> list[str]:
    from dovetail_plugins.commands._model_stores import stores_of

    try:
        return [model.name for model in stores_of(argparse.Namespace()).all_models()]
    except (ConfigError, OSError):  # an invalid variable or folder: there are no names
        return []


def _servers() -> list[str]:
    from dovetail_plugins.commands._running import running_servers

    return [word for one in running_servers() for word in (*one.names, str(one.pid))]


def _plugins() -> list[str]:
    from dovetail import registry

    entries = [entry for kind in registry.KINDS for entry in registry.entries(kind)]
    return [*registry.KINDS, *(f"{entry.kind}:{entry.name}" for entry in entries)]


_NAMED: dict[str, Callable[[], list[str]]] = {
    "MODEL": _models,
    "ID": _models,
    "SERVER": _servers,
    "KIND[:NAME]": _plugins,
}
"""An argument's name in the help -> its possible values."""
