// What each plot shows, and the tiles. `state` is the server's last answer.
let state = null;

const absent = (name) => state?.absent?.[name] ?? "";
const engine = () => state?.kind === "engine";
const one = (name, label, colour) => ({ name, label, colour });
const group = (prefix) =>
  store.group(prefix).map((name, place) => one(name, name.slice(prefix.length), inSeries(place)));
const promise = (name) => {
  const value = state?.promises?.[name];
  return value ? { value, label: `promised ${words.seconds(value)}` } : null;
};
const percentiles = (name) => [
  one(`${name}.p50`, "p50", "tokenise"),
  one(`${name}.p90`, "p90", "gateway"),
  one(`${name}.p99`, "p99", "decode"),
];
const latency = (name) => ({
  kind: "lines",
  series: () => percentiles(name),
  format: words.seconds,
  limit: () => promise(name),
});

const SPECS = {
  requests: {
    kind: "lines",
    whole: true,
    series: () => [one("requests", "inside", "prefill"), one("waiting", "waiting", "queue")],
    format: words.count,
  },
  sequences: {
    kind: "lines",
    whole: true,
    series: () => [
      one("sequences", engine() ? "running" : "at workers", "worker"),
      ...(engine() ? [one("preempted", "preempted", "decode")] : []),
    ],
    format: words.count,
    limit: () => {
      const most = state?.limits?.sequences;
      return most ? { value: most, label: `${engine() ? "slots" : "windows"} ${words.count(most)}` } : null;
    },
  },
  tokens: {
    kind: "lines",
    series: () =>
      engine()
        ? [one("kv_tokens", "in KV", "kv"), one("step_tokens", "in the step", "tokenise")]
        : [one("flight_tokens", "in flight, as expected", "kv")],
    format: words.count,
  },
  stack: {
    kind: "areas",
    series: () =>
      PARTS.filter((name) => store.columns.has(`part.${name}`)).map((name) => one(`part.${name}`, name, name)),
    format: words.seconds,
  },
  lanes: { kind: "areas", whole: true, series: () => group("lane."), format: words.count },
  ttft: latency("ttft"),
  itl: latency("itl"),
  rates: {
    kind: "lines",
    series: () =>
      engine()
        ? [one("rate.prefill_tokens", "prefill", "prefill"), one("rate.decode_tokens", "decode", "decode")]
        : [one("rate.input_tokens", "input of those that ended", "prefill"), one("rate.output_tokens", "output", "decode")],
    format: words.count,
  },
  kv: {
    kind: "lines",
    most: () => 1,
    series: () => (engine() ? [one("kv.used", "of all blocks", "kv")] : group("kv.")),
    format: words.percent,
    absent: () => absent("kv"),
    note: () => {
      const kv = state?.kv;
      return kv ? `${words.count(kv.used)} of ${words.count(kv.blocks)} blocks, ${words.bytes(kv.reserved_bytes)} reserved` : "";
    },
  },
  steps: {
    kind: "bars",
    series: () => [
      one("prefill", "prefill", "prefill"),
      one("decode", "decode", "decode"),
      one("pad", "padding", "network"),
    ],
    data: () =>
      (state?.steps ?? []).map(([id, prefill, decode, pad, sequences, seconds]) => ({ id, prefill, decode, pad, sequences, seconds })),
    format: words.count,
    absent: () => absent("steps"),
    limit: () => {
      const most = state?.limits?.step_tokens;
      return most ? { value: most, label: `at most ${words.count(most)}` } : null;
    },
    more: (step) => `step ${words.count(step.id)}: ${words.of(step.sequences, "sequence")}, ${words.seconds(step.seconds)}`,
  },
  ladder: {
    kind: "steps",
    whole: true,
    most: () => 6,
    lines: () => 6,
    series: () => [one("level", "level", "decode")],
    format: words.count,
    absent: () => absent("ladder"),
  },
};

const makeCharts = () => {
  for (const card of document.querySelectorAll("[data-chart]")) charts.push(new Chart(card, SPECS[card.dataset.chart]));
};

// -- the tiles -----------------------------------------------------------------------------------------------------

const beyond = (name, value) => {
  const most = state.beyond?.[name];
  return value !== null && most && value >= most ? `≥ ${words.seconds(most)}` : words.seconds(value);
};
const counted = (table) =>
  Object.entries(table ?? {})
    .map(([name, count]) => `${words.count(count)} ${name.replaceAll("_", " ")}`)
    .join(", ");

const figure = (name, text, value, tone) => {
  const element = document.querySelector(`[data-figure="${name}"]`);
  put(element, text);
  element.title = text;
  if (value === null || value === undefined) delete element.dataset.value;
  else element.dataset.value = String(value);
  if (tone !== undefined) element.parentElement.className = tone;
};

const showLatency = (name) => {
  const told = state.figures?.[name];
  const promised = state.promises?.[name];
  const p99 = told?.p99 ?? null;
  const tone = promised && p99 !== null ? (p99 > promised ? "bad" : "good") : "";
  figure(`${name}.p99`, p99 === null ? NOT_KNOWN : beyond(name, p99), p99, tone);
  const middle = told?.count ? `p50 ${words.seconds(told.p50)}, mean ${words.seconds(told.mean)}` : "none in this time";
  figure(name, promised ? `${middle}, promised ${words.seconds(promised)}` : middle, told?.mean ?? null);
  const element = document.querySelector(`[data-figure="${name}"]`);
  Object.assign(element.dataset, { p50: told?.p50 ?? "", p90: told?.p90 ?? "", count: told?.count ?? 0 });
};

const showTiles = () => {
  const told = state.figures;
  figure("ok", words.count(told?.ok ?? null), told?.ok);
  figure("ok_per_s", told ? `${words.count(told.ok_per_s)} a second` : NOT_KNOWN, told?.ok_per_s);
  const kept = told?.attainment ?? null;
  figure("attainment", kept === null ? NOT_KNOWN : words.percent(kept), kept);
  figure("good_per_s", told ? `goodput ${words.count(told.good_per_s)} a second` : NOT_KNOWN, told?.good_per_s);
  ["ttft", "itl", "e2e"].forEach(showLatency);
  figure("output_tokens", words.count(told?.output_tokens ?? null), told?.output_tokens);
  figure("output_tokens_per_s", told ? `${words.count(told.output_tokens_per_s)} a second` : NOT_KNOWN, told?.output_tokens_per_s);
  const bad = told ? Object.values(told.unserved).reduce((sum, count) => sum + count, 0) : null;
  figure("bad", words.count(bad), bad, bad ? "bad" : "");
  figure("why", counted(told?.unserved) || (told ? "none in this time" : NOT_KNOWN), null);
};
