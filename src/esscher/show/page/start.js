// The page: data, theme, and tables; charts see to themselves.

const DATA = JSON.parse(document.getElementById("data").textContent);

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
}

setTheme(storedTheme() || systemTheme(), false);
document.getElementById("theme").addEventListener("click", () => {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!storedTheme()) setTheme(systemTheme(), false);
});

if (matchMedia("(max-width: 1080px)").matches) document.querySelector("nav.contents details").open = false;

followPicks();
drawInTime([...document.querySelectorAll("[data-part]")], (place) => listHeads(place, DATA[place.dataset.id]));

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
