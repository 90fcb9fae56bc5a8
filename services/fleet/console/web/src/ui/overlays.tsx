/**
 * Dialogs, menus and toasts, on Base UI.
 *
 * Base UI, because it has the keyboard and screen-reader behaviour that is hard to get right, comes
 * unstyled and a component at a time (about 50 KB compressed for what is used here), and adds no `<style>`
 * elements once told so: Radix's dialogs and Mantine insert some, which our policy (`style-src 'self'`)
 * would block, and React Aria's components weigh about twice as much.
 */

import { AlertDialog } from "@base-ui/react/alert-dialog";
import { Dialog } from "@base-ui/react/dialog";
import { Menu } from "@base-ui/react/menu";
import { Toast } from "@base-ui/react/toast";
import { type ReactElement, type ReactNode, useId, useState } from "react";
import { asApiError } from "../api/http";
import { Button, Form } from "./basics";
import { useSubmit } from "./submit";
import { Icon } from "./icons";

type FormDialogProps = {
  title: string;
  /** The button that opens it. */
  trigger: ReactElement<Record<string, unknown>>;
  submit: string;
  /** Closes the dialog when it succeeds; what it throws is shown in the dialog. */
  onSubmit: (form: FormData) => Promise<void>;
  children: ReactNode;
};

/** A dialog around a form. Its fields are remade each time it opens. */
export function FormDialog({ title, trigger, submit, onSubmit, children }: FormDialogProps) {
  const [open, setOpen] = useState(false);
  const form = useSubmit(onSubmit, () => setOpen(false));
  return (
    <Dialog.Root
      open={open}
      onOpenChange={(next) => {
        form.reset();
        setOpen(next);
      }}
    >
      <Dialog.Trigger render={trigger} />
      <Dialog.Portal>
        <Dialog.Backdrop className="backdrop" />
        <Dialog.Popup className="dialog">
          <Dialog.Title>{title}</Dialog.Title>
          <Form
            form={form}
            buttons={
              <div className="dialog-buttons">
                <Dialog.Close render={<Button>Cancel</Button>} />
                <Button look="primary" type="submit" busy={form.busy}>
                  {submit}
                </Button>
              </div>
            }
          >
            {children}
          </Form>
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

type ConfirmProps = {
  title: string;
  trigger: ReactElement<Record<string, unknown>>;
  confirm: string;
  /** Has to be typed first, when what is lost is worth the pause. */
  typed?: string;
  onConfirm: () => Promise<void>;
  children: ReactNode;
};

/** Asks before something that cannot be undone. */
export function ConfirmDialog({ title, trigger, confirm, typed, onConfirm, children }: ConfirmProps) {
  const id = useId();
  const [open, setOpen] = useState(false);
  const [text, setText] = useState("");
  const form = useSubmit(onConfirm, () => setOpen(false));
  const allowed = typed === undefined || text.trim() === typed;
  return (
    <AlertDialog.Root
      open={open}
      onOpenChange={(next) => {
        form.reset();
        setText("");
        setOpen(next);
      }}
    >
      <AlertDialog.Trigger render={trigger} />
      <AlertDialog.Portal>
        <AlertDialog.Backdrop className="backdrop" />
        <AlertDialog.Popup className="dialog">
          <AlertDialog.Title>{title}</AlertDialog.Title>
          <AlertDialog.Description render={<div />}>{children}</AlertDialog.Description>
          <Form
            form={form}
            buttons={
              <div className="dialog-buttons">
                <AlertDialog.Close render={<Button>Cancel</Button>} />
                <Button look="danger" type="submit" busy={form.busy} disabled={!allowed}>
                  {confirm}
                </Button>
              </div>
            }
          >
            {typed !== undefined && (
              <div className="field">
                <label htmlFor={id}>
                  Type <code>{typed}</code> to go on
                </label>
                <input
                  id={id}
                  value={text}
                  autoComplete="off"
                  spellCheck={false}
                  onChange={(event) => setText(event.target.value)}
                />
              </div>
            )}
          </Form>
        </AlertDialog.Popup>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}

export type MenuEntry = { text: string; onSelect: () => void; checked?: boolean } | "separator" | { heading: string };

export function DropMenu({ trigger, entries }: { trigger: ReactElement<Record<string, unknown>>; entries: MenuEntry[] }) {
  return (
    <Menu.Root modal={false}>
      <Menu.Trigger render={trigger} />
      <Menu.Portal>
        <Menu.Positioner className="menu-place" sideOffset={6} align="end">
          <Menu.Popup className="menu">
            {entries.map((entry, index) => {
              if (entry === "separator") return <Menu.Separator key={index} className="menu-separator" />;
              if ("heading" in entry) {
                return (
                  <div key={index} className="menu-heading">
                    {entry.heading}
                  </div>
                );
              }
              return (
                <Menu.Item key={index} className="menu-item" onClick={entry.onSelect}>
                  <span className="menu-check">{entry.checked && <Icon name="check" />}</span>
                  {entry.text}
                  {entry.checked && <span className="visually-hidden">, chosen</span>}
                </Menu.Item>
              );
            })}
          </Menu.Popup>
        </Menu.Positioner>
      </Menu.Portal>
    </Menu.Root>
  );
}

/** Toasts from anywhere, shown by {@link Toasts}. */
const toasts = Toast.createToastManager();

export function say(title: string, description?: string): void {
  toasts.add({ title, ...(description && { description }), timeout: 5000 });
}

export function sayError(thrown: unknown): void {
  const error = asApiError(thrown);
  toasts.add({ title: error.title, description: error.detail, type: "bad", priority: "high", timeout: 10_000 });
}

export function Toasts() {
  return (
    <Toast.Provider toastManager={toasts} limit={3}>
      <Toast.Portal>
        <Toast.Viewport className="toasts">
          <ToastList />
        </Toast.Viewport>
      </Toast.Portal>
    </Toast.Provider>
  );
}

function ToastList() {
  const { toasts } = Toast.useToastManager();
  return toasts.map((toast) => (
    <Toast.Root key={toast.id} toast={toast} className={`toast ${toast.type ?? ""}`}>
      <div>
        <Toast.Title className="toast-title" />
        <Toast.Description className="toast-text" />
      </div>
      <Toast.Close className="button quiet" aria-label="Close">
        <Icon name="close" />
      </Toast.Close>
    </Toast.Root>
  ));
}
