// Workers, tenants, levels, and single requests: rows that are made again each second.
const cell = (text, label, className = "") => {
  const made_ = made("span", text, className);
  made_.title = text;
  if (label) made_.dataset.label = label;
  return made_;
};
const num = (text, label, tone = "") => cell(text, label, `num ${tone}`.trim());
const headed = (...names) => {
  const row = made("div", "", "row headed");
  row.append(...names.map(([name, right]) => made("span", name, right ? "num" : "")));
  return row;
};
const nothing = (text) => made("p", text, "note");

// Parts of a time line: [[name, begin_s, seconds], …] within `most` seconds.
const bars = (parts, most, said) => {
  const element = made("div", "", "bars");
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", said);
  element.title = said;
  for (const [name, begin, seconds] of parts) {
    const bar = made("i");
    bar.style.left = `${(100 * begin) / most}%`;
    bar.style.width = `${(100 * seconds) / most}%`;
    bar.style.background = PARTS.includes(name) ? `var(--${name})` : "var(--muted)";
    element.append(bar);
  }
  return element;
};
const saidParts = (parts) => parts.map(([name, , seconds]) => `${name} ${words.seconds(seconds)}`).join(", ");

const showSlow = () => {
  const rows = byId("slow-rows");
  const keys = byId("slow-keys");
  if (!keys.childElementCount) {
    for (const name of PARTS) {
      const key = made("span");
      const spot = made("i");
      spot.style.background = `var(--${name})`;
      key.append(spot, name);
      keys.append(key);
    }
  }
  if (state.slow === null) {
    rows.replaceChildren(nothing("Single requests are shown to an operator, or to the tenant whose they are."));
    return;
  }
  if (!state.slow.length) {
    rows.replaceChildren(nothing("No request ended in the time shown."));
    return;
  }
  const most = Math.max(...state.slow.map((told) => told.total_s), 1e-9);
  const promised = state.promises?.ttft ?? Infinity;
  rows.replaceChildren(
    headed(["request"], [engine() ? "model" : "tenant, worker"], ["ended"], ["TTFT", true], ["total", true], ["tokens in, out", true], ["where its time went"]),
    ...state.slow.map((told) => {
      const row = made("div", "", "row");
      const where = engine() ? told.model : [told.tenant, told.worker].filter(Boolean).join(", ");
      row.append(
        cell(told.id),
        cell(where || NOT_KNOWN),
        cell(`${told.state}, ${words.seconds(told.ago_s)} ago`, "", told.bad ? "bad" : ""),
        num(words.seconds(told.ttft_s), "TTFT", told.ttft_s > promised ? "bad" : ""),
        num(words.seconds(told.total_s), "total"),
        num(`${words.count(told.tokens.prompt)}, ${words.count(told.tokens.output)}`, "tokens"),
        bars(told.parts, most, saidParts(told.parts)),
      );
      return row;
    }),
  );
};

// Every term, also those that are 0: what is missing from a score is as telling.
const termsOf = (worker) => {
  const row = made("div", "", "terms");
  for (const [name, value] of Object.entries(worker.terms)) {
    const term = made("span", `${name} `);
    term.append(made("b", words.score(value)));
    row.append(term);
  }
  const says = Object.entries(worker.says).map(([name, value]) => {
    const format = name.endsWith("_ratio") ? words.percent : name.endsWith("_s") ? words.seconds : words.count;
    return `${name.replace(/_(ratio|s)$/, "").replaceAll("_", " ")} ${format(value)}`;
  });
  const age = worker.age_s === null ? "says nothing of itself" : `says, ${words.seconds(worker.age_s)} ago: ${says.join(", ")}`;
  row.append(made("span", age));
  return row;
};

const showWorkers = () => {
  const rows = byId("worker-rows");
  const why = absent("workers");
  if (why) rows.replaceChildren(nothing(why));
  else if (state.workers === null) rows.replaceChildren(nothing("Workers are shown to an operator: on its own machine, or with an administrator's key."));
  else if (!state.workers.length) rows.replaceChildren(nothing("There are no workers. POST /admin/workers adds one."));
  else {
    const least = Math.min(...state.workers.map((worker) => worker.score));
    rows.replaceChildren(
      headed(["worker"], ["state"], ["in flight", true], ["window", true], ["tokens", true], ["TTFT", true], ["score", true]),
      ...state.workers.map((worker) => {
        const row = made("div", "", "row");
        const up = worker.trust === "closed" && !worker.draining;
        const trust = { closed: "up", half_open: "being tried", open: "down" }[worker.trust] ?? worker.trust;
        const words_ = worker.draining ? "draining" : worker.not_well ? `${trust}: ${worker.not_well}` : trust;
        row.append(
          cell(worker.kind ? `${worker.id} (${worker.kind})` : worker.id),
          cell(words_, "", up ? "" : worker.draining ? "warn" : "bad"),
          num(words.count(worker.in_flight), "in flight"),
          num(words.count(worker.window), "window"),
          num(words.count(worker.tokens), "tokens"),
          num(words.seconds(worker.ttft_s), "TTFT"),
          num(`${words.score(worker.score)}${worker.score === least && state.workers.length > 1 ? " ◂" : ""}`, "score"),
          termsOf(worker),
        );
        return row;
      }),
      nothing("The least score is chosen, among those with room in their windows; every term counts in typical requests' delay."),
      ...(state.more_workers ? [nothing(`and ${state.more_workers} more`)] : []),
    );
  }
};

const showTenants = () => {
  const rows = byId("tenant-rows");
  const why = absent("tenants");
  if (why) rows.replaceChildren(nothing(why));
  else if (!state.tenants?.length)
    rows.replaceChildren(nothing(state.see === "public" ? "Tenants are shown to an operator, or to themselves." : "No tenant had a request end in the last minute."));
  else
    rows.replaceChildren(
      headed(["tenant"], ["tokens", true], ["weight", true], ["waiting", true], ["share; the line is where its weight puts it"], ["share", true]),
      ...state.tenants.map((tenant) => {
        const row = made("div", "", "row");
        const share = tenant.share ?? 0;
        const said = `${words.percent(tenant.share)} of the tokens, ${words.percent(tenant.fair_share)} by weight`;
        const bar = bars([["worker", 0, share]], 1, said);
        const mark = made("u");
        mark.style.left = `${100 * tenant.fair_share}%`;
        bar.append(mark);
        row.append(
          cell(tenant.name),
          num(words.count(tenant.tokens), "tokens"),
          num(words.count(tenant.weight), "weight"),
          num(words.count(tenant.waiting), "waiting"),
          bar,
          num(words.percent(tenant.share), "share"),
        );
        return row;
      }),
    );
};

const showLevels = () => {
  const list = byId("levels");
  if (!state.ladder) return;
  list.replaceChildren(
    ...state.ladder.levels.map(({ name, active, mode }, place) => {
      const pinned = mode === "auto" ? "" : `, pinned ${mode}`;
      const item = made("li", `${active ? "● " : ""}${place + 1} ${name.replaceAll("_", " ")}${pinned}`, active ? "on" : "");
      item.title = active ? "in force" : "not in force";
      return item;
    }),
  );
};
