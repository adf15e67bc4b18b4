// Small helpers to make elements. Text is only ever set as text: nothing from a run becomes markup.

/** An element with attributes and children (elements or strings). */
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children) made.append(child);
  return made;
}

/** Text for plotly, which reads some tags and entities in its labels: here it finds none. */
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** Colour of a name, as the style sheet has it for the theme in use. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

/** A group of buttons of which one is pressed; arrow keys move among them. */
function choice(label, names, chosen, onChoose) {
  if (names.length > 6 || names.join("").length > 64) {
    const select = element("select", { "aria-label": label });
    names.forEach((name, i) => select.append(element("option", { value: i, selected: i === chosen }, name)));
    select.addEventListener("change", () => onChoose(Number(select.value)));
    return element("label", { class: "choice" }, element("span", {}, label + " "), select);
  }
  const group = element("div", { class: "choice", role: "radiogroup", "aria-label": label });
  const press = (i, focus) => {
    buttons.forEach((button, k) => {
      button.setAttribute("aria-checked", String(k === i));
      button.tabIndex = k === i ? 0 : -1;
    });
    if (focus) buttons[i].focus();
    onChoose(i);
  };
  const buttons = names.map((name, i) => {
    const button = element("button", { type: "button", role: "radio" }, name);
    button.addEventListener("click", () => press(i));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      press((i + step + names.length) % names.length, true);
    });
    return button;
  });
  buttons.forEach((button, k) => {
    button.setAttribute("aria-checked", String(k === chosen));
    button.tabIndex = k === chosen ? 0 : -1;
  });
  group.append(element("span", { class: "choice-label" }, label), ...buttons);
  return group;
}
