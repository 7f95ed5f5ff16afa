"""The file of --api-keys-file: names, hashes, scopes and limits of keys, read again on change.

Format: a YAML list of mappings, or JSON lines; the fields are those of `Key`. A key is stored as
its SHA-256, which is safe because `new_key` draws 256 bits: no list of guesses finds it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.durable_files import write_whole

logger = logging.getLogger("dovetail_plugins.gates")
FLAG = "--api-keys-file"
PREFIX = "sha256:"
LOOK_PERIOD_S = 1.0
"""How often the file is looked at."""
NAME = re.compile(r"[\w.@:+-]{1,128}", re.ASCII)
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_PRIVATE = 0o600


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an owner may use; None: as much as there is.

    `requests` are those that are being answered, `queued` their prompts without a first token.
    `tokens_per_minute` and `tokens_per_day` (UTC) count prompts and answers. `prompt_tokens` limits
    each prompt, `answer_tokens` shortens each answer.
    """

    requests: int | None = None
    queued: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    prompt_tokens: int | None = None
    answer_tokens: int | None = None


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key, and what it allows. Without a `hash` it is an owner that --owner-header may name.

    `weight` is its share among the owners under the policy `fair`. `models` and `families` are
    patterns of names (*, ?), empty: all. `admin` may change the server and see all accounts.
    Smaller priorities than `min_priority` are raised to it (null: none are).
    """

    name: str
    hash: str = ""
    weight: float = 1.0
    admin: bool = False
    min_priority: int | None = 0
    models: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    limits: Limits = Limits()
    model_limits: dict[str, Limits] = {}


def new_key() -> str:
    """Return a new random key."""
    return f"sk-{secrets.token_urlsafe(32)}"


def hash_of(key: str) -> str:
    """Return what is stored of a key."""
    return PREFIX + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class KeysFile:
    """The keys of a file. Raises: ConfigError if the file cannot be read at the start; later the
    last good keys stay, and the log says why."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()
        self._looked_s = time.monotonic()
        self._stamp = self._stamped()
        self._set(read_keys(self._path))

    def by_hash(self, digest: str) -> Key | None:
        """Return the key with this hash (`hash_of`), if there is one."""
        self._look()
        return self._by_hash.get(digest)

    def by_name(self, name: str) -> Key | None:
        """Return the key of this name, if there is one."""
        self._look()
        return self._by_name.get(name)

    def _set(self, keys: Iterable[Key]) -> None:
        self._by_name = {key.name: key for key in keys}
        self._by_hash = {key.hash: key for key in self._by_name.values() if key.hash}

    def _stamped(self) -> tuple[int, ...]:
        """Return what changes with the file; () if it is gone."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _look(self) -> None:
        """Read the file again if it has changed. Mutates: self"""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_PERIOD_S:
            return
        self._looked_s = now_s
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._set(read_keys(self._path))
        except ConfigError as error:
            logger.error("the keys stay as they were: %s", error)
        else:
            logger.info("%s was read again: %d keys", self._path, len(self._by_name))


def read_keys(path: Path) -> list[Key]:
    """Return the keys of a file. Raises: ConfigError naming the entry at fault"""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}.",
            where=FLAG,
            fix=f"`dovetail keys add NAME --file {path}` makes it.",
        ) from error
    rows = _json_lines(path, text) if is_json_lines(text) else _yaml(path, text)
    keys = [_key(path, number, row) for number, row in enumerate(rows, 1)]
    for what in ("name", "hash"):
        seen: set[str] = set()
        for key in keys:
            value = getattr(key, what)
            if value and value in seen:
                raise ConfigError(f"two keys have the {what} {value}.", where=str(path))
            seen.add(value)
    return keys


def is_json_lines(text: str) -> bool:
    """Return whether a keys file is JSON lines, not YAML."""
    return text.lstrip().startswith("{")


def _json_lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(json_value(line))
        except InvalidJson as error:
            raise ConfigError(f"line {number} {error}", where=str(path)) from error
    return rows


def _yaml(path: Path, text: str) -> list[Any]:
    import yaml

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"is not YAML: {error}.", where=str(path)) from error
    if found is None:
        return []
    if not isinstance(found, list):
        raise ConfigError("is not a list of keys.", where=str(path), fix="write `- name: NAME`.")
    return found


def _key(path: Path, number: int, row: Any) -> Key:
    """Return an entry as a key. Raises: ConfigError"""
    where = f"{path}, key {number}"
    try:
        key = msgspec.convert(row, Key)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}.", where=where) from error
    if not NAME.fullmatch(key.name):
        fix = "use 1 to 128 of A-Z a-z 0-9 . _ @ : + -"
        raise ConfigError(f"{key.name!r} is not a name of a key.", where=where, fix=fix)
    if key.hash and not _HASH.fullmatch(key.hash):
        fix = "write `sha256:` and 64 hexadecimal digits, or use `dovetail keys add`."
        raise ConfigError(f"{key.hash!r} is not a hash.", where=where, fix=fix)
    if not 0 < key.weight < float("inf"):
        raise ConfigError(f"the weight {key.weight} is not above 0.", where=where)
    for limits in (key.limits, *key.model_limits.values()):
        for name in limits.__struct_fields__:
            value = getattr(limits, name)
            if value is not None and value < 1:
                raise ConfigError(f"the limit {name} is {value}, below 1.", where=where)
    return key


def add_key(path: Path, fields: dict[str, Any]) -> None:
    """Add a key at the end of a file, which need not exist; its other bytes stay. Only the user may
    read a new file. Raises: ConfigError for a name that is taken, OSError"""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    keys = read_keys(path) if path.exists() else []
    if any(key.name == fields["name"] for key in keys):
        raise ConfigError(f"there is a key {fields['name']} already.", where=str(path))
    _key(path, len(keys) + 1, fields)
    text += "\n" if text and not text.endswith("\n") else ""
    text += _json_row(fields) if is_json_lines(text) else _yaml_row(fields)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else _PRIVATE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode(), mode=mode)
    read_keys(path)


def _json_row(fields: dict[str, Any]) -> str:
    return msgspec.json.encode(fields).decode() + "\n"


def _yaml_row(fields: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump([fields], sort_keys=False, allow_unicode=True)
