// The table of cases and its filters.
"use strict";
Page.table = {};

const FIRST = [
  { head: "op", key: "op" },
  { head: "type", key: "dtype" },
  { head: "size", key: "setting" },
  { head: "variant", key: "variant" },
];
const LENGTHS = [50, 200, -1];

// ---- Which cases are shown.

const SHOW = {
  best: (i) => Page.rows.best[i],
  ours: (i) => Page.rows.ours[i],
  behind: (i) => Page.rows.behind[i],
  untimed: (i) => Page.rows.time[i] === null,
  warned: (i) => Page.rows.warnings[i],
};

// Every word has to be in the case's id, sizes, role, status or warnings. A word that some case has as a whole has to be
// a whole one: 'N49' doesn't find N4096.
const isWhole = (word) => {
  const plain = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const found = new RegExp(`(?<![a-z0-9_])${plain}(?![a-z0-9_])`);
  return (text) => found.test(text);
};

const matcher = (word) => {
  const whole = isWhole(word);
  return Page.table.texts.some(whole) ? whole : (text) => text.includes(word);
};

Page.table.fits = (state) => {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean).map(matcher);
  return (i) =>
    (!state.op || Page.rows.op[i] === state.op) &&
    (!state.dtype || Page.rows.dtype[i] === state.dtype) &&
    (!SHOW[state.show] || SHOW[state.show](i)) &&
    words.every((fits) => fits(Page.table.texts[i]));
};

const searched = (i) => {
  const rows = Page.rows;
  // A reader may type 'N=4096' for N4096.
  const equal = rows.whole[i].replace(/([A-Za-z]+)(\d+)/g, "$1=$2");
  const texts = [rows.id[i], rows.group[i], rows.whole[i], equal, rows.role[i], rows.status[i], rows.warnings[i]];
  return texts.join(" ").toLowerCase();
};

// ---- The table.

const cell = (i, column) => {
  const shown = Page.make("span", {}, Page.words.cell(column, i));
  if (column.name === "time") shown.title = Page.words.told(i);
  return shown;
};

const variantCell = (i) => {
  const { rows } = Page;
  const shown = Page.make("span", {}, Page.caseLink(i, rows.variant[i]));
  const marks = [rows.best[i] && "fastest", rows.behind[i] && "behind", rows.failed[i] && "failed"].filter(Boolean);
  for (const mark of marks) shown.append(" ", Page.make("small", { className: `mark ${mark}` }, mark));
  return shown;
};

// Cases without a value stand last: the first click on a head sorts the best first.
const sortable = (column, i) => column.values[i] ?? (column.better === "higher" ? -Infinity : Infinity);

const columnsOf = () => {
  const names = FIRST.map(({ key }) => ({
    data: null,
    render: (_, type, i) => {
      if (type !== "display") return type === "sort" && key === "setting" ? i : Page.rows[key][i];
      return key === "variant" ? variantCell(i) : Page.make("span", {}, Page.rows[key][i]);
    },
  }));
  const values = Page.rows.columns.map((column) => ({
    data: null,
    type: "num",
    className: "number",
    orderSequence: column.better === "higher" ? ["desc", "asc", ""] : ["asc", "desc", ""],
    render: (_, type, i) => (type === "display" ? cell(i, column) : sortable(column, i)),
  }));
  const warnings = { data: null, render: (_, type, i) => (type === "display" ? Page.make("span", {}, Page.rows.warnings[i]) : Page.rows.warnings[i]) };
  return [...names, ...values, warnings];
};

const headOf = (text, title = "") => Page.make("th", { scope: "col", title }, text);

Page.table.start = () => {
  const { rows } = Page;
  Page.table.texts = rows.id.map((_, i) => searched(i));
  const heads = [...FIRST.map(({ head }) => headOf(head)), ...rows.columns.map((c) => headOf(c.head, c.hint)), headOf("warnings")];
  const made = Page.make("table", {}, Page.make("thead", {}, Page.make("tr", {}, ...heads)));
  Page.at("table").append(Page.region("cases", made));
  Page.table.made = new DataTable(made, {
    autoWidth: false,
    columns: columnsOf(),
    data: rows.id.map((_, i) => i),
    deferRender: true,
    language: { lengthMenu: "_MENU_ cases a page", emptyTable: "no case fits", zeroRecords: "no case fits" },
    layout: { topStart: null, topEnd: null, bottomStart: rows.id.length > LENGTHS[0] ? "pageLength" : null, bottomEnd: rows.id.length > LENGTHS[0] ? "paging" : null },
    lengthMenu: LENGTHS.map((value) => ({ label: value < 0 ? "all" : String(value), value })),
    order: [],
    pageLength: LENGTHS[0],
    rowId: (i) => `row-${i}`,
    createdRow: (row, i) => row.classList.toggle("failed", Boolean(rows.failed[i])),
  });
};

Page.table.show = (state) => {
  const fits = Page.table.fits(state);
  Page.table.made.search.fixed("page", (_, i) => fits(i));
  Page.table.made.draw();
  const found = Page.rows.id.map((_, i) => i).filter(fits);
  const comparisons = new Set(found.map((i) => Page.rows.group[i])).size;
  const where = `${comparisons} comparison${comparisons === 1 ? "" : "s"}`;
  const fastest = comparisons === 1 ? fastestOf(found[0]) : "";
  Page.at("count").textContent = `${found.length} of ${Page.rows.id.length} cases, in ${where}${fastest}`;
  return found;
};

// The answer for one comparison: which variant is the fastest, whatever the filters leave of it.
const fastestOf = (index) => {
  const { group, time, variant } = Page.rows;
  const [first, second] = time.map((_, i) => i).filter((i) => group[i] === group[index] && time[i]).sort((a, b) => time[a] - time[b]);
  if (first === undefined) return ": none has a time";
  const next = second === undefined ? "" : `; ${variant[second]} takes ${(time[second] / time[first]).toFixed(3)}x as long`;
  return `: the fastest is ${variant[first]}, ${Page.words.time(time[first])}${next}`;
};

// Another unit: the cells that are drawn are drawn again.
Page.table.rewrite = () => Page.table.made.rows().invalidate("data").draw(false);
