// The way from page to page, which keeps the data set and the model.

/** All that the page keeps from one view to the next, for whoever goes back: what was looked at last, and the set of that image; by
    model where the user drew its line, if not where it drew it; by data set what the training form holds; by
    image which part was seen, and how strongly maps were drawn; the tool in the hand; how two models are
    compared. */
export const here = { data: null, job: null, image: null, imageData: null, points: {}, wishes: {}, views: {}, strength: 0.5,
  drawing: { tool: "look", label: null, width: 40, quick: true }, compareAs: "side" };

/** Whoever asks for a model wants to see its map and why, not what the hand drew last. */
export const lookWithModel = () => Object.assign(here.drawing, { tool: "look", quick: false });

export function go(...parts) {
  location.hash = "#/" + parts.filter((part) => part).join("/");
}
