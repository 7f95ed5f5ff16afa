// Speech becomes text: a sound from a file or the microphone goes to the server's model of speech.

import { announce, el, iconButton } from "./dom.js";
import { makeRecorder } from "./recorder.js";
import { ask } from "./server.js";

/** Return the controls: their nodes, and setModel with the name of the model that hears, or null.
 *
 * `heard` gets what was said, `failed` a sentence or null. */
export function makeSpeech({ heard, failed }) {
  let model = null;
  const file = el("input", { type: "file", accept: "audio/*", hidden: true, "aria-label": "Sound",
    onchange: () => {
      const [chosen] = file.files;
      if (chosen) write(chosen, chosen.name);
      file.value = "";
    } });
  const choose = iconButton("sound", "Write down a sound", () => file.click(), { hidden: true });
  const recorder = makeRecorder({ label: "Speak", failed,
    recorded: (sound) => write(sound, "speech.webm") });

  /** Ask for what is said in a sound. */
  async function write(sound, name) {
    failed(null);
    const body = new FormData();
    body.append("model", model);
    body.append("file", sound, name);
    choose.disabled = recorder.node.disabled = true;
    announce("Listening");
    try {
      const { text } = await (await ask("v1/audio/transcriptions", { body })).json();
      heard(text.trim());
    } catch (error) {
      failed(error.message);
    }
    choose.disabled = recorder.node.disabled = false;
  }

  return {
    nodes: [choose, recorder.node, file],
    setModel: (name) => {
      model = name;
      choose.hidden = name === null;
      recorder.setOffered(name !== null);
    },
  };
}
