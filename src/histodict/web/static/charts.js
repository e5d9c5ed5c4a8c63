// Small drawings: the objective while learning, and misses against false alarms.
import { colourIn, h, s, tagOf } from "./dom.js";

/** Lines over the rounds, one per class. values: [round][class]. */
export function curves(values, names) {
  const [width, height, left, bottom] = [460, 190, 52, 28];
  const all = values.flat().filter((v) => v !== null);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const span = high - low || 1;
  const x = (i) => left + (i / Math.max(1, values.length - 1)) * (width - left - 12);
  const y = (v) => 10 + ((high - v) / span) * (height - bottom - 16);
  const lines = values[0].map((_, k) => s("polyline", {
    points: values.map((row, i) => (row[k] === null ? "" : `${x(i)},${y(row[k])}`)).join(" "),
    fill: "none", stroke: colourIn(names, names[k]), "stroke-width": 2.5,
  }));
  const dots = values.length === 1 ? values[0].map((v, k) => s("circle", { cx: x(0), cy: y(v), r: 4, fill: colourIn(names, names[k]) })) : [];
  const text = (at, v, words, anchor) => s("text", { x: at, y: v, "text-anchor": anchor }, words);
  const drawing = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", id: "objective", role: "img",
    "aria-label": `Objective of ${values.length} iterations` },
    axes(left, 10, width - 12, height - bottom), ...lines, ...dots,
    text(left - 6, 16, high.toPrecision(3), "end"), text(left - 6, height - bottom, low.toPrecision(3), "end"),
    text(width - 12, height - 8, `iteration ${values.length}`, "end"));
  const key = names.map((name, k) => h("span", { class: tagOf(name) },
    s("svg", { width: 16, height: 10, class: "key" }, s("line", { x1: 0, y1: 5, x2: 16, y2: 5, stroke: colourIn(names, names[k]), "stroke-width": 3 })), name));
  return h("figure", { class: "chart" }, drawing, h("figcaption", {}, key));
}

/** Of a name, what fits along an axis. */
const short = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);

function axes(left, top, right, bottom) {
  return s("path", { d: `M${left} ${top}V${bottom}H${right}`, fill: "none", stroke: "#8795a1" });
}

/** Misses against false alarms at every threshold; the point on the curve can be dragged.
    points: [{threshold, alarm, miss}], from the strictest to the laxest. */
export function roc(points, name, onmove) {
  const [side, left, bottom] = [300, 46, 40];
  const x = (v) => left + 12 + v * (side - left - 40);
  const y = (v) => 14 + (1 - v) * (side - bottom - 30);
  const path = points.map((p, i) => (i ? `H${x(p.alarm)}V${y(p.miss)}` : `M${x(p.alarm)} ${y(p.miss)}`)).join("");
  const knob = s("circle", { r: 9, class: "knob" });
  const text = (at, v, words, more = {}) => s("text", { x: at, y: v, "text-anchor": "middle", ...more }, words);
  const drawing = s("svg", { viewBox: `0 0 ${side} ${side}`, class: "chart roc", id: "roc", role: "img",
    "aria-label": `False negatives of ${name} against false positives` },
    axes(left, 10, side - 12, side - bottom),
    s("line", { x1: x(0), y1: y(1), x2: x(1), y2: y(0), stroke: "#8795a1", "stroke-dasharray": "3 4" }),
    s("path", { d: path, fill: "none", stroke: "#0072b2", "stroke-width": 2.5 }),
    text(x(0.5), side - 6, `false positives of ${short(name)}`), text(14, y(0.5), `false negatives of ${short(name)}`, { transform: `rotate(-90 14 ${y(0.5)})` }),
    ...[0, 0.5, 1].flatMap((v) => [text(x(v), side - bottom + 15, `${v * 100} %`), text(left - 5, y(v) + 4, `${v * 100}`, { "text-anchor": "end" })]),
    knob);
  const pull = (event) => {
    const box = drawing.getBoundingClientRect();
    const scale = side / box.width;
    const at = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const far = points.map((p) => Math.hypot(x(p.alarm) - at[0], y(p.miss) - at[1]));
    onmove(points[far.indexOf(Math.min(...far))].threshold);
  };
  drawing.addEventListener("pointerdown", (event) => { drawing.setPointerCapture(event.pointerId); pull(event); });
  drawing.addEventListener("pointermove", (event) => { if (event.buttons) pull(event); });
  const place = (alarm, miss) => { knob.setAttribute("cx", x(alarm)); knob.setAttribute("cy", y(miss)); };
  return { drawing, place };
}
