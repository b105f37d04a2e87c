// Sends the form when it changes and shows the answer; sliders, undo, links. Without this script, the form is sent by
// its button.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const form = byId("form");
  const controls = Array.from(form.elements).filter((control) => control.name);
  const status = byId("status");
  const answer = byId("answer");
  document.documentElement.classList.add("scripted");

  // Sliders: the positions are the numbers in `data-positions`; the number field accepts the numbers between them.
  const sliders = Array.from(form.querySelectorAll(".slider"), (slider) => {
    const number = byId(slider.dataset.for);
    const positions = slider.dataset.positions.split(" ").map(Number);
    const follow = () => {
      const value = Number(number.value);
      const distances = positions.map((position) => Math.abs(position - value));
      slider.value = String(distances.indexOf(Math.min(...distances)));
      slider.setAttribute("aria-valuetext", number.value);
    };
    slider.addEventListener("input", () => {
      number.value = String(positions[Number(slider.value)]);
      slider.setAttribute("aria-valuetext", number.value);
      schedule();
    });
    slider.hidden = false;
    return follow;
  });

  const readForm = () => new URLSearchParams(new FormData(form)).toString();
  const writeForm = (query) => {
    const values = new URLSearchParams(query);
    for (const control of controls) {
      if (values.has(control.name)) control.value = values.get(control.name);
    }
    sliders.forEach((follow) => follow());
  };

  // Undo and redo: the states of the form, and the position of the one that is shown.
  let states = [];
  let shown = -1;
  const showHistory = () => {
    byId("undo").disabled = shown <= 0;
    byId("redo").disabled = shown >= states.length - 1;
  };
  const remember = (query) => {
    if (states[shown] === query) return;
    states = [...states.slice(0, shown + 1), query].slice(-200);
    shown = states.length - 1;
    showHistory();
  };
  const go = (step) => {
    if (!(shown + step in states)) return;
    shown += step;
    writeForm(states[shown]);
    showHistory();
    send(states[shown]);
  };
  for (const [id, step] of [["undo", -1], ["redo", 1]]) {
    byId(id).hidden = false;
    byId(id).addEventListener("click", () => { commit(); go(step); });
  }
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
    const key = event.key.toLowerCase();
    const step = key === "z" ? (event.shiftKey ? 1 : -1) : key === "y" ? 1 : 0;
    if (step === 0) return;
    event.preventDefault();
    commit();
    go(step);
  });

  // Texts and links of the state.
  const say = (text, isBad) => {
    status.textContent = text;
    status.classList.toggle("bad", isBad);
  };
  const showError = (field, message) => {
    for (const control of controls) {
      const isMeant = control.name === field;
      control.setAttribute("aria-invalid", String(isMeant));
      const line = byId(`error-${control.name}`);
      line.hidden = !isMeant;
      line.textContent = isMeant ? message : "";
    }
  };
  const showForm = (state) => {
    // The files and the link are those of the form: without one, there are none.
    byId("take").hidden = !state;
    if (!state) {
      byId("link-line").hidden = true;
      return;
    }
    const applies = new Set(state.applies);
    for (const control of controls) {
      byId(`field-${control.name}`).dataset.applies = applies.has(control.name) ? "yes" : "no";
      const note = byId(`note-${control.name}`);
      if (note) {
        note.textContent = state.notes[control.name] || "";
        note.hidden = note.textContent === "";
      }
    }
    history.replaceState(null, "", `?${state.query}`);
    for (const link of document.querySelectorAll(".download")) link.href = `${link.dataset.path}?${state.query}`;
    byId("link").value = location.href;
  };
  const setBusy = (isBusy) => {
    answer.setAttribute("aria-busy", String(isBusy));
    if (!isBusy) byId("running").hidden = true;
  };
  // A form without an answer can be sent again by its button.
  const offerSending = (isOffered) => form.toggleAttribute("data-unanswered", isOffered);

  // Requests: a new one replaces the current one, whose computation is stopped.
  let current = null;
  const leave = () => {
    if (!current) return;
    if (current.ticket) navigator.sendBeacon(`answers/${current.ticket}/stop`);
    current.abort.abort();
    current = null;
  };
  const showProgress = (reply) => {
    const progress = byId("progress");
    byId("running").hidden = false;
    if (reply.total > 0) {
      progress.max = reply.total;
      progress.value = reply.done;
      say(`Computing: ${reply.done} of ${reply.total} runs done.`, false);
    } else {
      progress.removeAttribute("value");
      say(reply.waits ? "Waiting for other computations." : "Preparing the runs.", false);
    }
  };
  const show = (reply) => {
    setBusy(false);
    offerSending(reply.state !== "done");
    if (reply.state === "done") {
      showError(null, "");
      answer.innerHTML = reply.html;
      answer.dataset.count = String(Number(answer.dataset.count || 0) + 1);
      document.dispatchEvent(new CustomEvent("content", { detail: answer }));
      say(reply.sentence, false);
    } else {
      answer.replaceChildren();
      showError(reply.field || null, reply.message);
      say(reply.message, true);
    }
  };
  const ask = async (address, options) => {
    const response = await fetch(address, options);
    const isJson = (response.headers.get("content-type") || "").startsWith("application/json");
    return isJson ? response.json() : { state: "failed", message: (await response.text()).trim() };
  };
  const send = async (query) => {
    leave();
    const request = { abort: new AbortController(), ticket: null };
    current = request;
    setBusy(true);
    offerSending(false);
    const signal = request.abort.signal;
    const headers = { "content-type": "application/x-www-form-urlencoded" };
    try {
      let reply = await ask("answers", { method: "POST", body: query, headers, signal });
      if (current === request) showForm(reply.form);
      while (reply.state === "running" && current === request) {
        request.ticket = reply.ticket;
        showProgress(reply);
        reply = await ask(`answers/${reply.ticket}`, { signal });
      }
      request.ticket = null;
      if (current === request) show(reply);
    } catch (error) {
      if (current !== request) return;
      setBusy(false);
      offerSending(true);
      say("The server does not reply. Is `fabricast serve` still running?", true);
    }
  };

  // Changes: sent at once, except while a slider moves or digits are typed.
  let timer = null;
  let isEmpty = false;
  const commit = () => {
    if (timer === null) return;
    clearTimeout(timer);
    timer = null;
    update();
  };
  const update = () => {
    sliders.forEach((follow) => follow());
    const wasEmpty = isEmpty;
    const empty = controls.find((control) =>
      control.type === "number" && control.value === "" && byId(`field-${control.name}`).dataset.applies === "yes");
    isEmpty = empty !== undefined;
    if (isEmpty) {
      showError(empty.name, `Give a number ${empty.title}.`);
      return;
    }
    const query = readForm();
    if (states[shown] === query && !wasEmpty) return;
    remember(query);
    send(query);
  };
  const sendNow = () => {
    clearTimeout(timer);
    timer = null;
    isEmpty = false;
    sliders.forEach((follow) => follow());
    remember(readForm());
    send(readForm());
  };
  const schedule = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { timer = null; update(); }, 250);
  };
  form.addEventListener("input", (event) => { if (event.target.type === "number") schedule(); });
  form.addEventListener("change", () => { if (timer === null) update(); else commit(); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sendNow();
  });
  byId("reset").addEventListener("click", (event) => {
    event.preventDefault();
    for (const control of controls) control.value = control.dataset.default;
    sendNow();
  });
  byId("stop").addEventListener("click", () => {
    leave();
    setBusy(false);
    offerSending(true);
    say("Stopped.", false);
  });
  byId("copy").hidden = false;
  byId("copy").addEventListener("click", async () => {
    byId("link").value = location.href;
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link is copied.", false);
    } catch (error) {
      // The clipboard needs permission, and an address that browsers take for secure.
      byId("link-line").hidden = false;
      byId("link").focus();
      byId("link").select();
      say("Copy the selected link.", false);
    }
  });
  // A closed tab stops its computation.
  addEventListener("pagehide", leave);
  // A page from the browser's cache has no computation any more.
  addEventListener("pageshow", (event) => { if (event.persisted && !form.hasAttribute("data-unanswered")) send(readForm()); });

  sliders.forEach((follow) => follow());
  remember(readForm());
  // The answer to the form of a refused link would be taken for that of the link.
  if (!form.hasAttribute("data-unanswered")) send(readForm());
})();
