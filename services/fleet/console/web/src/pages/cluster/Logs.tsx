import { useEffect, useLayoutEffect, useRef, useState, useSyncExternalStore } from "react";
import { useKube } from "../../kube/hooks";
import { LogFollower, MAX_LINES } from "../../kube/logs";
import { Button, ProblemNote } from "../../ui/basics";

/** Within so many pixels of its end, a log is being followed. */
const NEAR = 24;

/** A container's log that grows while it is looked at, and stays where the reader has scrolled to. */
export function Logs({ path, name, live }: { path: string; name: string; live: boolean }) {
  const { base } = useKube();
  const stillLive = useRef(live);
  useEffect(() => {
    stillLive.current = live;
  }, [live]);
  const [follower] = useState(() => new LogFollower(`${base}${path}`, () => stillLive.current));
  const log = useSyncExternalStore(follower.subscribe, follower.snapshot);
  const [times, setTimes] = useState(false);
  const [wrap, setWrap] = useState(true);
  const [atEnd, setAtEnd] = useState(true);
  const frame = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (atEnd && frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [log, atEnd, times, wrap]);
  return (
    <>
      <div className="bar">
        <span className={`log-state ${log.phase}`} role="status">
          {words[log.phase]}
        </span>
        <label className="check">
          <input type="checkbox" checked={times} onChange={(event) => setTimes(event.target.checked)} />
          Times
        </label>
        <label className="check">
          <input type="checkbox" checked={wrap} onChange={(event) => setWrap(event.target.checked)} />
          Wrap
        </label>
        {!atEnd && (
          <Button look="quiet" icon="chevron" onClick={() => setAtEnd(true)}>
            To the newest
          </Button>
        )}
      </div>
      {log.error && log.phase === "failed" && <ProblemNote error={log.error} />}
      <div
        ref={frame}
        className={wrap ? "log wrap" : "log"}
        role="log"
        aria-label={`Log of ${name}`}
        // New lines a second are not to be read aloud over everything else.
        aria-live="off"
        tabIndex={0}
        onScroll={(event) => {
          const { scrollHeight, scrollTop, clientHeight } = event.currentTarget;
          setAtEnd(scrollHeight - scrollTop - clientHeight < NEAR);
        }}
      >
        {log.cut && <div className="log-line quiet-text">Only the last {MAX_LINES} lines are kept here.</div>}
        {log.lines.map((line) => (
          <div key={line.number} className="log-line">
            {times && <span className="log-time">{line.time.slice(0, 23)}</span>}
            {line.text || " "}
          </div>
        ))}
        {log.lines.length === 0 && log.phase !== "failed" && (
          <div className="log-line quiet-text">{log.phase === "ended" ? "It said nothing." : "Nothing said yet."}</div>
        )}
      </div>
    </>
  );
}

const words = {
  connecting: "Connecting…",
  following: "Following live",
  ended: "Ended",
  failed: "Not reachable; trying again",
} as const;
