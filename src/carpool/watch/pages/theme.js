// Light or dark: as the system has it until somebody chooses; then as chosen, in this browser.

(() => {
  const NAME = "carpool-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  function chosen() {
    try { return localStorage.getItem(NAME); } catch { return null; }
  }

  function show() {
    const theme = chosen() ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = theme === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
    }
    document.dispatchEvent(new Event("themechange"));
  }

  function flip() {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    const isSystems = next === (dark.matches ? "dark" : "light");
    try {
      if (isSystems) localStorage.removeItem(NAME);
      else localStorage.setItem(NAME, next);
    } catch {
      root.dataset.theme = next;
    }
    show();
  }

  dark.addEventListener("change", show);
  show();
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme")?.addEventListener("click", flip);
  });
})();
