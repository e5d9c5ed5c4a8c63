// Comparison of a model with the previous one, on the images that both were tested on.
import { count, h } from "../dom.js";
import { imageLink, pooled } from "./accuracy.js";

const USES = { unused: ": not used for training, as its patient is in the test set", truth: ": new true label of a test image, not used for training",
  gone: ": the image no longer exists" };

/** Both models on the images that both were tested on, against the same labels. */
export function changes(model) {
  const { before } = model;
  const rows = before.images;
  const right = (key) => rows.filter((row) => row[key] === row.label).length;
  const list = (items, none) => (items.length ? h("ul", {}, items.map((item) => h("li", {}, item))) : none ? h("p", {}, none) : null);
  const answers = rows.filter((row) => row.answer_before !== row.answer)
    .map((row) => [imageLink(model, row), ` (before: ${row.answer_before ?? "no prediction"})`]);
  const labels = rows.filter((row) => row.label_before !== row.label);
  const marks = model.corrections.map((c) => `${c.name}: ${c.box ? "region labelled " : c.label ? "now " : ""}${c.label ?? "excluded"}${USES[c.use] ?? ""}`);
  return h("section", { class: "card", id: "changes" }, h("h2", {}, "Changes since the previous model"),
    h("div", { class: "row" },
      h("div", {}, h("h3", {}, "Corrections"), list(marks, "none")),
      h("div", {}, h("h3", {}, `On the ${count(rows.length, "image")} tested with both models`),
        rows.length ? h("p", { id: "before-now" }, `Correct before: ${right("answer_before")} of ${rows.length}. `,
          h("b", {}, `Now: ${right("answer")} of ${rows.length}.`), " ", h("span", { id: "chance" }, chance(before, right("answer") - right("answer_before")))) : h("p", {}, "There are no common test images."),
        model.is_detector ? overlapChange(model) : null,
        list(answers, rows.length ? "No prediction changed." : ""),
        labels.length ? h("div", { class: "warning", id: "relabelled" }, h("b", {}, `${count(labels.length, "label")} of these changed since then. `),
          "Both models are scored with the current labels. A wrong correction makes these scores wrong. ",
          unchanged(rows),
          list(labels.map((row) => `${row.name}: ${row.label_before} before, now ${row.label}`))) : null)),
    h("p", {}, h("a", { href: `#/model/${before.id}` }, "Previous model")));
}

/** Whether the difference may be chance, by a bootstrap interval over patients. */
function chance({ difference }, more) {
  if (!difference) return more ? "This difference may be random: there are too few patients for an interval." : "";
  if (!more) return "The number of correct predictions did not increase.";
  const points = (share) => `${share > 0 ? "+" : share < 0 ? "−" : ""}${Math.abs(Math.round(100 * share))}`;
  const range = `${points(difference.value)} percentage points, 95 % interval by patient ${points(difference.low)} to ${points(difference.high)}`;
  return difference.low <= 0 && difference.high >= 0 ? `This difference is not significant (${range}).` : `This difference is significant (${range}).`;
}

/** Correct predictions of images whose label did not change. */
function unchanged(rows) {
  const same = rows.filter((row) => row.label_before === row.label);
  const right = (key) => same.filter((row) => row[key] === row.label).length;
  return same.length ? h("span", { id: "unchanged" }, `On the ${count(same.length, "image")} with the same label: correct before ${right("answer_before")}, now ${right("answer")}. `) : "";
}

function overlapChange(model) {
  const { images, operating_point: then } = model.before;
  const shares = [[images.map((row) => row.overlap_before), then], [images.map((row) => row.overlap), model.results.operating_point]]
    .map(([overlaps, point]) => pooled(overlaps, point.value));
  if (!shares.every(Boolean)) return h("p", {}, "The overlap of regions cannot be compared: a mask has changed since then, or is unknown.");
  return h("p", { id: "overlap-change" }, `Overlap with the true regions (Dice) before: ${shares[0].dice.toFixed(2)}. `, h("b", {}, `Now: ${shares[1].dice.toFixed(2)}.`));
}
