// The quick answer: the map of what is on the screen, made anew after each stroke. It is no trained model, and says so.
import { choice, h, pause, post } from "../dom.js";
import { here } from "../way.js";

const SETTLED = 150; // ms without a movement, after which what is on the screen is asked for
const MOST_ROUNDS = 60; // of one question, whose answer comes in parts

export class Quick {
  constructor(panel) {
    Object.assign(this, { panel, viewer: panel.viewer, map: null, patches: {}, struck: null, wanted: false, busy: false, again: false, stopped: false, seen: "" });
    this.words = h("p", { class: "soft", id: "quick-words", "aria-live": "polite" }, "The map is updated after each annotation.");
    this.pick = choice([["quick", "quick prediction"], ["trained", "trained model"], ["none", "none"]], "quick", (value) => this.show(value), { id: "map-shown" });
    const strength = h("input", { type: "range", min: "0", max: "1", step: "0.05", value: String(here.strength), id: "quick-strength", oninput: () => {
      this.viewer.opacity = here.strength = Number(strength.value);
      this.viewer.refresh();
    } });
    // The trained map has a slider of its own, which is the same.
    addEventListener("input", this.follow = ({ target }) => { if (target.id === "opacity") strength.value = target.value; });
    panel.parts.quick.append(h("label", {}, "Map ", this.pick), h("label", { class: "width" }, "Strength ", strength), this.words);
    this.show(here.drawing.quick ? "quick" : "trained");
  }

  stop() {
    this.stopped = true;
    removeEventListener("input", this.follow);
    clearTimeout(this.timer);
  }

  show(which) {
    this.shown = which;
    this.pick.value = which;
    here.drawing.quick = which === "quick";
    this.viewer.hidesMap = which !== "trained" && (which === "none" || this.map !== null);
    this.viewer.canvas.dataset.map = which;
    this.viewer.refresh();
  }

  /** The image was moved, or drawn anew. */
  moved() {
    const box = this.viewer.box().map(Math.round).join();
    if (box === this.seen) return;
    this.seen = box;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), SETTLED);
  }

  async ask() {
    if (this.stopped || !(this.panel.classes.length || this.wanted)) return; // who only looks asks for nothing
    this.again = true;
    if (this.busy) return; // one question at a time; the last one counts
    this.busy = true;
    for (let round = 0; this.again && round < MOST_ROUNDS && !this.stopped; round += 1) {
      this.again = false;
      const struck = this.struck;
      const found = await post(`${this.panel.base}/quick`, { box: this.viewer.box() }).catch((error) => ({ error: error.message }));
      if (this.stopped) break;
      await this.take(found, struck);
      if (found.left) this.again = true;
      if (found.error) break;
      await pause(0);
    }
    this.busy = false;
  }

  async take(found, struck) {
    if (found.error) {
      this.words.textContent = `No quick prediction: ${found.error}`;
      return;
    }
    const before = JSON.stringify(this.patches);
    this.patches = found.patches;
    if (before !== JSON.stringify(this.patches)) this.panel.showClasses();
    if (found.picture) {
      const picture = new Image();
      picture.src = found.picture.png;
      await picture.decode();
      this.map = { picture, box: found.picture.box };
      if (struck !== null && this.shown === "trained") this.show("quick"); // whoever paints wants to see what it does
    } else this.map = null;
    this.show(this.shown);
    this.tell(found, struck);
  }

  tell(found, struck) {
    const { classes } = this.panel;
    const drawn = classes.filter((one) => this.patches[one.id]);
    const busy = found.left ? ` ${found.left} more fields are being computed…` : "";
    const thin = classes.filter((one) => this.patches[one.id] === 0 && this.panel.shapes.some((shape) => shape.label === one.id));
    let words = "The quick prediction appears when two classes are annotated.";
    if (this.map) {
      const took = struck !== null && struck === this.struck ? `, ${((performance.now() - struck) / 1000).toFixed(1)} s after the last stroke` : "";
      if (took) this.viewer.canvas.dataset.live = String(Math.round(performance.now() - struck));
      this.struck = struck === this.struck ? null : this.struck;
      const by = found.by_network ? "features of a pretrained encoder" : "colours and edges of patches";
      words = `Quick prediction${took}: a linear classifier on ${by}, trained on ${drawn.map((one) => `${this.patches[one.id]} of ${one.name}`).join(", ")}. It is not the trained model, and its accuracy is unknown.`;
    }
    if (thin.length) words += ` The annotations of ${thin.map((one) => one.name).join(" and ")} contain no tissue patch: make them larger.`;
    if (found.beyond) words += " It covers the middle of the screen only: zoom in to see all.";
    this.words.textContent = words + busy;
  }

  draw(pen) {
    if (!this.map || this.shown !== "quick") return;
    pen.globalAlpha = this.viewer.opacity;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.map.picture, ...this.map.box);
    pen.globalAlpha = 1;
  }
}
