"""C++ libraries: compiled by the system's compiler, cached on disk by content, damaged ones rebuilt.

Reads no torch: `explain` asks what the cache holds.
"""

import ctypes
import functools
import hashlib
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import warnings

CPP_REALS = {"float32": ("float", "sgemm_"), "float64": ("double", "dgemm_")}  # C++ type and BLAS product by dtype
CPP_DTYPES = {"float32": "float32", "float64": "float64", "bfloat16": "float32", "float16": "float32"}  # in kernels
# The parts of -ffast-math that keep infinity and NaN; as a whole, it makes some compilers link code that changes how
# the process that loads the library rounds subnormal numbers.
CPP_FLAGS = (
    "-std=c++17", "-O3", "-fno-math-errno", "-fassociative-math", "-freciprocal-math", "-fno-signed-zeros",
    "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared",
)  # fmt: skip
CPP_WIDE = "-mprefer-vector-width=512"  # on x86
CPP_MORE = "TENSORNET_ATTN_CXXFLAGS"  # names further flags; CXXFLAGS, which environments set for packages, does not
CPP_LOADED: dict = {}  # key of text and dtype: the library; the reason why there is none; None once that was said


def cpp_compiler() -> str | None:
    """The C++ compiler: $CXX, otherwise g++ or clang++; None if there is none."""
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")


def cpp_flags() -> list[str]:
    """The compiler's flags: for this processor, unless those of the environment, which come last, name another one."""
    wide = [CPP_WIDE] if os.uname().machine in ("x86_64", "i686") else []
    return [*CPP_FLAGS, "-march=native", *wide, *shlex.split(os.environ.get(CPP_MORE, ""))]


def reason_against_cpp() -> str:
    """Why no library can be compiled; empty if one can."""
    if cpp_compiler() is None:
        return "there is no C++ compiler: install g++, or name one in CXX"
    try:
        cpp_flags()
    except ValueError as error:
        return f"the flags in {CPP_MORE} cannot be read: {error}"
    return "" if torch_libraries().is_dir() else "torch has no folder of libraries"


@functools.cache
def torch_libraries() -> pathlib.Path:
    """The folder of torch's libraries, whose BLAS computes the products."""
    found = importlib.util.find_spec("torch")
    return pathlib.Path(found.origin).parent / "lib" if found and found.origin else pathlib.Path("torch")


@functools.cache
def cpp_processor() -> str:
    """The instruction sets of this processor: libraries for another one would not run."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return os.uname().machine
    return next((line for line in lines if line.startswith(("flags", "Features"))), os.uname().machine)


def cpp_folder() -> pathlib.Path:
    """The folder of the libraries: `tensornet-attn/cpp` in $XDG_CACHE_HOME or ~/.cache."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tensornet-attn" / "cpp"


def cpp_key(text: str, dtype: str) -> str:
    """The name of a library: a hash of its text, dtype, compiler, flags, processor and torch."""
    return cpp_hash(text, dtype, os.environ.get("CXX", ""), os.environ.get(CPP_MORE, ""))


@functools.lru_cache(256)
def cpp_hash(*asked: str) -> str:
    """The hash of what was asked for; each call of a kernel looks it up."""
    parts = [*asked, *CPP_FLAGS, CPP_WIDE, cpp_processor(), str(torch_libraries())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def cpp_stored(text: str, dtype: str) -> pathlib.Path | None:
    """The cached library of a text, after a check of its content; a damaged file is removed."""
    for path in sorted(cpp_folder().glob(f"{cpp_key(text, dtype)}-*.so")):
        if hashlib.sha256(path.read_bytes()).hexdigest()[:16] == path.stem.rpartition("-")[2]:
            return path
        path.unlink(missing_ok=True)
    return None


def cpp_loaded(text: str, dtype: str) -> ctypes.CDLL | str | None:
    """The library of a text for a dtype, loaded once; compiled if the cache lacks it. The reason if that fails.

    The process must have loaded torch.
    """
    key = cpp_key(text, dtype)
    if key not in CPP_LOADED:
        try:
            CPP_LOADED[key] = ctypes.CDLL(str(cpp_stored(text, dtype) or cpp_compiled(text, dtype)))
        except OSError as error:
            CPP_LOADED[key] = str(error)
    return CPP_LOADED[key]


def cpp_library(text: str, dtype: str) -> ctypes.CDLL | None:
    """The library that a call uses. If it cannot be compiled: None, and the reason as a warning, once."""
    found = cpp_loaded(text, dtype)
    if isinstance(found, str):
        warnings.warn(f"C++ kernels for {dtype} cannot be used, so the blockwise path runs: {found}", stacklevel=2)
        CPP_LOADED[cpp_key(text, dtype)] = None
    return None if isinstance(found, str) else found


def cpp_compiled(text: str, dtype: str) -> pathlib.Path:
    """Compiles a text into the cache. Raises OSError with the compiler's first error."""
    if reason := reason_against_cpp():
        raise OSError(reason)
    real, gemm = CPP_REALS[dtype]
    cpp_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cpp_folder()) as place:
        source, made = pathlib.Path(place, "kernels.cpp"), pathlib.Path(place, "kernels.so")
        source.write_text(text, encoding="utf-8")
        names = [f"-DREAL={real}", f"-DGEMM={gemm}"]
        libraries = ["-L", str(torch_libraries()), "-ltorch_cpu"]
        run = [str(cpp_compiler()), *cpp_flags(), *names, str(source), "-o", str(made), *libraries]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        if done.returncode:
            kept = cpp_folder() / f"{cpp_key(text, dtype)}.failed.cpp"
            os.replace(source, kept)
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            lines = [*lines, f"exit status {done.returncode}"]
            raise OSError(f"{run[0]} fails on {kept}: {lines[0].strip()}")
        digest = hashlib.sha256(made.read_bytes()).hexdigest()[:16]
        found = cpp_folder() / f"{cpp_key(text, dtype)}-{digest}.so"
        os.replace(made, found)
    return found
