"""The files of examples/deploy: what cannot be run here is checked by a schema, a linter or a rule.

Settings are parsed as the server would, metrics and paths are looked up, the image's files exist.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
YAML_FILES = [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob(".*.yaml")]
UNIT = DEPLOY / "systemd" / "dovetail.service"


def documents(name: str) -> list[Any]:
    with (DEPLOY / name).open(encoding="utf-8") as stream:
        return list(yaml.safe_load_all(stream))


def cluster(kind: str) -> Any:
    (found,) = [one for one in documents("kubernetes/dovetail.yaml") if one["kind"] == kind]
    return found


def checked_settings(words: list[str]) -> Any:
    """Return the config of a `dovetail serve` command line. Raises: ConfigError"""
    from dovetail.cli.parser import Parser
    from dovetail.config.parse.parse_config import parse_config
    from dovetail_plugins.commands._serve_flags import add_serve_arguments

    parser = Parser(prog="dovetail serve", description="")
    add_serve_arguments(parser)
    return parse_config(parser.parse(words))


def test_files_are_found() -> None:
    assert len(YAML_FILES) >= 6


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_yaml_is_tidy(path: Path) -> None:
    linter = pytest.importorskip("yamllint.linter", reason="yamllint comes with the extra `test`")
    from yamllint.config import YamlLintConfig

    rules = YamlLintConfig(file=str(DEPLOY / ".yamllint.yaml"))
    assert [str(one) for one in linter.run(path.read_text(encoding="utf-8"), rules)] == []


def test_settings_are_those_of_serve(tmp_path: Path) -> None:
    pod = tmp_path / "settings.yaml"
    pod.write_text(cluster("ConfigMap")["data"]["settings.yaml"], encoding="utf-8")
    for file in (DEPLOY / "settings.yaml", pod):
        config = checked_settings(["--config", str(file)])
        assert (config.frontend.host, config.frontend.port) == ("0.0.0.0", 8000)
        as_if = re.sub(r"(?m)^# (?=[\w-]+: )", "", file.read_text(encoding="utf-8"))
        flags = yaml.safe_load(as_if)
        assert "model" in flags
        given = tmp_path / "all.yaml"
        given.write_text(as_if, encoding="utf-8")
        assert checked_settings(["--config", str(given)]).model.model == flags["model"]


def test_the_compose_file_is_one() -> None:
    pytest.importorskip("check_jsonschema", reason="its schema comes with the extra `test`")
    import jsonschema

    package = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((package / "compose-spec.json").read_text(encoding="utf-8"))
    (compose,) = documents("compose.yaml")
    jsonschema.validate(compose, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(compose | {"services": {"a": {"imagee": "b"}}}, schema)


def test_what_compose_mounts_and_builds_exists() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).is_file(), source
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for name in ("cpu", "cuda"):
        build = services[name]["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == DEPLOY / "Dockerfile"
        assert re.search(rf"^FROM base AS {build['target']}$", text, re.MULTILINE)
    told = f"{documents('settings.yaml')[0]['shutdown-timeout']}"
    assert int(services["cpu"]["stop_grace_period"].removesuffix("s")) > int(told)


def test_the_image_takes_torch_for_cpus_within_the_bounds_of_the_package() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (bounds,) = re.findall(r'"(torch[^"]*)"', text)
    assert f'"{bounds}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r"^ARG TORCH_INDEX=https://.*/cpu$", text, re.MULTILINE)


@pytest.mark.parametrize("status", [200, 503])
def test_the_image_asks_the_port_that_the_server_has(status: int) -> None:
    """The check's own command, with the variable that `dovetail serve` takes as --port."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.*)$", text, re.MULTILINE)
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        env = {**os.environ, "DOVETAIL_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, *json.loads(command)[1:]], env=env, check=False)
    assert (done.returncode == 0) == (status == 200)


def test_the_image_copies_what_is_there_and_passes_its_linter() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = [w for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE)
              for w in shlex.split(line)[:-1]]  # fmt: skip
    assert {"pyproject.toml", "core", "plugins", "kernels"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{name}" for name in copied} <= set(kept)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(name in copied for name in re.findall(r'= "((?:README|LICENSE)[^"]*)"', project))


def test_the_dockerfile_is_linted() -> None:
    beside = str(Path(sys.executable).parent)
    hadolint = shutil.which("hadolint", path=os.pathsep.join((beside, os.environ["PATH"])))
    if hadolint is None:
        pytest.skip("no hadolint: it comes with the extra `test`")
    told = subprocess.run(
        [hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout) == (0, "")


def test_the_cluster_fits_the_schemas_of_kubernetes() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="comes with the extra `test`")
    for one in (*documents("kubernetes/dovetail.yaml"), *documents("kubernetes/hpa.yaml")):
        validator.validate(one, validator.latest_version(), strict=True)


def test_the_unit_is_one(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert command
    program, word, *flags = shlex.split(command[1])
    assert (Path(program).name, word) == ("dovetail", "supervise")
    assert flags == ["--config", "/etc/dovetail/settings.yaml"]
    if shutil.which("systemd-analyze"):
        unit = tmp_path / UNIT.name
        unit.write_text(text.replace(program, "/bin/true"), encoding="utf-8")
        told = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
        )
        assert (told.returncode, told.stderr) == (0, "")


def test_the_cluster_asks_the_right_paths() -> None:
    from dovetail_plugins.apis.health.routes import HealthApi

    pod = cluster("Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    is_open = {route.path for route in HealthApi.routes if route.is_open and route.method == "GET"}
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/ready", "liveness": "/health", "readiness": "/ready"}
    assert set(paths.values()) <= is_open
    (port,) = container["ports"]
    assert {container[f"{name}Probe"]["httpGet"]["port"] for name in paths} == {port["name"]}
    settings = yaml.safe_load(cluster("ConfigMap")["data"]["settings.yaml"])
    assert port["containerPort"] == settings["port"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > settings["shutdown-timeout"]


def test_the_parts_of_the_cluster_fit_together() -> None:
    deployment, service = cluster("Deployment")["spec"], cluster("Service")["spec"]
    pod = deployment["template"]
    labels = pod["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels == service["selector"]
    (container,) = pod["spec"]["containers"]
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["settings"]["configMap"]["name"] == cluster("ConfigMap")["metadata"]["name"]
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == cluster("PersistentVolumeClaim")["metadata"]["name"]


def exposed_names() -> set[str]:
    """Return every name that the metrics reference gives, as Prometheus shows it."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    rows = re.findall(r"^\| `(dovetail:\w+)` \| \S* ?\| (\w+) \|(.*)$", page, re.MULTILINE)
    return {name + end for name, kind, rest in rows for end in ends[kind] if "(hidden)" not in rest}


def test_the_dashboard_is_made_and_its_metrics_exist() -> None:
    made = DEPLOY / "grafana" / "make_dashboard.py"
    spec = importlib.util.spec_from_file_location("make_dashboard", made)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.TARGET.read_text(encoding="utf-8")
    assert text == module.text(), "run examples/deploy/grafana/make_dashboard.py"
    named = set(re.findall(r"dovetail:\w+", text))
    assert len(named) > 25
    assert named - exposed_names() == set()
    board = json.loads(text)
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]}
    assert len(places) == len(numbers)


@pytest.mark.parametrize("name", ["hpa", "keda"])
def test_what_scales_asks_for_metrics_that_exist_and_names_the_deployment(name: str) -> None:
    text = (DEPLOY / "kubernetes" / f"{name}.yaml").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "how_to" / "deploy.md").read_text(encoding="utf-8")
    named = set(re.findall(r"dovetail:\w+", text))
    assert len(named) >= 2 and named - exposed_names() == set()
    shown = set(re.findall(r"dovetail:\w+", page.partition("### Scale with the load")[2]))
    assert shown - exposed_names() == {"dovetail:request_prompt_tokens"}  # a histogram, as a whole
    (scaler,) = documents(f"kubernetes/{name}.yaml")
    target = scaler["spec"]["scaleTargetRef"]
    assert target["name"] == cluster("Deployment")["metadata"]["name"]
    if name == "hpa":
        made = set(re.findall(r"name: {as: (\w+)}", text))
        assert {one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"]} == made


def test_labels_of_the_dashboard_are_those_of_the_metrics() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    labels = {
        name: set(re.findall(r"`(\w+)`", told))
        for name, told in re.findall(
            r"^\| `(dovetail:\w+)` \|[^|]*\|[^|]*\| ([^|]*) \|", page, re.MULTILINE
        )
    }
    board = json.loads((DEPLOY / "grafana" / "dovetail.json").read_text(encoding="utf-8"))
    queries = [t["expr"] for p in board["panels"] for t in p.get("targets", ())]
    assert len(queries) > 30
    for query in queries:
        for name, selected in re.findall(r"(dovetail:\w+)\{([^}]*)\}", query):
            family = re.sub(r"_(total|bucket)$", "", name)
            has = labels[family] if family in labels else labels[name]
            asked = set(re.findall(r"(\w+)=~", selected)) - {"instance"}
            grouped = set(
                ",".join(re.findall(r"by \(([^)]*)\)", query)).replace(" ", "").split(",")
            )
            assert asked | (grouped - {"le", ""}) <= has, query
