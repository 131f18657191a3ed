// A form for the inputs of a model of tensors, and a table of its outputs.
const tensors = (() => {
  const { element } = weft;
  const MOST = 20_000_000; // elements of an input that the page makes
  const FLOATS = new Set(["FP16", "FP32", "FP64", "BF16"]);
  const CHANNELS = [3, 1, 4]; // of images, the usual number first
  const MEAN = [0.485, 0.456, 0.406];
  const DEVIATION = [0.229, 0.224, 0.225];
  const SCALES = {
    unit: ["0 to 1", (value) => value / 255],
    sign: ["−1 to 1", (value) => value / 127.5 - 1],
    bytes: ["0 to 255", (value) => value],
    normal: ["ImageNet's mean and deviation", (value, channel) => (value / 255 - (MEAN[channel] ?? 0.5)) / (DEVIATION[channel] ?? 0.5)],
  };

  const count = (shape) => shape.reduce((product, size) => product * size, 1);
  const labelled = (text, control, number) => {
    control.id = `input-${number}`;
    const label = element("label", text);
    label.htmlFor = control.id;
    return element("div", null, label, control);
  };
  const makeSelect = (options) => {
    const select = element("select", null);
    for (const [value, text] of options) {
      const option = element("option", text);
      option.value = value;
      select.append(option);
    }
    return select;
  };

  // -- images ---------------------------------------------------------------------------------------------------------

  // Where channels, height and width are: NCHW, NHWC, or the same without a batch; null if a shape is of no image.
  const imageAxes = (shape) => {
    const first = shape.length - 3;
    if (first !== 0 && first !== 1) return null;
    for (const channels of [...CHANNELS, -1]) {
      if (shape[first] === channels) return { channels: first, height: first + 1, width: first + 2 };
      if (shape[first + 2] === channels) return { channels: first + 2, height: first, width: first + 1 };
    }
    return null;
  };
  const isImageLike = ({ datatype, shape }) => (FLOATS.has(datatype) || datatype === "UINT8") && imageAxes(shape) !== null;

  const readPixels = async (file, width, height) => {
    let picture;
    try {
      picture = await createImageBitmap(file);
    } catch {
      throw new Error("this file is not an image that the browser can read");
    }
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, 0, 0, width, height);
    picture.close();
    return context.getImageData(0, 0, width, height).data;
  };
  const imageValues = async (file, shape, axes, scale) => {
    const [channels, height, width] = [shape[axes.channels], shape[axes.height], shape[axes.width]];
    if (!CHANNELS.includes(channels)) throw new Error(`an image has 1, 3 or 4 channels, not ${channels}`);
    if (!width || !height) throw new Error("an image has at least one pixel");
    const pixels = await readPixels(file, width, height);
    const isLast = axes.channels > axes.height;
    const values = new Array(channels * height * width);
    for (let pixel = 0; pixel < height * width; pixel += 1) {
      for (let channel = 0; channel < channels; channel += 1) {
        const at = 4 * pixel;
        const grey = 0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2];
        const value = scale(channels === 1 ? grey : pixels[at + channel], channel);
        values[isLast ? pixel * channels + channel : channel * height * width + pixel] = value;
      }
    }
    const copies = axes.height - (isLast ? 0 : 1) > 0 ? shape[0] : 1;
    return Array.from({ length: copies }, () => values).flat();
  };

  // -- inputs ---------------------------------------------------------------------------------------------------------

  const randomValue = (datatype) => {
    if (FLOATS.has(datatype)) return Math.random().toFixed(4);
    if (datatype === "BOOL") return String(Math.random() < 0.5);
    return String(Math.floor(Math.random() * (datatype === "UINT8" ? 256 : 10)));
  };
  const defaultSize = (info, axis) => {
    if (axis === 0 && info.shape.length > 1) return 1;
    const axes = isImageLike(info) ? imageAxes(info.shape) : null;
    if (axes !== null) return axis === axes.channels ? 3 : 224;
    return info.shape.length === 1 ? 1 : 8;
  };
  const sources = (info, isOptional) => [
    ...(isOptional ? [["none", "Leave it out"]] : []),
    ...(info.datatype === "BYTES" ? [["text", "Text"]] : [["random", "Random"], ["zeros", info.datatype === "BOOL" ? "False" : "Zeros"]]),
    ...(isImageLike(info) ? [["image", "Image"]] : []),
    ["json", "JSON"],
  ];

  // The controls of one input, and a function that returns its entry of the request.
  const makeInput = (info, isOptional, number) => {
    const set = element("fieldset", null, element("legend", info.name));
    const kind = element("p", `${info.datatype} [${info.shape.map((size) => (size < 0 ? "?" : size)).join(", ")}]`);
    kind.className = "kind";
    set.append(kind);
    let next = 0;
    const add = (text, control) => labelled(text, control, `${number}-${(next += 1)}`);
    const sizes = info.shape.map((size, axis) => {
      if (size >= 0) return null;
      const control = element("input", null);
      Object.assign(control, { type: "number", min: "0", step: "1", required: true, value: String(defaultSize(info, axis)) });
      return control;
    });
    const dynamic = sizes.map((control, axis) => control && add(`Size ${axis}`, control)).filter(Boolean);
    if (dynamic.length) {
      const line = element("div", null, ...dynamic);
      line.className = "line";
      set.append(line);
    }
    const source = makeSelect(sources(info, isOptional));
    set.append(add("Values", source));

    const text = element("input", null);
    Object.assign(text, { type: "text", className: "wide", value: "some text" });
    const json = element("textarea", null);
    Object.assign(json, { className: "code", spellcheck: false, placeholder: info.datatype === "BYTES" ? '["a", "b"]' : "[1, 2, 3]" });
    const file = element("input", null);
    Object.assign(file, { type: "file", accept: "image/*" });
    const names = FLOATS.has(info.datatype) ? Object.keys(SCALES) : ["bytes"];
    const scale = makeSelect(names.map((name) => [name, SCALES[name][0]]));
    const parts = {
      text: [add("Text of each element", text)],
      json: [add("Array, flat or nested", json)],
      image: [add("Image file, stretched to the input's size", file), add("Range of values", scale)],
    };
    for (const [name, nodes] of Object.entries(parts)) {
      for (const node of nodes) {
        node.className = "value";
        node.dataset.source = name;
        set.append(node);
      }
    }
    const showParts = () => {
      for (const node of set.querySelectorAll(".value")) node.hidden = node.dataset.source !== source.value;
    };
    source.addEventListener("change", showParts);
    showParts();

    const makeData = async (shape) => {
      const total = count(shape);
      if (source.value !== "json" && total > MOST) throw new Error(`${total.toLocaleString("en")} elements are too many for this page`);
      switch (source.value) {
        case "json":
          if (!Array.isArray(JSON.parse(json.value))) throw new Error("the JSON must be an array");
          return json.value.trim();
        case "text":
          return `[${new Array(total).fill(JSON.stringify(text.value)).join(",")}]`;
        case "image": {
          if (!file.files.length) throw new Error("choose an image");
          const isWhole = !FLOATS.has(info.datatype);
          const declared = imageAxes(info.shape);
          const axes = info.shape[declared.channels] < 0 ? (imageAxes(shape) ?? declared) : declared;
          const values = await imageValues(file.files[0], shape, axes, SCALES[scale.value][1]);
          return `[${values.map((value) => (isWhole ? Math.round(value) : Number(value.toPrecision(7)))).join(",")}]`;
        }
        case "zeros":
          return `[${new Array(total).fill(info.datatype === "BOOL" ? "false" : "0").join(",")}]`;
        default:
          return `[${Array.from({ length: total }, () => randomValue(info.datatype)).join(",")}]`;
      }
    };
    const read = async () => {
      if (source.value === "none") return null;
      const shape = info.shape.map((size, axis) => (sizes[axis] ? Number(sizes[axis].value) : size));
      let data;
      try {
        data = await makeData(shape);
      } catch (error) {
        throw new Error(`Input ${info.name}: ${error.message}`);
      }
      const [name, datatype] = [info.name, info.datatype].map((each) => JSON.stringify(each));
      return `{"name":${name},"datatype":${datatype},"shape":[${shape.join(",")}],"data":${data}}`;
    };
    return { set, read };
  };

  // -- outputs --------------------------------------------------------------------------------------------------------

  // Integers of 64 bits keep all digits, as text, where the browser tells them.
  const exactly = (key, value, context) => {
    const isExact = typeof value !== "number" || !Number.isInteger(value) || Number.isSafeInteger(value);
    return isExact ? value : (context?.source ?? `about ${value}`);
  };
  const parse = (text) => JSON.parse(text, /"U?INT64"/.test(text) ? exactly : undefined);

  const MOST_SHOWN = 8;
  const MOST_CLASSES = 5;
  const shorten = (value, datatype) => {
    if (value === null) return "not finite";
    if (typeof value === "string") return datatype === "BYTES" ? JSON.stringify(value.length > 200 ? `${value.slice(0, 200)}…` : value) : value;
    return typeof value === "number" && FLOATS.has(datatype) ? String(Number(value.toPrecision(5))) : String(value);
  };
  const firstValues = ({ data, datatype }) => {
    const shown = data.slice(0, MOST_SHOWN).map((value) => shorten(value, datatype));
    return `${shown.join(", ")}${data.length > MOST_SHOWN ? ", …" : ""}` || "empty";
  };
  const topClasses = ({ data, datatype, shape }) => {
    const classes = shape.at(-1) ?? 0;
    if (!FLOATS.has(datatype) || classes < MOST_CLASSES || shape.length > 2) return "";
    const row = data.slice(0, classes).map((value, index) => [index, value]);
    const top = row.filter(([, value]) => value !== null).sort((a, b) => b[1] - a[1]).slice(0, MOST_CLASSES);
    return top.map(([index, value]) => `${index}: ${shorten(value, datatype)}`).join("\n");
  };
  const COLUMNS = [
    ["Output", "name", (output) => output.name],
    ["Datatype", "", (output) => output.datatype],
    ["Shape", "", (output) => `[${output.shape.join(", ")}]`],
    ["First values", "wide", firstValues],
    ["Top classes of the first row", "classes", topClasses],
  ];
  const makeTable = (outputs) => {
    const head = element("tr", null, ...COLUMNS.map(([title]) => Object.assign(element("th", title), { scope: "col" })));
    const body = outputs.map((output) => {
      const row = element("tr", null);
      for (const [title, kind, format] of COLUMNS) {
        const cell = element("td", format(output));
        cell.dataset.label = title;
        cell.className = kind;
        row.append(cell);
      }
      return row;
    });
    const table = element("table", null, element("thead", null, head), element("tbody", null, ...body));
    const roles = { table: "table", thead: "rowgroup", tbody: "rowgroup", tr: "row", th: "columnheader", td: "cell" };
    for (const node of [table, ...table.querySelectorAll("*")]) node.setAttribute("role", roles[node.localName]);
    return table;
  };

  return { makeInput, makeTable, parse };
})();
