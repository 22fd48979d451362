/* The theme: the system's until one is chosen; set before anything is painted, hence no module. */
(() => {
  const key = "flyserve.theme";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  try {
    const chosen = localStorage.getItem(key);
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden; then the choice lasts as long as the page.
  }

  document.addEventListener("DOMContentLoaded", () => {
    const toggle = document.getElementById("theme");
    const announce = () => toggle.setAttribute("aria-pressed", String(isDark()));
    toggle.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      announce();
      try {
        localStorage.setItem(key, root.dataset.theme);
      } catch {
        // As above.
      }
    });
    system.addEventListener("change", announce);
    announce();
  });
})();
