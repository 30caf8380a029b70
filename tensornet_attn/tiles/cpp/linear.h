// Linear attention: states, the sums over keys of features times values, and what the features of queries read of them.
// A worker has all rows of a head, a tile at a time; the backward computes the features again, from what they are maps
// of. Features and values of hidden keys are 0.
#include <utility>
constexpr int KERNELS = @KERNELS@;
constexpr long LENGTH = 128;  // rows of a tile
template <int i> struct Map;  // of a kernel: of its query and its key, and the gradients of what they are maps of
@MAPS@
struct Rows {  // of a head; the entries of a row are neighbours
  real* at;
  long step;
  int width;
  real* operator[](long i) const { return at + i * step; }
};
struct Seen {  // the visible keys
  const unsigned char* at;
  long step;
  bool operator()(long i) const { return !at || at[i * step]; }
};
struct Kernel {
  Rows x, d_x;  // the queries or the keys
  bool more, divides;  // whether a kernel before it has added to d_x
  real eps, *state, *total, *turned;  // sums of features times values, and of features
  Rows rows;  // 1 / (row sum + eps), or row sums, or in the backward their gradient
  real *d_state, *d_total;
};
struct Head {
  Kernel kernels[KERNELS];
  Rows v, d_v;  // values, or what is read, or its gradient
  Seen seen;
  bool apart;  // row sums are a result, and divide nothing
  real *phi, *d_phi, *values;  // tiles
};

inline void turn_over(real* to, const real* from, int rows, int columns) {
  for (int i = 0; i < rows; ++i) for (int c = 0; c < columns; ++c) to[c * rows + i] = from[i * columns + c];
}
inline real share_of(real sum, real eps) {
  const real found = 1 / (sum + eps);
  return found == INFINITY || found == -INFINITY ? real(0) : found;
}
template <real (*map)(real)> inline void features(real* to, Rows x, long first, long rows, Seen seen) {
  for (long i = 0; i < rows; ++i) {
    const real* __restrict from = x[first + i];
    real* __restrict own = to + i * x.width;
    if (seen(first + i)) for (int c = 0; c < x.width; ++c) own[c] = map(from[c]);
    else for (int c = 0; c < x.width; ++c) own[c] = 0;
  }
}
template <real (*slope)(real, real, real)>
inline void slopes(const Kernel& kernel, const Head& head, long first, long rows) {
  for (long i = 0; i < rows; ++i) {
    const int width = kernel.x.width;
    const real *from = kernel.x[first + i], *y = head.phi + i * width, *d = head.d_phi + i * width;
    real* __restrict own = kernel.d_x[first + i];
    if (!head.seen(first + i)) { if (!kernel.more) for (int c = 0; c < width; ++c) own[c] = 0; }
    else if (kernel.more) for (int c = 0; c < width; ++c) own[c] += slope(from[c], y[c], d[c]);
    else for (int c = 0; c < width; ++c) own[c] = slope(from[c], y[c], d[c]);
  }
}
inline Rows visible(const Head& head, long first, long rows) {
  const Rows v = head.v;
  if (!head.seen.at) return {v[first], v.step, v.width};
  for (long i = 0; i < rows; ++i)
    for (int c = 0; c < v.width; ++c) head.values[i * v.width + c] = head.seen(first + i) ? v[first + i][c] : real(0);
  return {head.values, v.width, v.width};
}

template <int i> void sum_keys(const Head& head, Rows v, long first, long rows) {
  const Kernel& own = head.kernels[i];
  const int width = own.x.width;
  features<Map<i>::key>(head.phi, own.x, first, rows, head.seen);
  multiply(true, false, width, v.width, rows, head.phi, width, v.at, v.step, first > 0, own.state, v.width);
  real* sum = head.d_phi;  // of a tile: sums of all rows one after another would be rounded more
  fill(sum, width, 0);
  for (long r = 0; r < rows; ++r) for (int c = 0; c < width; ++c) sum[c] += head.phi[r * width + c];
  for (int c = 0; c < width; ++c) own.total[c] = first ? own.total[c] + sum[c] : sum[c];
}
template <int i> void read_keys(const Head& head, long first, long rows) {
  const Kernel& own = head.kernels[i];
  const int width = own.x.width;
  features<Map<i>::query>(head.phi, own.x, first, rows, head.seen);
  for (long r = 0; r < rows && (own.divides || head.apart); ++r) {
    real *phi = head.phi + r * width, sum = 0;
    for (int c = 0; c < width; ++c) sum += phi[c] * own.total[c];
    const real share = *own.rows[first + r] = head.apart ? sum : share_of(sum, own.eps);
    if (own.divides) for (int c = 0; c < width; ++c) phi[c] *= share;
  }
  multiply(false, false, rows, head.v.width, width, head.phi, width, own.state, head.v.width, i > 0, head.v[first], head.v.step);
}
template <int i> void read_gradients(const Head& head, long first, long rows) {
  const Kernel& own = head.kernels[i];
  const int width = own.x.width, e = head.v.width;
  Rows g{head.v[first], head.v.step, e};
  features<Map<i>::query>(head.phi, own.x, first, rows, head.seen);
  if (own.divides) {
    for (long r = 0; r < rows; ++r)
      for (int c = 0; c < e; ++c) head.values[r * e + c] = g[r][c] * *own.rows[first + r];
    g = {head.values, e, e};
  }
  multiply(false, false, rows, width, e, g.at, g.step, own.turned, width, false, head.d_phi, width);
  for (long r = 0; r < rows && (own.divides || head.apart); ++r) {
    real *phi = head.phi + r * width, *d = head.d_phi + r * width, sum = 0;
    for (int c = 0; c < width; ++c) sum -= phi[c] * d[c];
    sum = *own.rows[first + r] * (head.apart ? real(1) : sum);
    for (int c = 0; c < width; ++c) { d[c] += sum * own.total[c]; own.d_total[c] += sum * phi[c]; }
  }
  multiply(true, false, width, e, rows, head.phi, width, g.at, g.step, first > 0, own.d_state, e);
  slopes<Map<i>::query_slope>(own, head, first, rows);
}
template <int i> void sum_gradients(const Head& head, Rows v, long first, long rows) {
  const Kernel& own = head.kernels[i];
  const int width = own.x.width, e = v.width;
  features<Map<i>::key>(head.phi, own.x, first, rows, head.seen);
  multiply(false, false, rows, e, width, head.phi, width, own.state, e, i > 0, head.d_v[first], head.d_v.step);
  multiply(false, false, rows, width, e, v.at, v.step, own.turned, width, false, head.d_phi, width);
  for (long r = 0; r < rows; ++r) for (int c = 0; c < width; ++c) head.d_phi[r * width + c] += own.total[c];
  slopes<Map<i>::key_slope>(own, head, first, rows);
}
template <int... i> void tile(int pass, const Head& head, long first, long rows, std::integer_sequence<int, i...>) {
  if (pass == 0 || pass == 3) {
    const Rows v = visible(head, first, rows);
    if (pass == 0) (sum_keys<i>(head, v, first, rows), ...);
    else (sum_gradients<i>(head, v, first, rows), ...);
  }
  else if (pass == 1) (read_keys<i>(head, first, rows), ...);
  else (read_gradients<i>(head, first, rows), ...);
}

// Passes: 0 sums over the keys, 1 reads, 2 gradients of reads, 3 gradients of sums. `sizes`: batch, heads, rows, width of
// the values, then that of each kernel. `pointers`, of [batch, heads, rows, width] each, with the `steps` along the first
// three dimensions: for each kernel x; values; visible keys; for each kernel state (in pass 3 its gradient), total, rows,
// d_x, d_state and d_total; d_v. `eps`: not a number if a kernel does not divide by row sums.
struct Call {
  const long* sizes;
  void* const* pointers;
  const long* steps;
  const double* eps;

  template <class A> A* start(int number, long place) const {
    const long* own = steps + 3 * number;
    return (A*)pointers[number] + place / sizes[1] * own[0] + place % sizes[1] * own[1];
  }
  Rows rows(int number, long place, long width) const { return {start<real>(number, place), steps[3 * number + 2], (int)width}; }
  void run(int pass, bool apart, int threads) const {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long place = 0; place < sizes[0] * sizes[1]; ++place) head(pass, apart, place);
  }
  void head(int pass, bool apart, long place) const {
    const Flush flush;
    const long e = sizes[3], last = 7 * KERNELS + 2;
    Head own{{}, rows(KERNELS, place, e), rows(last, place, e), {}, apart, 0, 0, 0};
    if (pointers[KERNELS + 1]) own.seen = {start<const unsigned char>(KERNELS + 1, place), steps[3 * KERNELS + 5]};
    long widest = 0, more = 0;
    for (int i = 0; i < KERNELS; ++i) {
      const long width = sizes[4 + i];
      const auto at = [&](int part) { return part * KERNELS + 2 + i; };
      Kernel& kernel = own.kernels[i];
      kernel = {rows(i, place, width), rows(at(4), place, width), false, eps[i] == eps[i] && !apart, real(eps[i]),
                start<real>(at(1), place), start<real>(at(2), place), 0, rows(at(3), place, 1),
                start<real>(at(5), place), start<real>(at(6), place)};
      for (int j = 0; j < i; ++j) kernel.more |= pointers[at(4)] == pointers[at(4) - i + j];
      widest = tl::maximum(widest, width);
      more += pass > 1 ? width * e : 0;
    }
    std::vector<real> buffers(LENGTH * (2 * widest + e) + more);
    own.phi = buffers.data();
    own.d_phi = own.phi + LENGTH * widest;
    own.values = own.d_phi + LENGTH * widest;
    real* next = own.values + LENGTH * e;
    for (Kernel& kernel : own.kernels) {
      if (pass > 1) turn_over(kernel.turned = next, kernel.state, kernel.x.width, e);
      if (pass == 2) fill(kernel.d_total, kernel.x.width, 0);
      next += kernel.x.width * e;
    }
    for (long first = 0; first < sizes[2]; first += LENGTH)
      tile(pass, own, first, tl::minimum(LENGTH, sizes[2] - first), std::make_integer_sequence<int, KERNELS>{});
  }
};
extern "C" void linear(int pass, bool apart, const long* sizes, void* const* pointers, const long* steps,
                       const double* eps, int threads) {
  Call{sizes, pointers, steps, eps}.run(pass, apart, threads);
}
