// Asks for the server's API key. What is typed is kept for this tab's session, never longer.

import { el } from "./dom.js";

/** Return the key that the reader types; null if none. `wasRefused`: one was sent and is wrong;
 * `isManaging`: it is one for managing models. */
export function askForKey(wasRefused, isManaging) {
  return new Promise((resolve) => {
    const field = el("input", {
      type: "password", id: "key", autocomplete: "off", required: true,
      "aria-describedby": "key-note", "aria-invalid": wasRefused ? "true" : null,
    });
    const note = wasRefused
      ? "The server does not know this key."
      : "It is kept until this tab is closed, and sent to this server alone.";
    const dialog = el("dialog", { class: "key-dialog", "aria-labelledby": "key-title" },
      el("form", { method: "dialog", onsubmit: (event) => {
        event.preventDefault();
        dialog.close("given");
      } },
        el("h2", { id: "key-title" },
          isManaging ? "Managing models needs a key" : "This server needs a key"),
        el("label", { for: "key" }, "API key"),
        field,
        el("p", { id: "key-note", class: wasRefused ? "fault" : "quiet" }, note),
        el("div", { class: "row end" },
          el("button", { type: "button", onclick: () => dialog.close("") }, "Not now"),
          el("button", { type: "submit", class: "primary" }, "Continue"))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "given" ? field.value.trim() : null);
    });
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
  });
}
