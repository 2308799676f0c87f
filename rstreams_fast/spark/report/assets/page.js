"use strict";
(() => {
  const COLOURS = 5;
  // No line differs from the others by its colour alone.
  const DASHES = [[], [10, 5], [2, 4]];
  const BORDERS = ["solid", "dashed", "dotted"];
  const HEIGHT = 210;
  const LEAST_SECONDS = 0.5;
  const byId = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) =>
    value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 1 ? 3 : value < 10 ? 2 : 1 });

  const plots = [];
  let charts = [];
  let range = null; // the seconds that all charts show; null: the whole run

  // -- making charts ------------------------------------------------------------------------------

  const element = (parent, name, words = {}) => {
    const made = parent.appendChild(document.createElement(name));
    for (const [key, value] of Object.entries(words)) made.setAttribute(key, value);
    return made;
  };

  const line = (series) => ({
    label: series.label,
    stroke: css(`--line-${series.style % COLOURS}`),
    width: series.bound ? 1 : 2,
    dash: series.bound ? [3, 3] : DASHES[series.style % DASHES.length],
    points: { show: false },
    value: (_, value) => number(value),
  });

  const axis = (label, size) => ({
    label,
    labelSize: 20,
    labelFont: "13px system-ui, sans-serif",
    font: "13px system-ui, sans-serif",
    stroke: css("--dim"),
    grid: { stroke: css("--rule"), width: 1 },
    ticks: { stroke: css("--rule"), width: 1 },
    size,
    values: (_, values) => values.map(number),
  });

  const border = (chart, index) => {
    if (!index) return "solid";
    const { bound, style } = chart.series[index - 1];
    return bound ? "dotted" : BORDERS[style % BORDERS.length];
  };

  function makePlot(chart) {
    const box = element(byId("charts"), "div", { class: "chart" });
    element(box, "h3").textContent = chart.title;
    const place = element(box, "div", {
      class: "plot",
      tabindex: 0,
      role: "group",
      "aria-label": `Chart of ${chart.title}`,
      "aria-describedby": "keys",
    });
    const said = element(box, "p", { class: "unseen", "aria-live": "polite" });
    const words = {
      width: place.clientWidth,
      height: HEIGHT,
      scales: {
        x: { time: false },
        y: { range: (_, least, most) => [0, chart.top ?? (most * 1.05 || 1)] },
      },
      axes: [axis("seconds", 34), axis(chart.unit, 62)],
      series: [{ label: "seconds", value: (_, at) => number(at) }, ...chart.series.map(line)],
      cursor: { sync: { key: "run" }, drag: { x: true, y: false } },
      legend: { markers: { width: 3, dash: (_, index) => border(chart, index) } },
      hooks: { setScale: [(changed, scale) => scale === "x" && follow(changed)] },
    };
    const plot = new uPlot(words, chart.data, place);
    for (const label of place.querySelectorAll(".u-series:not(:first-child) th")) {
      label.tabIndex = 0;
      label.setAttribute("role", "button");
      label.title = "Show or hide this line";
      label.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        label.click();
      });
    }
    place.addEventListener("keydown", (event) => onKey(event, plot, said));
    new ResizeObserver(() => {
      if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
    }).observe(place);
    return plot;
  }

  const shape = (some) => JSON.stringify(some.map((chart) => chart.series));

  function draw(news) {
    const same = shape(news) === shape(charts) && plots.length;
    charts = news;
    if (charts.some((chart) => chart.data[0].length < 2)) return;
    if (!same) {
      rebuild();
      return;
    }
    plots.forEach((plot, index) => plot.setData(charts[index].data, range === null));
    if (range !== null) show(range);
  }

  function rebuild() {
    plots.splice(0).forEach((plot) => plot.destroy());
    byId("charts").replaceChildren();
    plots.push(...charts.map(makePlot));
    if (range !== null) show(range);
  }

  // -- zoom ---------------------------------------------------------------------------------------

  const whole = () => {
    const seconds = charts[0].data[0];
    return [seconds[0], seconds[seconds.length - 1]];
  };

  /** Let the other charts show what `plot` shows now. */
  function follow(plot) {
    const { min, max } = plot.scales.x;
    if (min == null || !plots.includes(plot)) return;
    const [first, last] = whole();
    range = min <= first && max >= last ? null : [min, max];
    byId("shown").textContent = range ? `${number(min)} to ${number(max)} s` : "";
    show([min, max]);
  }

  function show([min, max]) {
    for (const plot of plots) {
      const { x } = plot.scales;
      // At once, and not with the next task: a key that follows looks at the new scale.
      if (x.min !== min || x.max !== max) plot.batch(() => plot.setScale("x", { min, max }));
    }
  }

  /** Show `factor` of the seconds that are shown now (0: all), moved by a share of them. */
  function zoom(factor, move = 0, centre = null) {
    if (!plots.length) return;
    const [first, last] = whole();
    const [from, to] = range ?? [first, last];
    const span = factor ? Math.max(Math.min(LEAST_SECONDS, last - first), (to - from) * factor) : last - first;
    if (span >= last - first) {
      show([first, last]);
      return;
    }
    const middle = (centre ?? (from + to) / 2) + move * (to - from);
    const begin = Math.min(Math.max(middle - span / 2, first), last - span);
    show([begin, begin + span]);
  }

  // -- keys and buttons ---------------------------------------------------------------------------

  /** Put the cursor on a moment of the run, and return the values there as a text. */
  function moveCursor(plot, wanted) {
    const seconds = plot.data[0];
    const index = Math.min(Math.max(wanted, 0), seconds.length - 1);
    const left = Math.min(Math.max(plot.valToPos(seconds[index], "x"), 0), plot.over.clientWidth - 1);
    plot.setCursor({ left, top: plot.over.clientHeight / 2 });
    return plot.series.map((line, at) => `${line.label} ${number(plot.data[at][index])}`).join(", ");
  }

  function onKey(event, plot, said) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const at = plot.cursor.idx;
    const move = (steps) => {
      said.textContent = moveCursor(plot, (at ?? plot.data[0].length) + steps);
    };
    const zoomHere = (factor) => {
      zoom(factor, 0, at == null ? null : plot.data[0][at]);
      if (at != null) moveCursor(plot, at); // the cursor stays on its moment
    };
    const does = {
      ArrowLeft: () => move(event.shiftKey ? -10 : -1),
      ArrowRight: () => move(event.shiftKey ? 10 : 1),
      "+": () => zoomHere(0.5),
      "=": () => zoomHere(0.5),
      "-": () => zoomHere(2),
      0: () => zoomHere(0),
      Escape: () => zoomHere(0),
    }[event.key];
    if (does === undefined) return;
    event.preventDefault();
    does();
  }

  for (const button of document.querySelectorAll("#zoom button")) {
    const { zoom: factor, move } = button.dataset;
    button.addEventListener("click", () => zoom(Number(factor ?? 1), Number(move ?? 0)));
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);

  // -- news of a job that runs --------------------------------------------------------------------

  const parts = new Map();

  function update(news) {
    for (const [id, html] of Object.entries(news.parts)) {
      if (parts.get(id) === html) continue;
      parts.set(id, html);
      byId(id).innerHTML = html;
    }
    draw(news.charts);
  }

  const data = JSON.parse(byId("data").textContent);
  draw(data.charts);
  if (data.live) {
    const events = new EventSource("events");
    events.onmessage = (event) => {
      const news = JSON.parse(event.data);
      if (news.ended) events.close();
      update(news);
    };
    events.onerror = () => {
      parts.delete("status");
      byId("status").textContent = "There is no connection to the job. These are the last figures.";
    };
  }
})();
