// Draw: classes made on the spot, tools, what is drawn, the quick answer that follows each stroke.
import { COLOURS, become, choice, count, get, guarded, h, labelled, notice, once, post, s, send, takeColours } from "../dom.js";
import { drawShapes, thinned, tool } from "../tools.js";
import { go, here } from "../way.js";
import { Quick } from "./quick.js";

const TOOLS = {
  look: ["Move", "l", "Drag to move, click a patch for its explanation."],
  brush: ["Brush", "b", "Paint over tissue of the class."],
  eraser: ["Eraser", "e", "Erase annotations."],
  polygon: ["Polygon", "p", "Click the corners; to close the polygon, click the first corner or press Enter."],
  rectangle: ["Rectangle", "r", "Drag from corner to corner."],
};
const WIDTHS = [8, 200]; // of the brush, in screen pixels
const OFFERED = [COLOURS[1], COLOURS[0], ...COLOURS.slice(2)]; // what one looks for is named first, and is warm everywhere
const MOST_LISTED = 100;
const MOST_POINTS = 2000; // of a stroke, as it is sent

export class DrawPanel {
  /** look: what the page knows of the image: {data, chosen, base, viewer, info, legend}. */
  constructor(look) {
    Object.assign(this, look, { classes: [], shapes: [], images: [], chosenShape: null, tool: null });
    this.url = `/api/data/${this.data.id}`;
    this.parts = Object.fromEntries(["mode", "classes", "add", "tools", "quick", "list", "files", "train"].map((name) => [name, h("div", { id: `draw-${name}` })]));
    this.mode = h("div", { class: "mode", id: "mode", role: "status" });
    this.viewer.canvas.parentElement.append(this.mode);
    this.element = h("section", { id: "draw" },
      h("h2", {}, "Annotate"), this.parts.classes, this.parts.add, this.parts.tools, this.parts.quick, this.parts.train, this.parts.list, this.parts.files);
    this.quick = new Quick(this);
    this.viewer.layers.push((pen) => this.quick.draw(pen), (pen, viewer) => {
      drawShapes(pen, viewer, this.shapes, this.colours(), this.chosenShape);
      this.tool?.draw(pen);
    });
    this.viewer.onkey = (event) => this.key(event);
    this.listen = (event) => { if (this.wayBack(event)) event.preventDefault(); };
    addEventListener("keydown", this.listen);
    const moved = this.viewer.onmove;
    this.viewer.onmove = () => {
      moved();
      this.tool?.moved([this.viewer.x, this.viewer.y]);
      this.quick.moved();
    };
    this.showAdd();
    this.showTools();
    this.showFiles();
    this.load();
  }

  close() {
    this.quick.stop();
    removeEventListener("keydown", this.listen);
  }

  load = guarded(async () => {
    const [all, own] = await Promise.all([get(`${this.url}/drawn`), get(`${this.base}/drawn`)]);
    this.images = all.images;
    this.take(own);
    this.quick.ask();
    if (here.drawing.jump) this.jumpTo(here.drawing.jump);
    here.drawing.jump = null;
  });

  /** What the server says is drawn on this image now. */
  take({ classes, shapes, undo, redo }) {
    this.takeClasses(classes);
    Object.assign(this, { shapes, undo, redo });
    this.images = [{ image: this.chosen.id, name: this.chosen.name, shapes }, ...this.images.filter((entry) => entry.image !== this.chosen.id)];
    this.viewer.canvas.dataset.shapes = String(shapes.length);
    this.viewer.refresh();
    this.showWayBack();
    this.showList();
    this.showTrain();
  }

  takeClasses(classes) {
    this.classes = classes;
    takeColours(Object.fromEntries(classes.map((one) => [one.name, one.colour])));
    if (!classes.some((one) => one.id === here.drawing.label)) here.drawing.label = classes[0]?.id ?? null;
    this.showClasses();
    this.hold(here.drawing.tool);
  }

  colours() { return new Map(this.classes.map((one) => [one.id, one.colour])); }

  get own() { return this.classes.find((one) => one.id === here.drawing.label); }

  /** A change on the server; one after another, in the order in which the hand made them. */
  change(body, after = () => {}) {
    this.changing = (this.changing ?? Promise.resolve()).then(guarded(async () => {
      this.take(await post(`${this.base}/drawn`, body));
      this.quick.ask();
      after();
    }));
    return this.changing;
  }

  // --- classes --------------------------------------------------------------------------------

  showAdd() {
    const name = h("input", { type: "text", id: "class-name", maxlength: "60", autocomplete: "off", placeholder: "for example Tumour",
      onfocus: () => { this.quick.wanted = true; this.quick.ask(); } }); // while the name is typed, patches are looked at
    const colour = h("input", { type: "color", id: "class-colour", "aria-label": "Colour of the new class" });
    let own = false; // whether the user has chosen the colour
    colour.addEventListener("input", () => { own = true; });
    const add = once(async () => {
      const { classes } = await post(`${this.url}/classes`, { name: name.value, ...(own ? { colour: colour.value } : {}) });
      [name.value, own] = ["", false];
      here.drawing.label = classes.at(-1).id;
      if (here.drawing.tool === "look") here.drawing.tool = "brush"; // what one wants next
      this.takeClasses(classes);
      this.quick.ask();
      name.focus();
    });
    this.nextColour = () => { if (!own) colour.value = OFFERED.find((one) => !this.classes.some((c) => c.colour === one)) ?? "#8795a1"; };
    this.parts.add.append(h("form", { class: "add-class", onsubmit: (event) => { event.preventDefault(); add(); } },
      labelled("New class", h("span", { class: "together" }, colour, name, h("button", { id: "add-class" }, "Add")))));
  }

  showClasses() {
    this.nextColour();
    const known = this.quick?.patches ?? {};
    const rows = this.classes.map((one, place) => {
      const title = place < 9 ? `Key ${place + 1}` : "";
      const choose = h("input", { type: "radio", name: "class", value: one.id, checked: one.id === here.drawing.label,
        onclick: () => this.choose(one.id) }); // also of the one that is chosen: it is drawn with again
      const mark = s("svg", { width: 14, height: 14, class: "key", "aria-hidden": "true" }, s("rect", { width: 14, height: 14, rx: 2, fill: one.colour }));
      const n = known[one.id];
      return h("li", { "data-class": one.name }, h("label", { title }, choose, " ", mark, one.name),
        n === undefined ? null : h("small", { class: n ? "soft" : "changed" }, n ? count(n, "patch").replace("patchs", "patches") : "no patch yet"),
        h("button", { class: "link", "aria-label": `Rename ${one.name}`, title: "Rename", onclick: this.rename(one) }, "✎"),
        h("label", {}, h("span", { class: "unseen" }, `Colour of ${one.name}`), h("input", { type: "color", value: one.colour, onchange: (event) => this.paint(one, event.target.value) })),
        h("button", { class: "link", "aria-label": `Remove the class ${one.name}`, title: "Remove", onclick: this.less(one) }, "✕"));
    });
    const words = "Add at least two classes: the tissue of interest and other tissue.";
    this.parts.classes.replaceChildren(rows.length ? h("div", { role: "radiogroup", "aria-label": "Class of new annotations" }, h("ul", { class: "plain classes" }, rows)) : h("p", {}, words));
  }

  choose(id) {
    here.drawing.label = id;
    if (["look", "eraser"].includes(here.drawing.tool)) here.drawing.tool = "brush";
    this.showClasses();
    this.showList();
    this.hold(here.drawing.tool);
  }

  changeClass = guarded(async (body) => {
    this.takeClasses((await post(`${this.url}/classes`, body)).classes);
    this.showList();
    this.quick.ask();
  });

  rename = (one) => () => {
    const name = prompt("Name of the class:", one.name);
    if (name) this.changeClass({ id: one.id, name });
  };

  paint(one, colour) { return this.changeClass({ id: one.id, colour }); }

  less = (one) => () => this.changeClass({ id: one.id, remove: true });

  // --- tools ----------------------------------------------------------------------------------

  showTools() {
    this.buttons = Object.fromEntries(Object.entries(TOOLS).map(([name, [words, key, hint]]) => [name,
      h("button", { id: `tool-${name}`, title: `${hint} (${key.toUpperCase()})`, "aria-pressed": "false", onclick: () => this.hold(name, true) }, words)]));
    const width = h("input", { type: "range", id: "width", min: String(WIDTHS[0]), max: String(WIDTHS[1]), value: String(here.drawing.width),
      oninput: () => this.widen(Number(width.value)) });
    this.widthInput = width;
    this.widthWords = h("output", { for: "width" });
    this.undoButton = h("button", { id: "undo", title: "Undo (Ctrl+Z)", onclick: () => this.back("undo") }, "Undo");
    this.redoButton = h("button", { id: "redo", title: "Redo (Ctrl+Y)", onclick: () => this.back("redo") }, "Redo");
    this.parts.tools.append(h("div", { class: "buttons tools", role: "toolbar", "aria-label": "Tools" }, Object.values(this.buttons), this.undoButton, this.redoButton),
      h("label", { class: "width" }, "Width ", width, " ", this.widthWords),
      h("details", {}, h("summary", {}, "Keyboard shortcuts"), h("p", { class: "soft" },
        "On the image: L, B, E, P and R choose a tool, 1 to 9 a class, [ and ] the width. The cross in the middle is the pen: Space starts a stroke, " +
        "the arrow keys move the pen, Space ends the stroke. For a polygon, Space sets a corner, Backspace removes it and Enter closes the polygon. Escape cancels. Ctrl+Z is undo, Ctrl+Y is redo.")));
  }

  widen(width) {
    here.drawing.width = Math.min(Math.max(width, WIDTHS[0]), WIDTHS[1]);
    this.widthInput.value = String(here.drawing.width);
    this.hold(here.drawing.tool);
  }

  /** Take a tool in the hand; `ask`: the user did, and may have to be told why not. */
  hold(name, ask = false) {
    const needsClass = !["look", "eraser"].includes(name);
    if (needsClass && !this.own) {
      if (ask) {
        notice("Add a class before you annotate.");
        document.getElementById("class-name").focus();
      }
      name = "look";
    } else if (ask) notice("");
    if (ask || this.own) here.drawing.tool = name;
    if (this.tool?.name !== name) {
      this.tool?.cancel();
      const hand = { viewer: this.viewer, width: () => here.drawing.width, colour: () => this.own?.colour ?? "#111111" };
      this.tool = name === "look" ? null : tool(name, hand, (stroke) => this.drawn(stroke));
      this.viewer.tool = this.tool;
    }
    Object.entries(this.buttons).forEach(([key, button]) => button.setAttribute("aria-pressed", String(key === name)));
    const { canvas } = this.viewer;
    canvas.dataset.tool = name;
    const words = name === "look" ? "" : name === "eraser" ? "Eraser" : `${TOOLS[name][0]}: ${this.own.name}`;
    if (this.mode.textContent !== words) this.mode.textContent = words;
    this.mode.style.borderColor = name === "look" || name === "eraser" ? "" : this.own.colour;
    this.widthWords.textContent = this.wide();
    if (ask) canvas.focus({ preventScroll: true });
    this.viewer.refresh();
  }

  /** The brush's width on the tissue. */
  wide() {
    const pixels = here.drawing.width / (this.viewer.scale || 1);
    return this.info.mpp ? `${+(pixels * this.info.mpp).toPrecision(2)} µm` : `${+pixels.toPrecision(2)} px`;
  }

  drawn({ tool: name, points, radius = 1 }) {
    this.quick.struck = performance.now();
    // A brush is painted in cells of a tenth of its radius; of a line half a pixel of the screen can be seen.
    const finest = ["brush", "eraser"].includes(name) ? radius / 20 : 0.5 / this.viewer.scale;
    const round = thinned(points, finest, MOST_POINTS).map((point) => point.map((value) => Math.round(value * 10) / 10));
    this.change({ act: "draw", tool: name, points: round, radius: Math.max(0.5, radius), label: here.drawing.label });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const [key, hand] = [event.key, this.tool];
    const named = Object.keys(TOOLS).find((name) => TOOLS[name][1] === key.toLowerCase());
    const acts = {
      Escape: () => (hand?.busy ? hand.cancel() : this.hold("look", true)),
      "[": () => this.widen(here.drawing.width / 1.25), "]": () => this.widen(here.drawing.width * 1.25),
      ...(hand ? { " ": () => hand.press([this.viewer.x, this.viewer.y]), Enter: () => hand.finish?.(), Backspace: () => hand.back?.() } : {}),
    };
    if (acts[key]) acts[key]();
    else if (named) this.hold(named, true);
    else if (/^[1-9]$/.test(key) && this.classes[key - 1]) this.choose(this.classes[key - 1].id);
    else return false;
    return true;
  }

  // --- the way back ---------------------------------------------------------------------------

  wayBack(event) {
    if (!(event.ctrlKey || event.metaKey) || event.target.matches("input[type=text]")) return false;
    const key = event.key.toLowerCase();
    if (key === "y" || (key === "z" && event.shiftKey)) this.back("redo");
    else if (key === "z") this.back("undo");
    else return false;
    return true;
  }

  back(way) {
    if (this[way]) this.change({ act: way });
  }

  showWayBack() {
    // Not disabled: who has just pressed it would lose the focus.
    this.undoButton.setAttribute("aria-disabled", String(!this.undo));
    this.redoButton.setAttribute("aria-disabled", String(!this.redo));
  }

  // --- what is drawn --------------------------------------------------------------------------

  showList() {
    const names = new Map(this.classes.map((one) => [one.id, one.name]));
    const colours = this.colours();
    const all = this.images.flatMap(({ image, name, shapes }) => shapes.map((shape) => ({ ...shape, image, name })));
    const row = (shape) => {
      const what = `${names.get(shape.label) ?? "?"}, ${shape.tool}`;
      const mark = s("svg", { width: 12, height: 12, class: "key", "aria-hidden": "true" }, s("rect", { width: 12, height: 12, rx: 2, fill: colours.get(shape.label) ?? "#8795a1" }));
      return h("tr", { "data-shape": shape.id }, h("td", {}, mark, names.get(shape.label) ?? "?"), h("td", {}, shape.tool),
        h("td", {}, area(shape.area, shape.image === this.chosen.id ? this.info.mpp : null)),
        h("td", {}, shape.name.split("/").pop()),
        h("td", {}, h("button", { class: "link", "aria-label": `Go to ${what} on ${shape.name}`, onclick: () => this.jump(shape) }, "go"),
          shape.image === this.chosen.id && this.own && shape.label !== this.own.id ? h("button", { class: "link", "aria-label": `Change ${what} to ${this.own.name}`, title: `Change to ${this.own.name}`,
            onclick: () => this.change({ act: "relabel", id: shape.id, label: this.own.id }) }, "relabel") : null,
          shape.image === this.chosen.id ? h("button", { class: "link", "aria-label": `Delete ${what}`, onclick: () => this.change({ act: "remove", id: shape.id }) }, "delete") : null));
    };
    const shown = all.slice(0, MOST_LISTED);
    become(this.parts.list, [h("details", { open: true }, h("summary", {}, `${count(all.length, "shape")} on ${count(this.images.filter((e) => e.shapes.length).length, "image")}`),
      all.length ? h("table", { class: "shapes", id: "shapes" }, h("tr", {}, ["class", "tool", "area", "image", ""].map((words) => (words ? h("th", {}, words) : h("td", {})))), shown.map(row)) : h("p", { class: "soft" }, "No annotations yet."),
      all.length > shown.length ? h("p", { class: "soft" }, `and ${all.length - shown.length} more`) : null)]);
  }

  jump(shape) {
    if (shape.image === this.chosen.id) return this.jumpTo(shape.id);
    here.drawing.jump = shape.id;
    go("look", here.job ?? "-", this.data.id, shape.image);
  }

  jumpTo(id) {
    const shape = this.shapes.find((one) => one.id === id);
    if (!shape) return;
    this.chosenShape = id;
    this.viewer.show(boxOf(shape));
  }

  /** In the panel that explains a patch: what it is, if not what it was called. */
  patchChoice({ x, y, side }) {
    if (!this.classes.length) return "";
    const mark = (label) => {
      this.quick.struck = performance.now();
      this.change({ act: "draw", tool: "patch", points: [[x, y], [x + side, y + side]], label });
    };
    return h("p", { id: "patch-is" }, "Label this patch: ", this.classes.map((one) =>
      h("button", { onclick: () => mark(one.id), "aria-label": `Label this patch ${one.name}` }, one.name)));
  }

  // --- files ----------------------------------------------------------------------------------

  showFiles() {
    const said = h("div", { "aria-live": "polite" });
    const file = h("input", { type: "file", id: "import", accept: ".geojson,.json", onchange: guarded(async () => {
      const [own] = file.files;
      if (!own) return;
      file.value = "";
      said.replaceChildren();
      const before = this.shapes.length;
      const found = await send(`${this.base}/drawn/file?name=${encodeURIComponent(own.name)}`, own);
      this.take(found);
      this.quick.ask();
      said.replaceChildren(h("p", {}, `${count(found.shapes.length - before, "shape")} from ${own.name}.`), ...found.notes.map((words) => h("p", { class: "warning" }, words)));
    }) });
    this.parts.files.append(h("details", {}, h("summary", {}, "Files (GeoJSON of QuPath)"),
      labelled("Import outlines of this image", file), said,
      h("p", {}, h("a", { class: "button", id: "export", href: `${this.base}/drawn.geojson`, download: "" }, "Export the annotations of this image")),
      h("p", { class: "soft" }, "Train on a folder of such files, named like their images, with ", h("code", {}, "histodict train --annotations"), ".")));
  }

  // --- training -------------------------------------------------------------------------------

  showTrain() {
    const there = new Set(this.images.flatMap((entry) => entry.shapes.map((shape) => shape.label)));
    const ready = this.classes.filter((one) => there.has(one.id)).length > 1;
    become(this.parts.train, ready ? [h("p", {}, h("a", { class: "button main", id: "train-drawn", href: `#/train/${this.data.id}` }, "Train on the annotations"))] : []);
  }
}

/** Left, top, right and bottom of a shape, which may have more corners than a function takes arguments. */
export function boxOf({ polygons }) {
  const box = [Infinity, Infinity, -Infinity, -Infinity];
  polygons.forEach(([outer]) => outer.forEach(([x, y]) => {
    box.splice(0, 4, Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y));
  }));
  return box;
}

/** An area in level-0 pixels, in words. */
function area(pixels, mpp) {
  const round = (value) => Number(value.toPrecision(3)).toLocaleString("en");
  if (!mpp) return `${round(pixels)} px`;
  const microns = pixels * mpp ** 2;
  return microns >= 1e5 ? `${round(microns / 1e6)} mm²` : `${round(microns)} µm²`;
}
