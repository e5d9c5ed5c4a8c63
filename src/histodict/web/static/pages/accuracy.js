// Accuracy of a model on its test images: counts, intervals by patient, decision threshold.
import { roc } from "../charts.js";
import { classTag, count, get, guarded, h } from "../dom.js";

const FIGURES_MS = 150; // delay after the last movement of the slider before intervals are requested

const ROUNDING = 1e-9;

/** Is this image called the second class? The same as OperatingPoint.is_positive says. */
function isPositive(value, threshold, point) {
  const gap = Math.abs(value - threshold);
  if (gap <= ROUNDING * Math.max(1, Math.abs(value), Math.abs(threshold))) return point.kind === "patches";
  return point.higher_is_positive === false ? value < threshold : value > threshold;
}

function answersAt(model, threshold) {
  const { operating_point: point, images } = model.results;
  return images.filter((row) => row.answer !== null).map((row) => ({
    ...row,
    is_uncertain: Boolean(row.is_uncertain) && (!point || threshold === point.value),
    answer: point ? model.classes[Number(isPositive(row.value, threshold, point))] : row.answer,
  }));
}

/** Whether a row is an annotated part of an image instead of a whole image. */
const isPart = (row) => Boolean(row.look) && row.look !== row.image;
const unit = (rows) => (rows.some(isPart) ? "part" : "image");

export function accuracy(model, point) {
  const { operating_point: given, images } = model.results;
  const failed = images.filter((row) => row.answer === null);
  const title = h("h2", {});
  const tuned = h("div", { id: "tuned-place", "aria-live": "polite" });
  const table = h("div", { id: "confusion", "aria-live": "polite" });
  const patients = h("div", {});
  const overlaps = h("div", { id: "overlap", "aria-live": "polite" });
  const position = h("div", {});
  let [chart, asking] = [null, 0];
  const showFigures = (rows, figures) => {
    table.replaceChildren(confusion(model.classes, rows, figures));
    if (model.is_detector) overlaps.replaceChildren(overlapView(model, rows, point.value, figures));
  };
  const show = () => {
    const rows = answersAt(model, point.value);
    const isMoved = given && point.value !== given.value;
    title.textContent = isMoved ? "Accuracy at the threshold you chose on these test images" : "Accuracy on unseen patients";
    tuned.replaceChildren(...(isMoved ? [tunedNote(model, given)] : []));
    showFigures(rows, isMoved ? null : model.figures);
    clearTimeout(asking);
    if (isMoved) {
      const asked = point.value;
      asking = setTimeout(guarded(async () => {
        const figures = await get(`/api/jobs/${model.id}/figures?point=${asked}`);
        if (point.value === asked) showFigures(rows, figures);
      }), FIGURES_MS);
    }
    patients.replaceChildren(byPatient(model, rows));
    if (chart) {
      const [alarm, miss] = rates(rows, model.classes[1]);
      chart.place(alarm, miss);
    }
  };
  const parts = [h("div", {}, h("h3", {}, model.is_detector ? "Confusion matrix, by image" : "Confusion matrix"), table)];
  const missing = model.classes.filter((name) => !images.some((row) => row.label === name));
  if (missing.length) {
    parts.push(h("p", { class: "warning", id: "untested" }, `No test image has the class ${missing.join(" or ")}: `,
      "the error rate on such images is unknown, and the accuracy on the other images is of little use."));
  } else if (given && model.classes.length === 2) {
    const control = slider(model, given, point, show);
    chart = roc(rocPoints(model, given), model.classes[1], control.set);
    position.append(control.element);
    parts.push(h("div", {}, h("h3", {}, "Decision threshold"), h("div", { class: "row" }, chart.drawing, position)));
  }
  show();
  return h("section", {}, title, tuned,
    model.selection ? h("p", { class: "soft", id: "selection" }, `${model.selection}.`) : null,
    images.some(isPart) ? h("p", { class: "soft", id: "parts" }, "The test uses annotated tissue only, one part per class and image. The accuracy on other tissue is unknown.") : null,
    failed.length ? h("div", { class: "warning", id: "failed" }, h("b", {}, `${count(failed.length, "image")} without a prediction:`),
      h("ul", {}, failed.map((row) => h("li", {}, h("b", {}, row.name), `: ${row.failure ?? NO_TISSUE}`)))) : null,
    overlaps, h("div", { class: "row" }, parts), h("h3", {}, "By patient"), patients);
}

/** How far found and true regions overlap, of all images together: see region_overlap.py. */
export function pooled(overlaps, least) {
  if (!overlaps.length || overlaps.some((one) => !one?.[least - 1])) return null;
  const [hits, misses, alarms] = [0, 1, 2].map((k) => overlaps.reduce((sum, one) => sum + one[least - 1][k], 0));
  const union = hits + misses + alarms;
  return union ? { dice: (2 * hits) / (union + hits), iou: hits / union } : null;
}

/** Warning about a threshold chosen on the test images, with the score at the trained threshold. */
function tunedNote(model, given) {
  const rows = answersAt(model, given.value);
  const { mean, isWhole } = shareRight(model.classes, rows);
  const right = rows.filter((row) => row.answer === row.label).length;
  const figure = isWhole ? `${percent(mean)} balanced accuracy${intervalOf(model.figures?.balanced)}` : `${right} of ${rows.length} correct`;
  return h("div", { class: "warning", id: "tuned" }, h("b", {}, "Tuned on these images; not an estimate for unseen patients. "),
    `As trained (${SIGNS[given.kind]} = ${given.kind === "patches" ? given.value : given.value.toFixed(3)}): `, h("b", { id: "untuned" }, figure), ". Quote that score, or test the model on further patients.");
}

function overlapView(model, rows, least, figures) {
  const name = model.classes[1];
  const all = pooled(rows.map((row) => row.overlap), least);
  const words = (share) => (share ? [h("td", {}, share.dice.toFixed(2)), h("td", {}, share.iou.toFixed(2))]
    : [h("td", { colspan: "2" }, "no region, none found")]);
  if (rows.some((row) => !row.overlap)) return h("p", { class: "soft" }, "The overlap with the true regions is unknown. Train again to measure it.");
  return h("div", {}, h("h3", {}, `Regions of ${name}: overlap with the true regions`),
    h("p", {}, all ? [h("b", {}, `Dice ${all.dice.toFixed(2)}`), intervalOf(figures?.overlap?.Dice, 1, figures), ", ", h("b", {}, `IoU ${all.iou.toFixed(2)}`), intervalOf(figures?.overlap?.IoU, 1, figures), ` over ${count(rows.length, "image")}: 1 is identical, 0 is disjoint. `]
      : "There are no true regions and none were found. ", "Tissue patches are compared with the masks; an image without mask counts as a single class."),
    h("table", { class: "counts" }, h("tr", {}, h("th", {}, "image"), h("th", {}, "Dice"), h("th", {}, "IoU")),
      rows.map((row) => h("tr", {}, h("td", {}, h("a", { href: `#/look/${model.id}/${model.data}/${row.look ?? row.image}` }, row.name.split("/").pop())),
        words(pooled([row.overlap], least))))));
}

const NO_TISSUE = "no tissue found: background, or unstained mucin or lumen";

const percent = (share) => `${Math.round(100 * share)} %`;

/** " (95 % interval by patient 55 to 88 %)"; empty while it is being computed. */
function intervalOf(range, scale = 100, figures = true) {
  if (!figures || range === undefined) return "";
  if (range === null) return " (no interval)";
  const [low, high] = [range.low, range.high].map((end) => (scale === 1 ? end.toFixed(2) : Math.round(scale * end)));
  return ` (95 % interval by patient ${low} to ${high}${scale === 1 ? "" : " %"})`;
}

function shareRight(classes, rows) {
  const others = rows.map((row) => row.label).filter((label) => !classes.includes(label)); // never learnt
  const truths = [...classes, ...new Set(others.sort())];
  const shares = truths.map((name) => {
    const own = rows.filter((row) => row.label === name);
    return own.length ? own.filter((row) => row.answer === name).length / own.length : null;
  }).filter((share) => share !== null);
  const mean = shares.reduce((a, b) => a + b, 0) / shares.length;
  return { truths, mean, isWhole: classes.every((name) => rows.some((row) => row.label === name)) };
}

function confusion(classes, rows, figures) {
  const cell = (truth, answer) => rows.filter((row) => row.label === truth && row.answer === answer).length;
  const { truths, mean, isWhole } = shareRight(classes, rows);
  const right = rows.filter((row) => row.answer === row.label).length;
  return h("div", {},
    h("table", { class: "confusion" },
      h("tr", {}, h("th", {}, "true class ↓ / predicted class →"), classes.map((name) => h("th", {}, classTag(classes, name)))),
      truths.map((truth) => h("tr", {}, h("th", {}, classes.includes(truth) ? classTag(classes, truth) : truth || "no label"), classes.map((answer) => {
        const n = cell(truth, answer);
        return h("td", { class: truth === answer ? "hit" : n ? "miss" : "", "data-cell": `${truth}/${answer}` }, String(n));
      })))),
    isWhole ? h("p", {}, h("b", { id: "balanced" }, percent(mean)), " balanced accuracy",
      h("span", { id: "balanced-interval" }, intervalOf(figures?.balanced)), `. ${patientCounts(truths, rows)}`)
      : h("p", {}, `${right} of ${count(rows.length, unit(rows))} correct. ${patientCounts(truths, rows)}`),
    classes.length === 2 ? found(classes, rows, figures) : classes.length > 2 ? recalls(classes, figures) : null, fewPatients(figures));
}

const patientsOf = (rows) => new Set(rows.map((row) => row.patient)).size;

/** "22 images of malignant from 2 patients, …" */
function patientCounts(truths, rows) {
  const parts = truths.map((name) => [name, rows.filter((row) => row.label === name)]).filter(([, own]) => own.length)
    .map(([name, own]) => `${count(own.length, unit(rows))} of ${name || "no label"} from ${count(patientsOf(own), "patient")}`);
  return `Tested: ${parts.join(", ")}.`;
}

/** Warning about classes with few patients, from few_patients_warning. */
function fewPatients(figures) {
  const text = figures?.few_patients;
  return text ? h("p", { class: "changed", id: "few-patients" }, `${text[0].toUpperCase()}${text.slice(1)}.`) : null;
}

/** Recall of each class, for more than two classes. */
function recalls(classes, figures) {
  return h("ul", { class: "plain", id: "recalls" }, (figures?.classes ?? []).map((one) => h("li", {}, classTag(classes, one.name),
    ` recall ${one.n_right} of ${one.n_images} (${percent(one.n_right / one.n_images)}`, intervalOf(one.interval), ")")));
}

/** Sensitivity and specificity for the positive class. */
function found(classes, rows, figures) {
  const share = (own, name) => `${own.filter((row) => row.answer === name).length} of ${own.length}`;
  const [others, own] = classes.map((name) => rows.filter((row) => row.label === name));
  const shown = (own, name) => (own.length ? percent(own.filter((row) => row.answer === name).length / own.length) : "unknown");
  const range = (name) => intervalOf(figures?.classes.find((one) => one.name === name)?.interval);
  return h("p", { id: "sensitivity" }, classTag(classes, classes[1]), ": sensitivity ",
    h("b", {}, shown(own, classes[1])), `, ${share(own, classes[1])}`, range(classes[1]), "; specificity ",
    h("b", {}, shown(others, classes[0])), `, ${share(others, classes[0])}`, range(classes[0]), ".");
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
  proportion: (v, name, than) => `An image is predicted as ${name} if ${than} than ${(100 * v).toFixed(1)} % of its patches are.`,
  margin: (v, name, than) => `An image is predicted as ${name} if the mean score of its patches for ${name} is ${than} than this.`,
  patches: (v, name) => `A region of ${name} has at least ${count(v, "connected patch").replace("patchs", "patches")}.`,
  score: (v, name) => `An image is predicted as ${name} if its score is above ${v.toFixed(2)}.`,
};
const SIGNS = { proportion: "θ", margin: "θ", patches: "m", score: "score" };

function slider(model, given, point, show) {
  const stops = thresholds(model, given);
  const whole = given.kind === "patches";
  const [low, high] = [Math.min(stops[0], given.value), Math.max(stops.at(-1), given.value)];
  const words = h("p", { id: "operating-words", "aria-live": "polite" });
  const input = h("input", { type: "range", id: "operating", min: String(low), max: String(high),
    step: whole ? "1" : String((high - low) / 200), value: String(point.value),
    "aria-label": `Decision threshold for ${model.classes[1]}`, oninput: () => set(Number(input.value)) });
  const say = (value) => {
    words.textContent = `${SIGNS[given.kind]} = ${whole ? value : value.toFixed(3)}. ` +
      MEANINGS[given.kind](value, model.classes[1], given.higher_is_positive === false ? "less" : "more");
  };
  const set = (value) => {
    point.value = whole ? Math.round(value) : value;
    input.value = String(value);
    say(point.value);
    input.setAttribute("aria-valuetext", words.textContent);
    show();
  };
  const [other, name] = model.classes;
  const ends = [`fewer false negatives of ${name}`, `fewer false positives of ${name}`];
  if (given.higher_is_positive === false) ends.reverse();
  const element = h("div", { class: "operating" },
    h("p", { class: "soft" }, `Drag the point on the curve, or the slider. A false negative is ${name} predicted as ${other}, a false positive is the reverse.`),
    h("div", { class: "ends" }, ends.map((end) => h("span", {}, end))), input, words,
    h("button", { onclick: () => set(given.value) }, "Reset to the threshold of the model"),
    h("p", { class: "soft" }, "This threshold also applies to downloads and to the maps. Scores at a threshold chosen on the test images are ",
      "too optimistic: test the threshold on further patients."));
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
    h("tr", {}, h("th", {}, "patient"), h("th", {}, `${unit(rows)}s`), h("th", {}, "correct"), h("th", {}, "wrong predictions")),
    some.map(({ patient, own, wrong }) => h("tr", {}, h("td", {}, patient), h("td", {}, String(own.length)),
      h("td", {}, String(own.length - wrong.length)),
      h("td", {}, wrong.length ? wrong.map((row) => imageLink(model, row)) : "none"))));
  const faulty = lines.filter(({ wrong }) => wrong.length);
  if (lines.length <= 8) return table(lines);
  return h("div", {}, faulty.length ? table(faulty) : null, h("details", {},
    h("summary", {}, count(lines.length - faulty.length, "patient"), " without wrong predictions"),
    table(lines.slice(faulty.length))));
}

export function imageLink(model, row) {
  return h("a", { class: "image-link", href: `#/look/${model.id}/${model.data}/${row.look ?? row.image}` },
    `${row.name.split("/").pop()}: ${row.label}, predicted ${row.is_uncertain ? `uncertain (best guess: ${row.answer})` : row.answer}`);
}
