// Train: method and preset, a few plain settings, live progress, cancel, go on.
import { curves } from "../charts.js";
import { become, choice, count, get, guarded, h, isActive, labelled, once, post, takeColours, timeLeft } from "../dom.js";
import { go, here } from "../way.js";
import { about, badList, watchChecks } from "./about.js";

const STAGES = {
  read: "Reading the images",
  patches: "Extracting patches",
  features: "Computing features",
  initialise: "Initialising the atoms",
  train: "Training",
  decision: "Fitting the decision threshold",
  gallery: "Storing example patches",
  predict: "Testing on unseen patients",
};
const PLAIN = [
  ["patch_px", "Patch size", "pixels; a patch should contain a few cells"],
  ["downsample", "Downsampling factor", "1 is full resolution, 2 is half"],
  ["patches_per_class", "Patches per class", "more patches give slower training and more stable results"],
  ["n_atoms", "Atoms", "per class; more atoms represent finer differences"],
  ["n_iter", "Maximum iterations", "training stops early on convergence"],
];

export async function showTrain(content, [id, jobId]) {
  const dataId = id ?? here.data;
  if (!dataId) {
    content.append(h("p", {}, h("a", { href: "#/data" }, "Choose data first.")));
    return null;
  }
  here.data = dataId;
  const data = await get(`/api/data/${dataId}`);
  const { jobs } = await get("/api/jobs");
  const watched = jobId ?? jobs.find(isActive)?.id;
  const side = h("div", {});
  let stopped = false;
  content.append(h("div", { class: "split wide" }, await form(data, () => stopped), side));
  const list = h("div", {});
  const progress = h("section", { class: "card" });
  const said = h("p", { class: "unseen", role: "status" });
  side.append(said, progress, list);
  const leave = watch(watched, progress, list, said);
  return () => { stopped = true; leave(); };
}

// --- what to learn --------------------------------------------------------------------------------

async function form(data, isOver) {
  const { drawn } = data; // null where the images have labels
  takeColours(drawn?.colours);
  if (drawn && drawn.classes.length < 2) return nothingYet(data);
  const regions = drawn ? null : data.classes.length < 2 ? data.classes[0] ?? "region" : null; // masks alone tell
  const isNew = !here.wishes[data.id];
  const wish = here.wishes[data.id] ??= { preset: "quick", method: "dfdl", regions, test_folds: 4, settings: {}, skip_bad: false, ...(drawn ? { test_patients: [] } : {}) };
  const warnings = h("div", { "aria-live": "polite" });
  const without = h("label", {}, h("input", { type: "checkbox", id: "skip-bad", checked: wish.skip_bad,
    onchange: (event) => { wish.skip_bad = event.target.checked; } }), " Continue without them");
  const look = () => watchChecks(data, warnings, isOver, without);
  const known = about(data, look);
  look();
  const settings = h("div", {});
  const refresh = guarded(async (kept = {}) => {
    const query = `preset=${wish.preset}&method=${wish.method}${wish.regions ? "&regions=1" : ""}`;
    const found = await get(`/api/choices?${query}`);
    wish.settings = kept;
    settings.replaceChildren(...settingFields(found, wish));
    return found;
  });
  let first = await refresh(wish.settings);
  if (!first) return h("div", {});
  const usual = (regions) => { wish.preset = regions ? first.for_regions.preset : "quick"; };
  if (regions && isNew) {
    usual(regions);
    await refresh();
  }
  const presets = () => Object.entries(first.presets);
  const methods = Object.entries(first.methods).map(([name, words]) => [name, `${name}: ${words}`]);
  const picker = h("div", {});
  const pick = () => picker.replaceChildren(labelled("Preset", choice(presets(), wish.preset,
    (value) => { wish.preset = value; refresh(); }),
    wish.regions ? `Recommended for regions: ${first.for_regions.preset} (${first.for_regions.why}).` : ""));
  const ask = (regions) => {
    wish.regions = regions;
    usual(regions);
    pick();
    refresh();
  };
  // Some methods cannot use the preset that is usual for regions: theirs takes its place.
  const take = async (method) => {
    const before = first.for_regions.preset;
    wish.method = method;
    first = (await refresh()) || first;
    if (wish.regions && wish.preset === before && first.for_regions.preset !== before) ask(wish.regions);
    else pick();
  };
  pick();
  const start = once(async () => {
    await known.saved();
    if (data.positive?.how === "unknown" && !wish.regions) document.getElementById("positive").focus();
    const { id } = await post("/api/jobs", { data: data.id, ...wish });
    go("train", data.id, id);
  });
  return h("section", { class: "card" }, h("h1", {}, `Train on ${data.name}`),
    h("p", { class: "soft" }, drawn ? `Annotations of ${drawn.classes.join(", ")} on ${count(drawn.n_images, "image")}; other tissue is not used.` : [count(data.images.length, "image"), ...data.classes].join(", ")),
    known.element, warnings, drawn ? "" : question(data, wish.regions, ask), picker,
    labelled("Method", choice(methods, wish.method, take)),
    drawn ? testPatients(data, wish) : labelled("Test patients", choice([[4, "a quarter"], [3, "a third"], [2, "half"],
      [5, "a fifth"], [0, "none: the accuracy stays unknown"]], wish.test_folds,
      (value) => { wish.test_folds = Number(value); }), "No patient is in both training and test set."),
    settings, h("button", { class: "main", onclick: start }, "Start training"));
}

function nothingYet(data) {
  return h("section", { class: "card" }, h("h1", {}, `Train on ${data.name}`), h("p", { id: "nothing-yet" },
    "These images have no labels and too few annotations: annotate at least two classes. "),
    h("a", { class: "button main", href: `#/look/-/${data.id}` }, "Annotate these images"));
}

/** Of the patients on whose images something is drawn, those to test on. */
function testPatients({ drawn, images }, wish) {
  const names = images.map((image) => image.name);
  wish.test_patients = wish.test_patients.filter((patient) => drawn.patients.includes(patient));
  const words = h("p", { class: "soft", id: "tested-on", "aria-live": "polite" });
  const tell = () => {
    words.textContent = wish.test_patients.length
      ? `The test uses the annotations of ${count(wish.test_patients.length, "patient")}; these are not used for training.`
      : "No test patient: the accuracy stays unknown. Annotate further images for the test.";
  };
  tell();
  const box = (patient) => h("label", {}, h("input", { type: "checkbox", checked: wish.test_patients.includes(patient), onchange: (event) => {
    wish.test_patients = event.target.checked ? [...wish.test_patients, patient] : wish.test_patients.filter((other) => other !== patient);
    tell();
  } }), ` ${patient}`);
  const alone = names.some((name) => drawn.patients.includes(name)) // nobody has said whose they are
    ? h("p", { class: "soft" }, "Each image without a patient counts as its own patient: select all images of a patient for the test, or none.") : "";
  return h("fieldset", { id: "test-patients" }, h("legend", {}, "Test patients"), drawn.patients.map(box), words, alone);
}

function question(data, regions, ask) {
  const name = "question";
  const target = choice((data.classes.length ? data.classes : ["region"]).map((c) => [c, c]).reverse(),
    regions, (value) => { where.checked = true; ask(value); }, { "aria-label": "Regions of" });
  const both = data.classes.length > 1;
  const which = h("input", { type: "radio", name, checked: !regions, onchange: () => ask(null) });
  const where = h("input", { type: "radio", name, checked: Boolean(regions), onchange: () => ask(target.value) });
  return h("fieldset", {}, h("legend", {}, "Task"),
    both ? h("label", {}, which, " Classify images") : null,
    h("label", {}, where, " Detect regions of ", target));
}

function settingFields(found, wish) {
  const values = { ...found.recipe, ...found.parameters };
  const field = (name, words, hint) => {
    const given = values[name];
    const set = (text) => {
      if (text === "" || text === String(given)) delete wish.settings[name];
      else wish.settings[name] = text;
    };
    const options = { stain: found.stains, features: found.features }[name];
    const control = options
      ? choice(options.map((o) => [o, o]), wish.settings[name] ?? given, set)
      : h("input", { type: "text", value: wish.settings[name] ?? (given === null ? "" : String(given)), name,
          oninput: (event) => set(event.target.value.trim()), autocomplete: "off" });
    return labelled(words, control, hint);
  };
  const plain = PLAIN.filter(([name]) => name in values);
  const shown = new Set(plain.map(([name]) => name));
  const rest = Object.keys(values).filter((name) => !shown.has(name));
  return [
    h("div", { class: "fields" }, plain.map((entry) => field(...entry)),
      field("stain", "Stain correction", "compensates differences between laboratories")),
    h("details", { open: rest.some((name) => name in wish.settings) }, h("summary", {}, "All settings"),
      h("div", { class: "fields" }, rest.filter((name) => name !== "stain").map((name) => field(name, name)))),
  ];
}

// --- watching -------------------------------------------------------------------------------------

function watch(jobId, place, list, said) {
  let stopped = false;
  let timer = null;
  const tick = async () => {
    try {
      const { jobs, maps } = await get("/api/jobs");
      become(list, [jobList(jobs, jobId), mapList(maps, tick)]);
      const busy = [...jobs, ...maps].some(isActive);
      const job = jobId ? await get(`/api/jobs/${jobId}`) : null;
      become(place, (job ? jobView(job, tick) : [h("p", { class: "soft" },
        "Progress is shown here. Jobs continue when this page is closed and after a restart of the server.")]));
      const words = job ? `${job.name}: ${job.state}` : "";
      if (said.textContent !== words) said.textContent = words; // each change is read out, once
      if (job?.state === "done" && job.has_model) here.job = job.id;
      if (busy && !stopped) timer = setTimeout(tick, 1000);
    } catch (error) {
      become(place, [h("p", { class: "warning" }, error.message)]);
      if (!stopped) timer = setTimeout(tick, 3000);
    }
  };
  tick();
  return () => { stopped = true; clearTimeout(timer); };
}

function jobView(job, again) {
  const act = (name, words, body = {}) => h("button", { onclick: once(async () => {
    await post(`/api/jobs/${job.id}/${name}`, body);
    again();
  }) }, words);
  const parts = [h("h2", {}, `${job.name}: `, h("span", { class: `state ${job.state}`, id: "job-state" }, job.state)),
    h("p", { class: "soft" }, job.words)];
  if (job.state === "waiting") {
    parts.push(h("p", {}, job.ahead ? `Waiting for ${count(job.ahead, "other job")}.` : "Starting…"), act("cancel", "Cancel"));
  }
  if (job.state === "running") {
    parts.push(h("p", {}, timeLeft(job.progress.seconds_left)), act("cancel", "Cancel"));
  }
  if (job.error) parts.push(h("p", { class: "warning", id: "job-error" }, job.error));
  if (job.state === "failed" && job.bad.length && !job.goes_on) {
    parts.push(badList(job.bad, act("resume", "Continue without them", { skip_bad: true })));
  } else if (["failed", "cancelled", "interrupted"].includes(job.state)) {
    parts.push(h("p", {}, "Finished steps are stored. ", act("resume", "Resume")));
  }
  if (job.state === "done") {
    parts.push(h("p", {}, h("a", { class: "button main", href: `#/model/${job.id}`, id: "see-model" },
      job.parent ? "Show changes" : "Show the model")));
  }
  parts.push(h("p", { class: "buttons" }, h("button", { id: "rename", onclick: rename(job, again) }, "Rename"),
    isActive(job) ? null : h("button", { id: "delete", onclick: remove(job) }, "Delete")));
  parts.push(stageBars(job.progress.stages));
  if (job.progress.objective.length) {
    parts.push(curves(job.progress.objective, job.classes), h("p", { class: "soft" },
      "Reconstruction error of the patches of each class by its own atoms, relative to those of the other classes. ",
      "Flat curves mean convergence."));
  }
  return parts;
}

const rename = (job, again) => once(async () => {
  const name = prompt("Name of the training:", job.name);
  if (!name) return;
  await post(`/api/jobs/${job.id}/rename`, { name });
  again();
});

const remove = (job) => once(async () => {
  if (!confirm(`Delete the training ${job.name}, its model and its results? Images and corrections are not deleted.`)) return;
  await post(`/api/jobs/${job.id}/delete`);
  go("train", job.data);
});

function stageBars(stages) {
  return h("div", { class: "stages" }, Object.entries(stages).map(([name, [done, total]]) =>
    h("label", {}, h("span", {}, STAGES[name] ?? name), h("progress", { max: String(total), value: String(done) }),
      h("span", { class: "soft" }, `${done} of ${total}`))));
}

/** Maps of large images that are being made, or were given up. */
function mapList(maps, again) {
  if (!maps.length) return h("p", {});
  const cancel = (map) => once(async () => {
    await post(`/api/jobs/${map.id}/cancel`);
    again();
  });
  return h("div", { class: "card", id: "maps" }, h("h2", {}, "Maps of large images"),
    h("p", { class: "soft" }, "Trainings have priority: a map in progress is stopped and restarted after them."),
    h("table", { class: "jobs" }, maps.map((map) => h("tr", {},
      h("td", {}, map.image ? h("a", { href: `#/look/${map.model}/${map.data}/${map.image}` }, map.name) : map.name),
      h("td", {}, h("span", { class: `state ${map.state}` }, map.state)),
      h("td", {}, map.state === "running" ? `${Math.round(100 * map.fraction_done)} %` : map.error),
      h("td", {}, isActive(map) ? h("button", { "data-job": map.id, "aria-label": `Cancel the map of ${map.name}`, onclick: cancel(map) }, "Cancel") : "")))));
}

function jobList(jobs, current) {
  if (!jobs.length) return h("p", {});
  return h("div", { class: "card" }, h("h2", {}, "Trainings"), h("table", { class: "jobs" }, jobs.map((job) =>
    h("tr", { class: job.id === current ? "current" : "" },
      h("td", {}, h("a", { href: `#/train/${job.data}/${job.id}` }, job.name)),
      h("td", {}, job.regions ? `regions: ${job.regions}` : job.method),
      h("td", { class: "soft" }, new Date(job.made * 1000).toLocaleString()),
      h("td", {}, job.n_corrections ? count(job.n_corrections, "correction") : ""),
      h("td", {}, h("span", { class: `state ${job.state}` }, job.state)),
      h("td", {}, job.has_model ? h("a", { href: `#/model/${job.id}` }, "model") : "")))));
}
