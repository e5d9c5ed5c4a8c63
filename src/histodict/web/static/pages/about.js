// What is to be said of a data set before anybody trains: the class to be found, the size of a pixel,
// images that cannot be read, warnings. Shown by the data page and the training page.
import { become, choice, count, get, guarded, h, labelled, pause, post, sizeWords } from "../dom.js";

const HOW = {
  chosen: () => "Chosen by you.",
  "by its name": () => "Guessed from its name: choose the other class if this is wrong.",
  unknown: () => "It cannot be guessed from the names: choose the positive class before training.",
};

/** {element, saved}; `changed(data)` hears what is known now, `saved()` waits until it is stored. */
export function about(data, changed) {
  let storing = Promise.resolve();
  const element = h("div", { class: "fields about" });
  const say = (body) => {
    storing = guarded(async () => {
      Object.assign(data, await post(`/api/data/${data.id}/about`, body));
      fill();
      changed(data, "positive" in body);
    })();
    return storing;
  };
  const fill = () => element.replaceChildren(...[positiveField(data, say), sizeField(data, say)].filter(Boolean));
  fill();
  return { element, saved: () => storing };
}

function positiveField(data, say) {
  if (!data.positive) return null;
  const { name, how } = data.positive;
  const open = how === "unknown" ? [["", "choose…"]] : []; // else nobody could choose what stands there already
  const field = labelled("Positive class", choice([...open, ...data.learn_classes.map((c) => [c, c])], open.length ? "" : name,
    (positive) => positive && say({ positive }), { id: "positive" }),
    `${HOW[how]()} ${data.drawn ? "" : "Shown in orange. "}Sensitivity refers to this class.`);
  if (how === "unknown") field.classList.add("asked");
  return field;
}

function sizeField(data, say) {
  const input = h("input", { type: "text", inputmode: "decimal", id: "mpp", autocomplete: "off", value: data.mpp === null ? "" : String(data.mpp),
    onchange: () => say({ mpp: input.value.trim() === "" ? null : Number(input.value.replace(",", ".")) || input.value }) });
  return labelled("µm per pixel", input, "For images whose file and table give no pixel size.");
}

/** Asks for the check of the images until it is done or `isOver`, and shows what it finds. */
export async function watchChecks(data, place, isOver, choose = null) {
  let known = "";
  while (!isOver()) {
    const checks = await get(`/api/data/${data.id}/checks?check=${known}`).catch(() => null);
    known = checks?.check ?? "";
    const leaveOut = (image) => guarded(async () => {
      Object.assign(data, await post(`/api/data/${data.id}/correct`, { image: image.id, label: null, box: null }));
      watchChecks(data, place, isOver, choose);
    });
    if (checks && !isOver()) become(place, checksView(data, checks, choose, leaveOut));
    if (!checks || checks.ready) return;
    await pause(700);
  }
}

function checksView(data, checks, choose, leaveOut) {
  const upper = (text) => text[0].toUpperCase() + text.slice(1);
  const all = [...data.warnings, ...checks.warnings];
  const clean = checks.ready && !all.length && !checks.bad.length && !checks.refused.length;
  return [
    ...checks.refused.map((text) => h("p", { class: "warning refused" }, h("b", {}, "Training is not possible: "), text)),
    checks.bad.length ? badList(checks.bad, choose, (name) => {
      const image = data.images.find((entry) => entry.name === name);
      return image ? h("button", { class: "link", onclick: leaveOut(image), "aria-label": `Exclude ${name}` }, "exclude") : "";
    }) : "",
    ...data.notes.map((text) => h("p", { class: "soft" }, h("b", {}, "Note: "), upper(text))),
    ...all.map((text) => h("p", { class: "warning" }, h("b", {}, "Warning: "), upper(text))),
    clean ? h("p", { class: "good" }, "Checked: no warnings.") : "",
    checks.ready ? "" : h("p", { class: "soft" }, `Checking the images: ${checks.seen} of ${checks.of}…`),
    checks.ready && checks.sizes.length ? sizesTable(checks.sizes) : "",
  ];
}

/** Images that cannot be read, and why; `choose`: an element that offers to go on without them; `act`: one for each. */
export function badList(bad, choose = null, act = () => "") {
  return h("div", { class: "warning", id: "bad-images" }, h("b", {}, `${count(bad.length, "image")} cannot be read:`),
    h("ul", {}, bad.map(({ name, reason }) => h("li", {}, h("b", {}, name), `: ${reason} `, act(name)))),
    choose ?? h("span", { class: "soft" }, "Repair or exclude them, or continue without them in the training."));
}

/** How many images have which size of a pixel. */
export function sizesTable(sizes) {
  return h("table", { class: "sizes", id: "sizes" }, h("tr", {}, h("th", {}, "pixel size"), h("th", {}, "images")),
    sizes.map(({ mpp, from, n_images }) => h("tr", {}, h("td", {}, sizeWords(mpp, from)), h("td", {}, String(n_images)))));
}
