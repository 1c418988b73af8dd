"use strict";
// Draws the figures when they come near the screen, in the colours of the theme, and again when the theme changes.
(() => {
  const figures = JSON.parse(document.getElementById("figure-data").textContent);
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const phone = matchMedia("(max-width: 640px)"); // as in the style sheet
  const touched = matchMedia("(pointer: coarse)").matches;
  const plots = [...document.querySelectorAll(".plot")];
  const drawn = new Set();

  // "{c:ttft}" anywhere in a figure stands for the style sheet's --ttft.
  const painted = (part, colours) => {
    if (typeof part === "string")
      return part.replace(/\{c:([\w-]+)\}/g, (all, name) => colours.getPropertyValue(`--${name}`).trim() || all);
    if (Array.isArray(part)) return typeof part[0] === "number" ? part : part.map((one) => painted(one, colours));
    if (part === null || typeof part !== "object") return part;
    return Object.fromEntries(Object.entries(part).map(([name, one]) => [name, painted(one, colours)]));
  };

  // A finger that scrolls the page must not zoom a plot. Buttons are named one by one: some versions of plotly have one
  // that would send the data away.
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touched ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };

  const draw = (plot) => {
    const figure = figures[plot.dataset.figure];
    const colours = getComputedStyle(root);
    const layout = painted(phone.matches ? figure.narrow : figure.wide, colours);
    const data = painted(figure.data, colours);
    drawn.add(plot);
    return Plotly.react(plot, data, { ...layout, dragmode: touched ? false : "zoom" }, config);
  };
  const redraw = () => drawn.forEach(draw);

  const near = new IntersectionObserver(
    (seen) => {
      for (const { isIntersecting, target } of seen)
        if (isIntersecting) {
          near.unobserve(target);
          draw(target);
        }
    },
    { rootMargin: "400px" },
  );
  plots.forEach((plot) => near.observe(plot));
  phone.addEventListener("change", redraw);

  // The theme: as the system says until the button is used. A file opened from disk may have no storage.
  const remembered = () => {
    try {
      return localStorage.getItem("headway-theme");
    } catch {
      return null;
    }
  };
  const button = document.getElementById("theme");
  const theme = () => root.dataset.theme || (systemDark.matches ? "dark" : "light");
  const show = () => {
    button.textContent = theme() === "dark" ? "Light" : "Dark";
    redraw();
  };
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("headway-theme", root.dataset.theme);
    } catch {
      // it holds until the page is closed
    }
    show();
  });
  systemDark.addEventListener("change", show);
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  button.hidden = false;
  show();

  // On paper: everything, and on white.
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    plots.forEach(draw);
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    redraw();
  });
})();
