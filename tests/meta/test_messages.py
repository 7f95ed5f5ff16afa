"""The words that people meet: texts of errors, help and log lines, and what docstrings begin with.

Looks at every text of every file of the product: single words are names and are left alone. Of
docstrings it reads the first line of public modules and classes, and sentences like "Knows no X."
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.parsed import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (
    *("core/dovetail", "plugins", "kernels/dovetail_grammars", "kernels/dovetail_kernels"),
    *("contrib", "benchmarks"),
)
WORDS = {
    r"(?<!here )\b(?:is|are) no (?!longer\b)": 'write "is not a", not "is no"',
    r"\bby (?:itself|themselves)\b": 'write "alone", or say what causes it',
    r"\bof (?:its|their) own(?= *(?:$|[.,;:)]))": 'write "its own X", not "an X of its own"',
    r"\bso many\b(?! that\b)": "say how many, or what limits them",
    r"\bas (?:it has|they have) it\b": "say what holds",
    r"\bwhoever\b": "name the one that is meant",
    r"\bheld to\b": 'write "limited to", "must match" or "enforced"',
    r"\btold\b(?! apart\b| otherwise\b)": 'write "reported", "known" or "said", not "told"',
    r"\bunasked\b": 'write "by default", or say what was not asked for',
}
"""Turns of phrase that readers stumble over, and what to write instead."""
PHRASES = {
    **WORDS,
    r"\bbuilt\b(?![- ]in\b| without\b| for\b)": 'write "supported", not "built"',
    r"\b(?:Pip|Git|Dovetail|Python) (?:install|lfs|serve|run|chat|plugins|config|convert|-m)\b": (
        "a shell command keeps its small letters"
    ),
    r"(?<![`\w])(?:pip install|git lfs pull)\b": "a shell command stands in backquotes",
}
BOUNDARY = re.compile(r"\bKnows (?:no|nothing|neither)\b(?:[^.]|\.(?=\S))*\.")
ERRORS = re.compile(
    r"^(?:DovetailError|\w*ConfigError|\w*PluginError|UnknownPlugin|AmbiguousPlugin|Overloaded"
    r"|UnavailablePlugin|BrokenPlugin|RequestError|NotFound|EngineAsleep|RequestFault|EngineDead)$"
)
END = (".", "!", "?")
CLOSING = "\"'`)]"


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every constant text that is not a docstring."""
    bare = {id(n.value) for n in nodes_of(source) if isinstance(n, ast.Expr)}
    for inner in nodes_of(source):
        is_text = isinstance(inner, ast.Constant) and isinstance(inner.value, str)
        if is_text and id(inner) not in bare:
            yield inner.lineno, inner.value


def phrase_faults(source: str) -> list[str]:
    """Return what is wrong with the phrases of a source, each with its line."""
    return [
        f"{line}: {advice}: {text[:60]!r}"
        for line, text in texts_of(source)
        for pattern, advice in PHRASES.items()
        if " " in text and re.search(pattern, text)
    ]


def docstrings_of(source: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield (line, docstring) of a module and its classes."""
    tree = tree_of(source)
    for node in nodes_of(source):
        is_class = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if is_class or (node is tree and not name.startswith("_")):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def docstring_faults(source: str, name: str = "module.py") -> list[str]:
    """Return what is wrong with the docstrings of a file of this name, each with its line.

    A docstring says first what the thing is. What it does not know is said of packages, and where
    the sentence names who knows it.
    """
    faults = []
    for line, text in docstrings_of(source, name):
        first = text.partition("\n")[0]
        faults += [
            f"{line}: {advice}: {first[:60]!r}"
            for pattern, advice in WORDS.items()
            if re.search(pattern, first)
        ]
        faults += [
            f"{line}: say who knows it, or leave it out: {found[0]!r}"
            for found in BOUNDARY.finditer(text)
            if name != "__init__.py" and not re.search("[:;(]", found[0])
        ]
        if first.startswith("Knows "):
            faults.append(f"{line}: say first what it is: {first[:60]!r}")
    return faults


def last_text(node: ast.expr) -> str | None:
    """Return the end of a text as it is written, None where it is not known before it runs."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return last_text(node.values[-1])
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def end_faults(source: str) -> list[str]:
    """Return the sentences of errors that are written without an end, each with its line."""
    faults = []
    for node in nodes_of(source):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if not ERRORS.match(name):
            continue
        sentences = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "fix")]
        for sentence in sentences:
            text = last_text(sentence)
            if text is not None and not text.rstrip(CLOSING).endswith(END):
                faults.append(f"{sentence.lineno}: end with a full stop: {text[-60:]!r}")
    return faults


def sources(part: str) -> list[Path]:
    return sorted((ROOT / part).rglob("*.py"))


def test_files_are_found() -> None:
    assert sum(len(sources(part)) for part in PRODUCT) > 500


@pytest.mark.parametrize("part", PRODUCT)
def test_messages_are_plain_english(part: str) -> None:
    found = []
    for path in sources(part):
        source = path.read_text(encoding="utf-8")
        faults = phrase_faults(source) + end_faults(source) + docstring_faults(source, path.name)
        found += [f"{path.relative_to(ROOT)}:{fault}" for fault in faults]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "x = f'{name} is no path.'",
        "help('images are not built yet')",
        "fix('Pip install x')",
        "fix('run pip install x')",
    ],
)
def test_the_search_finds_phrases(source: str) -> None:
    assert phrase_faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "'''The docstring: it is no message.'''",
        "x = 'there is no path'",
        "x = 'it is no longer there, and built in'",
        "x = 'run `pip install x`.'",
    ],
)
def test_the_search_leaves_alone(source: str) -> None:
    assert phrase_faults(source) == []


@pytest.mark.parametrize("text", ["'the file is empty'", "f'{x} is empty'", "'a', fix='b'"])
def test_the_search_finds_ends(text: str) -> None:
    assert end_faults(f"raise ConfigError({text})")
    assert end_faults("raise ConfigError('a.', fix=f'run `{x}`.')") == []
    assert end_faults("raise ConfigError(f'it is {x}')") == []


@pytest.mark.parametrize(
    "docstring",
    [
        "Parser of a model. Knows no text.",
        "Knows no text: `render` does.",
        "A text that is no call.",
        "One step.\n\nKnows nothing of requests.",
        "A thread with a queue of its own.",
    ],
)
def test_the_search_finds_docstrings(docstring: str) -> None:
    assert docstring_faults(f"class A:\n    {docstring!r}")
    assert docstring_faults(repr(docstring))


@pytest.mark.parametrize(
    "docstring",
    ["Parser. Knows no text: `render` does.", "One step.\n\nIt is no call.", "Its own thread."],
)
def test_the_search_leaves_docstrings_alone(docstring: str) -> None:
    assert docstring_faults(repr(docstring)) == []
    assert docstring_faults(repr("A step. Knows no text."), "__init__.py") == []
    assert docstring_faults("class _A:\n    'It is no call.'") == []
