// The way from page to page, which keeps the data set and the model.

/** What was looked at last; and by model where the user drew its line, if not where it drew it. */
export const here = { data: null, job: null, image: null, points: {} };

export function go(...parts) {
  location.hash = "#/" + parts.filter((part) => part).join("/");
}
