"""FrontendConfig: the HTTP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag

NO_PARSER = "none"
"""The word that disables a parser. By default, the chat template decides which one is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendConfig:
    """HTTP server."""

    host: str | None = flag(
        None, help="address to listen on", default_note="127.0.0.1, this machine only"
    )
    port: int = flag(8000, ge=0, le=65535, help="TCP port to listen on; 0 chooses a free one")
    api_key: tuple[str, ...] = flag(
        (),
        secret=True,
        metavar="KEY",
        help="API keys; clients must send one of them",
        default_note="none: everyone may ask",
    )
    api_keys_file: str | None = flag(
        None,
        metavar="FILE",
        help="YAML or JSON lines with names, hashes, scopes and limits of API keys (`dovetail keys "
        "add`); read again when it changes",
    )
    owner_header: str | None = flag(
        None,
        metavar="NAME",
        help="header in which a trusted proxy names whom a request is from; such requests need no "
        "key, so the proxy must drop the header from its clients' requests",
    )
    owner_from_user: bool = flag(
        False,
        help="divide a key's share among the values of safety_identifier, or user, in its requests",
    )
    max_num_queued_tokens: int | None = flag(
        None,
        ge=1,
        unit="tokens",
        help="maximum number of prompt tokens that wait to be computed; beyond it, requests are "
        "answered with status 503",
        default_note="no limit",
    )
    gate: str = flag("keys", kind="gate", help="what decides who may send requests, and how many")
    api: tuple[str, ...] = flag(
        (),
        kind="api",
        metavar="NAME",
        help="further families of endpoints to serve: names of plugins, MODULE:CLASS or FILE:CLASS",
    )
    root_path: str | None = flag(None, help="path prefix under which a proxy serves this server")
    api_server_count: int = flag(
        1, ge=1, le=256, short="-asc", help="number of HTTP server processes"
    )
    disable_frontend_multiprocessing: bool = flag(
        False, help="run HTTP server and engine in one process"
    )
    chat_template: str | None = flag(
        None, help="chat template (Jinja or Go), file or text", default_note="the model's own"
    )
    renderer: str = flag(
        "auto",
        kind="renderer",
        help="what makes a prompt of messages: a chat template, or code (a name, MODULE:CLASS or "
        "FILE:CLASS)",
    )
    chat_template_content_format: str = flag(
        "auto",
        kind="chat_content_format",
        help="whether templates see message content as text or as a list of parts",
    )
    allow_control_tokens: bool = flag(
        False,
        help="let the text of messages become control tokens (<|im_end|>, ...); otherwise only the "
        "chat template writes them, and such text is plain text",
    )
    response_role: str = flag("assistant", help="role in chat answers")
    enable_auto_tool_choice: bool = flag(
        True,
        help="let the model decide whether to call tools; its calls are read by "
        "--tool-call-parser, or auto if that is not set",
    )
    tool_call_parser: str | None = flag(
        None,
        kind="tool_parser",
        words={NO_PARSER: NO_PARSER},
        default_note="auto",
        help="parser for the model's tool-call syntax; without one, calls stay in the text",
    )
    tool_parser_plugin: str | None = flag(
        None,
        metavar="FILE",
        help="Python file that registers tool parsers; one written for vLLM needs the package "
        "dovetail-vllm-compat",
    )
    tool_parser_strict: bool = flag(
        False,
        help="read only calls in the tool parser's syntax; otherwise an answer that consists "
        "only of JSON calls to the request's tools counts as calls, too",
    )
    reasoning_parser: str | None = flag(
        None,
        kind="reasoning_parser",
        words={NO_PARSER: NO_PARSER},
        default_note="auto",
        help="parser for the model's reasoning syntax; without one, reasoning stays in the text",
    )
    reasoning_parser_plugin: str | None = flag(
        None,
        metavar="FILE",
        help="Python file that registers reasoning parsers; one written for vLLM needs the package "
        "dovetail-vllm-compat",
    )
    reasoning_budget: int = flag(
        -1,
        ge=-1,
        help="how many tokens an answer may think for, if its request does not say; -1: any number",
    )
    reasoning_budget_message: str = flag(
        "",
        metavar="TEXT",
        help="closing words of a thinking whose budget is used up, before the end of the thinking",
    )
    reasoning_field: str = flag(
        "both",
        kind="reasoning_field",
        help="name of the field for reasoning in chat answers",
    )
    allowed_origins: tuple[str, ...] = flag(
        ("*",), metavar="ORIGIN", help="web origins that browsers may call from"
    )
    allowed_hosts: tuple[str, ...] = flag(
        (),
        metavar="HOST",
        help="names in the Host header that a server without a key on a loopback address answers "
        "to, beside addresses and this machine's own names; * answers to all, and to all origins",
    )
    allowed_methods: tuple[str, ...] = flag(
        ("*",), metavar="METHOD", help="HTTP methods that browsers may use from other origins"
    )
    allowed_headers: tuple[str, ...] = flag(
        ("*",), metavar="HEADER", help="HTTP headers that browsers may send from other origins"
    )
    allow_credentials: bool = flag(False, help="let browsers send cookies from other origins")
    disable_access_log_for_endpoints: str | None = flag(
        None,
        metavar="PATHS",
        help="do not log HTTP requests for these paths, separated by commas, such as "
        "/health,/metrics,/ping",
        default_note="every path is logged",
    )
    disable_uvicorn_access_log: bool = flag(False, help="do not log each HTTP request")
    uvicorn_log_level: str = flag(
        "info",
        kind="uvicorn_log_level",
        help="lowest level of the HTTP server's messages that are logged",
    )
    ui: bool = flag(
        True, help="serve the page at / (also at /ui) on which one chats and watches the server"
    )
    disable_fastapi_docs: bool = flag(False, help="hide the API description pages")
    enable_request_id_headers: bool = flag(False, help="send X-Request-Id with every answer")
    default_chat_template_kwargs: Mapping[str, Any] = flag(
        {},
        help="variables of the chat template for every request, such as enable_thinking; what a "
        "request says wins",
    )
    stream_interval: int = flag(
        1,
        ge=1,
        le=10_000,
        unit="tokens",
        help="number of tokens that a stream collects before it sends them; the first is sent at "
        "once. More than 1 means fewer, larger pieces",
    )
    sse_keep_alive_interval: float = flag(
        0.0,
        ge=0,
        le=86400,
        unit="seconds",
        help="send a comment in streams that have been silent for so long, so that proxies keep "
        "them open; 0 sends none",
    )
    enable_per_request_metrics: bool = flag(
        False,
        help="report in every answer how long the request waited, and how long its tokens took, "
        "as metrics",
    )
    enable_prompt_tokens_details: bool = flag(
        True, help="report in usage how many prompt tokens came from the prefix cache"
    )
    enable_force_include_usage: bool = flag(
        False,
        help="report usage in every chunk of every stream, even if the request does not ask for it",
    )
    enable_server_load_tracking: bool = flag(
        False,
        help="report the number of requests that this process is answering as server_load at /load",
    )
    return_tokens_as_token_ids: bool = flag(
        False, help='write logprob tokens as "token_id:123" so that they are never ambiguous'
    )
    enable_log_requests: bool = flag(False, help="log every request when it arrives")
    enable_log_outputs: bool = flag(
        False, help="log every answer when it is complete; needs --enable-log-requests"
    )
    enable_log_deltas: bool = flag(
        False, help="also log every piece of an answer as it comes; needs --enable-log-outputs"
    )
    log_error_stack: bool = flag(False, help="log the traceback behind every error answer")
    max_log_len: int | None = flag(
        None,
        ge=0,
        unit="characters",
        help="maximum number of characters of a prompt or an answer in a log line",
        default_note="no limit",
    )
    shutdown_timeout: float = flag(
        30.0,
        ge=0,
        le=86400,
        unit="seconds",
        help="how long running requests may continue after SIGTERM",
    )
    file_storage: str | None = flag(
        None,
        metavar="FOLDER",
        help="folder for /v1/files and /v1/batches, which are there only with it; batches that a "
        "restart interrupts go on",
        default_note="no files and batches",
    )
    file_storage_quota: int = flag(
        64 * 2**30,
        ge=1,
        unit="bytes",
        help="bytes that the files of one API key may take in --file-storage; uploads and batches "
        "above it are refused",
    )
    max_body_bytes: int = flag(
        16 * 2**20, ge=1024, unit="bytes", help="maximum size of a request body"
    )
    strict_request_fields: bool = flag(
        False, help="answer unknown request fields with an error instead of a warning"
    )
    timeout_keep_alive: int = flag(
        5, ge=0, le=86400, unit="seconds", help="how long an idle connection stays open"
    )
    uds: str | None = flag(
        None, metavar="PATH", help="Unix socket to listen on instead of host and port"
    )
    ssl_keyfile: str | None = flag(None, metavar="FILE", help="private key for TLS")
    ssl_certfile: str | None = flag(None, metavar="FILE", help="certificate for TLS")
    ssl_ca_certs: str | None = flag(
        None,
        metavar="FILE",
        help="file of the certificate authorities (CA) whose client certificates are accepted",
    )
    ssl_cert_reqs: int = flag(
        0,
        ge=0,
        le=2,
        help="whether clients need a certificate: 0 not needed, 1 optional, 2 required",
    )
    ssl_ciphers: str | None = flag(
        None,
        metavar="CIPHERS",
        help="ciphers for TLS up to 1.2, as OpenSSL writes them; those of TLS 1.3 are fixed",
        default_note="Python's own",
    )
    enable_ssl_refresh: bool = flag(False, help="read the TLS files again when they change")
    middleware: tuple[str, ...] = flag(
        (),
        kind="middleware",
        metavar="PATH",
        help="ASGI middleware by import path: a class, or an async function of request and next",
    )
    h11_max_incomplete_event_size: int = flag(
        4 * 2**20, ge=1024, unit="bytes", help="maximum size of a request's headers"
    )
    h11_max_header_count: int = flag(256, ge=1, help="maximum number of headers of a request")
    trust_request_chat_template: bool = flag(
        False, help="allow requests to bring their own chat template"
    )
    exclude_tools_when_tool_choice_none: bool = flag(
        False, help="leave tools out of the prompt where tool_choice is none"
    )
    enable_dev_endpoints: bool = flag(
        False,
        help="serve endpoints for development and measurements, such as /reset_prefix_cache and "
        "/server_info",
    )
    allow_runtime_lora_updating: bool = flag(
        False,
        help="let clients load and unload LoRA adapters while the server runs, by "
        "/v1/load_lora_adapter and /v1/unload_lora_adapter",
    )
    keep_alive_on_engine_death: bool = flag(
        False, help="when the engine has died, keep the server running and answer with errors"
    )
    enable_tokenizer_info_endpoint: bool = flag(
        False,
        help="serve /tokenizer_info (also as /get_tokenizer_info), which also shows the template",
    )
    tool_server: tuple[str, ...] = flag(
        (),
        kind="tool_server",
        metavar="HOST:PORT",
        help="MCP servers (at /mcp) whose tools the model may call in the Responses API",
    )

    @property
    def has_keys(self) -> bool:
        """Return whether clients need a key."""
        return bool(self.api_key or self.api_keys_file)
