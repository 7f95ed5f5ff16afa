"""Images over HTTP: one server, four dialects, clients that nobody here wrote; and offline."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from dovetail import LLM, SamplingParams
from dovetail.config.rules.multimodal.media import PROCESSOR_FILES
from dovetail.errors import RequestError
from support.media import tone
from support.server_process import ServerProcess
from support.tiny_media import write_media_checkpoint
from support.whole_app import by_openai

pytestmark = pytest.mark.e2e
openai = pytest.importorskip("openai")
PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

MEDIA_WORKER = "dovetail.multimodal.worker"
FLAGS = ("--max-model-len", "400", "--dtype", "float32", "--served-model-name", "seer")
IN_PROCESS = "--disable-frontend-multiprocessing"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_media_checkpoint(tmp_path_factory.mktemp("llava"), "LlavaForConditionalGeneration")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of pictures that the server may read."""
    made = tmp_path_factory.mktemp("pictures")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        image = PIL.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8))
        image.save(made / f"{seed}.png")
    return made


@pytest.fixture(scope="module")
def url(folder: Path, pictures: Path) -> Iterator[str]:
    flags = ("--port", "0", *FLAGS, "--allowed-local-media-path", str(pictures))
    limits = ("--limit-mm-per-prompt", '{"image": 2}')
    with ServerProcess(str(folder), *flags, *limits) as server:
        yield server.wait_ready().url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(api_key="key", base_url=f"{url}/v1", max_retries=0) as made:
        yield made


def data_url(pictures: Path, seed: int) -> str:
    return f"data:image/png;base64,{inline(pictures, seed)}"


def inline(pictures: Path, seed: int) -> str:
    return base64.b64encode((pictures / f"{seed}.png").read_bytes()).decode()


def turns(*urls: str) -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "what?"}, *images]}]


def answer(client: Any, *urls: str, **fields: Any) -> Any:
    asked = {"model": "seer", "temperature": 0, "max_tokens": 8, **fields}
    return client.chat.completions.create(messages=turns(*urls), **asked)


@pytest.fixture(scope="module")
def wanted(folder: Path, pictures: Path) -> str:
    """Return what the model says of picture 0, without a server."""
    with LLM(model=str(folder), dtype="float32", max_model_len=400) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8)
        by_chat = llm.chat(turns(data_url(pictures, 0)), params, use_tqdm=False)
        text: str = by_chat[0].outputs[0].text
    return text


def content_of_responses(picture: str) -> dict[str, str]:
    """Return the part of a /v1/responses message that holds an image."""
    return {"type": "input_image", "image_url": picture}


def test_every_dialect_sees_the_same(client: Any, url: str, pictures: Path, wanted: str) -> None:
    first = data_url(pictures, 0)
    whole = answer(client, first)
    assert whole.choices[0].message.content == wanted
    assert whole.usage.prompt_tokens > 16  # the places of the picture's patches count
    parts = answer(client, first, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in parts if c.choices) == wanted
    content = [{"type": "input_text", "text": "what?"}, content_of_responses(first)]
    made = client.responses.create(
        model="seer",
        input=[{"role": "user", "content": content}],
        max_output_tokens=8,
        temperature=0,
    )
    assert made.output_text == wanted
    source = {"type": "base64", "media_type": "image/png", "data": inline(pictures, 0)}
    content = [{"type": "text", "text": "what?"}, {"type": "image", "source": source}]
    body = {"model": "seer", "max_tokens": 8, "temperature": 0}
    turn = {"role": "user", "content": content}
    told = httpx.post(f"{url}/v1/messages", json={**body, "messages": [turn]}).json()
    assert told["content"][0]["text"] == wanted
    odd = {"mm_processor_kwargs": {"size": "none"}}
    asked = {"model": "seer", "input": [{"role": "user", "content": [content_of_responses(first)]}]}
    for path, sent in (("messages", {**body, "messages": [turn]}), ("responses", asked)):
        refused = httpx.post(f"{url}/v1/{path}", json={**sent, **odd})
        assert refused.status_code == 400, path
        assert "mm_processor_kwargs" in refused.text, "its options reach the processor"
    (card,) = client.models.list().data
    assert "vision" in card.capabilities and "audio" not in card.capabilities


def test_a_picture_at_llama_cpps_marker(url: str, pictures: Path, wanted: str) -> None:
    messages = turns(data_url(pictures, 0))
    text = httpx.post(f"{url}/apply-template", json={"messages": messages}).json()["prompt"]
    marker = httpx.get(f"{url}/props").json()["media_marker"]
    assert httpx.get(f"{url}/props").json()["modalities"]["vision"] is True
    marked = text.replace("<image>", marker)
    assert marked != text
    prompt = {"prompt_string": marked, "multimodal_data": [inline(pictures, 0)]}
    body = {"prompt": [prompt, "plain"], "n_predict": 8, "temperature": 0}
    first, second = httpx.post(f"{url}/completion", json=body, timeout=60).json()
    assert first["content"] == wanted and first["tokens_evaluated"] > 16
    assert second["tokens_evaluated"] < 16
    for data, words in (("%%", "base64"), ("AAAA", "known format"), ("UklGRgAA", "audio")):
        refused = httpx.post(
            f"{url}/completion", json={"prompt": prompt | {"multimodal_data": [data]}}
        )
        assert refused.status_code == 400 and words in refused.json()["error"]["message"]


def test_a_file_and_its_data_are_one_content(client: Any, pictures: Path, wanted: str) -> None:
    by_path = answer(client, f"file://{pictures}/0.png")
    assert by_path.choices[0].message.content == wanted
    other = answer(client, f"file://{pictures}/1.png")
    assert other.choices[0].message.content != wanted


def test_what_a_client_named_need_not_be_sent_again(
    client: Any, pictures: Path, wanted: str
) -> None:
    def told(part: dict[str, Any]) -> str:
        content = [{"type": "text", "text": "what?"}, part]
        asked: dict[str, Any] = {"model": "seer", "temperature": 0, "max_tokens": 8}
        turn: Any = {"role": "user", "content": content}
        made = client.chat.completions.create(messages=[turn], **asked)
        return str(made.choices[0].message.content)

    named = {"type": "image_url", "image_url": None, "uuid": "picture of the day"}
    with pytest.raises(openai.BadRequestError, match="nothing is known"):
        told(named)
    sent = {"type": "image_url", "image_url": {"url": data_url(pictures, 0)}}
    assert told({**sent, "uuid": "picture of the day"}) == wanted
    assert told(named) == wanted
    other = {"type": "image_url", "image_url": {"url": data_url(pictures, 1)}}
    assert told({**other, "uuid": "picture of the day"}) != wanted  # what is sent counts
    assert told(named) != wanted


def test_an_encoders_vectors_in_place_of_a_picture(
    client: Any, folder: Path, pictures: Path, wanted: str
) -> None:
    import torch
    import transformers
    from safetensors.torch import save

    from dovetail.multimodal.processors import load_processor

    processor = load_processor(folder, "")
    with PIL.open(pictures / "0.png") as image:
        read = processor(text=[processor.image_token], images=[image], return_tensors="pt")
    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(folder, dtype=torch.float32).model
    with torch.no_grad():
        made = model.get_image_features(pixel_values=read["pixel_values"], return_dict=True)
    vectors = torch.cat(list(made.pooler_output)).flatten(0, -2)
    data = base64.b64encode(save({"x": vectors.contiguous()})).decode()
    for embeds in (data, {"image_embeds": data}):
        content: list[Any] = [{"type": "text", "text": "what?"}]
        content.append({"type": "image_embeds", "image_embeds": embeds})
        turn: Any = {"role": "user", "content": content}
        asked: dict[str, Any] = {"model": "seer", "temperature": 0, "max_tokens": 8}
        told = client.chat.completions.create(messages=[turn], **asked)
        assert told.choices[0].message.content == wanted


def test_a_template_of_text_alone(folder: Path, pictures: Path) -> None:
    """The model's own word for a picture comes before the text, or where the part stood."""
    import transformers

    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    params = SamplingParams(temperature=0.0, max_tokens=8)
    flags: dict[str, Any] = {"dtype": "float32", "max_model_len": 400, "chat_template": template}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with PIL.open(pictures / "0.png") as image:
        picture = image.copy()
    for interleave_mm_strings, text in ((False, "<image>\nwhat?"), (True, "what?\n<image>")):
        more = {"interleave_mm_strings": interleave_mm_strings}
        with LLM(model=str(folder), **flags, **more) as llm:
            told = llm.chat(turns(data_url(pictures, 0)), params, use_tqdm=False)
            prompt = f"user: {text}\nassistant: "
            ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            asked = {"prompt_token_ids": ids, "multi_modal_data": {"image": picture}}
            same = llm.generate([asked], params, use_tqdm=False)
            raw = {"mm_processor_kwargs": {"do_normalize": False}}
            by_chat = llm.chat(turns(data_url(pictures, 0)), params, use_tqdm=False, **raw)
            by_hand = llm.generate([{**asked, **raw}], params, use_tqdm=False)
            again = llm.generate([asked], params, use_tqdm=False)
        assert told[0].outputs[0].token_ids == same[0].outputs[0].token_ids
        assert by_chat[0].outputs[0].token_ids == by_hand[0].outputs[0].token_ids
        assert by_hand[0].num_cached_tokens == same[0].num_cached_tokens == 0, "a key each"
        assert again[0].num_cached_tokens == 16, "the same picture, read the same way"


def test_pictures_and_plain_requests_at_once(client: Any, pictures: Path, wanted: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> str:
        if number % 3 == 2:
            told = answer(client)
        else:
            told = answer(client, *[data_url(pictures, n) for n in range(number % 3 + 1)])
        return str(told.choices[0].message.content)

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(one, range(12)))
    assert together[0] == wanted
    assert together[:3] * 4 == together


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        (["http://169.254.169.254/latest"], "not a public address"),
        (["data:image/png;base64,AAAA"], "known format"),
        (["file:///etc/passwd"], "allowed"),
        (["data:image/png;base64,%00"], "base64"),
    ],
)
def test_what_is_refused(client: Any, urls: list[str], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as told:
        answer(client, *urls)
    assert words in str(told.value)


def test_no_more_pictures_than_allowed(client: Any, pictures: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 2 images"):
        answer(client, *[data_url(pictures, n) for n in range(3)])


def test_a_clients_own_placeholder_is_text(client: Any, pictures: Path) -> None:
    message = {"role": "user", "content": "an <image> that is not there"}
    asked: dict[str, Any] = {"model": "seer", "temperature": 0, "max_tokens": 4}
    plain = client.chat.completions.create(messages=[message], **asked)
    assert plain.choices[0].finish_reason in ("length", "stop")


def test_a_batch_of_files(folder: Path, pictures: Path, tmp_path: Path, wanted: str) -> None:
    from dovetail.cli.main import main

    body = {"model": "seer", "temperature": 0, "max_tokens": 8}
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": CHAT,
        "body": {**body, "messages": turns(data_url(pictures, 0))},
    }
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    files = ("-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    status = main(["run-batch", *files, "--model", str(folder), *FLAGS, IN_PROCESS])
    assert status == 0
    kept = [child.pid for child in psutil.Process().children() if MEDIA_WORKER in child.cmdline()]
    assert kept == [], "a run ends the processes that decoded its media"
    told = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert told["response"]["body"]["choices"][0]["message"]["content"] == wanted


def told_by_transformers(folder: Path, wav: bytes) -> str:
    """Return what transformers' model says of a sound."""
    import soundfile
    import transformers

    processor = transformers.AutoProcessor.from_pretrained(folder)
    turn = {"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "what?"}]}
    text = processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
    heard = processor(text=text, audio=[soundfile.read(io.BytesIO(wav), dtype="float32")[0]],
                      sampling_rate=16_000, return_tensors="pt")  # fmt: skip
    model = transformers.Qwen2AudioForConditionalGeneration.from_pretrained(folder).eval()
    ids = model.generate(**heard, max_new_tokens=8, do_sample=False)[0]
    said: str = processor.decode(ids[heard["input_ids"].shape[1] :], skip_special_tokens=True)
    return said


def test_a_sound_in_every_dialect_is_answered_as_by_transformers(tmp_path: Path) -> None:
    folder = write_media_checkpoint(tmp_path / "ears", "Qwen2AudioForConditionalGeneration")
    wav = tone(num=12_000, rate_hz=16_000)
    wanted = told_by_transformers(folder, wav)
    data = base64.b64encode(wav).decode()
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    by_url = {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}}

    def body(part: dict[str, Any], kind: str = "text") -> dict[str, Any]:
        content = [part, {"type": kind, "text": "what?"}]
        turn = [{"role": "user", "content": content}]
        return {"model": "seer", "temperature": 0, "messages": turn, "max_tokens": 8}

    async def work(client: Any, http: httpx.AsyncClient) -> None:
        chat = client.chat.completions
        for part in (sound, by_url):
            whole = await chat.create(**body(part))
            assert whole.choices[0].message.content == wanted
        parts = [one async for one in await chat.create(**body(sound), stream=True)]
        assert "".join(c.choices[0].delta.content or "" for c in parts if c.choices) == wanted
        turn = body(sound, "input_text")
        made = await client.responses.create(
            model="seer", input=turn["messages"], max_output_tokens=8, temperature=0
        )
        assert made.output_text == wanted
        bad = {**sound, "input_audio": {"data": "AAAA", "format": "wav"}}
        with pytest.raises(openai.BadRequestError, match="known format"):
            await chat.create(**body(bad))
        (card,) = (await client.models.list()).data
        assert "audio" in card.capabilities and "vision" not in card.capabilities
        line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body(sound)}
        file = await client.files.create(
            file=("in.jsonl", json.dumps(line).encode()), purpose="batch"
        )
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )
        while batch.status not in ("completed", "failed"):
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
        told = json.loads((await client.files.content(batch.output_file_id)).text)
        assert told["response"]["body"]["choices"][0]["message"]["content"] == wanted

    by_openai(folder, *FLAGS, "--file-storage", str(tmp_path / "kept"), work=work)


def test_a_text_model_says_that_it_takes_none(folder: Path, pictures: Path) -> None:
    flags: dict[str, Any] = {"dtype": "float32", "max_model_len": 400}
    with LLM(model=str(folder), limit_mm_per_prompt={"image": 0}, **flags) as llm:
        with pytest.raises(RequestError, match=r"not supported|takes no"):
            llm.chat(turns(data_url(pictures, 0)), use_tqdm=False)
        image = PIL.open(io.BytesIO((pictures / "0.png").read_bytes()))
        with pytest.raises(RequestError, match="takes no images"):
            llm.generate([{"prompt": "<image>", "multi_modal_data": {"image": image}}])


def test_without_a_processor_the_text_part_is_served(
    folder: Path, pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags: dict[str, Any] = {"dtype": "float32", "max_model_len": 400, "use_tqdm_on_load": False}
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with LLM(model=str(folder), **flags) as llm:
        wanted = llm.generate("the quick brown fox", params, use_tqdm=False)[0].outputs[0]
    assert "text part" not in caplog.text
    bare = shutil.copytree(folder, tmp_path / "bare")
    for name in PROCESSOR_FILES:
        (bare / name).unlink(missing_ok=True)
    with LLM(model=str(bare), **flags) as llm:
        found = llm.generate("the quick brown fox", params, use_tqdm=False)[0].outputs[0]
        with pytest.raises(RequestError, match="not supported"):
            llm.chat(turns(data_url(pictures, 0)), use_tqdm=False)
    assert found.token_ids == wanted.token_ids
    assert caplog.text.count("so the text part is served alone") == 1
