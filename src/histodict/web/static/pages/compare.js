// Compare: two models' maps of one image, side by side or as their difference.
import { choice, classTag, coloursNow, get, guarded, h, isActive, predictedTag, labelled, pause, takeColours } from "../dom.js";
import { Viewer } from "../viewer.js";
import { go, here } from "../way.js";
import { imageOf, missingImage } from "./strip.js";
import { modelsOf } from "./models.js";

export async function showCompare(content, [before, after, dataId, image], session) {
  const models = modelsOf(session);
  const data = dataId ? await get(`/api/data/${dataId}`) : null;
  if (!data || models.length < 1) {
    content.append(h("p", {}, "Select two models and an image. ", h("a", { href: "#/look" }, "Open an image first.")));
    return null;
  }
  takeColours(data.drawn?.colours);
  const chosen = imageOf(data, image);
  if (!chosen) {
    content.append(missingImage(data, after));
    return null;
  }
  Object.assign(here, { data: data.id, image: chosen.id, imageData: data.id });
  const state = { data, chosen, stopped: false, base: `/api/data/${data.id}/images/${chosen.id}`, viewers: [] };
  state.info = await get(state.base);
  const way = (one, other) => go("compare", one, other, data.id, chosen.id);
  const pick = (words, id, value, change) => labelled(words, choice(models, value, change, { id }));
  const told = h("div", { id: "compared", "aria-live": "polite" });
  const views = h("div", { class: "views" });
  const counted = h("div", { id: "counted" });
  const mode = choice([["side", "side by side"], ["difference", "difference"]], here.compareAs,
    (value) => { here.compareAs = value; show(); }, { id: "compare-as" });
  content.append(h("h1", { class: "file" }, chosen.name),
    h("div", { class: "fields" }, pick("First model", "compare-before", before, (value) => way(value, after)),
      pick("Second model", "compare-after", after, (value) => way(before, value)), labelled("Display", mode)),
    told, views, counted, h("p", {}, h("a", { href: `#/look/${after}/${data.id}/${chosen.id}` }, "Back to the image")));
  const sides = [before, after].map((job) => ({ job, place: `/api/jobs/${job}/look/${data.id}/${chosen.id}`, point: here.points[job] }));
  const show = guarded(() => {
    state.viewers.splice(0).forEach((viewer) => viewer.close());
    return here.compareAs === "difference" ? showDifference(state, sides, views) : showSides(state, sides, views);
  });
  const names = Object.fromEntries(models);
  // Maps are made on the way, and the pages of large images lead there.
  Promise.all(sides.map((side) => answerOf(state, side))).then(guarded(async (answers) => {
    sides.forEach((side, i) => Object.assign(side, answers[i], { name: names[side.job] ?? "a model" }));
    if (state.stopped) return;
    await tell(state, sides, told, counted);
    await show();
  }), (error) => told.replaceChildren(h("p", { class: "warning" }, error.message)));
  told.replaceChildren(h("p", { class: "soft" }, "Predicting this image with both models…"));
  return () => { state.stopped = true; state.viewers.forEach((viewer) => viewer.close()); };
}

const atPoint = ({ point }, name = "point") => (point === undefined ? "" : `${name}=${point}`);

/** {found, model}: waits for a map that is being made; one that nobody asked for is not made here. */
async function answerOf(state, { job, place, ...side }) {
  const model = await get(`/api/jobs/${job}/model`);
  while (!state.stopped) {
    const found = await get(`${place}?${atPoint(side)}`);
    if (found.state === "done") return { found, model };
    if (!isActive(found)) throw new Error("The maps of this large image are not computed yet. Open the image with each of the models first.");
    await pause(1000);
  }
  return {};
}

/** What they answer, in what they differ, and how many patches they call otherwise. */
async function tell(state, [one, other], place, counted) {
  const asked = `with=${other.job}&${atPoint(one)}&${atPoint(other, "with_point")}`;
  const answers = [one, other].map(({ name, model, found }) => h("li", {}, h("b", {}, name), ": ",
    predictedTag(model.classes, found)));
  const parts = [h("ul", { class: "plain" }, answers)];
  if (one.found.grid && other.found.grid) {
    const compared = state.compared = await get(`${one.place}/difference?${asked}`);
    compared.query = asked;
    parts.push(...compared.warnings.map((text) => h("p", { class: "warning" }, text)));
    counted.replaceChildren(counts(compared));
  }
  place.replaceChildren(...parts);
}

/** Patches by what they were called before and after. */
function counts({ counts: table, classes, n_different: apart }) {
  if (!table) return h("p", {}, "The models have different classes. Compare them side by side.");
  const all = table.flat().reduce((sum, n) => sum + n, 0);
  const changed = all - table.reduce((sum, row, i) => sum + row[i], 0);
  const share = all ? (100 * changed) / all : 0;
  return h("div", {}, h("p", { id: "n-changed" }, `The predictions of ${changed} of ${all} patches (${share.toFixed(1)} %) differ.`,
    apart ? ` ${apart} more patches have a prediction of one model only, because of differences in tissue detection or patch grid.` : ""),
    h("table", { class: "counts", id: "difference-table" },
      h("tr", {}, h("th", {}, "first \\ second"), classes.map((name) => h("th", {}, classTag(classes, name)))),
      table.map((row, i) => h("tr", {}, h("th", {}, classTag(classes, classes[i])), row.map((n) => h("td", {}, String(n)))))));
}

async function showSides(state, sides, place) {
  const frames = sides.map((side, i) => frame(`${["First", "Second"][i]}: ${side.name}`, `viewer-${i + 1}`, side.model.classes));
  place.className = "views two";
  place.replaceChildren(...frames.map(({ element }) => element));
  await Promise.all(sides.map(async (side, i) => {
    const map = side.found.grid ? { picture: await load(`${side.place}/map.png?only=-1&version=${side.found.version}&colours=${coloursNow()}&${atPoint(side)}`), grid: side.found.grid } : null;
    addViewer(state, frames[i].canvas, map);
  }));
  state.viewers.forEach((viewer) => { viewer.onmove = () => follow(state.viewers, viewer); });
}

async function showDifference(state, [one, other], place) {
  place.className = "views";
  if (!state.compared?.counts) return place.replaceChildren(h("p", { class: "warning" }, "No difference map: the models have different classes, or one has no map."));
  const { canvas, element } = frame(`Patches with different predictions, in the colour of their class by ${other.name}; grey: same class as by ${one.name}`, "viewer-difference", one.model.classes);
  place.replaceChildren(element);
  const picture = await load(`${one.place}/difference.png?${state.compared.query}&version=${state.compared.version}&colours=${coloursNow()}`);
  addViewer(state, canvas, { picture, grid: one.found.grid });
}

function frame(words, id, classes) {
  const canvas = h("canvas", { id, class: "view", tabindex: "0", role: "img", "aria-label": `${words}. Arrow keys move, plus and minus zoom, 0 shows all.` });
  return { canvas, element: h("figure", {}, h("figcaption", {}, words, " ", classes.map((name) => classTag(classes, name))), canvas) };
}

function addViewer(state, canvas, map) {
  const viewer = new Viewer(canvas, state.info, (level, column, row) => `${state.base}/tiles/${level}/${column}/${row}.jpg`);
  Object.assign(viewer, { map, opacity: here.strength || 0.5 });
  viewer.refresh();
  canvas.dataset.ready = "true";
  state.viewers.push(viewer);
}

/** The others show the same part of the image. */
function follow(viewers, moved) {
  moved.canvas.dataset.at = [moved.x, moved.y, moved.scale].map((n) => n.toFixed(3)).join(" ");
  const { x, y, scale } = moved;
  viewers.filter((viewer) => viewer !== moved && (viewer.x !== x || viewer.y !== y || viewer.scale !== scale)).forEach((viewer) => {
    Object.assign(viewer, { x, y, scale });
    viewer.refresh();
  });
}

async function load(url) {
  const picture = new Image();
  picture.src = url;
  await picture.decode();
  return picture;
}
