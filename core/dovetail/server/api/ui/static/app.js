// The page as a whole: which of its three views is shown, which model is served, the key.

import { makeChat } from "./chat.js";
import { el } from "./dom.js";
import { askForKey } from "./key_dialog.js";
import { askJson, setKeyAsker } from "./server.js";
import { makeSettingsPage } from "./settings_page.js";
import { makeStatePage } from "./state_page.js";

const TITLES = { chat: "Chat", server: "Server", settings: "Settings" };

/** Return a view's element. Its id is not its address, to which the browser would jump. */
const place = (name) => document.getElementById(`view-${name}`);
const views = {
  chat: makeChat(place("chat")),
  server: makeStatePage(place("server")),
  settings: makeSettingsPage(place("settings")),
};
let shown = null;

/** Show the view that the address names. The others stand still meanwhile. */
function route() {
  const [name] = location.hash.slice(1).split("/");
  const next = Object.hasOwn(views, name) ? name : "chat";
  if (next === shown) return;
  if (shown !== null) views[shown].hide();
  shown = next;
  for (const other of Object.keys(views)) place(other).hidden = other !== next;
  for (const link of document.querySelectorAll(".tabs a")) {
    const isHere = link.getAttribute("href") === `#${next}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[next]} · dovetail`;
  views[next].show();
}

/** Learn which models are served, and tell the chat. */
async function findModels() {
  const line = document.getElementById("model-name");
  try {
    const { data } = await askJson("v1/models");
    views.chat.setModels(data);
    line.textContent = data[0]?.id ?? "";
  } catch (error) {
    line.replaceChildren(
      el("span", { class: "fault" }, error.message),
      el("button", { type: "button", class: "link-button", onclick: findModels }, "Try again"),
    );
  }
}

setKeyAsker(askForKey);
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
route();
findModels();
