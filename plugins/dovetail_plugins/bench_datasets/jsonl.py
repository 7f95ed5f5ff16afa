"""Prompts from a file of JSON lines: {"prompt": TEXT or [IDS], "output_tokens": N}."""

from __future__ import annotations

from itertools import islice
from typing import Any, ClassVar

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchDataset, BenchPrompt, DatasetQuery
from dovetail.interfaces.plugin import Info
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.bench_datasets import _files

OUTPUT_TOKENS = 128


class Jsonl(BenchDataset):
    """Reads one prompt per line; "output_tokens" may be left out, --output-len wins over it."""

    info = Info(summary='JSON lines: {"prompt": text or ids, "output_tokens": optional}')
    sample: ClassVar[str] = '{"prompt": "One two"}\n{"prompt": "Three", "output_tokens": 7}\n'

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Object to lengths: they are the file's."""
        return _files.objections(query)

    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return prompts in an order drawn by the seed. Raises: ConfigError naming the line."""
        text = _files.read(query)
        lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
        drawn = islice(_files.picked(lines, query), query.num_prompts)
        return [_prompt(line, query, f"{query.path}:{number}") for number, line in drawn]


def _prompt(line: str, query: DatasetQuery, where: str) -> BenchPrompt:
    try:
        entry = json_value(line)
    except InvalidJson as error:
        raise ConfigError(str(error), where=where) from error
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if isinstance(prompt, list) and prompt and all(isinstance(i, int) for i in prompt):
        if query.needs_text:
            raise ConfigError(
                "token ids cannot be sent to a chat endpoint.",
                where=where,
                fix="use --endpoint /v1/completions, or prompts of text.",
            )
        prompt = tuple(prompt)
    elif not isinstance(prompt, str) or not prompt:
        raise ConfigError('has no "prompt" of text or token ids.', where=where)
    num_tokens = entry.get("output_tokens", OUTPUT_TOKENS)
    if not isinstance(num_tokens, int) or num_tokens < 1:
        raise ConfigError(f"output_tokens must be a whole number, not {num_tokens!r}.", where=where)
    return BenchPrompt(
        prompt=prompt,
        output_tokens=query.output_tokens or num_tokens,
        prompt_tokens=_files.count(prompt, query) if isinstance(prompt, str) else len(prompt),
    )
