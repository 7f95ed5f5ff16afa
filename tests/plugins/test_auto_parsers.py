"""`auto`: the right parsers for each family's chat template, and none where none is right.

The templates are written here, as short as they can be: the special tokens, markers and sentences
that the family's model card or chat template documents (its address stands beside it), in the way a
template mentions them. A family without tool calls or thinking must get none.
"""

from __future__ import annotations

import logging

import pytest

from dovetail import registry
from dovetail.cli.main import main
from dovetail.config.config import Config
from dovetail.server.generate.tools.parsers import choose_parsers

HF = "https://huggingface.co/"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
QWEN_TOOLS = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools> For each function call, return a json "
    'object within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, '
    '"arguments": <args-json-object>}\n</tool_call>{% endif %}'
)
SPLITS_THINKING = "{% set content = m.content.split('</think>')[-1] %}"
OPENS_THINKING = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
LLAMA = (
    "{{ bos_token }}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
)
LLAMA_JSON = (
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and '
    "its value}. Do not use variables."
)
LLAMA_PYTHON = (
    "you MUST put it in the format of [func_name1(params_name1=params_value1, params_name2="
    "params_value2...), func_name2(params)]"
)
LLAMA4 = "{{ bos_token }}<|header_start|>{{ m.role }}<|header_end|>\n\n{{ m.content }}<|eot|>"
DEEPSEEK = "<｜User｜>{{ m.content }}<｜Assistant｜>{{ content }}<｜end▁of▁sentence｜>"
DEEPSEEK_TOOLS = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ t.type }}<｜tool▁sep｜>{{ t.function.name }}\n"
    "```json\n{{ t.function.arguments }}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK_V31_TOOLS = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ t.function.name }}<｜tool▁sep｜>"
    "{{ t.function.arguments }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
MISTRAL = "{{ bos_token }}[INST] {{ m.content }}[/INST]"
MISTRAL_TOOLS = "[AVAILABLE_TOOLS] {{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS] [{{ call }}]"
GLM_TOOLS = (
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}"
    "</arg_value>\n</tool_call>"
)
GRANITE = "<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>"
GRANITE_TOOLS = "respond with <|tool_call|> followed by a JSON list of tools used."
GEMMA = "<bos><start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>"
PHI = "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n<|assistant|>\n"
OLMO_TOOLS = "You are Olmo. <functions>{{ tools }}</functions><function_calls></function_calls>"
APRIEL = (
    "provide the final solution in the following format: [BEGIN FINAL RESPONSE] ... [END FINAL "
    'RESPONSE]. {"name": <function-name-1>, "arguments": <args-dict-1>} '
)

FAMILIES = {
    # name: (source, template, tool parser, reasoning parser)
    "Llama 2": (
        "meta-llama/Llama-2-7b-chat-hf",
        "<s>[INST] <<SYS>> {{ m.content }} [/INST]",
        "",
        "",
    ),
    "Llama 3": ("meta-llama/Meta-Llama-3-8B-Instruct", LLAMA, "", ""),
    "Llama 3.1": (
        "meta-llama/Llama-3.1-8B-Instruct",
        f"{LLAMA}{LLAMA_JSON}<|python_tag|>",
        "llama3_json",
        "",
    ),
    "Llama 3.2": ("meta-llama/Llama-3.2-3B-Instruct", LLAMA + LLAMA_JSON, "llama3_json", ""),
    "Llama 3.2, Python": ("meta-llama/Llama-3.2-3B-Instruct", LLAMA + LLAMA_PYTHON, "pythonic", ""),
    "Llama 3.3": (
        "meta-llama/Llama-3.3-70B-Instruct",
        f"{LLAMA}{LLAMA_JSON}<|python_tag|>",
        "llama3_json",
        "",
    ),
    "Llama 4": (
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        f"{LLAMA4}{LLAMA_JSON}<|python_start|>",
        "llama4_json",
        "",
    ),
    "Llama 4, Python": (
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        f"{LLAMA4}{LLAMA_PYTHON}<|python_start|>",
        "llama4_pythonic",
        "",
    ),
    "Llama 3 with Hermes tools": (
        "Groq/Llama-3-Groq-8B-Tool-Use",
        f'{LLAMA}{QWEN_TOOLS}"parameters"',
        "hermes",
        "",
    ),
    "Qwen 2": ("Qwen/Qwen2-7B-Instruct", CHATML, "", ""),
    "Qwen 2.5": ("Qwen/Qwen2.5-7B-Instruct", CHATML + QWEN_TOOLS, "hermes", ""),
    "Qwen3": ("Qwen/Qwen3-8B", CHATML + QWEN_TOOLS + SPLITS_THINKING, "hermes", "qwen3"),
    "QwQ": (
        "Qwen/QwQ-32B",
        CHATML + QWEN_TOOLS + SPLITS_THINKING + OPENS_THINKING,
        "hermes",
        "qwen3",
    ),
    "Qwen3-Coder": (
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        f"{CHATML}<tool_call>\n<function=example>\n<parameter=p>\nvalue\n</parameter>\n</function>\n"
        "</tool_call>",
        "qwen3_coder",
        "",
    ),
    "Hermes 2 Pro": ("NousResearch/Hermes-2-Pro-Mistral-7B", CHATML + QWEN_TOOLS, "hermes", ""),
    "Hermes 3": ("NousResearch/Hermes-3-Llama-3.1-8B", CHATML + QWEN_TOOLS, "hermes", ""),
    "Mistral v1": ("mistralai/Mistral-7B-Instruct-v0.1", MISTRAL, "", ""),
    "Mistral v3": ("mistralai/Mistral-7B-Instruct-v0.3", MISTRAL + MISTRAL_TOOLS, "mistral", ""),
    "Mistral v7": (
        "mistralai/Mistral-Small-24B-Instruct-2501",
        f"[SYSTEM_PROMPT]{{{{ s }}}}[/SYSTEM_PROMPT]{MISTRAL}{MISTRAL_TOOLS}",
        "mistral",
        "",
    ),
    "Mistral v13": (
        "mistralai/Devstral-Small-2507",
        f"{MISTRAL}[TOOL_CALLS]{{{{ t.function.name }}}}[ARGS]{{{{ t.function.arguments }}}}",
        "mistral",
        "",
    ),
    "Mixtral": ("mistralai/Mixtral-8x7B-Instruct-v0.1", MISTRAL, "", ""),
    "Magistral": (
        "mistralai/Magistral-Small-2507",
        f"[SYSTEM_PROMPT]think first: [THINK]thoughts[/THINK][/SYSTEM_PROMPT]{MISTRAL}"
        f"{MISTRAL_TOOLS}",
        "mistral",
        "mistral",
    ),
    "DeepSeek-V3": ("deepseek-ai/DeepSeek-V3-0324", DEEPSEEK + DEEPSEEK_TOOLS, "deepseek_v3", ""),
    "DeepSeek-R1": (
        "deepseek-ai/DeepSeek-R1",
        DEEPSEEK + DEEPSEEK_TOOLS + SPLITS_THINKING,
        "deepseek_v3",
        "deepseek_r1",
    ),
    "DeepSeek-R1 distilled": (
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        f"{DEEPSEEK}{DEEPSEEK_TOOLS}{SPLITS_THINKING}<｜Assistant｜><think>\n",
        "deepseek_v3",
        "deepseek_r1",
    ),
    "DeepSeek-V3.1": (
        "deepseek-ai/DeepSeek-V3.1",
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
        f"{DEEPSEEK}{DEEPSEEK_V31_TOOLS}{SPLITS_THINKING}<｜Assistant｜>"
        "{% if not thinking %}</think>{% else %}<think>{% endif %}",
        "deepseek_v31",
        "deepseek_v3",
    ),
    "GLM-4.5": (
        "zai-org/GLM-4.5",
        f"[gMASK]<sop><|user|>\n{{{{ m.content }}}}{GLM_TOOLS}{SPLITS_THINKING}\n<think></think>",
        "glm45",
        "glm45",
    ),
    "Kimi K2": (
        "moonshotai/Kimi-K2-Instruct",
        "<|im_user|>user<|im_middle|>{{ m.content }}<|im_end|><|tool_calls_section_begin|>"
        "<|tool_call_begin|>{{ t.id }}<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "kimi_k2",
        "",
    ),
    "Kimi K2 Thinking": (
        "moonshotai/Kimi-K2-Thinking",
        "<|im_user|>user<|im_middle|>{{ m.content }}<|im_end|><think>{{ rc }}</think>"
        "<|tool_calls_section_begin|><|tool_call_begin|>{{ t.id }}<|tool_call_argument_begin|>",
        "kimi_k2",
        "kimi_k2",
    ),
    "MiniMax-M1": (
        "MiniMaxAI/MiniMax-M1-80k",
        "<beginning_of_sentence>{{ m.role }} name={{ m.name }}\n{{ m.content }}<end_of_sentence>"
        "wrapped in <tool_calls></tool_calls> XML tags",
        "minimax",
        "",
    ),
    "MiniMax-M2": (
        "MiniMaxAI/MiniMax-M2",
        f']~b]ai\n{SPLITS_THINKING}<minimax:tool_call>\n<invoke name="tool-name-1">\n<parameter '
        'name="param-key-1">param-value-1</parameter>\n</invoke>\n</minimax:tool_call>]~b]ai\n'
        "<think>\n",
        "minimax_m2",
        "minimax_m2",
    ),
    "gpt-oss": (
        "openai/gpt-oss-20b",
        "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant "
        "to={{ 'functions.' + t.name }}<|channel|>commentary json<|message|>{{ t.arguments }}"
        "<|call|><|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>",
        "gpt-oss",
        "openai_gptoss",
    ),
    "Granite 3.1": ("ibm-granite/granite-3.1-8b-instruct", GRANITE + GRANITE_TOOLS, "granite", ""),
    "Granite 3.2": (
        "ibm-granite/granite-3.2-8b-instruct",
        f"{GRANITE}{GRANITE_TOOLS}Write the thoughts after 'Here is my thought process:' and write "
        "the response after 'Here is my response:' for each user query.",
        "granite",
        "granite",
    ),
    "Granite 3.3": (
        "ibm-granite/granite-3.3-8b-instruct",
        f"{GRANITE}{GRANITE_TOOLS}Write your thoughts between <think></think> and write your "
        "response between <response></response> for each user query.",
        "granite",
        "granite33",
    ),
    "Granite 4": ("ibm-granite/granite-4.0-h-small", GRANITE + QWEN_TOOLS, "granite", ""),
    "granite-20b-functioncalling": (
        "ibm-granite/granite-20b-functioncalling",
        "SYSTEM: you have functions <function_call> {{ m.content }}\nUSER: ASSISTANT:",
        "granite-20b-fc",
        "",
    ),
    "Phi-3": ("microsoft/Phi-3-mini-4k-instruct", PHI, "", ""),
    "Phi-4-mini": (
        "microsoft/Phi-4-mini-instruct",
        f"{PHI}<|tool|>{{{{ m.tools }}}}<|/tool|>",
        "phi4_mini_json",
        "",
    ),
    "Phi-4-reasoning": (
        "microsoft/Phi-4-reasoning",
        "<|im_start|>system<|im_sep|>structure your response: <think> {Thought section} </think> "
        "{Solution section}<|im_end|>{{ m.content }}",
        "",
        "qwen3",
    ),
    "Gemma 2": ("google/gemma-2-9b-it", GEMMA, "", ""),
    "Gemma 3": ("google/gemma-3-4b-it", f"{GEMMA}<start_of_image>", "", ""),
    "Gemma 3 with a tool prompt": (
        "https://ai.google.dev/gemma/docs/capabilities/function-calling",
        f"{GEMMA}wrap it using ```tool_code```",
        "gemma",
        "",
    ),
    "FunctionGemma": (
        "google/functiongemma-270m-it",
        f"{GEMMA}<start_function_declaration>declaration:{{{{ n }}}}<end_function_declaration>"
        "<start_function_call>call:{{ n }}{k:<escape>{{ v }}<escape>}<end_function_call>",
        "functiongemma",
        "",
    ),
    "InternLM2.5": (
        "internlm/internlm2_5-7b-chat",
        f"{CHATML}<|im_start|>system name=<|plugin|>\n{{{{ tools }}}}<|im_end|>",
        "internlm",
        "",
    ),
    "InternLM3": ("internlm/internlm3-8b-instruct", CHATML, "", ""),
    "Jamba 1.5": (
        "ai21labs/AI21-Jamba-Mini-1.5",
        "<|bom|><|system|> {{ m.content }}<|eom|><tool_calls>[{{ t }}]</tool_calls>",
        "jamba",
        "",
    ),
    "xLAM 2, Llama": (
        "Salesforce/Llama-xLAM-2-8b-fc-r",
        f'{LLAMA}the output MUST strictly adhere to a single JSON array of "parameters"',
        "xlam",
        "",
    ),
    "xLAM 2, Qwen": (
        "Salesforce/xLAM-2-3b-fc-r",
        f"{CHATML}the output MUST strictly adhere to a single JSON array",
        "xlam",
        "",
    ),
    "Hunyuan-A13B": (
        "tencent/Hunyuan-A13B-Instruct",
        f"<|startoftext|>{{{{ m.content }}}}<|extra_0|>{SPLITS_THINKING}<answer>\n<tool_calls>"
        '[{"name": "f"}]</tool_calls>',
        "hunyuan_a13b",
        "hunyuan_a13b",
    ),
    "Seed-OSS": (
        "ByteDance-Seed/Seed-OSS-36B-Instruct",
        "<seed:bos>{{ m.role }}\n<seed:think>{{ m.reasoning_content }}</seed:think><seed:tool_call>"
        "\n<function=f>\n<parameter=p>value_1</parameter>\n</function>\n</seed:tool_call><seed:eos>",
        "seed_oss",
        "seed_oss",
    ),
    "Step3": (
        "stepfun-ai/step3",
        "<|BOT|>{{ m.role }}\n{{ m.content }}<|EOT|><｜tool_calls_begin｜>\n<｜tool_call_begin｜>"
        'function<｜tool_sep｜><steptml:invoke name="f"></steptml:invoke><｜tool_call_end｜>'
        "<｜tool_calls_end｜><|BOT|>assistant\n<think>\n",
        "step3",
        "step3",
    ),
    "OLMo 2": (
        "allenai/OLMo-2-1124-7B-Instruct",
        "<|user|>\n{{ m.content }}\n<|assistant|>\n",
        "",
        "",
    ),
    "OLMo 3 Instruct": ("allenai/Olmo-3-7B-Instruct", CHATML + OLMO_TOOLS, "olmo3", ""),
    "OLMo 3 Think": (
        "allenai/Olmo-3-7B-Think",
        CHATML + OLMO_TOOLS + OPENS_THINKING,
        "olmo3",
        "olmo3",
    ),
    "LFM2": (
        "LiquidAI/LFM2-1.2B",
        f"{CHATML}List of tools: <|tool_list_start|>[{{{{ t }}}}]<|tool_list_end|>",
        "lfm2",
        "",
    ),
    "SmolLM2": ("HuggingFaceTB/SmolLM2-1.7B-Instruct", CHATML, "", ""),
    "SmolLM3": (
        "HuggingFaceTB/SmolLM3-3B",
        f"{CHATML}{QWEN_TOOLS}{SPLITS_THINKING}/no_think<think>\n\n</think>\n",
        "hermes",
        "qwen3",
    ),
    "LFM2.5": (
        "LiquidAI/LFM2.5-1.2B-Instruct",
        f'{CHATML}{SPLITS_THINKING}"List of tools: [" + {{{{ tools | tojson }}}}',
        "lfm2",
        "qwen3",
    ),
    "LFM2.5-8B-A1B": (
        "LiquidAI/LFM2.5-8B-A1B",
        f"{CHATML}<think>{{{{ m.thinking }}}}</think><|tool_call_start|>[{{{{ calls }}}}]"
        '<|tool_call_end|>"List of tools: "',
        "lfm2",
        "qwen3",
    ),
    "Mistral Small 3.1 with lists": (
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        "call tools. If you call one or more tools, format them in a single JSON array or objects. "
        'Use the format [{"name": tool call name, "arguments": tool call arguments}]'
        f"[SYSTEM_PROMPT]{{{{ s }}}}[/SYSTEM_PROMPT]{MISTRAL}{MISTRAL_TOOLS}",
        "mistral",
        "",
    ),
    "Apriel 1.5": (
        "ServiceNow-AI/Apriel-1.5-15b-Thinker",
        f"<|system|>\n{APRIEL}Return all function calls as a list of json objects within "
        "<tool_call></tool_call> XML tags.\n<tool_calls>[{{ t }}]</tool_calls>"
        "<|assistant|>\n<thinking>",
        "apriel",
        "apriel",
    ),
    "Apriel 1.6": (
        "ServiceNow-AI/Apriel-1.6-15b-Thinker",
        f"<|begin_system|>\n{APRIEL}Return all function calls as a list of JSON objects within "
        "<tool_calls></tool_calls> XML tags.<|begin_assistant|>\nHere are my reasoning steps:\n",
        "apriel",
        "apriel",
    ),
    "MiniMax-M3": (
        "MiniMaxAI/MiniMax-M3",
        "{%- set ns_token = ']<]minimax[>[' -%}{%- set toolcall_begin_token = ns_token ~ "
        "'<tool_call>' -%}{%- set think_begin_token = '<mm:think>' -%}{%- set think_end_token = "
        "'</mm:think>' -%}{{ t.arguments }}]~b]ai\n",
        "minimax_m3",
        "minimax_m3",
    ),
    "Gemma 4": (
        "google/gemma-4-31B-it",
        '<|turn>model\n<|tool_call>call:{{ n }}{{k:<|"|>v<|"|>}}<tool_call|><|channel>thought\n'
        "<channel|><turn|>",
        "gemma4",
        "gemma4",
    ),
    "GigaChat 3": (
        "ai-sage/GigaChat3-10B-A1.8B",
        'assistant<|role_sep|>\n{{ m.content }}<|message_sep|>\n\n"role": "function call"',
        "gigachat3",
        "",
    ),
    "Apertus": (
        "swiss-ai/Apertus-8B-Instruct-2509",
        "<|assistant_start|><|inner_prefix|>{{ t }}<|inner_suffix|><|tools_prefix|>[{{ c }}]"
        "<|tools_suffix|><|assistant_end|>",
        "apertus",
        "apertus",
    ),
    "Command A Reasoning": (
        "CohereLabs/command-a-reasoning-08-2025",
        "<|CHATBOT_TOKEN|><|START_THINKING|>{{ t }}<|END_THINKING|><|START_ACTION|>[{{ c }}]"
        "<|END_ACTION|><|START_RESPONSE|>{{ m }}<|END_RESPONSE|>",
        "cohere_command3",
        "cohere_command3",
    ),
    "Command R": ("CohereLabs/c4ai-command-r-v01", "<|CHATBOT_TOKEN|>{{ m.content }}", "", ""),
    "MiniMax-M2, whole": (
        "MiniMaxAI/MiniMax-M2",
        f']~!b[]~b]system\n{SPLITS_THINKING}<minimax:tool_call>\n<invoke name="f">\n<parameter '
        'name="k">v</parameter>\n</invoke>\n</minimax:tool_call>[e~[]~b]tool\n'
        "<response>{{ m.content }}</response>",
        "minimax_m2",
        "minimax_m2",
    ),
    "GigaChat 3.1": (
        "ai-sage/GigaChat3.1-10B-A1.8B",
        "{{ role }}<|role_sep|>\n{{ m }}<|message_sep|>\n\n<|function_call|>{{ c }}",
        "gigachat3",
        "",
    ),
    "ERNIE 4.5 Thinking": (
        "baidu/ERNIE-4.5-21B-A3B-Thinking",
        f"<|im_start|>system\n<global_setting>\nthink_mode=True\n</global_setting><|im_end|>{CHATML}"
        f"{QWEN_TOOLS}{SPLITS_THINKING}<response>\n{{{{ m.content }}}}\n</response>",
        "hermes",
        "ernie45",
    ),
    "Qwen3 with answers in tags": (
        "Qwen/Qwen3-8B",
        f"{CHATML}{QWEN_TOOLS}{SPLITS_THINKING}<answer>{{{{ m.content }}}}</answer>",
        "hermes",
        "qwen3",
    ),
    "Qwen3 with tool responses": (
        "Qwen/Qwen3-8B",
        f"{CHATML}{QWEN_TOOLS}{SPLITS_THINKING}<response>{{{{ m.content }}}}</response>",
        "hermes",
        "qwen3",
    ),
    "GigaChat 3.5": (
        "ai-sage/GigaChat3.5-432B-A28B",
        "<think>{{ r }}</think>{{ m }}<|message_sep|><｜GCML｜tool_calls>\n<｜GCML｜invoke "
        'name="f">\n<｜GCML｜parameter name="k" string="true">v</｜GCML｜parameter>',
        "gigachat35",
        "qwen3",
    ),
    "K2 Horizon": (
        "IFM/K2-Horizon-7B",
        "<|ifm|im_start|>assistant\n<ifm|think>\n{{ r }}</ifm|think>{{ m }}<ifm|tool_calls>"
        "<ifm|tool_call>{{ n }}\n<ifm|arg_key>{{ k }}</ifm|arg_key>",
        "k2_horizon",
        "k2_horizon",
    ),
    "Solar Open": (
        "upstage/Solar-Open-100B",
        "<|begin|>assistant<|think|>{{ r }}<|end|><|begin|>assistant<|content|>{{ m }}<|end|>"
        "<|tool_calls|><|tool_call:begin|>{{ i }}<|tool_call:name|>{{ n }}<|tool_call:args|>{{ a }}"
        "<|tool_call:end|><|calls|>",
        "solar_open",
        "solar_open",
    ),
    "DeepSeek-V3.2": (
        "deepseek-ai/DeepSeek-V3.2",
        "{% if not thinking %}</think>{% endif %}<｜User｜>{{ m }}<｜Assistant｜><think>"
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>',
        "deepseek_v32",
        "deepseek_v3",
    ),
    "DeepSeek-V4": (
        "deepseek-ai/DeepSeek-V4-Pro",
        "{% if not thinking %}</think>{% endif %}<｜User｜>{{ m }}<｜Assistant｜><think>"
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>',
        "deepseek_v4",
        "deepseek_v3",
    ),
    "DeepSeek-V4.1": (
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "{% if not thinking %}</think>{% endif %}<｜User｜>{{ m }}<｜Assistant｜><think>"
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
        "deepseek_v41",
        "deepseek_v3",
    ),
    "IQuest-Q1": (
        "IQuestLab/IQuest-Q1",
        f"{SPLITS_THINKING}<iquest_tool_call>{{name}}\n<arg_key>k</arg_key>\n"
        "<arg_value>v</arg_value>\n</iquest_tool_call>",
        "iquest_q1",
        "qwen3",
    ),
    "Nemotron Nano v2": (
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        f'{SPLITS_THINKING}<TOOLCALL>[{{{{ \'{{"name": "\' + c.function.name }}}}]</TOOLCALL>',
        "nemotron_v2",
        "qwen3",
    ),
    "Hy3": (
        "tencent/Hy3-preview",
        f"{SPLITS_THINKING}<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>k</arg_key>\n"
        "<arg_value>v</arg_value>\n</tool_call>\n</tool_calls>",
        "hy_v3",
        "hy_v3",
    ),
    "Hy3 with suffixes": (
        "tencent/Hy3",
        f"{SPLITS_THINKING}<tool_calls:6124c78e>\n<tool_call:6124c78e>f<tool_sep:6124c78e>\n"
        "<arg_key:6124c78e>k</arg_key:6124c78e>\n{{ '</think:6124c78e>' }}",
        "hy_v3",
        "hy_v3",
    ),
    "Kimi K3": (
        "moonshotai/Kimi-K3",
        "{%- macro open_tag(tag) -%}{{ '<|open|>' + tag }}{{ '<|sep|>' }}{%- endmacro -%}"
        "{{ open_tag('think') }}{{ open_tag('tools') }}",
        "kimi_k3",
        "kimi_k3",
    ),
    "LongCat-Flash-Thinking": (
        "meituan-longcat/LongCat-Flash-Thinking",
        "<longcat_assistant><longcat_think>\n</longcat_think><longcat_tool_call>{{ c }}"
        "</longcat_tool_call>",
        "longcat",
        "longcat",
    ),
    "MiniCPM5": (
        "openbmb/MiniCPM5-1B",
        f'{CHATML}{SPLITS_THINKING}<function name="f"><param name="p">v</param></function>',
        "minicpm5",
        "qwen3",
    ),
    "dots": (
        "https://docs.vllm.ai/en/latest/api/vllm/tool_parsers/dots_tool_parser/",
        '<dots_function_call>\n<invoke name="f">\n</invoke>\n</dots_function_call>',
        "dots",
        "",
    ),
    "Step 3.5": (
        "stepfun-ai/Step-3.5-Flash",
        f"{CHATML}{SPLITS_THINKING}{OPENS_THINKING}<tool_call>\n<function=f>\n<parameter=p>\nv\n"
        "</parameter>\n</function>\n</tool_call>",
        "qwen3_coder",
        "qwen3",
    ),
    "ChatML": ("any", CHATML, "", ""),
    "none": ("any", "", "", ""),
}


def picked(template: str) -> tuple[str, str]:
    choice = choose_parsers(Config.from_fields({}), template)
    return (
        choice.tool.name if choice.tool else "",
        choice.reasoning.name if choice.reasoning else "",
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_right_parsers_are_picked(family: str) -> None:
    _, template, tool, reasoning = FAMILIES[family]
    assert picked(template) == (tool, reasoning)


def test_every_parser_is_picked_for_some_family() -> None:
    """Each plugin class is some family's (two names of one class count once), but for the one that
    is used only by name."""
    for kind, place in (("tool_parser", 2), ("reasoning_parser", 3)):
        chosen = {registry.load(kind, row[place]) for row in FAMILIES.values() if row[place]}
        chosen.add(registry.load(kind, "response_template"))
        known = {registry.load(kind, entry.id) for entry in registry.entries(kind)}
        assert known - chosen == set()


def test_the_log_says_which_markers_decided(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dovetail.server")
    picked(FAMILIES["GLM-4.5"][1])
    tool, reasoning = (record.getMessage() for record in caplog.records)
    assert tool.startswith("tool_parser auto: glm45, by ")
    assert "<arg_value>" in tool
    assert "glm4_moe" in tool.partition("also fit: ")[2]
    assert reasoning.startswith("reasoning_parser auto: glm45, by </think>, <think> in")


def test_a_named_parser_is_taken_whatever_the_template_says() -> None:
    config = Config.from_fields({"tool_call_parser": "step3", "reasoning_parser": "mistral"})
    choice = choose_parsers(config, FAMILIES["Qwen3"][1])
    assert choice.tool is not None
    assert choice.reasoning is not None
    assert (choice.tool.name, choice.reasoning.name) == ("step3", "mistral")


def test_auto_and_none_are_words_of_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "check", "--port", "0", "--tool-call-parser", "auto"]
    assert main([*words, "--enable-auto-tool-choice", "--reasoning-parser", "none"]) == 0
    assert "tool calls hermes, reasoning none" in capsys.readouterr().out
    config = Config.from_fields({"tool_call_parser": "none", "reasoning_parser": "auto"})
    choice = choose_parsers(config, FAMILIES["Qwen3"][1])
    assert choice.tool is None
    assert choice.reasoning is not None and choice.reasoning.name == "qwen3"
    assert main([*words[:-1], "none"]) == 0
    assert "tool calls none" in capsys.readouterr().out
    assert main([*words[:-1], "none", "--enable-auto-tool-choice"]) == 2
    assert "needs a tool parser" in capsys.readouterr().err


SAME = {
    "tool_parser": {
        "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "deepseekv32": "deepseek_v32",
        "deepseekv4": "deepseek_v4", "deepseekv41": "deepseek_v41", "glm": "glm45",
        "hunyuan": "hy_v3", "internlm2": "internlm", "interns1": "internlm", "ling3": "glm45",
        "hy_v4": "hy_v3", "nanbeige": "qwen3_coder",
        "llama3": "llama3_json", "minimax-m2": "minimax_m2", "minimax-m3": "minimax_m3",
        "qwen": "hermes", "qwen25": "hermes", "spark25": "glm45", "trinity": "hermes",
    },
    "reasoning_parser": {
        "deepseek-r1": "deepseek_r1", "deepseek-v3": "deepseek_v3", "deepseek-v4": "deepseek_v4",
        "gpt-oss": "openai_gptoss", "hunyuan": "hy_v3", "ling3": "qwen3",
        "minimax-m3": "minimax_m3", "qwen3-thinking": "deepseek_r1", "hy_v4": "hy_v3",
        "nanbeige": "qwen3", "deepseek-v41": "deepseek_v41", "dots": "qwen3", "interns1": "qwen3",
        "nemotron_3": "nemotron_v3", "apertus2509": "apertus", "minimax": "minimax_m2",
        "gigachat35": "deepseek_r1", "iquest_q1": "qwen3",
    },
}  # fmt: skip
"""Kind -> another server's name of a parser -> the name of the same one here."""


@pytest.mark.parametrize("kind", SAME)
def test_other_servers_names_mean_the_same_parser(kind: str) -> None:
    targets = {entry.name: entry.target for entry in registry.entries(kind)}
    assert {name: targets[name] for name in SAME[kind]} == {
        name: targets[own] for name, own in SAME[kind].items()
    }
