"""The page at /, in a real browser: chat, the server's state, its settings."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail_plugins.apis.speech.formats import wav_header
from support.browser import LOOKS, Page, opened_browser, programs
from support.server_process import ServerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
KEY = "page-key"
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
LAST = ".message.assistant:last-child"
COST = f"{LAST} .cost"
LONG = json.dumps({"ignore_eos": True, "max_tokens": 1900})
WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather for a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The city"}},
                "required": ["city"],
            },
        },
    }
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    programs()
    secrets = {"HF_TOKEN": "token-nobody-sees"}
    with ServerProcess("--port", "0", "--api-key", KEY, "--max-num-seqs", "8", env=secrets) as made:
        yield made.wait_ready()


@pytest.fixture(scope="module")
def browser(server: ServerProcess) -> Iterator[Page]:
    with opened_browser(server.url) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    """Return the chat as somebody sees it who has typed the key."""
    browser.size(1280, 860)
    browser.scheme("light")
    browser.complaints()
    return browser.open(key=KEY)


@pytest.fixture
def modules(browser: Page) -> Page:
    """Return the page as it is, for tests of its modules alone."""
    return browser if browser.driver.current_url.startswith(browser.url) else browser.open(key=KEY)


def send(page: Page, text: str) -> None:
    page.write("#composer-text", text)
    page.click("[aria-label='Send']")


def ask(page: Page, text: str) -> str:
    """Return the answer to a message, once it is whole."""
    send(page, text)
    return whole_answer(page)


def whole_answer(page: Page) -> str:
    page.wait(lambda: page.all("[aria-label='Send']") and page.all(f"{LAST} .answer-foot button"))
    return page.text(f"{LAST} > .markdown")


def options(page: Page, **values: str) -> None:
    """Open the options and fill some in."""
    if not page.all("#options"):
        page.click("[aria-label='Options of this chat'].icon-button")
    for name, value in values.items():
        page.write(f"#option-{name}", value)


def kept(page: Page) -> list[Any]:
    """Return the conversations that the browser keeps."""
    found = page.run(
        "return Object.entries(localStorage).filter(([k]) => k.startsWith('dovetail.chat.'))"
        ".map(([, v]) => JSON.parse(v))"
    )
    return list(found)


def metric(server: ServerProcess, name: str) -> float:
    headers = {"Authorization": f"Bearer {KEY}"}
    text = httpx.get(f"{server.url}/metrics", headers=headers).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def test_the_page_asks_for_the_key_and_forgets_it_with_the_tab(browser: Page) -> None:
    page = browser.open()
    page.write("#key", "wrong")
    page.click(".key-dialog .primary")
    page.wait(lambda: "does not know this key" in page.text(".key-dialog"))
    page.write("#key", KEY)
    page.click(".key-dialog .primary")
    page.wait(lambda: page.text("#model-name") == "dovetail-demo")
    assert page.run("return sessionStorage.getItem('dovetail.key')") == KEY
    assert KEY not in json.dumps(page.run("return {...localStorage}"))
    page.open()
    page.click(".key-dialog button[type=button]")
    page.wait(lambda: "needs an API key" in page.text("#model-name"))


def test_an_answer_with_what_it_cost_survives_a_reload(page: Page) -> None:
    page.wait(lambda: page.text("#model-name"))
    assert ask(page, QUESTION) == ANSWER
    cost = page.text(COST)
    assert re.search(r"24 in · 15 out · [\d,]+ tokens/s · first after", cost), cost
    assert page.text(".conversations .name") == QUESTION
    page.driver.refresh()
    page.wait(lambda: page.text(f"{LAST} > .markdown") == ANSWER)
    assert page.text(COST) == cost
    assert not page.complaints()


def test_an_answer_is_shown_as_it_comes_and_can_be_stopped(
    page: Page, server: ServerProcess
) -> None:
    aborted = 'dovetail:request_success_total{engine="0",finished_reason="abort"'
    before = metric(server, aborted)
    options(page, extra=LONG)
    send(page, "Tell me a long story.")
    first = page.wait(lambda: page.text(f"{LAST} > .markdown"))
    page.wait(lambda: len(page.text(f"{LAST} > .markdown")) > len(first) + 20)
    assert page.all("[aria-label='Stop']")
    page.click("[aria-label='Stop']")
    page.wait(lambda: "stopped" in page.text(COST))
    told = re.search(r"([\d,]+) out", page.text(COST))
    assert told and 0 < int(told[1].replace(",", "")) < 1900
    page.wait(lambda: metric(server, aborted) == before + 1)
    stopped = page.text(f"{LAST} > .markdown")
    options(page, extra="{}")
    assert ask(page, QUESTION)
    assert kept(page)[0]["messages"][1]["content"].strip().startswith(stopped[:20])


def test_a_message_is_edited_and_an_answer_made_again(page: Page) -> None:
    ask(page, "What is the capital of Italy?")
    assert "Rome" in ask(page, "And what is the capital of Italy?")
    page.driver.execute_script("document.querySelector('.message.user [aria-label^=Edit]').click()")
    page.write(".editor textarea", QUESTION)
    page.click(".editor .primary")
    assert whole_answer(page) == ANSWER
    assert len(page.all(".message")) == 2
    options(page, max_tokens="3")
    page.click(f"{LAST} [aria-label='Answer again']")
    page.wait(lambda: "cut off at the token limit" in page.text(COST))
    assert "3 out" in page.text(COST)
    assert [message["role"] for message in kept(page)[0]["messages"]] == ["user", "assistant"]


def test_a_fault_is_told_in_the_servers_words(page: Page) -> None:
    options(page, extra='{"min_p": 7}')
    send(page, QUESTION)
    page.wait(lambda: "min_p" in page.text(f"{LAST} [role=alert]"))
    options(page, extra="{oops")
    assert "not JSON" in page.text("#fault-extra")
    page.click(f"{LAST} [aria-label='Try again']")
    assert page.run("return document.activeElement.id") == "option-extra"
    options(page, extra="{}")
    page.click(f"{LAST} [aria-label='Try again']")
    assert whole_answer(page) == ANSWER


def test_tools_thinking_and_schemas(page: Page) -> None:
    options(page, tools=json.dumps(WEATHER), thinking="On")
    send(page, "What is the weather in Lima?")
    page.wait(lambda: page.all(f"{LAST} .calls summary"))
    assert page.text(f"{LAST} .calls summary") == "Call of get_weather"
    page.write(f"{LAST} .results textarea", '{"temperature": 21, "condition": "sunny"}')
    page.click(f"{LAST} .results .primary")
    page.wait(lambda: page.all(".message.tool"))
    assert "21" in whole_answer(page)
    page.click(".begin")
    options(page, tools="", thinking="On")
    ask(page, QUESTION)
    assert page.text(f"{LAST} > .fold summary") == "Thoughts"
    assert not page.all(f"{LAST} .thought")
    page.click(f"{LAST} > .fold summary")
    assert page.text(f"{LAST} .thought")
    schema = {"type": "object", "properties": {"capital": {"type": "string", "maxLength": 20}},
              "required": ["capital"], "additionalProperties": False}  # fmt: skip
    options(page, thinking="Off", schema=json.dumps(schema))
    assert list(json.loads(ask(page, QUESTION))) == ["capital"]


def test_conversations_are_renamed_imported_and_deleted(page: Page) -> None:
    ask(page, QUESTION)
    page.run("document.querySelector('[aria-label^=Rename]').click()")
    page.one(".rename").send_keys("Capitals\n")
    page.wait(lambda: page.text(".conversations .name") == "Capitals")
    made = page.call("store.js", "m.imported(m.exported(m.listed())).map((one) => one.name)")
    assert made == ["Capitals"]
    assert "no conversations of this page" in page.call(
        "store.js", "(() => { try { m.imported('{}') } catch (e) { return e.message } })()"
    )
    assert len(kept(page)) == 2
    page.run("document.querySelector('[aria-label^=Delete]').click()")
    page.click(".conversations .danger")
    page.wait(lambda: len(kept(page)) == 1)


HOSTILE = """# A **title**

<img src=x onerror=alert(1)> [run](javascript:alert(1)) [go](https://example.org/a_(b)?c=1)
![picture](https://example.org/x.png) snake_case_name and `code | *bar*`

- one
  - two
    ```js
    const three = "3"; // four
    ```
1. five

| a | b |
|--:|:-:|
| 1 | `x|y` |
| <script>alert(2)</script> |

> quoted
"""


def test_markdown_becomes_nodes_and_never_markup(modules: Page) -> None:
    made = modules.call(
        "markdown.js",
        "(() => { const n = document.createElement('div'); m.showMarkdown(n, a[0]);"
        " const q = (s) => n.querySelectorAll(s).length;"
        " return {html: n.innerHTML, links: [...n.querySelectorAll('a')].map((x) => x.href),"
        " bad: q('script, img, iframe, [onerror], [style]'), heads: q('h2 strong'),"
        " nested: q('ul ul figure.code pre'), rows: q('tbody tr'), cells: q('td.middle code'),"
        " quotes: q('blockquote p'), marks: q('em')}; })()",
        HOSTILE,
    )
    assert made["bad"] == 0 and "&lt;script&gt;alert(2)" in made["html"]
    assert made["links"] == ["https://example.org/a_(b)?c=1", "https://example.org/x.png"]
    assert (made["heads"], made["nested"], made["rows"], made["cells"]) == (1, 1, 2, 1)
    assert (made["quotes"], made["marks"]) == (1, 0)


SLOW = ["**" * 9000, "[" * 9000, "`" * 9999 + "a", "- " * 5000, "|" * 9000 + "\n|-|",
        "*a_" * 6000, "> " * 4000, "a_" * 9000]  # fmt: skip


def test_no_text_holds_the_page_up(modules: Page) -> None:
    start = "const n = document.createElement('div'); const t = performance.now();"
    call = f"(() => {{ {start} m.showMarkdown(n, a[0]); return performance.now() - t; }})()"
    times_ms = {text[:3]: modules.call("markdown.js", call, text) for text in SLOW}
    assert max(times_ms.values()) < 1500, times_ms


READ = """
const [url, text, done] = arguments;
const bytes = new TextEncoder().encode(text);
const body = new ReadableStream({start(to) {
  for (let i = 0; i < bytes.length; i += 7) to.enqueue(bytes.slice(i, i + 7));
  to.close();
}});
Promise.all([import(`${url}/ui/server.js`), import(`${url}/ui/answer.js`)]).then(async (all) => {
  const answer = all[1].emptyAnswer(0);
  try {
    for await (const event of all[0].events({body})) all[1].addChunk(answer, event, 5);
  } catch (error) {
    answer.error = error.message;
  }
  done(answer);
});
"""


def test_a_stream_is_read_however_it_is_cut(modules: Page) -> None:
    """Also what the demo model does not say: calls in pieces, and an error after the start."""
    pieces = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"reasoning_content": "hm", "reasoning": "hm"}}]},
        {"choices": [{"delta": {"tool_calls": [
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}]}}]},
        {"choices": [{"delta": {"tool_calls": [
            {"index": 0, "function": {"arguments": ": 1}"}}]}, "finish_reason": "tool_calls"}]},
        {"error": {"message": "the engine is gone: é"}},
    ]  # fmt: skip
    text = ": comment\n\n" + "".join(f"data: {json.dumps(p)}\r\n\r\n" for p in pieces)
    modules.driver.set_script_timeout(5)
    answer = modules.driver.execute_async_script(READ, modules.url, text.replace("\\u00e9", "é"))
    assert answer["error"] == "the engine is gone: é"
    assert answer["toolCalls"] == [{"id": "a", "name": "f", "arguments": '{"x": 1}'}]
    assert (answer["reasoning"], answer["finish"]) == ("hm", "tool_calls")


def test_a_request_holds_what_was_set(page: Page) -> None:
    """Also pictures, which the demo model does not take."""
    page.wait(lambda: page.text("#model-name"))
    assert page.one("[aria-label='Add files']").get_attribute("title") == "Add files: texts"
    call = {"id": "a", "name": "f", "arguments": "{}"}
    body = page.call(
        "answer.js",
        "m.requestBody(a[0], 'model')",
        {
            "options": {"system": " Be brief. ", "temperature": "0", "stop": "a\n\nb c",
                        "seed": "7", "thinking": "off", "extra": '{"top_p": 0.5, "max_tokens": 9}'},
            "messages": [
                {"role": "user", "content": "look", "images": ["data:image/png;base64,AA=="]},
                {"role": "assistant", "content": "", "error": "broke off"},
                {"role": "assistant", "content": "", "toolCalls": [call], "reasoning": "hm"},
                {"role": "tool", "callId": "a", "name": "f", "content": "4"},
            ],
        },
    )  # fmt: skip
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    function = {"name": "f", "arguments": "{}"}
    assert body.pop("messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "4"},
    ]  # fmt: skip
    assert body == {
        "model": "model", "stream": True, "temperature": 0, "stop": ["a", "b c"], "seed": 7,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "enable_thinking": False, "top_p": 0.5, "max_tokens": 9,
    }  # fmt: skip


def test_numbers_of_metrics(modules: Page) -> None:
    def text(count: int, fast: int, slow: int) -> str:
        return (
            f'dovetail:generation_tokens_total{{engine="0",model_name="m"}} {count}\n'
            f'dovetail:generation_tokens_total{{engine="1",model_name="m"}} {count}\n'
            f'dovetail:time_to_first_token_seconds_bucket{{engine="0",le="0.1"}} {fast}\n'
            f'dovetail:time_to_first_token_seconds_bucket{{engine="0",le="0.2"}} {fast + slow}\n'
            f'dovetail:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {fast + slow}\n'
            f'vllm:generation_tokens_total{{engine="0"}} 99999\n'
        )

    found = modules.call(
        "metrics.js",
        "(() => { const [x, y] = [0, 1].map((i) => m.sampleOf(m.parse(a[i]), 2000 * i));"
        " return [m.rate(y, x, 'generated'), m.rate(x, y, 'generated'), m.rate(y, x, 'prompt'),"
        " m.quantile(y.firstToken, x.firstToken, 0.5), m.quantile(y.firstToken, x.firstToken, 1),"
        " m.quantile(y.firstToken, y.firstToken, 0.5)]; })()",
        text(10, 5, 0),
        text(110, 5, 4),
    )
    assert found[:3] == [100, None, None]
    assert found[3] == pytest.approx(0.15) and found[4] == pytest.approx(0.2) and found[5] is None


def test_the_servers_state_moves_only_while_it_is_seen(page: Page, server: ServerProcess) -> None:
    page.click("a[href='#server']")
    asked = 'dovetail:http_requests_total{method="GET",route="/metrics"'
    page.wait(lambda: page.all(".plot strong")[0].text == "0")
    before = page.text(".page-head [role=status]")
    ask_in_background(server)
    page.wait(lambda: page.text(".page-head [role=status]") != before)
    page.wait(lambda: re.fullmatch(r"[\d.]+ m?s", page.all(".plot strong")[6].text), 6)
    assert "Requests. running: 0 now" in page.run(
        "return document.querySelector('.plot svg').getAttribute('aria-label')"
    )
    assert len(page.all(".plot")) == 6 and page.all(".plot path.line")
    page.click("a[href='#chat']")
    seen = metric(server, asked)
    time.sleep(2.2)
    assert metric(server, asked) == seen + 1  # this very question


def ask_in_background(server: ServerProcess) -> None:
    with server.client(headers={"Authorization": f"Bearer {KEY}"}) as client:
        body = {"messages": [{"role": "user", "content": QUESTION}]}
        assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_settings_tell_where_they_came_from_and_no_secret(
    page: Page, server: ServerProcess
) -> None:
    assert httpx.get(f"{server.url}/settings").status_code == 401
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.get(f"{server.url}/settings", headers=headers)
    assert KEY not in answer.text and "token-nobody-sees" not in answer.text
    told = answer.json()
    rows = {row["name"]: (row["value"], row["origin"]) for row in told["settings"]}
    assert rows["max_num_seqs"] == (8, "command line")
    assert rows["api_key"] == ("***", "command line")
    assert rows["hf_token"] == ("***", "HF_TOKEN")
    assert rows["tool_call_parser"] == ("hermes", "demo model")
    plugins = {one["kind"]: (one["name"], one["origin"]) for one in told["plugins"]}
    assert plugins["attention_backend"] == ("native_cpu", "machine")
    assert plugins["reasoning_parser"] == ("qwen3", "demo model")
    assert all(one["summary"] for one in told["plugins"])
    page.click("a[href='#settings']")
    page.write("#settings-search", "max-num-seqs")
    page.wait(lambda: page.text(".settings-table tbody").startswith("--max-num-seqs"))
    assert "8" in page.text(".settings-table tbody") and "command line" in page.text(
        ".settings-table .origin.asked"
    )


def test_keyboard_alone_is_enough(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.wait(lambda: page.run("return document.activeElement.id") == "composer-text")
    page.driver.switch_to.active_element.send_keys("line one", Keys.SHIFT + Keys.ENTER, Keys.NULL)
    page.driver.switch_to.active_element.send_keys(QUESTION, Keys.ENTER)
    whole_answer(page)
    assert page.text(".message.user .plain") == f"line one\n{QUESTION}"
    options(page, extra=LONG)
    send(page, "Go on.")
    page.wait(lambda: page.text(f"{LAST} > .markdown"))
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.wait(lambda: "stopped" in page.text(COST))
    assert page.run("return document.querySelector('[role=log]').getAttribute('aria-busy')") is None


FILL = """
const id = Object.keys(localStorage).find((k) => k.startsWith('dovetail.chat.'));
const chat = JSON.parse(localStorage.getItem(id));
Object.assign(chat.messages[1], {content: arguments[0], reasoning: 'Let me *think*.'});
localStorage.setItem(id, JSON.stringify(chat));
"""


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_nothing_bars_people(page: Page, scheme: str, width: int) -> None:
    """axe finds nothing serious, and nothing sticks out sideways."""
    ask(page, QUESTION)
    page.run(FILL, HOSTILE)
    page.scheme(scheme)
    page.size(width, 800)
    page.driver.refresh()
    page.one(f"{LAST} figure.code")
    if width > 1000:
        options(page)
    for view in ("chat", "server", "settings"):
        page.click(f"a[href='#{view}']")
        page.one(f"#view-{view}")
        page.wait(lambda view=view: view != "settings" or page.all(".settings-table"))
        assert page.barriers() == [], view
        wide, room = page.run(
            "const e = document.documentElement; return [e.scrollWidth, e.clientWidth]"
        )
        assert wide <= room, view


SEVERAL = """
const real = window.fetch;
const models = [{id: 'dovetail-demo', state: 'loaded'}, {id: 'other', state: 'unloaded'},
  {id: 'ears', state: 'loaded', capabilities: ['transcription']},
  {id: 'mouth', state: 'loaded', capabilities: ['speak']}];
const answers = {
  '/v1/models': () => ({data: models}),
  '/v1/audio/transcriptions': ({body}) => {
    const sound = body.get('file');
    return {text: ` ${body.get('model')} heard ${sound.name}${sound.size > 9 ? '' : ': nothing'}`};
  },
  '/v1/audio/voices': () => ({voices: ['low', 'high']}),
  '/v1/audio/speech': ({body}) => {
    window.asked = JSON.parse(body);
    return new Response(Uint8Array.from(SILENCE));
  },
};
window.fetch = async (url, init) => {
  const answer = answers[new URL(url).pathname]?.(init);
  if (answer === undefined) return real(url, init);
  return answer instanceof Response ? answer : new Response(JSON.stringify(answer));
};
""".replace("SILENCE", str([*wav_header(8000, 800), *bytes(800)]))


def test_one_of_several_models_is_chosen(page: Page, tmp_path: Path) -> None:
    """The server has one model; here it says that it has four, of which one hears: what is said
    in a file or into the microphone comes into the box. Another reads answers aloud."""
    sound = tmp_path / "said.wav"
    sound.write_bytes(bytes(64))
    tell = page.driver.execute_cdp_cmd
    made = tell("Page.addScriptToEvaluateOnNewDocument", {"source": SEVERAL})
    try:
        page.open(key=KEY)
        page.one("#model-choice")
        assert ask(page, QUESTION) == ANSWER
        assert page.text(COST).startswith("dovetail-demo · 24 in")
        file = page.driver.find_element("css selector", "[type=file][aria-label=Sound]")
        file.send_keys(str(sound))
        value = "return document.getElementById('composer-text').value"
        page.wait(lambda: page.run(value) == "ears heard said.wav")
        page.click("[aria-label=Speak]")
        page.one("[aria-label='End the recording']")
        time.sleep(0.2)
        page.click("[aria-label='End the recording']")
        page.wait(lambda: page.run(value) == "ears heard said.wav ears heard speech.webm")
        heard = "return window.asked"
        page.click(f"{LAST} [aria-label='Read aloud']")
        asked = {"model": "mouth", "voice": None, "input": ANSWER, "response_format": "mp3"}
        page.wait(lambda: page.run(heard) == asked)
        page.one(f"{LAST} [aria-label='Read aloud'][aria-pressed=false]")
        assert not page.all(".foot [role=alert]:not([hidden])")
        page.write("#model-choice", "mouth")
        assert "speaks texts" in page.text(".purpose")
        page.write("[aria-label='Text to speak']", "Say this.")
        page.write("[aria-label=Voice]", "high")
        page.click(".purpose [aria-label='Read aloud']")
        asked |= {"voice": "high", "input": "Say this."}
        page.wait(lambda: page.run(heard) == asked)
        page.one(".purpose [aria-label='Read aloud'][aria-pressed=false]")
        assert not page.text(".purpose [role=alert]") and page.barriers() == []
        page.write("#model-choice", "other")
        send(page, QUESTION)
        page.wait(lambda: 'model "other" is not served' in page.text(f"{LAST} [role=alert]"))
        page.driver.refresh()
        choice = "return document.getElementById('model-choice')?.selectedOptions[0].text"
        page.wait(lambda: page.run(choice) == "other (unloaded)")
        assert page.barriers() == []
        page.write("#model-choice", "ears")
        assert "writes down what is said" in page.text(".purpose")
        page.driver.find_elements("css selector", "[type=file][aria-label=Sound]")[-1].send_keys(
            str(sound)
        )
        said = "return document.querySelector('.purpose textarea').value"
        page.wait(lambda: page.run(said) == "ears heard said.wav")
        assert page.barriers() == []
    finally:
        tell("Page.removeScriptToEvaluateOnNewDocument", made)


def test_no_request_left_the_host(browser: Page, server: ServerProcess) -> None:
    """Of all tests above; also the policy holds: nothing was refused by it."""
    asked = browser.asked()
    own = (f"{server.url}/", "data:", "blob:null", f"blob:{server.url}/")
    assert len(asked) > 50
    assert [url for url in asked if not url.startswith(own)] == []
