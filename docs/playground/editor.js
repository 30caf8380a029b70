// The editor of the design and the view of the generated source, with CodeMirror 6.
import { autocompletion } from "@codemirror/autocomplete";
import { python } from "@codemirror/lang-python";
import { yaml } from "@codemirror/lang-yaml";
import { defaultHighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState } from "@codemirror/state";
import { oneDark } from "@codemirror/theme-one-dark";
import { keymap } from "@codemirror/view";
import { indentWithTab } from "@codemirror/commands";
import { basicSetup, EditorView } from "codemirror";

import { completion } from "./completion.js";

const look = (dark) => (dark ? oneDark : syntaxHighlighting(defaultHighlightStyle, { fallback: true }));

export function editor(parent, { text, schema, dark, changed }) {
  const theme = new Compartment();
  const view = new EditorView({
    parent,
    doc: text,
    extensions: [
      basicSetup,
      keymap.of([indentWithTab]),
      yaml(),
      lintGutter(),
      autocompletion({ override: [completion(schema)] }),
      theme.of(look(dark)),
      EditorView.contentAttributes.of({ "aria-label": "Design, YAML" }),
      EditorView.updateListener.of((update) => update.docChanged && changed(update.state.doc.toString())),
    ],
  });
  return {
    text: () => view.state.doc.toString(),
    set: (next) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next }, scrollIntoView: true }),
    dark: (on) => view.dispatch({ effects: theme.reconfigure(look(on)) }),
    /** Underlines each problem at its caret. */
    mark: (problems) => view.dispatch(setDiagnostics(view.state, problems.map((one) => diagnostic(view.state.doc, one)))),
    go: (problem) => {
      const { from } = diagnostic(view.state.doc, problem);
      view.dispatch({ selection: { anchor: from }, scrollIntoView: true });
      view.focus();
    },
  };
}

function diagnostic(doc, { line, column, width, message, hint, severity }) {
  const row = doc.line(Math.min(line ?? 1, doc.lines));
  const from = Math.min(row.from + Math.max(0, (column ?? 1) - 1), row.to);
  const to = Math.min(from + Math.max(1, width), row.to);
  return { from, to, severity, message: hint ? `${message}\n${hint}` : message };
}

/** A read-only view of Python source. */
export function listing(parent, source, dark) {
  parent.classList.add("code");
  const extensions = [basicSetup, python(), EditorState.readOnly.of(true), EditorView.lineWrapping, look(dark)];
  return new EditorView({ parent, doc: source, extensions });
}
