// The page: its views by address, the token, and what is said when the connection is lost.

import { render } from "preact";
import { useCallback, useEffect, useErrorBoundary, useState } from "preact/hooks";
import { parse, format } from "./address.js";
import { hasToken, setToken } from "./api.js";
import { Application } from "./application.jsx";
import { Compare } from "./compare.jsx";
import { Fleet } from "./fleet.jsx";
import { useLost, useTick } from "./live.js";
import { Problem, Text } from "./parts.jsx";
import { REPORT } from "./report.js";
import { WhatIf } from "./what_if.jsx";
import { clock, duration, seconds } from "./words.js";
import "uplot/dist/uPlot.min.css";
import "./page.css";

function useAddress() {
  const [place, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const follow = () => set(parse(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  /** Change choices of the present view; `isStep` keeps the place of before in the browser's history. */
  const choose = useCallback((choices, isStep = false) => {
    const now = parse(location.hash);
    const next = { ...now, choices: { ...now.choices, ...choices } };
    try {
      history[isStep ? "pushState" : "replaceState"](null, "", format(next));
    } catch {
      // A report in a viewer that has no address: the choice holds, and only the way back is not there.
    }
    set(next);
  }, []);
  return [place, choose];
}

function Page() {
  const [place, choose] = useAddress();
  const lost = useLost();
  const wantsToken = lost?.error.status === 401;
  const { view, application } = place;
  useEffect(() => {
    document.title = application ? `${application} · Weir` : "Weir";
    document.getElementById("main")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [view, application]);
  return (
    <>
      <header class="top">
        <a class="brand" href="#/">
          {!REPORT && <img src="page/icon.svg" alt="" width="22" height="22" />} Weir
        </a>
        <nav aria-label="Place">
          {application && (
            <>
              {!REPORT?.application && <a href="#/">All applications</a>}
              <a
                href={format({ view: "application", application })}
                aria-current={view === "application" ? "page" : undefined}
                class="name"
              >
                <Text>{application}</Text>
              </a>
              {!REPORT &&
                Object.entries({ "what-if": "What if", compare: "Planners" }).map(([each, name]) => (
                  <a key={each} href={format({ view: each, application })} aria-current={view === each ? "page" : undefined}>
                    {name}
                  </a>
                ))}
            </>
          )}
        </nav>
        {REPORT ? <Made /> : <Connection lost={lost} />}
      </header>
      <main id="main" tabindex={-1} class={lost ? "stale" : undefined}>
        {REPORT?.note && (
          <p class="under">
            <Text>{REPORT.note}</Text>
          </p>
        )}
        {wantsToken && <Token />}
        <View key={`${view} ${application}`}>
          {view === "fleet" && <Fleet choices={place.choices} choose={choose} />}
          {view === "application" && <Application application={application} choices={place.choices} choose={choose} />}
          {view === "compare" && <Compare application={application} />}
          {view === "what-if" && <WhatIf application={application} choices={place.choices} choose={choose} />}
        </View>
      </main>
      <footer>
        {/* Where a token is needed, a link could not send it. */}
        {!REPORT && !hasToken() && !wantsToken && <a href="docs">API documentation</a>}
        <span>Times are in your zone, {Intl.DateTimeFormat().resolvedOptions().timeZone}.</span>
      </footer>
    </>
  );
}

/** A view, or a sentence where it cannot be drawn: the answers of a service of another version may have another form. */
function View({ children }) {
  const [error] = useErrorBoundary();
  if (!error) return children;
  const message = `the service may be of another version than this page. Load the page again. (${error.message})`;
  return <Problem error={{ message }}>This view cannot be drawn:</Problem>;
}

function Connection({ lost }) {
  const now = useTick();
  if (lost === null) {
    return (
      <p class="connection" role="status">
        <span class="dot" aria-hidden="true" /> Live
      </p>
    );
  }
  const refused = lost.error.status >= 400;
  const again = Math.max(0, Math.ceil((lost.retryAt - now) / 1000));
  return (
    <p class="connection lost">
      <strong role="status">
        <span aria-hidden="true">✕</span> {refused ? "Refused" : "Connection lost"}
      </strong>{" "}
      for {duration(Math.round(Math.max(0, now - lost.since) / 1000))}. {lost.error.message} What is shown is from before; next
      try {again > 0 ? `in ${again} s` : "now"}.
    </p>
  );
}

/** What a report is, and of when. */
function Made() {
  const { at, made_at } = REPORT;
  return (
    <p class="connection report">
      Report{at && ` of ${clock(seconds(at))}`}, written {clock(seconds(made_at))}: nothing here is live.
    </p>
  );
}

function Token() {
  const give = (event) => {
    event.preventDefault();
    const given = new FormData(event.target).get("token").trim();
    if (given) setToken(given);
    event.target.reset();
  };
  return (
    <form class="card token" onSubmit={give}>
      <h2>This API wants a token</h2>
      <p>It stays in the memory of this page: a reload or a closed tab forgets it.</p>
      <label>
        Token <input name="token" type="password" autocomplete="off" spellcheck={false} required />
      </label>
      <button type="submit">Use it</button>
    </form>
  );
}

render(<Page />, document.getElementById("page"));
