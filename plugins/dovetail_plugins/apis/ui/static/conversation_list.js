// The list of conversations: open, rename, export, import, delete.

import { announce, download, el, icon, iconButton } from "./dom.js";
import { exported, imported, listed, load, nameOf, remove } from "./store.js";

/** Return the list: its node, draw(id of the open one), and the button that shows it when narrow. */
export function makeConversationList({ open, begin, renamed, removed }) {
  let current = null;
  let menu = null;
  const items = el("ul", { class: "conversations" });
  const file = el("input", { type: "file", accept: "application/json,.json", hidden: true,
    onchange: readFile });
  const fault = el("p", { class: "notice fault", role: "alert", hidden: true });
  const footButton = (name, text, label, onclick) => el("button", { type: "button",
    class: "with-icon", "aria-label": label, title: label, onclick }, icon(name), text);
  const exportAll = footButton("save", "Export", "Export all conversations", () => {
    download("dovetail-conversations.json", exported(listed()));
  });
  const node = el("aside", { class: "sidebar", id: "conversations", "aria-label": "Conversations",
    onkeydown: (event) => event.key === "Escape" && close() },
    el("button", { type: "button", class: "begin", onclick: begin }, icon("plus"), "New chat"),
    items, fault,
    el("div", { class: "row sidebar-foot" }, exportAll,
      footButton("upload", "Import", "Import conversations", () => file.click()), file));

  function draw(id) {
    if (node.querySelector(".rename")) return;
    current = id;
    const kept = listed();
    exportAll.disabled = !kept.length;
    items.replaceChildren(...kept.map(item));
  }

  function item(conversation) {
    const { id } = conversation;
    const name = nameOf(conversation);
    const isHere = id === current;
    return el("li", { class: isHere ? "is-here" : null },
      el("button", { type: "button", class: "name", "aria-current": isHere ? "true" : null,
        onclick: () => open(id) }, name),
      el("div", { class: "actions" },
        iconButton("edit", `Rename ${name}`, (event) => rename(id, event)),
        iconButton("save", `Export ${name}`, () =>
          download(`${name.replace(/[^\w-]+/g, "-").slice(0, 40)}.json`, exported([load(id)]))),
        iconButton("trash", `Delete ${name}`, (event) => askToRemove(id, name, event))));
  }

  function rename(id, event) {
    const row = event.currentTarget.closest("li");
    const field = el("input", { class: "rename", value: nameOf(load(id)), "aria-label": "Name",
      maxlength: 120 });
    const done = (isWanted) => {
      if (!field.isConnected) return;
      const name = field.value.trim();
      field.remove();
      if (isWanted && name) renamed(id, name);
      else draw(current);
      items.querySelector(".is-here .name")?.focus();
    };
    field.addEventListener("keydown", (key) => {
      if (key.key === "Enter") done(true);
      if (key.key === "Escape") {
        key.stopPropagation();
        done(false);
      }
    });
    field.addEventListener("blur", () => done(true));
    row.replaceChildren(field);
    field.select();
  }

  /** Deleting takes a second click: nothing brings a conversation back. */
  function askToRemove(id, name, event) {
    const row = event.currentTarget.closest("li");
    const sure = el("button", { type: "button", class: "danger", onclick: () => {
      remove(id);
      removed([id]);
      announce(`${name} was deleted`);
    } }, "Delete");
    row.replaceChildren(el("span", { class: "name sure" }, "Delete this chat?"), sure,
      iconButton("close", "Keep it", () => draw(current)));
    sure.focus();
  }

  async function readFile() {
    try {
      const added = imported(await file.files[0].text());
      fault.hidden = true;
      announce(`${added.length} conversations were imported`);
      if (added.length) open(added[0].id);
    } catch (error) {
      fault.textContent = `Not imported: ${error.message}`;
      fault.hidden = false;
    }
    file.value = "";
  }

  function toggle() {
    const isOpen = node.classList.toggle("is-open");
    menu.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) node.querySelector(".begin").focus();
  }

  function close() {
    if (!node.classList.contains("is-open")) return;
    node.classList.remove("is-open");
    menu.setAttribute("aria-expanded", "false");
    menu.focus();
  }

  return { node, draw, toggle, close, setButton: (button) => (menu = button) };
}
