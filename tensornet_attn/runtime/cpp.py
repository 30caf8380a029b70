"""C++ libraries: compiled by the system's compiler, cached on disk by content, damaged ones rebuilt.

Reads no torch: `explain` asks what the cache holds.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable

CPP_REALS = {"float32": ("float", "sgemm_"), "float64": ("double", "dgemm_")}  # C++ type and BLAS product by dtype
CPP_DTYPES = {"float32": "float32", "float64": "float64", "bfloat16": "float32", "float16": "float32"}  # in kernels
# The parts of -ffast-math that keep infinity, NaN and the order of sums: a bias of -1e9 absorbs a score in the forward
# and the backward, or in neither. As a whole, it makes some compilers link code that changes how the process that loads
# the library rounds subnormal numbers.
CPP_FLAGS = (
    "-std=c++17", "-O3", "-fno-math-errno", "-freciprocal-math", "-fno-signed-zeros", "-fno-trapping-math",
    "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared",
)  # fmt: skip
CPP_WIDE = "-mprefer-vector-width=512"  # on x86
CPP_MORE = "TENSORNET_ATTN_CXXFLAGS"  # names further flags; CXXFLAGS, which environments set for packages, does not
CPP_LIMIT = 512 << 20  # bytes of the cache; beyond it the least recently used libraries are removed
CPP_LOADED: dict = {}  # key of text and dtype: the library; the reason why there is none; None once that was said
CPP_FINDERS: dict = {}  # "package": f(text, dtype), by which the package finds libraries; a file alone has none
CPP_CHECK = 1  # raised when the comparison with the reference finds more: libraries are then compared again
CPP_CHECKING: dict = {}  # thread that compares a library: key and library; other libraries do not run in it


def cpp_compiler() -> list[str]:
    """The C++ compiler with its arguments: $CXX, otherwise g++ or clang++; empty if there is none.

    Raises ValueError if $CXX cannot be split.
    """
    command = shlex.split(os.environ.get("CXX", ""))
    path = shutil.which(command[0]) if command else shutil.which("g++") or shutil.which("clang++")
    return [path, *command[1:]] if path else []


def cpp_flags() -> list[str]:
    """The compiler's flags: for this processor, unless those of the environment, which come last, name another one."""
    wide = [CPP_WIDE] if os.uname().machine in ("x86_64", "i686") else []
    return [*CPP_FLAGS, "-march=native", *wide, *shlex.split(os.environ.get(CPP_MORE, ""))]


def reason_against_cpp() -> str:
    """Why no library can be compiled; empty if one can."""
    for kind, name in (("compiler", "CXX"), ("flags", CPP_MORE)):
        try:
            shlex.split(os.environ.get(name, ""))
        except ValueError as error:
            return f"the {kind} in {name} cannot be read: {error}"
    if not cpp_compiler():
        compiler = os.environ.get("CXX")
        reason = f"'{compiler}', which CXX names, is not on the PATH" if compiler else "there is no C++ compiler"
        return f"{reason}: install g++, or name a compiler in CXX"
    return reason_against_folder() or ("" if torch_libraries().is_dir() else "torch has no folder of libraries")


def reason_against_folder() -> str:
    """Why libraries are neither kept nor loaded: no folder, or one that other users control. Empty if they are."""
    folder = cpp_folder()
    if folder is None:
        return "there is no folder for compiled kernels: set HOME or XDG_CACHE_HOME to an absolute path of your own"
    try:
        status = folder.stat()
    except OSError:
        return ""  # compiling makes it, or says why not
    if status.st_uid != os.getuid():
        return f"the folder {folder} belongs to another user: set XDG_CACHE_HOME to a folder of your own"
    if status.st_mode & 0o022:
        return f"other users can write to the folder {folder}: delete it, or make it private with 'chmod 700'"
    return ""


@functools.cache
def torch_libraries() -> pathlib.Path:
    """The folder of torch's libraries, whose BLAS computes the products."""
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.origin).parent / "lib" if spec and spec.origin else pathlib.Path("torch")


@functools.cache
def cpp_processor() -> str:
    """The instruction sets of this processor: libraries for another one would not run."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return os.uname().machine
    return next((line for line in lines if line.startswith(("flags", "Features"))), os.uname().machine)


@functools.cache
def cpp_torch() -> str:
    """The folder and the version of torch."""
    folder = torch_libraries().parent
    try:
        return f"{folder} {(folder / 'version.py').read_text(encoding='utf-8')}"
    except OSError:
        return str(folder)


@functools.lru_cache(8)
def cpp_version(*command: str) -> str:
    """The first line that a compiler says of its version; empty if it says nothing."""
    try:
        completed = subprocess.run([*command, "--version"], capture_output=True, check=False)
    except OSError:
        return ""
    return completed.stdout.decode(errors="replace").partition("\n")[0]


def cpp_folder() -> pathlib.Path | None:
    """The folder of the libraries: `cpp` in this user's folder of caches, as `platformdirs` has it, or the same folder
    for a file alone in an environment without that package; None without a home."""
    home = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    cache = pathlib.Path(chosen if os.path.isabs(chosen) else os.path.expanduser(home)) / "tensornet-attn"
    with contextlib.suppress(ImportError, RuntimeError):
        from platformdirs import user_cache_path

        cache = user_cache_path("tensornet-attn", False)
    return cache / "cpp" if cache.is_absolute() else None


def cpp_key(text: str, dtype: str) -> str:
    """The name of a library: a hash of its text, dtype, compiler, flags, processor and torch."""
    return cpp_hash(text, dtype, os.environ.get("CXX", ""), os.environ.get(CPP_MORE, ""))


@functools.lru_cache(256)
def cpp_hash(*request: str) -> str:
    """The hash of what was asked for; each call of a kernel looks it up."""
    with contextlib.suppress(ValueError):  # of a compiler that cannot be read, which compiles nothing
        request = (*request, cpp_version(*cpp_compiler()))
    parts = [*request, *CPP_FLAGS, CPP_WIDE, cpp_processor(), cpp_torch()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def cpp_stored(text: str, dtype: str) -> pathlib.Path | None:
    """The cached library of a text, after a check of its content; a damaged file is removed."""
    folder = cpp_folder()
    if folder is None or reason_against_folder():
        return None
    for path in sorted(folder.glob(f"{cpp_key(text, dtype)}-*.so")):
        with contextlib.suppress(OSError):  # another process has removed it, or the folder cannot be written
            if hashlib.sha256(path.read_bytes()).hexdigest()[:16] == path.stem.rpartition("-")[2]:
                return path
            path.unlink()
    return None


def cpp_verdict(path: pathlib.Path | None, **about: str) -> str | None:
    """Why a library must not be used, by the record beside it; empty if it agreed with the reference, None if unknown.

    `about`: what the record must say besides.
    """
    if path is None:
        return None
    try:
        record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        same = record["library"] == path.stem.rpartition("-")[2] and record["check"] >= CPP_CHECK
        reason = record["reason"] if same and about.items() <= record.items() else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return reason if isinstance(reason, str) else None


def cpp_loaded(text: str, dtype: str) -> ctypes.CDLL | str | None:
    """The library of a text for a dtype, loaded once. The reason if there is none; None once that was said.

    The process must have loaded torch.
    """
    key = cpp_key(text, dtype)
    if key not in CPP_LOADED:
        checking = CPP_CHECKING.get(threading.get_ident())
        if checking is not None:
            return checking[1] if checking[0] == key else None
        CPP_LOADED[key] = CPP_FINDERS.get("package", cpp_verified)(text, dtype)
    return CPP_LOADED[key]


def cpp_verified(text: str, dtype: str) -> ctypes.CDLL | str:
    """The cached library of a text, whose record says that it is right, or the reason why there is none."""
    path = cpp_stored(text, dtype)
    reason = cpp_verdict(path)
    if path is None or reason is None:
        return "none has been compared with the reference: run 'tensornet-attn warm' with the design and its options"
    try:
        return reason or cpp_opened(path)
    except OSError as error:
        return str(error)


def cpp_opened(path: pathlib.Path) -> ctypes.CDLL:
    """Loads a library. The times of library and record are those of the last use. Raises OSError."""
    library = ctypes.CDLL(str(path))
    for file in (path, path.with_suffix(".json")):
        with contextlib.suppress(OSError):  # of a folder that cannot be written
            os.utime(file)
    return library


def cpp_built(text: str, dtype: str, check: Callable) -> ctypes.CDLL | str:
    """The library of a text, compiled if the cache has none that can be loaded, or the reason why there is none.

    `check`: f(path, library, dtype), which compares it with the reference and returns what is wrong.
    """
    path = cpp_stored(text, dtype)
    if path is not None:
        try:
            library = cpp_opened(path)
        except OSError:  # made where other libraries are
            with contextlib.suppress(OSError):  # of a folder that cannot be written
                path.unlink()
            path = None
    if path is None:
        try:
            path = cpp_compiled(text, dtype)
            library = cpp_opened(path)
        except OSError as error:
            return str(error)
    return check(path, library, dtype) or library


def cpp_library(text: str, dtype: str) -> ctypes.CDLL | None:
    """The library that a call uses. If there is none: None, and the reason as a warning, once."""
    library_or_reason = cpp_loaded(text, dtype)
    if isinstance(library_or_reason, str):
        warnings.warn(
            f"C++ kernels for {dtype} cannot be used, so torch computes instead: {library_or_reason}", stacklevel=2
        )
        CPP_LOADED[cpp_key(text, dtype)] = None
    return None if isinstance(library_or_reason, str) else library_or_reason


def cpp_compiled(text: str, dtype: str) -> pathlib.Path:
    """Compiles a text into the cache. Raises OSError with the compiler's first error."""
    if reason := reason_against_cpp():
        raise OSError(reason)
    real, gemm = CPP_REALS[dtype]
    folder = pathlib.Path(str(cpp_folder()))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as workspace:
        source, built = pathlib.Path(workspace, "kernels.cpp"), pathlib.Path(workspace, "kernels.so")
        source.write_text(text, encoding="utf-8")
        defines = [f"-DREAL={real}", f"-DGEMM={gemm}"]
        libraries = ["-L", str(torch_libraries()), "-ltorch_cpu"]
        command = [*cpp_compiler(), *cpp_flags(), *defines, str(source), "-o", str(built), *libraries]
        completed = subprocess.run(command, capture_output=True, check=False)
        if completed.returncode:
            failed = folder / f"{cpp_key(text, dtype)}.failed.cpp"
            os.replace(source, failed)
            cpp_bounded(folder, failed)
            messages = completed.stderr.decode(errors="replace").splitlines()
            lines = [*(line for line in messages if "error" in line), *messages, f"exit status {completed.returncode}"]
            raise OSError(f"{command[0]} fails on {failed}: {lines[0].strip()}")
        digest = hashlib.sha256(built.read_bytes()).hexdigest()[:16]
        path = folder / f"{cpp_key(text, dtype)}-{digest}.so"
        os.replace(built, path)
    cpp_bounded(folder, path)
    return path


def cpp_bounded(folder: pathlib.Path, new: pathlib.Path) -> None:
    """Removes the least recently used files, except a new one, until the folder is within CPP_LIMIT.

    Those in the workspaces of killed processes count too.
    """
    files = []
    for path in (pathlib.Path(parent, name) for parent, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(OSError):  # another process has removed it
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    size = sum(size for _, size, _ in files)
    for _, freed, path in sorted(files):
        if size > CPP_LIMIT and path != new:
            path.unlink(missing_ok=True)
            size -= freed
