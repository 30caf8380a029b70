// Linear attention: states, the sums over keys of features times values, and what the features of queries read of them.
// A worker has all rows of a head, a tile at a time; the backward computes the features again, from their inputs.
// Features and values of hidden keys are 0.
#include <utility>
constexpr int KERNELS = @KERNELS@, MOST = @MOST@;  // inputs of a feature
constexpr long LENGTH = 128;  // rows of a tile
constexpr int QUERY = 0, KEY = 1;
namespace {  // otherwise libraries of a process would share the static members of the first one
template <int kernel, int side> struct Feature;
@FEATURES@
}
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
  int width;
  Rows x[MOST], d_x[MOST];  // the inputs of the features of queries or keys; steps of 0 in an input that rows share
  bool more[MOST], divides;  // whether a kernel before it has added to d_x
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
  real *sums;  // over the rows of a tile, of the gradients of inputs that rows share
};

inline void turn_over(real* to, const real* from, int rows, int columns) {
  for (int i = 0; i < rows; ++i) for (int c = 0; c < columns; ++c) to[c * rows + i] = from[i * columns + c];
}
inline real share_of(real sum, real eps) {
  const real found = 1 / (sum + eps);
  return found == INFINITY || found == -INFINITY ? real(0) : found;
}
template <class F> inline void features(real* to, const Kernel& kernel, long first, long rows, Seen seen) {
  for (long i = 0; i < rows; ++i, to += kernel.width) {
    const real* x[F::INPUTS];
    for (int k = 0; k < F::INPUTS; ++k) x[k] = kernel.x[k][first + i];
    if (seen(first + i)) F::of(to, x, kernel.width);
    else fill(to, kernel.width, 0);
  }
}
template <class F> inline void slopes(const Kernel& kernel, const Head& head, long first, long rows) {
  const int width = kernel.width;
  fill(head.sums, F::INPUTS * width, 0);
  for (long i = 0; i < rows; ++i) {
    const real* x[F::INPUTS];
    real* to[F::INPUTS];
    for (int k = 0; k < F::INPUTS; ++k) {
      x[k] = kernel.x[k][first + i];
      to[k] = F::ROWS[k] ? kernel.d_x[k][first + i] : head.sums + k * width;
    }
    if (head.seen(first + i)) F::slopes(to, kernel.more, x, head.phi + i * width, head.d_phi + i * width, width);
    else for (int k = 0; k < F::INPUTS; ++k) if (F::ROWS[k] && !kernel.more[k]) fill(to[k], width, 0);
  }
  for (int k = 0; k < F::INPUTS; ++k)
    for (int c = 0; c < kernel.d_x[k].width && !F::ROWS[k]; ++c) kernel.d_x[k].at[c] += head.sums[k * width + c];
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
  const int width = own.width;
  features<Feature<i, KEY>>(head.phi, own, first, rows, head.seen);
  multiply(true, false, width, v.width, rows, head.phi, width, v.at, v.step, first > 0, own.state, v.width);
  real* sum = head.d_phi;  // of a tile: sums of all rows one after another would be rounded more
  fill(sum, width, 0);
  for (long r = 0; r < rows; ++r) for (int c = 0; c < width; ++c) sum[c] += head.phi[r * width + c];
  for (int c = 0; c < width; ++c) own.total[c] = first ? own.total[c] + sum[c] : sum[c];
}
template <int i> void read_keys(const Head& head, long first, long rows) {
  const Kernel& own = head.kernels[i];
  const int width = own.width;
  features<Feature<i, QUERY>>(head.phi, own, first, rows, head.seen);
  for (long r = 0; r < rows && (own.divides || head.apart); ++r) {
    real *phi = head.phi + r * width, sum = 0;
    #pragma omp simd reduction(+:sum)
    for (int c = 0; c < width; ++c) sum += phi[c] * own.total[c];
    const real share = *own.rows[first + r] = head.apart ? sum : share_of(sum, own.eps);
    if (own.divides) for (int c = 0; c < width; ++c) phi[c] *= share;
  }
  multiply(false, false, rows, head.v.width, width, head.phi, width, own.state, head.v.width, i > 0, head.v[first], head.v.step);
}
template <int i> void read_gradients(const Head& head, long first, long rows) {
  const Kernel& own = head.kernels[i];
  const int width = own.width, e = head.v.width;
  Rows g{head.v[first], head.v.step, e};
  features<Feature<i, QUERY>>(head.phi, own, first, rows, head.seen);
  if (own.divides) {
    for (long r = 0; r < rows; ++r)
      for (int c = 0; c < e; ++c) head.values[r * e + c] = g[r][c] * *own.rows[first + r];
    g = {head.values, e, e};
  }
  multiply(false, false, rows, width, e, g.at, g.step, own.turned, width, false, head.d_phi, width);
  for (long r = 0; r < rows && (own.divides || head.apart); ++r) {
    real *phi = head.phi + r * width, *d = head.d_phi + r * width, sum = 0;
    #pragma omp simd reduction(+:sum)
    for (int c = 0; c < width; ++c) sum -= phi[c] * d[c];
    sum = *own.rows[first + r] * (head.apart ? real(1) : sum);
    for (int c = 0; c < width; ++c) { d[c] += sum * own.total[c]; own.d_total[c] += sum * phi[c]; }
  }
  multiply(true, false, width, e, rows, head.phi, width, g.at, g.step, first > 0, own.d_state, e);
  slopes<Feature<i, QUERY>>(own, head, first, rows);
}
template <int i> void sum_gradients(const Head& head, Rows v, long first, long rows) {
  const Kernel& own = head.kernels[i];
  const int width = own.width, e = v.width;
  features<Feature<i, KEY>>(head.phi, own, first, rows, head.seen);
  multiply(false, false, rows, e, width, head.phi, width, own.state, e, i > 0, head.d_v[first], head.d_v.step);
  multiply(false, false, rows, width, e, v.at, v.step, own.turned, width, false, head.d_phi, width);
  for (long r = 0; r < rows; ++r) for (int c = 0; c < width; ++c) head.d_phi[r * width + c] += own.total[c];
  slopes<Feature<i, KEY>>(own, head, first, rows);
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

template <int... i> constexpr int inputs_of(int kernel, int side, std::integer_sequence<int, i...>) {
  const int found[][2] = {{Feature<i, QUERY>::INPUTS, Feature<i, KEY>::INPUTS}...};
  return found[kernel][side];
}

// Passes: 0 sums over the keys, 1 reads, 2 gradients of reads, 3 gradients of sums. `sizes`: batch, heads, rows, width of
// the values, then of each kernel its width and those of its inputs. `pointers`, of [batch, heads, rows, width] each, with
// the `steps` along the first three dimensions: values, d_v, visible keys; for each kernel state (in pass 3 its gradient),
// total, rows, d_state, d_total, and each input with its gradient. `eps`: not a number if a kernel does not divide by row
// sums.
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
    const auto kernels = std::make_integer_sequence<int, KERNELS>{};
    const long e = sizes[3], *size = sizes + 4;
    Head own{{}, rows(0, place, e), rows(1, place, e), {}, apart, 0, 0, 0, 0};
    if (pointers[2]) own.seen = {start<const unsigned char>(2, place), steps[8]};
    long widest = 0, more = 0;
    int at = 3;  // the next pointer
    for (int i = 0; i < KERNELS; ++i) {
      Kernel& kernel = own.kernels[i];
      kernel = {(int)*size++, {}, {}, {}, eps[i] == eps[i] && !apart, real(eps[i]), start<real>(at, place),
                start<real>(at + 1, place), 0, rows(at + 2, place, 1), start<real>(at + 3, place), start<real>(at + 4, place)};
      at += 5;
      for (int k = 0; k < inputs_of(i, pass == 1 || pass == 2 ? QUERY : KEY, kernels); ++k, at += 2, ++size) {
        kernel.x[k] = rows(at, place, *size);
        kernel.d_x[k] = rows(at + 1, place, *size);
        for (int j = 0; j < i; ++j) for (const Rows& one : own.kernels[j].d_x) kernel.more[k] |= one.at == kernel.d_x[k].at;
      }
      widest = tl::maximum(widest, kernel.width);
      more += pass > 1 ? kernel.width * e : 0;
    }
    std::vector<real> buffers(LENGTH * (2 * widest + e) + MOST * widest + more);
    own.phi = buffers.data();
    own.d_phi = own.phi + LENGTH * widest;
    own.values = own.d_phi + LENGTH * widest;
    own.sums = own.values + LENGTH * e;
    real* next = own.sums + MOST * widest;
    for (Kernel& kernel : own.kernels) {
      if (pass > 1) turn_over(kernel.turned = next, kernel.state, kernel.width, e);
      if (pass == 2) fill(kernel.d_total, kernel.width, 0);
      next += kernel.width * e;
    }
    for (long first = 0; first < sizes[2]; first += LENGTH)
      tile(pass, own, first, tl::minimum(LENGTH, sizes[2] - first), kernels);
  }
};
extern "C" void linear(int pass, bool apart, const long* sizes, void* const* pointers, const long* steps,
                       const double* eps, int threads) {
  Call{sizes, pointers, steps, eps}.run(pass, apart, threads);
}
