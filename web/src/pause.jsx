// Pausing and resuming, with a reason that stays with the policy.

import { useState } from "preact/hooks";
import { Act } from "./act.jsx";
import { resource } from "./address.js";
import { ask } from "./api.js";
import { Problem, Text } from "./parts.jsx";
import { ago, seconds } from "./words.js";

const BECAUSE = "weir.dev/mode-because";

export function Pause({ application, summary, policy, cycles, now, changed }) {
  const [isAsked, asks] = useState(false);
  const [state, set] = useState({ isBusy: false, error: null });
  if (policy === null) return null;
  const { metadata, spec } = policy;
  const isPaused = spec.mode === "paused";
  const reason = metadata.annotations?.[BECAUSE];
  const act = async (event) => {
    event.preventDefault();
    const because = new FormData(event.target).get("reason").trim();
    set({ isBusy: true, error: null });
    try {
      const query = because ? `?${new URLSearchParams({ reason: because })}` : "";
      await ask(resource("policies", application, `/${isPaused ? "resume" : "pause"}${query}`), { method: "POST" });
      asks(false);
      set({ isBusy: false, error: null });
      changed();
    } catch (error) {
      set({ isBusy: false, error });
    }
  };
  return (
    <div class="pause">
      {isPaused && (
        <p>
          <strong>Paused</strong>
          {metadata.updatedBy && (
            <>
              {" by "}
              <Text>{metadata.updatedBy}</Text>
            </>
          )}
          {now != null && metadata.updatedAt && ` ${ago(now - seconds(metadata.updatedAt))}`}
          {reason && (
            <>
              : <Text>{reason}</Text>
            </>
          )}
        </p>
      )}
      {isAsked ? (
        <form onSubmit={act}>
          <label>
            Reason <input name="reason" maxlength={200} autofocus autocomplete="off" placeholder={isPaused ? "such as: migration done" : "such as: migration until 15:00"} />
          </label>
          <button type="submit" disabled={state.isBusy}>
            {isPaused ? "Resume planning" : "Pause planning"}
          </button>
          <button type="button" class="quiet" onClick={() => asks(false)}>
            Cancel
          </button>
        </form>
      ) : (
        <button type="button" onClick={() => asks(true)}>
          {isPaused ? "Resume …" : "Pause …"}
        </button>
      )}
      {state.error && <Problem error={state.error}>Not done:</Problem>}
      {summary.mode === "advise" && !isPaused && (
        <>
          <p class="under">Weir only advises here: it changes nothing.</p>
          <Act application={application} summary={summary} policy={policy} cycles={cycles} now={now} changed={changed} />
        </>
      )}
    </div>
  );
}
