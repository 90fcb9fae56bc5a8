/** Starts the console: one query client, one router. The routes are in `router.tsx`. */

import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { createRoot } from "react-dom/client";
import { whenSignedOut } from "./api/http";
import { queryClient, router } from "./router";
import { sessionQuery } from "./session";
import "./style.css";
import { applyTheme, savedTheme } from "./ui/theme";

applyTheme(savedTheme());

// A session that ended while a page was open: the page's own guard then leads to the sign-in.
whenSignedOut(() => {
  if (queryClient.getQueryData(sessionQuery.queryKey)) {
    queryClient.setQueryData(sessionQuery.queryKey, null);
    void router.invalidate();
  }
});

const root = document.getElementById("root");
if (!root) throw new Error("index.html has lost its root element");
createRoot(root).render(
  <QueryClientProvider client={queryClient}>
    <RouterProvider router={router} />
  </QueryClientProvider>,
);
