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
