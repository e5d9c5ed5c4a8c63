// The images of a set, beside the one that is looked at: found by name, of thousands only those near the screen.
import { fill } from "../chunks.js";
import { h } from "../dom.js";

const MANY = 30; // from so many on they can be searched

/** A browser asks for few things at a time: the picture itself comes before its neighbours' thumbnails. */
function askFirst(url) {
  const picture = new Image();
  picture.fetchPriority = "high";
  picture.src = url;
}

/** The image with this id, or the first one without an id; undefined if it does not exist. */
export const imageOf = (data, id) => (id === undefined ? data.images[0] : data.images.find((image) => image.id === id));

/** Error page for an image that does not exist. */
export function missingImage(data, job) {
  return h("div", { class: "missing", id: "missing-image" }, h("h1", {}, "This image does not exist"),
    h("p", {}, `The address belongs to no image of ${data.name}: the image may have been renamed, moved or deleted.`),
    h("div", { class: "buttons" }, data.images.length ? h("a", { class: "button main", href: `#/look/${job ?? "-"}/${data.id}` }, `Show the images of ${data.name}`) : null,
      h("a", { class: "button", href: "#/data" }, "Choose other data")));
}

export function imageStrip({ data, chosen, job, base }) {
  askFirst(`${base}/tiles/0/0/0.jpg`);
  const list = h("div", { class: "strip-list" });
  const make = (image) => h("a", {
    href: `#/look/${job ?? "-"}/${data.id}/${image.id}`, title: `${image.name}: ${image.label || "no class"}`,
    "aria-current": image.id === chosen.id ? "true" : null },
    h("img", { src: `/api/data/${data.id}/images/${image.id}/thumbnail.jpg`, alt: "", loading: "lazy", fetchpriority: "low" }),
    h("span", {}, image.name.split("/").pop()));
  const show = (words) => {
    const wanted = words.toLowerCase();
    const own = data.images.filter((image) => `${image.name} ${image.label}`.toLowerCase().includes(wanted));
    fill(list, own, make, { show: chosen });
    if (!own.length) list.replaceChildren(h("p", { class: "soft" }, "No image name contains this text."));
  };
  show("");
  const search = data.images.length < MANY ? null : h("input", { type: "search", id: "find-image", placeholder: "Find…",
    "aria-label": `Find one of ${data.images.length} images by name or class`, oninput: (event) => show(event.target.value) });
  return h("nav", { class: "strip", "aria-label": "Images" }, search, list);
}
