"""Constants that code in `runtime/` shares with prices and printed kernels; this module needs no torch."""

# Products with a weight on a CPU, by oneDNN or MKL
PROJECTED_ZEN5 = 1 << 16  # elements of x from which oneDNN saves time on AMD's family 26: it takes half of MKL's time
ONEDNN_LONGEST = 512  # products that an entry adds up, beyond which oneDNN rounds twice as much as MKL
ONEDNN_PART = 128  # products in a part: oneDNN rounds a sum of such parts no more than MKL
NARROW = 32  # rows or columns of a weight below which oneDNN saves nothing
NARROW_PARTS = 256  # the same of a sum of many parts, for each thread

# Elements that are computed at a time, so that they stay in a cache
MAP_PART = 1 << 17  # of a part for each thread: the L2 cache
STRETCH = 1 << 19  # scores inside chunks of a causal kernel
LONG_ROW = 1 << 12  # of a position, from which the positions of a scan on a CPU follow each other, without parts

SLOW_MAPS = ("tanh",)  # maps that take longer to compute than to save and read: linear attention in tiles saves them

MOST_BITS = 31  # experts among which a Triton kernel notes the chosen ones as bits
