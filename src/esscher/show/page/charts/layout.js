// How wide a chart is: columns of panels, their widths, columns of legends. layout.py does the same
// for files, and says what the numbers are.

const AXIS = 34, BAR = 30, GAP = 14, SYMBOL = 20, LETTER = 3.6, TICK = 8, NAMES = 0.6;

function columnsOf(count, width, least) {
  const fitting = Math.max(1, Math.min(Math.floor((width + GAP) / (least + GAP)), count));
  return Math.ceil(count / Math.ceil(count / fitting));
}

/** A specification laid out for a width in points. */
function layout(spec, width) {
  const made = structuredClone(spec);
  arrange(made, width, made.usermeta?.least ?? width);
  return made;
}

function arrange(view, width, least) {
  if (view.vconcat) {
    view.vconcat.forEach((part) => arrange(part, width, least));
  } else if (view.concat) {
    view.columns = columnsOf(view.concat.length, width, least);
    const own = (width - GAP * (view.columns - 1)) / view.columns;
    view.concat.forEach((panel) => { panel.width = panelWidth(panel, own); });
    arrangeLegends(view.concat, view.resolve ? own : width, width);
  } else {
    view.width = panelWidth(view, width);
    arrangeLegends(view, width, width);
  }
}

function panelWidth(view, width) {
  const bar = JSON.stringify(view).includes("gradientLength") ? BAR : 0;
  const named = namedAxes(view);
  const longest = Math.max(0, ...named.flatMap((axis) => axis.scale.domain.map(lengthOf)));
  const room = Math.max(AXIS, Math.min(LETTER * longest + TICK, NAMES * width));
  named.forEach((axis) => { axis.axis = { ...axis.axis, labelLimit: room }; });
  return Math.round(10 * Math.max(width - room - bar, 30)) / 10;
}

function namedAxes(view) {
  const own = areWords(view.encoding?.y?.scale?.domain) ? [view.encoding.y] : [];
  return [...(view.layer ?? []).flatMap(namedAxes), ...own];
}

/** Whether these are names, and there are any. */
function areWords(names) {
  return Array.isArray(names) && names.length > 0 && names.every((name) => typeof name === "string");
}

/** Number of characters, as Python counts them. */
function lengthOf(name) {
  return [...name].length;
}

function arrangeLegends(view, width, whole) {
  if (view === null || typeof view !== "object") return;
  const { legend, scale } = view;
  const names = legend && scale ? scale.domain : null;
  if (areWords(names)) {
    const symbol = SYMBOL + (legend.symbolSize ? Math.sqrt(legend.symbolSize) : 0);
    const own = symbol + LETTER * Math.max(...names.map(lengthOf));
    const count = (legend.values ?? names).length;
    legend.columns = Math.ceil(count / Math.ceil(count / Math.max(1, Math.floor(width / own))));
  }
  for (const [key, part] of Object.entries(view)) {
    if (key !== "data" && key !== "datasets") arrangeLegends(part, key === "color" ? whole : width, whole);
  }
}
