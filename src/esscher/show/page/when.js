// When parts of a page are drawn: at once what is in sight, the rest when the page has nothing else
// to do, and all of it before printing. Whoever captures the whole page then finds nothing missing.

/** How many pixels below the window a part counts as in sight. */
const NEAR = 300;

/**
 * Draw every place once.
 * @param places  elements, in the order of the page
 * @param draw    draws into a place
 * @param heavy   tells whether a place would keep the page busy: it waits until it is seen or printed
 */
function drawInTime(places, draw, heavy = () => false) {
  const left = new Set(places);
  const once = (place) => {
    if (!left.delete(place)) return;
    inSight.unobserve(place);
    draw(place);
  };
  const inSight = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => once(entry.target));
  }, { rootMargin: `${NEAR}px 0px` });
  places.forEach((place) => inSight.observe(place));
  // before the page counts as loaded: a browser without a window captures it right then
  places.filter((place) => place.getBoundingClientRect().top < innerHeight + NEAR).forEach(once);
  // not every browser tells when it is idle
  const idle = globalThis.requestIdleCallback ?? ((call) => setTimeout(call, 50));
  const drawNext = () => {
    const next = [...left].find((place) => !heavy(place));
    if (!next) return;
    once(next);
    idle(drawNext);
  };
  addEventListener("load", () => idle(drawNext));
  addEventListener("beforeprint", () => [...left].forEach(once));
}
