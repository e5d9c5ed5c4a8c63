// The frame: which page is shown, and the way between pages. Addresses are #/page/part/part.
import { get, h, notice } from "./dom.js";
import { showData } from "./pages/data.js";
import { showLook } from "./pages/look.js";
import { showModel } from "./pages/model.js";
import { showTrain } from "./pages/train.js";
import { here } from "./way.js";

const PAGES = {
  data: { name: "Data", show: showData },
  train: { name: "Train", show: showTrain },
  model: { name: "Model", show: showModel },
  look: { name: "Look", show: showLook },
};

let leave = () => {};
let turn = 0;

async function show() {
  const mine = ++turn;
  leave();
  leave = () => {};
  notice("");
  const [name, ...parts] = location.hash.replace(/^#\//, "").split("/");
  const page = PAGES[name] ?? PAGES.data;
  const main = document.getElementById("main");
  main.className = `page-${name || "data"}`;
  main.replaceChildren(h("p", { class: "soft" }, "Loading…"));
  document.title = `${page.name} – histodict`;
  try {
    const session = await get("/api/session");
    here.data ??= session.demo ?? session.data[0]?.id ?? null;
    here.job ??= session.jobs.find((job) => job.state === "done")?.id ?? null;
    const content = h("div", { class: "content" });
    const left = await page.show(content, parts, session);
    if (mine !== turn) return left?.();
    leave = left ?? leave;
    main.replaceChildren(content);
  } catch (error) {
    if (mine === turn) {
      main.replaceChildren();
      notice(error.message);
    }
  }
  showNav(PAGES[name] ? name : "data");
}

function showNav(current) {
  const ways = {
    data: ["data", here.data],
    train: ["train", here.data],
    model: ["model", here.job],
    look: ["look", here.job ?? "-", here.data, here.image],
  };
  const links = Object.entries(PAGES).map(([name, page], place) =>
    h("a", {
      href: "#/" + ways[name].filter((part) => part).join("/"),
      "aria-current": name === current ? "page" : null,
      title: `${page.name} (Alt+${place + 1})`,
    }, h("span", { class: "step" }, String(place + 1)), page.name));
  document.getElementById("nav").replaceChildren(...links);
}

addEventListener("hashchange", show);
addEventListener("keydown", (event) => {
  if (event.altKey && "1234".includes(event.key) && event.key) {
    event.preventDefault();
    document.querySelectorAll("#nav a")[Number(event.key) - 1]?.click();
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
show();
