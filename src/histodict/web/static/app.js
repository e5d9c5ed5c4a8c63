// The frame: which page is shown, and the way between pages. Addresses are #/page/part/part.
import { get, h, notice } from "./dom.js";
import { showCompare } from "./pages/compare.js";
import { showData } from "./pages/data.js";
import { showLook } from "./pages/look.js";
import { showModel } from "./pages/model.js";
import { showTrain } from "./pages/train.js";
import { here } from "./way.js";

const PAGES = {
  data: { name: "Data", show: showData },
  train: { name: "Train", show: showTrain },
  model: { name: "Model", show: showModel },
  look: { name: "Viewer", show: showLook },
};
const FURTHER = { compare: { name: "Compare", show: showCompare } }; // which other pages lead to

let leave = () => {};
let turn = 0;
let noting = 0;

async function show() {
  const mine = ++turn;
  const { y } = history.state ?? { y: 0 }; // of this entry, if it was seen before
  clearTimeout(noting);
  leave();
  leave = () => {};
  notice("");
  const [name, ...parts] = location.hash.replace(/^#\//, "").split("/");
  const page = PAGES[name] ?? FURTHER[name] ?? PAGES.data;
  const main = document.getElementById("main");
  main.className = `page-${name || "data"}`;
  main.replaceChildren(h("p", { class: "soft" }, "Loading…"));
  document.title = `${page.name} – histodict`;
  try {
    const session = await get("/api/session");
    if (!session.data.some((data) => data.id === here.data)) here.data = null; // it was deleted
    if (![...session.jobs, ...session.opened].some((job) => job.id === here.job)) here.job = null;
    here.data ??= session.demo ?? session.data[0]?.id ?? null;
    here.job ??= session.jobs.find((job) => job.state === "done")?.id ?? null;
    const content = h("div", { class: "content" });
    const left = await page.show(content, parts, session);
    if (mine !== turn) return left?.();
    leave = left ?? leave;
    main.replaceChildren(content);
    scrollBack(content, y);
  } catch (error) {
    if (mine === turn) {
      main.replaceChildren(h("p", {}, h("a", { class: "button", href: "#/data" }, "Choose other data")));
      notice(error.message);
    }
  }
  showNav(PAGES[name] ? name : FURTHER[name] ? "look" : "data");
}

function scrollBack(content, y) {
  scrollTo(0, y);
  // Pictures that are still on their way make the page longer.
  const growing = new ResizeObserver(() => {
    if (scrollY < y) scrollTo(0, y);
  });
  growing.observe(content);
  setTimeout(() => growing.disconnect(), 1000);
}

function showNav(current) {
  const ways = {
    data: ["data", here.data],
    train: ["train", here.data],
    model: ["model", here.job],
    look: ["look", here.job ?? "-", here.data, here.imageData === here.data ? here.image : null],
  };
  const links = Object.entries(PAGES).map(([name, page], place) =>
    h("a", {
      href: "#/" + (ways[name] ?? [name]).filter((part) => part).join("/"),
      "aria-current": name === current ? "page" : null,
      title: `${page.name} (Alt+${place + 1})`,
    }, h("span", { class: "step" }, String(place + 1)), page.name));
  document.getElementById("nav").replaceChildren(...links);
}

addEventListener("hashchange", show);
history.scrollRestoration = "manual"; // pages are made anew, and reach down there only then
addEventListener("scroll", () => {
  clearTimeout(noting);
  noting = setTimeout(() => history.replaceState({ y: scrollY }, ""), 100);
});
addEventListener("keydown", (event) => {
  const link = event.altKey && document.querySelectorAll("#nav a")[Number(event.key) - 1];
  if (link) {
    event.preventDefault();
    link.click();
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
show();
