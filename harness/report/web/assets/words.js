// How numbers are written: as the report writes them, in the unit that the reader chose.
"use strict";
Page.words = {};

const SCALES = { s: 1, ms: 1e-3, us: 1e-6, ns: 1e-9 };

Page.words.significant = (value, digits = 4) => {
  if (value === 0) return "0";
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(decimals, 12));
};

Page.words.time = (value) => {
  const chosen = Page.unit || Object.keys(SCALES).find((unit) => value >= SCALES[unit]) || "ns";
  return `${Page.words.significant(value / SCALES[chosen])} ${chosen}`;
};

Page.words.bandwidth = (value) => {
  const scaled = value / 1e9;
  return scaled >= 1000 ? scaled.toFixed(0) : scaled >= 10 ? scaled.toFixed(1) : Page.words.significant(scaled, 3);
};

const PREFIXES = { T: 1e12, G: 1e9, M: 1e6, k: 1e3 };

Page.words.rate = (value) => {
  const prefix = Object.keys(PREFIXES).find((name) => value >= PREFIXES[name]);
  return prefix ? `${Page.words.significant(value / PREFIXES[prefix])} ${prefix}` : Page.words.significant(value);
};

Page.words.cell = (column, index) => {
  const value = column.values[index];
  if (value === null) return column.name === "time" ? Page.rows.status[index] : "";
  return column.texts ? column.texts[index] : Page.words[column.kind](value);
};

// A case in one line: its time, the interval, the clocks.
Page.words.told = (index) => {
  const rows = Page.rows;
  if (rows.time[index] === null) return rows.status[index];
  const { time } = Page.words;
  const bounds = rows.low[index] === null ? "" : `, 95% interval ${time(rows.low[index])} to ${time(rows.high[index])}`;
  return `${time(rows.time[index])}${bounds}${rows.clocks[index] ? `; ${rows.clocks[index]}` : ""}`;
};
