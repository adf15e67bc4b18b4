// From the description of a view to plotly's traces and layout.

const VIRIDIS = [
  "#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725",
];
const CIVIDIS = [
  "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
];
const SCALES = { viridis: VIRIDIS, cividis: CIVIDIS };

function colourScale(name) {
  const colours = SCALES[name] || VIRIDIS;
  return colours.map((value, i) => [i / (colours.length - 1), value]);
}

/** Colour of a place between 0 and 1 on viridis, away from what the page's ground hides. */
function shadeColour(share) {
  const dark = document.documentElement.dataset.theme === "dark";
  const at = (dark ? 0.3 + 0.7 * share : 0.88 * share) * (VIRIDIS.length - 1);
  const i = Math.min(Math.floor(at), VIRIDIS.length - 2);
  const mix = (k) => {
    const a = parseInt(VIRIDIS[i].slice(k, k + 2), 16);
    const b = parseInt(VIRIDIS[i + 1].slice(k, k + 2), 16);
    return Math.round(a + (at - i) * (b - a));
  };
  return `rgb(${mix(1)},${mix(3)},${mix(5)})`;
}

function seriesColour(series) {
  return series.shade === null || series.shade === undefined ? colour(series.colour) : shadeColour(series.shade);
}

function translucent(text, share) {
  const probe = /^#(..)(..)(..)$/.exec(text);
  const rgb = probe ? probe.slice(1).map((part) => parseInt(part, 16)) : text.match(/\d+/g);
  return `rgba(${rgb.slice(0, 3).join(",")},${share})`;
}

function axisLayout(axis, values) {
  const out = {
    title: { text: plain(axis.title), standoff: 8, font: { size: 12.5 } },
    gridcolor: colour("grid"),
    linecolor: colour("axis"),
    tickcolor: colour("axis"),
    zeroline: false,
    showline: true,
    ticks: "outside",
    ticklen: 4,
    automargin: true,
    fixedrange: true,
    exponentformat: "power",
  };
  if (axis.categories) {
    out.tickvals = axis.categories.map((_, i) => i);
    out.ticktext = axis.categories.map(plain);
    out.range = [-0.6, axis.categories.length - 0.4];
    return out;
  }
  const finite = values.filter((value) => value !== null && Number.isFinite(value) && (!axis.log || value > 0));
  let [low, high] = axis.limits || [Math.min(...finite), Math.max(...finite)];
  if (!finite.length && !axis.limits) [low, high] = axis.log ? [1, 10] : [0, 1];
  if (axis.log) {
    const pad = axis.limits ? 0 : Math.max(0.04 * Math.log10(high / low), 0.03);
    out.type = "log";
    out.range = [Math.log10(low) - pad, Math.log10(high) + pad];
    out.tickvals = axis.ticks || logTicks(low / 10 ** pad, high * 10 ** pad);
    out.ticktext = out.tickvals.map(tick);
  } else {
    const pad = axis.limits ? 0 : 0.05 * (high - low || Math.abs(high) || 1);
    out.range = [low - pad, high + pad];
    out.nticks = 7;
    if (axis.ticks) {
      out.tickvals = axis.ticks;
      out.ticktext = axis.ticks.map(tick);
    }
  }
  return out;
}

function baseLayout(height) {
  return {
    height,
    margin: { l: 56, r: 14, t: 12, b: 46, pad: 0 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("text") },
    hoverlabel: {
      bgcolor: colour("panel"),
      bordercolor: colour("axis"),
      font: { color: colour("text"), size: 12.5 },
      align: "left",
    },
    showlegend: false,
    hovermode: "closest",
    dragmode: false,
    separators: ".,",
  };
}

const CONFIG = {
  displaylogo: false,
  responsive: true,
  scrollZoom: false,
  doubleClick: false,
  showTips: false,
  displayModeBar: true,
  modeBarButtons: [["toImage"]],
  toImageButtonOptions: { format: "png", scale: 2 },
};

function bars(values, low, high, color) {
  if (!low || !high) return undefined;
  const distance = (a, b) => (a === null || b === null || a === undefined || b === undefined ? 0 : Math.max(0, a - b));
  return {
    type: "data",
    symmetric: false,
    array: values.map((value, i) => distance(high[i], value)),
    arrayminus: values.map((value, i) => distance(value, low[i])),
    color,
    thickness: 1.3,
    width: 3,
  };
}

function hover(view, series, i) {
  const at = (axis, values) =>
    axis.categories ? plain(axis.categories[Math.round(values[i])] ?? "") : significantOrMissing(values[i]);
  const interval = (low, high) =>
    low && high && low[i] !== null && low[i] !== undefined
      ? ` (${significantOrMissing(low[i])} to ${significantOrMissing(high[i])})`
      : "";
  const lines = [];
  if (series.text && series.text[i]) lines.push(`<b>${plain(series.text[i])}</b>`);
  lines.push(plain(series.name));
  lines.push(`${plain(view.x.title)}: ${at(view.x, series.x)}${interval(series.x_low, series.x_high)}`);
  lines.push(`${plain(view.y.title)}: ${at(view.y, series.y)}${interval(series.low, series.high)}`);
  return lines.join("<br>");
}

function significantOrMissing(value) {
  return value === null || value === undefined ? "–" : shown(value, "s3");
}

/** Places of a series' points, moved a little to one side if they would hide those of others. */
function placesOf(view, series, k) {
  if (!view.apart || series.mode === "line") return series.x;
  const members = view.series.filter((one) => one.mode !== "line");
  const shift = members.indexOf(view.series[k]) - (members.length - 1) / 2;
  const all = [...new Set(view.series.flatMap((one) => one.x))].filter((x) => x !== null).sort((a, b) => a - b);
  const scale = view.x.log ? Math.log : (x) => x;
  const gaps = all.slice(1).map((x, i) => scale(x) - scale(all[i]));
  const step = (0.36 * Math.min(...gaps, 1)) / Math.max(members.length, 3);
  return series.x.map((x) => (x === null ? null : view.x.log ? x * Math.exp(shift * step) : x + shift * step));
}

/** Traces of a plot; the series that are hidden by the legend are left out. */
function plotTraces(view, hidden) {
  const groups = [];
  view.series.forEach((series, k) => {
    if (hidden.has(k)) return;
    const traces = [];
    groups.unshift(traces); // the first series lies on top
    const color = seriesColour(series);
    const line = series.mode !== "points";
    const points = series.mode !== "line";
    if (line && !points && series.low && series.high) {
      const common = { x: series.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", type: "scatter" };
      traces.push({ ...common, y: series.low });
      traces.push({ ...common, y: series.high, fill: "tonexty", fillcolor: translucent(color, 0.18) });
    }
    const hollow = series.hollow || [];
    traces.push({
      type: "scatter",
      mode: line && points ? "lines+markers" : line ? "lines" : "markers",
      x: placesOf(view, series, k),
      y: series.y,
      line: { color, width: 2, dash: series.dash },
      marker: {
        size: series.x.length > 150 ? 6 : 7.5,
        symbol: series.symbol,
        color: series.x.map((_, i) => (hollow[i] ? colour("panel") : color)),
        line: { color, width: 1.5 },
      },
      error_y: points ? bars(series.y, series.low, series.high, translucent(color, series.x.length > 60 ? 0.3 : 0.75)) : undefined,
      error_x: points ? bars(series.x, series.x_low, series.x_high, translucent(color, series.x.length > 60 ? 0.3 : 0.75)) : undefined,
      hoverinfo: "text",
      hovertext: series.x.map((_, i) => hover(view, series, i)),
      customdata: series.rows || undefined,
      cliponaxis: false,
    });
  });
  return groups.flat();
}

function plotLayout(view, hidden, height) {
  const layout = baseLayout(height);
  const seen = view.series.filter((_, k) => !hidden.has(k));
  const every = (names) => seen.flatMap((series) => names.flatMap((name) => series[name] || []));
  const log = view.y.log;
  const ends = log ? [] : ["low", "high"];
  const places = view.series.flatMap((series, k) => (hidden.has(k) ? [] : placesOf(view, series, k)));
  layout.xaxis = axisLayout(view.x, [...places, ...every(view.x.log ? [] : ["x_low", "x_high"]), ...(view.x.log ? clippedEnds(seen, "x", "x_low", "x_high") : [])]);
  const lines = (view.lines || []).filter((line) => line.kind === "h" && line.name).map((line) => line.at);
  layout.yaxis = axisLayout(view.y, [...every(["y", ...ends]), ...(log ? clippedEnds(seen, "y", "low", "high") : []), ...(view.y.limits ? [] : lines)]);
  layout.shapes = [];
  layout.annotations = [];
  for (const line of view.lines || []) {
    const style = { color: colour("muted"), width: 1.2, dash: "dot" };
    const xs = layout.xaxis.range.map((value) => (view.x.log ? 10 ** value : value));
    if (line.kind === "diagonal") {
      const ys = layout.yaxis.range.map((value) => (log ? 10 ** value : value));
      const low = Math.max(xs[0], ys[0]);
      const high = Math.min(xs[1], ys[1]);
      layout.shapes.push({ type: "line", x0: low, y0: low, x1: high, y1: high, line: style, layer: "below" });
    } else if (line.kind === "h") {
      layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: line.at, y1: line.at, line: style, layer: "below" });
      if (line.name) {
        layout.annotations.push({
          xref: "paper", x: 1, xanchor: "right", y: log ? Math.log10(line.at) : line.at, yanchor: "bottom",
          text: plain(line.name), showarrow: false, font: { size: 11, color: colour("muted") }, bgcolor: translucent(colour("panel"), 0.75),
        });
      }
    } else {
      layout.shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: line.at, x1: line.at, line: style, layer: "below" });
      if (line.name) {
        layout.annotations.push({
          yref: "paper", y: 1, yanchor: "top", x: view.x.log ? Math.log10(line.at) : line.at, xanchor: "left",
          text: plain(line.name), showarrow: false, font: { size: 11, color: colour("muted") }, bgcolor: translucent(colour("panel"), 0.75),
        });
      }
    }
  }
  return layout;
}

/** Ends of intervals for a logarithmic axis: one that nears 0 does not set its range. */
function clippedEnds(seen, values, lower, upper) {
  return seen.flatMap((series) =>
    series[values].flatMap((value, i) => {
      const low = series[lower] ? series[lower][i] : null;
      const high = series[upper] ? series[upper][i] : null;
      return [low !== null && low > value / 5 ? low : null, high];
    })
  );
}

function barTraces(view, hidden) {
  return view.series.flatMap((series, k) => {
    if (hidden.has(k)) return [];
    const color = seriesColour(series);
    const axes = view.horizontal
      ? { y: view.categories.map((_, i) => i), x: series.y, orientation: "h", error_x: bars(series.y, series.low, series.high, colour("text")) }
      : { x: view.categories.map((_, i) => i), y: series.y, error_y: bars(series.y, series.low, series.high, colour("text")) };
    return [{
      type: "bar",
      ...axes,
      marker: { color, line: { color: colour("panel"), width: 1 } },
      hoverinfo: "text",
      hovertext: series.y.map((value, i) => {
        const ends = series.low && series.low[i] !== null ? ` (${significantOrMissing(series.low[i])} to ${significantOrMissing(series.high[i])})` : "";
        return `<b>${plain(view.categories[i])}</b><br>${plain(series.name)}: ${significantOrMissing(value)}${ends}`;
      }),
      textposition: "none",
    }];
  });
}

function barLayout(view, hidden, height) {
  const layout = baseLayout(height);
  const seen = view.series.filter((_, k) => !hidden.has(k));
  const values = [0, ...seen.flatMap((series) => [...series.y, ...(series.high || []), ...(series.low || [])])];
  if (view.stacked) view.categories.forEach((_, i) => values.push(seen.reduce((sum, series) => sum + (series.y[i] || 0), 0)));
  const numbers = axisLayout(view.y, values);
  if (!view.y.limits && Math.min(...values.filter((v) => v !== null)) === 0) numbers.range[0] = 0;
  const names = axisLayout({ title: "", categories: view.categories }, []);
  names.ticks = "";
  layout.barmode = view.stacked ? "stack" : "group";
  layout.bargap = 0.35;
  if (view.horizontal) {
    names.autorange = "reversed";
    delete names.range;
    layout.xaxis = numbers;
    layout.yaxis = names;
    layout.margin.l = 90;
  } else {
    layout.xaxis = names;
    layout.yaxis = numbers;
  }
  return layout;
}

function gridTraces(view) {
  const text = view.values.map((row, i) =>
    row.map((value, j) => {
      const more = view.text ? `<br>${plain(view.text[i][j])}` : "";
      return `<b>${plain(view.row_title)} ${plain(view.rows[i])}, ${plain(view.column_title)} ${plain(view.columns[j])}</b><br>${plain(view.name)}: ${shown(value, view.format)}${more}`;
    })
  );
  const [low, high] = view.limits || [undefined, undefined];
  return [{
    type: "heatmap",
    z: view.values,
    x: view.columns.map((_, j) => j),
    y: view.rows.map((_, i) => i),
    zmin: low,
    zmax: high,
    colorscale: colourScale("viridis"),
    xgap: 1.5,
    ygap: 1.5,
    hoverinfo: "text",
    text,
    texttemplate: "",
    colorbar: { thickness: 11, outlinewidth: 0, tickfont: { size: 11 }, len: 1 },
  }];
}

function gridLayout(view, height) {
  const layout = baseLayout(height);
  layout.xaxis = axisLayout({ title: view.column_title, categories: view.columns }, []);
  layout.yaxis = axisLayout({ title: view.row_title, categories: view.rows }, []);
  layout.xaxis.range = [-0.5, view.columns.length - 0.5];
  layout.yaxis.range = [view.rows.length - 0.5, -0.5];
  for (const axis of [layout.xaxis, layout.yaxis]) Object.assign(axis, { showgrid: false, showline: false, ticks: "" });
  layout.margin.r = 4;
  if (view.written && view.columns.length <= 12) {
    const finite = view.values.flat().filter((value) => value !== null);
    const [low, high] = view.limits || [Math.min(...finite), Math.max(...finite)];
    layout.annotations = view.values.flatMap((row, i) =>
      row.map((value, j) => ({
        x: j, y: i, text: shown(value, view.format, ""), showarrow: false,
        font: { size: 11, color: (value - low) / (high - low || 1) > 0.6 ? "#111" : "#fff" },
      }))
    );
  }
  return layout;
}

/** Everything plotly needs for a view. */
function figureOf(view, hidden, height) {
  if (view.kind === "bars") return [barTraces(view, hidden), barLayout(view, hidden, height)];
  if (view.kind === "grid") return [gridTraces(view), gridLayout(view, height)];
  return [plotTraces(view, hidden), plotLayout(view, hidden, height)];
}
