// Figures by Chart.js, drawn when they come into view. Every figure has its numbers as a table.

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); entry.target.draw(); }
}, { rootMargin: "400px" });

// `series`: {name, place (color), points [[x, y], ...], light, dots, band [[x, low, high], ...]}
const figure = (title, note, series, options = {}) => {
  const canvas = h("canvas", { role: "img", "aria-label": `${title}. ${spoken(series, options)}` });
  const legend = series.length < 2 && !options.legend ? null : h("ul", { class: "legend" });
  const box = h("figure", null,
    h("figcaption", null, h("b", null, title), note ? h("span", { class: "note" }, note) : null),
    h("div", { class: "canvas" }, canvas), legend, numbers(series, options));
  let chart = null;
  box.draw = () => {
    if (chart) chart.destroy();
    chart = new Chart(canvas, config(series, options));
    if (legend) legend.replaceChildren(...series.map(legendEntry));
  };
  themed.push(() => { if (chart) box.draw(); });
  near.observe(box);
  return box;
};

// A chart that would say no more than its one level: {title, levels [[level, names], ...]}; else null.
const steady = (title, series, options) => {
  const level = (one) => (flat2d(one.points, 1) && flat2d(one.band || [], 1) && flat2d(one.band || [], 2) ? one.points[0][1] : NaN);
  const found = series.map((one) => [level(one), one.name]);
  if (!series.some((one) => one.points.length > 1) || !found.every(([value]) => known(value))) return null;
  const show = options.percent ? percent : number;
  const levels = new Map();
  for (const [value, name] of found) levels.set(show(value), [...(levels.get(show(value)) || []), name]);
  return { title, levels: [...levels] };
};
const flat2d = (rows, at) => rows.every((row) => Math.abs(row[at] - rows[0][at]) < 1e-12);

const legendEntry = (one) => {
  const key = h("span", { class: one.light ? "key dashed" : "key" });
  key.style.borderColor = seriesColor(one.place);
  return h("li", null, key, bdi(one.name));
};

const spoken = (series, options) => series.map((one) => {
  const show = options.percent ? percent : number;
  const [first, last] = [one.points[0], one.points[one.points.length - 1]];
  return first ? `${one.name}: ${show(first[1])} at ${first[0]}, ${show(last[1])} at ${last[0]}.` : "";
}).join(" ");

const numbers = (series, options) => {
  const show = options.percent ? (value) => percent(value, 2) : number;
  const details = h("details", { ontoggle: () => {
    if (!details.open || details.childElementCount > 1) return;
    const steps = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
    const maps = series.map((one) => new Map(one.points.map(([x, y]) => [x, y])));
    details.append(h("div", { class: "scroll" }, h("table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, options.x || "step"), series.map((one) => h("th", { scope: "col" }, bdi(one.name))))),
      h("tbody", null, steps.map((x) => h("tr", null, h("th", { scope: "row" }, number(x)), maps.map((map) => h("td", null, map.has(x) ? show(map.get(x)) : ""))))))));
  } }, h("summary", null, "Numbers"));
  return details;
};

const line = (one, options) => ({
  label: one.name,
  data: one.points.map(([x, y]) => ({ x, y })),
  borderColor: seriesColor(one.place),
  backgroundColor: options.stacked ? `${seriesColor(one.place)}b3` : seriesColor(one.place),
  borderWidth: one.light ? 1.25 : 2,
  borderDash: one.light ? [2, 3] : [],
  pointRadius: one.dots ? 3 : 0,
  pointHitRadius: 8,
  tension: 0,
  spanGaps: true,
  fill: options.stacked ? "stack" : false,
});

const bandLines = (one) => {
  const edge = (place, fill) => ({
    label: "", data: one.band.map((row) => ({ x: row[0], y: row[place] })), borderWidth: 0, pointRadius: 0,
    pointHitRadius: 0, backgroundColor: `${seriesColor(one.place)}2e`, fill, edge: true,
  });
  return [edge(1, false), edge(2, "-1")];
};

// Room around a curve that is one level throughout, which would else be drawn from -1 to 1.
const room = (series, options) => {
  const values = series.flatMap((one) => [...one.points.map(([, y]) => y), ...(one.band || []).flatMap(([, low, high]) => [low, high])]);
  const [low, high] = values.reduce(([a, b], y) => [Math.min(a, y), Math.max(b, y)], [Infinity, -Infinity]);
  if (!(high - low < 1e-12)) return { suggestedMin: options.least, suggestedMax: options.most };
  const pad = options.percent ? 0.05 : 0.1 * Math.abs(high) || 1;
  const share = options.percent && low >= 0 && high <= 1;
  return { suggestedMin: options.least ?? (share || low === 0 ? Math.max(0, low - pad) : low - pad), suggestedMax: options.most ?? (share ? Math.min(1, high + pad) : high + pad) };
};

const config = (series, options) => {
  const datasets = series.flatMap((one) => [line(one, options), ...(one.band ? bandLines(one) : [])]);
  const show = options.percent ? (value) => percent(value) : number;
  const grid = { color: color("line"), drawTicks: false };
  const ticks = { color: color("muted"), font: { size: 11 }, padding: 6, maxTicksLimit: 7 };
  return {
    type: "line",
    data: { datasets },
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, normalized: true,
      interaction: { mode: "x", intersect: false },
      onClick: (event, _, chart) => { if (!options.x) showStep(chart.scales.x.getValueForPixel(event.x)); },
      scales: {
        x: { type: "linear", grid: { display: false }, border: { color: color("line") }, title: { display: !options.bare, text: options.x || "step", color: color("muted"), font: { size: 11 } }, ticks: { ...ticks, precision: 0 } },
        y: { stacked: Boolean(options.stacked), min: options.min, max: options.max, ...room(series, options), grid, border: { display: false }, ticks: { ...ticks, maxTicksLimit: 6, callback: (value) => (options.percent ? minus(String(Math.round(1000 * value) / 10)) + " %" : number(value)) } },
      },
      plugins: {
        legend: { display: false },
        tooltip: {
          filter: (item) => !item.dataset.edge,
          callbacks: { title: (items) => (items.length ? `${options.x || "step"} ${items[0].parsed.x}` : ""), label: (item) => ` ${item.dataset.label}: ${show(item.parsed.y)}` },
        },
      },
    },
  };
};

// Floating bars from the terminal accuracy to the peak, with the base as a point.
const spans = (title, note, rows) => {
  const canvas = h("canvas", { role: "img", "aria-label": `${title}. The table below has the numbers.` });
  const holder = h("div", { class: "canvas" }, canvas);
  holder.style.height = `${5 + 1.9 * rows.length}rem`;
  const box = h("figure", null, h("figcaption", null, h("b", null, title), h("span", { class: "note" }, note)), holder);
  let chart = null;
  box.draw = () => {
    if (chart) chart.destroy();
    const dot = (label, key, place) => ({ type: "line", label, showLine: false, pointRadius: 5, data: rows.map((row) => ({ x: row[key], y: row.name })), borderColor: seriesColor(place), backgroundColor: seriesColor(place) });
    const short = (text) => (text.length > 34 ? text.slice(0, 32) + "…" : text);
    const axis = { color: color("muted"), font: { size: 11 } };
    chart = new Chart(canvas, {
      data: { labels: rows.map((row) => row.name), datasets: [dot("before training", "base", 6), dot("peak, cross-fitted", "peak", 0), dot("terminal", "terminal", 1),
        { type: "bar", label: "peak to terminal", data: rows.map((row) => [Math.min(row.peak, row.terminal), Math.max(row.peak, row.terminal)]), backgroundColor: `${color("muted")}55`, barThickness: 6 }] },
      options: { animation: false, responsive: true, maintainAspectRatio: false, indexAxis: "y",
        scales: { x: { grid: { color: color("line") }, ticks: { ...axis, callback: (value) => `${Math.round(100 * value)} %` } },
          y: { grid: { display: false }, ticks: { ...axis, autoSkip: false, callback(value) { return short(this.getLabelForValue(value)); } } } },
        plugins: { legend: { position: "bottom", labels: { color: color("muted"), usePointStyle: true, boxHeight: 7 } },
          tooltip: { filter: (item) => item.dataset.type !== "bar", callbacks: { label: (item) => ` ${item.dataset.label}: ${percent(item.parsed.x)}` } } } },
    });
  };
  themed.push(() => { if (chart) box.draw(); });
  near.observe(box);
  return box;
};

// Points of named groups, {name, place, style, points: [{x, y, label}, ...]}, about the diagonal.
const scatter = (title, note, axes, groups) => {
  const all = groups.flatMap((group) => group.points.flatMap(({ x, y }) => [x, y]));
  const [low, high] = [Math.max(0, Math.min(...all) - 0.03), Math.min(1, Math.max(...all) + 0.03)];
  const canvas = h("canvas", { role: "img", "aria-label": `${title}. The table below has the numbers.` });
  const holder = h("div", { class: "canvas square" }, canvas);
  const box = h("figure", null, h("figcaption", null, h("b", null, title), h("span", { class: "note" }, note)), holder);
  let chart = null;
  box.draw = () => {
    if (chart) chart.destroy();
    const axis = (text) => ({ min: low, max: high, grid: { color: color("line") }, title: { display: true, text, color: color("muted"), font: { size: 11 } }, ticks: { color: color("muted"), font: { size: 11 }, maxTicksLimit: 7, callback: (value) => `${Math.round(1000 * value) / 10} %` } });
    const marks = groups.map((group) => ({ type: "scatter", label: group.name, data: group.points, pointStyle: group.style, pointRadius: 6, borderColor: seriesColor(group.place), backgroundColor: `${seriesColor(group.place)}99` }));
    chart = new Chart(canvas, {
      data: { datasets: [...marks, { type: "line", label: "no fall", data: [{ x: low, y: low }, { x: high, y: high }], pointRadius: 0, pointHitRadius: 0, borderColor: color("muted"), borderDash: [3, 3], borderWidth: 1 }] },
      options: { animation: false, responsive: true, maintainAspectRatio: false, scales: { x: { type: "linear", ...axis(axes[0]) }, y: axis(axes[1]) },
        plugins: { legend: { position: "bottom", labels: { color: color("muted"), usePointStyle: true, boxHeight: 7 } },
          tooltip: { filter: (item) => Boolean(item.raw.label), callbacks: { label: (item) => ` ${item.raw.label}: ${percent(item.parsed.x)}, ${percent(item.parsed.y)}` } } } },
    });
  };
  themed.push(() => { if (chart) box.draw(); });
  near.observe(box);
  return box;
};
