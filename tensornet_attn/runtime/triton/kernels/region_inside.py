"""Helpers inside kernels of queries x keys: loads and stores, products, softmax rows, masks, random numbers."""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.tiles import finite_of, tile_mask


@triton.jit
def block_of(blocks, SIZE: tl.constexpr, LAST: tl.constexpr):
    """(number of a program's block, its batch and heads, the first index of the block, all its indices).

    LAST: the last blocks start first, because their loops are the longest.
    """
    block = tl.program_id(0) % blocks
    if LAST:
        block = blocks - 1 - block
    return block, (tl.program_id(0) // blocks).to(tl.int64), block * SIZE, block * SIZE + tl.arange(0, SIZE)


@triton.jit
def load_1d(base, i, step, end):
    """Loads elements i of a row, zeros after its end."""
    return tl.load(base + i * step, i < end, 0)


@triton.jit
def load_2d(base, i, i_step, i_end, j, j_step, j_end):
    """Loads elements (i, j), zeros after the ends."""
    return tl.load(base + i[:, None] * i_step + j[None, :] * j_step, tile_mask(i < i_end, j < j_end), 0)


@triton.jit
def store_1d(base, i, step, end, x):
    """Stores elements i, nothing after the end."""
    tl.store(base + i * step, x, i < end)


@triton.jit
def store_2d(base, i, i_step, i_end, j, j_step, j_end, x):
    """Stores elements (i, j), nothing after the ends."""
    rows, columns = i.to(tl.int64)[:, None] * i_step, j.to(tl.int64)[None, :] * j_step
    tl.store(base + rows + columns, x, tile_mask(i < i_end, j < j_end))


@triton.jit
def place(base, steps, at):
    """The address of the part of a tensor with these first indices."""
    for i in tl.static_range(len(at)):
        base += at[i] * steps[i]
    return base


@triton.jit
def scalar(x, steps, at):
    """The element of a tensor with these indices."""
    return tl.load(place(x, steps, at))


@triton.jit
def tile_1d(x, steps, at, i, i_end):
    """The elements x[at, i], zeros after the end."""
    return load_1d(place(x, steps, at), i, steps[len(at)], i_end)


@triton.jit
def tile_2d(x, steps, at, i, i_end, j, j_end):
    """The elements x[at, i, j], zeros after the ends."""
    return load_2d(place(x, steps, at), i, steps[len(at)], i_end, j, steps[len(at) + 1], j_end)


@triton.jit
def pair_2d(x, steps, at, n, n_end, m, m_end):
    """The elements x[at, n, m] of a tensor of queries x keys, which may have more than 2^31, zeros after the ends.

    One index is a column, the other a row, so that keys can be the rows of a tile.
    """
    rows, columns = n.to(tl.int64) * steps[len(at)], m.to(tl.int64) * steps[len(at) + 1]
    return tl.load(place(x, steps, at) + rows + columns, (n < n_end) & (m < m_end), 0)


@triton.jit
def store_tile_1d(x, steps, at, i, i_end, value):
    """Stores x[at, i], if x is asked for; nothing after the end."""
    if x is not None:
        store_1d(place(x, steps, at), i, steps[len(at)], i_end, value)


@triton.jit
def store_tile_2d(x, steps, at, i, i_end, j, j_end, value):
    """Stores x[at, i, j], if x is asked for; nothing after the ends."""
    if x is not None:
        store_2d(place(x, steps, at), i, steps[len(at)], i_end, j, steps[len(at) + 1], j_end, value)


@triton.jit
def dot_of(a, b, DOT: tl.constexpr, SUMS: tl.constexpr):
    """a b in the dtype of the operands, accumulated in that of sums."""
    return tl.dot(a.to(DOT), b.to(DOT), input_precision="ieee", out_dtype=SUMS)


@triton.jit
def exp_of(x):
    """exp(x), by the exp2 instruction of the GPU."""
    return tl.exp2(1.4426950408889634 * x)


@triton.jit
def maximum_of(a, b):
    """The larger one, NaN if one of them is; instructions of the GPU drop it otherwise."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum_of(a, b):
    """The smaller one, NaN if one of them is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def where_visible(x, visible, edge, other):
    """x where visible, else `other`. Blocks that are not at an edge are entirely visible."""
    if edge:
        x = tl.where(visible, x, other)
    return x


@triton.jit
def online(scores, SCALE: tl.constexpr, MASK: tl.constexpr, visible, edge, m_i, l_i):
    """One step of online softmax: (unnormalised maps of a block, alpha, new m_i, new l_i).

    Scores are not yet scaled, except with MASK 2, where a mask has been added to them. m_i is in the units of `exp_in`.
    """
    if (SCALE > 0) & (MASK != 2):
        weights, alpha, new_m_i = powers(where_visible(scores, visible, edge, float("-inf")), SCALE, MASK, m_i)
    else:
        weights, alpha, new_m_i = powers(scaled(scores, SCALE, MASK, visible, edge), 1.0, MASK, m_i)
    return weights, alpha, new_m_i, l_i * alpha + tl.sum(weights, 1)


@triton.constexpr_function
def unit_of(scale, mask):
    """A scale in the units of `exp_in`."""
    return scale if mask == 2 else 1.4426950408889634 * scale


@triton.jit
def exp_in(x, MASK: tl.constexpr):
    """exp of a number in units of log 2; with MASK 2 in units of 1, because the largest masks have no multiples."""
    return tl.exp(x) if MASK == 2 else tl.exp2(x)


@triton.jit
def powers(scores, SCALE: tl.constexpr, MASK: tl.constexpr, m_i):
    """(exp(SCALE scores) relative to the new m_i, alpha to rescale earlier results, new m_i)."""
    alpha, new_m_i = higher(tl.max(scores, 1), SCALE, MASK, m_i)
    return power(scores, SCALE, MASK, new_m_i), alpha, new_m_i


@triton.jit
def scaled(scores, SCALE: tl.constexpr, MASK: tl.constexpr, visible, edge):
    """The scores of `online`, scaled; minus infinity where hidden."""
    if MASK != 2:
        scores = SCALE * scores
    return where_visible(scores, visible, edge, float("-inf"))


@triton.jit
def higher(found, SCALE: tl.constexpr, MASK: tl.constexpr, m_i):
    """(alpha, new m_i), where SCALE found is the maximum of a block."""
    new_m_i = tl.maximum(m_i, unit_of(SCALE, MASK) * found)
    return exp_in(m_i - finite_of(new_m_i), MASK), new_m_i


@triton.jit
def power(scores, SCALE: tl.constexpr, MASK: tl.constexpr, m_i):
    """exp(SCALE scores) relative to m_i."""
    return exp_in(unit_of(SCALE, MASK) * scores - finite_of(m_i)[:, None], MASK)


@triton.jit
def log_sum(m_i, l_i, MASK: tl.constexpr, SPLIT: tl.constexpr):
    """The log-sum-exp of each row, from m_i and the sum relative to it.

    If a row sees nothing, this is a number for minus infinity, or minus infinity for a part of the keys.
    """
    nonempty = l_i != 0
    lse = tl.where(nonempty, m_i, 0.0) / unit_of(1.0, MASK) + tl.log(tl.where(nonempty, l_i, 1.0))
    return tl.where(nonempty, lse, float("-inf") if SPLIT else -1e15)


@triton.jit
def largest_with_sink(m_i, sink, MASK: tl.constexpr):
    """The new m_i of each row with a sink: one more score without a value."""
    return tl.maximum(m_i, unit_of(1.0, MASK) * sink)


@triton.jit
def sum_with_sink(m_i, l_i, sink, MASK: tl.constexpr):
    """The sum of each row with a sink, relative to the new m_i."""
    new_m_i = largest_with_sink(m_i, sink, MASK)
    shift = finite_of(new_m_i)
    return l_i * exp_in(m_i - shift, MASK) + exp_in(unit_of(1.0, MASK) * sink - shift, MASK)


@triton.jit
def with_sink(m_i, l_i, sink, MASK: tl.constexpr):
    """The factor that divides rows, which are relative to m_i, by their sum with a sink."""
    new_m_i, total = largest_with_sink(m_i, sink, MASK), sum_with_sink(m_i, l_i, sink, MASK)
    alpha = exp_in(m_i - finite_of(new_m_i), MASK)
    return tl.where(total == 0, 0.0, alpha / tl.where(total == 0, 1.0, total))


@triton.jit
def sink_share(sink, largest, rows, MASK: tl.constexpr):
    """The share of a sink in each row, from what is saved of the row; beyond the last query, that is zero."""
    return exp_in(tl.minimum(unit_of(1.0, MASK) * sink - largest, 0.0), MASK) * rows


@triton.jit
def largest_of(m_i, SPLIT: tl.constexpr):
    """The m_i that is saved: zero if a row sees nothing, except for a part of the keys."""
    if not SPLIT:
        m_i = finite_of(m_i)
    return m_i


@triton.jit
def inverse_of(l_i, eps, SPLIT: tl.constexpr):
    """The factor that divides rows by (sum + eps), zero if this is zero; one for a part of the keys."""
    if SPLIT:
        inverse = l_i * 0 + 1
    else:
        divisor = l_i + eps
        inverse = tl.where(divisor == 0, 0.0, 1 / tl.where(divisor == 0, 1.0, divisor))
    return inverse


@triton.jit
def sums_of_part(l_i, eps, SPLIT: tl.constexpr):
    """The same factor; for a part of the keys the sum, which the first part adds eps to."""
    if SPLIT:
        statistic = l_i + tl.where(tl.program_id(1) == 0, eps, 0.0)
    else:
        statistic = inverse_of(l_i, eps, SPLIT)
    return statistic


@triton.jit
def own_sink(sink, SPLIT: tl.constexpr):
    """The sink of a program; of several parts of the keys, only the first has one."""
    if SPLIT:
        sink = tl.where(tl.program_id(1) == 0, sink, float("-inf"))
    return sink


@triton.jit
def share_of(begin, end, block, SPLIT: tl.constexpr):
    """The bounds of the part of a loop that belongs to a program: whole blocks, about equally many for each."""
    if SPLIT:
        share = tl.cdiv(tl.cdiv(end - begin, block), tl.num_programs(1)) * block
        begin += tl.program_id(1) * share
        end = tl.minimum(begin + share, end)
    return begin, end


@triton.jit
def result_of_part(base, step, SPLIT: tl.constexpr):
    """The place of a program's result, if several programs share the keys."""
    if SPLIT:
        base += tl.program_id(1).to(tl.int64) * step
    return base


@triton.jit
def softened(scores, SCALE: tl.constexpr, MASK: tl.constexpr, visible, edge, largest, rows):
    """Softmax rows from their m_i and 1 / sum, zeros if a row sees nothing. Scores are scaled as in `online`."""
    power = unit_of(1.0 if MASK == 2 else SCALE, MASK) * scores - largest
    return exp_in(where_visible(power, visible, edge, float("-inf")), MASK) * rows


@triton.constexpr_function
def parts_of(rows, columns, parts):
    """The number of partial sums from `in_parts`."""
    return (rows, 2 * rows, rows * columns // 4)[parts]


@triton.jit
def in_parts(x, PARTS: tl.constexpr):
    """Partial sums of a tile. PARTS 0: one per row. PARTS 1: one per thread after a tensor-core product, which holds
    (i, j), (i, j + 1), the same 8 rows below, and all these 8 columns apart. PARTS 2: as 1, but separately for each 8
    columns, for warps that split columns."""
    if PARTS == 0:
        sums = tl.sum(x, 1)
    else:
        x = tl.reshape(x, (x.shape[0] // 16, 2, 8, x.shape[1] // 8, 4, 2))
        x = tl.sum(tl.sum(x, 5), 1)
        if PARTS == 1:
            x = tl.sum(x, 2)
        sums = tl.reshape(x, (x.numel,))
    return sums


@triton.jit
def power_of(x, P: tl.constexpr):
    """x ** P; for negative x NaN unless P is an integer."""
    if P == 0:
        raised = x * 0 + 1
    elif P == 1:
        raised = x
    elif P == 2:
        raised = x * x
    elif P == 3:
        raised = x * x * x
    else:
        raised = exp_of(P * tl.log(tl.abs(x)))
        if P % 2 == 1:
            raised = tl.where(x < 0, -raised, raised)
        elif P % 2 != 0:
            raised = tl.where(x < 0, float("nan"), raised)
    return raised


@triton.jit
def log_add(a, b):
    """log(exp(a) + exp(b)); minus infinity if both are."""
    m_i = maximum_of(a, b)
    nonempty = m_i != float("-inf")
    shift = tl.where(nonempty, m_i, 0.0)
    total = tl.where(nonempty, exp_of(a - shift) + exp_of(b - shift), 1.0)
    return tl.where(nonempty, shift + tl.log(total), m_i)


@triton.jit
def mask_2d(mask, steps, at, n, n_end, m, m_end, MASK: tl.constexpr):
    """A tile of the mask of the call. MASK 0: none; 1: boolean; 2: float, minus infinity hides."""
    if MASK == 0:
        tile = 0
    else:
        tile = pair_2d(mask, steps, at, n, n_end, m, m_end)
    return tile


@triton.jit
def allowed(visible, mask, MASK: tl.constexpr):
    """Visibility combined with the mask of the call."""
    if MASK == 1:
        visible = visible & (mask != 0)
    if MASK == 2:
        visible = visible & (mask != float("-inf"))
    return visible


@triton.jit
def with_bias(x, SCALE: tl.constexpr, mask, MASK: tl.constexpr, SUMS: tl.constexpr):
    """Scores plus the float mask of the call, if any, where it hides nothing; they are scaled before it is added."""
    if MASK == 2:
        x = SCALE * x + finite_of(mask).to(SUMS)
    return x


@triton.jit
def in_sight(i, i_end, j, j_end, base, step, KEYS: tl.constexpr, AXIS: tl.constexpr):
    """Whether pairs (i, j) exist and the key mask of the call, if any, shows the key; AXIS is the axis of the keys."""
    visible = tile_mask(i < i_end, j < j_end)
    if KEYS:
        if AXIS == 0:
            visible = visible & (load_1d(base, i, step, i_end) != 0)[:, None]
        else:
            visible = visible & (load_1d(base, j, step, j_end) != 0)[None, :]
    return visible


@triton.jit
def at_keys(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """From relative positions to keys within a block: entry (i, j) is x[i, i - j + COLUMNS - 1]."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    return tl.gather(x, i[:, None] - j[None, :] + COLUMNS - 1, 1)


@triton.jit
def at_places(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr):
    """From keys to relative positions, zeros without a key: the inverse of `at_keys`."""
    i, p = tl.arange(0, ROWS), tl.arange(0, PLACES)
    j = i[:, None] - p[None, :] + COLUMNS - 1
    gathered = tl.gather(x, tl.minimum(tl.maximum(j, 0), COLUMNS - 1), 1)
    return tl.where((j >= 0) & (j < COLUMNS), gathered, 0.0)


@triton.jit
def entries(base, n, n_step, distance, step, REACH: tl.constexpr, in_bounds):
    """Loads the entries of a table at these distances, from the row of each query n if it has rows."""
    far = tl.minimum(tl.maximum(distance, -REACH), REACH) + REACH
    return tl.load(base + n * n_step + far * step, in_bounds, 0)


@triton.jit
def store_entries(base, n, distance, REACH: tl.constexpr, in_bounds, x, before, after, ADD: tl.constexpr):
    """Stores the entries between both ends for each query, and adds to the accumulators of both ends.

    ADD: add to the values that the same program has stored before.
    """
    at, inside = base + n * (2 * REACH + 1) + distance + REACH, in_bounds & (distance > -REACH) & (distance < REACH)
    stored = x
    if ADD:
        stored += tl.load(at, inside, 0)
        tl.debug_barrier()  # all threads have read before any writes
    tl.store(at, stored, inside)
    before += tl.sum(tl.where(in_bounds & (distance <= -REACH), x, 0.0), 1)
    return before, after + tl.sum(tl.where(in_bounds & (distance >= REACH), x, 0.0), 1)


@triton.constexpr_function
def in_interpreter():
    """Whether kernels run in the interpreter, which has no instructions of the GPU."""
    return triton.knobs.runtime.interpret


@triton.jit
def key_of(seed, DRAW: tl.constexpr):
    """The key of the generator: the seed of the call, if it has one."""
    if DRAW:
        key = tl.load(seed)
    else:
        key = 0
    return key


@triton.jit
def as_product(x, DOT: tl.constexpr):
    """An integer tile, distributed over threads as products of tensor cores are, so that what is drawn stays there.

    The compiler distributes a sum like a product in it, before it finds out that both shifts make the product zero.
    """
    if not in_interpreter() and DOT.primitive_bitwidth < 32:
        product = tl.dot(tl.zeros((x.shape[0], 16), DOT), tl.zeros((16, x.shape[1]), DOT))
        x += (product.to(tl.uint32, bitcast=True) >> 31) >> 1
    return x


@triton.jit
def random_words(n, m, lead, stream, key):
    """Four tiles of random 32-bit words, equal for equal query n and key m in every kernel.

    Philox4x32 with 7 rounds, which passes BigCrush (Salmon et al., Parallel random numbers, SC 2011, table 2).
    """
    across, down = (n * 0 + m).to(tl.uint32), (n + m * 0).to(tl.uint32)
    rest = across * 0
    return tl.philox(key, across, down, rest + lead.to(tl.uint32), rest + stream, 7)


@triton.jit
def uniform(n, m, lead, word, stream, key):
    """Uniform random numbers in [0, 1). Tiles with the same lead and other words share the work of the generator."""
    a, b, c, d = random_words(n, m, lead, stream, key)
    if word == 1:
        a = b
    elif word == 2:
        a = c
    elif word == 3:
        a = d
    return (a >> 8).to(tl.float32) * (1 / 16777216)


@triton.jit
def gaussian_2d(n, m, lead, word, stream, key, DOT: tl.constexpr):
    """Gaussian random numbers. Tiles with the same lead and other words share the work of the generator.

    The logarithm, sine and cosine are the instructions of the GPU, with errors up to 7e-7, because functions with
    branches spill registers.
    """
    a, b, c, d = random_words(n, as_product((n * 0 + m).to(tl.uint32), DOT), lead, stream, key)
    if word >= 2:
        a = c
        b = d
    x = a.to(tl.float32) * (1 / 4294967296) + (1 / 8589934592)  # in (0, 1]
    y = b.to(tl.int32, bitcast=True).to(tl.float32) * (3.141592653589793 / 2147483648)  # in [-pi, pi]
    if in_interpreter():
        power, sine, cosine = tl.log2(x), tl.sin(y), tl.cos(y)
    else:
        power = instruction("lg2.approx.ftz.f32 $0, $1;", x)
        sine, cosine = instruction("sin.approx.ftz.f32 $0, $1;", y), instruction("cos.approx.ftz.f32 $0, $1;", y)
    wave = cosine
    if word % 2 == 1:
        wave = sine
    return tl.sqrt(tl.abs(1.3862943611198906 * power)) * wave


@triton.jit
def instruction(ASM: tl.constexpr, x):
    """An instruction of the GPU, for each number of a float32 tile."""
    return tl.inline_asm_elementwise(ASM, "=f,f", [x], tl.float32, True, 1)


@triton.jit
def noise_2d(
    x, steps, at, n, n_end, m, m_end, lead, word, stream, key, std, DRAW: tl.constexpr, GIVEN: tl.constexpr,
    DOT: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """The noise given, else fresh Gaussian noise times std, else zeros."""
    noise = tl.zeros((n + m).shape, SUMS)
    if GIVEN:
        noise = pair_2d(x, steps, at, n, n_end, m, m_end).to(SUMS)
    elif DRAW:
        noise = std * gaussian_2d(n, m, lead, word, stream, key, DOT).to(SUMS)
    return noise


@triton.jit
def dropped(x, n, m, lead, word, stream, key, probability, TRAIN: tl.constexpr):
    """Dropout: zeroes entries in training and scales the others up."""
    if TRAIN:
        kept = uniform(n, m, lead, word, stream, key) >= probability
        x = tl.where(kept, x * (1 / (1 - probability)), 0.0)
    return x
