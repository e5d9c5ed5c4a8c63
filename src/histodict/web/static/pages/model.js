// Model: how good it is on unseen patients, where the line is drawn, what it has learnt.
import { roc } from "../charts.js";
import { choice, classTag, count, get, guarded, h, post, takeColours } from "../dom.js";
import { go, here, lookWithModel } from "../way.js";
import { sizesTable } from "./about.js";
import { modelsOf } from "./models.js";

const FEW_PATIENTS = 3; // with fewer, shares of right answers mislead

export async function showModel(content, [id], session) {
  const jobId = id ?? here.job;
  if (!jobId) {
    content.append(h("p", {}, "There is no model yet. ", h("a", { href: "#/train" }, "Train one first.")));
    return null;
  }
  const model = await get(`/api/jobs/${jobId}/model`);
  takeColours(model.colours);
  here.job = model.id;
  here.data = model.data || here.data;
  const own = model.results?.operating_point?.value ?? null;
  // The line as the user drew it, for this page, for looking at images and for what is downloaded.
  const point = {
    get value() { return here.points[model.id] ?? own; },
    set value(value) { if (value === own) delete here.points[model.id]; else here.points[model.id] = value; },
  };
  const others = modelsOf(session);
  content.append(h("div", { class: "split" },
    h("div", {}, h("h1", {}, `Model: ${model.classes.join(" / ")}`),
      others.length > 1 ? choice(others, jobId, (value) => { location.hash = `#/model/${value}`; }, { "aria-label": "Model" }) : null),
    downloads(model, point)));
  if (model.before) content.append(changes(model));
  if (model.results?.images.length) content.append(accuracy(model, point));
  else if (model.opened) content.append(h("p", { class: "warning", id: "from-file" }, `This model comes from the file ${model.name}: how good it is on your images is not known here. `, remove(model)));
  else content.append(h("p", { class: "warning" }, "No patient was kept for testing: how good this model is, is not known."));
  content.append(learnt(model), pixelSizes(model), card(model));
  return null;
}

function downloads(model, point) {
  const link = (name, words, id) => {
    const fetchIt = () => {
      const moved = here.points[model.id];
      location.href = `/api/jobs/${model.id}/${name}${moved === undefined ? "" : `?point=${moved}`}`;
    };
    return h("button", { onclick: fetchIt, id }, words);
  };
  return h("div", { class: "buttons" }, link("model.histodict", "Download model", "download-model"),
    model.results?.images.length ? link("report.html", "Download report", "download-report") : null,
    here.data ? h("a", { class: "button main", href: `#/look/${model.id}/${here.data}`, onclick: lookWithModel }, "Look at images") : null);
}

/** Of a model from a file only our copy goes. */
function remove(model) {
  return h("button", { id: "remove-model", onclick: guarded(async () => {
    await post(`/api/jobs/${model.id}/delete`);
    here.job = null;
    go("data");
  }) }, "Take it off this list");
}

// --- how good ---------------------------------------------------------------------------------------

/** Is this image called the second class? */
function isPositive(value, threshold, point) {
  if (point.kind === "patches") return value >= threshold;
  return point.rises === false ? value < threshold : value > threshold;
}

function answersAt(model, threshold) {
  const { operating_point: point, images } = model.results;
  return images.filter((row) => row.answer !== null).map((row) => ({
    ...row,
    answer: point ? model.classes[Number(isPositive(row.value, threshold, point))] : row.answer,
  }));
}

/** What is right or wrong: an image or, where it was tested on what is drawn, what is drawn of a class on one. */
const isPart = (row) => Boolean(row.look) && row.look !== row.image;
const unit = (rows) => (rows.some(isPart) ? "part" : "image");

function accuracy(model, point) {
  const { operating_point: given, images } = model.results;
  const failed = images.filter((row) => row.answer === null);
  const table = h("div", { id: "confusion", "aria-live": "polite" });
  const patients = h("div", {});
  const overlaps = h("div", { id: "overlap", "aria-live": "polite" });
  const position = h("div", {});
  let chart = null;
  const show = () => {
    const rows = answersAt(model, point.value);
    table.replaceChildren(confusion(model.classes, rows));
    if (model.is_detector) overlaps.replaceChildren(overlapView(model, rows, point.value));
    patients.replaceChildren(byPatient(model, rows));
    if (chart) {
      const [alarm, miss] = rates(rows, model.classes[1]);
      chart.place(alarm, miss);
    }
  };
  const parts = [h("div", {}, h("h3", {}, model.is_detector ? "Right and wrong, by image" : "Right and wrong"), table)];
  const missing = model.classes.filter((name) => !images.some((row) => row.label === name));
  if (missing.length) {
    parts.push(h("p", { class: "warning", id: "untested" }, `No test image is of the class ${missing.join(" or ")}: `,
      "the errors on such images are not known, and what is right of the others says little."));
  } else if (given && model.classes.length === 2) {
    const control = slider(model, given, point, show);
    chart = roc(rocPoints(model, given), model.classes[1], control.set);
    position.append(control.element);
    parts.push(h("div", {}, h("h3", {}, "Where to draw the line"), h("div", { class: "row" }, chart.drawing, position)));
  }
  show();
  return h("section", {}, h("h2", {}, "How good it is on patients it never saw"),
    images.some(isPart) ? h("p", { class: "soft", id: "parts" }, "Tested on what is drawn alone, one part for each class on an image: nothing is known of the rest of it.") : null,
    failed.length ? h("div", { class: "warning", id: "failed" }, h("b", {}, `${count(failed.length, "image")} got no answer:`),
      h("ul", {}, failed.map((row) => h("li", {}, h("b", {}, row.name), `: ${row.failure ?? "only glass"}`)))) : null,
    overlaps, h("div", { class: "row" }, parts), h("h3", {}, "By patient"), patients);
}

/** How far found and true regions overlap, of all images together: see region_overlap.py. */
function pooled(overlaps, least) {
  if (!overlaps.length || overlaps.some((one) => !one?.[least - 1])) return null;
  const [hits, misses, alarms] = [0, 1, 2].map((k) => overlaps.reduce((sum, one) => sum + one[least - 1][k], 0));
  const union = hits + misses + alarms;
  return union ? { dice: (2 * hits) / (union + hits), iou: hits / union } : null;
}

function overlapView(model, rows, least) {
  const name = model.classes[1];
  const all = pooled(rows.map((row) => row.overlap), least);
  const words = (share) => (share ? [h("td", {}, share.dice.toFixed(2)), h("td", {}, share.iou.toFixed(2))]
    : [h("td", { colspan: "2" }, "none there, none found")]);
  if (rows.some((row) => !row.overlap)) return h("p", { class: "soft" }, "How far its regions overlap with the true ones was not measured: train once more to know.");
  return h("div", {}, h("h3", {}, `Where ${name} is: overlap with the true regions`),
    h("p", {}, all ? [h("b", {}, `Dice ${all.dice.toFixed(2)}, IoU ${all.iou.toFixed(2)}`), ` over ${count(rows.length, "image")}: 1 is the same area, 0 nothing in common. `]
      : "No region is there, and none was found. ", "Patches on tissue are compared with the masks; an image without one counts as all of its class."),
    h("table", { class: "counts" }, h("tr", {}, h("th", {}, "image"), h("th", {}, "Dice"), h("th", {}, "IoU")),
      rows.map((row) => h("tr", {}, h("td", {}, h("a", { href: `#/look/${model.id}/${model.data}/${row.look ?? row.image}` }, row.name.split("/").pop())),
        words(pooled([row.overlap], least))))));
}

function confusion(classes, rows) {
  const cell = (truth, answer) => rows.filter((row) => row.label === truth && row.answer === answer).length;
  const others = rows.map((row) => row.label).filter((label) => !classes.includes(label)); // never learnt
  const truths = [...classes, ...new Set(others.sort())];
  const shares = truths.map((name) => {
    const own = rows.filter((row) => row.label === name);
    return own.length ? own.filter((row) => row.answer === name).length / own.length : null;
  }).filter((share) => share !== null);
  const mean = shares.reduce((a, b) => a + b, 0) / shares.length;
  const right = rows.filter((row) => row.answer === row.label).length;
  const isWhole = classes.every((name) => rows.some((row) => row.label === name));
  return h("div", {},
    h("table", { class: "confusion" },
      h("tr", {}, h("th", {}, "truly ↓  answered →"), classes.map((name) => h("th", {}, classTag(classes, name)))),
      truths.map((truth) => h("tr", {}, h("th", {}, classes.includes(truth) ? classTag(classes, truth) : truth || "no label"), classes.map((answer) => {
        const n = cell(truth, answer);
        return h("td", { class: truth === answer ? "hit" : n ? "miss" : "", "data-cell": `${truth}/${answer}` }, String(n));
      })))),
    isWhole ? h("p", {}, h("b", { id: "balanced" }, `${Math.round(100 * mean)} %`), " right, on average over the classes (",
      count(rows.length, unit(rows)), ").") : h("p", {}, `${right} of ${count(rows.length, unit(rows))} right.`),
    classes.length === 2 ? found(classes, rows) : null, fewPatients(rows));
}

function fewPatients(rows) {
  const n = new Set(rows.map((row) => row.patient)).size;
  return n < FEW_PATIENTS ? h("p", { class: "changed", id: "few-patients" }, `Of ${count(n, "patient")} alone: how good it is on others is hardly known. Test on more.`) : null;
}

/** How well the class to be found is found. */
function found(classes, rows) {
  const share = (own, name) => `${own.filter((row) => row.answer === name).length} of ${own.length}`;
  const [others, own] = classes.map((name) => rows.filter((row) => row.label === name));
  const percent = (own, name) => (own.length ? `${Math.round((100 * own.filter((row) => row.answer === name).length) / own.length)} %` : "not known");
  return h("p", { id: "sensitivity" }, classTag(classes, classes[1]), ` is found in ${share(own, classes[1])} (sensitivity `,
    h("b", {}, percent(own, classes[1])), `); ${share(others, classes[0])} of the others are left alone (specificity `,
    h("b", {}, percent(others, classes[0])), ").");
}

function rates(rows, positive) {
  const share = (own, isWrong) => (own.length ? own.filter(isWrong).length / own.length : 0);
  const alarm = share(rows.filter((row) => row.label !== positive), (row) => row.answer === positive);
  const miss = share(rows.filter((row) => row.label === positive), (row) => row.answer !== positive);
  return [alarm, miss];
}

/** Thresholds between the images' values, from those that call everything to nothing positive. */
function thresholds(model, given) {
  if (given.kind === "patches") return Array.from({ length: 20 }, (_, i) => i + 1);
  const values = [...new Set(model.results.images.map((row) => row.value).filter((v) => v !== null))].sort((a, b) => a - b);
  const gaps = values.slice(1).map((v, i) => (v + values[i]) / 2);
  const edge = (values.at(-1) - values[0] || 1) * 0.05;
  return [values[0] - edge, ...gaps, values.at(-1) + edge];
}

function rocPoints(model, given) {
  const points = thresholds(model, given).map((threshold) => {
    const [alarm, miss] = rates(answersAt(model, threshold), model.classes[1]);
    return { threshold, alarm, miss };
  });
  return points.sort((a, b) => a.alarm - b.alarm || b.miss - a.miss);
}

const MEANINGS = {
  proportion: (v, name, than) => `An image is called ${name} when ${than} than ${(100 * v).toFixed(1)} % of its patches are.`,
  margin: (v, name, than) => `An image is called ${name} when its patches lean towards it by ${than} than this on average; 0 is undecided.`,
  patches: (v, name) => `A region of ${name} counts from ${count(v, "connected patch").replace("patchs", "patches")} on.`,
  score: (v, name) => `An image is called ${name} when its score is above ${v.toFixed(2)}.`,
};
const SIGNS = { proportion: "θ", margin: "θ", patches: "m", score: "score" };

function slider(model, given, point, show) {
  const stops = thresholds(model, given);
  const whole = given.kind === "patches";
  const [low, high] = [Math.min(stops[0], given.value), Math.max(stops.at(-1), given.value)];
  const words = h("p", { id: "operating-words", "aria-live": "polite" });
  const input = h("input", { type: "range", id: "operating", min: String(low), max: String(high),
    step: whole ? "1" : String((high - low) / 200), value: String(point.value),
    "aria-label": `Where to draw the line for ${model.classes[1]}`, oninput: () => set(Number(input.value)) });
  const say = (value) => {
    words.textContent = `${SIGNS[given.kind]} = ${whole ? value : value.toFixed(3)}. ` +
      MEANINGS[given.kind](value, model.classes[1], given.rises === false ? "less" : "more");
  };
  const set = (value) => {
    point.value = whole ? Math.round(value) : value;
    input.value = String(value);
    say(point.value);
    input.setAttribute("aria-valuetext", words.textContent);
    show();
  };
  const [other, name] = model.classes;
  const ends = [`fewer misses of ${name}`, `fewer false alarms of ${name}`];
  if (given.rises === false) ends.reverse();
  const element = h("div", { class: "operating" },
    h("p", { class: "soft" }, `Drag the point on the curve, or the slider. A miss is ${name} that is called ${other}, a false alarm the reverse; fewer of one cost more of the other.`),
    h("div", { class: "ends" }, ends.map((end) => h("span", {}, end))), input, words,
    h("button", { onclick: () => set(given.value) }, "Back to the model's own"),
    h("p", { class: "soft" }, "Downloads and the images you look at go by the point chosen here. A line chosen on test images makes them look ",
      "better than new ones will: check it on further patients."));
  say(point.value);
  return { element, set };
}

function byPatient(model, rows) {
  const patients = [...new Set(rows.map((row) => row.patient))].sort();
  const lines = patients.map((patient) => {
    const own = rows.filter((row) => row.patient === patient);
    return { patient, own, wrong: own.filter((row) => row.answer !== row.label) };
  }).sort((a, b) => b.wrong.length - a.wrong.length);
  const table = (some) => h("table", { class: "patients-table" },
    h("tr", {}, h("th", {}, "patient"), h("th", {}, `${unit(rows)}s`), h("th", {}, "right"), h("th", {}, "wrong answers")),
    some.map(({ patient, own, wrong }) => h("tr", {}, h("td", {}, patient), h("td", {}, String(own.length)),
      h("td", {}, String(own.length - wrong.length)),
      h("td", {}, wrong.length ? wrong.map((row) => imageLink(model, row)) : "none"))));
  const faulty = lines.filter(({ wrong }) => wrong.length);
  if (lines.length <= 8) return table(lines);
  return h("div", {}, faulty.length ? table(faulty) : null, h("details", {},
    h("summary", {}, count(lines.length - faulty.length, "patient"), " without a wrong answer"),
    table(lines.slice(faulty.length))));
}

function imageLink(model, row) {
  return h("a", { class: "image-link", href: `#/look/${model.id}/${model.data}/${row.look ?? row.image}` },
    `${row.name.split("/").pop()}: ${row.label}, called ${row.answer}`);
}

// --- what changed -----------------------------------------------------------------------------------

const USES = { unused: ": not learnt from, as its patient is kept for testing", truth: ": a test image, which is measured against this, not learnt from",
  gone: ": the image is gone" };

/** Both models on the images that both were tested on, against the same labels. */
function changes(model) {
  const { before } = model;
  const rows = before.images;
  const right = (key) => rows.filter((row) => row[key] === row.label).length;
  const list = (items, none) => (items.length ? h("ul", {}, items.map((item) => h("li", {}, item))) : none ? h("p", {}, none) : null);
  const answers = rows.filter((row) => row.answer_before !== row.answer)
    .map((row) => [imageLink(model, row), ` (before: ${row.answer_before ?? "no answer"})`]);
  const labels = rows.filter((row) => row.label_before !== row.label);
  const marks = model.corrections.map((c) => `${c.name}: ${c.box ? "a region marked as " : c.label ? "now " : ""}${c.label ?? "left out"}${USES[c.use] ?? ""}`);
  return h("section", { class: "card", id: "changes" }, h("h2", {}, "What changed"),
    h("div", { class: "row" },
      h("div", {}, h("h3", {}, "You corrected"), list(marks, "nothing")),
      h("div", {}, h("h3", {}, `On the ${count(rows.length, "image")} that both were tested on`),
        rows.length ? h("p", { id: "before-now" }, `Right before: ${right("answer_before")} of ${rows.length}. `,
          h("b", {}, `Now: ${right("answer")} of ${rows.length}.`)) : h("p", {}, "Nothing can be compared."),
        model.is_detector ? overlapChange(model) : null,
        list(answers, rows.length ? "No answer changed." : ""),
        labels.length ? h("div", { class: "warning", id: "relabelled" }, h("b", {}, `${count(labels.length, "label")} of these changed in between. `),
          "Both models are measured against the labels of now, so that a changed label is no progress:",
          list(labels.map((row) => `${row.name}: ${row.label_before} before, now ${row.label}`))) : null)),
    h("p", {}, h("a", { href: `#/model/${before.id}` }, "The model before")));
}

function overlapChange(model) {
  const { images, operating_point: then } = model.before;
  const shares = [[images.map((row) => row.overlap_before), then], [images.map((row) => row.overlap), model.results.operating_point]]
    .map(([overlaps, point]) => pooled(overlaps, point.value));
  if (!shares.every(Boolean)) return h("p", {}, "How far regions overlap cannot be compared: a mask has changed in between, or is not known.");
  return h("p", { id: "overlap-change" }, `Overlap with the true regions (Dice) before: ${shares[0].dice.toFixed(2)}. `, h("b", {}, `Now: ${shares[1].dice.toFixed(2)}.`));
}

// --- what it has learnt -----------------------------------------------------------------------------

function learnt(model) {
  if (!model.atoms.length) {
    return h("section", {}, h("p", { class: "soft" }, "This method has no building blocks that could be shown."));
  }
  const users = h("div", { class: "users", id: "atom-users", "aria-live": "polite" });
  const show = guarded(async (atom, name) => {
    const { patches } = await get(`/api/jobs/${model.id}/atoms/${atom}`);
    users.replaceChildren(h("h3", {}, `Training patches that use this block of ${name} most`),
      patches.length ? h("div", { class: "thumbs" }, patches.map((p) => patchFigure(model.id, p, `weight ${p.weight.toFixed(2)}`)))
        : h("p", { class: "soft" }, "No kept patch uses it."));
  });
  const sheet = (entry) => h("div", {}, h("h3", {}, classTag(model.classes, entry.name),
    h("span", { class: "soft" }, `  ${Math.min(entry.shown.length, entry.count)} of ${entry.count}`)),
    h("div", { class: "atoms" }, entry.shown.map((atom) => h("button", {
      title: `Building block ${atom + 1} of ${entry.name}: who uses it?`, onclick: () => show(atom, entry.name) },
      entry.pictures ? h("img", { src: `/api/jobs/${model.id}/atoms/${atom}.png`, alt: `building block ${atom + 1}`, loading: "lazy" })
        : String(atom + 1)))));
  return h("section", {}, h("h2", {}, "What it has learnt"),
    h("p", {}, "The building blocks (atoms) each class uses most. A patch is rebuilt from a few of them; ",
      "the class whose blocks rebuild it best wins it. Choose one to see the patches that use it. ",
      "Two pictures side by side: the patch, and its surroundings at a coarser scale. ",
      "Blocks that are no pictures, as with embeddings, are shown as the patch that uses them most."),
    h("div", { class: "row" }, model.atoms.map(sheet)), users);
}

export function patchFigure(jobId, patch, words) {
  return h("figure", { class: "patch" },
    h("img", { src: `/api/jobs/${jobId}/patches/${patch.patch}.jpg`, alt: `training patch of ${patch.name}`, loading: "lazy" }),
    h("figcaption", {}, h("b", {}, patch.label), h("span", {}, patch.patient), h("span", { class: "soft" }, words)));
}

/** Of the tested images, and one warning where they were taken for granted. */
function pixelSizes(model) {
  const counts = new Map();
  (model.results?.images ?? []).filter((row) => row.mpp_from).forEach((row) => {
    const key = JSON.stringify([row.mpp, row.mpp_from]);
    counts.set(key, (counts.get(key) ?? 0) + 1);
  });
  if (!counts.size) return h("section", {});
  const sizes = [...counts].map(([key, n_images]) => ({ mpp: JSON.parse(key)[0], from: JSON.parse(key)[1], n_images }));
  return h("section", {}, h("h2", {}, "Pixel sizes of the test images"),
    model.warnings.map((text) => h("p", { class: "warning" }, h("b", {}, "Warning: "), text[0].toUpperCase() + text.slice(1))),
    sizesTable(sizes));
}

function card(model) {
  return h("section", {}, h("h2", {}, "Model card"), h("table", { class: "card-table" },
    model.card.map(([name, words]) => h("tr", {}, h("th", {}, name), h("td", {}, words)))));
}
