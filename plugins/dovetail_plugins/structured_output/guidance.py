"""Structured output with llguidance: an Earley parser over a derivative-based lexer.

It enforces constraints of every type. A constraint becomes one Lark grammar in llguidance's
dialect, which is what crosses between processes: compiling it again takes milliseconds.
Source: https://github.com/guidance-ai/llguidance (docs/syntax.md, docs/json_schema.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

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
from dovetail_grammars.avoiding import avoiding
from dovetail_grammars.doubles import within_doubles
from dovetail_grammars.gbnf_reader import inlined, read_gbnf
from dovetail_grammars.json_grammar import ROOT, JsonGrammar, are_apart
from dovetail_grammars.keywords import words
from dovetail_grammars.lark_anchors import check_anchors
from dovetail_grammars.lexemes import with_lexemes
from dovetail_grammars.regex import Cat, Chars, Many, Node, Or, Rule, without, written
from dovetail_grammars.regex_reader import found_within, whole_text
from dovetail_grammars.rewriting.tree import VALIDATING
from dovetail_grammars.schema import nodes, plain_schema

if TYPE_CHECKING:
    import numpy as np

NUM_BYTES_PER_CONSTRAINT = 1 << 20
"""The assumed size of a loaded grammar; the library does not report it."""
MAX_ROW_ITEMS = 20_000
MAX_STEP_ITEMS = 10_000_000
"""About 20,000 items take a millisecond."""
NEVER_WRITTEN = ((0, 7), (11, 11), (14, 31), (127, 127))
"""Characters that the library leaves out of JSON strings without escapes by number."""
_IS_NEVER_WRITTEN = re.compile("[\0-\7\13\16-\37\177]")


class Guidance(StructuredOutputBackend):
    """Holds one LLTokenizer; an artifact is the text of a grammar."""

    info = Info(
        summary="llguidance: JSON schemas, regular expressions, grammars, free text",
        source="https://github.com/guidance-ai/llguidance",
        requires=("llguidance",),
    )
    capabilities = frozenset(
        {"json", "regex", "grammar", "concat", "free_text", "forced", "special", "whitespace"}
    )
    auto_rank = 10
    languages = ("lark", "gbnf", "ebnf")
    keywords: ClassVar[frozenset[str]] = words(
        "type properties required additionalProperties patternProperties items prefixItems "
        "minItems maxItems minLength maxLength pattern format enum const anyOf allOf $ref $defs "
        "definitions minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "
        "minProperties maxProperties oneOf"
    )

    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.vocabulary = vocabulary
        self._words = _Tokens(vocabulary)
        self._last: tuple[str, Any] = ("", None)
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(self._words),
            n_vocab=vocabulary.size,
            eos_token=list(vocabulary.eos_ids),
        )

    @classmethod
    def refuses(cls, node: Mapping[str, Any], keyword: str) -> str | None:
        """Return why a keyword is not enforced in this node."""
        if keyword in ("const", "enum", "required") and _is_unwritten(node[keyword]):
            return "a control character in a text is not enforced"
        if keyword == "properties" and _is_unwritten(dict.fromkeys(node[keyword])):
            return "a control character in a name is not enforced"
        # A name may be written twice.
        if keyword == "minProperties" and node[keyword] > max(
            1, len(set(node.get("required", ())))
        ):
            return "more members at least than are required by name cannot be told apart"
        return None

    def compile(self, constraint: Constraint) -> bytes:
        """Return the grammar's text. Raises: InvalidConstraint"""
        text, matcher = self._read(constraint)
        if said := matcher.get_grammar_warnings():
            raise InvalidConstraint("; ".join(map(_plain_words, said)))
        self._last = (text, matcher)
        return text.encode()

    def _read(self, constraint: Constraint) -> tuple[str, Any]:
        """Return the grammar and a matcher of it. The library cannot always take the expressions of
        long hosts and mail addresses together with others. Raises: InvalidConstraint"""
        text = _Lark(self.vocabulary.special, has_long=True).grammar(constraint)
        try:
            return text, self._matcher(text)
        except InvalidConstraint:
            short = _Lark(self.vocabulary.special, has_long=False).grammar(constraint)
            if short == text:
                raise
            return short, self._matcher(short)

    def load(self, artifact: bytes) -> LoadedConstraint:
        """Return the grammar, copied into a matcher for each answer."""
        text = artifact.decode()
        known, matcher = self._last  # what was compiled is usually tried right away
        return _Loaded(matcher if text == known else self._matcher(text), self._words)

    def _matcher(self, text: str) -> Any:
        """Return a matcher of a grammar. Raises: InvalidConstraint"""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=_limits())
        if matcher.is_error():
            raise InvalidConstraint(_plain_words(matcher.get_error()))
        return matcher


def _limits() -> Any:
    """Return how far a parse may branch. The library's own limits are met by grammars over single
    characters with large vocabularies, in the middle of an answer; the trial of a constraint's
    first tokens is what keeps slow ones out."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_items_in_row=MAX_ROW_ITEMS, step_max_items=MAX_STEP_ITEMS)


class _Tokens:
    """The vocabulary as TokenizerWrapper reads it.

    The library asks for the tokens of text that must follow. `is_exact` becomes False if the
    tokenizer has none: the library then gets other tokens, which must not be forced.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.is_exact = True
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        special = {i: text.encode() for text, i in vocabulary.special.items()}
        # Its special tokens begin with 0xFF, so that no text can match them.
        self.tokens = [
            b"\xff" + special.get(i, b"[%d]" % i) if i in vocabulary.special_ids else text
            for i, text in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._ids = {text: i for i, text in enumerate(vocabulary.tokens) if text}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens that the tokenizer writes, else the longest that fit. Mutates: self"""
        ids = self.vocabulary.encode(text.decode())
        if ids is None:
            self.is_exact = False
            ids = self._longest_first(text)
        return ids

    def _longest_first(self, data: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                if data[at:end] in self._ids:
                    ids.append(self._ids[data[at:end]])
                    at = end
                    break
            else:
                at += 1
        return ids


class _Loaded:
    def __init__(self, matcher: Any, words: _Tokens) -> None:
        self._matcher = matcher
        self._words = words
        self.num_bytes = NUM_BYTES_PER_CONSTRAINT

    def matcher(self) -> Matcher:
        """Return a matcher at the beginning."""
        return _Matcher(self._matcher.deep_copy(), self._words)


class _Matcher:
    def __init__(self, matcher: Any, words: _Tokens) -> None:
        self._matcher = matcher
        self._words = words
        self._eos_ids = frozenset(words.vocabulary.eos_ids)

    def accept(self, token_id: int) -> bool:
        """Advance by a token if the constraint allows it. Raises: InvalidConstraint at a limit"""
        if token_id in self._eos_ids:
            return bool(self._matcher.is_accepting())
        is_taken = bool(self._matcher.try_consume_tokens([token_id]))
        if not is_taken and self._matcher.is_error():
            raise InvalidConstraint(_plain_words(self._matcher.get_error()))
        return is_taken

    def fill(self, mask: np.ndarray) -> None:
        """Set the bits of tokens that may follow. Raises: InvalidConstraint at a limit. Mutates:
        mask"""
        if self._matcher.is_stopped():
            for token_id in self._eos_ids:
                mask[token_id // 32] |= 1 << token_id % 32
            return
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise InvalidConstraint(_plain_words(self._matcher.get_error()))

    def is_complete(self) -> bool:
        """Return whether only the end may follow."""
        return bool(self._matcher.is_stopped())

    def forced(self) -> Sequence[int]:
        """Return tokens that must follow, if they are the tokenizer's own."""
        self._words.is_exact = True
        found: list[int] = self._matcher.compute_ff_tokens()
        return found if self._words.is_exact else ()

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""
        self._matcher.rollback(num_tokens)


class _Lark:
    """Writes a constraint as a Lark grammar; terminals get names, everything else is inline."""

    def __init__(self, special: Mapping[str, int], *, has_long: bool) -> None:
        self._special = special
        self._has_long = has_long
        self._lines: list[str] = []
        self._terminals: dict[str, str] = {}
        self._lexemes: frozenset[Node] = frozenset()

    def grammar(self, constraint: Constraint) -> str:
        """Return the whole grammar."""
        start = self._part(constraint)
        return "\n".join(["%llguidance {}", f"start: {start}", *self._lines])

    def _part(self, constraint: Constraint) -> str:
        match constraint:
            case Literal(text):
                return self._literal(text)
            case JsonSchema(schema, whitespace):
                return self._json(schema, whitespace)
            case Regex(regex):
                return self._named("TEXT", _slashed(whole_text(regex)))
            case FreeText(without, grammar):
                body = self._free_body(grammar)
                if not body:
                    return self._rules(avoiding(read_gbnf(grammar), without))
                return self._named("FREE", _free(without, body))
            case Grammar(text, "lark"):
                check_anchors(text)
                return self._named("grammar", "%lark {\n" + text + "\n}")
            case Grammar(text):
                return self._rules(read_gbnf(text))
            case Concat(parts):
                return "( " + " ".join(self._in_order(parts)) + " )"
            case Choice(parts) if self._are_plain(parts):
                # One terminal: as alternatives of a rule, many would pass the parser's limits.
                texts = [json.dumps(part.text) for part in parts if isinstance(part, Literal)]
                return self._named("CHOICE", " | ".join(texts))
            case Choice(parts):
                return "( " + " | ".join(map(self._part, parts)) + " )"
            case Repeat(part, minimum, maximum):
                bounds = f"{minimum},{'' if maximum is None else maximum}"
                return f"( {self._part(part)} ){{{bounds}}}"

    def _json(self, schema: dict[str, Any], whitespace: str) -> str:
        """Return a name for the values of a schema. The library computes in doubles; if those
        cannot represent the schema's numbers, our own rules are used. Raises: InvalidConstraint"""
        try:
            narrowed = within_doubles(schema)
        except InvalidConstraint:
            if all(_is_in_rules(node) for _, node in nodes(schema)):
                return self._rules(JsonGrammar(schema, whitespace).rules)
            narrowed = within_doubles(schema, is_drawn=True)
        return self._named(
            "json", "%json " + json.dumps(as_json(narrowed, whitespace, self._has_long))
        )

    def _rules(self, rules: Mapping[str, Node]) -> str:
        """Return a name for the grammar of these rules.

        The library's lexer takes the longest match of a terminal, so `[a-z]* "b"` as two terminals
        could never end. A grammar is one terminal if it is a regular expression; otherwise its
        terminals are single characters, and what no lexer can misread.
        """
        whole = inlined(rules)
        if whole is not None:
            return self._named("TEXT", _slashed(written(whole)))
        number = len(self._lines)
        names = {name: f"rule_{number}_{i}" for i, name in enumerate(rules)}
        marked, self._lexemes = with_lexemes(rules)
        for name, node in marked.items():
            self._lines.append(f"{names[name]}: {self._rule_body(node, names)}")
        return names[ROOT]

    def _rule_body(self, node: Node, names: Mapping[str, str]) -> str:
        if isinstance(node, Chars) or node in self._lexemes:
            text = _slashed(written(node))
            if text not in self._terminals:
                self._terminals[text] = self._named("LEXEME", text)
            return self._terminals[text]
        match node:
            case Rule(name):
                return names[name]
            case Cat(()) | Many(most=0):
                return '""'
            case Cat(parts):
                return " ".join(self._rule_body(part, names) for part in parts)
            case Or(parts):
                return "( " + " | ".join(self._rule_body(part, names) for part in parts) + " )"
            case Many(part, minimum, maximum):
                inner = self._rule_body(part, names)
                return f"( {inner} ){{{minimum},{'' if maximum is None else maximum}}}"
        raise InvalidConstraint("a grammar has no anchors")

    @staticmethod
    def _free_body(grammar: str) -> str:
        """Return the expression of free text, without the words that it avoids; "" if its grammar
        is not a regular expression."""
        if not grammar:
            return "(?s:.*)"
        whole = inlined(read_gbnf(grammar))
        return f"(?:{written(whole)})" if whole else ""

    def _in_order(self, parts: Sequence[Constraint]) -> Iterator[str]:
        """Yield the parts one after the other. Free text is greedy, including the beginning of the
        word that ends it; if that word follows, both become one lazy rule."""
        rest = list(parts)
        while rest:
            match rest:
                case [FreeText(words, grammar), Literal(text), *others] if _ending(words, text):
                    word, *more = _ending(words, text)
                    free = self._free_body(grammar)
                    if not free or any(w in word for w in self._special):
                        yield self._part(rest[0])
                        rest = [Literal(text), *others]
                        continue
                    body = _slashed(f"{free}{_escaped(word)}")
                    more = [word, *more] if grammar else more
                    if more:
                        early = "|".join(map(_escaped, more))
                        body += " & ~" + _slashed(f"(?s:.*)({early})(?s:.+)")
                    yield self._named("until[lazy]", self._named("UNTIL", body))
                    rest = [Literal(text[len(word) :]), *others]
                case [part, *others]:
                    if others and _ends_in_free_text(part):
                        raise InvalidConstraint("nothing says where free text ends")
                    yield self._part(part)
                    rest = others

    def _are_plain(self, parts: Sequence[Constraint]) -> bool:
        """Return whether parts are texts without special tokens, and not empty."""
        return bool(parts) and all(
            isinstance(part, Literal)
            and part.text
            and not any(word in part.text for word in self._special)
            for part in parts
        )

    def _named(self, name: str, body: str) -> str:
        name, bracket, attribute = name.partition("[")
        rule_name = f"{name}_{len(self._lines)}"
        self._lines.append(f"{rule_name}{bracket}{attribute}: {body}")
        return rule_name

    def _literal(self, text: str) -> str:
        """Return a text in which special tokens are written as token ids."""
        if not text:
            return '""'
        words = sorted((w for w in self._special if w in text), key=len, reverse=True)
        if not words:
            return json.dumps(text)
        pieces = re.split("(" + "|".join(map(re.escape, words)) + ")", text)
        return " ".join(
            f"<[{self._special[p]}]>" if p in self._special else json.dumps(p) for p in pieces if p
        )


def as_json(schema: dict[str, Any], whitespace: str, has_long: bool = False) -> dict[str, Any]:
    """Return a schema in llguidance's format, with the allowed white space between parts.

    Escapes by number are left out: a name written with one would pass for another name.
    """
    said: dict[str, Any] = {"json_allowed_escapes": 'nrtbf\\"'}
    said |= {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
    plain = plain_schema(schema, _anchored, has_long=has_long)
    for _, node in list(nodes(plain)):
        # It knows fewer branches to be apart than we do.
        if "oneOf" in node and "anyOf" not in node and are_apart(plain, node["oneOf"]):
            assert isinstance(node, dict)
            node["anyOf"] = node.pop("oneOf")
    return {**plain, "x-guidance": said}


def _is_in_rules(node: Mapping[str, Any]) -> bool:
    """Return whether rules of ours express every keyword of a node."""
    return not set(node) & VALIDATING - json_grammar.KEYWORDS


def _anchored(pattern: str) -> str:
    """Return a schema's pattern between anchors: with NUL in a set, the library would let quotation
    marks and backslashes through that the set has not. Raises: InvalidConstraint"""
    return f"^(?:{written(without(found_within(pattern), NEVER_WRITTEN))})$"


def _ending(words: Sequence[str], text: str) -> list[str]:
    """Return the words that free text must not contain, the one that ends it first; none if the
    text begins with none of them."""
    first = next((word for word in words if text.startswith(word)), None)
    return [] if first is None else [first, *(word for word in words if word != first)]


def _ends_in_free_text(constraint: Constraint) -> bool:
    """Return whether free text may be the last part: it would take what follows it, too."""
    match constraint:
        case FreeText():
            return True
        case Concat(parts):
            return bool(parts) and _ends_in_free_text(parts[-1])
        case Choice(parts):
            return any(map(_ends_in_free_text, parts))
        case Repeat(part):
            return _ends_in_free_text(part)
    return False


def _is_unwritten(value: Any) -> bool:
    """Return whether a text within a value has a character that is never written."""
    match value:
        case str():
            return _IS_NEVER_WRITTEN.search(value) is not None
        case list():
            return any(map(_is_unwritten, value))
        case dict():
            return any(_is_unwritten(k) or _is_unwritten(v) for k, v in value.items())
    return False


def _plain_words(said: str) -> str:
    """Return the library's message, without its state, our grammar and its own options."""
    if "oneOf constraints" in said:
        return "the branches of oneOf are not told apart by type or constant"
    if said.startswith("NoExtensionBias"):
        return "no text that this model can write meets this constraint"
    if "are not disjoint" in said:
        return "two of patternProperties may fit the same name"
    message = re.split(r"\n(?:<state>|<grammar>| *\d+ \|)", said)[0]
    message = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", message)
    return " ".join(message.split())[:500]


def _escaped(word: str) -> str:
    """Return a word as a regular expression; `_slashed` writes its line ends."""
    return re.escape(word).replace("\\\n", "\n")


def _slashed(regex: str) -> str:
    return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", regex).replace("\n", "\\n") + "/"


def _free(without: Sequence[str], body: str) -> str:
    if not without:
        return _slashed(body)
    words = "|".join(map(_escaped, without))
    return f"{_slashed(body)} & ~{_slashed(f'(?s:.*)({words})(?s:.*)')}"
