// The page as a whole: which of its views is shown, which model is served, the key.

import { makeChat } from "./chat.js";
import { makeComparePage } from "./compare_page.js";
import { askForKey } from "./key_dialog.js";
import { makeModels } from "./models.js";
import { makeModelsPage } from "./models_page.js";
import { setKeyAsker } from "./server.js";
import { makeSettingsPage } from "./settings_page.js";
import { makeStatePage } from "./state_page.js";

const TITLES = { chat: "Chat", compare: "Compare", models: "Models", server: "Server",
  settings: "Settings" };

/** Return a view's element. Its id is not its address, to which the browser would jump. */
const place = (name) => document.getElementById(`view-${name}`);
const models = makeModels(document.getElementById("model-name"), {
  listed: (cards) => (document.getElementById("tab-compare").hidden = cards.length < 2),
  wanted: () => views.chat.conversation.model,
  changed: (model) => {
    views.chat.setModel(model);
    views.settings.setModel(model);
  },
});
const views = {
  chat: makeChat(place("chat"), models),
  compare: makeComparePage(place("compare"), models, () => views.chat.conversation.options),
  models: makeModelsPage(place("models"), models),
  server: makeStatePage(place("server"), models),
  settings: makeSettingsPage(place("settings"), models),
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

setKeyAsker(askForKey);
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
route();
models.find();
