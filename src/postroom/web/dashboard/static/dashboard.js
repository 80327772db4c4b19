// What a script adds: pages that keep themselves up to date, and keys. Everything can be read and done without it.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");

  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  let live = find("#live");
  let stale = false;

  // A page stays still while somebody selects or writes: what is acted on is what is seen.
  const picked = () => all("[data-pick]:checked").length;
  const writes = () => document.activeElement !== null && document.activeElement.matches("#main input:not([type=checkbox]), #main select, #main textarea");
  const still = () => document.hidden || picked() > 0 || writes() || (find("#help") && find("#help").open);

  const tell = (state, text) => {
    const pulse = find("#pulse");
    if (pulse && pulse.dataset.state !== state) {
      pulse.dataset.state = state;
      pulse.textContent = text;
    }
  };
  const refresh = () => live && window.htmx && window.htmx.trigger("#live", "refresh");
  const goOn = () => {
    if (!still() && stale) {
      stale = false;
      refresh();
    }
    tell(picked() > 0 ? "paused" : "live", picked() > 0 ? "Paused" : "Live");
  };

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target === live && still()) {
      stale = true;
      event.preventDefault();
    }
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.target === live) {
      tell(event.detail.successful ? "live" : "lost", event.detail.successful ? "Live" : "Not reached");
    }
  });
  // Browsers open a stream again that breaks: only a longer silence is worth telling.
  let silence = 0;
  document.addEventListener("htmx:sseError", () => {
    clearTimeout(silence);
    silence = setTimeout(() => tell("lost", "Not reached"), 5000);
  });
  document.addEventListener("htmx:sseOpen", () => {
    clearTimeout(silence);
    goOn();
  });
  document.addEventListener("focusout", () => setTimeout(goOn, 0));

  // A hidden tab holds no connection: browsers allow six to a server, and the database need not be asked.
  let stream = null;
  const wake = () => {
    const awake = live.cloneNode(true);
    live.replaceWith(awake);
    live = awake;
    window.htmx.process(live);
    refresh();
  };
  if (window.htmx) {
    window.htmx.createEventSource = (url) => {
      const source = new EventSource(url);
      // The server ends each stream after a while, so that it can stop.
      source.addEventListener("end", () => {
        source.close();
        if (stream === source && !document.hidden) wake();
      });
      if (document.hidden) source.close();
      stream = source;
      return source;
    };
  }
  document.addEventListener("visibilitychange", () => {
    if (!live || !window.htmx) return;
    if (!document.hidden) wake();
    else if (stream) stream.close();
  });

  const count = () => {
    for (const place of all("[data-picked]")) {
      place.textContent = picked() > 0 ? `${picked()} selected:` : "With the selected:";
    }
    goOn();
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) {
      for (const box of all("[data-pick]")) box.checked = event.target.checked;
    }
    if (event.target.matches("[data-all], [data-pick]")) count();
  });

  // Times stay right while a page is open.
  const span = (seconds) => {
    for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
    }
    return `${Math.round(seconds)} s`;
  };
  setInterval(() => {
    if (document.hidden) return;
    for (const time of all("time[data-ago]")) {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const text = seconds < 0 ? `in ${span(-seconds)}` : seconds < 1 ? "just now" : `${span(seconds)} ago`;
      if (time.textContent !== text) time.textContent = text;
    }
  }, 5000);

  // A second click sends nothing twice.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
    setTimeout(() => delete event.target.dataset.sent, 3000);
  });

  // On a narrow screen, the sections scroll: the current one must be seen.
  const section = find(".side [aria-current]");
  if (section && section.parentElement.scrollWidth > section.parentElement.clientWidth) {
    section.parentElement.scrollLeft = section.offsetLeft - 16;
  }

  // Keys.
  const move = (by) => {
    const rows = all("[data-row]");
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.classList.contains("current"));
    const to = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1);
    for (const row of rows) row.classList.toggle("current", row === rows[to]);
    rows[to].scrollIntoView({ block: "nearest" });
    const link = find("[data-open]", rows[to]);
    if (link) link.focus({ preventScroll: true });
  };
  const places = { o: "./", m: "messages", d: "dead", s: "sagas", t: "transactions", l: "lookup", a: "audit" };
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (Date.now() - going < 1500 && places[event.key]) {
      going = 0;
      location.assign(places[event.key]);
      return;
    }
    const current = find("[data-row].current");
    switch (event.key) {
      case "/": event.preventDefault(); find("#q").focus(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "g": going = Date.now(); break;
      case "x": {
        const box = current && find("[data-pick]", current);
        if (box) { box.checked = !box.checked; count(); }
        break;
      }
      case "?": if (find("#help")) find("#help").showModal(); break;
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-help]")) find("#help").showModal();
  });
})();
