/** Dark, light, or as the system says. Kept in this browser; everything else a page knows is on the server. */

export type Theme = "system" | "light" | "dark";

const KEY = "roadstead-theme";

export function savedTheme(): Theme {
  try {
    const saved = localStorage.getItem(KEY);
    return saved === "light" || saved === "dark" ? saved : "system";
  } catch {
    return "system"; // storage may be forbidden
  }
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // It then lasts until the page is left.
  }
}
