// What to label next: images, and parts of the one that is looked at, where the model is in doubt and which look
// unlike what it has learnt from.
import { count, get, guarded, h, once } from "../dom.js";

const MOST_JUDGED = 24; // images that the model looks at before it suggests some

export function suggestBar(state) {
  if (!state.job) return "";
  const place = h("div", { id: "suggested", "aria-live": "polite" });
  const parts = h("div", { id: "suggested-fields", "aria-live": "polite" });
  return h("section", { id: "suggest" }, h("h2", {}, "What to label next"),
    h("p", { class: "soft" }, "Images and fields with uncertain predictions, or unlike the training images."),
    h("div", { class: "buttons" },
      h("button", { id: "suggest-images", onclick: once(() => suggestImages(state, place)) }, "Suggest images"),
      h("button", { id: "suggest-fields", onclick: once(() => suggestFields(state, parts)) }, "Suggest fields of this image")),
    place, parts);
}

/** The model looks at some images first; it goes on as long as the page is there. */
async function suggestImages(state, place) {
  const url = `/api/jobs/${state.job}/suggest/${state.data.id}`;
  place.replaceChildren(h("p", { class: "soft" }, "Comparing the images…"));
  let found = await get(url);
  const asked = new Set();
  const left = () => found.next.filter((id) => !asked.has(id));
  while (!state.stopped && asked.size < MOST_JUDGED && left().length) {
    for (const id of left()) {
      if (state.stopped || asked.size >= MOST_JUDGED) break;
      asked.add(id);
      place.replaceChildren(h("p", { class: "soft" }, `Predicting images: ${asked.size} of up to ${MOST_JUDGED}…`));
      await get(`/api/jobs/${state.job}/look/${state.data.id}/${id}`).catch(() => null); // one that cannot be read
    }
    found = await get(url);
  }
  if (!state.stopped) place.replaceChildren(...imagesView(state, found));
}

function imagesView(state, found) {
  const unread = found.unread ? [h("p", { class: "warning" }, `${count(found.unread, "image")} could not be read. Repair or exclude ${found.unread === 1 ? "it" : "them"}.`)] : [];
  if (!found.of) return [h("p", {}, "No suggestion: all images of this data set are used for training or test, or labelled by you.")];
  if (!found.suggested.length) return [...unread, h("p", {}, "No other image has a prediction yet. Open large images to compute their maps.")];
  const percent = (share) => `${Math.round(100 * share)} %`;
  return [...unread, h("p", { class: "soft" }, `Of ${count(found.judged, "image")} with a prediction, of ${found.of} not used for training or test:`),
    h("ul", { class: "plain suggestions" }, found.suggested.map((one) => h("li", {},
      h("img", { src: `/api/data/${state.data.id}/images/${one.image}/thumbnail.jpg`, alt: "", loading: "lazy" }),
      h("span", {}, h("a", { href: `#/look/${state.job}/${state.data.id}/${one.image}` }, one.name.split("/").pop()), h("br"),
        h("small", { class: "soft" }, `more uncertain than ${percent(one.doubt)}, less similar to training images than ${percent(one.novelty)} of them`))))),
    h("button", { class: "link", id: "judge-more", onclick: once(() => suggestImages(state, document.getElementById("suggested"))) }, "Predict more images")];
}

async function suggestFields(state, place) {
  const { fields } = await get(`${state.place}/fields`);
  if (!fields.length) return place.replaceChildren(h("p", {}, "There is no other field with enough tissue."));
  const show = guarded(([left, top, right, bottom]) => {
    const { viewer } = state;
    const side = Math.max(right - left, bottom - top);
    viewer.selection = { x: left, y: top, side };
    const scale = (0.7 * Math.min(viewer.canvas.clientWidth, viewer.canvas.clientHeight)) / side;
    Object.assign(viewer, { x: (left + right) / 2, y: (top + bottom) / 2, scale });
    viewer.refresh();
  });
  place.replaceChildren(h("p", { class: "buttons" }, fields.map((field, i) =>
    h("button", { class: "suggested-field", onclick: () => show(field.box) }, `Field ${i + 1}`))));
  show(fields[0].box);
}
