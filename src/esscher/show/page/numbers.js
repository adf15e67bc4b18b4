// Numbers as readers see them: the same rules as in numbers.py.

const LARGEST = 1e7;
const SMALLEST = 1e-4;
const LOG_STEPS = [
  [[1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9], 1], [[1, 1.5, 2, 3, 4, 6, 8], 1], [[1, 2, 3, 5], 1], [[1, 2, 5], 1],
  [[1, 3], 1], [[1], 1], [[1], 2], [[1], 4],
];
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

/** A number beside an axis: short, without zeros at its end. */
function tick(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) {
    const power = Math.floor(Math.log10(size) + 1e-9);
    const head = Number((value / 10 ** power).toPrecision(2));
    return (head === 1 ? "" : head + "×") + "10" + superscript(power);
  }
  if (Number.isInteger(value)) return size >= 1e4 ? grouped(value, 0) : String(value);
  return String(Number(value.toPrecision(3)));
}

/** Ticks of a logarithmic axis from a to b: as many steps of every power of ten as there is room. */
function logTicks(a, b) {
  const first = Math.floor(Math.log10(a));
  const last = Math.ceil(Math.log10(b));
  for (const [steps, stride] of LOG_STEPS) {
    const values = [];
    for (let power = first; power <= last; power += stride) {
      for (const step of steps) {
        const value = step * 10 ** power;
        if (value >= a * 0.999 && value <= b * 1.001) values.push(value);
      }
    }
    if (values.length < 2) break;
    if (values.length <= 7) return values;
  }
  if (b < 2 * a) return [a, Math.sqrt(a * b), b].map((value) => Number(value.toPrecision(2)));
  return [10 ** first, 10 ** last];
}
