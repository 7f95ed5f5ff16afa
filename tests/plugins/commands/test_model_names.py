"""`list`, `rm`, `ps`, `stop` and `completion`: names in and out, and nothing of others deleted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dovetail.cli.main import main
from dovetail.server.launch import records
from dovetail_plugins.commands import completion
from dovetail_plugins.commands._running import running_servers
from dovetail_plugins.commands.ps import uptime
from support.model_stores import GGUF, add_to_ollama, write_cached

WHOLE = {"config.json": b"{}", "model.safetensors": b"w" * 10}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give stores and a runtime folder of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def lines_of(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> list[str]:
    assert main(words) == status
    told = capsys.readouterr()
    return (told.out if status == 0 else told.err).splitlines()


def test_nothing_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dovetail_plugins")
    assert lines_of(capsys, "list") == [
        "There is no model on this machine. `dovetail pull ORG/MODEL` fetches one."
    ]
    assert lines_of(capsys, "ps")[0].startswith("No server runs here.")
    assert lines_of(capsys, "stop", status=2) == [
        "dovetail: error: dovetail stop: no server runs here."
    ]
    assert lines_of(capsys, "pull", "org/model", status=2)[0] == (
        "dovetail: error: dovetail pull: HF_HUB_OFFLINE forbids fetching anything."
    )
    assert "not a name of the hub" in lines_of(capsys, "pull", "a/b/c:latest", status=2)[0]


def test_a_list_says_what_runs_from_disk(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dovetail_plugins")
    from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
    from dovetail_plugins.inspect import from_disk

    files = {file.name: file.read_bytes() for file in DEMO_PATH.iterdir() if file.is_file()}
    write_cached(places / "hub", "org/demo", files)
    for module in ("dovetail_plugins.platforms.cpu", "dovetail.config.resolve"):
        monkeypatch.setattr(f"{module}.available_bytes", lambda: 3 << 20)
    monkeypatch.setattr(from_disk, "has_disk_room", lambda *_: True)
    for speed, words in ((1e6, ", about "), (None, ".")):
        monkeypatch.setattr(from_disk, "disk_speed", lambda *_, found=speed: found)
        lines = lines_of(capsys, "list")
        assert lines[1].split()[-4:] == ["from", "disk", "hub", "cache"]
        assert lines[2].startswith(f"org/demo runs from disk{words}")
    assert "tokens/s" not in "".join(lines)
    monkeypatch.setattr(from_disk, "has_disk_room", lambda *_: False)
    assert lines_of(capsys, "list")[1].split()[-3:] == ["no", "hub", "cache"]


def test_a_list_has_facts_and_faults(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dovetail_plugins")
    from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

    files = {file.name: file.read_bytes() for file in DEMO_PATH.iterdir() if file.is_file()}
    write_cached(places / "hub", "org/demo", files)
    write_cached(places / "hub", "org/broken", WHOLE)
    add_to_ollama(places / "ollama", "registry.ollama.ai/library/story:latest", GGUF)
    facts = json.loads("\n".join(lines_of(capsys, "list", "--json")))
    assert facts["device"] == "cpu"
    found = {model["name"]: model for model in facts["models"]}
    demo = found["org/demo"]
    assert demo["architecture"].endswith("ForCausalLM")
    assert demo["fits"] is True
    assert demo["bytes"] < demo["needed_bytes"] < facts["free_bytes"]
    assert "config.json" in found["org/broken"]["fault"]
    assert found["story:latest"]["quantization"] == "Q4_K_M"
    lines = lines_of(capsys, "list")
    assert [line.split()[0] for line in lines[:4]] == [
        "NAME",
        "org/broken",
        "org/demo",
        "story:latest",
    ]
    assert lines[1].split()[-3:] == ["no", "hub", "cache"]
    assert lines[4].startswith("org/broken: ")


def test_rm_deletes_only_from_stores_into_which_it_pulls(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = add_to_ollama(places / "ollama", "registry.ollama.ai/library/story:latest", GGUF)
    own = places / "models" / "mine"
    own.mkdir(parents=True)
    for name, content in WHOLE.items():
        (own / name).write_bytes(content)
    assert lines_of(capsys, "rm", "story:latest", "--yes")[0].startswith("story:latest is deleted")
    assert not blob.exists()
    told = lines_of(capsys, "rm", "mine", "--yes", "--model-dir", str(own.parent), status=2)
    assert "in --model-dir" in told[0]
    assert own.is_dir()
    write_cached(places / "hub", "org/model", WHOLE)
    assert "--yes" in lines_of(capsys, "rm", "org/model", status=2)[1]
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["rm", "org/model"]) == 1
    assert "Nothing was deleted." in capsys.readouterr().out
    assert lines_of(capsys, "rm", "org/model", "--yes")[0].startswith("org/model is deleted")
    assert not list((places / "hub").iterdir())
    assert "no model org/model" in lines_of(capsys, "rm", "org/model", "--yes", status=2)[0]


def test_rm_of_one_quantization_keeps_what_others_need(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"m-Q4_0.gguf": GGUF, "m-Q8_0.gguf": GGUF + b"8", "same-F16.gguf": GGUF}
    snapshot = write_cached(places / "hub", "org/model", files)
    lines_of(capsys, "rm", "org/model:Q8_0", "--yes")
    assert sorted(file.name for file in snapshot.iterdir()) == ["m-Q4_0.gguf", "same-F16.gguf"]
    blobs = snapshot.parents[1] / "blobs"
    assert len(list(blobs.iterdir())) == 1
    lines_of(capsys, "rm", "org/model:Q4_0", "--yes")
    assert (snapshot / "same-F16.gguf").read_bytes() == GGUF


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that stands in for a server."""
    with subprocess.Popen([shutil.which("sleep") or "sleep", "60"]) as process:
        yield process
        process.kill()


def record(places: Path, pid: int, started_s: float, name: str = "story") -> Path:
    """Write the record of a server."""
    folder = places / "dovetail"
    folder.mkdir(exist_ok=True)
    file = folder / f"{pid}.json"
    facts = {"pid": pid, "started_s": started_s, "url": "http://127.0.0.1:1", "names": [name]}
    file.write_text(json.dumps(facts | {"path": "/m"}))
    return file


def test_servers_are_known_by_number_and_start(
    places: Path, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    started_s = psutil.Process(sleeper.pid).create_time()
    record(places, sleeper.pid, started_s)
    others = [record(places, os.getpid(), 1.0), places / "dovetail" / "7.json"]
    others[1].write_text("{")
    (facts,) = json.loads("\n".join(lines_of(capsys, "ps", "--json")))
    assert (facts["pid"], facts["names"]) == (sleeper.pid, ["story"])
    assert facts["memory_bytes"] > 0
    assert not any(file.exists() for file in others)
    assert lines_of(capsys, "ps")[1].split()[:3] == [
        str(sleeper.pid),
        "story",
        "http://127.0.0.1:1",
    ]
    assert completion.candidates(["stop", "s"]) == ["story"]
    assert "those are" in lines_of(capsys, "stop", "other", status=2)[1]
    assert "stopped story" in lines_of(capsys, "stop")[0]
    assert not psutil.pid_exists(sleeper.pid)
    assert running_servers() == []


def test_several_servers_are_not_stopped_by_accident(
    places: Path, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    record(places, sleeper.pid, psutil.Process(sleeper.pid).create_time())
    with records.record_removed():
        records.write_record("http://127.0.0.1:2", ["story"], "/m")
        assert "2 servers could be meant" in lines_of(capsys, "stop", "story", status=2)[0]
        assert str(sleeper.pid) in lines_of(capsys, "stop", str(sleeper.pid))[0]
        assert [one.pid for one in running_servers()] == [os.getpid()]
    assert running_servers() == []


def test_a_folder_of_another_user_is_not_read(
    places: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record(places, os.getpid(), psutil.Process().create_time())
    assert len(running_servers()) == 1
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert running_servers() == []
    records.write_record("http://127.0.0.1:2", ["story"], "/m")
    assert "belongs to another user" in caplog.text


def test_uptimes() -> None:
    assert [uptime(s) for s in (0, 59, 61, 3600, 90061)] == [
        "0 s", "59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "some", "none"),
    [
        ([""], {"serve", "pull", "completion"}, {"--help"}),
        (["-"], {"--help", "--version"}, {"serve"}),
        (["bench", ""], {"latency", "serve"}, set()),
        (["serve", "--max-num-s"], {"--max-num-seqs"}, {"--port"}),
        (["serve", "org/m"], {"org/model"}, {"story:latest"}),
        (["serve", "--port", "1", "sto"], {"story:latest"}, set()),
        (["serve", "org/model", ""], {"story:latest"}, {"org/model"}),
        (["serve", "--enforce-eager", ""], {"org/model"}, set()),
        (["serve", "--port", ""], set(), {"org/model"}),
        (["rm", ""], {"org/model", "story:latest"}, set()),
        (["completion", ""], {"bash", "zsh", "fish"}, {"words"}),
        (["plugins", ""], {"list", "check"}, set()),
        (["plugins", "list", "tool_"], {"tool_parser"}, {"list"}),
        (["nonsense", ""], set(), {"serve"}),
    ],
)
def test_candidates(places: Path, words: list[str], some: set[str], none: set[str]) -> None:
    write_cached(places / "hub", "org/model", WHOLE)
    add_to_ollama(places / "ollama", "registry.ollama.ai/library/story:latest", GGUF)
    found = set(completion.candidates(words))
    assert some <= found
    assert not none & found
    assert all(word.startswith(words[-1]) for word in found)


def test_plugin_names_of_a_flag() -> None:
    pytest.importorskip("dovetail_plugins")
    assert completion.candidates(["serve", "--tool-call-parser", "herm"]) == ["hermes"]
    assert completion.candidates(["serve", "--tool-call-parser=herm"]) == [
        "--tool-call-parser=hermes"
    ]
    assert "tool_parser:hermes" in completion.candidates(["plugins", "show", "tool_parser:h"])


def test_bash_completes_names_with_colons(places: Path) -> None:
    """bash takes a colon for the end of a word; the script gives it what follows the colon."""
    add_to_ollama(places / "ollama", "registry.ollama.ai/library/story:latest", GGUF)
    script = f"""
        dovetail() {{ {sys.executable} -m dovetail "$@"; }}
        eval "$(dovetail completion bash)"
        COMP_LINE="dovetail serve story:l" COMP_POINT=22 COMP_WORDS=(dovetail serve story : l)
        COMP_CWORD=4; _dovetail; printf '<%s>' "${{COMPREPLY[@]}}"
        COMP_LINE="dovetail st" COMP_POINT=11 COMP_WORDS=(dovetail st) COMP_CWORD=1
        _dovetail; printf '<%s>' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("<latest><stop>", "")


def test_candidates_are_quick_and_import_nothing_heavy(places: Path) -> None:
    """A shell waits for them at every key: with names of models, plugins and flags."""
    write_cached(places / "hub", "org/model", WHOLE)
    code = (
        "import sys; from dovetail_plugins.commands.completion import candidates\n"
        "assert candidates(['serve', 'org']) and candidates(['serve', '--po'])\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'fastapi', 'huggingface_hub', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    began_s = time.process_time(), os.times().children_user
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.times().children_user - began_s[1] < 1.0  # 0.2 s on an idle machine
