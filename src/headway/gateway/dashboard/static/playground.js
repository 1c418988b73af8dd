// One prompt, its answer as it comes, and where its time goes, drawn while it goes.
const play = {
  sent: null, // performance.now()
  first: null,
  ended: null,
  ticks: [], // when pieces came, ms after sending
  tokens: null, // as the server counts them
  told: {}, // parts that the server has told, seconds
  story: null,
  abort: null,

  form: byId("play"),
  canvas: byId("waterfall"),
  output: byId("output"),
};

const timing = (header) =>
  Object.fromEntries(
    (header ?? "")
      .split(",")
      .map((part) => part.trim().match(/^([\w-]+);dur=([\d.]+)$/))
      .filter(Boolean)
      .map(([, name, ms]) => [name, Number(ms) / 1000]),
  );

const say = (text, className = "") => {
  const last = play.output.lastChild;
  if (!className && last?.nodeType === Node.TEXT_NODE) last.data += text;
  else play.output.append(className ? made("span", text, className) : document.createTextNode(text));
  play.output.scrollTop = play.output.scrollHeight;
};

// What is known of its parts, in seconds after sending: [[name, begin, seconds], …].
const playParts = () => {
  const now = (play.ended ?? performance.now()) - play.sent;
  const first = play.first === null ? null : (play.first - play.sent) / 1000;
  const parts = [];
  let at = 0;
  const add = (name, seconds) => {
    if (seconds > 0) parts.push([name, at, seconds]);
    at += Math.max(0, seconds);
  };
  const queue = play.story?.queue ?? play.told.queue;
  const prefill = play.story?.prefill;
  add("tokenise", play.told.tokenise ?? 0);
  if (first === null) {
    add("waiting for its first token", now / 1000 - at);
    return parts;
  }
  if (queue !== undefined) add("queue", queue);
  if (prefill !== undefined) add("prefill", prefill);
  // What the server does not tell apart, or has not told yet.
  const until = prefill === undefined ? (queue === undefined ? "queue and prefill" : "worker, to its first token") : "gateway and network";
  add(until, Math.max(0, first - at));
  at = first;
  add("decode", now / 1000 - first);
  return parts;
};

const drawPlay = () => {
  const { canvas } = play;
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const paper = canvas.getContext("2d");
  paper.setTransform(ratio, 0, 0, ratio, 0, 0);
  paper.fillStyle = colours.of("shade");
  paper.fillRect(0, 4, width, 24);
  if (play.sent === null) return;
  const parts = playParts();
  const whole = Math.max(0.001, ((play.ended ?? performance.now()) - play.sent) / 1000);
  const colour = (name) => colours.of(PARTS.includes(name) ? name : name.startsWith("worker") ? "worker" : "client");
  for (const [name, begin, seconds] of parts) {
    paper.fillStyle = colour(name);
    paper.fillRect((width * begin) / whole, 4, Math.max(1, (width * seconds) / whole), 24);
  }
  paper.fillStyle = colours.of("ink");
  for (const ms of play.ticks) paper.fillRect((width * ms) / 1000 / whole, 32, 1, 8);
  paper.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  paper.fillStyle = colours.of("muted");
  paper.fillText("sent", 0, 53);
  paper.textAlign = "right";
  paper.fillText(words.seconds(whole), width, 53);
  const said = parts.map(([name, , seconds]) => [name, words.seconds(seconds)]);
  const keys = said.map(([name, value], place) => {
    const key = made("span");
    const spot = made("i");
    spot.style.background = colour(parts[place][0]);
    key.append(spot, `${name} `, made("b", value));
    return key;
  });
  const decode = play.first === null ? 0 : whole - (play.first - play.sent) / 1000;
  const tokens = play.tokens ?? play.ticks.length;
  if (play.first !== null) {
    const ttft = made("span", "TTFT here ");
    ttft.append(made("b", words.seconds((play.first - play.sent) / 1000)));
    const rate = made("span", play.tokens === null ? "pieces " : "tokens ");
    rate.append(made("b", decode > 0 && tokens > 1 ? `${words.count(tokens)}, ${words.count((tokens - 1) / decode)} a second` : words.count(tokens)));
    keys.push(ttft, rate);
  }
  byId("play-keys").replaceChildren(...keys);
  canvas.setAttribute("aria-label", `Waterfall of the request: ${said.map((pair) => pair.join(" ")).join(", ")}`);
};

// Server-sent events of a body: calls `take` with the data of each.
const events = async (body, take) => {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces)
      for (const line of piece.split("\n")) if (line.startsWith("data:")) take(line.slice(5).trim());
  }
};

const taken = (data) => {
  if (data === "[DONE]") return;
  const told = JSON.parse(data);
  if (told.error) throw new Error(told.error.message);
  if (told.usage) play.tokens = told.usage.completion_tokens;
  const delta = told.choices?.[0]?.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning ?? "";
  if (!thought && !delta.content) return;
  const now = performance.now();
  play.first ??= now;
  play.ticks.push(now - play.sent);
  if (thought) say(thought, "thought");
  if (delta.content) say(delta.content);
};

const messageOf = async (response) => {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
};

// What the server remembers of the request: it is there a moment after the last byte.
const askStory = async (id) => {
  for (let tries = 0; tries < 4; tries += 1) {
    await new Promise((done) => setTimeout(done, 120));
    const told = await askData({ after: state?.number ?? 0, window: 10, request: id }, byId("tenant-key").value);
    if (told.request && told.request.parts.length) {
      play.story = Object.fromEntries(told.request.parts.map(([name, , seconds]) => [name, seconds]));
      return;
    }
  }
};

const send = async () => {
  const key = byId("tenant-key").value || access.key;
  play.abort = new AbortController();
  Object.assign(play, { first: null, ended: null, ticks: [], tokens: null, told: {}, story: null, sent: performance.now() });
  play.output.replaceChildren();
  play.output.setAttribute("aria-busy", "true");
  byId("send").disabled = true;
  byId("stop").disabled = false;
  const live = setInterval(drawPlay, 100);
  let id = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      signal: play.abort.signal,
      headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) },
      body: JSON.stringify({
        ...(byId("model").value ? { model: byId("model").value } : {}),
        messages: [{ role: "user", content: byId("prompt").value }],
        max_tokens: Number(byId("max-tokens").value),
        stream: true,
        stream_options: { include_usage: true },
      }),
    });
    id = response.headers.get("x-request-id");
    if (!response.ok) throw new Error(await messageOf(response));
    play.told = timing(response.headers.get("Server-Timing"));
    await events(response.body, taken);
  } catch (error) {
    say(error.name === "AbortError" ? "\n(stopped)" : `${play.output.textContent ? "\n" : ""}${error.message}`, error.name === "AbortError" ? "thought" : "bad");
  } finally {
    play.ended = performance.now();
    clearInterval(live);
    byId("send").disabled = false;
    byId("stop").disabled = true;
    play.output.setAttribute("aria-busy", "false");
    drawPlay();
  }
  if (id && play.first !== null) {
    await askStory(id).catch(() => {});
    drawPlay();
  }
};

play.form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!byId("send").disabled) send();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) play.form.requestSubmit();
});
byId("stop").addEventListener("click", () => play.abort?.abort());
new ResizeObserver(drawPlay).observe(play.canvas);

const showModels = () => {
  const select = byId("model");
  const names = state.models ?? [];
  if ([...select.options].map((option) => option.value).join("\n") === names.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(chosen)) select.value = chosen;
};
