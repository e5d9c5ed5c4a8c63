// Look: an image or slide up close, the model's map over it, the why of a patch, corrections.
import { LEFT_OUT, become, choice, classTag, colourOf, predictedTag, coloursNow, count, get, guarded, h, isActive, once, pause, post, sizeWords, takeColours, timeLeft } from "../dom.js";
import { tool } from "../tools.js";
import { Viewer, scaleBar } from "../viewer.js";
import { go, here } from "../way.js";
import { drawInstead } from "./data.js";
import { DrawPanel } from "./draw.js";
import { exportsBar, offerMap } from "./exports.js";
import { modelBar } from "./models.js";
import { imageOf, imageStrip, missingImage } from "./strip.js";
import { suggestBar } from "./suggest.js";
import { whyView } from "./why.js";

export async function showLook(content, [job, id, image], session) {
  const state = { job: job && job !== "-" ? job : null, stopped: false };
  const dataId = id ?? here.data;
  if (!dataId) {
    content.append(h("p", {}, h("a", { href: "#/data" }, "Choose data first.")));
    return null;
  }
  const data = await get(`/api/data/${dataId}`);
  takeColours(data.drawn?.colours);
  const chosen = imageOf(data, image);
  if (!chosen) {
    content.append(missingImage(data, state.job));
    return null;
  }
  Object.assign(here, { data: data.id, image: chosen.id, imageData: data.id, job: state.job ?? here.job });
  Object.assign(state, { data, chosen, base: `/api/data/${data.id}/images/${chosen.id}` });
  state.place = `/api/jobs/${state.job}/look/${data.id}/${chosen.id}`;
  state.point = here.points[state.job];
  [state.info, state.model] = await Promise.all([get(state.base), state.job ? get(`/api/jobs/${state.job}/model`) : null]);
  const canvas = h("canvas", { tabindex: "0", id: "viewer", "aria-label":
    `${chosen.name}. Arrow keys move, plus and minus zoom, 0 shows all, Enter explains the patch in the middle.` });
  const bar = h("div", { class: "scale-bar", "aria-hidden": "true" }, h("i", {}), h("span", {}));
  const status = h("div", { class: "status", "aria-live": "polite" });
  const panel = h("aside", {});
  state.legend = h("div", { class: "map-legend", id: "map-legend" });
  content.append(h("div", { class: "look" }, imageStrip(state),
    h("div", { class: "stage" }, canvas, bar, state.legend, status, toolbar(state)), panel));
  state.viewer = new Viewer(canvas, state.info, (level, column, row) => `${state.base}/tiles/${level}/${column}/${row}.jpg`);
  Object.assign(state.viewer, { opacity: here.strength }, here.views[chosen.id]); // as it was seen last
  state.viewer.onmove = () => {
    here.views[chosen.id] = { x: state.viewer.x, y: state.viewer.y, scale: state.viewer.scale };
    const [width, words] = scaleBar(state.viewer.scale, state.info.mpp);
    bar.firstChild.style.width = `${width}px`;
    bar.lastChild.textContent = words;
    canvas.dataset.scale = state.viewer.scale.toFixed(4);
  };
  state.why = h("section", { id: "why", "aria-live": "polite" });
  state.answer = h("section", { id: "answer" });
  panel.append(h("h1", { class: "file" }, chosen.name), h("p", { class: "soft", id: "pixel-size" },
    `Pixel size: ${sizeWords(state.info.mpp, state.info.mpp_from)}.`), modelBar(state, session), chosen.masked ? truthSwitch(state) : "", state.answer, drawPanel(state), state.why, corrections(state), suggestBar(state), exportsBar(state, atPoint(state)));
  if (state.job) followMap(state, status);
  else state.answer.replaceChildren(h("p", { class: "soft" }, "No model selected: ", data.labelled || data.drawn?.classes.length > 1
    ? [h("a", { href: `#/train/${data.id}` }, "train a model"), " to see its map here."] : "annotate two classes to get a quick prediction, then train a model."));
  return () => { state.stopped = true; state.viewer.close(); state.draw?.close(); };
}

/** Images without labels are drawn on; those with labels are corrected. */
function drawPanel(state) {
  if (state.data.labelled) return "";
  state.draw = new DrawPanel(state);
  return state.draw.element;
}

function toolbar(state) {
  const button = (words, title, act) => h("button", { title, "aria-label": title, onclick: () => act(state.viewer) }, words);
  return h("div", { class: "toolbar" }, button("+", "Zoom in (+)", (v) => v.zoom(1.5)),
    button("−", "Zoom out (-)", (v) => v.zoom(1 / 1.5)), button("⤢", "Show all (0)", (v) => v.fit()));
}

// --- the model's map --------------------------------------------------------------------------------

/** The query that asks for the line as the user drew it. */
const atPoint = (state) => (state.point === undefined ? "" : `point=${state.point}`);

async function followMap(state, status) {
  while (!state.stopped) {
    const found = await get(`${state.place}?${atPoint(state)}`).catch((error) => ({ state: "failed", error: error.message }));
    if (state.stopped) return;
    if (found.state === "done") {
      status.textContent = "";
      return showMap(state, found);
    }
    const isAtWork = isActive(found);
    status.textContent = found.state === "running" ? "Predicting this image…" : isAtWork ? "Waiting for other jobs…" : "";
    become(state.answer, mapWork(state, found, () => followMap(state, status)));
    if (!isAtWork) return;
    await pause(1000);
  }
}

/** A large image's map, which is made only if somebody asks for it, and can be given up. */
function mapWork(state, found, again) {
  const act = (words, url, id, after) => h("button", { id, class: id === "make-map" ? "main" : "", onclick: once(async () => {
    await post(url);
    after();
  }) }, words);
  if (isActive(found)) {
    return [h("p", {}, "The map is being computed. You can open other images in the meantime."),
      h("progress", { max: "1", value: String(found.fraction_done), "aria-label": "Progress of the map" }),
      h("p", { class: "soft" }, found.state === "running" ? timeLeft(found.seconds_left) : "Waiting for other jobs."),
      act("Cancel", `/api/jobs/${found.job}/cancel`, "cancel-map", () => {})];
  }
  if (found.megapixels === undefined) return [h("p", { class: "warning" }, found.error)];
  const size = Math.round(found.megapixels);
  return [found.error ? h("p", { class: "warning" }, found.error) : "",
    h("p", {}, `This image is large (${size} megapixels). The prediction takes a while and starts on request.`),
    act(found.state === "not_requested" ? "Compute the map" : "Compute the map again", state.place, "make-map", again)];
}

async function showMap(state, found) {
  const { viewer, data, chosen, model } = state;
  const classes = model.classes;
  state.classes = classes;
  state.drawMarks?.();
  const shares = Object.entries(found.shares ?? {}).map(([name, share]) =>
    h("span", { class: "share" }, classTag(classes, name), ` ${Math.round(100 * share)} %`));
  const known = data.id === model.data;
  const role = !known ? "This image is not from the data set of the model."
    : isTested(model, chosen) ? "Test image: no image of this patient was used for training." : "Training image: images of this patient were used for training.";
  state.answer.replaceChildren(
    h("p", {}, "Prediction: ", h("b", {}, predictedTag(classes, found)),
      chosen.label ? h("span", {}, "; label: ", classTag(classes, chosen.label), ".") : "."),
    h("p", { class: "soft" }, found.words), h("p", { class: "soft" }, role), shares.length ? h("p", {}, "Patches: ", shares) : "",
    movedLine(state, model),
    ...found.warnings.map((text) => h("p", { class: "warning" }, text[0].toUpperCase() + text.slice(1))));
  if (!found.grid) return;
  state.legend.replaceChildren(...classes.map((name) => classTag(classes, name)));
  const load = guarded(async (only) => {
    const picture = new Image();
    picture.src = `${state.place}/map.png?only=${only}&version=${found.version}&colours=${coloursNow()}&${atPoint(state)}`;
    await picture.decode();
    viewer.map = { picture, grid: found.grid };
    viewer.refresh();
  });
  state.answer.append(controls(state, model, found, load));
  offerMap();
  viewer.onpick = guarded((x, y) => pick(state, model, found.grid, x, y));
  state.why.replaceChildren(h("h2", {}, "Explanation of a patch"), h("p", { class: "soft" },
    "Click a patch, or press Enter for the patch in the middle, to see the atoms behind its prediction."));
  await load(-1);
}

/** What the mask says, over the image. */
function truthSwitch(state) {
  let rings = null;
  const show = guarded(async (on) => {
    if (on) rings ??= (await get(`${state.base}/truth`)).rings;
    state.viewer.truth = on ? rings : [];
    state.viewer.canvas.dataset.truth = String(state.viewer.truth.length);
    state.viewer.refresh();
  });
  show(true);
  return h("label", { class: "truth" }, h("input", { type: "checkbox", id: "truth", checked: true, onchange: (event) => show(event.target.checked) }),
    " True regions (mask), dashed");
}

/** Says so where the line is not the model's own. */
function movedLine(state, model) {
  if (state.point === undefined) return "";
  const back = () => {
    delete here.points[state.job];
    dispatchEvent(new Event("hashchange"));
  };
  const own = model.results?.operating_point?.value ?? null;
  const round = (value) => (value === null ? "" : +value.toPrecision(4));
  return h("p", { class: "changed", id: "moved" }, `Decision threshold: ${round(state.point)}, chosen by you; that of the model is ${round(own)}. `,
    h("button", { class: "link", onclick: back }, "Reset to the threshold of the model"));
}

function controls(state, model, found, load) {
  const { viewer } = state;
  const own = model.results?.operating_point;
  // Of two classes the one to be found; of more, the one that the image was called.
  const first = model.classes.length === 2 ? 1 : Math.max(0, model.classes.indexOf(found.answer));
  const outline = { on: model.is_detector, place: first, least: own?.kind === "patches" ? state.point ?? own.value : 4 };
  const draw = guarded(async () => {
    const query = `class=${outline.place}&least=${outline.least}&${atPoint(state)}`;
    viewer.rings = outline.on ? (await get(`${state.place}/outlines?${query}`)).rings : [];
    viewer.refresh();
  });
  draw();
  const names = model.classes.map((name, i) => [i, `only ${name}`]);
  const least = h("input", { type: "number", min: "1", max: "500", value: String(outline.least), "aria-label": "Minimum number of connected patches of a region",
    onchange: (event) => { outline.least = Math.max(1, Number(event.target.value) || 1); draw(); } });
  return h("div", { class: "controls" },
    h("label", {}, "Map ", choice([[-1, "all classes"], ...names], -1, load, { id: "map-class" })),
    h("label", {}, "Strength ", h("input", { type: "range", min: "0", max: "1", step: "0.05", value: String(viewer.opacity), id: "opacity",
      oninput: (event) => { viewer.opacity = here.strength = Number(event.target.value); viewer.refresh(); } })),
    h("label", {}, h("input", { type: "checkbox", checked: outline.on, id: "outlines",
      onchange: (event) => { outline.on = event.target.checked; draw(); } }), " Outline regions of ",
      choice(model.classes.map((name, i) => [i, name]), first, (value) => { outline.place = Number(value); draw(); }, { "aria-label": "Outlined class" }),
      " of at least ", least, " patches"));
}

async function pick(state, model, grid, x, y) {
  const { width, height } = state.viewer.info;
  if (x < 0 || y < 0 || x >= width || y >= height) return;
  const nearest = (at, count) => Math.min(Math.max(Math.floor((at - grid.shift) / grid.step), 0), count - 1);
  const [row, column] = [nearest(y - grid.top, grid.n_rows), nearest(x - grid.left, grid.n_columns)];
  state.viewer.selection = { x: grid.left + column * grid.step, y: grid.top + row * grid.step, side: grid.side };
  state.viewer.refresh();
  state.why.replaceChildren(h("p", { class: "soft" }, "Explaining the patch…"));
  const found = await get(`${state.place}/why?row=${row}&column=${column}&${atPoint(state)}`);
  state.why.replaceChildren(...whyView(state.job, model, found), state.draw?.patchChoice(state.viewer.selection) ?? "");
  state.why.scrollIntoView({ block: "start" });
}

// --- corrections ------------------------------------------------------------------------------------

/** Whether the model that is shown was tested on the image's patient, who is in the same set. */
const isTested = (model, image) => model.test_patients.includes(image.patient);
const isKept = ({ data, model }, image) => model?.data === data.id && isTested(model, image) && !data.learn_from.includes(image.patient);

function corrections(state) {
  const { data, chosen } = state;
  const place = h("section", { id: "corrections" });
  if (data.set_classes.length < 2) return place;
  const url = `/api/data/${data.id}`;
  const mark = { label: data.set_classes.length > 2 && chosen.label ? chosen.label : data.set_classes.at(-1) };
  const update = () => {
    const own = data.corrections.filter((c) => c.image === chosen.id);
    const told = own.find((c) => !c.box);
    const label = told ? told.label ?? LEFT_OUT : chosen.label;
    const names = [...data.classes.map((name) => [name, name]), [LEFT_OUT, "excluded"]];
    const kept = isKept(state, chosen);
    state.drawMarks = () => {
      if (!state.viewer) return;
      // In the colours of the map, where there is one of the same classes.
      const order = state.classes && data.set_classes.every((name) => state.classes.includes(name)) ? state.classes : data.set_classes;
      state.viewer.marks = own.filter((c) => c.box).map((c) => ({ box: c.box, colour: colourOf(order.indexOf(c.label)) }));
      state.viewer.refresh();
    };
    state.drawMarks();
    const change = (way, body) => guarded(async () => {
      Object.assign(data, await post(`${url}/${way}`, body));
      update();
    });
    const send = (body) => change("correct", { image: chosen.id, ...body })();
    const start = () => {
      const { viewer } = state;
      const lay = () => { viewer.tool = null; viewer.layers = []; viewer.onkey = () => false; };
      viewer.tool = tool("rectangle", { viewer, colour: () => "#111" }, ({ points: [from, to] }) => {
        lay();
        const edges = (pick) => [0, 1].map((axis) => Math.round(pick(from[axis], to[axis])));
        send({ label: mark.label, box: [...edges(Math.min), ...edges(Math.max)] });
      });
      viewer.layers = [(pen) => viewer.tool?.draw(pen)];
      viewer.onkey = ({ key }) => (key === "Escape" ? !lay() : key === " " && !viewer.tool.press([viewer.x, viewer.y]));
      document.getElementById("viewer").focus();
    };
    place.replaceChildren(h("h2", {}, "Correct labels"), patientNote(state, kept, change),
      chosen.label && data.classes.length > 1 ? h("label", {}, "Label of this image ", choice(names, label, (value) => send({ label: value === LEFT_OUT ? null : value, box: null }), { id: "flip" })) : "",
      h("p", {}, h("button", { onclick: start, id: "mark", disabled: kept }, "Label a region"), " as ",
        choice(data.set_classes.map((name) => [name, name]), mark.label, (value) => { mark.label = value; }, { "aria-label": "Class of the region", disabled: kept }),
        kept ? "" : h("small", { class: "soft" }, " then drag a rectangle, or set two corners with Space")),
      h("ul", { class: "plain" }, own.map((c) => h("li", {}, c.box ? `region: ${c.label} ` : c.label === null ? "excluded " : `label: ${c.label} `,
        kept && c.box ? h("span", { class: "changed" }, "not used for training ") : "",
        h("button", { class: "link", onclick: change("undo", { id: c.id }) }, "undo")))),
      retrain(state),
      h("details", { id: "no-brush" }, h("summary", {}, "Annotating with a brush"), h("p", {}, "Training uses ",
        data.images.some((image) => image.masked) ? "the masks" : "the labels",
        " of whole images; annotations of the same tissue would contradict them. To train from annotations only, open the images as a separate data set without labels, and ",
        "annotate them with a brush or a polygon and your own classes."), h("p", {}, drawInstead(data, chosen.id))));
  };
  queueMicrotask(update);
  return place;
}

/** Before anything is marked: whether it would be learnt from, and how it could be. */
function patientNote({ data, chosen }, kept, change) {
  const moved = data.learn_from.includes(chosen.patient);
  const others = data.learn_from.filter((patient) => patient !== chosen.patient);
  const move = (words, learn_from) => h("button", { id: "move", onclick: change("about", { learn_from }) }, words);
  if (moved) return h("p", { id: "patient-note" }, `The next training uses patient ${chosen.patient} for training instead of testing. `, move("Undo", others));
  if (!kept) return "";
  return h("div", { class: "warning", id: "patient-note" }, h("p", {}, `Patient ${chosen.patient} is in the test set: regions labelled here are not used for training. `,
    "A corrected image label changes only the test scores."), move("Use this patient for training", [...others, chosen.patient]));
}

function retrain(state) {
  const { data, model } = state;
  if (!data.corrections.length) return "";
  if (model?.data !== data.id) return h("p", {}, h("a", { href: `#/train/${data.id}`, id: "train-own" }, `Train on ${data.name} with ${count(data.corrections.length, "correction")}`));
  const images = new Map(data.images.map((image) => [image.id, image]));
  const used = data.corrections.filter((c) => !(c.box && images.has(c.image) && isKept(state, images.get(c.image))));
  if (!used.length) return "";
  const act = once(async () => {
    const { id } = await post("/api/jobs", { data: data.id, parent: model.id });
    go("train", data.id, id);
  });
  return h("p", {}, h("button", { class: "main", id: "retrain", onclick: act }, `Retrain with ${count(used.length, "correction")}`));
}
