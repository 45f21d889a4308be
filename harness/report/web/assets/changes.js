// What changed since another run, whose page or results.json the reader chooses. The file is read here and goes nowhere.
"use strict";
Page.changes = {};

const HELD = /<script type="application\/gzip" id="rows">([^<]*)<\/script>/;

// ---- Reading. Both kinds of files say the same of a case: id, time, and the ends of its interval.

const ofPage = async (text) => {
  const rows = await Page.unpack(HELD.exec(text)[1]);
  return { cases: new Map(rows.id.map((id, i) => [id, [rows.time[i], rows.low[i], rows.high[i]]])), run: rows.run };
};

const ofResults = (text) => {
  const { header, results } = JSON.parse(text);
  const cases = new Map(results.map((one) => [one.case, [one.time, one.low, one.high]]));
  return { cases, run: { machine: header.machine.fingerprint, name: header.name, started: header.started } };
};

// ---- Comparing, as 'harness compare' does: the other run's time over this one's, above 1 this run is faster.

const verdict = ([old, oldLow, oldHigh], [time, low, high]) => {
  if (!old || !time) return { verdict: "missing" };
  if (oldLow === null || low === null) return { ratio: old / time, verdict: "~" };
  const bounds = [oldLow / high, oldHigh / low];
  return { bounds, ratio: old / time, verdict: bounds[0] > 1 ? "faster" : bounds[1] < 1 ? "slower" : "~" };
};

const compared = (cases) => {
  const { rows } = Page;
  return rows.id.map((id, i) => {
    const before = cases.get(id) ?? [null, null, null];
    return { before, i, ...verdict(before, [rows.time[i], rows.low[i], rows.high[i]]) };
  });
};

// ---- Showing.

const row = ({ before, i, bounds, ratio, verdict: told }) => {
  const ratios = bounds ? bounds.map((bound) => `${bound.toFixed(3)}x`).join(" to ") : "";
  const times = [before[0], Page.rows.time[i]].map((time) => (time ? Page.words.time(time) : ""));
  const cells = [Page.caseLink(i, Page.rows.id[i]), ...times, ratio ? `${ratio.toFixed(3)}x` : "", ratios, told];
  const made = cells.map((content, place) => Page.make("td", { className: place > 0 && place < 5 ? "number" : "" }, content));
  return Page.make("tr", { className: { faster: "good", slower: "failure" }[told] ?? "" }, ...made);
};

const shown = ({ cases, run }) => {
  const every = compared(cases);
  const changed = every.filter((one) => one.bounds && one.verdict !== "~").sort((a, b) => a.ratio - b.ratio);
  const counts = ["faster", "slower", "~", "missing"].map((name) => `${every.filter((one) => one.verdict === name).length} ${name}`);
  const heads = ["case", "reference", "this run", "ratio", "95% interval", "verdict"].map((head) => Page.make("th", { scope: "col" }, head));
  const table = Page.make("table", {}, Page.make("thead", {}, Page.make("tr", {}, ...heads)), Page.make("tbody", {}, ...changed.map(row)));
  const parts = [
    Page.make("h2", {}, "What changed"),
    Page.make("p", {}, `Compared with ${run.name}, measured ${run.started}: ${counts.join(", ")}. Above 1 this run is faster.`),
  ];
  if (run.machine !== Page.rows.run.machine) parts.push(Page.make("p", { className: "warning" }, "The machines differ."));
  if (changed.length) parts.push(Page.region("what changed", table));
  return parts;
};

Page.changes.start = () => {
  Page.at("second").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    const place = Page.at("changes");
    place.hidden = false;
    try {
      const text = await file.text();
      place.replaceChildren(...shown(HELD.test(text) ? await ofPage(text) : ofResults(text)));
    } catch {
      const told = `${file.name} can't be read. Choose the report.html or the results.json of a run.`;
      place.replaceChildren(Page.make("h2", {}, "What changed"), Page.make("p", { className: "failure" }, told));
    }
    event.target.value = "";
    place.scrollIntoView();
  });
};
