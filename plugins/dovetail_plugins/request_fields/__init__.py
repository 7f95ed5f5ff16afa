"""What fields of requests to other servers mean here: a table for each subject.

Sources: the API references of OpenAI, Anthropic, Mistral, OpenRouter, DeepSeek and Ollama, and the
documentation of the servers of llama.cpp, SGLang, TGI, vLLM, KoboldCpp and
text-generation-webui.
"""
