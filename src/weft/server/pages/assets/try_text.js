// Reads what language models and models of embeddings answer.
const texts = (() => {
  const { element } = weft;

  // Call a function with the data of each event of a stream.
  const readEvents = async (response, handle) => {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.startsWith("data: ") ? part.slice(6) : "";
        if (data && data !== "[DONE]") handle(JSON.parse(data));
      }
    }
  };

  // The request for an answer: a chat if the model has a template for it, else the continuation of a text.
  const makeRequest = (model, prompt, length) => {
    if (model.can_chat) {
      const messages = [{ role: "user", content: prompt }];
      return ["v1/chat/completions", { model: model.name, messages, max_tokens: length, stream: true }];
    }
    return [`${server.modelPath(model)}/generate_stream`, { text_input: prompt, max_tokens: length }];
  };
  const readPiece = (content) => {
    if (content.error) throw new Error(content.error.message ?? content.error);
    if (content.text_output !== undefined) return ["", content.text_output];
    const delta = content.choices?.[0]?.delta ?? {};
    return [delta.reasoning_content ?? "", delta.content ?? ""];
  };
  const stream = async (response, place) => {
    const reasoning = element("span", "");
    reasoning.className = "reasoning";
    const answer = element("span", "");
    place.replaceChildren(reasoning, answer);
    let pieces = 0;
    await readEvents(response, (content) => {
      const [thought, text] = readPiece(content);
      if (thought) reasoning.append(thought);
      if (text) answer.append(text);
      pieces += thought || text ? 1 : 0;
      place.scrollTop = place.scrollHeight;
    });
    return pieces;
  };

  const makeEmbeddingTable = (embedding) => {
    const norm = Math.hypot(...embedding);
    const output = { name: "embedding", datatype: "FP32", shape: [1, 1, embedding.length], data: embedding };
    const facts = element("p", `${embedding.length} values, norm ${norm.toPrecision(6)}`);
    return [facts, tensors.makeTable([output])];
  };
  return { makeRequest, stream, makeEmbeddingTable };
})();
