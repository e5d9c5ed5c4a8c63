// The why of a call: what each class leaves over, the building blocks used, similar training patches.
import { classTag, colourIn, count, h, s } from "../dom.js";
import { patchFigure } from "./model.js";

export function whyView(job, model, found) {
  if (!found.winner) return [h("h2", {}, "Explanation of a patch"), h("p", {}, found.words)];
  return [
    h("h2", {}, "Explanation: ", classTag(model.classes, found.winner)),
    h("p", { id: "why-words" }, found.words),
    leftOver(model, found), rebuilt(found), blocks(job, model, found), similar(job, found),
  ];
}

/** A bar per class; the shortest wins. */
function leftOver(model, found) {
  const values = found.classes.map((entry) => entry.residual);
  const [least, most] = [Math.min(0, ...values), Math.max(0, ...values)];
  const width = (value) => Math.max(1, (130 * (value - least)) / (most - least || 1));
  const rows = found.classes.map((entry) => h("tr", {},
    h("td", {}, classTag(model.classes, entry.name)),
    h("td", {}, s("svg", { width: 130, height: 14, "aria-hidden": "true" },
      s("rect", { width: width(entry.residual), height: 14, rx: 2, fill: colourIn(model.classes, entry.name) }))),
    h("td", {}, entry.residual.toFixed(3))));
  return h("div", {}, h("h3", {}, found.is_residual ? "Residual per class (the smallest is the predicted class)" : "Distance to each class (the smallest is the predicted class)"), h("table", { class: "residuals", id: "residuals" }, rows));
}

function rebuilt(found) {
  const figure = (uri, words) => h("figure", {}, h("img", { src: uri, alt: words }), h("figcaption", {}, words));
  const figures = [figure(found.picture, "patch")];
  if (found.vector) figures.push(figure(found.vector, "preprocessed"));
  found.classes.filter((entry) => entry.rebuilt).forEach((entry) => figures.push(figure(entry.rebuilt, `reconstruction by ${entry.name}`)));
  return h("div", {}, h("h3", {}, "Patch and reconstructions by class"), h("div", { class: "rebuilt" }, figures));
}

function blocks(job, model, found) {
  const pictures = model.atoms[0]?.pictures;
  const figures = found.atoms.map((entry) => h("figure", {},
    pictures ? h("img", { src: `/api/jobs/${job}/atoms/${entry.atom}.png`, alt: `atom ${entry.atom + 1}` }) : null,
    h("figcaption", {}, entry.class ? classTag(model.classes, entry.class) : `atom ${entry.atom + 1}`,
      entry.name ? ` ${entry.name} ` : null,
      h("b", {}, `${entry.weight < 0 ? "−" : "+"}${Math.abs(entry.weight).toFixed(2)}`))));
  const more = found.n_atoms_used - found.atoms.length;
  if (!found.atoms.length) return h("div", {});
  return h("div", {}, h("h3", {}, `${count(found.n_atoms_used, "atom")} used${more > 0 ? "; those with the largest weights" : ""}`),
    h("div", { class: "blocks", id: "why-atoms" }, figures));
}

function similar(job, found) {
  if (!found.similar.length) return h("div", {});
  return h("div", {}, h("h3", {}, "Training patches with similar atoms"),
    h("div", { class: "thumbs", id: "why-similar" },
      found.similar.map((patch) => patchFigure(job, patch, `${Math.round(100 * patch.likeness)} % similarity`))));
}
