// Model: how good it is on unseen patients, where the line is drawn, what it has learnt.
import { choice, classTag, get, guarded, h, post, takeColours } from "../dom.js";
import { go, here, lookWithModel } from "../way.js";
import { sizesTable } from "./about.js";
import { accuracy } from "./accuracy.js";
import { changes } from "./changes.js";
import { modelsOf } from "./models.js";

export async function showModel(content, [id], session) {
  const jobId = id ?? here.job;
  if (!jobId) {
    content.append(h("p", {}, "There is no model yet. ", h("a", { href: "#/train" }, "Train a model first.")));
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
  else if (model.opened) content.append(h("p", { class: "warning", id: "from-file" }, `This model comes from the file ${model.name}: its accuracy on your images is unknown. `, remove(model)));
  else content.append(h("p", { class: "warning" }, "The accuracy of this model is unknown: there was no test patient."));
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
    here.data ? h("a", { class: "button main", href: `#/look/${model.id}/${here.data}`, onclick: lookWithModel }, "Show images") : null);
}

/** Of a model from a file only our copy goes. */
function remove(model) {
  return h("button", { id: "remove-model", onclick: guarded(async () => {
    await post(`/api/jobs/${model.id}/delete`);
    here.job = null;
    go("data");
  }) }, "Remove from the list");
}

// --- what it has learnt -----------------------------------------------------------------------------

function learnt(model) {
  if (!model.atoms.length) {
    return h("section", {}, h("p", { class: "soft" }, "This method has no atoms."));
  }
  const users = h("div", { class: "users", id: "atom-users", "aria-live": "polite" });
  const show = guarded(async (atom, name) => {
    const { patches } = await get(`/api/jobs/${model.id}/atoms/${atom}`);
    users.replaceChildren(h("h3", {}, `Training patches with the largest weights of this atom of ${name}`),
      patches.length ? h("div", { class: "thumbs" }, patches.map((p) => patchFigure(model.id, p, `weight ${p.weight.toFixed(2)}`)))
        : h("p", { class: "soft" }, "No stored patch uses this atom."));
  });
  const sheet = (entry) => h("div", {}, h("h3", {}, classTag(model.classes, entry.name),
    h("span", { class: "soft" }, `  ${Math.min(entry.shown.length, entry.count)} of ${entry.count}`)),
    h("div", { class: "atoms" }, entry.shown.map((atom) => h("button", {
      title: `Atom ${atom + 1} of ${entry.name}: show the patches that use it`, onclick: () => show(atom, entry.name) },
      entry.pictures ? h("img", { src: `/api/jobs/${model.id}/atoms/${atom}.png`, alt: `atom ${atom + 1}`, loading: "lazy" })
        : String(atom + 1)))));
  return h("section", {}, h("h2", {}, "Atoms"),
    h("p", {}, "The most used atoms of each class. Each patch is approximated by a linear combination of a few atoms; ",
      "its predicted class is the class with the smallest reconstruction error. Click an atom to see the patches that use it. ",
      "Two pictures of an atom show the pattern of a patch (left) and of its surroundings at lower magnification (right). ",
      "Atoms of encoder features are shown as the patch with the largest weight."),
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
