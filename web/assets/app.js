// The dashboard: takes over the page that the server rendered, and keeps it
// current from one stream of server-sent events. What is shown is rendered by
// the server; this file only puts it in place and draws the charts.
(function () {
  "use strict";
  var $ = function (id) { return document.getElementById(id); };

  // --- sections ---------------------------------------------------------
  // A section is changed in place, node by node, so that focus, selection and
  // scrolling survive.
  function morph(to, from) {
    var a = Array.prototype.slice.call(to.childNodes), b = Array.prototype.slice.call(from.childNodes);
    for (var i = 0; i < Math.max(a.length, b.length); i++) {
      var x = a[i], y = b[i];
      if (!y) { to.removeChild(x); continue; }
      if (!x) { to.appendChild(y); continue; }
      if (x.nodeType !== y.nodeType || x.nodeName !== y.nodeName) { to.replaceChild(y, x); continue; }
      if (x.nodeType !== 1) { if (x.nodeValue !== y.nodeValue) x.nodeValue = y.nodeValue; continue; }
      var j, n;
      for (j = x.attributes.length - 1; j >= 0; j--) {
        n = x.attributes[j].name;
        if (!y.hasAttribute(n)) x.removeAttribute(n);
      }
      for (j = 0; j < y.attributes.length; j++) {
        n = y.attributes[j];
        if (x.getAttribute(n.name) !== n.value) x.setAttribute(n.name, n.value);
      }
      morph(x, y);
    }
  }

  function show(sections) {
    Object.keys(sections).forEach(function (name) {
      var at = $("s-" + name);
      if (!at) return;
      var fresh = document.createElement("template");
      fresh.innerHTML = sections[name]; // rendered and escaped by the server
      morph(at, fresh.content);
    });
    var badge = document.querySelector("#s-top .badge"), job = document.querySelector("#s-top h1");
    if (badge && job) document.title = job.textContent.replace("millrace ", "") + ": " + badge.textContent + " – millrace";
  }

  // --- charts -----------------------------------------------------------
  var hour = 3600, least = 300, keep = 720, data = null, charts = [];
  var colours = function () {
    var s = getComputedStyle(document.documentElement);
    return { ink: s.getPropertyValue("--dim").trim(), line: s.getPropertyValue("--line").trim(), accent: s.getPropertyValue("--accent").trim() };
  };
  function bytes(v) {
    if (v == null) return "–";
    var u = ["B", "KiB", "MiB", "GiB", "TiB"], i = 0;
    while (v >= 1024 && i < u.length - 1) { v /= 1024; i++; }
    return (i === 0 || v >= 100 ? Math.round(v) : v.toFixed(1)) + " " + u[i];
  }
  function number(v) {
    if (v == null) return "–";
    if (v !== 0 && Math.abs(v) < 10) return String(+v.toPrecision(2));
    return Math.round(v).toLocaleString("en");
  }
  function seconds(v) {
    if (v == null) return "–";
    if (v < 1) return Math.round(v * 1000) + " ms";
    if (v < 120) return (v < 10 ? v.toFixed(1) : Math.round(v)) + " s";
    return v < 7200 ? Math.round(v / 60) + " min" : Math.round(v / 3600) + " h";
  }
  var wanted = [
    { id: "c-lag", column: "lag_seconds", text: seconds },
    { id: "c-rate", column: "changes", text: number },
    { id: "c-wal", column: "retained", text: bytes, round: 1024 }
  ];

  function axisText(text) { return function (u, ticks) { return ticks.map(function (v) { return v == null ? "" : text(v); }); }; }

  // Whole multiples of 1024 read better than of 1000 where bytes are meant.
  function splits(u, axis, min, max) {
    var step = 1, out = [];
    while ((max - min) / step > 4) step *= 2;
    for (var v = Math.ceil(min / step) * step; v <= max; v += step) out.push(v);
    return out;
  }

  function draw() {
    charts.forEach(function (c) { c.plot.destroy(); });
    charts = [];
    if (!data || !window.uPlot) return;
    var c = colours();
    wanted.forEach(function (w) {
      var box = $(w.id);
      var axis = { stroke: c.ink, grid: { stroke: c.line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      var y = Object.assign({ size: 62, values: axisText(w.text), space: 30 }, axis);
      if (w.round) y.splits = splits;
      var plot = new uPlot({
        width: box.clientWidth, height: 150, legend: { show: false }, cursor: { y: false, sync: { key: "millrace" }, points: { size: 7 } },
        scales: {
          x: { time: true, range: function () { var n = data.t.length, end = n ? data.t[n - 1] : Date.now() / 1000; return [Math.max(end - hour, Math.min(n ? data.t[0] : end, end - least)), end]; } },
          y: { range: function (u, min, max) { return [0, max > 0 ? max * 1.1 : 1]; } }
        },
        axes: [Object.assign({ size: 26, space: 70, values: [[60, "{HH}:{mm}", null, null, null, null, null, null, 1]] }, axis), y],
        series: [{}, { stroke: c.accent, width: 1.5, fill: c.accent + "26", points: { show: false }, spanGaps: false }],
        hooks: { setCursor: [function (u) { readout(w, u.cursor.idx); }] }
      }, [data.t, data[w.column]], box);
      charts.push({ w: w, plot: plot });
      box.querySelector("canvas").setAttribute("aria-hidden", "true");
      readout(w, null);
    });
  }

  // The value at the pointer, else the newest one, beside the title; the
  // highest of the hour belongs to it, since a spike is what one looks for.
  function readout(w, idx) {
    var values = data[w.column], n = values.length;
    if (idx != null && idx < n) { $(w.id + "-now").textContent = new Date(data.t[idx] * 1000).toLocaleTimeString() + "  " + w.text(values[idx]); return; }
    var top = null;
    values.forEach(function (v) { if (v != null && (top == null || v > top)) top = v; });
    $(w.id + "-now").textContent = w.text(n ? values[n - 1] : null) + (top == null ? "" : "  (most " + w.text(top) + ")");
  }

  function take(more) {
    if (!data) { data = more; draw(); return; }
    Object.keys(data).forEach(function (k) {
      data[k] = data[k].concat(more[k] || []);
      if (data[k].length > keep) data[k] = data[k].slice(-keep);
    });
    charts.forEach(function (c) {
      c.plot.setData([data.t, data[c.w.column]]);
      if (c.plot.cursor.idx == null || c.plot.cursor.left < 0) readout(c.w, null);
    });
  }

  var resizing = 0;
  window.addEventListener("resize", function () {
    clearTimeout(resizing);
    resizing = setTimeout(function () {
      charts.forEach(function (c) { c.plot.setSize({ width: $(c.w.id).clientWidth, height: 150 }); });
    }, 100);
  });

  // --- theme ------------------------------------------------------------
  var root = document.documentElement, themes = ["auto", "light", "dark"], button = $("theme");
  function theme(name) {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    try { localStorage.setItem("millrace-theme", name); } catch (e) { /* not allowed: until the page is left */ }
    button.textContent = "Theme: " + name;
    draw();
  }
  button.hidden = false;
  button.textContent = "Theme: " + (root.dataset.theme || "auto");
  button.addEventListener("click", function () {
    theme(themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length]);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // --- actions ----------------------------------------------------------
  // Only where the operator has enabled them. The server refuses what comes
  // from a page of another origin.
  var add = $("add");
  function act(action, tables) {
    $("said").textContent = "…";
    fetch("/tables", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ action: action, tables: tables }) })
      .then(function (res) { return res.json().then(function (got) { return { ok: res.ok, got: got }; }); })
      .then(function (r) {
        var done = { add: "is loaded beside the stream", resnapshot: "is read again", drop: "is no longer carried" };
        $("said").className = r.ok ? "good" : "poor";
        $("said").textContent = r.ok ? r.got.tables.join(", ") + " " + done[action] : r.got.error + (r.got.hint ? " – " + r.got.hint : "");
        if (r.ok) $("add-table").value = "";
      }, function () {
        $("said").className = "poor";
        $("said").textContent = "No answer: look at the events below.";
      });
  }
  if (add) {
    add.hidden = false;
    document.documentElement.classList.add("acts");
    add.addEventListener("submit", function (e) { e.preventDefault(); act("add", $("add-table").value.match(/(?:"[^"]*"?|[^\s"])+/g) || []); }); // blanks within quotes are part of a name
    $("s-tables").addEventListener("click", function (e) {
      var b = e.target.closest("button[data-action]"), ask = $("ask");
      if (!b) return;
      var action = b.dataset.action, table = b.dataset.table;
      $("ask-what").textContent = action === "drop" ?
        "Take " + table + " out of the job? Its rows stay at the destination, and its changes are no longer carried." :
        "Read " + table + " again? It stays as it is until all is read; then what differs is written, in one transaction.";
      $("ask-yes").textContent = action === "drop" ? "Drop" : "Read again";
      ask.returnValue = "";
      ask.onclose = function () { if (ask.returnValue === "yes") act(action, [table]); };
      ask.showModal();
    });
  }

  // --- stream -----------------------------------------------------------
  // Old values that look current are the worst a dashboard can show: when
  // nothing has come for five seconds the page says so.
  var last = Date.now(), stream = null;
  function alive() {
    last = Date.now();
    $("live").hidden = false;
    $("live").textContent = "live";
    $("lost").hidden = true;
  }
  function watch() {
    if (Date.now() - last > 5000) {
      $("live").hidden = true;
      $("lost").hidden = false;
      $("lost").textContent = "No contact with Millrace since " + new Date(last).toLocaleTimeString() + ": what stands here is from then.";
    }
    if (!stream || stream.readyState === EventSource.CLOSED) connect();
  }
  function connect() {
    stream = new EventSource("/events");
    stream.addEventListener("history", function (e) { data = null; alive(); $("charts").hidden = false; take(JSON.parse(e.data)); });
    stream.addEventListener("sample", function (e) { take(JSON.parse(e.data)); });
    stream.addEventListener("page", function (e) { alive(); show(JSON.parse(e.data)); });
  }
  connect();
  setInterval(watch, 2500);
})();
