// Deep zoom on a canvas: tiles of the level that fits the screen, coarser ones until they arrive.
// Places are pixels of the image itself. Drawn above: the patch map, layers, outlines, marks, a selection.
// What a tool in the hand does with the pointer is tools.js's.

const MOST_TILES = 160;
const MOST_LOADING = 6;
const LARGEST_ZOOM = 16; // screen pixels per image pixel

/** Bands of rows or columns of a map, [first, count, from, length]; the outer ones extend to the border, by at most a patch. */
function bands(count, corner, { shift, step, side }, length) {
  const [start, reach] = [corner + shift, Math.max(side, step)];
  const end = start + count * step;
  const [low, high] = [Math.max(0, start - reach), Math.min(length, end + reach)];
  return [[0, 1, low, start - low], [0, count, start, count * step], [count - 1, 1, end, high - end]].filter((band) => band[3] > 0);
}

export class Viewer {
  /** info: {width, height, tile, levels}; tileUrl(level, column, row). Set onpick, onmove, onkey, tool, layers. */
  constructor(canvas, info, tileUrl) {
    Object.assign(this, { canvas, info, tileUrl });
    this.tiles = new Map(); // in order of use, the newest last
    this.loading = 0;
    this.map = null; // {picture, grid}
    this.opacity = 0.5;
    this.hidesMap = false; // as another one is shown
    this.rings = [];
    this.truth = []; // rings of a mask
    this.marks = []; // {box, colour}
    this.selection = null;
    this.layers = []; // (pen, viewer) => …, above the map
    this.tool = null; // {down, move, up, hover} of places in the image, {cancel}; null: the hand moves the image
    this.onpick = this.onmove = () => {};
    this.onkey = () => false; // whether it has taken the key
    this.frame = 0;
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.refresh();
    this.scheme.addEventListener("change", this.repaint);
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(canvas);
    this.listen();
    this.resize();
    this.fit();
  }

  close() {
    this.watcher.disconnect();
    this.scheme.removeEventListener("change", this.repaint);
    cancelAnimationFrame(this.frame);
    this.tiles.clear();
  }

  // --- where we are ---------------------------------------------------------------------------

  resize() {
    this.ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    if (!this.scale) this.fit();
    this.refresh();
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    this.least = Math.min(width / this.info.width, height / this.info.height, 1) * 0.98;
    this.scale = Math.min(width / this.info.width, height / this.info.height) * 0.98;
    this.x = this.info.width / 2;
    this.y = this.info.height / 2;
    this.refresh();
  }

  /** Zoom by a factor, keeping the image point under the screen point where it is. */
  zoom(factor, at = [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2]) {
    const [x, y] = this.toImage(at);
    this.scale = Math.min(Math.max(this.scale * factor, this.least), LARGEST_ZOOM);
    this.x = x - (at[0] - this.canvas.clientWidth / 2) / this.scale;
    this.y = y - (at[1] - this.canvas.clientHeight / 2) / this.scale;
    this.refresh();
  }

  pan(dx, dy) {
    this.x = Math.min(Math.max(this.x + dx / this.scale, 0), this.info.width);
    this.y = Math.min(Math.max(this.y + dy / this.scale, 0), this.info.height);
    this.refresh();
  }

  toImage([x, y]) {
    return [this.x + (x - this.canvas.clientWidth / 2) / this.scale, this.y + (y - this.canvas.clientHeight / 2) / this.scale];
  }

  toScreen([x, y]) {
    return [(x - this.x) * this.scale + this.canvas.clientWidth / 2, (y - this.y) * this.scale + this.canvas.clientHeight / 2];
  }

  // --- hands and keys -------------------------------------------------------------------------

  listen() {
    const { canvas } = this;
    const held = new Map();
    let moved = 0;
    let painting = null; // the pointer that holds the tool
    const at = (event) => [event.offsetX, event.offsetY];
    const point = (event) => this.toImage(at(event));
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      canvas.focus();
      held.set(event.pointerId, at(event));
      moved = 0;
      if (held.size > 1 && painting !== null) { // two fingers move the image
        this.tool?.cancel();
        painting = null;
      } else if (this.tool && event.button === 0 && !event.shiftKey && held.size === 1) {
        painting = event.pointerId;
        this.tool.down(point(event));
      }
    });
    canvas.addEventListener("pointermove", (event) => {
      this.tool?.hover(point(event));
      if (!held.has(event.pointerId)) return;
      const [old, now] = [held.get(event.pointerId), at(event)];
      moved += Math.abs(now[0] - old[0]) + Math.abs(now[1] - old[1]);
      if (held.size === 2) this.pinch(held, event.pointerId, now);
      else if (painting === event.pointerId) event.getCoalescedEvents().forEach((each) => this.tool?.move(point(each)));
      else if (moved > 3) this.pan(old[0] - now[0], old[1] - now[1]);
      held.set(event.pointerId, now);
      this.refresh();
    });
    canvas.addEventListener("pointerup", (event) => {
      held.delete(event.pointerId);
      if (painting === event.pointerId) {
        painting = null;
        this.tool?.up(point(event), moved);
      } else if (moved <= 3 && !this.tool && event.button === 0) this.onpick(...point(event));
    });
    canvas.addEventListener("pointercancel", (event) => {
      held.delete(event.pointerId);
      if (painting === event.pointerId) this.tool?.cancel();
      painting = null;
    });
    canvas.addEventListener("pointerleave", () => this.tool?.hover(null));
    canvas.addEventListener("contextmenu", (event) => { if (this.tool) event.preventDefault(); });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), at(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.refresh());
    canvas.addEventListener("blur", () => this.refresh());
  }

  pinch(held, id, now) {
    const other = [...held.entries()].find(([key]) => key !== id)[1];
    const apart = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]);
    this.zoom(apart(now) / Math.max(1, apart(held.get(id))), other);
  }

  /** Show a box (left, top, right, bottom) and a little around it. */
  show([left, top, right, bottom]) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const wide = Math.max(right - left, bottom - top, 32) * 2.5;
    this.scale = Math.min(Math.max(Math.min(width, height) / wide, this.least), LARGEST_ZOOM);
    this.x = (left + right) / 2;
    this.y = (top + bottom) / 2;
    this.refresh();
  }

  /** The part of the image that the screen shows: left, top, right, bottom. */
  box() {
    return [...this.toImage([0, 0]), ...this.toImage([this.canvas.clientWidth, this.canvas.clientHeight])];
  }

  key(event) {
    if (this.onkey(event)) return event.preventDefault();
    const step = event.shiftKey ? 300 : 80;
    const acts = {
      ArrowLeft: () => this.pan(-step, 0), ArrowRight: () => this.pan(step, 0),
      ArrowUp: () => this.pan(0, -step), ArrowDown: () => this.pan(0, step),
      "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5),
      0: () => this.fit(), Enter: () => this.onpick(this.x, this.y),
    };
    if (acts[event.key] && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      acts[event.key]();
    }
  }

  // --- tiles ----------------------------------------------------------------------------------

  level() {
    const wanted = this.info.levels - 1 + Math.ceil(Math.log2(this.scale * this.ratio) - 0.3);
    return Math.min(Math.max(wanted, 0), this.info.levels - 1);
  }

  /** Tiles of a level that the screen shows, the middle ones first. */
  visible(level) {
    const size = this.info.tile * 2 ** (this.info.levels - 1 - level);
    const [left, top] = this.toImage([0, 0]);
    const [right, bottom] = this.toImage([this.canvas.clientWidth, this.canvas.clientHeight]);
    const range = (low, high, end) => {
      const first = Math.max(0, Math.floor(low / size));
      const last = Math.min(Math.ceil(end / size) - 1, Math.floor(high / size));
      return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
    };
    const found = range(top, bottom, this.info.height).flatMap((row) =>
      range(left, right, this.info.width).map((column) => ({ level, row, column, size })));
    const far = (t) => Math.hypot((t.column + 0.5) * size - this.x, (t.row + 0.5) * size - this.y);
    return found.sort((a, b) => far(a) - far(b));
  }

  tile({ level, row, column }, load) {
    const key = `${level}/${column}/${row}`;
    const known = this.tiles.get(key);
    if (known) {
      this.tiles.delete(key);
      this.tiles.set(key, known);
      return known.complete && known.naturalWidth ? known : null;
    }
    if (!load || this.loading >= MOST_LOADING) return null;
    const picture = new Image();
    this.loading += 1;
    const over = (good) => () => {
      this.loading -= 1;
      if (!good) setTimeout(() => this.tiles.delete(key), 2000);
      this.refresh();
    };
    picture.onload = over(true);
    picture.onerror = over(false);
    picture.src = this.tileUrl(level, column, row);
    this.tiles.set(key, picture);
    if (this.tiles.size > MOST_TILES) this.tiles.delete(this.tiles.keys().next().value);
    return null;
  }

  // --- drawing --------------------------------------------------------------------------------

  refresh() {
    if (this.frame || !this.scale) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = getComputedStyle(this.canvas).backgroundColor;
    pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const [left, top] = this.toScreen([0, 0]);
    const k = this.scale * this.ratio;
    pen.setTransform(k, 0, 0, k, left * this.ratio, top * this.ratio);
    pen.imageSmoothingEnabled = this.scale < 3;
    this.drawTiles(pen);
    this.drawMap(pen);
    this.layers.forEach((draw) => draw(pen, this));
    const line = (width, colour) => { pen.lineWidth = width / this.scale; pen.strokeStyle = colour; };
    const outline = (rings) => {
      pen.beginPath();
      rings.forEach((ring) => { for (let i = 0; i < ring.length; i += 2) pen[i ? "lineTo" : "moveTo"](ring[i], ring[i + 1]); });
      pen.stroke();
    };
    for (const [width, colour] of [[4, "#fff"], [2, "#111"]]) { line(width, colour); outline(this.rings); }
    for (const [width, colour, dash] of [[5, "#111", []], [3, "#f0e442", [9 / this.scale, 6 / this.scale]]]) {
      line(width, colour);
      pen.setLineDash(dash);
      outline(this.truth);
    }
    pen.setLineDash([]);
    for (const { box: [x0, y0, x1, y1], colour } of this.marks) {
      for (const [width, ink] of [[5, "#fff"], [3, colour]]) { line(width, ink); pen.strokeRect(x0, y0, x1 - x0, y1 - y0); }
    }
    if (this.selection) {
      const { x, y, side } = this.selection;
      for (const [width, ink] of [[6, "#fff"], [3, "#000"]]) { line(width, ink); pen.strokeRect(x, y, side, side); }
    }
    this.drawCross(pen);
    this.onmove();
  }

  drawTiles(pen) {
    const level = this.level();
    for (let coarse = 0; coarse < level; coarse += 1) {
      this.visible(coarse).forEach((tile) => this.drawTile(pen, tile, coarse === 0));
    }
    this.visible(level).forEach((tile) => this.drawTile(pen, tile, true));
  }

  drawTile(pen, tile, load) {
    const picture = this.tile(tile, load);
    if (!picture) return;
    const [x, y] = [tile.column * tile.size, tile.row * tile.size];
    pen.drawImage(picture, x, y, Math.min(tile.size, this.info.width - x), Math.min(tile.size, this.info.height - y));
  }

  drawMap(pen) {
    if (!this.map || !this.opacity || this.hidesMap) return;
    const { picture, grid } = this.map;
    pen.globalAlpha = this.opacity;
    pen.imageSmoothingEnabled = false;
    const columns = bands(grid.n_columns, grid.left, grid, this.info.width);
    const rows = bands(grid.n_rows, grid.top, grid, this.info.height);
    for (const [top, high, y, height] of rows) {
      for (const [left, wide, x, width] of columns) pen.drawImage(picture, left, top, wide, high, x, y, width, height);
    }
    pen.globalAlpha = 1;
  }

  isByKey() {
    return document.activeElement === this.canvas && this.canvas.matches(":focus-visible");
  }

  /** For the keyboard: what Enter would pick, and where a tool is. */
  drawCross(pen) {
    if (!this.isByKey()) return;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const [x, y] = [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2];
    for (const [width, colour] of [[4, "#fff"], [1.5, "#000"]]) {
      pen.lineWidth = width;
      pen.strokeStyle = colour;
      pen.beginPath();
      [[x - 12, y, x + 12, y], [x, y - 12, x, y + 12]].forEach(([a, b, c, d]) => { pen.moveTo(a, b); pen.lineTo(c, d); });
      pen.stroke();
    }
  }
}

/** A round length for a scale bar of about 120 screen pixels: [screen pixels, words]. */
export function scaleBar(scale, mpp) {
  const unit = mpp ?? 1;
  const rough = (120 / scale) * unit;
  const power = 10 ** Math.floor(Math.log10(rough));
  const length = [5, 2, 1].map((n) => n * power).find((n) => n <= rough) ?? power;
  const words = mpp === null ? `${length} px` : length >= 1000 ? `${length / 1000} mm` : `${length} µm`;
  return [(length / unit) * scale, words];
}
