// Elements, requests and words that all pages share.

/** An element: h("button", {onclick: f, class: "main"}, "Start"). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for drawings. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.flat());
  return element;
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Error("No response from the server. Check that `histodict serve` is still running.");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Error(body?.error ?? `The server returned status ${response.status}.`);
  if (body === null) throw new Error("The response of the server is incomplete. Reload the page.");
  return body;
}

export const get = (url) => ask(url);

export function post(url, body = {}) {
  const headers = { "Content-Type": "application/json", "X-Histodict": "1" };
  return ask(url, { method: "POST", headers, body: JSON.stringify(body) });
}

/** A file's content, as it is. */
export const send = (url, file) => ask(url, { method: "POST", headers: { "X-Histodict": "1" }, body: file });

/** Tell of an error on top of the page; an empty text takes it away. */
export function notice(text) {
  const place = document.getElementById("notice");
  place.textContent = text;
  place.hidden = !text;
}

/** Run what a click asks for; what goes wrong is said on the page. */
export function guarded(work) {
  return async (...given) => {
    try {
      notice("");
      return await work(...given);
    } catch (error) {
      notice(error.message);
    }
  };
}

/** The same for a button: while the work is under way, a further click does nothing. */
export function once(work) {
  let busy = false;
  return async (...given) => {
    if (busy) return;
    busy = true;
    await guarded(work)(...given);
    busy = false;
  };
}

/** What a place shows now; what is the same already stays, with the focus in it, and is not read out anew. */
export function become(place, children) {
  const wanted = children.flat(3).filter((child) => child !== null && child !== "")
    .map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  wanted.forEach((fresh, i) => {
    const old = place.childNodes[i];
    if (!old) place.append(fresh);
    else if (!old.isEqualNode(fresh)) renew(old, fresh);
  });
  while (place.childNodes.length > wanted.length) place.lastChild.remove();
}

function renew(old, fresh) {
  // A button does what it was made for: another one takes its place.
  if (old.nodeName !== fresh.nodeName || old.nodeName === "BUTTON") return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) return (old.data = fresh.data);
  [...old.attributes].forEach(({ name }) => { if (!fresh.hasAttribute(name)) old.removeAttribute(name); });
  [...fresh.attributes].forEach(({ name, value }) => { if (old.getAttribute(name) !== value) old.setAttribute(name, value); });
  return become(old, [...fresh.childNodes]);
}

export function choice(options, value, onchange, attributes = {}) {
  const items = options.map(([key, words]) =>
    h("option", { value: String(key), selected: String(key) === String(value) }, words));
  return h("select", { ...attributes, onchange: (event) => onchange(event.target.value) }, items);
}

export function labelled(words, control, hint) {
  return h("label", { class: "field" }, h("span", {}, words), control,
    hint ? h("small", { class: "soft" }, hint) : null);
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export const isActive = (job) => ["waiting", "running"].includes(job.state);

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(5, Math.round(seconds / 5) * 5)} seconds`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} minutes` : `${Math.round(seconds / 3600)} hours`;
}

export const timeLeft = (seconds) => (seconds === null ? "Estimating the time…" : `About ${duration(seconds)} left.`);

export const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** In a list of classes: the image is neither learnt from nor tested on. */
export const LEFT_OUT = "\0";

// Distinguishable for colour-blind readers; the same as in the reports.
export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#f0e442", "#56b4e9"];
/** Of the class at a place; the one to be found is second, and warm. Grey: it is none of them. */
export const colourOf = (place) => (place < 0 ? "#8795a1" : COLOURS[place % COLOURS.length]);
const chosen = new Map();
/** Of classes that the user has made, the colours that they were given, by name. */
export function takeColours(colours) {
  chosen.clear();
  Object.entries(colours ?? {}).forEach(([name, colour]) => chosen.set(name, colour));
}
/** For the address of a picture in these colours: a browser keeps pictures by their address. */
export const coloursNow = () => encodeURIComponent(JSON.stringify([...chosen]));
/** Of a class among others. */
export const colourIn = (classes, name) => chosen.get(name) ?? colourOf(classes.indexOf(name));

const ORIGINS = { file: "from the file", table: "from the table", command: "set by you", assumed: "assumed: that of the training images" };

/** How large a pixel is, and who says so. */
export function sizeWords(mpp, from) {
  return mpp === null || mpp === undefined ? "unknown" : `${+mpp.toPrecision(4)} µm per pixel, ${ORIGINS[from] ?? from}`;
}

/** A short name stays in one line with its square, a long one is broken. */
export const tagOf = (name) => (name.length > 24 ? "tag long" : "tag");

/** The predicted class, marked if the prediction is uncertain (ImagePrediction.is_uncertain). */
export function predictedTag(classes, { answer, is_uncertain: isUncertain }) {
  if (answer === null) return "no tissue";
  return isUncertain ? h("span", {}, "uncertain (best guess: ", classTag(classes, answer), ")") : classTag(classes, answer);
}

/** A class's name behind a square in its colour. */
export function classTag(classes, name) {
  const mark = s("svg", { width: 12, height: 12, class: "key", "aria-hidden": "true" },
    s("rect", { width: 12, height: 12, rx: 2, fill: colourIn(classes, name) }));
  return h("span", { class: tagOf(name) }, mark, name);
}
