// What is shown, to take away: the picture as it is on the screen, outlines for QuPath, patches as a table.
import { guarded, h } from "../dom.js";

/** `place`: of the model's answer for the image, if there is a model; `query`: where its line was drawn. */
export function exportsBar(state, query) {
  const only = () => document.getElementById("map-class")?.value ?? "-1";
  const fetchIt = (name) => () => { location.href = `${state.place}/${name}?only=${only()}&${query}`; };
  return h("section", { id: "exports" }, h("h2", {}, "Export"),
    h("div", { class: "buttons" },
      h("button", { id: "export-png", onclick: guarded(() => savePicture(state)), title: "Screenshot with map and scale bar" }, "PNG"),
      h("button", { id: "export-geojson", hidden: true, onclick: fetchIt("map.geojson"), title: "Outlines for QuPath and other programs" }, "GeoJSON"),
      h("button", { id: "export-csv", hidden: true, onclick: fetchIt("map.csv"), title: "One row per patch" }, "CSV")));
}

/** Once there is a map. */
export function offerMap() {
  for (const id of ["export-geojson", "export-csv"]) document.getElementById(id)?.removeAttribute("hidden");
}

async function savePicture(state) {
  const picture = drawPicture(state.viewer, document.querySelector(".scale-bar"), document.getElementById("map-legend"));
  const blob = await new Promise((done) => picture.toBlob(done, "image/png"));
  const link = h("a", { href: URL.createObjectURL(blob), download: `${state.chosen.name.split("/").pop()}-view.png` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The canvas as it is, with what lies over it: the scale bar and the classes' names. */
function drawPicture({ canvas, ratio }, bar, legend) {
  const picture = h("canvas", { width: canvas.width, height: canvas.height });
  const pen = picture.getContext("2d");
  pen.drawImage(canvas, 0, 0);
  pen.scale(ratio, ratio);
  pen.font = "600 13px system-ui, sans-serif";
  const [width, height] = [canvas.width / ratio, canvas.height / ratio];
  const box = (x, y, w, tall) => { pen.fillStyle = "rgb(255 255 255 / 88%)"; pen.fillRect(x, y, w, tall); pen.fillStyle = "#111"; };
  const length = bar.firstChild.getBoundingClientRect().width;
  box(16, height - 50, length + 20, 38);
  pen.fillRect(26, height - 44, length, 5);
  pen.fillText(bar.lastChild.textContent, 26, height - 20);
  const names = [...legend.querySelectorAll(".tag")];
  const widest = Math.max(0, ...names.map((tag) => pen.measureText(tag.textContent).width));
  names.forEach((tag, i) => {
    const y = height - 14 - 22 * (names.length - i);
    box(width - widest - 52, y, widest + 38, 22);
    pen.fillStyle = tag.querySelector("rect").getAttribute("fill");
    pen.fillRect(width - widest - 46, y + 5, 12, 12);
    pen.fillStyle = "#111";
    pen.fillText(tag.textContent, width - widest - 28, y + 16);
  });
  return picture;
}
