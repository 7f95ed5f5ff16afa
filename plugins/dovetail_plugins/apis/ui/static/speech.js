// Speech becomes text: a sound from a file or the microphone goes to the server's model of speech.

import { announce, el, icon, iconButton } from "./dom.js";
import { ask } from "./server.js";

/** Return the controls: their nodes, and setModel with the name of the model that hears, or null.
 *
 * `heard` gets what was said, `failed` a sentence or null. */
export function makeSpeech({ heard, failed }) {
  let model = null;
  let recorder = null;
  const file = el("input", { type: "file", accept: "audio/*", hidden: true, "aria-label": "Sound",
    onchange: () => {
      const [chosen] = file.files;
      if (chosen) write(chosen, chosen.name);
      file.value = "";
    } });
  const choose = iconButton("sound", "Write down a sound", () => file.click(), { hidden: true });
  const record = iconButton("microphone", "Speak", toggle, { hidden: true, "aria-pressed": "false" });

  async function toggle() {
    if (recorder) {
      recorder.stop();
      return;
    }
    try {
      begin(await navigator.mediaDevices.getUserMedia({ audio: true }));
    } catch (error) {
      failed(`The microphone cannot be used: ${error.message}`);
    }
  }

  function begin(stream) {
    const parts = [];
    recorder = new MediaRecorder(stream);
    recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
    recorder.addEventListener("stop", () => {
      for (const track of stream.getTracks()) track.stop();
      write(new Blob(parts, { type: recorder.mimeType }), "speech.webm");
      recorder = null;
      show();
    });
    recorder.start();
    show();
  }

  /** Ask for what is said in a sound. */
  async function write(sound, name) {
    failed(null);
    const body = new FormData();
    body.append("model", model);
    body.append("file", sound, name);
    choose.disabled = record.disabled = true;
    announce("Listening");
    try {
      const { text } = await (await ask("v1/audio/transcriptions", { body })).json();
      heard(text.trim());
    } catch (error) {
      failed(error.message);
    }
    choose.disabled = record.disabled = false;
  }

  function show() {
    const isOn = recorder !== null;
    const label = isOn ? "End the recording" : "Speak";
    record.setAttribute("aria-pressed", String(isOn));
    record.setAttribute("aria-label", label);
    record.title = label;
    record.replaceChildren(icon(isOn ? "stop" : "microphone"));
  }

  return {
    nodes: [choose, record, file],
    setModel: (name) => {
      model = name;
      choose.hidden = name === null;
      record.hidden = name === null || !navigator.mediaDevices || !window.MediaRecorder;
    },
  };
}
