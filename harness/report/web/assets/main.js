// Brings the page to life: reads the data, shows what the fragment asks for, and follows what the reader chooses.
"use strict";

const SELECTS = ["op", "dtype", "show", "unit"];
const FILTERS = ["q", "op", "dtype", "show"];

const fill = (id, all, values) => {
  const names = [...new Set(values)];
  Page.at(id).append(Page.make("option", { value: "" }, all), ...names.map((name) => Page.make("option", { value: name }, name)));
};

// ---- From the fragment to the page.

let last = {};

Page.changed = () => {
  const state = Page.state();
  const differs = (...keys) => keys.some((key) => state[key] !== last[key]);
  const first = last.q === undefined;
  const [filtered, rewritten] = [differs(...FILTERS), differs("unit")];
  Page.unit = state.unit;
  for (const key of ["q", ...SELECTS]) if (Page.at(key).value !== state[key]) Page.at(key).value = state[key];
  if (differs("theme")) dress(state.theme);
  if (rewritten && !first) Page.table.rewrite();
  if (filtered || rewritten) Page.found = Page.table.show(state);
  if (filtered || rewritten || differs("metric", "theme")) Page.plot.show(Page.found, state);
  if (differs("case")) Page.drawer.show(state.case);
  last = state;
};

const dress = (theme) => {
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  Page.at("theme").ariaPressed = String(dark);
};

// ---- From the reader to the fragment.

// What the filters find stands below the answer, so the first letter brings it into view.
const filter = (changes) => {
  Page.set(changes);
  const place = Page.at("cases").getBoundingClientRect();
  if (place.top > innerHeight / 2 || place.bottom < innerHeight / 3) Page.at("cases").scrollIntoView();
};

const listen = () => {
  Page.at("bar").addEventListener("submit", (event) => event.preventDefault());
  Page.at("q").addEventListener("input", (event) => filter({ q: event.target.value }));
  for (const key of SELECTS) Page.at(key).addEventListener("change", (event) => (key === "unit" ? Page.set : filter)({ [key]: event.target.value }));
  Page.at("reset").addEventListener("click", () => Page.set({ dtype: "", op: "", q: "", show: "" }));
  Page.at("theme").addEventListener("click", (event) => Page.set({ theme: event.currentTarget.ariaPressed === "true" ? "light" : "dark" }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (dress(Page.state().theme), Page.plot.show(Page.found, Page.state())));
  addEventListener("hashchange", () => (unfold(), Page.changed()));
  addEventListener("popstate", Page.changed);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select, textarea") || Page.at("drawer").open) return;
    event.preventDefault();
    Page.at("q").focus();
  });
  document.addEventListener("click", follow);
};

// A link to a case keeps the filters, a link to a filter leads to what it finds.
const follow = (event) => {
  const link = event.target.closest?.("a[href^='#q='], a[href^='#op='], a[href^='#case=']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const asked = Object.fromEntries(new URLSearchParams(link.hash.slice(1)));
  if (asked.case) Page.set(asked, true);
  else filter({ dtype: "", op: "", q: "", show: "", ...asked });
};

// A link to a folded part opens it.
const unfold = () => {
  const part = /^#part-\d+$/.test(location.hash) && document.querySelector(location.hash);
  if (part) part.open = true;
};

const opLinks = () => {
  for (const cell of document.querySelectorAll("#ops tbody td:first-child")) {
    cell.replaceChildren(Page.make("a", { href: `#${new URLSearchParams({ op: cell.textContent })}` }, cell.textContent));
  }
};

(async () => {
  Page.rows = await Page.read("rows");
  fill("op", "all", Page.rows.op);
  fill("dtype", "all", Page.rows.dtype);
  Page.at("bar").hidden = false;
  opLinks();
  Page.table.start();
  Page.plot.start();
  Page.drawer.start();
  Page.changes.start();
  listen();
  unfold();
  Page.changed();
  // A link with a filter leads to what the filter finds.
  if (FILTERS.some((key) => Page.state()[key])) Page.at("cases").scrollIntoView();
  performance.mark("ready");
  document.documentElement.dataset.ready = "yes";
})();
