// Server-sent events from a stream's text (WHATWG HTML, 9.2.6). Pure.

/** The later one of two ids of events; the first where they are equal or the second is none. */
export function later(id, other) {
  const [a, b] = [id, other].map((each) => (/^\d{1,18}(-\d{1,18})?$/.test(each ?? "") ? each.split("-").map(BigInt) : null));
  if (b === null) return id;
  if (a === null) return other;
  const isLater = b[0] > a[0] || (b[0] === a[0] && (b[1] ?? 0n) > (a[1] ?? 0n));
  return isLater ? other : id;
}

/** Takes pieces of text as they arrive, and gives the events that they complete. */
export class EventReader {
  #rest = "";
  #id = "";
  #kind = "message";
  #data = [];

  /** `RangeError` if a line is longer than `most` characters. */
  constructor(most = 20_000_000) {
    this.most = most;
  }

  add(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    if (this.#rest.length > this.most) throw new RangeError("an event of the feed is too long");
    const found = [];
    for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
      if (line === "") {
        if (this.#data.length > 0) found.push({ id: this.#id, kind: this.#kind, data: this.#data.join("\n") });
        this.#kind = "message";
        this.#data = [];
        continue;
      }
      const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (name === "id") this.#id = value;
      else if (name === "event") this.#kind = value;
      else if (name === "data") this.#data.push(value);
    }
    return found;
  }
}
