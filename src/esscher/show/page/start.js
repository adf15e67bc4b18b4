// The page: data, theme, and drawing what comes into sight.

const DATA = JSON.parse(document.getElementById("data").textContent);
const explorers = {};

function systemTheme() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function storedTheme() {
  try {
    return localStorage.getItem("esscher-theme");
  } catch {
    return null; // a page from disk may have no storage
  }
}

function setTheme(theme, byReader) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(theme === "dark"));
  button.querySelector(".name").textContent = theme === "dark" ? "Light" : "Dark";
  if (byReader) {
    try {
      localStorage.setItem("esscher-theme", theme);
    } catch {
      // then it is not remembered
    }
  }
  for (const redraw of drawn) redraw();
}

function drawPart(place) {
  if (place.dataset.drawn) return;
  const { part, id, run } = place.dataset;
  if (part === "explorer") {
    explorers[run] = buildExplorer(place, DATA[id]);
  } else if (part === "heads") {
    ready(run);
    explorers[run].list(place);
  } else if (part === "table") {
    listHeads(place, DATA[id]);
  } else {
    drawChart(place, DATA[id], (row) => {
      ready(run);
      if (explorers[run]) explorers[run].select(row, true);
    });
  }
}

/** Make sure that the explorer of a run is there. */
function ready(run) {
  const place = document.querySelector(`[data-part=explorer][data-run="${run}"]`);
  if (place) drawPart(place);
}

setTheme(storedTheme() || systemTheme(), false);
document.getElementById("theme").addEventListener("click", () => {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!storedTheme()) setTheme(systemTheme(), false);
});

if (matchMedia("(max-width: 1080px)").matches) document.querySelector("nav.contents details").open = false;

const parts = [...document.querySelectorAll("[data-part]")];
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    watcher.unobserve(entry.target);
    drawPart(entry.target);
  }
}, { rootMargin: "300px 0px" });

followPicks();

// The first chart at once, so that there is something to see; the others when they come into sight.
if (parts.length) drawPart(parts[0]);
performance.mark("esscher-first-chart");
parts.forEach((place) => watcher.observe(place));
addEventListener("beforeprint", () => parts.forEach(drawPart));

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copies).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(document.getElementById(button.dataset.copies));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected: press Ctrl-C";
    }
  });
}
document.documentElement.dataset.ready = "true";
