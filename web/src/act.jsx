// From advising to acting, behind what following the advice would have done.

import { useState } from "preact/hooks";
import { format, resource } from "./address.js";
import { ask } from "./api.js";
import { Problem, Text } from "./parts.jsx";
import { changes, clock, duration, seconds } from "./words.js";

/** Advised changes that are listed, the newest. */
const MOST = 6;

export function Act({ application, summary, policy, cycles, now, changed }) {
  const [isAsked, asks] = useState(false);
  const [state, set] = useState({ isBusy: false, error: null });
  const act = async () => {
    set({ isBusy: true, error: null });
    try {
      // The document that was shown: one that another has changed meanwhile is refused by its version.
      const body = JSON.stringify({ ...policy, spec: { ...policy.spec, mode: "act" } });
      await ask(resource("policies", application), { method: "PUT", body, headers: { "Content-Type": "application/json" } });
      asks(false);
      set({ isBusy: false, error: null });
      changed();
    } catch (error) {
      set({ isBusy: false, error });
      changed();
    }
  };
  if (!isAsked) {
    return (
      <button type="button" onClick={() => asks(true)}>
        Let it act …
      </button>
    );
  }
  const advised = cycles.filter((each) => each.plan?.kind === "scale");
  const plan = cycles[0]?.plan;
  const { min, max } = policy.spec.bounds ?? {};
  return (
    <div class="act" role="group" aria-labelledby="act-title">
      <h2 id="act-title">What it would have done</h2>
      <p>
        <Text>{summary.spend_sentence ?? "Nothing is known yet of what following the plans would have cost."}</Text>
      </p>
      {advised.length === 0 ? (
        <p class="under">It advised no change in the decisions that are kept.</p>
      ) : (
        <ol class="differences">
          {advised.slice(0, MOST).map(({ plan: each }) => (
            <li key={each.id}>
              <a href={format({ view: "application", application, choices: { at: each.created_at, plan: each.id } })}>
                <time datetime={each.created_at}>{clock(seconds(each.created_at), now)}</time>
              </a>{" "}
              <Text>{changes(each.current, each.approved)}</Text>
              {each.prediction && each.hold_prediction && (
                <small>
                  {" "}
                  late {duration(each.prediction.violation_seconds)} instead of {duration(each.hold_prediction.violation_seconds)}
                </small>
              )}
            </li>
          ))}
        </ol>
      )}
      <p>
        <strong>Now:</strong> <Text>{plan ? plan.sentence : "no decision yet"}</Text> Its bounds are {min ?? 1} to {max ?? "no limit"}.
      </p>
      <button type="button" onClick={act} disabled={state.isBusy}>
        Act from now on
      </button>{" "}
      <button type="button" class="quiet" onClick={() => asks(false)}>
        Only advise
      </button>
      {state.error && <Problem error={state.error}>Not done:</Problem>}
    </div>
  );
}
