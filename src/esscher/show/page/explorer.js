// Layer by head: a heatmap with a choice of quantities, and the head that is selected.

function buildExplorer(place, spec) {
  const table = spec.table;
  const layers = [...new Set(table.data.layer)].sort((a, b) => a - b);
  const heads = [...new Set(table.data.head)].sort((a, b) => a - b);
  const at = new Map(table.data.layer.map((layer, i) => [`${layer}.${table.data.head[i]}`, i]));
  const columns = Object.fromEntries(table.columns.map((column) => [column.key, column]));
  const plot = place.querySelector(".heatmap .plot");
  const area = place.querySelector(".heatmap-area");
  const title = place.querySelector(".selected h4");
  const facts = place.querySelector(".selected .facts");
  const flags = place.querySelector(".selected .flags");
  const curve = place.querySelector(".selected .plot");
  const legend = place.querySelector(".selected .legend-place");
  const live = place.querySelector(".live");
  const state = { row: spec.start, quantity: 0, view: 0, hidden: spec.views.map(() => new Set()) };
  let listing = null;

  const nameOf = (i) => `layer ${table.data.layer[i]}, ${spec.unit} ${table.data.head[i]}`;
  const told = (key, i) => cellText(table, columns[key], i);

  function heatTrace(quantity) {
    const column = columns[quantity.key];
    const values = table.data[quantity.key];
    const names = quantity.categories ? quantity.categories.map(([name]) => name) : null;
    const cell = (layer, head) => {
      const i = at.get(`${layer}.${head}`);
      if (i === undefined || values[i] === null) return null;
      if (names) return names.indexOf(values[i]);
      return quantity.log ? (values[i] > 0 ? Math.log10(values[i]) : null) : values[i];
    };
    const z = layers.map((layer) => heads.map((head) => cell(layer, head)));
    const text = layers.map((layer) => heads.map((head) => {
      const i = at.get(`${layer}.${head}`);
      return i === undefined ? "not measured" : `<b>${nameOf(i)}</b><br>${plain(quantity.title)}: ${plain(told(quantity.key, i))}`;
    }));
    const finite = z.flat().filter((value) => value !== null);
    let [low, high] = quantity.limits ? quantity.limits.map((value) => (quantity.log ? Math.log10(value) : value))
      : [Math.min(...finite), Math.max(...finite)];
    const bar = { thickness: 12, outlinewidth: 0, len: 1, tickfont: { size: 11 }, xpad: 6 };
    let scale = colourScale(quantity.colours);
    if (names) {
      low = -0.5;
      high = names.length - 0.5;
      scale = quantity.categories.flatMap(([, name], k) => [[k / names.length, colour(name)], [(k + 1) / names.length, colour(name)]]);
    } else if (quantity.log && finite.length) {
      bar.tickvals = logTicks(10 ** low, 10 ** high).map(Math.log10);
      bar.ticktext = bar.tickvals.map((value) => tick(10 ** value));
    }
    if (high <= low) [low, high] = [low - 0.5, low + 0.5];
    const trace = {
      type: "heatmap", z, x: heads.map((_, j) => j), y: layers.map((_, i) => i), text, hoverinfo: "text",
      colorscale: scale, zmin: low, zmax: high, xgap: 1.5, ygap: 1.5, showscale: !names, colorbar: bar,
    };
    const crosses = { type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip", textfont: { color: colour("muted"), size: 11 } };
    z.forEach((row, i) => row.forEach((value, j) => {
      if (value !== null || !at.has(`${layers[i]}.${heads[j]}`)) return;
      crosses.x.push(j);
      crosses.y.push(i);
      crosses.text.push(column.last ? "∞" : "×");
    }));
    return [trace, crosses];
  }

  function heatLayout() {
    const layout = baseLayout(Math.max(300, Math.min(660, 70 + (layers.length > 16 ? 18 : 46) * layers.length)));
    const some = (values) => {
      const step = Math.max(1, Math.ceil(values.length / 16));
      return values.map((_, i) => i).filter((i) => i % step === 0);
    };
    const axis = (name, values) => Object.assign(axisLayout({ title: name, categories: values.map(String) }, []), {
      tickvals: some(values), ticktext: some(values).map((i) => String(values[i])), range: [-0.5, values.length - 0.5],
      showgrid: false, showline: false, ticks: "",
    });
    layout.xaxis = axis(spec.unit, heads);
    layout.yaxis = axis("layer", layers);
    layout.margin = { l: 44, r: 6, t: 8, b: 42 };
    layout.shapes = marks();
    return layout;
  }

  function marks() {
    const x = heads.indexOf(table.data.head[state.row]);
    const y = layers.indexOf(table.data.layer[state.row]);
    const box = (width, color) => ({
      type: "rect", x0: x - 0.5, x1: x + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color, width }, fillcolor: "rgba(0,0,0,0)",
    });
    return [box(5, colour("panel")), box(2.5, colour("mark"))];
  }

  function drawHeat() {
    const quantity = spec.quantities[state.quantity];
    area.setAttribute("aria-label", `Heatmap of ${quantity.title} by layer and ${spec.unit}. Arrow keys select, Enter goes to the curve.`);
    const key = place.querySelector(".key");
    key.replaceChildren(...(quantity.categories || []).map(([name, paint]) => {
      const swatch = element("span", { class: "swatch bar", "aria-hidden": "true" });
      swatch.style.color = colour(paint);
      return element("span", {}, swatch, name);
    }));
    return Plotly.react(plot, heatTrace(quantity), heatLayout(), CONFIG);
  }

  function curveView() {
    const own = spec.curves[state.row];
    const template = spec.views[state.view];
    if (!template || !own || !Object.keys(own).length) return null;
    const x = typeof template.at === "string" ? own[template.at] : template.at;
    const series = template.series.filter((one) => own[one.y]).map((one) => {
      const [low, high] = [one.low ? own[one.low] : null, one.high ? own[one.high] : null];
      const place = template.across ? { x: own[one.y], y: x, x_low: low, x_high: high, low: null, high: null }
        : { x, y: own[one.y], low, high };
      return { ...one, ...place, hollow: one.hollow ? own[one.hollow] : null };
    });
    return { ...template, series };
  }

  function drawCurve(legendToo) {
    const view = curveView();
    curve.hidden = legend.hidden = !view;
    if (!view) return;
    const hidden = state.hidden[state.view];
    const [traces, layout] = figureOf(view, hidden, heightOf(view, 330));
    curve.setAttribute("aria-label", `${view.y.title} against ${view.x.title} for ${nameOf(state.row)}`);
    Plotly.react(curve, traces, layout, CONFIG);
    if (legendToo) legend.replaceChildren(legendOf(view, hidden, () => drawCurve(false)));
    const details = place.querySelector(".selected details.data");
    if (details.open) fillDetails(details, view);
  }

  function tell() {
    const i = state.row;
    title.textContent = nameOf(i).replace(/^l/, "L");
    facts.replaceChildren(...spec.facts.flatMap((key) => {
      const column = columns[key];
      return [element("div", { title: column.help }, element("dt", {}, column.title), element("dd", {}, ...cellNodes(table, column, i)))];
    }));
    const found = spec.flags[i] || [];
    const notes = spec.notes[i];
    const items = found.map(([name, evidence]) => element("li", {}, element("strong", {}, name), " " + evidence));
    flags.replaceChildren(...(notes ? [element("p", {}, notes)] : []), ...(items.length ? [element("ul", {}, ...items)] : []));
    if (!spec.curves[i] || !Object.keys(spec.curves[i]).length) {
      if (spec.views.length) flags.append(element("p", { class: "muted" }, "The curve of this one is not in this page: it would be too large."));
    }
    const quantity = spec.quantities[state.quantity];
    live.textContent = `${nameOf(i)}: ${quantity.title} ${told(quantity.key, i)}`;
    place.querySelector(".picked span").textContent = live.textContent.replace(/^l/, "L");
  }

  function select(i, focus) {
    state.row = i;
    tell();
    Plotly.relayout(plot, { shapes: marks() });
    drawCurve(true);
    if (listing) listing.select(i);
    place.dataset.selected = `${table.data.layer[i]}.${table.data.head[i]}`;
    if (focus) {
      title.focus({ preventScroll: true });
      place.querySelector(".selected").scrollIntoView({ block: "nearest", behavior: "auto" });
    }
  }

  function step(vertical, horizontal) {
    let y = layers.indexOf(table.data.layer[state.row]);
    let x = heads.indexOf(table.data.head[state.row]);
    for (;;) {
      y += vertical;
      x += horizontal;
      if (y < 0 || y >= layers.length || x < 0 || x >= heads.length) return;
      const i = at.get(`${layers[y]}.${heads[x]}`);
      if (i !== undefined) return select(i);
    }
  }

  area.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (move) {
      event.preventDefault();
      step(...move);
    } else if (event.key === "Enter") {
      event.preventDefault();
      select(state.row, true);
    }
  });

  place.querySelector(".picked button").addEventListener("click", () => {
    title.focus({ preventScroll: true });
    place.querySelector(".selected").scrollIntoView({ block: "start" });
  });
  const redraw = () => {
    drawHeat();
    drawCurve(true);
  };
  place.querySelector(".controls").replaceChildren(choice("Quantity", spec.quantities.map((quantity) => quantity.title), 0, (k) => {
    state.quantity = k;
    drawHeat();
    tell();
  }));
  if (spec.views.length > 1) {
    place.querySelector(".curve-controls").replaceChildren(choice("Curve", spec.views.map((view) => view.name), 0, (k) => {
      state.view = k;
      drawCurve(true);
    }));
  }
  const details = place.querySelector(".selected details.data");
  details.hidden = !spec.views.length;
  details.addEventListener("toggle", () => {
    const view = curveView();
    if (details.open && view) fillDetails(details, view);
  });
  drawHeat();
  plot.on("plotly_click", (event) => {
    const point = event.points[0];
    const i = at.get(`${layers[point.y]}.${heads[point.x]}`);
    if (i !== undefined) select(i);
  });
  drawn.add(redraw);
  tell();
  drawCurve(true);
  place.dataset.selected = `${table.data.layer[state.row]}.${table.data.head[state.row]}`;
  place.dataset.drawn = "true";
  return {
    select,
    list(place) {
      listing = buildTable(place, table, select);
      listing.select(state.row);
    },
  };
}
