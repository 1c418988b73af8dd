"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const painted = (value) => {
    if (typeof value === "string") return value.replace(/^\{c:([a-z]+)\}$/, (_, name) => colour(name));
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, painted(one)]));
    return value;
  };
  const axis = (title, log) => ({
    title: { text: title }, type: log ? "log" : "linear", gridcolor: colour("grid"), zerolinecolor: colour("rule"),
    linecolor: colour("rule"), automargin: true, ...(log ? { dtick: 1 } : { rangemode: "tozero" }),
  });
  const draw = () => {
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = figures[place.dataset.figure];
      Plotly.react(place, painted(figure.data), {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("ink"), size: 12 },
        margin: { l: 48, r: 12, t: 8, b: 40 }, legend: { orientation: "h", y: 1.12 }, barmode: "overlay",
        xaxis: axis(figure.x, figure.log_x), yaxis: axis(figure.y, figure.log_y), hovermode: "closest",
      }, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
