"""`create`, `cp`, `show`, `list` and `rm` of models that users make."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.config.config import Config
from dovetail.errors import ConfigError
from dovetail_plugins.created_models.serving import as_created
from dovetail_plugins.created_models.store import CreatedStore
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.modelfile.reading import read
from support.any_models import cache_demo, demo_gguf, own_stores
from support.model_stores import add_to_ollama
from support.server_process import ServerProcess

SYSTEM = 'You are "brief".'
MODELFILE = """FROM {base}
PARAMETER temperature 0.5
SYSTEM \"\"\"You are "brief".\"\"\"
LICENSE MIT
"""


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_stores(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    cache_demo(tmp_path)
    return tmp_path


def out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_a_model_by_name_from_begin_to_end(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stores / "Modelfile").write_text(MODELFILE.format(base="org/model"))
    assert "brief:latest is made" in out(capsys, "create", "brief")
    assert "brief is also other:v2 now" in out(capsys, "cp", "brief", "other:v2")
    rows = {line.split()[0]: line.split()[-1] for line in out(capsys, "list").splitlines()}
    assert rows["brief:latest"] == rows["other:v2"] == "created"
    assert out(capsys, "show", "brief", "--system").strip() == 'You are "brief".'
    assert "temperature 0.5" in out(capsys, "show", "brief", "--parameters").splitlines()
    assert out(capsys, "show", "brief", "--license").strip() == "MIT"
    again = read(out(capsys, "show", "other:v2", "--modelfile"))
    assert again.system == 'You are "brief".'
    assert Path(again.base).is_dir()
    assert "brief:latest is deleted" in out(capsys, "rm", "brief", "--yes")
    assert main(["show", "brief"]) == 2
    assert list(CreatedStore().names()) == ["other:v2"]


def test_a_base_may_be_quantized(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stores / "Modelfile").write_text(MODELFILE.format(base="org/model"))
    said = out(capsys, "create", "small", "--quantize", "q8_0")
    assert "quantizing model to q8_0" in said and "creating new layer sha256:" in said
    assert "small:latest is made" in said
    record = CreatedStore().get("small:latest")
    assert record is not None and list(record.files) == ["model.gguf"]
    assert record.modelfile.system == 'You are "brief".'
    assert not list(CreatedStore().folder.glob("quantizing-*"))
    (stores / "Modelfile").write_text("FROM small")
    assert main(["create", "smaller", "-q", "q4_0"]) == 2
    assert "quantized already" in capsys.readouterr().err
    assert main(["create", "smaller", "-q", "q9"]) == 2
    assert "must be one of" in capsys.readouterr().err
    assert list(CreatedStore().names()) == ["small:latest"]


def test_a_created_model_is_served_with_its_settings(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stores / "Modelfile").write_text(MODELFILE.format(base="org/model"))
    out(capsys, "create", "brief")
    named = Config.from_fields({"model": "brief", "max_num_seqs": 3})
    config = as_created(named)
    assert config.scheduler.max_num_seqs == 3
    assert list(config.model.served_model_name or ()) == ["brief", "brief:latest"]
    assert config.model.override_generation_config["temperature"] == 0.5
    assert (Path(config.model.model or "") / "config.json").exists()
    given = as_created(Config.from_fields({"model": "brief", "served_model_name": ["mine"]}))
    assert list(given.model.served_model_name or ()) == ["mine"]
    for name in ("org/model", "nobody", "../brief", str(stores / "hub")):
        other = Config.from_fields({"model": name})
        assert as_created(other) is other
    assert as_created(Config()).model.model is None
    with ServerProcess("brief", "--port", "0") as server, server.wait_ready().client() as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "brief"
        assert client.post("/api/show", json={"model": "brief"}).json()["system"] == SYSTEM
    shutil.rmtree(stores / "hub")
    with pytest.raises(ConfigError, match="its base org/model is gone"):
        as_created(named)


def test_a_model_of_ollama_is_served_with_its_parameters(
    stores: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its template stays that of the file; what the user gives wins."""
    params = {"temperature": 0.25, "stop": ["<|end|>"], "num_ctx": 64, "num_keep": None}
    texts = {"params": json.dumps(params), "system": "Be brief.", "template": "{{ .Prompt }}"}
    name = "registry.ollama.ai/library"
    blob = add_to_ollama(stores / "ollama", f"{name}/story:tiny", demo_gguf(stores), texts=texts)
    add_to_ollama(stores / "ollama", f"{name}/plain:latest", blob.read_bytes())
    broken = {"params": '{"temperature": "hot"}'}
    add_to_ollama(stores / "ollama", f"{name}/broken:latest", blob.read_bytes(), texts=broken)
    named = Config.from_fields({"model": "story:tiny", "max_model_len": 48})
    config = as_created(named)
    assert config.model.model == str(blob)
    assert config.model.override_generation_config == {"temperature": 0.25, "stop": ["<|end|>"]}
    assert config.plugin.options_of("renderer") == {"system": "Be brief."}
    assert config.model.max_model_len == 48
    assert config.frontend.chat_template is None
    for other in ("plain", "broken"):
        unchanged = Config.from_fields({"model": other})
        assert as_created(unchanged) is unchanged
    assert "broken:latest is served without its parameters" in caplog.text
    catalogue = Catalogue(Config())
    model = catalogue.find("story:tiny")
    assert model is not None
    assert catalogue.entry(model).config.model.max_model_len == 64


def test_show_tells_the_facts_of_any_model(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line.split(maxsplit=1) for line in out(capsys, "show", "org/model").splitlines()]
    facts = {line[0]: line[1] for line in lines if len(line) == 2}
    config = json.loads((stores / "hub").glob("*/snapshots/*/config.json").__next__().read_text())
    assert facts["architecture"] == config["model_type"]
    assert facts["embedding"].split()[-1] == str(config["hidden_size"])
    assert facts["capabilities"].startswith("completion")
    shown = json.loads(out(capsys, "show", "org/model", "--json"))
    assert shown["template"] == out(capsys, "show", "org/model", "--template").rstrip("\n") or (
        shown["template"].rstrip() == out(capsys, "show", "org/model", "--template").rstrip()
    )


def test_files_are_copied_in(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = demo_gguf(stores / "made")
    folder = stores / "elsewhere"
    folder.mkdir()
    (folder / "odd name (1).gguf").write_bytes(content)
    (folder / "Modelfile").write_text(MODELFILE.format(base="./odd name (1).gguf"))
    out(capsys, "create", "own", "-f", str(folder / "Modelfile"))
    (folder / "odd name (1).gguf").unlink()
    path = Path(read(out(capsys, "show", "own", "--modelfile")).base)
    assert path.read_bytes() == content
    out(capsys, "rm", "own", "-y")
    assert not path.exists()


def test_faults_are_said(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stores / "Modelfile").write_text(MODELFILE.format(base="nobody/nothing"))
    for words, said in (
        (("create", "x"), "not a model of this machine"),
        (("create", "../x"), "cannot be the name"),
        (("create", "x", "-f", "none"), "cannot be read"),
        (("cp", "nothing", "x"), "not a model of this machine"),
        (("cp", "org/model", "../x"), "cannot be the name"),
        (("show", "nothing"), "there is no model nothing here"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    (stores / "Modelfile").write_text("FROM org/model\nADAPTER ./none")
    assert main(["create", "x"]) == 2
    assert "ADAPTER" in capsys.readouterr().err
