/**
 * The console's own building blocks: plain elements with our classes and the accessibility they need.
 * What takes more than an element (dialogs, menus, toasts) is in `overlays.tsx`.
 */

import {
  type ButtonHTMLAttributes,
  type InputHTMLAttributes,
  type ReactNode,
  type SelectHTMLAttributes,
  useId,
  useRef,
  useState,
} from "react";
import type { ApiError } from "../api/http";
import { age } from "../kube/show";
import { useNow } from "./clock";
import { Icon, type IconName } from "./icons";
import { FieldErrors, type Submit, useFieldError } from "./submit";
import type { Tone } from "./tone";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & {
  look?: "plain" | "primary" | "danger" | "quiet";
  icon?: IconName;
  /** Something is under way because of it: it stays focused, and does nothing. */
  busy?: boolean;
};

export function Button({ look = "plain", icon, busy, children, className, onClick, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      className={`button ${look} ${className ?? ""}`}
      aria-busy={busy || undefined}
      // Not `disabled`, which would drop the focus of whoever works by keyboard.
      aria-disabled={busy || undefined}
      onClick={(event) => (busy ? event.preventDefault() : onClick?.(event))}
    >
      {busy ? <span className="spinner" aria-hidden /> : icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

type FormProps = { form: Submit; className?: string; buttons: ReactNode; children: ReactNode };

/** A form: its fields, what went wrong the last time (at the fields it is about, and in words), its buttons. */
export function Form({ form, className, buttons, children }: FormProps) {
  return (
    <form onSubmit={form.onSubmit} className={className}>
      <FieldErrors value={form.error?.fields ?? []}>{children}</FieldErrors>
      {form.error && <ProblemNote error={form.error} />}
      {buttons}
    </form>
  );
}

type FieldProps = { label: string; hint?: ReactNode; compact?: boolean };

/** What every field has: a label, a hint, and in its place what the server says is wrong. */
function useField(name: string | undefined, { label, hint, compact }: FieldProps) {
  const id = useId();
  const error = useFieldError(name);
  const frame = (input: ReactNode) => (
    <div className={compact ? "field compact" : "field"}>
      <label htmlFor={id}>{label}</label>
      {input}
      {(error || hint) && (
        <p id={`${id}-hint`} className={error ? "hint wrong" : "hint"}>
          {error ?? hint}
        </p>
      )}
    </div>
  );
  const described = {
    id,
    "aria-invalid": error ? true : undefined,
    "aria-describedby": error || hint ? `${id}-hint` : undefined,
  } as const;
  return { frame, described };
}

/** `name` is what the API calls the field, so that a refusal finds it. */
export function TextField({ label, hint, ...rest }: FieldProps & InputHTMLAttributes<HTMLInputElement>) {
  const { frame, described } = useField(rest.name, { label, hint });
  return frame(<input autoComplete="off" spellCheck={false} {...rest} {...described} />);
}

type Option = { value: string; text: string };

export function SelectField({
  label,
  hint,
  options,
  compact,
  ...rest
}: FieldProps & { options: readonly Option[] } & SelectHTMLAttributes<HTMLSelectElement>) {
  const { frame, described } = useField(rest.name, { label, hint, compact: compact ?? false });
  return frame(
    <select {...rest} {...described}>
      {options.map((option) => (
        <option key={option.value} value={option.value}>
          {option.text}
        </option>
      ))}
    </select>,
  );
}

/** A state in a word, with a dot whose colour and shape say how it is. */
export function Badge({ tone, children, why }: { tone: Tone; children: ReactNode; why?: string | undefined }) {
  return (
    <span className={`badge ${tone}`} title={why}>
      <span className="dot" aria-hidden />
      {children}
    </span>
  );
}

/** The badge of something in a cluster, by what `kube/show.ts` makes of its status. */
export function StatusBadge({ of }: { of: { tone: Tone; text: string; why?: string | undefined } }) {
  return (
    <Badge tone={of.tone} why={of.why}>
      {of.text}
    </Badge>
  );
}

/** What went wrong and what to do about it. Read aloud when it appears. */
export function ProblemNote({ error, action }: { error: ApiError; action?: ReactNode }) {
  return (
    <div className="note bad" role="alert">
      <Icon name="alert" />
      <div>
        <strong>{error.title}</strong>
        {error.fields.length === 0 && error.detail && <p>{error.detail}</p>}
        {error.fields.map(({ path, detail }) => (
          <p key={path.join("/")}>{[path.join(" › ").replaceAll("_", " "), detail].filter(Boolean).join(": ")}</p>
        ))}
        {action}
      </div>
    </div>
  );
}

export function Note({ children, tone = "idle" }: { children: ReactNode; tone?: Tone }) {
  return (
    <div className={`note ${tone}`} role="status">
      <Icon name="info" />
      <div>{children}</div>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <p className="empty-title">{title}</p>
      {children}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div className="loading" role="status">
      <span className="spinner" aria-hidden /> Loading {what}…
    </div>
  );
}

export function Card({ title, actions, children }: { title?: string; actions?: ReactNode; children: ReactNode }) {
  const id = useId();
  return (
    <section className="card" aria-labelledby={title ? id : undefined}>
      {(title || actions) && (
        <header>
          {title && <h2 id={id}>{title}</h2>}
          {actions && <div className="actions">{actions}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

/** A table that scrolls by itself when the window is narrow. */
export function Table({ label, head, children }: { label: string; head: readonly string[]; children: ReactNode }) {
  return (
    <div className="table-frame">
      <table aria-label={label}>
        <thead>
          <tr>
            {head.map((title, index) => (
              <th key={title || index} scope="col">
                {title || <span className="visually-hidden">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

export function Age({ of }: { of: string | number | undefined | null }) {
  const now = useNow();
  const text = age(of, now);
  if (text === "" || of === undefined || of === null) return null;
  const date = new Date(of);
  return (
    <time dateTime={date.toISOString()} title={date.toLocaleString()}>
      {text}
    </time>
  );
}

/** Words to be taken elsewhere: a command, a secret, an address. */
export function CopyBlock({ text, label, secret }: { text: string; label: string; secret?: boolean }) {
  return (
    <div className="copy-block">
      <pre tabIndex={0} aria-label={label} className={secret ? "secret" : undefined}>
        {text}
      </pre>
      <CopyButton text={text} label={label} />
    </div>
  );
}

export function CopyButton({ text, label, children }: { text: string; label: string; children?: ReactNode }) {
  const [state, setState] = useState<"" | "Copied" | "Select it and copy by hand">("");
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  return (
    <Button
      icon={state === "Copied" ? "check" : "copy"}
      look="quiet"
      aria-label={children ? undefined : `Copy ${label}`}
      onClick={() => {
        // Without TLS, or without leave, a browser keeps the clipboard to itself.
        const written = navigator.clipboard?.writeText(text) ?? Promise.reject(new Error("no clipboard"));
        written.then(
          () => setState("Copied"),
          () => setState("Select it and copy by hand"),
        );
        clearTimeout(timer.current);
        timer.current = setTimeout(() => setState(""), 2500);
      }}
    >
      <span aria-live="polite">{state || children || "Copy"}</span>
    </Button>
  );
}

/** Gives the browser a text to save as a file. */
export function download(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser has taken the bytes over by the next turn.
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A bar that says how far something is. */
export function Progress({ value, label }: { value: number; label: string }) {
  return <progress max={100} value={value} aria-label={label} />;
}

export function Definitions({ rows, inARow }: { rows: readonly (readonly [string, ReactNode])[]; inARow?: boolean }) {
  return (
    <dl className={inARow ? "definitions in-a-row" : "definitions"}>
      {rows.map(([term, value]) => (
        <div key={term}>
          <dt>{term}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
