// Numbers as readers see them: the same rules as in core/shown.py.

const LARGEST = 1e7;
const SMALLEST = 1e-4;
const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function grouped(number, decimals) {
  const text = number.toFixed(decimals);
  const [whole, rest] = text.split(".");
  const parts = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return rest === undefined ? parts : parts + "." + rest;
}

/** A number with this many significant digits, all if 0. */
function rounded(number, digits) {
  return digits ? Number(number.toPrecision(digits)) : number;
}

function superscript(power) {
  return String(power).replace(/[-0-9]/g, (c) => SUPERSCRIPTS[c]);
}

function significant(number, digits) {
  if (number === 0) return "0";
  const power = Math.floor(Math.log10(Math.abs(number)));
  if (Math.abs(number) < SMALLEST || Math.abs(number) >= LARGEST) {
    return (number / 10 ** power).toFixed(digits - 1) + "×10" + superscript(power);
  }
  return grouped(number, Math.max(0, digits - 1 - power));
}

/** A value in a format: "d2" decimals, "s3" significant digits, "p1" percent, "n0" whole, "n3" whole with 3 digits that count, "text". */
function shown(value, how, missing) {
  if (value === null || value === undefined) return missing === undefined ? "–" : missing;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (how === "text" || typeof value === "string") return String(value);
  const places = Number(how.slice(1));
  if (how[0] === "d") return grouped(value, places);
  if (how[0] === "p") return (100 * value).toFixed(places) + "%";
  if (how[0] === "n" && Math.abs(value) < LARGEST) return grouped(rounded(value, places), 0);
  return significant(value, places || 3);
}
