"""Transcription of speech: dovetail beside transformers' pipeline and faster-whisper, in turns.

    python -m benchmarks.transcription --model FOLDER --ctranslate2 FOLDER --peer PYTHON

FOLDER are those that `benchmarks/real_models.py` makes of Whisper base, PYTHON an interpreter that
has faster-whisper. espeak-ng speaks. Every engine has one thread, float32 weights and greedy search
with the usual fallback, and reads the same file in a process of its own; starting it does not
count. Prints, for each engine, the median of the rounds: seconds, seconds of processor time (which
count where a machine is busy), and how many times faster dovetail is by both. Each run is told as
soon as it has ended. Two minutes of speech take a quiet core about two minutes for all engines;
`--minutes 10` is what the notebook of benchmarks has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SENTENCES_PER_MINUTE = 14
LIMIT_S = 3000.0
START_S = 300.0
OURS, PIPELINE, PEER = "dovetail", "transformers", "faster-whisper"


def by_transformers(model: str, sound: str) -> dict[str, Any]:
    """Return what transformers' pipeline makes of a sound, and what it took."""
    import soundfile
    import torch
    from transformers import pipeline

    torch.set_num_threads(1)
    samples, rate_hz = soundfile.read(sound, dtype="float32")
    listen = pipeline("automatic-speech-recognition", model, dtype=torch.float32)
    said = {"language": "en", "task": "transcribe"}
    began = (time.monotonic(), time.process_time())
    told = listen(
        {"raw": samples, "sampling_rate": rate_hz}, return_timestamps=True, generate_kwargs=said
    )
    return _took(began, told["text"])


def by_faster_whisper(model: str, sound: str) -> dict[str, Any]:
    """Return what faster-whisper makes of a sound, and what it took."""
    from faster_whisper import WhisperModel

    listen = WhisperModel(model, device="cpu", compute_type="float32", cpu_threads=1)
    began = (time.monotonic(), time.process_time())
    segments, _ = listen.transcribe(sound, language="en", beam_size=1)
    return _took(began, "".join(one.text for one in segments))


def _took(began: tuple[float, float], text: str) -> dict[str, Any]:
    wall_s, cpu_s = time.monotonic() - began[0], time.process_time() - began[1]
    return {"wall_s": wall_s, "cpu_s": cpu_s, "text": text}


class Server:
    """`dovetail serve` with one thread, on a port of its choice."""

    def __init__(self, model: str) -> None:
        import psutil

        words = ["serve", model, "--port", "0", "--dtype", "float32"]
        # A pipe that nobody reads would fill up.
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the server
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", *words],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=self._log,
            text=True,
        )
        self.url = self._address()
        self._known = psutil.Process(self._process.pid)

    def _address(self) -> str:
        """Return where the server listens, once it tells. Raises: RuntimeError"""
        limit_s = time.monotonic() + START_S
        while time.monotonic() < limit_s and self._process.poll() is None:
            self._log.seek(0)
            found = next((line for line in self._log if " at http://" in line), None)
            if found is not None:
                return found.rsplit(" at ", 1)[1].split()[0]
            time.sleep(0.2)
        self._log.seek(0)
        self.close()
        raise RuntimeError(f"the server did not start:\n{self._log.read()}")

    def transcribe(self, model: str, sound: str) -> dict[str, Any]:
        """Return what it makes of a sound, and what it took."""
        mark = uuid.uuid4().hex
        fields = {"language": "en", "response_format": "verbose_json"}
        start = "Content-Disposition: form-data; name"
        parts = [f'{start}="{name}"\r\n\r\n{value}' for name, value in fields.items()]
        head = f'{start}="file"; filename="a.wav"\r\n\r\n'
        body = b"".join(f"--{mark}\r\n{part}\r\n".encode() for part in parts)
        body += f"--{mark}\r\n{head}".encode() + Path(sound).read_bytes()
        asked = urllib.request.Request(
            f"{self.url}/v1/audio/transcriptions",
            data=body + f"\r\n--{mark}--\r\n".encode(),
            headers={"Content-Type": f"multipart/form-data; boundary={mark}"},
        )
        began_s, spent_s = time.monotonic(), self._spent_s()
        with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
            text = json.load(answer)["text"]
        cpu_s = self._spent_s() - spent_s
        return {"wall_s": time.monotonic() - began_s, "cpu_s": cpu_s, "text": text}

    def _spent_s(self) -> float:
        processes = (self._known, *self._known.children(recursive=True))
        return sum(sum(one.cpu_times()[:2]) for one in processes)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def measured(name: str, asked: argparse.Namespace, sound: str) -> dict[str, Any]:
    """Return one run of an engine. Raises: SystemExit with its words where it fails"""
    if name == OURS:
        server = Server(asked.model)
        try:
            return server.transcribe(asked.model, sound)
        finally:
            server.close()
    python, model = sys.executable, asked.model
    if name == PEER:
        python, model = asked.peer, asked.ctranslate2
    done = subprocess.run(
        [python, __file__, "--engine", name, "--model", model, "--sound", sound],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Print medians and ratios."""
    medians = {
        name: {key: statistics.median(one[key] for one in of) for key in ("wall_s", "cpu_s")}
        for name, of in runs.items()
    }
    for name, found in medians.items():
        ratios = (found[key] / medians[OURS][key] for key in ("wall_s", "cpu_s"))
        by_wall, by_cpu = (f"{ratio:.2f}x" for ratio in ratios)
        took = f"{found['wall_s']:.1f} s, {found['cpu_s']:.1f} s of processor time"
        same = runs[name][0]["text"].split() == runs[OURS][0]["text"].split()
        print(f"{name}: {took}; dovetail is {by_wall} and {by_cpu} as fast; same words: {same}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.transcription", description=__doc__)
    made.add_argument("--model", required=True, help="Whisper in transformers' layout")
    made.add_argument("--ctranslate2", help="the same in CTranslate2's layout")
    made.add_argument("--peer", help="an interpreter that has faster-whisper")
    made.add_argument("--minutes", type=float, default=2.0)
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--engine", choices=(PIPELINE, PEER), help=argparse.SUPPRESS)
    made.add_argument("--sound", help="a WAV file of 16 kHz in place of one made here")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Measure."""
    asked = parser().parse_args(words)
    if asked.engine:
        run = by_faster_whisper if asked.engine == PEER else by_transformers
        print(json.dumps(run(asked.model, asked.sound)))
        return 0
    names = [OURS, PIPELINE, *([PEER] if asked.peer and asked.ctranslate2 else [])]
    with tempfile.TemporaryDirectory() as folder:
        sound = asked.sound
        if sound is None:
            from benchmarks.speech import sentences, speak

            sound = str(Path(folder, "speech.wav"))
            length_s = speak(sentences(round(asked.minutes * SENTENCES_PER_MINUTE), 4), Path(sound))
            print(f"{length_s:.0f} s of speech", flush=True)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(asked.rounds):
            for name in names:
                run = measured(name, asked, sound)
                runs[name].append(run)
                took = f"{run['wall_s']:.1f} s, {run['cpu_s']:.1f} s of processor time"
                print(f"  {name}: {took}, {len(run['text'].split())} words", flush=True)
        report(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
