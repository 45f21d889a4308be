// The details of one case: what its fragment names is open.
"use strict";
Page.drawer = {};

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 480;
const TALL = 90;
const MOST_VARIANTS = 10;

const shape = (name, fields) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(fields)) made.setAttribute(key, value);
  return made;
};

// ---- Its parts.

const samples = ([low, high, counts]) => {
  const most = Math.max(...counts);
  const picture = shape("svg", { class: "histogram", role: "img", viewBox: `0 0 ${WIDTH} ${TALL}` });
  picture.setAttribute("aria-label", `samples between ${Page.words.time(low)} and ${Page.words.time(high)}`);
  counts.forEach((count, place) => {
    const [step, tall] = [WIDTH / counts.length, (TALL * count) / most];
    const bar = shape("rect", { height: tall, width: step - 1, x: place * step, y: TALL - tall });
    const from = low + ((high - low) * place) / counts.length;
    bar.append(shape("title", {}));
    bar.firstChild.textContent = `${count} from ${Page.words.time(from)}`;
    picture.append(bar);
  });
  const total = counts.reduce((sum, count) => sum + count, 0);
  const ends = Page.make("p", { className: "ends" }, Page.make("span", {}, Page.words.time(low)), Page.make("span", {}, Page.words.time(high)));
  return Page.make("section", {}, Page.make("h3", {}, `${total} samples`), picture, ends);
};

const siblings = (index) => {
  const { rows } = Page;
  const group = rows.id.map((_, i) => i).filter((i) => rows.group[i] === rows.group[index]);
  const slowest = Math.max(...group.map((i) => rows.time[i] ?? 0));
  const body = group.map((i) => {
    const bar = Page.make("meter", { max: slowest || 1, min: 0, title: Page.words.told(i), value: rows.time[i] ?? 0 });
    bar.ariaLabel = `time of ${rows.variant[i]}`;
    const ratio = rows.time[i] && rows.time[index] ? `${(rows.time[i] / rows.time[index]).toFixed(2)}x` : "";
    const name = i === index ? Page.make("b", {}, rows.variant[i]) : Page.caseLink(i, rows.variant[i]);
    const time = rows.time[i] === null ? rows.status[i] : Page.words.time(rows.time[i]);
    const cells = [name, time, ratio, bar].map((content, place) => Page.make("td", { className: place === 1 || place === 2 ? "number" : "" }, content));
    return Page.make("tr", {}, ...cells);
  });
  const heads = ["variant", "time", "over this", "bar"].map((head) => Page.make("th", { scope: "col" }, head));
  const table = Page.make("table", {}, Page.make("thead", {}, Page.make("tr", {}, ...heads)), Page.make("tbody", {}, ...body));
  return Page.make("section", {}, Page.make("h3", {}, "All variants of this comparison"), folded(group, index, table));
};

// Dozens of variants are folded, so that the first screen says why the case takes so long.
const folded = (group, index, table) => {
  const whole = Page.region("all variants", table);
  if (group.length <= MOST_VARIANTS) return whole;
  const told = `${group.length} variants, of which this is number ${group.indexOf(index) + 1}; ${Page.rows.variant[group[0]]} is the first`;
  return Page.make("details", {}, Page.make("summary", {}, told), whole);
};

// HTML that the report made: every text in it was escaped there.
const ready = (html) => {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  return holder.content;
};

const sources = (more, index) => {
  const files = more.sources[index].map((place) => more.files[place]);
  if (!files.length) return Page.make("p", {}, "The source isn't here: the op wasn't loaded when the page was made.");
  return Page.make("section", {}, Page.make("h3", {}, "Source"), ...files.map(([title, html]) => {
    const code = Page.make("pre", { ariaLabel: title, className: "source", role: "group", tabIndex: 0 });
    const whole = Page.make("details", {}, Page.make("summary", {}, title), code);
    // A long source takes a while, so it waits until it is wanted.
    whole.addEventListener("toggle", () => code.firstChild || code.append(ready(html)), { once: true });
    return whole;
  }));
};

// ---- Opening and closing.

Page.drawer.show = async (id) => {
  const dialog = Page.at("drawer");
  if (!id) return dialog.open && dialog.close();
  const index = Page.rows.id.indexOf(id);
  Page.at("drawer-title").textContent = id;
  Page.drawer.wanted = id;
  if (!dialog.open) dialog.showModal();
  if (index < 0) {
    Page.at("drawer-parts").replaceChildren();
    Page.at("drawer-body").replaceChildren(Page.make("p", {}, "This run has no case of this name."));
    return;
  }
  const more = await Page.more();
  if (Page.drawer.wanted !== id) return;
  const drawn = more.histogram[index] ? [samples(more.histogram[index])] : [];
  Page.at("drawer-body").replaceChildren(siblings(index), ready(more.html[index]), ...drawn, sources(more, index));
  Page.at("drawer-parts").replaceChildren(...partLinks());
  dialog.scrollTop = 0;
};

// A button for each part. The one of the source opens its first file.
const partLinks = () =>
  [...Page.at("drawer-body").querySelectorAll("h3")].map((head) => {
    const button = Page.make("button", { type: "button" }, head.textContent);
    button.addEventListener("click", () => {
      const folded = head.nextElementSibling?.matches("details:not([open])") && head.nextElementSibling;
      if (!folded) return head.scrollIntoView();
      // What it holds is there after the event.
      folded.addEventListener("toggle", () => head.scrollIntoView(), { once: true });
      folded.open = true;
    });
    return button;
  });

Page.drawer.start = () => {
  const dialog = Page.at("drawer");
  Page.at("close").addEventListener("click", () => dialog.close());
  // The event comes later, when another case may be open already.
  dialog.addEventListener("close", () => dialog.open || Page.set({ case: "" }, true));
  // A click beside the dialog closes it.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
};
