// The head that is picked in a chart: its numbers below the chart, its row in the table of heads.

/** The chart of a run in which heads are picked, and the table of its heads; null without both. */
function pickedParts(inside) {
  const run = inside.closest("article");
  const chart = run?.querySelector(".chart[tabindex]");
  const listed = [...(run?.querySelectorAll("[data-part=table]") ?? [])]
    .find((place) => DATA[place.dataset.id].data.layer && DATA[place.dataset.id].data.head);
  return chart && listed ? { run, chart, place: listed, table: DATA[listed.dataset.id] } : null;
}

function rowOfHead({ layer, head }, { data }) {
  return data.layer.findIndex((one, i) => one === layer && data.head[i] === head);
}

/** Below each chart in which heads are picked: everything that the table knows about the head. */
function followPicks() {
  for (const chart of document.querySelectorAll(".chart[tabindex]")) {
    const parts = pickedParts(chart);
    if (!parts || parts.chart !== chart) continue;
    const box = element("div", { class: "picked-head", role: "status" });
    chart.after(box);
    chart.addEventListener("pick", ({ detail }) => tellHead(box, detail, parts.table));
    if (chart.dataset.pick) {
      const [layer, head] = chart.dataset.pick.split(".").map(Number);
      tellHead(box, { layer, head }, parts.table);
    }
    parts.run.addEventListener("choose", ({ detail }) => goToHead(chart, detail));
  }
}

function tellHead(box, { layer, head }, table) {
  const i = rowOfHead({ layer, head }, table);
  const long = (column) => column.format === "text" && cellText(table, column, i).length > LONG;
  const known = i < 0 ? [] : table.columns.filter(({ key }) => key !== "layer" && key !== "head");
  // what is said in words, such as flags, stands beside the head's name, before its numbers
  const columns = [...known.filter(long), ...known.filter((column) => !long(column))];
  box.replaceChildren(
    element("h3", {}, `Layer ${layer}, head ${head}`),
    element("dl", { class: "facts" }, ...columns.map((column) => element(
      "div", { title: column.help, class: long(column) ? "long" : null },
      element("dt", {}, column.title), element("dd", {}, ...cellNodes(table, column, i)),
    ))),
  );
}

/** Pick a head, and go to the chart that shows it. */
function goToHead(chart, { layer, head }) {
  esscherCharts.pick(chart, layer, head);
  chart.focus({ preventScroll: true });
  chart.scrollIntoView({ block: "start" });
}

/** Build a table; the rows of the table of heads pick them, and show which one is picked. */
function listHeads(place, table) {
  const parts = pickedParts(place);
  if (parts?.place !== place) return buildTable(place, table);
  const { data } = table;
  const listing = buildTable(place, table, (i) => goToHead(parts.chart, { layer: data.layer[i], head: data.head[i] }));
  const select = (detail) => listing.select(rowOfHead(detail, table));
  parts.chart.addEventListener("pick", ({ detail }) => select(detail));
  if (parts.chart.dataset.pick) {
    const [layer, head] = parts.chart.dataset.pick.split(".").map(Number);
    select({ layer, head });
  }
  return listing;
}
