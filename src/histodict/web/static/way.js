// The way from page to page, which keeps the data set and the model.

/** What was looked at last. */
export const here = { data: null, job: null, image: null };

export function go(...parts) {
  location.hash = "#/" + parts.filter((part) => part).join("/");
}
