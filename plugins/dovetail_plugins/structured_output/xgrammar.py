"""Structured output with xgrammar: a pushdown automaton with precomputed masks.

It enforces constraints of every type. A constraint becomes a structural tag, is compiled in the
killable process, and crosses as the library's own JSON of the compiled grammar. Schemas and regular
expressions are handed over as grammars of ours: its own parsers allow answers that break them.
Source: https://github.com/mlc-ai/xgrammar (structural tags, GrammarCompiler, GrammarMatcher).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeat,
)
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    LoadedConstraint,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail_grammars import json_grammar
from dovetail_grammars.gbnf import as_gbnf
from dovetail_grammars.gbnf_reader import read_gbnf
from dovetail_grammars.json_grammar import ROOT, JsonGrammar
from dovetail_grammars.lark_anchors import check_anchors
from dovetail_grammars.regex import Node
from dovetail_grammars.regex_reader import whole
from dovetail_plugins.structured_output._constraint_rules import free_rules

if TYPE_CHECKING:
    import numpy as np


class XGrammar(StructuredOutputBackend):
    """Holds one TokenizerInfo and one compiler; an artifact is a compiled grammar."""

    info = Info(
        summary="xgrammar: JSON schemas, regular expressions, grammars, free text",
        source="https://github.com/mlc-ai/xgrammar",
        requires=("xgrammar",),
        extra="xgrammar",
    )
    capabilities = frozenset(
        {"json", "regex", "grammar", "concat", "free_text", "special", "whitespace"}
    )
    auto_rank = 5
    languages = ("ebnf", "gbnf", "lark")
    keywords = json_grammar.KEYWORDS

    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        import xgrammar

        self.vocabulary = vocabulary
        # Empty tokens are never allowed; a special one is referred to by its id. 0xFF is part
        # of no text, so that no other text can be it.
        tokens = list(vocabulary.tokens)
        for token_id in vocabulary.special.values():
            tokens[token_id] = b"\xff%d" % token_id
        self._info = xgrammar.TokenizerInfo(
            tokens,
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)

    def compile(self, constraint: Constraint) -> bytes:
        """Return the compiled grammar as the library writes it. Raises: InvalidConstraint"""
        tag = {"type": "structural_tag", "format": _Tag(self.vocabulary.special).part(constraint)}
        try:
            compiled = self._compiler.compile_structural_tag(tag)
        except (RuntimeError, ValueError) as error:  # its errors have no class of their own
            raise InvalidConstraint(_said(error)) from error
        return str(compiled.serialize_json()).encode()

    def load(self, artifact: bytes) -> LoadedConstraint:
        """Return the grammar with this vocabulary."""
        import xgrammar

        text = artifact.decode()
        return _Loaded(xgrammar.CompiledGrammar.deserialize_json(text, self._info), self.vocabulary)


class _Loaded:
    def __init__(self, grammar: Any, vocabulary: Vocabulary) -> None:
        self._grammar = grammar
        self._vocabulary = vocabulary
        self.num_bytes = int(grammar.memory_size_bytes)

    def matcher(self) -> Matcher:
        """Return a matcher at the beginning."""
        import xgrammar

        return _Matcher(xgrammar.GrammarMatcher(self._grammar), self._vocabulary)


class _Matcher:
    def __init__(self, matcher: Any, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._words = vocabulary.mask_words

    def accept(self, token_id: int) -> bool:
        """Advance by a token if the constraint allows it."""
        if token_id in self._eos_ids:
            return bool(self._matcher.is_completed())
        return bool(self._matcher.accept_token(token_id))

    def fill(self, mask: np.ndarray) -> None:
        """Set the bits of tokens that may follow. Mutates: mask"""
        self._matcher.fill_next_token_bitmask(mask.view("int32").reshape(1, self._words))

    def is_complete(self) -> bool:
        """Return whether only the end may follow."""
        import numpy as np

        if not self._matcher.is_completed():
            return False
        mask = np.zeros(self._words, dtype=np.uint32)
        self.fill(mask)
        for token_id in self._eos_ids:
            mask[token_id // 32] &= ~(np.uint32(1) << np.uint32(token_id % 32))
        return not mask.any()

    def forced(self) -> Sequence[int]:
        """Return nothing: the library reports forced text, not tokens."""
        return ()

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""
        self._matcher.rollback(num_tokens)


class _Tag:
    """Writes a constraint as a format of structural tags."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special

    def part(self, constraint: Constraint) -> dict[str, Any]:
        """Return the format of a constraint. Raises: InvalidConstraint"""
        match constraint:
            case Literal(text):
                return self._literal(text)
            case JsonSchema(schema, whitespace):
                return _rules(JsonGrammar(schema, whitespace).rules)
            case Regex(regex):
                return _rules({ROOT: whole(regex)})
            case FreeText(without, grammar):
                return _rules(free_rules(without, grammar))
            case Grammar(text, "lark"):
                check_anchors(text)
                return {"type": "grammar", "grammar": _from_lark(text)}
            case Grammar(text):
                return _rules(read_gbnf(text))
            case Concat(parts) | Choice(parts):
                if not parts:
                    return _text("")
                kind = "or" if isinstance(constraint, Choice) else "sequence"
                return {"type": kind, "elements": [self.part(part) for part in parts]}
            case Repeat(part, minimum, maximum):
                bounds = {"min": minimum, "max": -1 if maximum is None else maximum}
                return {"type": "repeat", "content": self.part(part), **bounds}

    def _literal(self, text: str) -> dict[str, Any]:
        """Return a text in which special tokens are written as token ids."""
        names = sorted((w for w in self._special if w in text), key=len, reverse=True)
        if not names:
            return _text(text)
        pieces = [p for p in re.split("(" + "|".join(map(re.escape, names)) + ")", text) if p]
        elements = [
            {"type": "token", "token": self._special[p]} if p in self._special else _text(p)
            for p in pieces
        ]
        return {"type": "sequence", "elements": elements}


def _text(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def _rules(rules: Mapping[str, Node]) -> dict[str, Any]:
    return {"type": "grammar", "grammar": as_gbnf(rules)}


def _from_lark(text: str) -> str:
    """Return a grammar with a rule "root". Raises: InvalidConstraint"""
    from xgrammar import Grammar

    try:
        return str(Grammar.from_lark(text))
    except (RuntimeError, ValueError) as error:
        raise InvalidConstraint(f"the grammar cannot be read: {_said(error)}") from error


def _said(error: Exception) -> str:
    """Return the library's message, without the place in its own source."""
    return re.sub(r"^\[[^\]]*\] \S+?:\d+: ", "", str(error).strip())[:500]
