"""What kernels of queries x keys call: parts of tensors, one product, softmax rows, masks, random numbers."""

import triton
import triton.language as tl


@triton.jit
def load_1d(base, i, step, end):
    """The numbers at i of a row, zeros after its end."""
    return tl.load(base + i * step, i < end, 0)


@triton.jit
def load_2d(base, i, i_step, i_end, j, j_step, j_end):
    """The numbers at (i, j), zeros after the ends."""
    return tl.load(base + i[:, None] * i_step + j[None, :] * j_step, (i < i_end)[:, None] & (j < j_end)[None, :], 0)


@triton.jit
def store_1d(base, i, step, end, x):
    """Writes the numbers at i, none after the end."""
    tl.store(base + i * step, x, i < end)


@triton.jit
def store_2d(base, i, i_step, i_end, j, j_step, j_end, x):
    """Writes the numbers at (i, j), none after the ends."""
    tl.store(base + i[:, None] * i_step + j[None, :] * j_step, x, (i < i_end)[:, None] & (j < j_end)[None, :])


@triton.jit
def dot_of(a, b, DOT: tl.constexpr, SUMS: tl.constexpr):
    """a b in the dtype of the operands, added in that of sums."""
    return tl.dot(a.to(DOT), b.to(DOT), input_precision="ieee", out_dtype=SUMS)


@triton.jit
def online(scores, seen, most, total):
    """A block of maps that lack a factor of each row; what all before is multiplied with; the most, the sum so far."""
    scores = tl.where(seen, scores, float("-inf"))
    new = tl.maximum(most, tl.max(scores, 1))
    shift = tl.where(new == float("-inf"), 0.0, new)
    part, fade = tl.exp(scores - shift[:, None]), tl.exp(most - shift)
    return part, fade, new, total * fade + tl.sum(part, 1)


@triton.jit
def log_total(most, total):
    """The log of the sum of each row, of the sum without exp(most); zero where a row sees nothing."""
    some = total > 0
    return tl.where(some, most, 0.0) + tl.log(tl.where(some, total, 1.0))


@triton.jit
def inverse_of(total, eps):
    """What rows are multiplied with that are divided by their sum and eps: zero where these are zero."""
    whole = total + eps
    return tl.where(whole == 0, 0.0, 1 / tl.where(whole == 0, 1.0, whole))


@triton.jit
def softened(scores, seen, lse):
    """Softmax rows from the logs of their sums, zeros where they see nothing."""
    return tl.exp(tl.where(seen, scores - lse[:, None], float("-inf")))


@triton.jit
def power_of(x, P: tl.constexpr):
    """x ** P: of negative numbers where P is a whole one, else NaN."""
    if P == 0:
        found = x * 0 + 1
    elif P == 1:
        found = x
    elif P == 2:
        found = x * x
    elif P == 3:
        found = x * x * x
    else:
        found = tl.exp(P * tl.log(tl.abs(x)))
        if P % 2 == 1:
            found = tl.where(x < 0, -found, found)
        elif P % 2 != 0:
            found = tl.where(x < 0, float("nan"), found)
    return found


@triton.jit
def log_add(a, b):
    """log(exp(a) + exp(b))."""
    most = tl.maximum(a, b)
    return most + tl.log(tl.exp(a - most) + tl.exp(b - most))


@triton.jit
def allowed(seen, base, n, n_step, n_end, m, m_step, m_end, MASK: tl.constexpr):
    """Where the mask of the call allows it too: MASK 0, none; 1, of zeros and ones; 2, minus infinity forbids."""
    if MASK == 1:
        seen = seen & (load_2d(base, n, n_step, n_end, m, m_step, m_end) != 0)
    if MASK == 2:
        seen = seen & (load_2d(base, n, n_step, n_end, m, m_step, m_end) != float("-inf"))
    return seen


@triton.jit
def bias_2d(base, n, n_step, n_end, m, m_step, m_end):
    """What a mask adds where it allows to look."""
    found = load_2d(base, n, n_step, n_end, m, m_step, m_end)
    return tl.where(found == float("-inf"), 0.0, found)


@triton.jit
def at_keys(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Relative positions as keys, for a block of both: entry (i, j) is x[i, i - j + COLUMNS - 1]."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    return tl.gather(x, i[:, None] - j[None, :] + COLUMNS - 1, 1)


@triton.jit
def at_places(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr):
    """Keys as relative positions, zeros where no key stands: what `at_keys` takes."""
    i, p = tl.arange(0, ROWS), tl.arange(0, PLACES)
    j = i[:, None] - p[None, :] + COLUMNS - 1
    found = tl.gather(x, tl.minimum(tl.maximum(j, 0), COLUMNS - 1), 1)
    return tl.where((j >= 0) & (j < COLUMNS), found, 0.0)


@triton.jit
def entries(base, n, n_step, apart, step, REACH: tl.constexpr, there):
    """Of a table of distances, of each query n its own where they have one, the entries at these distances."""
    far = tl.minimum(tl.maximum(apart, -REACH), REACH) + REACH
    return tl.load(base + n[:, None] * n_step + far * step, there, 0)


@triton.jit
def store_entries(base, n, apart, REACH: tl.constexpr, there, x, before, after, ADD: tl.constexpr):
    """Writes what each query has at the distances between the ends, and adds to what it has at both ends.

    ADD: to what the same program wrote before.
    """
    at, inside = base + n[:, None] * (2 * REACH + 1) + apart + REACH, there & (apart > -REACH) & (apart < REACH)
    found = x
    if ADD:
        found += tl.load(at, inside, 0)
        tl.debug_barrier()  # all have read before any writes
    tl.store(at, found, inside)
    before += tl.sum(tl.where(there & (apart <= -REACH), x, 0.0), 1)
    return before, after + tl.sum(tl.where(there & (apart >= REACH), x, 0.0), 1)


@triton.jit
def uniform(n, m, lead, stream, seed):
    """Two tiles of uniform numbers, the same for the same place in every kernel."""
    across = (n[:, None] * 0 + m[None, :]).to(tl.uint32)
    down = (n[:, None] + m[None, :] * 0).to(tl.uint32)
    rest = across * 0
    a, b, _, _ = tl.philox(tl.load(seed), across, down, rest + lead.to(tl.uint32), rest + stream)
    return tl.uint_to_uniform_float(a), tl.uint_to_uniform_float(b)


@triton.jit
def gaussian_of(a, b):
    """Gaussian numbers from two tiles of uniform ones, without tl.log and tl.cos: these have branches, and spill."""
    bits = tl.maximum(a, 1e-7).to(tl.int32, bitcast=True)
    power = (bits - 0x3F3504F3) >> 23  # a is 2 ** power times a number from sqrt(1 / 2) to sqrt(2)
    rest = (bits - (power << 23)).to(tl.float32, bitcast=True)
    x = (rest - 1) / (rest + 1)
    s = x * x
    log = 0.6931471805599453 * power + 2 * x * (1 + s * (1 / 3 + s * (1 / 5 + s * (1 / 7 + s / 9))))
    y = 6.283185307179586 * (tl.abs(b - 0.5) - 0.25)  # sin(y) is cos(2 pi b), and y at most pi / 2
    s = y * y
    sine = y * (1 - s / 6 * (1 - s / 20 * (1 - s / 42 * (1 - s / 72 * (1 - s / 110)))))
    return tl.sqrt(-2 * log) * sine


@triton.jit
def noise_2d(
    base, n, n_step, n_end, m, m_step, m_end, lead, stream, seed, std, DRAW: tl.constexpr, GIVEN: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    """The noise that is given, else fresh Gaussian numbers times std, else zeros."""
    found = tl.zeros((n.shape[0], m.shape[0]), SUMS)
    if GIVEN:
        found = load_2d(base, n, n_step, n_end, m, m_step, m_end).to(SUMS)
    elif DRAW:
        a, b = uniform(n, m, lead, stream, seed)
        found = std * gaussian_of(a, b).to(SUMS)
    return found


@triton.jit
def dropped(x, n, m, lead, stream, seed, probability, TRAIN: tl.constexpr):
    """Entries dropped while training, the rest scaled up."""
    if TRAIN:
        a, _ = uniform(n, m, lead, stream, seed)
        x = tl.where(a >= probability, x / (1 - probability), 0.0)
    return x
