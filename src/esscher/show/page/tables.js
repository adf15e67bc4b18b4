// Tables that can be sorted, filtered and saved.

/** Rows that are put into the page at once; the others wait for a button. */
const AT_ONCE = 300;
/** Columns that fit on paper: the style sheet hides the others when a page is printed. */
const ON_PAPER = 8;
/** Letters from which text takes a wide column. */
const LONG = 28;
const COMPARISON = /^([\w-]+)(<=|>=|!=|<|>|=)(.+)$/;

const tables = {};

/** A cell as text: the value, and its interval (empty if there is none). */
function cellParts(table, column, i) {
  const value = table.data[column.key][i];
  const text = shown(value, column.format, column.missing);
  if (!column.ends) return [text, ""];
  const [low, high] = ["low", "high"].map((end) => table.data[`${column.key}_${end}`][i]);
  if (low === null && high === null) return [text, ""];
  const interval = [low, high].map((end) => shown(end, column.format, column.last ? "∞" : "–"));
  return [text, `(${interval.join(" to ")})`];
}

function cellText(table, column, i) {
  return cellParts(table, column, i).join(" ").trim();
}

/** The same as elements, the interval less prominent. */
function cellNodes(table, column, i) {
  const [text, interval] = cellParts(table, column, i);
  return interval ? [text + " ", element("span", { class: "ends" }, interval)] : [text];
}

/** Rows that a filter keeps: words that occur in a row, or comparisons such as khat>0.5. */
function keptRows(table, filter) {
  const rows = table.data[table.columns[0].key].map((_, i) => i);
  const terms = filter.trim().toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((i) =>
    terms.every((term) => {
      const match = COMPARISON.exec(term);
      if (match) {
        const name = Object.keys(table.data).find((key) => key.toLowerCase() === match[1]);
        const limit = Number(match[3]);
        if (name && !Number.isNaN(limit)) return compared(table.data[name][i], match[2], limit);
      }
      return table.columns.some((column) => cellText(table, column, i).toLowerCase().includes(term));
    })
  );
}

function compared(value, operator, limit) {
  if (value === null || typeof value === "string") return false;
  switch (operator) {
    case "<": return value < limit;
    case ">": return value > limit;
    case "<=": return value <= limit;
    case ">=": return value >= limit;
    case "=": return value === limit;
    default: return value !== limit;
  }
}

function sortedRows(table, rows, column, descending) {
  if (!column) return rows;
  const values = table.data[column.key];
  const missing = (i) => values[i] === null || values[i] === undefined;
  return [...rows].sort((a, b) => {
    if (missing(a) || missing(b)) {
      if (missing(a) && missing(b)) return a - b;
      // "never" is larger than every number; what is not known comes last either way
      if (column.last) return missing(a) === descending ? -1 : 1;
      return missing(a) ? 1 : -1;
    }
    const order = typeof values[a] === "string" ? values[a].localeCompare(values[b]) : values[a] - values[b];
    return (descending ? -order : order) || a - b;
  });
}

/** CSV as RFC 4180 has it; text that a spreadsheet would take for a formula gets a quote. */
function csvOf(table, rows) {
  const names = Object.keys(table.data);
  const field = (value) => {
    if (value === null || value === undefined) return "";
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  const lines = [names.map(field).join(",")];
  for (const i of rows) lines.push(names.map((name) => field(table.data[name][i])).join(","));
  return lines.join("\r\n") + "\r\n";
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Build a table in its place; onRow, if given, is called when a row is chosen. */
function buildTable(place, table, onRow) {
  const columns = table.columns.filter((column) => column.shown);
  const state = { filter: "", column: null, descending: false, all: false, rows: [], selected: null };
  if (table.sort) {
    state.column = columns.find((column) => column.key === table.sort[0]) || null;
    state.descending = table.sort[1];
  }
  const count = element("span", { class: "count", role: "status" });
  const input = element("input", {
    type: "search", placeholder: "Filter: words, or khat>0.5", "aria-label": `Filter ${table.title}`,
    autocomplete: "off", spellcheck: "false",
  });
  const example = columns.find((column) => column.format !== "text" && column.key !== "layer" && column.key !== "head");
  input.placeholder = example ? `Filter: words, or ${example.key}>1` : "Filter";
  const button = element("button", { type: "button", class: "save" }, "Download CSV");
  const head = element("tr", {});
  const body = element("tbody", {});
  const more = element("button", { type: "button", class: "more" });
  const headers = columns.map((column) => {
    const name = element("button", { type: "button", title: column.help || "Sort" }, column.title);
    const cell = element("th", { scope: "col", class: column.format === "text" ? "words" : "number", "aria-sort": "none" }, name);
    name.addEventListener("click", () => {
      if (state.column === column) state.descending = !state.descending;
      else Object.assign(state, { column, descending: column.format !== "text" && !["layer", "head"].includes(column.key) });
      update();
    });
    head.append(cell);
    return cell;
  });

  function rowOf(i) {
    const row = element("tr", { "data-row": i, tabindex: onRow ? -1 : null, "aria-selected": onRow ? String(state.selected === i) : null });
    columns.forEach((column) => {
      const words = column.format === "text" ? "words" : "number";
      const long = words === "words" && cellText(table, column, i).length > LONG ? " long" : "";
      const sorted = column === state.column ? " sorted" : "";
      row.append(element("td", { class: words + long + sorted }, ...cellNodes(table, column, i)));
    });
    return row;
  }

  function update() {
    state.rows = sortedRows(table, keptRows(table, state.filter), state.column, state.descending);
    const seen = state.all ? state.rows : state.rows.slice(0, AT_ONCE);
    body.replaceChildren(...seen.map(rowOf));
    if (onRow && body.firstChild) (body.querySelector("[aria-selected=true]") || body.firstChild).tabIndex = 0;
    headers.forEach((cell, k) => {
      const sorted = columns[k] === state.column;
      cell.setAttribute("aria-sort", sorted ? (state.descending ? "descending" : "ascending") : "none");
    });
    const total = table.data[table.columns[0].key].length;
    count.textContent = state.rows.length === total ? `${total} rows` : `${state.rows.length} of ${total} rows`;
    more.hidden = seen.length === state.rows.length;
    more.textContent = `Show all ${state.rows.length} rows`;
  }

  function select(i) {
    state.selected = i;
    for (const row of body.children) {
      const chosen = Number(row.dataset.row) === i;
      row.setAttribute("aria-selected", String(chosen));
      row.tabIndex = chosen ? 0 : -1;
    }
  }

  input.addEventListener("input", () => {
    state.filter = input.value;
    update();
  });
  button.addEventListener("click", () => save(table.name + ".csv", csvOf(table, state.rows)));
  more.addEventListener("click", () => {
    state.all = true;
    update();
  });
  if (onRow) {
    body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) onRow(Number(row.dataset.row));
    });
    body.addEventListener("keydown", (event) => {
      const row = event.target.closest("tr");
      if (!row) return;
      const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, Home: body.firstChild, End: body.lastChild }[event.key];
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        onRow(Number(row.dataset.row), true);
      } else if (next) {
        event.preventDefault();
        row.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    });
  }
  const grid = element("table", { class: onRow ? "data choosable" : "data" }, element("thead", {}, head), body);
  place.replaceChildren(
    element("div", { class: "table-tools" }, input, count, button),
    element("div", { class: "scroll", tabindex: onRow ? null : "0", role: "region", "aria-label": table.title }, grid),
    more,
    columns.length > ON_PAPER ? element("p", { class: "on-paper" }, `The first ${ON_PAPER} of ${columns.length} columns.`) : ""
  );
  update();
  place.dataset.drawn = "true";
  return { select };
}
