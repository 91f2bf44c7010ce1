// The data of a report: a file with the page and the API's answers in it, which asks no network.

/** `{made_at, at, application, note, answers}`; null for the page of a service. `application` is null where it is of all. */
export const REPORT = read(globalThis.document?.getElementById("report")?.textContent);

function read(text) {
  return text ? JSON.parse(text) : null;
}

/** What the API answered at a path, without its query; undefined if the report does not have it. */
export const given = (path) => REPORT.answers[decodeURIComponent(path.split("?")[0])];
