"""Realtime sessions without a server: turns, telephones' sound, settings, and who may connect."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import soundfile
from starlette.testclient import TestClient, WebSocketDenialResponse

from dovetail.errors import RequestError
from dovetail_plugins.apis.realtime.protocol import ALaw, MuLaw, Pcm, ServerVad, Settings, updated
from dovetail_plugins.apis.realtime.sound import samples_of
from dovetail_plugins.apis.realtime.turns import Started, Stopped, TurnDetector
from support.serving import app_for

RATE_HZ = 16_000


def noise(seconds: float, level_db: float, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal(int(seconds * RATE_HZ))
    return (made * 32768 * 10 ** (level_db / 20)).clip(-32768, 32767).astype(np.int16)


def turns(*parts: np.ndarray, piece: int = 1000, at: int = 0, **given: Any) -> list[float]:
    """Return the seconds at which turns begin and end, in turn."""
    sound = np.concatenate(parts)
    detector = TurnDetector(ServerVad(prefix_padding_ms=0, **given), RATE_HZ, at)
    cuts = range(0, len(sound), piece)
    found = [one for first in cuts for one in detector.push(sound[first : first + piece])]
    assert [type(one) for one in found] == [(Started, Stopped)[i % 2] for i in range(len(found))]
    assert detector.is_speaking == (len(found) % 2 == 1)
    return [one.at / RATE_HZ for one in found]


@pytest.mark.parametrize("piece", [77, 1000, 10**6])
def test_a_turn_is_loud_sound_up_to_a_silence(piece: int) -> None:
    """However the sound is cut; short gaps belong to the turn, and clicks begin none."""
    hush, voice, click = noise(0.6, -80), noise(0.5, -20), noise(0.03, -10)
    sound = (hush, voice, noise(0.2, -80), voice, hush, click, hush)
    assert turns(*sound, piece=piece) == pytest.approx([0.6, 2.3], abs=0.021)
    late = turns(*sound, piece=piece, at=RATE_HZ, silence_duration_ms=100)
    assert late == pytest.approx([1.6, 2.2, 2.3, 2.9], abs=0.021)


def test_a_threshold_and_the_background_decide_what_is_loud() -> None:
    quiet = (noise(0.5, -80), noise(1.0, -45), noise(1.0, -80))
    assert turns(*quiet) == []
    assert turns(*quiet, threshold=0.2) == pytest.approx([0.5, 2.0], abs=0.021)
    fan = noise(12.0, -35)
    found = turns(noise(0.5, -80), fan, fan[: RATE_HZ * 2] + noise(2.0, -15), fan[:RATE_HZ])
    assert len(found) == 4  # the fan is a turn until it is known, and then what is above it
    assert found[1] < 11 and found[2:] == pytest.approx([12.5, 15.0], abs=0.05)


def test_telephones_sound_is_libsndfiles() -> None:
    data = bytes(range(256))
    for form, name in ((MuLaw(), "ULAW"), (ALaw(), "ALAW")):
        expected, _ = soundfile.read(
            io.BytesIO(data), samplerate=8000, channels=1, format="RAW", subtype=name, dtype="int16"
        )
        assert np.array_equal(samples_of(data, form), expected), name
    assert samples_of(b"\x01\x00\xff\xff", Pcm()).tolist() == [1, -1]


def test_an_update_changes_what_it_names() -> None:
    first = updated(Settings(), {"audio": {"input": {"transcription": {"language": "de"}}}})
    vad = {"type": "server_vad", "threshold": 0.7}
    second = updated(first, {"audio": {"input": {"turn_detection": vad}}})
    sound = second.audio.input
    assert sound.transcription is not None and sound.transcription.language == "de"
    assert sound.turn_detection == ServerVad(threshold=0.7) and sound.format == Pcm()
    other = {"type": "audio/pcma"}
    third = updated(second, {"audio": {"input": {"turn_detection": None, "format": other}}})
    assert (third.audio.input.turn_detection, third.audio.input.format) == (None, ALaw())
    hint = {"audio": {"input": {"noise_reduction": {"type": "near_field"}}}}
    assert updated(third, hint) == third
    with pytest.raises(RequestError) as refused:
        updated(third, {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 1}}}})
    assert refused.value.where == "session.audio.input.format.rate"


def test_a_model_that_cannot_hear_takes_no_session() -> None:
    app, _ = app_for()
    with (
        pytest.raises(WebSocketDenialResponse) as refused,
        TestClient(app).websocket_connect("/v1/realtime"),
    ):
        pass
    assert refused.value.status_code == 404
    assert refused.value.json()["error"]["code"] == "task_not_supported"
