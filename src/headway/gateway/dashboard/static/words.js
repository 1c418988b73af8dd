// Numbers as people read them, with their units on the same line. What is not known is a dash, never 0.
const NOT_KNOWN = "–";
const UNBROKEN = "\u00a0";

const rounded = (value, digits = 3) => {
  const text = value.toPrecision(digits);
  return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
};
const words = {
  seconds(value) {
    if (value === null || value === undefined) return NOT_KNOWN;
    if (value === 0) return `0${UNBROKEN}s`;
    if (value < 0.001) return `${rounded(value * 1e6)}${UNBROKEN}µs`;
    if (value < 1) return `${rounded(value * 1000)}${UNBROKEN}ms`;
    if (value < 120) return `${rounded(value)}${UNBROKEN}s`;
    return `${rounded(value / 60)}${UNBROKEN}min`;
  },
  count(value) {
    if (value === null || value === undefined) return NOT_KNOWN;
    const size = Math.abs(value);
    if (size >= 1e9) return `${rounded(value / 1e9)}G`;
    if (size >= 1e6) return `${rounded(value / 1e6)}M`;
    if (size >= 1e5) return `${rounded(value / 1e3)}k`;
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return size >= 100 ? Math.round(value).toLocaleString("en") : rounded(value);
  },
  // "1 step", "2 steps"
  of: (value, noun) => `${words.count(value)} ${noun}${value === 1 ? "" : "s"}`,
  percent: (value) => (value === null || value === undefined ? NOT_KNOWN : `${rounded(value * 100)}${UNBROKEN}%`),
  score: (value) => (value === null || value === undefined ? NOT_KNOWN : value.toFixed(2).replace(/^-(0\.00)$/, "$1")),
  bytes(value) {
    if (!value) return NOT_KNOWN;
    const names = ["B", "KiB", "MiB", "GiB", "TiB"];
    const power = Math.min(names.length - 1, Math.floor(Math.log2(value) / 10));
    return `${rounded(value / 1024 ** power)}${UNBROKEN}${names[power]}`;
  },
};

// An element with text, never markup: names and words come from outside.
const made = (tag, text = "", className = "") => {
  const element = document.createElement(tag);
  if (text !== "") element.textContent = text;
  if (className) element.className = className;
  return element;
};
const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

// Colours by name, as the theme has them.
const colours = {
  known: new Map(),
  of(name) {
    if (!this.known.has(name))
      this.known.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
    return this.known.get(name);
  },
  forget() {
    this.known.clear();
  },
};
const PARTS = ["network", "gateway", "tokenise", "queue", "prefill", "decode", "worker"];
// For lanes and workers, which have no colour of their own; neighbours can be told apart without seeing hues.
const SERIES = ["queue", "tokenise", "decode", "worker", "gateway", "prefill", "network"];
const inSeries = (place) => SERIES[place % SERIES.length];
