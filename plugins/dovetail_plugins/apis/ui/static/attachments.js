// Files that go with a message: pictures and sounds where the model takes them, and texts. Added by
// a button, from the clipboard, by dragging them here, or from the microphone.

import { announce, el, icon, iconButton, size } from "./dom.js";
import { makeRecorder } from "./recorder.js";

const MAX_MEDIA_BYTES = 8 * 2 ** 20;
const MAX_TEXT_BYTES = 256 * 2 ** 10;
const MAX_BYTES = 11 * 2 ** 20; // of all together: a server takes bodies of 16 MiB, in base64
const MAX_FILES = 16;
const NAME_CHARS = 120;
const SOUND_FORMATS = { mpeg: "mp3", "x-wav": "wav", wave: "wav", "vnd.wave": "wav",
  "x-flac": "flac", mp4: "m4a", "x-m4a": "m4a" };

/** Return the attachments of a message that is being written: their nodes, previews, and what the
 * composer does with them.
 *
 * `failed` gets what was left out and why, or null; `changed` is called after files were added. */
export function makeAttachments({ failed, changed }) {
  let takes = { images: false, sounds: false };
  let kept = [];
  const previews = el("ul", { class: "previews", "aria-label": "Added files" });
  const input = el("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files",
    onchange: () => add(input.files) });
  const button = iconButton("clip", "Add files", () => input.click());
  const recorder = makeRecorder({ label: "Record a sound", failed,
    recorded: (sound) => add([new File([sound], `recording.${formatOf(sound)}`, sound)]) });

  /** Add files, one after another; what cannot be taken is left out, with a sentence. */
  async function add(files) {
    const faults = [];
    let num = 0;
    for (const file of [...files]) {
      try {
        keep(await read(file, takes, spare()));
        num += 1;
      } catch (error) {
        faults.push(`${shortName(file)} was left out: ${error.message}`);
      }
    }
    input.value = "";
    failed(faults.join(" ") || null);
    if (!num) return;
    announce(num === 1 ? "A file was added" : `${num} files were added`);
    changed();
  }

  const spare = () => kept.length < MAX_FILES
    ? MAX_BYTES - kept.reduce((sum, one) => sum + one.bytes, 0) : 0;

  function keep(one) {
    kept.push(one);
    const preview = el("li", { class: `preview is-${one.kind}` }, previewOf(one),
      iconButton("close", `Leave ${one.name} out`, () => {
        kept = kept.filter((other) => other !== one);
        preview.remove();
        button.focus();
      }));
    previews.append(preview);
  }

  /** Return what is attached as fields of a message. */
  function values() {
    const of = (kind) => kept.filter((one) => one.kind === kind);
    const found = {
      images: of("image").map(({ url }) => url),
      sounds: of("sound").map(({ name, format, data }) => ({ name, format, data })),
      files: of("text").map(({ name, text }) => ({ name, text })),
    };
    return Object.fromEntries(Object.entries(found).filter(([, list]) => list.length));
  }

  return {
    nodes: [button, recorder.node, input],
    previews,
    add,
    values,
    isEmpty: () => !kept.length,
    clear: () => {
      kept = [];
      previews.replaceChildren();
    },
    setTakes: (able) => {
      takes = able;
      recorder.setOffered(able.records);
      const words = [able.images && "pictures", able.sounds && "sounds", "texts"].filter(Boolean);
      button.title = `Add files: ${words.join(", ")}`;
    },
  };
}

/** Let files be dragged into an element; `taken` gets those that are dropped. */
export function dropFiles(root, taken) {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (isOver) => root.classList.toggle("is-dropping", isOver);
  root.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    mark(true);
  });
  root.addEventListener("dragleave", (event) => {
    if (!root.contains(event.relatedTarget)) mark(false);
  });
  root.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(false);
    taken(event.dataTransfer.files);
  });
}

/** Return what was attached to a message that has been sent, as nodes. */
export function attachedNodes({ images, sounds, files }) {
  return [
    ...(images ?? []).map((src) => el("img", { src, alt: "Sent picture" })),
    ...(sounds ?? []).map(({ name }) => el("p", { class: "chip" }, icon("sound"), el("span", {}, name))),
    ...(files ?? []).map(({ name, text }) => el("details", { class: "fold" },
      el("summary", {}, name), el("pre", { tabindex: "0" }, text))),
  ];
}

function previewOf(one) {
  if (one.kind === "image") return el("img", { src: one.url, alt: one.name, title: one.name });
  return el("span", { class: "chip", title: one.name },
    icon(one.kind === "sound" ? "sound" : "page"),
    el("span", {}, one.name), el("small", {}, size(one.bytes)));
}

/** Return a file as what it is: a picture, a sound or a text. Throws Error for any other. */
async function read(file, takes, spareBytes) {
  const kind = kindOf(file);
  if (kind === "image" && !takes.images) throw new Error("this model takes no pictures.");
  if (kind === "sound" && !takes.sounds) throw new Error("this model takes no sounds.");
  const maxBytes = kind === "text" ? MAX_TEXT_BYTES : MAX_MEDIA_BYTES;
  if (file.size > maxBytes) throw new Error(`it has more than ${size(maxBytes)}.`);
  if (!file.size) throw new Error("it is empty.");
  if (file.size > spareBytes) {
    throw new Error(`a message has at most ${MAX_FILES} files of ${size(MAX_BYTES)} together.`);
  }
  const facts = { kind, name: shortName(file), bytes: file.size };
  if (kind === "text") return { ...facts, text: textOf(await file.arrayBuffer()) };
  const url = await dataUrl(file);
  if (kind === "image") return { ...facts, url };
  return { ...facts, format: formatOf(file), data: url.slice(url.indexOf(",") + 1) };
}

/** Pictures of lines are texts: no model's reader draws them. */
function kindOf({ type }) {
  if (type.startsWith("image/") && !type.startsWith("image/svg")) return "image";
  return type.startsWith("audio/") ? "sound" : "text";
}

function formatOf({ type }) {
  const word = type.slice(type.indexOf("/") + 1).split(";")[0];
  return (SOUND_FORMATS[word] ?? word).slice(0, 16);
}

function textOf(buffer) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(buffer);
  } catch {
    throw new Error("it is neither a picture, a sound nor a text in UTF-8.");
  }
  if (text.includes("\0")) throw new Error("it is neither a picture, a sound nor a text.");
  return text;
}

function shortName({ name }) {
  return name.length > NAME_CHARS ? `${name.slice(0, NAME_CHARS)}…` : name || "file";
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
