// Conversations, kept in this browser alone: one entry of localStorage for each.

const PREFIX = "dovetail.chat.";
const FORMAT = "dovetail-conversations-1";
const NAME_CHARS = 48;
const ROLES = new Set(["user", "assistant", "tool"]);

/** Return a new conversation with the options of another one. It is kept once it has a message. */
export function newConversation(options = {}) {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? randomId(), name: "", created: now, changed: now,
    options: { ...options }, messages: [] };
}

/** randomUUID is there on safe origins only; http over a network is none. */
function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}

/** Return what can be said of every conversation in a list, the latest first. */
export function listed() {
  return Object.keys(localStorage)
    .filter((key) => key.startsWith(PREFIX))
    .map((key) => load(key.slice(PREFIX.length)))
    .filter(Boolean)
    .sort((a, b) => b.changed - a.changed);
}

/** Return a conversation; null where there is none, or one that cannot be read. */
export function load(id) {
  try {
    const found = JSON.parse(localStorage.getItem(PREFIX + id));
    return isConversation(found) ? found : null;
  } catch {
    return null;
  }
}

function isConversation(value) {
  const isText = (text) => typeof text === "string";
  const isCall = (call) => [call?.id, call?.name, call?.arguments].every(isText);
  const isFile = (file) => isText(file?.name) && isText(file.text);
  const isSound = (sound) => [sound?.name, sound?.format, sound?.data].every(isText);
  const isMessage = (one) => ROLES.has(one?.role) && isText(one.content)
    && (one.toolCalls ?? []).every(isCall) && (one.images ?? []).every(isText)
    && (one.sounds ?? []).every(isSound) && (one.files ?? []).every(isFile);
  return isText(value?.id) && isText(value.name) && Number.isFinite(value.changed)
    && value.options !== null && typeof value.options === "object"
    && Object.values(value.options).every(isText)
    && Array.isArray(value.messages) && value.messages.every(isMessage);
}

/** Keep a conversation, without its pictures and sounds where there is no room for them. Return what
 * hinders it, in words; an empty text where nothing does. */
export function save(conversation) {
  if (isKept(conversation)) return "";
  const messages = conversation.messages.map(({ images, sounds, ...rest }) => rest);
  return isKept({ ...conversation, messages })
    ? "This browser has no room for the pictures and sounds of this chat: they are kept until the "
      + "page is closed, its texts longer."
    : "This browser has no room left for conversations: export and delete some.";
}

function isKept(conversation) {
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

/** Forget a conversation. */
export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

/** Return a name from the first words of a conversation. */
export function nameOf(conversation) {
  if (conversation.name) return conversation.name;
  const text = conversation.messages.find((one) => one.role === "user")?.content ?? "";
  const line = text.trim().split(/\s+/).join(" ");
  return line.length > NAME_CHARS ? `${line.slice(0, NAME_CHARS).trimEnd()}…` : line || "New chat";
}

/** Return conversations as the text of a file. */
export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, conversations }, null, 2);
}

/** Keep the conversations of a file under new ids; return them. Throws Error for another file. */
export function imported(text) {
  const file = JSON.parse(text);
  if (file?.format !== FORMAT || !file.conversations.every(isConversation)) {
    throw new Error("this file holds no conversations of this page.");
  }
  return file.conversations.map((one) => {
    const kept = { ...one, id: newConversation().id };
    const fault = save(kept);
    if (fault) throw new Error(fault);
    return kept;
  });
}

/** Call a function when another tab of this browser changes the conversations. */
export function watch(changed) {
  addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(PREFIX)) changed();
  });
}
