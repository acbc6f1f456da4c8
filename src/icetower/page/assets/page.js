// What the page does by itself: light or dark, live updates that can be held, and curves. Without it, all can be read.
(() => {
  "use strict";
  const root = document.documentElement;
  const kept = () => { try { return localStorage.getItem("icetower-theme"); } catch { return null; } };
  if (kept() === "light" || kept() === "dark") root.dataset.theme = kept();

  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;

  let live = true;
  document.addEventListener("htmx:sse:before:message", (event) => { if (!live) event.preventDefault(); });

  document.addEventListener("click", (event) => {
    const theme = event.target.closest("[data-theme-switch]");
    if (theme) {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("icetower-theme", root.dataset.theme); } catch { /* it holds for this page */ }
      draw();
    }
    const held = event.target.closest("[data-live-switch]");
    if (held) {
      live = !live;
      held.setAttribute("aria-pressed", String(live));
      held.textContent = live ? "Live" : "Held";
    }
  });

  let data = null;
  let plots = [];
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function draw() {
    if (!data || !window.uPlot) return;
    plots.forEach((plot) => plot.destroy());
    plots = [...document.querySelectorAll(".plot")].map((place) => {
      const names = place.dataset.series.split(" ").filter((name) => data[name].some((value) => value !== null));
      const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      return new uPlot({
        width: place.clientWidth,
        height: 220,
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        axes: [axis, { ...axis, size: 60 }],
        series: [{}, ...names.map((name) => ({
          label: name.replaceAll("_", " "), stroke: colour(`--series-${name.replaceAll("_", "-")}`), width: 2,
          points: { show: data.times_s.length < 40, size: 5 },
        }))],
      }, [data.times_s, ...names.map((name) => data[name])], place);
    });
  }

  document.addEventListener("DOMContentLoaded", async () => {
    const place = document.querySelector("[data-metrics]");
    if (!place) return;
    const answer = await fetch(place.dataset.metrics);
    if (!answer.ok) return;
    data = await answer.json();
    draw();
    addEventListener("resize", () => {
      plots.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: 220 }));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  });
})();
