"""An adapter's changes to token tables and heads, and the tokens it adds.

A model's vocabulary ends at V; higher token ids are each adapter's own. Each needs a vector in the
token table, and one in the head if it may be drawn.
Shape letters: V vocabulary, E hidden size, r rank, n added tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterWeights, ModuleChange
from dovetail.interfaces.data.adapter_spec import AdapterSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.layers.adapters.tables import TableChange
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.logits import LogitsHead

Table = VocabParallelEmbedding | LogitsHead
FLAG = "--lora-extra-vocab-size"
INPUTS, OUTPUTS = "input_embeddings", "output_embeddings"
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""A tokenizer folder contains one of these files."""
ADDED_TOKENS = "added_tokens.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTableChange:
    """A table's change as read, and its location."""

    where: str
    change: ModuleChange


class TableReader:
    """The tables of one rank's model. `keep` converts tensors to the form that slots hold."""

    def __init__(
        self,
        tables: Mapping[str, Table],
        spec: AdapterSpec,
        run: RunSpec,
        keep: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._tables = tables
        self._spec = spec
        self._run = run
        self._keep = keep
        self._vocab_size = run.model.vocab_size
        inputs = (p for p, one in tables.items() if isinstance(one, VocabParallelEmbedding))
        self.token_table = next(inputs, "")
        self.head = next((p for p, one in tables.items() if isinstance(one, LogitsHead)), "")

    def changes(
        self, weights: AdapterWeights, given: Mapping[str, ReadTableChange]
    ) -> tuple[dict[str, TableChange], int]:
        """Return an adapter's change to each table, and how many tokens it adds. `given` are its
        changes by table path. Raises: ConfigError"""
        whole = dict(self._with_added(weights, given))
        shared = whole.get(self.token_table)
        if self._is_tied and self.head not in whole and shared and shared.change.is_tied:
            whole[self.head] = ReadTableChange(where=shared.where, change=_as_head(shared.change))
        found = {path: self._change(path, one) for path, one in whole.items()}
        if self._is_tied and self.token_table in found:
            self._tie_added(found)
        counts = {path: one.num_added(self._vocab_size) for path, one in found.items()}
        num_added = max(counts.values(), default=0)
        if not num_added:
            return found, 0
        path = max(counts, key=lambda one: counts[one])
        self._verify_added(weights.added_file or whole[path].where, num_added)
        if self.token_table and counts.get(self.token_table, 0) < num_added:
            raise ConfigError(
                f"the head has vectors of {num_added} added tokens, and the token table of "
                f"{counts.get(self.token_table, 0)}.",
                where=whole[path].where,
                fix="save the token table with the adapter too.",
            )
        return found, num_added

    def names_tokens(self, changes: Mapping[str, TableChange]) -> bool:
        """Return whether an adapter has its own token vectors: then its tokens may also have other
        meanings."""
        table = changes.get(self.token_table, TableChange())
        return table.weight is not None or table.ids is not None

    @property
    def _is_tied(self) -> bool:
        head = self._tables.get(self.head)
        return isinstance(head, LogitsHead) and head.tied is not None

    def _with_added(
        self, weights: AdapterWeights, given: Mapping[str, ReadTableChange]
    ) -> Mapping[str, ReadTableChange]:
        """Return the changes, including vectors of added tokens from a separate file.
        Raises: ConfigError"""
        found = dict(given)
        for path, name, rows in (
            (self.token_table, INPUTS, weights.added_inputs),
            (self.head, OUTPUTS, weights.added_outputs),
        ):
            if rows is None or not path:
                continue
            where = f"{weights.added_file}: {name}"
            if rows.dim() != 2 or rows.shape[1] != self._tables[path].size:
                raise ConfigError(
                    f"its shape is {list(rows.shape)}, and vectors of the model have "
                    f"{self._tables[path].size} numbers.",
                    where=where,
                    fix="use an adapter that was trained for this model.",
                )
            before = found.get(path, ReadTableChange(where=where, change=ModuleChange()))
            ids = torch.arange(len(rows)) + self._vocab_size
            change = _with_rows(before.change, ids, rows)
            found[path] = ReadTableChange(where=before.where, change=change)
        return found

    def _tie_added(self, found: dict[str, TableChange]) -> None:
        """Give a head that shares the token table the table's added vectors, unless it has its own:
        a model with an enlarged vocabulary does the same. Mutates: found"""
        table, head = found[self.token_table], found.get(self.head, TableChange())
        if table.ids is None or table.rows is None or head.num_added(self._vocab_size):
            return
        is_added = table.ids >= self._vocab_size
        ids, rows = table.ids[is_added], table.rows[is_added]
        if len(ids) and head.ids is not None and head.rows is not None:
            ids, rows = torch.cat([head.ids, ids]), torch.cat([head.rows, rows])
        if len(ids):
            found[self.head] = replace(head, ids=ids, rows=rows)

    def _change(self, path: str, given: ReadTableChange) -> TableChange:
        """Return a table's change in the form that slots hold. Raises: ConfigError"""
        layer, change, where = self._tables[path], given.change, given.where
        is_head = isinstance(layer, LogitsHead)
        vocab = vocab_rows(layer)
        others = (change.magnitude, change.output_scale, change.shift, change.bias)
        if any(one is not None for one in others) or change.input_scale is not None:
            raise ConfigError("only low-rank changes of a table are supported.", where=where)
        weight = change.weight
        if weight is not None:
            self._fits(where, weight, vocab, layer.size)
            if len(weight) > vocab:
                own = set(() if change.row_ids is None else change.row_ids.tolist())
                numbers = [i for i in range(vocab, len(weight)) if i not in own]
                added = torch.tensor(numbers, dtype=torch.int64)
                change = _with_rows(change, added, weight[added])
            weight = self._keep(weight[:vocab])
        ids, rows = self._rows(where, change, vocab, layer.size)
        built = TableChange(weight=weight, ids=ids, rows=rows)
        if change.down is None or change.up is None:
            return built
        up = change.up * change.scale
        first, second = (up, change.down) if is_head else (change.down.t(), up.t())
        max_rows = vocab if ids is None else max(vocab, int(ids[-1]) + 1)
        self._fits(where, first, vocab, first.shape[1], max_rows=max_rows)
        self._fits(where, second, second.shape[0], layer.size)
        return replace(built, first=self._keep(first), second=self._keep(second))

    def _rows(
        self, where: str, change: ModuleChange, vocab: int, size: int
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the rows that a change replaces or adds, in ascending order. Raises: ConfigError
        for vectors of the wrong size, or a missing vector of an added token"""
        if change.row_ids is None or change.rows is None or not len(change.row_ids):
            return None, None
        if change.rows.dim() != 2 or change.rows.shape[1] != size:
            raise ConfigError(
                f"the vectors of tokens have the shape {list(change.rows.shape)}, and the model's "
                f"{size} numbers each.",
                where=where,
                fix="use an adapter that was trained for this model.",
            )
        places = {token_id: place for place, token_id in enumerate(change.row_ids.tolist())}
        ids = sorted(places)
        missing = [i for i in range(vocab, ids[-1]) if i not in places]
        if missing:
            raise ConfigError(
                f"the adapter adds the token {ids[-1]}, and there is no vector of the token "
                f"{missing[0]}; the model's vocabulary ends at {vocab - 1}.",
                where=where,
                fix="save the vectors of all added tokens (save_embedding_layers=True in PEFT).",
            )
        rows = change.rows[[places[i] for i in ids]]
        return torch.tensor(ids, dtype=torch.int64), self._keep(rows)

    def _fits(
        self, where: str, tensor: torch.Tensor, vocab: int, size: int, max_rows: int | None = None
    ) -> None:
        """Raises: ConfigError for a tensor that is not [vocab or more, size]; `max_rows`: the
        maximum number of rows"""
        is_fitting = tensor.dim() == 2 and tensor.shape[0] >= vocab and tensor.shape[1] == size
        if is_fitting and (max_rows is None or tensor.shape[0] <= max_rows):
            return
        raise ConfigError(
            f"its shape is {list(tensor.shape)}, and the model's [{vocab}, {size}].",
            where=where,
            fix="use an adapter that was trained for this model.",
        )

    def _verify_added(self, where: str, count: int) -> None:
        """Raises: ConfigError if `count` added tokens cannot be served"""
        max_added = self._spec.max_added_tokens
        if count > max_added:
            raise ConfigError(
                f"the adapter adds {count} tokens, and {max_added} is the most.",
                where=where,
                fix=f"start with {FLAG} {count}.",
            )
        if self._run.rank.num_stages > 1:
            raise ConfigError(
                "the adapter adds tokens, and each stage of a pipeline sees the vectors of its own "
                "layers alone.",
                where=where,
                fix="start without --pipeline-parallel-size, or merge it into the checkpoint.",
            )
        if self._run.drafts is not None:
            raise ConfigError(
                "the adapter adds tokens, which the model that drafts does not know.",
                where=where,
                fix="start with another method in --speculative-config, such as ngram, or without.",
            )


def vocab_rows(table: Table) -> int:
    """Return the number of tokens in a table, over all ranks."""
    return table.vocab_size if isinstance(table, LogitsHead) else table.part.full


def verify_tokenizer(folder: Path, spec: AdapterSpec, num_tokens: int) -> bool:
    """Return whether a folder has a tokenizer for its adapter's tokens. Raises: ConfigError for one
    that cannot be read, or has more than `num_tokens` tokens"""
    if spec.tokenizer is None or not spec.max_added_tokens:
        return False
    if not any((folder / name).is_file() for name in TOKENIZERS):
        if (folder / ADDED_TOKENS).is_file():
            raise ConfigError(
                "the added tokens are named, and the tokenizer that they belong to is not there.",
                where=str(folder / ADDED_TOKENS),
                fix="save the whole tokenizer beside the adapter.",
            )
        return False
    tokenizer: Tokenizer = registry.make(spec.tokenizer, str(folder))
    size = tokenizer.facts().vocab_size
    if size > num_tokens:
        raise ConfigError(
            f"the tokenizer has {size} tokens, and the model with this adapter {num_tokens}.",
            where=str(folder),
            fix="save the vectors of all added tokens with the adapter.",
        )
    return True


def _with_rows(change: ModuleChange, ids: torch.Tensor, rows: torch.Tensor) -> ModuleChange:
    """Return a change with more rows. Shapes: ids [m], rows [m, E]"""
    if change.row_ids is not None and change.rows is not None:
        ids, rows = torch.cat([change.row_ids, ids]), torch.cat([change.rows, rows])
    return replace(change, row_ids=ids, rows=rows)


def _as_head(change: ModuleChange) -> ModuleChange:
    """Return a token table's change as the change of a head that shares it: y = x (A B)^T."""
    if change.down is None or change.up is None:
        return change
    return replace(change, down=change.up.t(), up=change.down.t())
