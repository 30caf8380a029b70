// A design in the fragment of an address: `#design=thsa` for a shipped design, deflated `#text=...` for any other.

async function through(stream, bytes) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

export async function packed(text) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(text));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export async function unpacked(word) {
  const binary = atob(word.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (sign) => sign.charCodeAt(0));
  return new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes));
}

/** The state in a fragment: `{design}` or `{text}`, with the selected tab and sizes. */
export async function read(fragment) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const sizes = JSON.parse(fields.get("sizes") ?? "{}");
  const text = fields.has("text") ? await unpacked(fields.get("text")) : null;
  return { design: fields.get("design"), text, tab: fields.get("tab"), sizes };
}

export async function written({ design, text, tab, sizes }) {
  const fields = new URLSearchParams(design ? { design } : { text: await packed(text) });
  if (tab !== "picture") fields.set("tab", tab);
  if (Object.keys(sizes).length) fields.set("sizes", JSON.stringify(sizes));
  return `#${fields}`;
}
