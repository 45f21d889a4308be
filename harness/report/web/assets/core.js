// What the other scripts share: the data, the state in the fragment of the URL, and small tools.
"use strict";
const Page = {};

// ---- Data. It lies in scripts of a type that no browser runs, as base64 of gzip of JSON.

Page.unpack = async (base64) => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
};

Page.read = (name) => Page.unpack(document.getElementById(name).textContent);

// The details are long, so they are read when the first case is opened.
Page.more = () => (Page.moreRead ??= Page.read("more"));

// ---- Elements. Texts of a run become text nodes here, never markup.

Page.at = (id) => document.getElementById(id);

Page.make = (name, fields = {}, ...children) => {
  const { dataset = {}, ...rest } = fields;
  const made = Object.assign(document.createElement(name), rest);
  Object.assign(made.dataset, dataset);
  made.append(...children);
  return made;
};

// A table that scrolls where the page is too narrow.
Page.region = (name, table) => Page.make("div", { ariaLabel: name, className: "wide", role: "group", tabIndex: 0 }, table);

Page.caseLink = (index, label) =>
  Page.make("a", { href: `#${new URLSearchParams({ case: Page.rows.id[index] })}`, title: Page.words.told(index) }, label);

// ---- State: what is chosen stands in the fragment, so that a link shows the same.

const KEYS = ["q", "op", "dtype", "show", "unit", "metric", "theme", "case"];

Page.state = () => {
  const found = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(KEYS.map((key) => [key, found.get(key) ?? ""]));
};

Page.fragment = (changes) => {
  const kept = Object.entries({ ...Page.state(), ...changes }).filter(([, value]) => value);
  return new URLSearchParams(kept).toString();
};

// A step is one that the browser's button Back undoes.
Page.set = (changes, step = false) => {
  const url = `#${Page.fragment(changes)}`;
  if (url === location.hash || (url === "#" && !location.hash)) return;
  history[step ? "pushState" : "replaceState"](null, "", url);
  Page.changed();
};
