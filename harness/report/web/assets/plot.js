// The plot of the cases that the filters leave, of one op and type. A point is a case: hover it, or click it.
"use strict";
Page.plot = {};

const RATES = new Set(["bandwidth", "flops", "items", "of_peak", "of_ceiling"]);
const MOST_LABELS = 30;
const MOST_SETTINGS = 120;
const HEIGHT = 340;

const unique = (values) => [...new Set(values)];

// ---- What is drawn.

// Cases of one op and type, the ones of the first case that is shown.
const chosen = (found) => {
  const { op, dtype } = Page.rows;
  const own = found.filter((i) => op[i] === op[found[0]] && dtype[i] === dtype[found[0]]);
  const settings = unique(own.map((i) => Page.rows.setting[i])).slice(0, MOST_SETTINGS);
  const variants = unique(Page.rows.variant.filter((_, i) => op[i] === op[found[0]]));
  // Variants of a single setting stand beside each other.
  const alone = settings.length === 1;
  const labels = alone ? unique(own.map((i) => Page.rows.variant[i])) : settings;
  const places = new Map(variants.map((variant) => [variant, labels.map(() => null)]));
  for (const i of own) {
    const place = labels.indexOf(alone ? Page.rows.variant[i] : Page.rows.setting[i]);
    if (place >= 0) places.get(Page.rows.variant[i])[place] = i;
  }
  const colours = variants.map((variant) => Page.rows.colour[Page.rows.variant.findIndex((name, i) => name === variant && op[i] === op[found[0]])]);
  return { colours, labels, places, title: `${op[found[0]]} ${dtype[found[0]]}${alone ? ` ${settings[0]}` : ""}`, variants };
};

// The ends of a value's 95% interval, which is known of times, and so of what is divided by a time.
const ends = (column, i) => {
  const { time, low, high } = Page.rows;
  if (low[i] === null) return null;
  if (column.name === "time") return [low[i], high[i]];
  return RATES.has(column.name) ? [(column.values[i] * time[i]) / high[i], (column.values[i] * time[i]) / low[i]] : null;
};

// ---- Drawing.

// Light colours and dark ones have the same edge, which both themes show.
const edgeColour = () => getComputedStyle(Page.at("chart")).color;

const bars = (shown, column) => (u) => {
  const [{ ctx }, edge] = [u, edgeColour()];
  ctx.save();
  shown.variants.forEach((variant, number) => {
    if (!u.series[number + 1].show) return;
    ctx.strokeStyle = edge;
    ctx.lineWidth = devicePixelRatio;
    shown.places.get(variant).forEach((i, place) => {
      const bounds = i === null ? null : ends(column, i);
      if (!bounds) return;
      const [x, top, bottom] = [u.valToPos(place, "x", true), u.valToPos(bounds[1], "y", true), u.valToPos(bounds[0], "y", true)];
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, bottom);
      ctx.stroke();
    });
  });
  ctx.restore();
};

const axes = (shown, column) => {
  const style = getComputedStyle(Page.at("chart"));
  const common = { stroke: style.color, grid: { stroke: style.borderTopColor, width: 1 }, ticks: { stroke: style.borderTopColor, width: 1 } };
  const every = Math.ceil(shown.labels.length / MOST_LABELS);
  const written = (value) => (column.kind === "time" || column.kind === "rate" ? Page.words[column.kind](value) : String(+value.toPrecision(4)));
  return [
    {
      ...common,
      rotate: -40,
      size: 92,
      splits: () => shown.labels.map((_, place) => place).filter((place) => place % every === 0),
      values: (_, places) => places.map((place) => shown.labels[place] ?? ""),
    },
    { ...common, size: 74, values: (_, values) => values.map((value) => (value === null ? "" : written(value))) },
  ];
};

const seriesOf = (shown) =>
  shown.variants.map((variant, number) => ({
    label: variant,
    paths: () => null,
    points: { fill: shown.colours[number], show: true, size: 8, stroke: edgeColour(), width: 1 },
  }));

const options = (shown, column) => ({
  axes: axes(shown, column),
  cursor: { drag: { x: false, y: false }, focus: { prox: 24 }, points: { show: false } },
  focus: { alpha: 1 },
  height: HEIGHT,
  hooks: { draw: [bars(shown, column)], setCursor: [hover], setSeries: [hover] },
  legend: { show: false },
  scales: {
    x: { range: [-0.5, shown.labels.length - 0.5], time: false },
    y: column.kind === "time" ? { distr: 3 } : { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 1) * 1.05] },
  },
  series: [{}, ...seriesOf(shown)],
  width: Math.max(280, Page.at("chart").clientWidth),
});

// ---- Hovering, and clicking.

// The case under the pointer; null for none.
const under = () => {
  const { drawn, shown, focused } = Page.plot;
  const place = drawn?.cursor.idx;
  if (!focused || place === null || place === undefined) return null;
  return shown.places.get(shown.variants[focused - 1])[place];
};

function hover(u, number) {
  if (number !== undefined) Page.plot.focused = number;
  const i = under();
  const { column } = Page.plot;
  const value = i === null || column.name === "time" ? "" : `${column.title} ${Page.words.cell(column, i)}; `;
  Page.at("hover").textContent = i === null ? "" : `${Page.rows.variant[i]}, ${Page.rows.setting[i]}: ${value}${Page.words.told(i)}`;
  u.over.style.cursor = i === null ? "default" : "pointer";
}

const legend = (shown, u) => {
  const buttons = shown.variants.map((variant, number) => {
    const mark = Page.make("span", { className: "swatch" });
    mark.style.background = shown.colours[number];
    const button = Page.make("button", { type: "button", ariaPressed: "true" }, mark, variant);
    button.addEventListener("click", () => {
      const show = button.ariaPressed !== "true";
      button.ariaPressed = String(show);
      u.setSeries(number + 1, { show });
    });
    return button;
  });
  Page.at("legend").replaceChildren(`${shown.title}: `, ...buttons);
};

Page.plot.show = (found, state) => {
  Page.plot.drawn?.destroy();
  Page.plot.drawn = null;
  const timed = found.filter((i) => Page.rows.time[i] !== null);
  Page.at("plot").hidden = !timed.length;
  if (!timed.length) return;
  const column = Page.rows.columns.find(({ name }) => name === state.metric) ?? Page.plot.usual();
  const shown = chosen(timed);
  const values = shown.variants.map((variant) => shown.places.get(variant).map((i) => (i === null ? null : column.values[i])));
  Object.assign(Page.plot, { column, focused: null, shown });
  Page.at("metric").value = column.name;
  const u = new uPlot(options(shown, column), [shown.labels.map((_, place) => place), ...values], Page.at("chart"));
  u.over.addEventListener("click", () => under() !== null && Page.set({ case: Page.rows.id[under()] }, true));
  Page.plot.drawn = u;
  legend(shown, u);
};

// The share of the ceiling, where one is known: it compares sizes; else the time.
Page.plot.usual = () => Page.rows.columns.find(({ name }) => name === "of_ceiling") ?? Page.rows.columns.find(({ name }) => name === "time");

Page.plot.start = () => {
  Page.at("metric").append(...Page.rows.columns.map(({ name, title }) => Page.make("option", { value: name }, title)));
  Page.at("metric").addEventListener("change", (event) => Page.set({ metric: event.target.value }));
  new ResizeObserver(() => Page.plot.drawn?.setSize({ height: HEIGHT, width: Math.max(280, Page.at("chart").clientWidth) })).observe(Page.at("chart"));
};
