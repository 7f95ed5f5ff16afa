"""Whisper base, served as it is: text and times of speech made here, beside faster-whisper's.

Run by `make test-real`; FASTER_WHISPER names its virtual environment. espeak-ng speaks.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
NUM_SENTENCES = 22
STEP_S = 0.02
PEER = """
import json, sys
from faster_whisper import WhisperModel
model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32", cpu_threads=1)
found = {}
for words in (False, True):
    segments, _ = model.transcribe(sys.argv[2], language="en", beam_size=1, word_timestamps=words)
    found[str(words)] = [
        (one.text, one.start, one.end, [(w.word, w.start, w.end) for w in one.words or ()])
        for one in segments
    ]
print(json.dumps(found, default=float))
"""


@pytest.fixture(scope="module")
def models() -> Path:
    """Return the folder of real models; the test fails where it is not there."""
    if os.environ.get("MODEL"):
        pytest.skip("MODEL names another checkpoint")
    named = os.environ.get("REAL_MODELS")
    assert named, "REAL_MODELS names no folder: run `make test-real`"
    assert (Path(named) / "whisper-base").is_dir(), "whisper-base is missing: run `make test-real`"
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed: apt-get install espeak-ng")
    return Path(named)


@pytest.fixture(scope="module")
def sound(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return more than a minute of speech, three windows, and what is said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        speech = importlib.import_module("benchmarks.speech")
    text = speech.sentences(NUM_SENTENCES, 8)
    path = tmp_path_factory.mktemp("speech") / "said.wav"
    assert speech.speak(text, path) > 60
    return path, text


@pytest.fixture(scope="module")
def peer(models: Path, sound: tuple[Path, str]) -> dict[str, Any]:
    """Return faster-whisper's segments, without words and with them."""
    python = Path(os.environ.get("FASTER_WHISPER", ""), "bin", "python")
    if not (os.environ.get("FASTER_WHISPER") and python.exists()):
        pytest.skip("faster-whisper is not there: FASTER_WHISPER names no virtual environment")
    words = [str(python), "-c", PEER, str(models / "whisper-base-ctranslate2"), str(sound[0])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[httpx.Client]:
    path = str(models / "whisper-base")
    with (
        ServerProcess(path, "--port", "0", "--dtype", "float32") as server,
        server.wait_ready().client(timeout=600.0) as made,
    ):
        yield made


def heard(client: httpx.Client, path: Path, **fields: Any) -> Any:
    asked = {"language": "en", "response_format": "verbose_json", **fields}
    files = {"file": (path.name, path.read_bytes())}
    answer = client.post("/v1/audio/transcriptions", files=files, data=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_segments_are_those_of_faster_whisper(
    client: httpx.Client, sound: tuple[Path, str], peer: dict[str, Any]
) -> None:
    told = heard(client, sound[0])["segments"]
    assert [one["text"] for one in told] == [text for text, *_ in peer["False"]]
    for ours, (_, start, end, _) in zip(told, peer["False"], strict=True):
        assert abs(ours["start"] - start) < STEP_S / 2 and abs(ours["end"] - end) < STEP_S / 2


def test_words_are_those_of_faster_whisper(
    client: httpx.Client, sound: tuple[Path, str], peer: dict[str, Any]
) -> None:
    """Where two paths through tokens and rows attend alike to the last bit but one, a border may
    lie a row of the encoding (0.02 s) beside theirs."""
    told = heard(client, sound[0], **{"timestamp_granularities[]": ["word", "segment"]})
    wanted = [word for *_, words in peer["True"] for word in words]
    assert [one["word"] for one in told["words"]] == [text.strip() for text, *_ in wanted]
    borders = [
        abs(ours[key] - theirs)
        for ours, (_, start, end) in zip(told["words"], wanted, strict=True)
        for key, theirs in (("start", start), ("end", end))
    ]
    assert max(borders) < 1.5 * STEP_S
    assert sum(one < STEP_S / 2 for one in borders) >= 0.9 * len(borders)


def test_most_words_are_those_that_were_said(client: httpx.Client, sound: tuple[Path, str]) -> None:
    said = sound[1].lower().replace(".", "").split()
    told = heard(client, sound[0])["text"].lower().replace(".", "").replace(",", "").split()
    assert len(set(said) & set(told)) > 0.8 * len(set(said))


def test_a_language_is_found(client: httpx.Client, tmp_path: Path) -> None:
    path = tmp_path / "german.wav"
    text = "Guten Morgen, meine Damen und Herren. Heute ist das Wetter sehr schön."
    words = ["espeak-ng", "-v", "de", "-s", "140", "-w", str(path), text]
    subprocess.run(words, check=True)
    assert heard(client, path, language="")["language"] == "german"
