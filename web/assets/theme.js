// Runs before the first paint, so that a chosen theme does not flash.
(function () {
  "use strict";
  try {
    var chosen = localStorage.getItem("millrace-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (e) { /* storage is not allowed: the system's theme it is */ }
})();
