"""Accounts: they equal the usage that clients see, with several processes, kills and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.errors import ConfigError
from dovetail.interfaces.stats import Caller, StepStats
from dovetail_plugins.accounts import journal as journals
from dovetail_plugins.accounts.journal import Entry, Journal
from dovetail_plugins.accounts.ledger import Ledger
from dovetail_plugins.accounts.report import rows_of
from dovetail_plugins.stat_loggers import accounts as loggers
from dovetail_plugins.stat_loggers.accounts import Accounts
from dovetail_testing.fakes.objects import request_stats, step_stats
from support.keys import bearer, write_keys
from support.samples import sample_of
from support.serving import app_for, send
from support.whole_app import whole_client

SCRIPT = Path(__file__).parents[2] / "support" / "accounting_process.py"
KILLS = sample_of(20, 3)
TODAY = datetime.now(UTC).date().isoformat()


def opened(folder: Path, model: str = "m") -> Accounts:
    return Accounts(Accounts.Options(folder=str(folder)), model, 100)


def entry(owner: str = "ann", day: str = "2026-01-01", model: str = "m", **more: int) -> Entry:
    counts = {"prompt": 10, "cached": 4, "generated": 3} | more
    return Entry(day=day, owner=owner, model=model, **counts)


def sums(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return requests and tokens by owner."""
    rows = rows_of(Ledger(folder), by=["owner"])
    return {
        str(row.owner): (row.requests, row.prompt_tokens, row.cached_tokens, row.generated_tokens)
        for row in rows
    }


class Process:
    """A process that accounts for requests; what it said is known after it is killed."""

    def __init__(self, folder: Path, name: str) -> None:
        words = [sys.executable, str(SCRIPT), str(folder), "50", name]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.said.extend(self._process.stdout)

    def kill(self) -> tuple[list[str], list[str]]:
        """Kill it; return the requests that it began and those that it ended."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        whole = [line.strip() for line in self.said if line.endswith("\n")]
        begun = [line[2:] for line in whole if line.startswith("? ")]
        return begun, [line[2:] for line in whole if line.startswith("+ ")]


@pytest.mark.timeout(240)
def test_killed_processes_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    """Two processes at a time, killed at random moments: what clients were told is accounted for,
    and beyond that at most the one request of each kill that was just being written."""
    chance, told, begun = random.Random(0), Counter[str](), Counter[str]()
    others: list[Process] = []
    for kill in range(KILLS):
        others.append(Process(tmp_path, f"p{kill}"))
        deadline_s = time.monotonic() + 60
        while "ready\n" not in others[-1].said and time.monotonic() < deadline_s:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.5)
        if len(others) == 2 or kill == KILLS - 1:
            started, ended = others.pop(0).kill()
            begun.update(started), told.update(ended)
    for other in others:
        started, ended = other.kill()
        begun.update(started), told.update(ended)
    Ledger(tmp_path).read_abandoned()
    found = sums(tmp_path)
    assert told.total() > 500 * KILLS
    assert told.total() <= sum(row[0] for row in found.values()) <= told.total() + KILLS
    least, most = _by_owner(told), _by_owner(begun)
    for owner, numbers in found.items():
        pairs = zip(least[owner], numbers, most[owner], strict=True)
        assert all(low <= number <= high for low, number, high in pairs), owner
    assert not list(tmp_path.glob("journal-*"))


def _by_owner(lines: Counter[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line, count in lines.items():
        owner, *numbers = line.split()
        row = found.setdefault(owner, [0, 0, 0, 0])
        for index, value in enumerate([1, *map(int, numbers)]):
            row[index] += count * value
    return found


def test_a_crash_between_the_sums_and_the_journal(tmp_path: Path) -> None:
    """A journal whose entries are in the ledger already is not read again."""
    ledger, journal = Ledger(tmp_path), Journal(tmp_path)
    for _ in range(3):
        journal.append(entry())
    (path,) = journal.paths()
    ledger.read([path])
    journal.append(entry())
    with path.open("ab") as file:
        file.write(b'["2026-01-01","ann","m",1')  # what a killed process was writing
    journal._current.file.close()  # its lock is gone
    for _ in range(2):
        ledger.read_abandoned()
    assert sums(tmp_path) == {"ann": (4, 40, 16, 12)}
    assert not path.exists()


def test_a_transaction_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, journal = Ledger(tmp_path), Journal(tmp_path)
    journal.append(entry())
    with monkeypatch.context() as patch:
        patch.setattr("dovetail_plugins.accounts.ledger._ADD_DEVICE", "no SQL")
        with pytest.raises(sqlite3.Error):
            ledger.read(journal.paths(), {("2026-01-01", "m"): 1.0})
    assert sums(tmp_path) == {}
    ledger.read(journal.paths())
    assert sums(tmp_path) == {"ann": (1, 10, 4, 3)}
    journal.close()


def test_long_journals_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MAX_BYTES", 200)
    accounts = opened(tmp_path)
    for _ in range(50):
        accounts.request(request_stats())
        accounts.read()
        assert len(list(tmp_path.glob("journal-*"))) <= 2
    accounts.close()
    assert sums(tmp_path) == {"": (50, 600, 200, 150)}
    assert not list(tmp_path.glob("journal-*"))
    with sqlite3.connect(tmp_path / "accounts.sqlite3") as db:
        assert db.execute("SELECT COUNT(*) FROM journals").fetchone() == (0,)


def test_seconds_are_divided_by_computed_tokens(tmp_path: Path) -> None:
    accounts = opened(tmp_path)
    for owner, prompt, cached, generated in (("ann", 90, 10, 20), ("bob", 300, 100, 100)):
        stats = replace(
            request_stats(), caller=Caller(owner=owner), prompt_tokens=prompt,
            cached_tokens=cached, generated_tokens=generated,
        )  # fmt: skip
        accounts.request(stats)
    for _ in range(4):
        accounts.step(step_stats(device_s=1.0))
    accounts.step(StepStats(num_running=0, num_waiting=0, kv_usage=0.0))
    accounts.close()
    rows = {row.owner: row.device_seconds for row in rows_of(Ledger(tmp_path))}
    assert rows == {"ann": 1.0, "bob": 3.0}
    (all_of_it,) = rows_of(Ledger(tmp_path), by=[])
    assert (all_of_it.requests, all_of_it.device_seconds) == (2, 4.0)


def test_what_is_selected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger, journal = Ledger(tmp_path), Journal(tmp_path)
    for one in (
        entry(), entry("ann/u1"), entry("anna"), entry(day="2026-01-03"), entry(model="other")
    ):  # fmt: skip
        journal.append(one)
    ledger.read(journal.paths())
    journal.close()
    assert {row.owner for row in rows_of(ledger, owner="ann")} == {"ann", "ann/u1"}
    assert [row.requests for row in rows_of(ledger, by=["model"])] == [4, 1]
    days = rows_of(ledger, by=["day"], start="2026-01-02", end="2026-01-03")
    assert [(row.day, row.requests) for row in days] == [("2026-01-03", 1)]
    words = ["usage", "--folder", str(tmp_path), "--by", "owner", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["owner"] for row in told] == ["ann", "ann/u1", "anna"]
    assert main(words[:-1]) == 0
    assert "anna" in capsys.readouterr().out
    assert main([*words, "--by", "week"]) == 2
    assert "'week' is not a part" in capsys.readouterr().err
    assert main(["usage", "--folder", str(tmp_path / "none")]) == 2


def test_metrics_of_owners_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "MAX_OWNERS", 2)
    accounts = opened(tmp_path)
    for number in range(5):
        accounts.request(replace(request_stats(), caller=Caller(owner=f"bounded{number}")))
    accounts.close()
    labels = {
        sample.labels["owner"]
        for family in loggers.REQUESTS.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert {"bounded0", "bounded1", "other"} <= labels and "bounded2" not in labels


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        opened(tmp_path / "file")


def test_accounts_are_the_sum_of_usage(tmp_path: Path) -> None:
    """Through the server: streams, several choices, stop strings, chat, cached prefixes."""
    keys = write_keys(tmp_path / "keys.jsonl", ann={}, bob={}, root={"admin": True})
    told: dict[str, list[int]] = {"ann": [0, 0, 0, 0], "bob": [0, 0, 0, 0]}

    def note(name: str, usage: dict[str, object]) -> None:
        cached = usage["prompt_tokens_details"]["cached_tokens"]  # type: ignore[index]
        numbers = [1, usage["prompt_tokens"], cached, usage["completion_tokens"]]
        told[name] = [a + int(b) for a, b in zip(told[name], numbers, strict=True)]  # type: ignore[call-overload]

    async def one(client: httpx.AsyncClient, name: str, number: int) -> None:
        message = {"role": "user", "content": f"What is the capital of France? {number % 3}"}
        body = {"messages": [message], "max_tokens": 8, "n": 1 + number % 2, "seed": number}
        if number % 3 == 0:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if number % 5 == 0:
            body |= {"stop": ["a"]}
        answer = await client.post("/v1/chat/completions", json=body, headers=bearer(name))
        assert answer.status_code == 200, answer.text
        if body.get("stream"):
            datas = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
            note(name, json.loads(datas[-1])["usage"])
        else:
            note(name, answer.json()["usage"])

    async def work() -> None:
        flags = ["--stat-loggers", "accounts", "--api-keys-file", keys]
        options = {"stat_logger": {"accounts": {"folder": str(tmp_path / "accounts")}}}
        option = ["--plugin-options", json.dumps(options)]
        async with whole_client(DEMO_PATH, *flags, *option) as client:
            for number in range(12):
                await asyncio.gather(one(client, "ann", number), one(client, "bob", number))
            shown = {}
            for name in ("ann", "bob"):
                answer = await client.get("/v1/usage", params={"by": "owner"}, headers=bearer(name))
                (row,) = answer.json()["data"]
                assert row["owner"] == name
                shown[name] = [row["requests"], row["prompt_tokens"], row["cached_tokens"],
                               row["generated_tokens"]]  # fmt: skip
            assert shown == told
            every = await client.get("/v1/usage", headers=bearer("root"))
            assert {row["owner"] for row in every.json()["data"]} == {"ann", "bob"}
            assert sum(row["device_seconds"] for row in every.json()["data"]) > 0
            query = {"owner": "bob"}
            answer = await client.get("/v1/usage", params=query, headers=bearer("ann"))
            assert answer.status_code == 403
            for query in ({"by": "week"}, {"start": "yesterday"}):
                answer = await client.get("/v1/usage", params=query, headers=bearer("ann"))
                assert answer.status_code == 400
            metrics = (await client.get("/metrics", headers=bearer("root"))).text
            assert 'dovetail:owner_requests_total{owner="ann"}' in metrics

    asyncio.run(work())
    assert {name: list(row) for name, row in sums(tmp_path / "accounts").items()} == told


def test_without_accounts_the_route_says_so() -> None:
    app, _ = app_for()
    assert send(app, "GET", "/v1/usage").status_code == 404
