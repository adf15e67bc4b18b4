// A chart in its figure: views to choose from, a legend, the numbers as a table.

/** How to draw again what has been drawn: when the theme changes. */
const drawn = new Set();

/** The legend: a button per series that hides or shows it. */
function legendOf(view, hidden, redraw) {
  const box = element("div", { class: "legend", role: "group", "aria-label": "Series" });
  if (view.kind === "grid" || view.series.length < 2) return box;
  view.series.forEach((series, k) => {
    if (series.joined) return;
    const together = [k];
    for (let j = k + 1; j < view.series.length && view.series[j].joined; j += 1) together.push(j);
    const swatch = element("span", { class: `swatch ${view.kind === "bars" ? "bar" : series.mode} ${series.dash}`, "aria-hidden": "true" });
    swatch.style.color = seriesColour(series);
    const button = element("button", { type: "button", "aria-pressed": String(!hidden.has(k)), title: "Show or hide" }, swatch, series.name);
    button.addEventListener("click", () => {
      if (hidden.has(k)) together.forEach((j) => hidden.delete(j));
      else if (hidden.size + together.length < view.series.length) together.forEach((j) => hidden.add(j));
      button.setAttribute("aria-pressed", String(!hidden.has(k)));
      redraw();
    });
    box.append(button);
  });
  return box;
}

/** The numbers of a view as a table, for those who do not see the chart. */
function dataTable(view) {
  const head = element("tr", {});
  const body = element("tbody", {});
  const add = (cells) => {
    const row = element("tr", {});
    cells.forEach((cell) => row.append(element("td", {}, cell)));
    body.append(row);
  };
  if (view.kind === "grid") {
    ["", ...view.columns].forEach((name) => head.append(element("th", { scope: "col" }, String(name))));
    view.values.forEach((row, i) => add([view.rows[i], ...row.map((value) => shown(value, view.format))]));
  } else if (view.kind === "bars") {
    ["", ...view.series.map((series) => series.name)].forEach((name) => head.append(element("th", { scope: "col" }, name)));
    view.categories.forEach((name, i) => add([name, ...view.series.map((series) => withEnds(series, i))]));
  } else {
    ["series", view.x.title, view.y.title].forEach((name) => head.append(element("th", { scope: "col" }, name)));
    for (const series of view.series) {
      series.x.forEach((x, i) => {
        const name = series.text && series.text[i] ? `${series.name}, ${series.text[i]}` : series.name;
        add([name, view.x.categories ? view.x.categories[Math.round(x)] : significantOrMissing(x),
          view.y.categories ? view.y.categories[Math.round(series.y[i])] : withEnds(series, i)]);
      });
    }
  }
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Data of the chart" },
    element("table", { class: "plain" }, element("thead", {}, head), body));
}

function withEnds(series, i) {
  const ends = series.low && series.low[i] !== null && series.low[i] !== undefined
    ? ` (${significantOrMissing(series.low[i])} to ${significantOrMissing(series.high[i])})` : "";
  return significantOrMissing(series.y[i]) + ends;
}

/** Draw a chart into its figure; returns how to draw it again. */
function drawChart(figure, chart, onPoint) {
  const place = figure.querySelector(".plot");
  const legend = figure.querySelector(".legend-place");
  const controls = figure.querySelector(".controls");
  const details = figure.querySelector("details.data");
  let current = 0;
  const hidden = chart.views.map(() => new Set());
  const redraw = () => {
    const view = chart.views[current];
    const [traces, layout] = figureOf(view, hidden[current], heightOf(view, chart.height));
    return Plotly.react(place, traces, layout, CONFIG);
  };
  const refresh = () => {
    const view = chart.views[current];
    legend.replaceChildren(legendOf(view, hidden[current], redraw));
    if (details && details.open) fillDetails(details, view);
    return redraw();
  };
  if (controls && chart.views.length > 1) {
    controls.replaceChildren(choice(chart.selector, chart.views.map((view) => view.name), 0, (i) => {
      current = i;
      refresh();
    }));
  }
  if (details) details.addEventListener("toggle", () => details.open && fillDetails(details, chart.views[current]));
  refresh();
  if (onPoint) {
    place.on("plotly_click", (event) => {
      const row = event.points[0].customdata;
      if (row !== undefined && row !== null) onPoint(row);
    });
  }
  figure.dataset.drawn = "true";
  drawn.add(refresh);
  return refresh;
}

function fillDetails(details, view) {
  details.querySelector(".data-place").replaceChildren(dataTable(view));
}

function heightOf(view, height) {
  if (view.kind === "grid") return Math.max(220, Math.min(720, 90 + 34 * view.rows.length));
  if (view.y && view.y.categories) {
    const count = view.y.categories.length;
    return Math.max(height, 70 + (count > 14 ? 19 : 40) * count);
  }
  if (view.horizontal) return Math.max(200, 80 + 42 * view.categories.length);
  return height;
}
