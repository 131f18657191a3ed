const server = (() => {
  const { byId, bytes, element, svg, time } = weft;
  const INTERVAL = 2000; // milliseconds between looks at the figures
  const LIMIT = 10000; // milliseconds that an answer with figures may take
  let key = "";

  class RequestError extends Error {
    constructor(message, status) {
      super(message);
      this.status = status;
    }
  }

  // -- requests -------------------------------------------------------------------------------------------------------

  const send = async (path, options = {}) => {
    const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}) };
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError("The server does not answer.", 0);
    }
    if (response.ok) return response;
    throw new RequestError(describeError(await response.text(), response.status), response.status);
  };
  const describeError = (text, status) => {
    try {
      const { error } = JSON.parse(text);
      return typeof error === "string" ? error : error.message;
    } catch {
      return `The server answers with status ${status}.`;
    }
  };
  const post = (path, body, signal) => send(path, { method: "POST", body, signal });
  const modelPath = (model) => `v2/models/${encodeURIComponent(model.name)}/versions/${encodeURIComponent(model.version)}`;

  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const curl = (path, body) => {
    const access = weft.data.hasKey ? ' \\\n  -H "Authorization: Bearer $API_KEY"' : "";
    const content = body.length <= 4000 ? quote(body) : "@request.json";
    const type = ` \\\n  -H 'Content-Type: application/json' \\\n  --data-binary ${content}`;
    return `curl ${quote(new URL(path, location.href).href)}${access}${type}`;
  };

  // -- the server -----------------------------------------------------------------------------------------------------

  const duration = (seconds) => {
    const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
    if (days) return `${days} d ${hours} h`;
    if (hours) return `${hours} h ${minutes} min`;
    return minutes ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
  };

  const showServer = (status) => {
    const facts = [
      ["Version", `weft ${status.version}`],
      [status.devices.length > 1 ? "Devices" : "Device", status.devices.join(", ") || "none in use"],
      ["Uptime", duration(status.uptime)],
      ["Requests now", String(status.active_requests)],
    ];
    byId("facts").replaceChildren(...facts.flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
    const { limit, models, runs } = status.memory;
    const part = (size) => (100 * Math.min(size / limit, 1)).toFixed(2);
    const text = `Memory: ${bytes(models)} models, ${bytes(runs)} runs, of ${bytes(limit)}`;
    const bar = svg(
      "svg",
      { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "track", width: 100, height: 10 }),
      svg("rect", { class: "models", width: part(models), height: 10 }),
      svg("rect", { class: "runs", x: part(models), width: part(runs), height: 10 }),
    );
    byId("memory").replaceChildren(bar, element("p", text));
    showState(status.draining ? "Draining" : status.ready ? "Ready" : "Not ready", status.ready);
  };
  const showState = (text, isGood) => {
    const pill = byId("state");
    if (pill.textContent !== text) pill.textContent = text;
    pill.className = `pill ${isGood ? "good" : "bad"}`;
  };

  // -- models ---------------------------------------------------------------------------------------------------------

  const latency = (seconds) => (seconds === null ? "–" : time(seconds * 1e6));
  const kinds = { model: "tensors", generator: "generator", embedder: "embeddings" };
  const state = (model) => {
    const word = model.state.charAt(0) + model.state.slice(1).toLowerCase();
    return model.reason ? `${word}: ${model.reason}` : word;
  };
  const rowsPerRun = (model) => (model.runs ? (model.rows / model.runs).toPrecision(3) : "–");
  const failures = ({ failed, rejected }) => (rejected ? `${failed + rejected} (${rejected} rejected)` : String(failed));
  const COLUMNS = [
    ["Model", "name", (model) => model.name],
    ["Version", "", (model) => model.version || "–"],
    ["Kind", "", (model) => kinds[model.kind] ?? ""],
    ["State", "state", state],
    ["Device", "device", (model) => model.device ?? ""],
    ["Requests", "number", (model) => model.requests?.success.toLocaleString("en") ?? ""],
    ["Failures", "number", (model) => (model.requests ? failures(model.requests) : "")],
    ["Queue", "number", (model) => model.queue_length?.toLocaleString("en") ?? ""],
    ["Rows per run", "number", (model) => (model.requests ? rowsPerRun(model) : "")],
    ["p50", "number", (model) => (model.latency ? latency(model.latency.p50) : "")],
    ["p99", "number", (model) => (model.latency ? latency(model.latency.p99) : "")],
    ["Memory", "number", (model) => (model.requests ? bytes(model.memory) : "")],
  ];
  const header = ([title, kind]) => {
    const cell = element("th", title);
    cell.scope = "col";
    cell.setAttribute("role", "columnheader");
    cell.className = kind;
    return cell;
  };
  const tryHeader = element("td", "");
  tryHeader.setAttribute("role", "cell");
  byId("columns").append(...COLUMNS.map(header), tryHeader);

  const rows = new Map(); // by version and name
  let ready = [];
  const makeRow = (identity) => {
    const row = element("tr", null);
    row.setAttribute("role", "row");
    const cells = COLUMNS.map(([title, kind]) => {
      const cell = element("td", "");
      cell.setAttribute("role", "cell");
      cell.dataset.label = title;
      cell.className = kind;
      return cell;
    });
    const button = element("button", "Try");
    button.type = "button";
    button.addEventListener("click", () => {
      choose(identity);
      byId("try").scrollIntoView();
      byId("model").focus();
    });
    const last = element("td", null, button);
    last.setAttribute("role", "cell");
    last.className = "number";
    row.append(...cells, last);
    return { row, cells, button };
  };
  const showModels = (models) => {
    const current = new Set();
    for (const model of models) {
      const identity = `${model.version}/${model.name}`;
      current.add(identity);
      if (!rows.has(identity)) {
        rows.set(identity, makeRow(identity));
        byId("rows").append(rows.get(identity).row);
      }
      const { cells, button } = rows.get(identity);
      COLUMNS.forEach(([, , format], index) => {
        const text = format(model);
        if (cells[index].textContent !== text) cells[index].textContent = text;
      });
      cells[3].classList.toggle("bad", model.state !== "READY" && model.state !== "LOADING");
      button.hidden = model.kind === undefined;
      button.setAttribute("aria-label", `Try ${model.name}`);
    }
    for (const [identity, { row }] of rows) {
      if (current.has(identity)) continue;
      row.remove();
      rows.delete(identity);
    }
    byId("no-models").hidden = models.length > 0;
    ready = models.filter((model) => model.kind !== undefined);
    showChoices();
  };

  // -- the model to try -----------------------------------------------------------------------------------------------

  let open = () => {};
  let opened = "";
  const identityOf = (model) => `${model.version}/${model.name}`;
  const showChoices = () => {
    const select = byId("model");
    const wanted = ready.map(identityOf);
    if (wanted.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
      const chosen = select.value;
      select.replaceChildren(
        ...ready.map((model) => {
          const several = ready.filter((each) => each.name === model.name).length > 1;
          const option = element("option", several ? `${model.name} (version ${model.version})` : model.name);
          option.value = identityOf(model);
          return option;
        }),
      );
      if (wanted.includes(chosen)) select.value = chosen;
    }
    byId("try").hidden = ready.length === 0;
    choose(select.value);
  };
  const choose = (identity) => {
    byId("model").value = identity;
    const model = ready.find((each) => identityOf(each) === identity);
    if (model === undefined || identity === opened) return;
    opened = identity;
    open(model);
  };
  byId("model").addEventListener("change", () => choose(byId("model").value));
  const setOpener = (opener) => {
    open = opener;
  };

  // -- looks at the figures -------------------------------------------------------------------------------------------

  let timer = 0;
  let turn = 0; // of the look whose answer counts
  const look = async () => {
    clearTimeout(timer);
    turn += 1;
    const own = turn;
    const limit = new AbortController();
    const alarm = setTimeout(() => limit.abort(), LIMIT);
    try {
      const response = await send("status.json", { signal: limit.signal });
      const status = await response.json();
      if (own !== turn) return;
      show(status);
    } catch (error) {
      if (own !== turn) return;
      if (error.status === 401) {
        askKey(key ? "The server does not accept this key." : "");
        return;
      }
      showProblem(error.name === "AbortError" ? "The server does not answer." : error.message);
      showState("No answer", false);
    } finally {
      clearTimeout(alarm);
    }
    if (!document.hidden) timer = setTimeout(look, INTERVAL);
  };
  const show = (status) => {
    showProblem("");
    for (const name of ["server", "load", "models"]) byId(name).hidden = false;
    byId("access").hidden = true;
    showServer(status);
    charts.update(status);
    showModels(status.models);
  };
  const showProblem = (text) => {
    const place = byId("problem");
    if (place.textContent !== text) place.textContent = text;
    place.hidden = !text;
  };
  const askKey = (problem) => {
    for (const name of ["server", "load", "models", "try"]) byId(name).hidden = true;
    byId("access").hidden = false;
    showState("Locked", false);
    showProblem(problem);
    byId("key").focus();
  };
  byId("access").addEventListener("submit", (event) => {
    event.preventDefault();
    key = byId("key").value.trim();
    look();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
    } else if (byId("access").hidden) {
      look();
    }
  });
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  });

  const start = () => {
    byId("host").textContent = location.host;
    document.title = `${location.host} – weft serve`;
    if (weft.data.hasKey) askKey("");
    else look();
  };
  return { send, post, modelPath, curl, setOpener, start, look };
})();
