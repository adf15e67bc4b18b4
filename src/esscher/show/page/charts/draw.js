// Charts in a page: drawn in time (when.js), and again when the width changes.

/** Pixels per point. */
const SCREEN = 1.5;
/** Change of the width, in pixels, from which a chart is laid out again. */
const NOTICED = 8;
/** Pixels between a tip and its panel, and the edge of the window. */
const MARGIN = 8;
/** Marks of a chart that is drawn before somebody looks at it; more keep the page busy for seconds. */
const UNASKED = 25000;
const SPECIFICATIONS = JSON.parse(document.getElementById("charts").textContent);
const drawnCharts = new Map();

/** Rows of the datasets of a chart, which come as columns: every time others, since Vega writes into them. */
function rowsOf(name) {
  const rows = (columns) => {
    const fields = Object.entries(columns);
    return (fields[0]?.[1] ?? []).map((_, i) => {
      const row = {};
      for (const [key, values] of fields) row[key] = values[i];
      return row;
    });
  };
  const datasets = Object.entries(SPECIFICATIONS.charts[name].datasets);
  return Object.fromEntries(datasets.map(([key, columns]) => [key, rows(columns)]));
}

/** About how many marks a view has: the rows of its layers and panels. */
function marksOf(view, datasets = view.datasets, rows = 0) {
  const columns = datasets[view.data?.name];
  const own = columns ? (Object.values(columns)[0] ?? []).length : rows;
  const parts = view.layer ?? view.concat ?? view.vconcat;
  return parts ? parts.reduce((sum, part) => sum + marksOf(part, datasets, own), 0) : own;
}

/** Draw a chart into its place, as wide as the place is. */
function drawChart(place) {
  const width = place.clientWidth;
  const before = drawnCharts.get(place);
  if (!width || (before && Math.abs(before.width - width) < NOTICED)) return;
  // laid out without its rows: they are most of it, and a layout copies what it is given
  const { datasets: columns, ...views } = SPECIFICATIONS.charts[place.dataset.chart];
  const spec = { ...layout(views, width / SCREEN), datasets: rowsOf(place.dataset.chart) };
  const { spec: compiled } = vegaLite.compile(spec, { config: SPECIFICATIONS.config });
  const said = ["role", "aria-label"].map((name) => [name, place.getAttribute(name)]);
  // expressions are interpreted, not compiled: the page's policy forbids the latter
  const view = new vega.View(vega.parse(compiled, null, { ast: true }), {
    expr: expressionInterpreter, renderer: "svg", container: place, logLevel: vega.Warn,
  });
  view.tooltip(showTip);
  if (before) before.view.finalize();
  drawnCharts.set(place, { view, width });
  if (spec.params?.some((param) => param.name === "pick")) followPick(place, view);
  else view.addEventListener("click", (_, item) => choose(place, item?.datum));
  view.run();
  if (before?.pick) pick(place, ...before.pick);
  // Vega calls the place a document without a description
  said.forEach(([name, value]) => place.setAttribute(name, value));
  place.removeAttribute("aria-roledescription");
  fit(place.querySelector("svg"));
  place.style.minHeight = "";
  place.dataset.drawn = "true";
  if (drawnCharts.size === 1) performance.mark("esscher-first-chart");
}

/** A drawing in points fills its place. */
function fit(svg) {
  const [width, height] = ["width", "height"].map((name) => svg.getAttribute(name));
  if (!svg.getAttribute("viewBox")) svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.width = "100%";
  svg.style.height = "auto";
}

// ---- the cell that is picked

/** Tell the page which cell is picked: in the place's data, and by an event `pick`. */
function followPick(place, view) {
  view.addDataListener("pick_store", (_, rows) => {
    if (!rows.length) return;
    const [layer, head] = rows[0].values;
    Object.assign(drawnCharts.get(place), { pick: [layer, head], fields: rows[0].fields.map((one) => one.field) });
    chartDetails.filter((one) => one.open && one.dataset.chart === place.dataset.chart).forEach(fillTable);
    place.dataset.pick = `${layer}.${head}`;
    place.dispatchEvent(new CustomEvent("pick", { detail: { layer, head }, bubbles: true }));
  });
}

/** Say, by an event `choose`, that a mark of a head was clicked; who picks heads may follow. */
function choose(place, datum) {
  if (datum?.layer === undefined || datum?.head === undefined) return;
  const detail = { layer: Number(datum.layer), head: datum.head };
  place.dispatchEvent(new CustomEvent("choose", { detail, bubbles: true }));
}

/** Pick a cell of a chart, which is drawn if it was not in sight yet. */
function pick(place, layer, head) {
  drawChart(place);
  const { view } = drawnCharts.get(place);
  const [{ unit, fields }] = view.data("pick_store");
  view.data("pick_store", [{ unit, fields, values: [layer, head] }]).run();
}

const MOVES = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };

/** Arrow keys move to the next cell that there is. */
function movePick(event) {
  const place = event.currentTarget;
  const move = MOVES[event.key];
  const now = drawnCharts.get(place)?.view.data("pick_store")[0];
  if (!move || !now) return;
  event.preventDefault();
  const [first, second] = now.fields.map((one) => one.field);
  const rows = Object.values(rowsOf(place.dataset.chart)).flat()
    .filter((row) => row[first] !== undefined && row[second] !== undefined);
  const axis = move[0] ? 0 : 1;
  const next = rows.map((row) => [row[first], row[second]])
    .filter((cell) => cell[1 - axis] === now.values[1 - axis] && (cell[axis] - now.values[axis]) * move[axis] > 0)
    .sort((a, b) => (a[axis] - b[axis]) * move[axis])[0];
  if (next) pick(place, ...next);
}

// ---- what a mark says

const tipBox = document.createElement("div");
tipBox.className = "chart-tip";
tipBox.hidden = true;
document.body.append(tipBox);

/** Show the fields of the mark that the pointer is on; as text, whatever is in it. */
function showTip(_, event, item, value) {
  tipBox.hidden = !value || typeof value !== "object";
  if (tipBox.hidden) return;
  tipBox.replaceChildren(...Object.entries(value).map(([name, text]) => {
    const line = document.createElement("div");
    line.textContent = name.trim() ? `${name}: ${text}` : String(text);
    return line;
  }));
  const [left, top] = tipPlace(event, panelOf(event.target), tipBox.getBoundingClientRect());
  tipBox.style.left = `${left}px`;
  tipBox.style.top = `${top}px`;
}

/** The rectangle of the panel that a mark is in. */
function panelOf(mark) {
  const ground = mark.closest?.("g.role-scope, g.role-frame")?.querySelector("path.background");
  return (ground ?? mark).getBoundingClientRect();
}

/** Where a tip stands: on that side of the panel which is nearest to the pointer. It covers no neighbour of the mark. */
function tipPlace({ clientX, clientY }, panel, { width, height }) {
  const within = (at, size, whole) => Math.max(MARGIN, Math.min(at, whole - size - MARGIN));
  const fits = ([x, y]) => x === within(x, width, innerWidth) && y === within(y, height, innerHeight);
  const [x, y] = [within(clientX - width / 2, width, innerWidth), within(clientY - height / 2, height, innerHeight)];
  const sides = [
    [clientX - panel.left, [panel.left - MARGIN - width, y]],
    [panel.right - clientX, [panel.right + MARGIN, y]],
    [clientY - panel.top, [x, panel.top - MARGIN - height]],
    [panel.bottom - clientY, [x, panel.bottom + MARGIN]],
  ].filter(([, place]) => fits(place)).sort((a, b) => a[0] - b[0]);
  // a panel that fills the window: the end that is farther from the pointer
  return sides[0]?.[1] ?? [x, clientY > innerHeight / 2 ? MARGIN : innerHeight - height - MARGIN];
}

// ---- the numbers

/** Rows of a dataset; those of a cell that can be picked are lists in one row. */
function unpacked(rows) {
  return rows.flatMap((row) => {
    const lists = Object.entries(row).filter(([, value]) => Array.isArray(value));
    if (!lists.length) return [row];
    return lists[0][1].map((_, i) => ({ ...row, ...Object.fromEntries(lists.map(([key, values]) => [key, values[i]])) }));
  });
}

/** The rows of a chart as tables, for those who do not see it; of the picked cell, if one is. */
function fillTable(details) {
  const datasets = rowsOf(details.dataset.chart);
  const place = chartPlaces.find((one) => one.dataset.chart === details.dataset.chart);
  const { pick: now, fields } = drawnCharts.get(place) ?? {};
  const own = (row) => !now || fields.every((field, i) => row[field] === undefined || row[field] === now[i]);
  details.querySelector("div").replaceChildren(...Object.values(datasets).map((all) => {
    const rows = unpacked(all.filter(own));
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    const table = document.createElement("table");
    const add = (cells, kind) => {
      const line = table.insertRow();
      cells.forEach((cell) => line.appendChild(document.createElement(kind)).append(cell ?? "–"));
    };
    add(names, "th");
    rows.forEach((row) => add(names.map((name) => row[name]), "td"));
    return table;
  }));
}

// ---- when

const chartPlaces = [...document.querySelectorAll("[data-chart].chart")];
const chartDetails = [...document.querySelectorAll("details[data-chart]")];
const widths = new ResizeObserver((entries) => {
  requestAnimationFrame(() => entries.forEach(({ target }) => drawChart(target)));
});
drawInTime(chartPlaces, (place) => {
  drawChart(place);
  widths.observe(place);
}, (place) => marksOf(SPECIFICATIONS.charts[place.dataset.chart]) > UNASKED);
chartPlaces.forEach((place) => place.addEventListener("keydown", movePick));
for (const details of chartDetails) {
  details.addEventListener("toggle", () => details.open && fillTable(details));
}
globalThis.esscherCharts = { layout, pick, places: chartPlaces, views: drawnCharts };
document.documentElement.dataset.ready = "true";
