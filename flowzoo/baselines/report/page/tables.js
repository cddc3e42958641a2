// Tables: plain ones, and heat maps whose cells carry their numbers.

// The caption stays in place while a wide table is moved below it.
const framed = (caption, content) => h("div", { class: "panel framed" }, h("p", { class: "note" }, caption),
  h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, content));

// `columns`: [heading, cell(row) -> node or text, class]; the first column heads its row.
const table = (caption, columns, rows) => framed(caption, h("table", null,
  h("thead", null, h("tr", null, columns.map(([heading, , kind]) => h("th", { scope: "col", class: kind }, heading)))),
  h("tbody", null, rows.map((row) => h("tr", null, columns.map(([, cell, kind], place) =>
    h(place ? "td" : "th", { class: kind, scope: place ? null : "row" }, cell(row))))))));

// `cell(row, column)` returns {value in [-1, 1] or null, content}.
const heatMap = (caption, corner, rows, columns, cell) => {
  const painted = [];
  const body = rows.map((row) => h("tr", null, h("th", { scope: "row" }, bdi(row)), columns.map((column) => {
    const { value, content } = cell(row, column);
    const element = h("td", null, content);
    if (known(value)) painted.push([element, value]);
    return element;
  })));
  const paint = () => painted.forEach(([element, value]) => { element.style.backgroundColor = heat(value); });
  themed.push(paint);
  paint();
  return framed(caption, h("table", { class: "heat" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, corner), columns.map((column) => h("th", { scope: "col" }, bdi(column))))),
    h("tbody", null, body)));
};

const pairs = (object) => h("dl", { class: "facts" }, Object.entries(object).flatMap(([name, value]) =>
  [h("dt", null, bdi(name)), h("dd", null, bdi(typeof value === "string" ? value : JSON.stringify(value)))]));
