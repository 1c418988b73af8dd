// Asks once a second, and puts what was told where it belongs.
const EVERY_MS = 1000;
const access = { key: "", asked: false }; // the key is nowhere but here
let run = null; // of the server; another one begins a new history
let number = 0;
let failures = 0;

const askData = async (query, key = "") => {
  const used = key || access.key;
  const response = await fetch(`/dashboard/data?${new URLSearchParams(query)}`, {
    headers: used ? { Authorization: `Bearer ${used}` } : {},
    cache: "no-store",
  });
  if (!response.ok) {
    const error = new Error(await messageOf(response));
    error.status = response.status;
    throw error;
  }
  return response.json();
};

const tell = (text, tone) => {
  put(byId("state"), text);
  byId("state").className = `state ${tone}`;
};

const show = () => {
  const what = state.kind === "engine" ? state.models.join(", ") : `gateway before ${state.models.join(", ") || "no model"}`;
  put(byId("subject"), what);
  document.title = `Headway · ${state.models[0] ?? "gateway"}`;
  byId("key-form").hidden = !(access.asked || (state.keys && state.see !== "operator") || access.key);
  byId("tenant-key-label").hidden = !state.keys || (state.see === "tenant" && access.key !== "");
  tell(state.not_ready || "Taking requests", state.not_ready ? "warn" : "good");
  showTiles();
  showModels();
  showLevels();
  showSlow();
  showWorkers();
  showTenants();
  drawAll();
};

const refresh = async (whole = false) => {
  const query = { after: whole || run === null ? 0 : number, window: store.seconds, order: byId("order").value };
  const told = await askData(query);
  if (told.run !== run) {
    const first = run === null;
    run = told.run;
    if (!first && query.after) {
      store.forget();
      return refresh(true);
    }
  }
  state = told;
  number = told.number;
  store.take(told, query.after === 0);
  failures = 0;
  show();
};

const failed = (error) => {
  failures += 1;
  if (error.status === 401 || error.status === 403) {
    access.asked = true;
    byId("key-form").hidden = false;
    tell(access.key ? error.message : "This gateway asks for an API key.", "warn");
  } else tell(error.status ? error.message : `No answer from the server${failures > 1 ? `, ${failures} times` : ""}.`, "bad");
};

let timer = null;
let under = null;
const again = async (whole = false) => {
  clearTimeout(timer);
  const begun = performance.now();
  under = (under ?? Promise.resolve()).then(() => refresh(whole)).catch(failed);
  await under;
  clearTimeout(timer);
  // A page that nobody sees asks for nothing; one whose server is away asks less and less often.
  const wait = EVERY_MS * Math.min(8, 2 ** Math.max(0, failures - 1));
  if (!document.hidden) timer = setTimeout(again, Math.max(100, wait - (performance.now() - begun)));
};
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) again(true);
});

byId("window").addEventListener("change", (event) => {
  store.seconds = Number(event.target.value);
  again(true);
});
byId("order").addEventListener("change", () => again());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  access.key = byId("key").value.trim();
  store.forget();
  again(true);
});

// The theme: as the system says until the button is used. It is all that this page ever stores.
const root = document.documentElement;
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => root.dataset.theme || (systemDark.matches ? "dark" : "light");
const repaint = () => {
  put(byId("theme"), theme() === "dark" ? "Light" : "Dark");
  colours.forget();
  drawAll();
  drawPlay();
};
try {
  const remembered = localStorage.getItem("headway-theme");
  if (["light", "dark"].includes(remembered)) root.dataset.theme = remembered;
} catch {
  // a browser without storage: as the system says
}
byId("theme").addEventListener("click", () => {
  root.dataset.theme = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("headway-theme", root.dataset.theme);
  } catch {
    // it holds until the page is left
  }
  repaint();
});
systemDark.addEventListener("change", repaint);

// What is in the markup is painted before anything is drawn or asked.
requestAnimationFrame(() =>
  setTimeout(() => {
    makeCharts();
    repaint();
    again();
  }),
);
