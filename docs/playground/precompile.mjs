// Compiles the page's Python code to byte code with Pyodide: `node precompile.mjs STAGE`. STAGE contains libraries/ and
// package/. Libraries are imported from an archive, which needs only their byte code.
import { pathToFileURL } from "node:url";

const [stage] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${process.env.NODE_PATH}/pyodide/pyodide.mjs`).href);
const python = await loadPyodide();
python.FS.mkdirTree("/stage");
python.FS.mount(python.FS.filesystems.NODEFS, { root: stage }, "/stage");
python.runPython(`
import compileall
from pathlib import Path
from py_compile import PycInvalidationMode

unchecked = PycInvalidationMode.UNCHECKED_HASH
for folder, legacy in (("libraries", True), ("package", False)):
    done = compileall.compile_dir(f"/stage/{folder}", stripdir=f"/stage/{folder}", quiet=1, legacy=legacy, invalidation_mode=unchecked)
    assert done, folder
for source in Path("/stage/libraries").rglob("*.py"):
    source.unlink()
`);
process.exit(0);
