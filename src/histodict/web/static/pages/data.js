// Data: choose a folder or table; see images by class and patient, counts and warnings.
import { fill } from "../chunks.js";
import { LEFT_OUT, choice, classTag, count, get, guarded, h, once, post } from "../dom.js";
import { go, here } from "../way.js";
import { about, watchChecks } from "./about.js";

export async function showData(content, [id], session) {
  const chosen = id ?? here.data;
  let stopped = false;
  let lost = null;
  const data = chosen ? await get(`/api/data/${chosen}`).catch((error) => { lost = error.message; }) : null;
  if (!data && !lost) content.append(h("p", { class: "lead" }, "Choose a folder with one sub-folder of images per class, or a table (CSV) with ",
    "the columns path, label and preferably patient. You can also choose a folder of slides without labels and annotate them."));
  content.append(chooser(session, !data));
  if (data) {
    here.data = data.id;
    const warnings = h("div", { class: "warnings", "aria-live": "polite" });
    const known = about(data, (_, isClass) => {
      if (isClass) dispatchEvent(new Event("hashchange")); // its colours are everywhere
      else watchChecks(data, warnings, () => stopped);
    });
    content.append(heading(data, known.element), warnings, ...groups(data));
    watchChecks(data, warnings, () => stopped);
  } else if (lost) content.append(h("p", { class: "warning", id: "lost" }, h("b", {}, "Cannot open these images: "), lost));
  return () => { stopped = true; };
}

// --- choosing ----------------------------------------------------------------------------------

function chooser(session, open) {
  const list = h("div", {});
  const earlier = session.data.map((data) =>
    h("li", {}, h("a", { href: `#/data/${data.id}` }, data.name), h("span", { class: "soft" },
      data.id === session.demo ? " demonstration with synthetic tissue" : ` ${data.relative_path}`)));
  const box = h("details", { class: "card", open }, h("summary", {}, "Choose data"),
    h("div", { class: "columns" },
      h("div", {}, h("h3", {}, "On this machine"), list),
      earlier.length ? h("div", {}, h("h3", {}, "Recently opened"), h("ul", { class: "plain" }, earlier)) : null),
    h("p", { class: "soft" }, "Only the folders named at the start of the server are accessible. ",
      "Your files are neither changed nor copied."));
  browse(list, session, 0, "");
  return box;
}

const browse = guarded(async (list, session, folderIndex, relativePath) => {
  const found = await get(`/api/folders?folder_index=${folderIndex}&relative_path=${encodeURIComponent(relativePath)}`);
  const join = (name) => (found.relative_path ? `${found.relative_path}/${name}` : name);
  const up = found.relative_path.split("/").slice(0, -1).join("/");
  const open = (path) => guarded(async () => {
    const { id } = await post("/api/data", { folder_index: folderIndex, relative_path: path });
    here.image = null;
    if (id === here.data && location.hash.includes(id)) dispatchEvent(new Event("hashchange"));
    else go("data", id);
  });
  const roots = session.folders.length > 1
    ? choice(session.folders.map((name, i) => [i, name]), folderIndex,
        (value) => browse(list, session, Number(value), ""), { "aria-label": "Data folder" })
    : null;
  list.replaceChildren(...[roots,
    h("p", {}, h("b", {}, [session.folders[folderIndex], found.relative_path].filter(Boolean).join("/")),
      found.n_images ? h("span", { class: "soft" }, `  ${count(found.n_images, "image")} here`) : null),
    h("ul", { class: "plain browser" },
      found.relative_path ? row("↑", "up", () => browse(list, session, folderIndex, up)) : null,
      found.folders.map((name) => row("▸", name, () => browse(list, session, folderIndex, join(name)))),
      found.tables.map((name) => row("▤", name, open(join(name)), "open this table")),
      found.models.map((name) => row("◆", name, openModel(folderIndex, join(name)), "open this model"))),
    h("button", { onclick: open(found.relative_path), class: "main" }, `Open this folder: ${found.name}`)].filter(Boolean));
});

const openModel = (folderIndex, relativePath) => guarded(async () => {
  const { id } = await post("/api/models", { folder_index: folderIndex, relative_path: relativePath });
  go("model", id);
});

function row(mark, name, onclick, title = "") {
  return h("li", {}, h("button", { class: "link", onclick, title }, `${mark} ${name}`));
}

// --- what there is ------------------------------------------------------------------------------

function heading(data, known) {
  const patients = (images) => new Set(images.map((image) => image.patient)).size;
  const rows = data.classes.map((name) => {
    const own = data.images.filter((image) => image.label === name);
    return h("tr", {}, h("td", {}, classTag(data.classes, name)), h("td", {}, String(own.length)),
      h("td", {}, String(patients(own))));
  });
  const table = h("table", { class: "counts" },
    h("tr", {}, h("th", {}, "class"), h("th", {}, "images"), h("th", {}, "patients")), rows,
    h("tr", { class: "total" }, h("td", {}, "total"), h("td", {}, String(data.images.length)),
      h("td", {}, String(patients(data.images)))));
  return h("div", { class: "split" },
    h("div", {}, h("h1", {}, data.name), h("p", { class: "soft" }, [".", data.name].includes(data.relative_path) ? "" : data.relative_path),
      h("p", { class: data.labelled ? "buttons" : "" }, data.labelled
        ? [h("a", { class: "button main", href: `#/train/${data.id}` }, "Train on these images"), drawInstead(data)]
        : [h("a", { class: "button main", href: `#/look/-/${data.id}`, id: "draw-on" }, "Annotate these images"),
            " These images have no labels: annotate tissue of each class on a few of them, then train."]),
      data.drawn?.classes.length > 1 ? h("p", {}, h("a", { class: "button", href: `#/train/${data.id}` }, "Train on the annotations")) : null,
      data.corrections.length
        ? h("p", { class: "changed" }, `${count(data.corrections.length, "correction")}, ` +
            "stored separately from the files and used in the next training.") : null),
    table, known);
}

/** Images with labels are learnt from by these; to draw on them is to leave the labels aside. */
export function drawInstead(data, image = null) {
  const open = once(async () => {
    const { id } = await post("/api/data", { folder_index: data.folder_index, relative_path: data.relative_path, bare: true });
    go("look", "-", id, ...(image ? [image] : []));
  });
  return h("button", { id: "draw-instead", onclick: open, title: "Opens the images as a separate data set without labels. The labels of this data set do not change." }, "Annotate without labels");
}

function groups(data) {
  const names = data.classes.length ? data.classes : [""];
  const rest = data.images.some((image) => !image.label) && data.classes.length ? [""] : [];
  return [...names, ...rest].map((name) => {
    const own = data.images.filter((image) => image.label === name);
    const patients = byPatient(own);
    const place = h("div", {});
    const thumbs = (into, images) => {
      into.className = "thumbs";
      fill(into, images, (image) => thumb(data, image));
      return into;
    };
    if (patients.length === own.length) thumbs(place, own);
    else {
      place.className = "patients";
      fill(place, patients, ([patient, images]) => h("div", { class: "patient" }, h("h3", {}, patient),
        thumbs(h("div", {}), images)), { sizeOf: ([, images]) => images.length });
    }
    return h("section", { class: "class-group" },
      h("h2", {}, name ? classTag(data.classes, name) : null,
        h("span", { class: "soft" }, `  ${count(own.length, "image")}${!name && rest.length ? " without a label" : ""}`)), place);
  });
}

/** [[patient, images], …] by name. */
function byPatient(images) {
  const found = new Map();
  images.forEach((image) => {
    if (!found.has(image.patient)) found.set(image.patient, []);
    found.get(image.patient).push(image);
  });
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1));
}

function thumb(data, image) {
  const own = data.corrections.find((c) => c.image === image.id && !c.box);
  const given = own ? own.label ?? LEFT_OUT : image.label;
  const card = h("figure", { class: given === image.label ? "" : "corrected" });
  const relabel = guarded(async (label) => {
    await post(`/api/data/${data.id}/correct`, { image: image.id, label: label === LEFT_OUT ? null : label, box: null });
    card.className = label === image.label ? "" : "corrected";
  });
  card.append(
    h("a", { href: `#/look/${here.job ?? "-"}/${data.id}/${image.id}`, title: `Open ${image.name}` },
      h("img", { src: `/api/data/${data.id}/images/${image.id}/thumbnail.jpg`, alt: image.name, loading: "lazy" })),
    h("figcaption", {}, h("span", { title: image.name }, image.name.split("/").pop()),
      data.classes.length > 1 && image.label
        ? choice([...data.classes.map((name) => [name, name]), [LEFT_OUT, "exclude"]], given, relabel,
            { "aria-label": `Class of ${image.name}` }) : null));
  return card;
}
