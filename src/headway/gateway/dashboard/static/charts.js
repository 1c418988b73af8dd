// Plots on a canvas: lines, stacked areas and bars. A library would take longer to load than all else together, and
// more to draw once a second than the whole page may.
const GAP_S = 3.5; // longer without a row is a gap, not a line
const LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 18;

// Rows as the server told them, and where a pointer or the arrow keys stand.
const store = {
  columns: new Map(),
  rows: [],
  seconds: 300,
  cursor: null, // seconds of the wall clock
  take(told, fresh) {
    told.columns.forEach((name, place) => this.columns.set(name, place));
    if (fresh) this.rows = told.rows;
    else this.rows.push(...told.rows);
    if (this.rows.length > 901) this.rows.splice(0, this.rows.length - 901);
  },
  forget() {
    this.columns.clear();
    this.rows = [];
  },
  at: (row, place) => (place === undefined ? null : (row[place] ?? null)),
  group(prefix) {
    return [...this.columns.keys()].filter((name) => name.startsWith(prefix));
  },
  get last() {
    return this.rows.length ? this.rows[this.rows.length - 1][0] : 0;
  },
  get shown() {
    const from = this.last - this.seconds - 1;
    let first = 0;
    while (first < this.rows.length && this.rows[first][0] < from) first += 1;
    return first ? this.rows.slice(first) : this.rows;
  },
  // The row that the legends tell: the last, or the one nearest to the cursor.
  get told() {
    if (!this.rows.length) return null;
    if (this.cursor === null) return this.rows[this.rows.length - 1];
    return this.rows.reduce((best, row) =>
      Math.abs(row[0] - this.cursor) < Math.abs(best[0] - this.cursor) ? row : best,
    );
  },
};

const niceAbove = (value) => {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.999) * power;
};

class Chart {
  // spec: title, kind ("lines", "areas", "steps", "bars"), series() -> [{name, label, colour}], format, limit() -> {value,
  // label} or null, absent() -> why there is nothing, most (a fixed top), data() for bars.
  constructor(card, spec) {
    this.spec = spec;
    this.title = card.querySelector("h2").textContent;
    const plot = card.querySelector(".plot"); // in the markup, so that nothing moves when this runs
    this.canvas = made("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", this.title);
    this.nothing = made("div", "", "absent");
    this.nothing.hidden = true;
    plot.append(this.canvas, this.nothing);
    this.keys = card.querySelector(".keys");
    this.keyed = "";
    this.hovered = null; // of bars
    new ResizeObserver(() => this.draw()).observe(plot);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.unpoint());
    this.canvas.addEventListener("blur", () => this.unpoint());
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  get width() {
    return this.canvas.clientWidth - LEFT - RIGHT;
  }
  get height() {
    return this.canvas.clientHeight - TOP - BOTTOM;
  }

  point(x) {
    const share = Math.min(1, Math.max(0, (x - LEFT) / this.width));
    if (this.spec.kind === "bars") {
      const count = this.spec.data().length;
      this.hovered = count ? Math.min(count - 1, Math.floor(share * count)) : null;
      this.draw();
    } else {
      store.cursor = store.last - store.seconds * (1 - share);
      drawAll();
    }
  }
  unpoint() {
    this.hovered = null;
    store.cursor = null;
    drawAll();
  }
  pressed(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") this.unpoint();
    if (by === undefined) return;
    event.preventDefault();
    if (this.spec.kind === "bars") {
      const count = this.spec.data().length;
      this.hovered = Math.min(count - 1, Math.max(0, (this.hovered ?? count) + by));
      this.draw();
      return;
    }
    const step = Math.max(1, Math.round(store.seconds / 60));
    store.cursor = Math.min(store.last, Math.max(store.last - store.seconds, (store.cursor ?? store.last) + by * step));
    drawAll();
  }

  draw() {
    const { canvas, spec } = this;
    const why = spec.absent?.() ?? "";
    this.nothing.hidden = !why;
    put(this.nothing, why);
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const paper = (this.paper = canvas.getContext("2d"));
    paper.setTransform(ratio, 0, 0, ratio, 0, 0);
    paper.clearRect(0, 0, width, height);
    if (why || width < 80) {
      this.tell([], why);
      return;
    }
    paper.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const series = spec.series();
    if (spec.kind === "bars") this.bars(series);
    else this.overTime(series);
  }

  // What is drawn over time, and its legend.
  overTime(series) {
    const { spec } = this;
    const rows = store.shown;
    const places = series.map((one) => store.columns.get(one.name));
    const stacked = spec.kind === "areas";
    let most = 0;
    for (const row of rows) {
      let sum = 0;
      for (const place of places) {
        const value = store.at(row, place) ?? 0;
        sum = stacked ? sum + value : Math.max(sum, value);
      }
      most = Math.max(most, sum);
    }
    const limit = spec.limit?.() ?? null;
    this.scale(most, limit);
    this.timeTicks();
    const x = (t) => LEFT + this.width * (1 - (store.last - t) / store.seconds);
    if (stacked) this.areas(rows, series, places, x);
    else series.forEach((one, index) => this.line(rows, places[index], one, x));
    if (limit !== null) this.limitLine(limit);
    if (store.cursor !== null && rows.length) this.cursorLine(x(store.told[0]));
    const told = store.told;
    const values = series.map((one, index) => [one, told === null ? null : store.at(told, places[index])]);
    this.tell(values, "", limit);
  }

  scale(most, limit) {
    const fixed = this.spec.most?.() ?? null;
    // A limit far above everything would press it all flat; then the legend says that it is above.
    const within = limit !== null && limit.value <= 3 * most ? limit.value * 1.05 : 0;
    this.top = fixed ?? niceAbove(Math.max(most, within));
    const { paper } = this;
    paper.fillStyle = colours.of("muted");
    paper.strokeStyle = colours.of("grid");
    paper.lineWidth = 1;
    paper.textAlign = "right";
    paper.textBaseline = "middle";
    const lines = this.spec.lines?.() ?? 4;
    const whole = this.spec.whole && this.top <= lines ? this.top : lines;
    for (let line = 0; line <= whole; line += 1) {
      const value = (this.top * line) / whole;
      const y = Math.round(this.y(value)) + 0.5;
      paper.beginPath();
      paper.moveTo(LEFT, y);
      paper.lineTo(LEFT + this.width, y);
      paper.stroke();
      if (line % 2 === 0 || whole < 4) paper.fillText(this.spec.format(value), LEFT - 6, y);
    }
  }

  y(value) {
    return TOP + this.height * (1 - value / this.top);
  }

  timeTicks() {
    const { paper } = this;
    paper.textBaseline = "alphabetic";
    const y = TOP + this.height + 14;
    const minutes = store.seconds / 60;
    const ago = minutes === 1 ? [60, 30] : [store.seconds, (store.seconds * 3) / 5, store.seconds / 5];
    for (const seconds of ago) {
      paper.textAlign = seconds === store.seconds ? "left" : "center";
      const text = seconds % 60 ? `−${seconds} s` : `−${seconds / 60} min`;
      paper.fillText(text, LEFT + this.width * (1 - seconds / store.seconds), y);
    }
    paper.textAlign = "right";
    paper.fillText("now", LEFT + this.width, y);
  }

  line(rows, place, one, x) {
    const { paper } = this;
    paper.strokeStyle = colours.of(one.colour);
    paper.lineWidth = 1.75;
    paper.lineJoin = "round";
    paper.beginPath();
    let before = null;
    for (const row of rows) {
      const value = store.at(row, place);
      if (value === null) {
        before = null;
        continue;
      }
      const y = this.y(Math.min(value, this.top));
      if (before === null || row[0] - before[0] > GAP_S) paper.moveTo(x(row[0]), y);
      else if (this.spec.kind === "steps") {
        paper.lineTo(x(row[0]), before[1]);
        paper.lineTo(x(row[0]), y);
      } else paper.lineTo(x(row[0]), y);
      // A lone point would leave nothing on the canvas.
      if (before === null) paper.lineTo(x(row[0]) + 0.5, y);
      before = [row[0], y];
    }
    paper.stroke();
  }

  areas(rows, series, places, x) {
    const { paper } = this;
    const pieces = [];
    let piece = [];
    for (const row of rows) {
      if (piece.length && row[0] - piece[piece.length - 1][0] > GAP_S) {
        pieces.push(piece);
        piece = [];
      }
      piece.push(row);
    }
    if (piece.length) pieces.push(piece);
    for (const part of pieces) {
      const below = part.map(() => 0);
      series.forEach((one, index) => {
        const above = part.map((row, at) => below[at] + (store.at(row, places[index]) ?? 0));
        if (!above.some((value, at) => value > below[at])) return;
        paper.beginPath();
        part.forEach((row, at) => paper[at ? "lineTo" : "moveTo"](x(row[0]), this.y(above[at])));
        for (let at = part.length - 1; at >= 0; at -= 1) paper.lineTo(x(part[at][0]), this.y(below[at]));
        paper.closePath();
        paper.fillStyle = colours.of(one.colour);
        paper.fill();
        // A seam in the panel's colour, so that layers can be told apart without their colours.
        paper.strokeStyle = colours.of("panel");
        paper.lineWidth = 1;
        paper.stroke();
        above.forEach((value, at) => (below[at] = value));
      });
    }
  }

  bars(series) {
    const data = this.spec.data();
    const sums = data.map((one) => series.reduce((sum, part) => sum + one[part.name], 0));
    const limit = this.spec.limit?.() ?? null;
    this.scale(Math.max(0, ...sums), limit);
    const { paper } = this;
    const each = this.width / Math.max(1, data.length);
    data.forEach((one, at) => {
      let below = 0;
      const x = LEFT + at * each;
      const wide = Math.max(1, each - (each > 4 ? 1.5 : 0));
      if (at === this.hovered) {
        paper.fillStyle = colours.of("shade");
        paper.fillRect(x, TOP, wide, this.height);
      }
      for (const part of series) {
        const value = one[part.name];
        if (!value) continue;
        const [from, to] = [this.y(below), this.y(below + value)];
        paper.fillStyle = colours.of(part.colour);
        paper.fillRect(x, to, wide, Math.max(1, from - to));
        below += value;
      }
    });
    paper.fillStyle = colours.of("muted");
    paper.textBaseline = "alphabetic";
    paper.textAlign = "left";
    paper.fillText(data.length ? words.of(data.length, "step") : "no step yet", LEFT, TOP + this.height + 14);
    paper.textAlign = "right";
    paper.fillText("latest", LEFT + this.width, TOP + this.height + 14);
    if (limit !== null) this.limitLine(limit);
    const told = data[this.hovered ?? data.length - 1];
    const values = series.map((part) => [part, told ? told[part.name] : null]);
    const more = told ? this.spec.more(told) : "";
    this.tell(values, more, limit);
  }

  // The legend names it: words on the plot would hide what they are about.
  limitLine({ value }) {
    if (value > this.top) return;
    const { paper } = this;
    paper.strokeStyle = colours.of("ink");
    paper.lineWidth = 1.25;
    paper.setLineDash([5, 4]);
    paper.beginPath();
    paper.moveTo(LEFT, this.y(value));
    paper.lineTo(LEFT + this.width, this.y(value));
    paper.stroke();
    paper.setLineDash([]);
  }

  cursorLine(x) {
    const { paper } = this;
    paper.strokeStyle = colours.of("muted");
    paper.lineWidth = 1;
    paper.beginPath();
    paper.moveTo(Math.round(x) + 0.5, TOP);
    paper.lineTo(Math.round(x) + 0.5, TOP + this.height);
    paper.stroke();
  }

  limitKey() {
    const key = made("span");
    this.limitText = made("span");
    key.append(made("i", "", "line"), this.limitText);
    return key;
  }

  // The legend has the values, at the cursor or the latest; the label says them to whoever does not see it.
  tell(values, more = "", limit = null) {
    const { spec } = this;
    const limited = limit !== null && values.length > 0;
    const shape = values.map(([one]) => one.label + one.colour).join("|") + limited;
    if (shape !== this.keyed) {
      this.keyed = shape;
      this.keys.replaceChildren(
        ...values.map(([one]) => {
          const key = made("span");
          const spot = made("i");
          spot.style.background = `var(--${one.colour})`;
          key.append(spot, `${one.label} `, made("b", NOT_KNOWN));
          return key;
        }),
        ...(limited ? [this.limitKey()] : []),
        made("span"),
      );
    }
    const told = values.map(([, value]) => spec.format(value, true));
    this.keys.querySelectorAll("b").forEach((bold, at) => put(bold, told[at] ?? NOT_KNOWN));
    if (limited) put(this.limitText, limit.value > this.top ? `${limit.label} ↑` : limit.label);
    const rest = this.keys.lastElementChild;
    const note = spec.note?.() ?? "";
    if (rest) put(rest, more && values.length ? more : note);
    const said = values.map(([one], at) => `${one.label} ${told[at]}`);
    if (limit !== null) said.push(limit.label);
    if (more) said.push(more);
    const when = store.cursor !== null && spec.kind !== "bars" ? ` ${Math.round(store.last - store.told[0])} s ago` : "";
    this.canvas.setAttribute("aria-label", `${this.title}${when}: ${said.join(", ")}`);
  }
}

const charts = [];
const drawAll = () => charts.forEach((chart) => chart.draw());
