// A button that records from the microphone until it is pressed again.

import { icon, iconButton } from "./dom.js";

/** Return the button as `node`, and setOffered. `recorded` gets the sound, `failed` a sentence. */
export function makeRecorder({ label, recorded, failed }) {
  let recorder = null;
  const node = iconButton("microphone", label, toggle, { hidden: true, "aria-pressed": "false" });

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
      recorded(new Blob(parts, { type: recorder.mimeType }));
      recorder = null;
      show();
    });
    recorder.start();
    show();
  }

  function show() {
    const isOn = recorder !== null;
    const text = isOn ? "End the recording" : label;
    node.setAttribute("aria-pressed", String(isOn));
    node.setAttribute("aria-label", text);
    node.title = text;
    node.replaceChildren(icon(isOn ? "stop" : "microphone"));
  }

  return {
    node,
    setOffered: (isOffered) => {
      node.hidden = !isOffered || !navigator.mediaDevices || !window.MediaRecorder;
    },
  };
}
