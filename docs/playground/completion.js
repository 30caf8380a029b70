// Completes the keys and values that the JSON schema of designs allows at the cursor.

const FLOW_KEY = /([A-Za-z_][\w]*)\s*:\s*$/;

/** The enclosing keys of the cursor, outermost first; its sibling keys; the key whose value it is in. */
export function place(text, position) {
  const lines = text.slice(0, position).split("\n");
  const line = lines.pop();
  const path = [];
  const beside = new Set();
  let open = innermostOpen(line);
  let rest = line;
  const inner = [];
  while (open >= 0) {
    // inside `A: {softmax: m, ...`
    const body = rest.slice(open + 1);
    if (rest[open] === "{" && !inner.length) for (const [, key] of body.matchAll(/([A-Za-z_]\w*)\s*:/g)) beside.add(key);
    const key = rest.slice(0, open).match(FLOW_KEY)?.[1];
    if (key) inner.unshift(key);
    rest = rest.slice(0, open);
    open = innermostOpen(rest);
  }
  const flow = inner.length > 0;
  let indent = line.search(/[^\s-]|$/);
  const after = text.slice(position).split("\n").slice(1);
  for (const other of [...lines].reverse()) {
    const found = other.match(/^(\s*)([A-Za-z_]\w*)\s*:/);
    if (!found) continue;
    if (found[1].length < indent) {
      path.unshift(found[2]);
      indent = found[1].length;
    } else if (!flow && !path.length && found[1].length === indent) beside.add(found[2]);
    if (indent === 0) {
      if (path.length) break;
    }
  }
  if (!flow)
    for (const other of after) {
      const found = other.match(/^(\s*)([A-Za-z_]\w*)\s*:/);
      if (found && found[1].length === line.search(/[^\s-]|$/)) beside.add(found[2]);
      else if (found && found[1].length < line.search(/[^\s-]|$/)) break;
    }
  const own = flow ? line.slice(line.lastIndexOf("{") + 1) : line;
  const value = own.match(/(?:^|[,{\s])([A-Za-z_]\w*)\s*:\s*[[("']*[^,:{}]*$/)?.[1];
  const list = flow && inner.length && line[innermostOpen(line)] === "[";
  if (value && !list) beside.delete(value);
  return { path: [...path, ...inner], beside, value: list ? null : value, list };
}

/** The index of the innermost open bracket, or -1. */
function innermostOpen(line) {
  let depth = 0;
  for (let i = line.length - 1; i >= 0; i--) {
    if ("}]".includes(line[i])) depth++;
    else if ("{[".includes(line[i]) && depth-- === 0) return i;
  }
  return -1;
}

/** The alternatives of a schema, with resolved references. */
function alternatives(schema, root) {
  if (!schema || schema === true) return [];
  if (schema.$ref) return alternatives(root.$defs[schema.$ref.split("/").pop()], root);
  const several = schema.anyOf ?? schema.oneOf;
  if (!several) return [schema];
  const { examples } = schema; // next to the alternatives
  return [...several.flatMap((one) => alternatives(one, root)), ...(examples ? [{ examples }] : [])];
}

/** The schemas at a path of keys. */
export function schemasAt(root, path) {
  let found = [root];
  for (const key of path)
    found = found.flatMap((one) => alternatives(one.properties?.[key] ?? one.additionalProperties, root));
  return found;
}

/** The completions at a position, with descriptions from the schema. */
export function suggestions(root, text, position) {
  const { path, beside, value, list } = place(text, position);
  const at = schemasAt(root, path);
  if (value || list) {
    const schemas = list ? at : at.flatMap((one) => alternatives(one.properties?.[value] ?? one.additionalProperties, root));
    const words = schemas.flatMap((one) => [
      ...(one.enum ?? []),
      ...(one.examples ?? []),
      ...("const" in one ? [one.const] : []),
      ...(one.type === "boolean" ? ["true", "false"] : []),
    ]);
    return [...new Set(words.map(String))].map((label) => ({ label, type: "constant" }));
  }
  const fitting = at.filter((one) => one.properties && [...beside].every((key) => key in one.properties || one.additionalProperties));
  const keys = new Map();
  for (const one of fitting.length ? fitting : at)
    for (const [key, schema] of Object.entries(one.properties ?? {}))
      if (!beside.has(key) && !keys.has(key)) keys.set(key, schema.description ?? (one.required?.[0] === key ? one.description : ""));
  return [...keys].map(([label, info]) => ({ label, apply: `${label}: `, type: "property", info: info || undefined }));
}

/** The completion source for CodeMirror. */
export const completion = (root) => (context) => {
  const word = context.matchBefore(/\w*/);
  if (word.from === word.to && !context.explicit) return null;
  return { from: word.from, options: suggestions(root, context.state.doc.toString(), word.from), validFor: /^\w*$/ };
};
