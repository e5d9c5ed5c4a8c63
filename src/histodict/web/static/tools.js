// Tools that draw on the viewer: what the hand is doing, shown until the server has made a shape of it.
// Each is {down, move, up, hover, cancel, press, draw}; `press(place)` is the keyboard's way: Space, at the cross.

const NEAR = 12; // screen pixels: a click so near to the first corner closes a polygon

const far = ([x0, y0], [x1, y1]) => Math.hypot(x1 - x0, y1 - y0);

/** A tool by its name. hand: {viewer, width(), colour()}; done({tool, points, radius}) hears of what was drawn. */
export function tool(name, hand, done) {
  const make = { brush: stroke, eraser: stroke, rectangle, polygon }[name];
  return { name, ...make(name, hand, done) };
}

/** How wide the brush is in the image, as half its width on the screen. */
const radiusOf = ({ viewer, width }) => Math.max(1, width() / 2 / viewer.scale);

function stroke(name, hand, done) {
  const { viewer } = hand;
  let path = [];
  let over = null;
  let held = false; // by the keyboard
  const add = (place) => { if (!path.length || far(path.at(-1), place) > radiusOf(hand) / 4) path.push(place); };
  const finish = () => {
    if (path.length) done({ tool: name, points: path, radius: radiusOf(hand) });
    path = [];
    held = false;
  };
  return {
    get busy() { return path.length > 0; },
    down(place) { path = [place]; viewer.refresh(); },
    move(place) { if (path.length) add(place); viewer.refresh(); },
    up(place) { if (path.length) add(place); finish(); viewer.refresh(); },
    hover(place) { over = place; viewer.refresh(); },
    cancel() { path = []; held = false; viewer.refresh(); },
    press(place) {
      if (held) return finish();
      path = [place];
      held = true;
      viewer.refresh();
    },
    /** The image has moved below the cross. */
    moved(place) { if (held) add(place); },
    draw(pen) {
      const colour = name === "eraser" ? "#ffffff" : hand.colour();
      if (path.length) {
        pen.globalAlpha = 0.55;
        Object.assign(pen, { lineCap: "round", lineJoin: "round", lineWidth: 2 * radiusOf(hand), strokeStyle: colour });
        pen.beginPath();
        path.forEach(([x, y], i) => pen[i ? "lineTo" : "moveTo"](x, y));
        if (path.length === 1) pen.lineTo(path[0][0] + 0.01, path[0][1]);
        pen.stroke();
        pen.globalAlpha = 1;
      }
      const at = held || viewer.isByKey() ? [viewer.x, viewer.y] : over;
      if (at) ring(pen, viewer, at, radiusOf(hand), colour);
    },
  };
}

function rectangle(name, hand, done) {
  const { viewer } = hand;
  let from = null;
  let to = null;
  const finish = () => {
    if (from && to && from[0] !== to[0] && from[1] !== to[1]) done({ tool: name, points: [from, to] });
    from = to = null;
  };
  return {
    get busy() { return from !== null; },
    down(place) { from = to = place; },
    move(place) { if (from) to = place; viewer.refresh(); },
    up(place) { to = place; finish(); viewer.refresh(); },
    hover() {},
    cancel() { from = to = null; viewer.refresh(); },
    press(place) {
      if (from) { to = place; finish(); } else from = to = place;
      viewer.refresh();
    },
    moved(place) { if (from) to = place; },
    draw(pen) {
      if (!from) return;
      const sides = [...from, to[0] - from[0], to[1] - from[1]];
      twice(pen, viewer, hand.colour(), () => pen.strokeRect(...sides));
    },
  };
}

function polygon(name, hand, done) {
  const { viewer } = hand;
  let corners = [];
  let over = null;
  const finish = () => {
    if (corners.length > 2) done({ tool: name, points: corners });
    corners = [];
    viewer.refresh();
  };
  const closes = (place) => corners.length > 2 && far(place, corners[0]) * viewer.scale < NEAR;
  const add = (place) => {
    if (closes(place)) return finish();
    if (!corners.length || far(place, corners.at(-1)) * viewer.scale > 2) corners.push(place);
    viewer.refresh();
  };
  return {
    get busy() { return corners.length > 0; },
    down(place) { add(place); },
    move(place) { if (corners.length && far(place, corners.at(-1)) * viewer.scale > 8) corners.push(place); viewer.refresh(); },
    up() {},
    hover(place) { over = place; viewer.refresh(); },
    cancel() { corners = []; viewer.refresh(); },
    press: add,
    moved(place) { over = place; },
    finish,
    back() { corners.pop(); viewer.refresh(); },
    draw(pen) {
      if (!corners.length) return;
      twice(pen, viewer, hand.colour(), () => {
        pen.beginPath();
        [...corners, ...(over ? [over] : [])].forEach(([x, y], i) => pen[i ? "lineTo" : "moveTo"](x, y));
        pen.stroke();
      });
      ring(pen, viewer, corners[0], NEAR / 2 / viewer.scale, hand.colour());
    },
  };
}

/** The points of a line that matter: what is left out lies within `reach` of the line through the others (Douglas and
    Peucker); or within twice that, and so on, until `most` are left. */
export function thinned(points, reach, most) {
  const kept = essential(points, reach);
  return kept.length > most ? thinned(kept, 2 * reach, most) : kept;
}

function essential(points, reach) {
  const keep = new Set([0, points.length - 1]);
  const open = [[0, points.length - 1]];
  while (open.length) {
    const [first, last] = open.pop();
    let [most, at] = [reach, -1];
    for (let i = first + 1; i < last; i++) {
      const off = offLine(points[i], points[first], points[last]);
      if (off > most) [most, at] = [off, i];
    }
    if (at < 0) continue;
    keep.add(at);
    open.push([first, at], [at, last]);
  }
  return points.filter((_, i) => keep.has(i));
}

/** How far a point is from a piece of a line. */
function offLine([x, y], [x0, y0], [x1, y1]) {
  const [dx, dy] = [x1 - x0, y1 - y0];
  const share = dx || dy ? Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy))) : 0;
  return Math.hypot(x - x0 - share * dx, y - y0 - share * dy);
}

/** A line that is seen on any ground. */
function twice(pen, viewer, colour, draw) {
  for (const [width, ink] of [[5, "#fff"], [2.5, colour]]) {
    pen.lineWidth = width / viewer.scale;
    pen.strokeStyle = ink;
    draw();
  }
}

function ring(pen, viewer, [x, y], radius, colour) {
  twice(pen, viewer, colour === "#ffffff" ? "#111" : colour, () => {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.stroke();
  });
}

/** What is drawn on the image, in the colours of its classes. */
export function drawShapes(pen, viewer, shapes, colours, chosen) {
  for (const shape of shapes) {
    const colour = colours.get(shape.label) ?? "#8795a1";
    const path = new Path2D();
    shape.polygons.flat().forEach((corners) => {
      corners.forEach(([x, y], i) => path[i ? "lineTo" : "moveTo"](x, y));
      path.closePath();
    });
    pen.globalAlpha = 0.28;
    pen.fillStyle = colour;
    pen.fill(path, "evenodd");
    pen.globalAlpha = 1;
    for (const [width, ink] of [[shape.id === chosen ? 7 : 3.5, "#fff"], [shape.id === chosen ? 4 : 2, colour]]) {
      pen.lineWidth = width / viewer.scale;
      pen.strokeStyle = ink;
      pen.stroke(path);
    }
  }
}
