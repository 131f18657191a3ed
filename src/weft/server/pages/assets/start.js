// The form that tries a model.
(() => {
  const { byId, element, time } = weft;
  let turn = 0; // of the model whose form is shown
  let running = null; // what stops the request that runs

  const say = (text, isBad = false) => {
    byId("said").textContent = text;
    byId("said").className = isBad ? "bad" : "";
  };
  const makeButton = (text, kind = "button") => Object.assign(element("button", text), { type: kind, className: kind === "submit" ? "main" : "" });
  const field = (text, control, id) => {
    control.id = id;
    const label = element("label", text);
    label.htmlFor = id;
    const block = element("div", null, label, control);
    return block;
  };

  // -- the command ----------------------------------------------------------------------------------------------------

  const makeCommand = (path, body) => {
    const command = server.curl(path, body);
    const nodes = [element("h3", "The same with curl"), element("pre", command)];
    const buttons = [];
    if (navigator.clipboard) {
      const copy = makeButton("Copy");
      copy.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(command);
          copy.textContent = "Copied";
        } catch {
          copy.textContent = "Not allowed";
        }
      });
      buttons.push(copy);
    }
    if (command.includes("@request.json")) {
      const save = makeButton("Save request.json");
      save.addEventListener("click", () => {
        const link = element("a", null);
        link.href = URL.createObjectURL(new Blob([body], { type: "application/json" }));
        link.download = "request.json";
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      });
      buttons.push(save);
    }
    const line = element("div", null, ...buttons);
    line.className = "line after";
    return [...nodes, line];
  };

  // -- a request ------------------------------------------------------------------------------------------------------

  // Show a form whose button runs `run(signal)`, which returns what to say; the button stops it, too.
  const showForm = (nodes, title, run) => {
    const own = turn;
    const button = makeButton(title, "submit");
    const line = element("div", null, button);
    line.className = "all";
    byId("request").replaceChildren(...nodes, line);
    byId("request").onsubmit = async (event) => {
      event.preventDefault();
      if (running !== null) {
        running.abort();
        return;
      }
      const stop = new AbortController();
      running = stop;
      button.textContent = "Stop";
      say("Running …");
      const start = performance.now();
      try {
        const text = await run(stop.signal);
        if (own === turn) say(`${text} after ${time((performance.now() - start) * 1000)}`);
      } catch (error) {
        if (own === turn) say(error.name === "AbortError" ? "Stopped" : error.message, error.name !== "AbortError");
      } finally {
        if (running === stop) running = null;
        button.textContent = title;
      }
    };
  };

  const showTensorForm = async (model) => {
    const own = turn;
    const path = server.modelPath(model);
    const [metadata, config] = await Promise.all([path, `${path}/config`].map(async (each) => (await server.send(each)).json()));
    if (own !== turn) return;
    const optional = new Set(config.input.filter((entry) => entry.optional).map((entry) => entry.name));
    const inputs = metadata.inputs.map((info, number) => tensors.makeInput(info, optional.has(info.name), number));
    showForm(inputs.map((input) => input.set), "Run", async (signal) => {
      byId("result").replaceChildren();
      const entries = (await Promise.all(inputs.map((input) => input.read()))).filter((entry) => entry !== null);
      const body = `{"inputs":[${entries.join(",")}]}`;
      const command = makeCommand(`${path}/infer`, body);
      byId("result").replaceChildren(...command);
      const text = await (await server.post(`${path}/infer`, body, signal)).text();
      if (own === turn) byId("result").prepend(tensors.makeTable(tensors.parse(text).outputs));
      return "Answered";
    });
  };

  const showPromptForm = (model) => {
    const prompt = Object.assign(element("textarea", null), { required: true, value: model.can_chat ? "Hello!" : "Once upon a time" });
    const length = Object.assign(element("input", null), { type: "number", min: "1", step: "1", value: "64", required: true });
    const first = field(model.can_chat ? "Message" : "Prompt", prompt, "prompt");
    first.className = "all";
    showForm([first, field("Most tokens", length, "length")], "Generate", async (signal) => {
      const [path, content] = texts.makeRequest(model, prompt.value, Number(length.value));
      const body = JSON.stringify(content);
      const place = element("div", null);
      place.className = "text";
      place.tabIndex = 0;
      place.setAttribute("role", "region");
      place.setAttribute("aria-label", "Answer");
      byId("result").replaceChildren(place, ...makeCommand(path, body));
      const pieces = await texts.stream(await server.post(path, body, signal), place);
      return `${pieces} pieces of text`;
    });
  };

  const showEmbeddingForm = (model) => {
    const own = turn;
    const input = Object.assign(element("textarea", null), { required: true, value: "some text" });
    const block = field("Text", input, "text");
    block.className = "all";
    showForm([block], "Embed", async (signal) => {
      const body = JSON.stringify({ model: model.name, input: input.value, encoding_format: "float" });
      byId("result").replaceChildren(...makeCommand("v1/embeddings", body));
      const { data } = await (await server.post("v1/embeddings", body, signal)).json();
      if (own === turn) byId("result").prepend(...texts.makeEmbeddingTable(data[0].embedding));
      return "Answered";
    });
  };

  const forms = { model: showTensorForm, generator: showPromptForm, embedder: showEmbeddingForm };
  server.setOpener(async (model) => {
    turn += 1;
    const own = turn;
    running?.abort();
    running = null;
    say("");
    byId("result").replaceChildren();
    byId("request").replaceChildren();
    try {
      await forms[model.kind](model);
    } catch (error) {
      if (own === turn) say(error.message, true);
    }
  });
  server.start();
})();
