// Which model looks at the images: trained here or opened from a file, with a warning where it was trained on
// something else.
import { choice, get, h } from "../dom.js";
import { go, lookWithModel } from "../way.js";

/** All that can be chosen: [[id, words], …]. */
export function modelsOf(session) {
  const when = (job) => new Date(job.made * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
  return [...session.jobs.filter((job) => job.state === "done" && job.has_model).map((job) => [job.id, `${job.name}, ${when(job)}`]),
    ...session.opened.map((job) => [job.id, `${job.name}, from a file`])];
}

/** The choice of the model in Look, what is to be known of it here, and the way to compare it. */
export function modelBar({ job, data, chosen }, session) {
  const models = modelsOf(session);
  const warnings = h("div", { id: "misfits", "aria-live": "polite" });
  const pick = (id) => {
    if (id !== "-") lookWithModel();
    go("look", id, data.id, chosen.id);
  };
  const others = models.filter(([id]) => id !== job);
  if (job) showMisfits(warnings, job, data.id);
  return h("section", { id: "model-bar" },
    h("label", {}, "Model ", choice([["-", "none"], ...models], job ?? "-", pick, { id: "model-choice" })),
    job && others.length ? h("p", {}, h("a", { id: "compare-models", href: `#/compare/${others[0][0]}/${job}/${data.id}/${chosen.id}` },
      "Compare with another model")) : null, warnings);
}

async function showMisfits(place, job, data) {
  const found = await get(`/api/jobs/${job}/fits/${data}`).catch((error) => ({ warnings: [error.message] }));
  place.replaceChildren(...found.warnings.map((text) => h("p", { class: "warning" }, text)));
}
