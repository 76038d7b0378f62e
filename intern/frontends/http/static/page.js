// What pages do where scripts run; all of it works without them, too.
// - [data-live] with an id: its content is fetched anew every 30 seconds while the page is seen. It is left as it is
//   while the focus, an open fold, or words that were typed are in it.
// - form[data-filter=ID]: a change of a field fetches the page with the form's fields and replaces the element of
//   that id. The address follows, so that it can be kept and sent.
// - [data-keys]: while the focus is in it, "j" and "k" go to the next and the last one of its [data-item], and a key
//   of a [data-key] in the focused one presses that button. Keys do nothing in fields (WCAG 2.1.4: on focus only).
// - svg[data-plot]: arrow keys and the pointer choose a day; the output below tells its values.
"use strict";

(() => {
  const REFRESH = 30000;
  const TYPING = 300;

  const typed = (field) => field.type === "checkbox" || field.type === "radio"
    ? field.checked !== field.defaultChecked
    : field.tagName === "SELECT"
      ? [...field.options].some((each) => each.selected !== each.defaultSelected)
      : field.value !== field.defaultValue;
  const inUse = (part) => part.contains(document.activeElement) || part.querySelector("details[open]")
    || [...part.querySelectorAll("input, textarea, select")].some(typed);

  const fetched = async (address, signal) => {
    const response = await fetch(address, { credentials: "same-origin", signal });
    // A session that ended leads to the login: no part of that belongs here.
    if (!response.ok || response.redirected) return null;
    return new DOMParser().parseFromString(await response.text(), "text/html");
  };
  const replace = (part, page) => {
    const fresh = page && page.getElementById(part.id);
    if (fresh) {
      part.replaceChildren(...fresh.childNodes);
      plots(part);
    }
  };

  const live = () => [...document.querySelectorAll("[data-live][id]")];
  const refresh = async () => {
    if (document.hidden || !live().length) return;
    try {
      const page = await fetched(location.href);
      for (const part of live()) if (!inUse(part)) replace(part, page);
    } catch { /* the bot is away; the page says as of when it is */ }
  };

  const filtering = (form) => {
    let timer, current;
    const apply = async () => {
      clearTimeout(timer);
      current?.abort();
      current = new AbortController();
      const wanted = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
      const address = new URL(form.getAttribute("action") || location.pathname, location.href);
      address.search = wanted.toString();
      try {
        const page = await fetched(address, current.signal);
        if (!page) return form.submit();
        replace(document.getElementById(form.dataset.filter), page);
        history.replaceState(null, "", address);
      } catch (error) {
        if (error.name !== "AbortError") form.submit();
      }
    };
    form.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
    form.addEventListener("change", apply);
    form.addEventListener("input", (event) => {
      if (event.target.tagName !== "SELECT") {
        clearTimeout(timer);
        timer = setTimeout(apply, TYPING);
      }
    });
  };

  const keys = (list) => list.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const items = [...list.querySelectorAll("[data-item]")];
    const here = items.findIndex((each) => each.contains(document.activeElement));
    const step = { j: 1, k: -1 }[event.key];
    if (step) {
      const next = items[Math.max(0, Math.min(items.length - 1, here + step))];
      next?.focus();
      next?.scrollIntoView({ block: "nearest" });
      event.preventDefault();
      return;
    }
    const button = [...(items[here]?.querySelectorAll("[data-key]") ?? [])].find((each) => each.dataset.key === event.key);
    if (button) {
      event.preventDefault();
      button.click();
    }
  });

  const plots = (part) => {
    for (const plot of part.querySelectorAll("svg[data-plot]")) {
      const days = [...plot.querySelectorAll("g")];
      const said = plot.closest("figure").querySelector("output");
      let chosen = -1;
      const choose = (n) => {
        days[chosen]?.classList.remove("on");
        chosen = n;
        days[n]?.classList.add("on");
        said.textContent = days[n]?.querySelector("title").textContent ?? "";
      };
      plot.setAttribute("tabindex", "0");
      plot.addEventListener("focus", () => choose(days.length - 1));
      plot.addEventListener("blur", () => choose(-1));
      plot.addEventListener("pointerover", (event) => choose(days.indexOf(event.target.closest("g"))));
      plot.addEventListener("pointerleave", () => choose(-1));
      plot.addEventListener("keydown", (event) => {
        const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: days.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        choose(Math.max(0, Math.min(days.length - 1, to)));
      });
    }
  };

  document.querySelectorAll("form[data-filter]").forEach(filtering);
  document.querySelectorAll("[data-keys]").forEach(keys);
  plots(document);
  setInterval(refresh, REFRESH);
})();
