"""Impostors: a folder with a module for every name that a program could import, to be stood in.

Whoever imports one of them runs code of the folder: it leaves a note and ends its process. Knows
nothing of who is put there.
"""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

NOTE = "imported"
OURS = ("dovetail", "dovetail_grammars", "dovetail_kernels", "dovetail_plugins", "dovetail_testing")
AT_START = ("sitecustomize", "usercustomize")
IMPOSTOR = """
import os
with open({note!r}, "a") as note:
    note.write(__name__ + "\\n")
os._exit(66)
"""


def make_impostors(folder: Path) -> Path:
    """Make the folder and return the file in which whoever imports one of its modules is noted."""
    note = folder.with_name(f"{folder.name}-{NOTE}")
    note.touch()
    folder.mkdir()
    for name in {*sys.stdlib_module_names, *packages_distributions(), *OURS, *AT_START}:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(IMPOSTOR.format(note=str(note)))
    return note
