import type { ReactNode } from "react";
import { Icon } from "../ui/icons";

/** The frame of pages for whoever has not signed in. */
export function Doorway({ title, children }: { title: string; children: ReactNode }) {
  return (
    <main className="doorway">
      <div className="doorway-card">
        <p className="brand">
          <Icon name="anchor" /> Roadstead
        </p>
        <h1>{title}</h1>
        {children}
      </div>
    </main>
  );
}
