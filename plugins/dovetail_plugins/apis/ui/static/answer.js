// A conversation becomes a request, and the chunks of a stream become a message. Knows no page.

export const NUMBERS = {
  temperature: { label: "Temperature", min: 0, max: 100, step: 0.05 },
  top_p: { label: "Top p", min: 0, max: 1, step: 0.01 },
  top_k: { label: "Top k", min: -1, step: 1 },
  min_p: { label: "Min p", min: 0, max: 1, step: 0.01 },
  max_tokens: { label: "Max tokens", min: 1, step: 1 },
  seed: { label: "Seed", step: 1 },
  repetition_penalty: { label: "Repetition penalty", min: 0.001, max: 100, step: 0.01 },
  presence_penalty: { label: "Presence penalty", min: -2, max: 2, step: 0.05 },
  frequency_penalty: { label: "Frequency penalty", min: -2, max: 2, step: 0.05 },
};

/** Fields that hold JSON: what each must be, for the error. */
export const JSON_FIELDS = {
  schema: { label: "JSON schema", isRight: isObject, wanted: "an object" },
  tools: { label: "Tools", isRight: Array.isArray, wanted: "a list" },
  extra: { label: "Further fields", isRight: isObject, wanted: "an object" },
};

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Return what is wrong with a JSON field's text; an empty text where nothing is. */
export function jsonFault(name, text) {
  if (!text?.trim()) return "";
  try {
    const field = JSON_FIELDS[name];
    return field.isRight(JSON.parse(text)) ? "" : `This must be ${field.wanted}.`;
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}

/** Return the body that asks for the next message of a conversation. */
export function requestBody(conversation, model) {
  const { options } = conversation;
  const body = {
    model,
    messages: messagesOf(conversation),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  for (const name of Object.keys(NUMBERS)) {
    if (options[name] !== undefined && options[name] !== "") body[name] = Number(options[name]);
  }
  const stop = (options.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (options.thinking) body.enable_thinking = options.thinking === "on";
  if (options.schema?.trim()) {
    const schema = JSON.parse(options.schema);
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (options.tools?.trim()) body.tools = JSON.parse(options.tools);
  return options.extra?.trim() ? { ...body, ...JSON.parse(options.extra) } : body;
}

function messagesOf({ options, messages }) {
  const system = options.system?.trim();
  const sent = messages.filter((message) => message.role !== "assistant" || isWorth(message));
  const first = system ? [{ role: "system", content: system }] : [];
  return first.concat(sent.map(sentMessage));
}

/** Return whether an answer says anything that the model should see again. */
function isWorth(message) {
  return Boolean(message.content || message.toolCalls?.length);
}

function sentMessage(message) {
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.callId, content: message.content };
  }
  if (message.role === "user") return { role: "user", content: userContent(message) };
  const sent = { role: message.role, content: message.content };
  if (message.toolCalls?.length) {
    sent.tool_calls = message.toolCalls.map(({ id, name, arguments: args }) => ({
      id,
      type: "function",
      function: { name, arguments: args },
    }));
  }
  return sent;
}

/** Return a user's text with its text files before it, and parts where there are media. */
function userContent({ content, images, sounds, files }) {
  const text = [...(files ?? []).map(quotedFile), content].filter(Boolean).join("\n\n");
  const media = [
    ...(images ?? []).map((url) => ({ type: "image_url", image_url: { url } })),
    ...(sounds ?? []).map(({ data, format }) =>
      ({ type: "input_audio", input_audio: { data, format } })),
  ];
  if (!media.length) return text;
  return text ? [{ type: "text", text }, ...media] : media;
}

/** Return a file as a block of code, whose fence is longer than any in it. */
function quotedFile({ name, text }) {
  const runs = text.match(/`+/g) ?? [];
  const fence = "`".repeat(Math.max(3, ...runs.map((run) => run.length + 1)));
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** Return a message that nothing has come of yet. */
export function emptyAnswer(startMs) {
  return { role: "assistant", content: "", reasoning: "", toolCalls: [], usage: null, finish: null,
    error: null, startMs, firstMs: null, lastMs: null };
}

/** Add a chunk of the stream to a message. Mutates: answer */
export function addChunk(answer, chunk, nowMs) {
  if (chunk.usage) answer.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { delta = {} } = choice;
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  answer.content += delta.content ?? "";
  answer.reasoning += reasoning;
  for (const piece of delta.tool_calls ?? []) addCall(answer.toolCalls, piece);
  if (delta.content || reasoning || delta.tool_calls?.length) {
    answer.firstMs ??= nowMs;
    answer.lastMs = nowMs;
  }
  answer.finish = choice.finish_reason ?? answer.finish;
}

function addCall(calls, piece) {
  calls[piece.index] ??= { id: "", name: "", arguments: "" };
  const call = calls[piece.index];
  call.id ||= piece.id ?? "";
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

/** Return the tokens per second of an answer; null where it cannot be said.
 *
 * Counted from the first token on, or from the request if all came at once. */
export function speed({ usage, startMs, firstMs, lastMs }) {
  const count = usage?.completion_tokens ?? 0;
  if (!count || firstMs === null || lastMs === null) return null;
  const writingMs = lastMs - firstMs;
  if (count > 1 && writingMs > 20) return ((count - 1) * 1000) / writingMs;
  return lastMs > startMs ? (count * 1000) / (lastMs - startMs) : null;
}
