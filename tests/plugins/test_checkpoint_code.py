"""Code that comes with a checkpoint runs where it was allowed and pinned, as it was hashed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dovetail.cli.main import main
from dovetail.config.checkpoint.code_files import read_code
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.llm.llm import LLM
from dovetail_plugins.bench.prompts import tokenizer_of
from dovetail_plugins.bench.settings import TargetFlags
from dovetail_plugins.inspect.collect import inspect
from support.own_code import FILES, LETTERS, own_model, write_code, write_own
from support.server_process import ServerProcess

SIZES: dict[str, Any] = {"max_model_len": 64, "num_gpu_blocks_override": 32, "dtype": "float32"}
PROMPT = "Code of its own"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_own(tmp_path_factory.mktemp("own"))


def pin(folder: Path) -> str:
    return f"sha256:{read_code(folder).digest}"


def spec_of(folder: Path | str, **flags: Any) -> Any:
    return resolve(Config.from_fields({"model": str(folder), **SIZES, **flags}))


def refusal(folder: Path | str, **flags: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        spec_of(folder, **flags)
    return caught.value


def test_its_model_answers_as_its_own_code_does(checkpoint: Path) -> None:
    flags = {"trust_remote_code": True, "code_revision": pin(checkpoint)}
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1)
    with LLM(model=str(checkpoint), **SIZES, **flags) as llm:
        (result,) = llm.generate([PROMPT], params, False)
    assert list(result.prompt_token_ids) == [2 + LETTERS.index(letter) for letter in PROMPT]
    (answer,) = result.outputs
    told = [*result.prompt_token_ids, *answer.token_ids]
    assert answer.text == "".join(("<s>", "</s>", *LETTERS)[i] for i in answer.token_ids)
    model = own_model(checkpoint)
    model.load_state_dict(load_file(checkpoint / "model.safetensors"))
    with torch.inference_mode():
        right = model(torch.tensor([told])).logits[0].log_softmax(-1)
    for at, said in enumerate(answer.logprobs or (), start=len(PROMPT) - 1):
        assert said.logprob == pytest.approx(right[at, told[at + 1]].item(), abs=1e-4)
        assert right[at].argmax().item() == told[at + 1]


def test_nothing_runs_without_the_flag(checkpoint: Path, tmp_path: Path) -> None:
    folder = trapped(checkpoint, tmp_path)
    error = refusal(folder)
    assert "does not run unless it is asked for" in error.what
    assert "--trust-remote-code" in str(error.fix)
    assert not inspect(Config.from_fields({"model": str(folder)})).would_start


def test_nothing_runs_without_a_pin_and_the_error_tells_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    folder = trapped(checkpoint, tmp_path)
    error = refusal(folder, trust_remote_code=True)
    assert error.where == "--code-revision"
    assert f"--code-revision {pin(folder)}" in str(error.fix)
    for name in FILES:
        assert name in error.what


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"code_revision": f"sha256:{'0' * 64}"}, "has another digest"),
        ({"code_revision": COMMIT}, "has no commits of the hub"),
        ({"revision": COMMIT}, "has no commits of the hub"),
        ({"code_revision": "main"}, "a branch or a tag, which can move"),
    ],
)
def test_wrong_pins(checkpoint: Path, tmp_path: Path, flags: dict[str, str], told: str) -> None:
    error = refusal(trapped(checkpoint, tmp_path), trust_remote_code=True, **flags)
    assert told in error.what
    assert "--code-revision sha256:" in str(error.fix)


def test_a_file_that_changed_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = copied(checkpoint, tmp_path)
    before = pin(folder)
    (folder / "parts_own.py").write_text(FILES["parts_own.py"] + "\nX = 1\n")
    assert "another digest" in refusal(folder, trust_remote_code=True, code_revision=before).what


def test_what_was_hashed_runs_though_the_files_change(checkpoint: Path, tmp_path: Path) -> None:
    folder = copied(checkpoint, tmp_path)
    spec = spec_of(folder, trust_remote_code=True, code_revision=pin(folder))
    for name in FILES:
        (folder / name).write_text("raise SystemExit")
    from dovetail import registry
    from dovetail_plugins.inspect import trial

    assert trial.tried_in_child(spec.run) == trial.Refusal()
    tokenizer = registry.make(spec.tokenizer, spec.tokenizer_path)
    assert tokenizer.decode(tokenizer.encode("as hashed")) == "as hashed"


def test_a_link_out_of_the_folder_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = copied(checkpoint, tmp_path / "model")
    outside = tmp_path / "outside.py"
    shutil.move(folder / "parts_own.py", outside)
    (folder / "parts_own.py").symlink_to(outside)
    assert "leads out of the folder" in refusal(folder, trust_remote_code=True).what


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("someone/else--modeling_own.OwnForCausalLM", "code of another repository"),
        ("../modeling_own.OwnForCausalLM", "does not name a class in a file beside it"),
        ("modeling_none.OwnForCausalLM", "is not there"),
    ],
)
def test_references_that_are_refused(tmp_path: Path, reference: str, told: str) -> None:
    folder = write_code(tmp_path, auto_map={"AutoModelForCausalLM": reference})
    (folder / "model.safetensors").write_bytes(b"")
    assert told in refusal(folder, trust_remote_code=True).what


def test_a_commit_of_the_hub_is_a_pin(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laid out as the hub's cache has it: links to blobs."""
    repo = tmp_path / "models--org--own"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for file in checkpoint.iterdir():
        blob = repo / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    flags = {"trust_remote_code": True}
    for pins in (
        {"revision": COMMIT},
        {"code_revision": COMMIT},
        {"code_revision": pin(checkpoint)},
    ):
        assert spec_of("org/own", **flags, **pins).run.model.code is not None
    assert "nothing says which version" in refusal("org/own", **flags).what
    error = refusal("org/own", **flags, revision="main")
    assert "nothing says which version" in error.what
    other = COMMIT[::-1]
    assert "HF_HUB_OFFLINE" in refusal("org/own", **flags, code_revision=other).what


def test_a_tokenizer_elsewhere_has_a_pin_of_its_own(checkpoint: Path, tmp_path: Path) -> None:
    folder = copied(checkpoint, tmp_path)
    flags = {"tokenizer": str(folder), "trust_remote_code": True, "code_revision": pin(checkpoint)}
    error = refusal(checkpoint, **flags)
    assert error.where == "--tokenizer-revision"
    spec = spec_of(checkpoint, **flags, tokenizer_revision=pin(folder))
    assert "code" in spec.tokenizer.options


def test_code_that_nothing_needs_does_not_run(tmp_path: Path) -> None:
    """dovetail has the class: the flag asks for nothing, and no pin is missing."""
    from dovetail_testing.tiny.models import write_tiny_checkpoint

    folder = write_tiny_checkpoint(tmp_path, "LlamaForCausalLM")
    settings = json.loads((folder / "config.json").read_text())
    settings["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "modeling_own.py").write_text("raise SystemExit")
    spec = spec_of(folder, trust_remote_code=True)
    assert spec.run.model.code is None
    assert spec.run.model_plugin.name == "LlamaForCausalLM"


def test_code_is_no_option_of_a_user(checkpoint: Path) -> None:
    error = refusal(checkpoint, plugin_options={"tokenizer": {"code": {}}}, **allowed(checkpoint))
    assert "--trust-remote-code" in str(error.fix)


def test_models_that_cannot_be_swapped_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = copied(checkpoint, tmp_path)
    text = FILES["parts_own.py"].replace(
        "attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]",
        "attend = lambda m, q, k, v, mask, **more: (q.transpose(1, 2), None)",
    )
    (folder / "parts_own.py").write_text(text)
    found = inspect(Config.from_fields({"model": str(folder), **SIZES, **allowed(folder)}))
    assert not found.would_start
    assert "of its 2 layers attend" in " ".join(found.warnings)


def test_errors_of_the_code_name_it(checkpoint: Path, tmp_path: Path) -> None:
    folder = copied(checkpoint, tmp_path)
    (folder / "configuration_own.py").write_text("import nowhere_to_be_found\n")
    found = inspect(Config.from_fields({"model": str(folder), **SIZES, **allowed(folder)}))
    assert "configuration_own.py of the checkpoint failed" in " ".join(found.warnings)


def allowed(folder: Path) -> dict[str, Any]:
    return {"trust_remote_code": True, "code_revision": pin(folder)}


def copied(checkpoint: Path, folder: Path) -> Path:
    return Path(shutil.copytree(checkpoint, folder, dirs_exist_ok=True))


def trapped(checkpoint: Path, folder: Path) -> Path:
    """Return a copy whose code ends the process if it runs."""
    copied(checkpoint, folder)
    for name in FILES:
        (folder / name).write_text("raise SystemExit('it ran')\n" + FILES[name])
    return folder


def test_benchmarks_count_with_its_tokenizer(checkpoint: Path) -> None:
    flags = TargetFlags(tokenizer=str(checkpoint), **allowed(checkpoint))
    tokenizer = tokenizer_of(flags, "")
    assert tokenizer is not None
    assert len(tokenizer.encode(PROMPT)) == len(PROMPT)
    with pytest.raises(ConfigError, match="nothing says which version"):
        tokenizer_of(TargetFlags(tokenizer=str(checkpoint), trust_remote_code=True), "")
    with pytest.raises(ConfigError, match="--trust-remote-code"):
        tokenizer_of(TargetFlags(tokenizer=str(checkpoint)), "")


def test_a_quantized_copy_has_the_same_code(checkpoint: Path, tmp_path: Path) -> None:
    args = [str(checkpoint), "--method", "int8", "--out", str(tmp_path / "copy")]
    pinned = ["--trust-remote-code", "--code-revision", pin(checkpoint)]
    assert main(["quantize", *args, *pinned]) == 0
    assert pin(tmp_path / "copy") == pin(checkpoint)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with LLM(model=str(tmp_path / "copy"), **SIZES, **allowed(checkpoint)) as llm:
        (result,) = llm.generate([PROMPT], params, False)
    assert len(result.outputs[0].token_ids) == 4


@pytest.mark.e2e
def test_over_http(checkpoint: Path) -> None:
    """The processes of the server, of the engine and of constraints have the code."""
    args = [str(checkpoint), "--port", "0", "--max-model-len", "64", "--dtype", "float32"]
    args += ["--trust-remote-code", "--code-revision", pin(checkpoint)]
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    letters = {"structured_outputs": {"regex": "[abc]{4}"}, "ignore_eos": False}
    with ServerProcess(*args) as server, server.wait_ready().client() as client:
        (plain,) = client.post("/v1/completions", json=body).json()["choices"]
        (bound,) = client.post("/v1/completions", json=body | letters).json()["choices"]
        warned = [line for line in server.lines if "runs with all rights" in line]
    assert len(plain["text"]) >= 6
    assert len(bound["text"]) == 4
    assert set(bound["text"]) <= set("abc")
    assert pin(checkpoint) in warned[0]
    for name in FILES:
        assert name in warned[0]
