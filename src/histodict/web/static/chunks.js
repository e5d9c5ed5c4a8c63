// Thousands of things on a page, of which only those near the screen are there.

const LARGE = 120; // up to so many are simply there
const FEW = 40; // in a chunk

/** Fills a place with what `make(item)` gives. Of many items, only the chunks near the screen are filled, the
    others keep their room. `sizeOf(item)`: how many elements it counts for; `show`: an item whose chunk is there
    from the beginning, in the middle of the screen. */
export function fill(place, items, make, { sizeOf = () => 1, show = null } = {}) {
  const total = items.reduce((sum, item) => sum + sizeOf(item), 0);
  if (total <= LARGE) return place.replaceChildren(...items.map(make));
  const chunks = inChunks(items, sizeOf).map((own) => {
    const element = document.createElement("div");
    element.className = "chunk";
    element.style.setProperty("--items", String(own.reduce((sum, item) => sum + sizeOf(item), 0)));
    return { element, own };
  });
  const owners = new Map(chunks.map((chunk) => [chunk.element, chunk]));
  const watchIn = (root) => {
    const watch = new IntersectionObserver((seen) => {
      if (!place.isConnected) return watch.disconnect();
      for (const { target, isIntersecting } of seen) (isIntersecting ? open : close)(owners.get(target), make);
    }, { root, rootMargin: "600px" });
    owners.forEach(({ element }) => watch.observe(element));
  };
  place.replaceChildren(...chunks.map(({ element }) => element));
  const first = chunks.find(({ own }) => own.includes(show));
  if (first) open(first, make);
  requestAnimationFrame(() => {
    first?.element.querySelector("[aria-current]")?.scrollIntoView({ block: "center", inline: "center" });
    watchIn(place.closest(".strip")); // what scrolls by itself cuts off what is near its border
  });
}

function inChunks(items, sizeOf) {
  const found = [[]];
  let size = 0;
  for (const item of items) {
    if (size >= FEW) {
      found.push([]);
      size = 0;
    }
    found.at(-1).push(item);
    size += sizeOf(item);
  }
  return found;
}

function open(chunk, make) {
  if (chunk.element.firstChild) return;
  chunk.element.replaceChildren(...chunk.own.map(make));
  chunk.element.style.removeProperty("min-height");
  chunk.element.style.removeProperty("min-width");
  chunk.element.classList.add("filled");
}

/** It stays as large as it was; and as it is, while the keyboard is in it. */
function close({ element }) {
  if (!element.firstChild || element.contains(document.activeElement)) return;
  const { width, height } = element.getBoundingClientRect();
  Object.assign(element.style, { minHeight: `${height}px`, minWidth: `${width}px` });
  element.classList.remove("filled");
  element.replaceChildren();
}
