"""C++ kernels of regions of queries x keys, which `blockwise` calls for float32 and float64 tensors on a CPU."""

import contextlib
import ctypes
import math
import pathlib
from typing import NamedTuple

import torch
from torch import Tensor

from tensornet_attn.runtime.blockwise import Call
from tensornet_attn.runtime.cpp import cpp_library
from tensornet_attn.runtime.masks import run_time_mask, visible_and_bias
from tensornet_attn.runtime.operations import exports_onnx, own_name

CPP_REGIONS: dict = {}  # name: CppRegion
BIASED = " with a float mask"  # the end of the name of a region for such calls
CGROUP = "/sys/fs/cgroup", "max", "current"  # of version 2
CGROUP_V1 = "/sys/fs/cgroup/memory", "limit_in_bytes", "usage_in_bytes"
CACHED = "inactive_file ", "total_inactive_file "  # of both versions: files that count as used
CPP_KINDS = {torch.float32: "float32", torch.float64: "float64"}
CPP_SHARE = 4  # calls whose backward has not run save at most this part of the memory that is free without them
STORED = 1 << 24  # bytes of tiles that a thread stores, if they hold enough queries: products of few rows are slow
FEWEST_ROWS = 8


class CppOperand(NamedTuple):
    """An operand of the C++: its `place` among those of `blockwise`, and the order of its legs, heads before sides.

    `sizes`: in this order, "n", "m", or "n + m - 1" if known in a call only. `heads`: their number; `sides`: the legs
    of each side; `shared`: whether programs share it.
    """

    place: int
    order: tuple[int, ...]
    sizes: tuple[int | str, ...]
    heads: int
    sides: tuple[int, ...]
    shared: bool


class CppMasks(NamedTuple):
    """The places of mask and key mask, None if there is none, and the number of other legs of the mask."""

    mask: int | None
    keys: int | None
    others: int


class CppResult(NamedTuple):
    """The sizes before and after the query leg, and the order of legs for the caller."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    order: tuple[int, ...]


class CppRegion:
    """The C++ of a region, and how it reads the operands of `blockwise`.

    `programs`: their number for a block of one batch element; `maps`: the number of statistics of a row;
    `gradients`: the operands, by place among these, that have one. `block`: the queries and keys of a tile.
    `saves`: the number of tiles that a block of a program saves for the backward, None if the C++ can save none.
    `stores`: forward and backward, the tiles of each block of keys that a thread stores, and the numbers of each key
    that it holds besides. `memory`: the bytes that all this may take; None for a part of the free memory. `prefix`: of
    the functions in the text.
    """

    def __init__(
        self, text, operands, masks, result, programs, maps, gradients, block, stores, saves=None, memory=None,
        prefix="region",
    ):  # fmt: skip
        self.prefix = prefix
        self.text, self.operands, self.masks, self.result = text.strip(), operands, masks, result
        self.programs, self.maps, self.gradients = programs, maps, gradients
        self.block, self.saves, self.stores, self.memory = block, saves, stores, memory
        self.held = 0  # bytes that calls have saved for a backward that has not run


def free_memory() -> int | None:
    """The bytes that this process can still take, files that the system would drop included; None if unknown."""
    lines = system_text("/proc/meminfo").splitlines()
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    for line in system_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, *names = CGROUP_V1 if controllers else CGROUP
        for folder in (path.strip("/"), *map(str, pathlib.PurePosixPath(path.strip("/")).parents)):
            limit, usage, stat = (system_text(f"{root}/{folder}/memory.{name}").strip() for name in (*names, "stat"))
            files = sum(
                int(line.split()[1]) for line in stat.splitlines() if line.startswith(CACHED[bool(controllers)])
            )
            if limit.isdigit() and usage.isdigit():
                free.append(max(0, int(limit) - int(usage) + files))
    return min(free, default=None)


class Held:
    """Counts bytes that a call of a region has saved, as long as this object lives."""

    total = 0

    def __init__(self, size: int, region):
        self.size, self.region = size, region
        self.count(size)

    def count(self, change: int) -> None:
        Held.total += change
        self.region.held += change

    def __del__(self):
        self.count(-self.size)


@contextlib.contextmanager
def blas_threads(library: ctypes.CDLL, threads: int):
    """Limits BLAS to one thread in a call of one thread: outside of a parallel region it would take all threads."""
    all_threads = torch.get_num_threads()
    if threads > 1 or all_threads == 1:
        yield
        return
    limit = getattr(library, "MKL_Set_Num_Threads_Local", torch.set_num_threads)  # MKL's: this thread alone
    previous = limit(1)
    try:
        yield
    finally:
        limit(all_threads if previous is None else previous)


def system_text(path: str) -> str:
    """The text of a file of the system; empty if there is none."""
    try:
        return pathlib.Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def cpp_region(name: str, biased: dict | None = None, **fields) -> str:
    """Registers a region, and what differs for calls with a float mask; returns the name that `blockwise` takes."""
    name = own_name(name, CPP_REGIONS)
    CPP_REGIONS[name] = CppRegion(**fields)
    if biased is not None:
        CPP_REGIONS[name + BIASED] = CppRegion(**biased, text=fields["text"], prefix="biased")
    return name


def for_mask(name: str, operands: list[Tensor | None]) -> str:
    """The name of the region for a call's mask: a float mask may have its own."""
    mask_index = CPP_REGIONS[name].masks.mask
    mask = None if mask_index is None else operands[mask_index]
    same_region = mask is None or mask.dtype == torch.bool or name + BIASED not in CPP_REGIONS
    return name if same_region else name + BIASED


def runs_cpp(name: str, operands: list[Tensor | None], call: Call) -> bool:
    """Whether the C++ computes a call: CPU tensors of one dtype and full size, no autocast, no transform of torch.func.

    Gradients of masks and of given noise are left to the functions of blocks.
    """
    region, n, m = CPP_REGIONS[name], call.n, call.m
    floats = [x for x in operands if x is not None and x.dtype != torch.bool]
    kind = floats[0].dtype
    if call.cast is not None or kind not in CPP_KINDS or 0 in (n, m, *call.batch):
        return False
    if any(x.dtype != kind or not x.is_cpu for x in floats):
        return False
    lengths = {"n": n, "m": m, "n + m - 1": max(n + m - 1, 0)}
    differentiated = {region.operands[number].place for number in region.gradients}
    for operand in region.operands:
        x = operands[operand.place]
        if x is not None and (x.requires_grad and operand.place not in differentiated):
            return False
        for leg, size in zip(operand.order, operand.sizes, strict=True):
            if x is not None and x.shape[leg - len(operand.order)] != lengths.get(size, size):
                return False
    mask = None if region.masks.mask is None else operands[region.masks.mask]
    if mask is not None and mask.requires_grad:
        return False
    if torch.compiler.is_compiling():
        return not exports_onnx()
    plain = all(x is None or type(x) in (Tensor, torch.nn.Parameter) for x in operands)
    transformed = torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
    return plain and not transformed and cpp_library(region.text, CPP_KINDS[kind]) is not None


def in_rows(x: Tensor, sides: int) -> bool:
    """Whether the entries of the last side are neighbours, and rows do not overlap."""
    close = sides == 0 or x.shape[-1] == 1 or x.stride(-1) == 1
    return close and (sides < 2 or x.shape[-2] == 1 or x.stride(-2) >= max(1, x.shape[-1]))


def own_batch(name: str, operands: list[Tensor | None], call: Call) -> list[int]:
    """The batch dimensions of a result: those of its operands, and all of them if it draws noise."""
    region, batch = CPP_REGIONS[name], call.batch
    mask_index, key_mask_index, _ = region.masks
    batches = []
    for operand in region.operands:
        x = operands[operand.place]
        batches.append(batch if x is None else x.shape[: x.ndim - len(operand.order)])
    if mask_index is not None and operands[mask_index] is not None and operands[mask_index].ndim > 2:
        batches.append(operands[mask_index].shape[: len(batch)])
    if key_mask_index is not None and operands[key_mask_index] is not None:
        batches.append(operands[key_mask_index].shape[:-1])
    batches = [list(sizes) for sizes in batches if len(sizes)] or [[]]  # weights have none
    equal = all(sizes == batches[0] for sizes in batches[1:])
    return batches[0] if equal else list(torch.broadcast_shapes(*batches))


class CppCall:
    """The arguments of a call: pointers to operands, and the steps between their entries along each dimension."""

    def __init__(self, name: str, operands: list[Tensor | None], call: Call):
        self.n, self.m, self.training = call.n, call.m, call.training
        self.region, self.given, self.batch = CPP_REGIONS[name], operands, own_batch(name, operands, call)
        self.count = math.prod(self.batch)
        self.dtype = next(x.dtype for x in operands if x is not None and x.dtype != torch.bool)
        self.tensors: list[Tensor | None] = []
        self.steps: list[int] = []
        for operand in self.region.operands:
            self.take(*self.arranged(operand))
        self.take_masks(self.region.masks)

    def take(self, x: Tensor | None, steps: list[int]) -> None:
        self.tensors.append(x)
        self.steps += steps

    def arranged(self, operand: CppOperand) -> tuple[Tensor | None, list[int]]:
        """An operand as the C++ reads it, [batch,] heads, sides, and its steps."""
        x, heads, sides = self.given[operand.place], operand.heads, operand.sides
        if x is None:
            return None, [0] * (1 + heads + len(sides))
        lead = x.ndim - len(operand.order)
        x = permuted(x, operand.order)
        for side, legs in enumerate(sides):
            x = x.flatten(lead + heads + side, lead + heads + side + legs - 1) if legs > 1 else x
        x = x if in_rows(x, len(sides)) else x.contiguous()
        if lead and len(self.batch) > 1:
            x, lead = x.expand(*self.batch, *x.shape[lead:]).flatten(0, len(self.batch) - 1), 1
        steps = list(x.stride())
        if len(sides) > 1 and x.shape[-2] == 1:
            steps[-2] = x.shape[-1]  # BLAS refuses less, even of one row
        return x, steps if lead and x.shape[0] > 1 else [0, *steps[min(1, lead) :]]

    def take_masks(self, masks: CppMasks) -> None:
        """The masks of the call: visibility and bias [batch, others, n, m] with the same steps, and keys [batch, m]."""
        mask_index, key_mask_index, others = masks
        mask_tensors = visible_and_bias(None if mask_index is None else self.given[mask_index])
        steps = [0] * (2 + others)
        for x in mask_tensors:
            if x is not None:
                x = run_time_mask(x, len(self.batch), others)
                x = x.expand(*x.shape[:-2], self.n, self.m)
                x = x if mask_tensors[1] is None and x.stride(-1) == 1 else x.contiguous()
                if x.ndim == 2 or not self.batch:
                    x = x[(*[None] * (3 + others - x.ndim),)]
                elif len(self.batch) > 1:
                    x = x.expand(*self.batch, *x.shape[len(self.batch) :]).flatten(0, len(self.batch) - 1)
                steps = [0 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)][:-1]
                x = x.view(torch.uint8) if x.dtype == torch.bool else x.to(self.dtype)
            self.tensors.append(x)
        key_mask = None if key_mask_index is None else self.given[key_mask_index]
        if key_mask is not None:
            key_mask = key_mask.expand(*self.batch, self.m).reshape(self.count, self.m).contiguous().view(torch.uint8)
        self.steps += steps
        self.take(key_mask, [0 if key_mask is None else self.m])

    def run(
        self, name: str, arguments: list[Tensor | None], steps: list[int], seed: Tensor | None, workers: tuple[int, int]
    ) -> None:
        """Calls the function `name`."""
        dtype = CPP_KINDS[self.dtype]
        library = cpp_library(self.region.text, dtype)
        if library is None:  # known only now: tracing compiles nothing
            raise RuntimeError(f"C++ kernels for {dtype} cannot be compiled; use backend='torch'.")
        function = getattr(library, f"{self.region.prefix}_{name}")
        function.restype = ctypes.c_bool
        pointers, steps = [*self.tensors, *arguments], [*self.steps, *steps]
        threads, height = workers
        with blas_threads(library, threads):
            enough = function(
                (ctypes.c_long * 4)(self.n, self.m, self.count, height),
                (ctypes.c_void_p * len(pointers))(*(None if x is None else x.data_ptr() for x in pointers)),
                (ctypes.c_long * len(steps))(*steps),
                threads,
                ctypes.c_ulong(0 if seed is None else int(seed.item())),
                ctypes.c_bool(self.training),
            )
        if not enough:
            raise MemoryError(
                f"C++ kernels find no memory for the tiles of {threads} threads and {self.m} keys; free "
                "some memory, or compute with fewer threads (torch.set_num_threads)."
            )

    def stored(self, name: str) -> tuple[int, int]:
        """The bytes that a thread stores, and those for each query of a block besides."""
        tiles, key_numbers = self.region.stores[name == "backward"]
        block = self.region.block[1]
        length = (self.m + block - 1) // block * block * self.dtype.itemsize
        return key_numbers * length, tiles * length

    def workers(self, name: str, full_blocks: bool) -> tuple[int, int]:
        """The threads, and the queries of a block, that memory suffices for; `full_blocks`: all queries of a block."""
        threads, queries, (fixed, per_query) = torch.get_num_threads(), self.region.block[0], self.stored(name)
        adjustable = per_query and not full_blocks
        if adjustable:
            queries = min(queries, max(FEWEST_ROWS, STORED // per_query // FEWEST_ROWS * FEWEST_ROWS))
        needed = threads * (fixed + queries * per_query)
        if needed <= STORED and self.region.memory is None:
            return threads, queries  # without asking the system, which takes longer than a small call
        limit = self.storable()
        if limit is None or needed <= limit:
            return threads, queries
        if adjustable:
            queries = max(min(queries, FEWEST_ROWS), min(queries, (limit // threads - fixed) // per_query))
        threads = max(1, min(threads, limit // (fixed + queries * per_query)))
        if adjustable and threads == 1:
            queries = max(1, min(queries, (limit - fixed) // per_query))
        return threads, queries

    def storable(self) -> int | None:
        """The bytes that tiles may take while a call runs; None for any number."""
        if self.region.memory is not None:
            return self.region.memory - self.region.held
        free = free_memory()
        return None if free is None else max(STORED, free // CPP_SHARE)

    def savable(self) -> int:
        """The bytes that products saved for a backward may take."""
        if self.region.memory is None:
            return ((free_memory() or 0) + Held.total) // CPP_SHARE - Held.total
        fixed, per_query = self.stored("backward")  # which one thread needs then
        return self.region.memory - self.region.held - fixed - self.region.block[0] * per_query

    def room(self) -> Tensor | None:
        """Memory for the products that the forward saves; None if it would take too much, or blocks are not whole."""
        queries, keys = self.region.block
        if not self.region.saves or self.workers("backward", False)[1] < queries:
            return None
        blocks = ((self.n + queries - 1) // queries) * ((self.m + keys - 1) // keys)
        size = self.count * self.region.programs * self.region.saves * blocks * queries * keys
        if size * self.dtype.itemsize > self.savable():
            return None
        try:
            return torch.empty(size, dtype=self.dtype)
        except RuntimeError:  # other processes have taken it
            return None

    def optional(self, saved: Tensor | None) -> list[Tensor | None]:
        """The argument for saved products, if the C++ takes one."""
        return [] if self.region.saves is None else [saved]

    def gradients(
        self, out: Tensor, rows: Tensor, saved: Tensor | None, gradient: Tensor, seed: Tensor | None
    ) -> dict[int, Tensor]:
        """The gradients by place among the operands of `blockwise`."""
        workers, buffers, steps = self.workers("backward", saved is not None), list[Tensor](), list[int]()
        threads = workers[0]
        for number in self.region.gradients:
            operand, x = self.region.operands[number], self.tensors[number]
            dims = operand.heads + len(operand.sides)
            batched = x.ndim > dims and (x.shape[0] > 1 or self.count == 1)
            idle_threads = self.count * self.region.programs < threads and "n" not in operand.sizes
            copies = threads if operand.shared or idle_threads or not batched else 1  # workers add to a copy each
            # One copy has the memory order of the operand, which the products before it made.
            buffers.append(x.new_zeros((copies, *x.shape)) if copies > 1 else torch.zeros_like(x)[None])
            strides = buffers[-1].stride()[1:]
            lead = x.ndim - dims
            steps += [buffers[-1].stride(0) if copies > 1 else 0, *([*strides] if batched else [0, *strides[lead:]])]
        self.run("backward", [out, rows, *self.optional(saved), gradient.contiguous(), *buffers], steps, seed, workers)
        gradients = dict[int, Tensor]()
        for number, x in zip(self.region.gradients, buffers, strict=True):
            operand = self.region.operands[number]
            x = self.restored(x.sum(0) if x.shape[0] > 1 else x[0], self.given[operand.place], operand.order)
            earlier = gradients.get(operand.place)  # keys and values may be one tensor
            gradients[operand.place] = x if earlier is None else x + earlier
        return gradients

    def restored(self, gradient: Tensor, x: Tensor, order: tuple[int, ...]) -> Tensor:
        """A gradient in the shape of its operand."""
        lead = x.ndim - len(order)
        batch = self.batch if lead and len(self.batch) > 1 else list(x.shape[:lead])
        gradient = gradient.reshape([*batch, *(x.shape[lead + i] for i in order)])
        return permuted(gradient, [order.index(i) for i in range(len(order))]).sum_to_size(x.shape)


def cpp_forward(
    name: str, operands: list[Tensor | None], call: Call, seed: Tensor | None, saves: bool = False
) -> tuple[Tensor, Tensor, Tensor | None, Held | None]:
    """The result in the order of the C++, the statistics of its rows; products for the backward, and their bytes.

    There are none, unless the call `saves` them.
    """
    out, rows = cpp_shapes(name, operands, call)
    cpp_call = CppCall(name, operands, call)
    saved = cpp_call.room() if saves else None
    held = None if saved is None else Held(saved.nbytes, cpp_call.region)
    cpp_call.run(
        "forward", [out, rows, *cpp_call.optional(saved)], [], seed, cpp_call.workers("forward", saved is not None)
    )
    return out, rows, saved, held


def cpp_shapes(name: str, operands: list[Tensor | None], call: Call) -> tuple[Tensor, Tensor]:
    """Empty tensors like those of `cpp_forward`."""
    like = next(x for x in operands if x is not None and x.dtype != torch.bool)
    region, batch = CPP_REGIONS[name], own_batch(name, operands, call)
    rows = (math.prod(batch) * region.programs, region.maps, call.n)
    return like.new_empty((*batch, *region.result.before, call.n, *region.result.after)), like.new_empty(rows)


def cpp_gradients(
    name: str,
    operands: list[Tensor | None],
    call: Call,
    out: Tensor,
    rows: Tensor,
    saved: Tensor | None,
    gradient: Tensor,
    seed: Tensor | None,
) -> dict[int, Tensor]:
    """The gradients by place among the operands of `blockwise`; `out`, `gradient`: in the order of the C++.

    `saved`: products of the forward, which are computed again if it is None.
    """
    return CppCall(name, operands, call).gradients(out, rows, saved, gradient, seed)


def for_caller(name: str, out: Tensor) -> Tensor:
    """The result with its legs in the order of the functions of blocks."""
    return permuted(out, CPP_REGIONS[name].result.order)


def for_cpp(name: str, gradient: Tensor) -> Tensor:
    """The gradient of `for_caller`'s result in the order of the C++."""
    order = CPP_REGIONS[name].result.order
    return permuted(gradient, [order.index(i) for i in range(len(order))])


def permuted(x: Tensor, order) -> Tensor:
    """A tensor with its last dimensions in another order."""
    lead = x.ndim - len(order)
    return x.permute([*range(lead), *(lead + i for i in order)])
