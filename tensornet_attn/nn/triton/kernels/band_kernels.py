"""Kernels of softmax attention within a band: only tiles that the band meets are loaded.

Query i stands at position `first` + i and sees keys from `before` positions ahead of it to `after` past it. Scores are
in units of log 2, so that their exponential is one instruction.
"""

import triton
import triton.language as tl


@triton.jit
def band_scores(q, k, query, key, seen, before, after, SCALE: tl.constexpr, PRECISION: tl.constexpr):
    """The scores of a tile, [queries, keys], at these positions; minus infinity where a query does not look."""
    past = key[None, :] - query[:, None]
    scores = tl.dot(q, k, input_precision=PRECISION) * SCALE
    return tl.where((past >= -before) & (past <= after) & seen[None, :], scores, float("-inf"))


@triton.jit
def band_reads(
    queries, keys, values, keep, out, tops,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    heads, shared, n, m, first, before, after, width, value_width,
    SCALE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head: out [b, h, n, e] and the log of the sums of exponentials, tops [b h, n].

    queries [b, h, n, d], keys [b, g, m, d], values [b, g, m, e]; `shared` consecutive heads h have one g. keep [b, m]
    is true where a key may be seen. A query that sees nothing reads zeros, and its top is infinite.
    """
    blocks = tl.cdiv(n, QUERIES)
    lead, begin = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * QUERIES
    b, h = lead // heads, lead % heads
    i, d, e = begin + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, VALUES)
    q = tl.load(
        queries + b * query_batch + h * query_head + i.to(tl.int64)[:, None] * query_row + d[None, :],
        (i < n)[:, None] & (d < width)[None, :],
        0.0,
    )
    keys += b * key_batch + h // shared * key_head
    values += b * value_batch + h // shared * value_head
    read, total = tl.zeros([QUERIES, VALUES], DTYPE), tl.zeros([QUERIES], DTYPE)
    top = tl.full([QUERIES], float("-inf"), DTYPE)
    low = tl.maximum(begin + first - before, 0) // KEYS * KEYS
    high = tl.minimum(begin + QUERIES + first + after, m)
    for start in range(low, high, KEYS):
        j = start + tl.arange(0, KEYS)
        seen, row = j < m, j.to(tl.int64)
        k = tl.load(keys + row[None, :] * key_row + d[:, None], seen[None, :] & (d < width)[:, None], 0.0)
        v = tl.load(values + row[:, None] * value_row + e[None, :], seen[:, None] & (e < value_width)[None, :], 0.0)
        if keep is not None:
            seen = seen & (tl.load(keep + b * m + j, seen, 0) != 0)
        scores = band_scores(q, k, i + first, j, seen, before, after, SCALE, PRECISION)
        higher = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        weights, old = tl.exp2(scores - finite[:, None]), tl.exp2(top - finite)
        total = total * old + tl.sum(weights, 1)
        read = read * old[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        top = higher
    found = total > 0
    read /= tl.where(found, total, 1.0)[:, None]
    tl.store(tops + lead * n + i, tl.where(found, top + tl.log2(tl.where(found, total, 1.0)), float("inf")), i < n)
    place = out + ((lead * n + i) * value_width)[:, None] + e[None, :]
    tl.store(place, read, (i < n)[:, None] & (e < value_width)[None, :])


@triton.jit
def band_queries(
    gradient, queries, keys, values, keep, tops, dots, queries_gradient,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    given_batch, given_head, given_row, heads, shared, n, m, first, before, after, width, value_width,
    FACTOR: tl.constexpr, SCALE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, [b, h, n, d]; dots [b h, n] is the inner product of gradient and result."""
    blocks = tl.cdiv(n, QUERIES)
    lead, begin = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * QUERIES
    b, h = lead // heads, lead % heads
    i, d, e = begin + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, VALUES)
    here, i_row = i < n, i.to(tl.int64)[:, None]
    in_d, in_e = d < width, e < value_width
    q = tl.load(
        queries + b * query_batch + h * query_head + i_row * query_row + d[None, :], here[:, None] & in_d[None, :], 0.0
    )
    g = tl.load(
        gradient + b * given_batch + h * given_head + i_row * given_row + e[None, :], here[:, None] & in_e[None, :], 0.0
    )
    top = tl.load(tops + lead * n + i, here, float("inf"))[:, None]
    dot = tl.load(dots + lead * n + i, here, 0.0)[:, None]
    keys += b * key_batch + h // shared * key_head
    values += b * value_batch + h // shared * value_head
    found = tl.zeros([QUERIES, WIDTH], DTYPE)
    low = tl.maximum(begin + first - before, 0) // KEYS * KEYS
    high = tl.minimum(begin + QUERIES + first + after, m)
    for start in range(low, high, KEYS):
        j = start + tl.arange(0, KEYS)
        seen, row = j < m, j.to(tl.int64)
        k = tl.load(keys + row[None, :] * key_row + d[:, None], seen[None, :] & in_d[:, None], 0.0)
        v = tl.load(values + row[None, :] * value_row + e[:, None], seen[None, :] & in_e[:, None], 0.0)
        if keep is not None:
            seen = seen & (tl.load(keep + b * m + j, seen, 0) != 0)
        weights = tl.exp2(band_scores(q, k, i + first, j, seen, before, after, SCALE, PRECISION) - top)
        of_scores = weights * (tl.dot(g, v, input_precision=PRECISION) - dot)
        found += tl.dot(of_scores.to(k.dtype), tl.trans(k), input_precision=PRECISION)
    place = queries_gradient + ((lead * n + i) * width)[:, None] + d[None, :]
    tl.store(place, found * FACTOR, here[:, None] & in_d[None, :])


@triton.jit
def band_keys(
    gradient, queries, keys, values, keep, tops, dots, keys_gradient, values_gradient,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    given_batch, given_head, given_row, heads, shared, n, m, first, before, after, width, value_width,
    FACTOR: tl.constexpr, SCALE: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and values, [b, g, m, d] and [b, g, m, e], summed over the heads they serve."""
    blocks, groups = tl.cdiv(m, KEYS), heads // shared
    lead, begin = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * KEYS
    b, group = lead // groups, lead % groups
    j, d, e = begin + tl.arange(0, KEYS), tl.arange(0, WIDTH), tl.arange(0, VALUES)
    seen, row = j < m, j.to(tl.int64)
    in_d, in_e = d < width, e < value_width
    k = tl.load(
        keys + b * key_batch + group * key_head + row[None, :] * key_row + d[:, None],
        seen[None, :] & in_d[:, None],
        0.0,
    )
    v = tl.load(
        values + b * value_batch + group * value_head + row[None, :] * value_row + e[:, None],
        seen[None, :] & in_e[:, None],
        0.0,
    )
    may = seen
    if keep is not None:
        may = seen & (tl.load(keep + b * m + j, seen, 0) != 0)
    of_keys, of_values = tl.zeros([KEYS, WIDTH], DTYPE), tl.zeros([KEYS, VALUES], DTYPE)
    low = tl.maximum(begin - after - first, 0) // QUERIES * QUERIES
    high = tl.minimum(begin + KEYS + before - first, n)
    for member in range(shared):
        h = group * shared + member
        query, given = queries + b * query_batch + h * query_head, gradient + b * given_batch + h * given_head
        for start in range(low, high, QUERIES):
            i = start + tl.arange(0, QUERIES)
            here, i_row = i < n, i.to(tl.int64)[:, None]
            q = tl.load(query + i_row * query_row + d[None, :], here[:, None] & in_d[None, :], 0.0)
            g = tl.load(given + i_row * given_row + e[None, :], here[:, None] & in_e[None, :], 0.0)
            stat = (b * heads + h) * n + i
            top = tl.load(tops + stat, here, float("inf"))[:, None]
            weights = tl.exp2(band_scores(q, k, i + first, j, may, before, after, SCALE, PRECISION) - top)
            of_values += tl.dot(tl.trans(weights.to(g.dtype)), g, input_precision=PRECISION)
            dot = tl.load(dots + stat, here, 0.0)[:, None]
            of_scores = weights * (tl.dot(g, v, input_precision=PRECISION) - dot)
            of_keys += tl.dot(tl.trans(of_scores.to(q.dtype)), q, input_precision=PRECISION)
    place = (lead * m + row)[:, None]
    tl.store(keys_gradient + place * width + d[None, :], of_keys * FACTOR, seen[:, None] & in_d[None, :])
    tl.store(values_gradient + place * value_width + e[None, :], of_values, seen[:, None] & in_e[None, :])
