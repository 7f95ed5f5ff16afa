"""Loading plugin files written for vLLM: every layout, clear refusals, nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dovetail import registry
from dovetail.errors import BrokenPlugin, ConfigError
from dovetail_vllm_compat import helpers, modules
from support.vllm_files import FILES, load_parser, plan_of, read

LAYOUTS = (
    (
        "vllm.entrypoints.openai.tool_parsers",
        "vllm.entrypoints.openai.protocol",
        "vllm.transformers_utils.tokenizer",
        "AnyTokenizer",
        "vllm.entrypoints.openai.reasoning_parsers",
    ),
    (
        "vllm.entrypoints.openai.tool_parsers.abstract_tool_parser",
        "vllm.entrypoints.openai.engine.protocol",
        "vllm.transformers_utils.tokenizers.mistral",
        "MistralTokenizer",
        "vllm.reasoning.abs_reasoning_parsers",
    ),
    (
        "vllm.tool_parsers.abstract_tool_parser",
        "vllm.entrypoints.openai.engine.protocol",
        "vllm.tokenizers",
        "TokenizerLike",
        "vllm.reasoning",
    ),
)
FILE = '''
from {tools} import ToolParser, ToolParserManager
from {protocol} import DeltaMessage, ExtractedToolCallInformation
from {tokenizers} import {tokenizer}
from {reasoning} import ReasoningParser, ReasoningParserManager
import vllm.logger
from vllm import __version__

logger = vllm.logger.init_logger(__name__)
logger.info_once("%s", __version__)

@ToolParserManager.register_module({form})
class Mine(ToolParser):
    """Finds nothing."""

    def extract_tool_calls(self, model_output, request):
        return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)

@ReasoningParserManager.register_module("mine")
class Thinks(ReasoningParser):
    """Finds nothing."""
'''


def file_of(folder: Path, text: str, name: str = "plugin.py") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ['"mine"', '["mine", "other"]', 'name="mine", force=True'])
def test_every_layout_and_form(layout: tuple[str, ...], form: str, tmp_path: Path) -> None:
    names = ("tools", "protocol", "tokenizers", "tokenizer", "reasoning")
    text = FILE.format(**dict(zip(names, layout, strict=True)), form=form)
    entries = registry.admin.load_file(file_of(tmp_path, text))
    made = {(entry.kind, entry.name) for entry in entries}
    assert {("tool_parser", "mine"), ("reasoning_parser", "mine")} <= made
    assert (("tool_parser", "other") in made) == ("other" in form)
    assert all(registry.status(entry).word == "ok" for entry in entries)
    assert not any(name.partition(".")[0] == "vllm" for name in sys.modules)


def test_lazy_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FILES / "helpers"))
    names = [entry.name for entry in registry.admin.load_file(FILES / "lazy_form.py")]
    assert names == ["lazy_here", "lazy_elsewhere"]
    assert registry.load("tool_parser", "lazy_here").foreign_class.__name__ == "Here"


def test_lazy_registration_of_nothing(tmp_path: Path) -> None:
    text = (
        "from vllm.tool_parsers import ToolParserManager\n"
        'ToolParserManager.register_lazy_module("x", "no_such_module_at_all", "X")\n'
    )
    with pytest.raises(BrokenPlugin, match='registers "x" from no_such_module_at_all'):
        registry.admin.load_file(file_of(tmp_path, text))


@pytest.mark.parametrize(
    ("line", "said", "fix"),
    [
        ("from vllm.worker import Worker", '"vllm.worker"', "TYPE_CHECKING"),
        ("from vllm.tool_parsers import Nothing", '"vllm.tool_parsers.Nothing"', "TYPE_CHECKING"),
        ("import vllm.engine.core", '"vllm.engine.core"', "TYPE_CHECKING"),
        (
            "from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser",
            '"vllm.tool_parsers.hermes_tool_parser"',
            "dovetail plugins list tool_parser",
        ),
    ],
)
def test_a_name_that_is_not_there(line: str, said: str, fix: str, tmp_path: Path) -> None:
    file = file_of(tmp_path, f"import json\n\n{line}\n")
    with pytest.raises(BrokenPlugin) as error:
        registry.admin.load_file(file)
    assert error.value.where == f"{file}:3"
    assert f"dovetail-vllm-compat does not have {said}" in error.value.what
    assert fix in str(error.value.fix)


def test_other_faults_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="registers no parser"):
        registry.admin.load_file(file_of(tmp_path, "import vllm\n", "a.py"))
    with pytest.raises(BrokenPlugin, match="ZeroDivisionError"):
        registry.admin.load_file(file_of(tmp_path, "import vllm\n1 / 0\n", "b.py"))
    text = (
        "from vllm.tool_parsers import ToolParserManager\n"
        '@ToolParserManager.register_module("x")\nclass X:\n    pass\n'
    )
    with pytest.raises(BrokenPlugin, match="does not derive from vllm's ToolParser"):
        registry.admin.load_file(file_of(tmp_path, text, "c.py"))


def test_an_installed_vllm_is_neither_used_nor_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    file_of(tmp_path / "vllm", "IS_REAL = True\n", "__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    parser = load_parser("tool_parser", "regex_calls", "regex_calls.py")
    import vllm  # type: ignore[import-not-found]

    try:
        assert vllm.IS_REAL
        wanted = ("", "", [("f", "{}")])
        assert read(plan_of(parser), "<function=f>{}</function>") == wanted
        entries = registry.admin.load_file(FILES / "derived_thoughts.py")
        assert [entry.name for entry in entries] == ["derived_thoughts"]
        assert sys.modules["vllm"] is vllm
    finally:
        del sys.modules["vllm"]


def test_without_the_package_the_error_names_it(tmp_path: Path) -> None:
    file = file_of(tmp_path, "from vllm.tool_parsers import ToolParser\n")
    told = pytest.raises(BrokenPlugin, match="No module named 'vllm'")
    with registry.admin.with_entries({}, only=True), told as error:
        registry.admin.load_file(file)
    assert "pip install dovetail-vllm-compat" in str(error.value.fix)
    assert "pip install ./contrib/vllm-compat" in str(error.value.fix)


def test_a_file_of_ours_may_look_for_vllm(tmp_path: Path) -> None:
    """It is ours as it registers with us; what it looks for need not be there."""
    text = (
        "try:\n    import vllm\nexcept ImportError:\n    vllm = None\n"
        "from dovetail.registry import register\n"
        '@register("tool_parser", "ours")\nclass Ours:\n    """Ours."""\n'
    )
    with registry.admin.with_entries({}, only=True):
        entries = registry.admin.load_file(file_of(tmp_path, text))
    assert [entry.name for entry in entries] == ["ours"]


def test_helpers() -> None:
    assert helpers.find_common_prefix('{"a": 1', '{"a": 2}') == '{"a": '
    assert helpers.find_common_suffix('{"fruit": "ap"}', '{"fruit": "apple"}') == '"}'
    assert helpers.extract_intermediate_diff('{"f": "apple"}', '{"f": "ap"}') == "ple"
    assert helpers.find_all_indices("abcab", "ab") == [0, 3]
    assert (helpers.is_complete_json('{"a"'), helpers.is_complete_json("[1]")) == (False, True)
    assert helpers.consume_space(1, "a \n b") == 4
    assert helpers.partial_tag_overlap("text<to", "<tool>") == 3
    assert helpers.make_tool_call_id("kimi_k2", "f", 2) == "functions.f:2"
    assert helpers.is_list_of([1, "a"], int)
    assert not helpers.is_list_of([1, "a"], int, check="all")


def test_partial_json() -> None:
    pytest.importorskip("partial_json_parser")
    from partial_json_parser.core.options import Allow

    assert helpers.partial_json_loads('{"a": "b', Allow.ALL) == ({"a": "b"}, 8)
    assert helpers.partial_json_loads('{"a": 1} and', Allow.ALL) == ({"a": 1}, 8)


def test_every_name_of_the_table_is_there() -> None:
    for name in modules.table():
        assert modules.module_named(name).__name__ == name
