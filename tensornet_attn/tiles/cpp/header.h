// Types, random numbers, products and row operations of the C++ kernels of regions; the printer fills in names in @.
#include <cmath>
#include <cstdlib>
#include <cstring>
#ifdef _OPENMP
#include <omp.h>
#else
inline int omp_get_thread_num() { return 0; }
inline int omp_get_num_threads() { return 1; }
#endif
#include <type_traits>
#include <vector>
#include <initializer_list>

#ifndef REAL
#define REAL float
#define GEMM sgemm_
#endif
using real = REAL;
constexpr long QUERIES = @QUERIES@, KEYS = @KEYS@, TILE = QUERIES * KEYS, SPAN = QUERIES + KEYS, WIDE = QUERIES * SPAN;
template <int mode> using Mode = std::integral_constant<int, mode>;

extern "C" void GEMM(const char*, const char*, const int*, const int*, const int*, const real*, const real*,
                       const int*, const real*, const int*, const real*, real*, const int*);

inline unsigned bits_of(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
inline float float_of(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
// log of a normal positive number, given its bits, divided by 2 ** less.
inline float log_of_bits(unsigned bits, int less) {
  const int power = (int)(bits - 0x3f3504f3u) >> 23;  // the rest is between sqrt(1 / 2) and sqrt(2)
  const float m = float_of(bits - ((unsigned)power << 23)) - 1.f, e = (float)(power - less);
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  return m + (m * m * (p * m - 0.5f) + -2.12194440e-4f * e) + 0.693359375f * e;
}

namespace tl {
// If a or b is not a number, neither is the result.
template <class A, class B> inline auto maximum(A a, B b) {
  using C = decltype(a + b);
  return C(b) > C(a) || b != b ? C(b) : C(a);
}
template <class A, class B> inline auto minimum(A a, B b) {
  using C = decltype(a + b);
  return C(b) < C(a) || b != b ? C(b) : C(a);
}
template <class A, class B> inline auto where(bool c, A a, B b) { using C = decltype(a + b); return c ? C(a) : C(b); }
inline real abs(real x) { return std::fabs(x); }
inline real sqrt(real x) { return std::sqrt(x); }
inline real erf(real x) { return std::erf(x); }
inline double log(double x) { return std::log(x); }
// As exp_of: a loop over it becomes vectors, which one over std::log does only if no number is infinite.
inline float log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float found = log_of_bits(bits_of(tiny ? x * 8388608.f : x), tiny ? 23 : 0);
  return x > 0 ? (x < INFINITY ? found : x) : x == 0 ? -INFINITY : NAN;
}
inline real sin(real x) { return std::sin(x); }
inline real cos(real x) { return std::cos(x); }
}

// Subnormal numbers, which processors are slow with, are 0 in a worker while it computes.
#if defined(__SSE__)
struct Flush {
  unsigned before = __builtin_ia32_stmxcsr();
  Flush() { __builtin_ia32_ldmxcsr(before | 0x8040); }
  ~Flush() { __builtin_ia32_ldmxcsr(before); }
};
#elif defined(__aarch64__)
struct Flush {
  unsigned long before;
  Flush() { __asm__ volatile("mrs %0, fpcr" : "=r"(before)); __asm__ volatile("msr fpcr, %0" : : "r"(before | 1ul << 24)); }
  ~Flush() { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
};
#else
struct Flush {};
#endif
struct Arena {
  Flush flush;
  std::vector<void*> taken;
  bool enough = true;
  unsigned char seen[@MASKS@ * KEYS];
  real rows[@ROWS@][KEYS + 64];
  real* row(int place) { return rows[place]; }
  real* take(long count) {
    void* found = std::aligned_alloc(64, ((count * sizeof(real) + 63) / 64 + 1) * 64);
    taken.push_back(found);
    enough &= found != nullptr;
    return (real*)found;
  }
  ~Arena() { for (void* one : taken) std::free(one); }
};

// exp, with 0 instead of subnormal numbers, which processors are slow with.
inline float exp_of(float x, float most = 88.7f) {
  const bool low = x < -87.3f;
  x = low ? -87.3f : (x > most ? most : x);
  const float t = x * 1.44269504088896341f, r = std::nearbyint(t), f = t - r;
  float p = 1.535336188319500e-4f;
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.f;
  union { int i; float f; } power;
  power.i = ((int)r + 127) << 23;
  return low ? 0.f : p * power.f;
}
inline double exp_of(double x) { return std::exp(x); }
// exp of a score less the largest one, which differs from the forward's by a rounding.
inline float exp_below(float x) { return exp_of(x, 0.f); }
inline double exp_below(double x) { return std::exp(x > 0 ? 0. : x); }
template <class A> inline auto log_add(A a, A b) {
  const A most = tl::maximum(a, b);
  return most == -INFINITY ? most : most + tl::log(exp_of(a - most) + exp_of(b - most));
}
template <class... A> inline real log_sum(A... x) {
  real most = -INFINITY;
  ((most = most > x ? most : x), ...);
  return most == -INFINITY ? most : most + tl::log((exp_of(real(x) - most) + ...));
}
inline real power_of(real x, real p) {
  if (p == 0) return x * 0 + 1;
  if (p == 1) return x;
  if (p == 2) return x * x;
  if (p == 3) return x * x * x;
  return std::pow(x, p);
}
template <class A> inline const A* row_of(const A* mask, long at) { return mask ? mask + at : nullptr; }
inline bool none_of(const unsigned char* mask, long rows, long step, long keys) {
  for (long i = 0; i < rows; ++i) if (std::memchr(mask + i * step, 1, keys)) return false;
  return true;
}
template <int mode> inline real biased(real x, const real* bias, long j) {
  if constexpr (mode == 2) return bias ? x + bias[j] : x;
  else return x;
}
template <int mode> inline bool seen(bool inside, const unsigned char* row, long j) {
  if constexpr (mode == 2) return inside & (row[j] != 0);
  else return inside;
}
inline const unsigned char* see(Arena& arena, const unsigned char* mask, const unsigned char* keys_seen, long keys, int place) {
  if (!keys_seen && mask) return mask;
  if (!mask && keys_seen) return keys_seen;
  unsigned char* row = arena.seen + place * KEYS;
  if (!mask) std::memset(row, 1, keys);
  else for (long j = 0; j < keys; ++j) row[j] = mask[j] & keys_seen[j];
  return row;
}
template <int mode, class A, class B> inline real where_seen(bool seen, A x, B other) {
  if constexpr (mode == 0) return x;
  else return seen ? real(x) : real(other);
}

struct Random { unsigned x[4]; };
inline Random philox(unsigned a, unsigned b, unsigned c, unsigned d, unsigned long seed) {
  unsigned k = (unsigned)seed, l = (unsigned)(seed >> 32);
  for (int round = 0; round < 7; ++round) {  // which pass BigCrush (Salmon et al., SC 2011, table 2)
    const unsigned long p = 0xD2511F53ul * a, q = 0xCD9E8D57ul * c;
    const unsigned next_a = (unsigned)(q >> 32) ^ b ^ k, next_c = (unsigned)(p >> 32) ^ d ^ l;
    b = (unsigned)q; d = (unsigned)p; a = next_a; c = next_c;
    k += 0x9E3779B9u; l += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}
inline const real* keep_row(real* to, long keys, real probability, unsigned long seed, long lead, int stream, long query, long start) {
  const long part = (keys + 3) / 4;
  const real scale = probability < 1 ? 1 / (1 - probability) : 0;
  const unsigned least = (unsigned)(probability * 4294967295.0);
  real own[4][(KEYS + 3) / 4];
  #pragma omp simd
  for (long t = 0; t < part; ++t) {
    const Random r = philox((unsigned)(start + t), (unsigned)query, (unsigned)lead, (unsigned)stream, seed);
    own[0][t] = r.x[0] >= least ? scale : real(0);  // an inner loop would keep the outer one from becoming vectors
    own[1][t] = r.x[1] >= least ? scale : real(0);
    own[2][t] = r.x[2] >= least ? scale : real(0);
    own[3][t] = r.x[3] >= least ? scale : real(0);
  }
  for (int q = 0; q < 4; ++q) for (long t = 0; t < part && q * part + t < keys; ++t) to[q * part + t] = own[q][t];
  return to;
}
inline real dropped(real x, const real* row, long j) { return row ? (row[j] != 0 ? x * row[j] : real(0)) : x; }
struct Gaussians { float x, y; };
// Two Gaussian numbers by Box and Muller's method. All is arithmetic that becomes vectors, unlike std::log and std::cos.
inline Gaussians gaussians(unsigned u, unsigned v) {
  const float log = log_of_bits(bits_of(((float)(int)(u >> 8) + 0.5f) * 5.9604645e-8f), 0);
  const float radius = std::sqrt(log < 0 ? -log : 0.f);  // divided by sqrt(2), as the sums of sine and cosine below
  const float x = (float)(int)(v << 2) * (0.78539816339f / 2147483648.f), z = x * x;  // between -pi / 4 and pi / 4
  const float sine = x * (1.f + z * (-1.6666654611e-1f + z * (8.3321608736e-3f + z * -1.9515295891e-4f)));
  const float cosine = 1.f + z * (-0.5f + z * (4.1666645683e-2f + z * (-1.3887316255e-3f + z * 2.4433157118e-5f)));
  const float a = radius * (cosine - sine), b = radius * (cosine + sine);  // cosine and sine of x + pi / 4
  return {float_of(bits_of(a) ^ (v & 0x80000000u)), float_of(bits_of(b) ^ (v << 1 & 0x80000000u))};
}
inline void noise(real* to, long keys, const real* given, bool drawn, real std, unsigned long seed, long lead, int stream, long query, long start) {
  if (given) { std::memcpy(to, given, keys * sizeof(real)); return; }
  if (!drawn) { for (long j = 0; j < keys; ++j) to[j] = 0; return; }
  const long part = (keys + 3) / 4;
  float own[4][(KEYS + 3) / 4];
  #pragma omp simd
  for (long t = 0; t < part; ++t) {
    const Random r = philox((unsigned)(start + t), (unsigned)query, (unsigned)lead, (unsigned)stream, seed);
    const Gaussians a = gaussians(r.x[0], r.x[1]), b = gaussians(r.x[2], r.x[3]);
    own[0][t] = a.x; own[1][t] = a.y; own[2][t] = b.x; own[3][t] = b.y;
  }
  for (int q = 0; q < 4; ++q) for (long t = 0; t < part && q * part + t < keys; ++t) to[q * part + t] = std * own[q][t];
}

// Products. Those whose columns fill vectors are computed here, in registers; BLAS, which packs its operands, computes
// the others.
#if defined(__AVX512F__)
constexpr int VECTOR = 64, HELD = 8;
#elif defined(__AVX__)
constexpr int VECTOR = 32, HELD = 4;
#else
constexpr int VECTOR = 16, HELD = 4;
#endif
typedef real vec __attribute__((vector_size(VECTOR), aligned(sizeof(real)), may_alias));
constexpr long W = VECTOR / sizeof(real);
template <bool turned, int rows, int vecs>
inline void held(long k, const real* __restrict a, long lda, const real* __restrict b, long ldb, bool adds,
                 real* __restrict to, long ld, real alpha) {
  vec sum[rows][vecs];
  #pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    #pragma GCC unroll 2
    for (int c = 0; c < vecs; ++c) sum[r][c] = vec{};
  for (long t = 0; t < k; ++t) {
    vec own[vecs];
    #pragma GCC unroll 2
    for (int c = 0; c < vecs; ++c) own[c] = *(const vec*)(b + t * ldb + c * W);
    #pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const real x = turned ? a[t * lda + r] : a[r * lda + t];
      #pragma GCC unroll 2
      for (int c = 0; c < vecs; ++c) sum[r][c] += x * own[c];
    }
  }
  #pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    #pragma GCC unroll 2
    for (int c = 0; c < vecs; ++c) {
      vec* at = (vec*)(to + r * ld + c * W);
      *at = adds ? *at + alpha * sum[r][c] : alpha * sum[r][c];
    }
}
template <bool turned, int vecs>
inline void columns(long x, long k, const real* a, long lda, const real* b, long ldb, bool adds, real* to, long ld,
                    real alpha) {
  long r = 0;
  const long step = turned ? 1 : lda;
  for (; r + HELD <= x; r += HELD) held<turned, HELD, vecs>(k, a + r * step, lda, b, ldb, adds, to + r * ld, ld, alpha);
  for (; r + 4 <= x; r += 4) held<turned, 4, vecs>(k, a + r * step, lda, b, ldb, adds, to + r * ld, ld, alpha);
  for (; r < x; ++r) held<turned, 1, vecs>(k, a + r * step, lda, b, ldb, adds, to + r * ld, ld, alpha);
}
template <bool turned>
inline void product(long x, long y, long k, const real* a, long lda, const real* b, long ldb, bool adds, real* to,
                    long ld, real alpha) {
  long c = 0;
  for (; c + 2 * W <= y; c += 2 * W) columns<turned, 2>(x, k, a, lda, b + c, ldb, adds, to + c, ld, alpha);
  for (; c < y; c += W) columns<turned, 1>(x, k, a, lda, b + c, ldb, adds, to + c, ld, alpha);
}
inline void multiply(bool turn_a, bool turn_b, int x, int y, int k, const real* a, int lda, const real* b, int ldb,
                     bool adds, real* to, int ld, real alpha = 1) {
  if (!turn_b && y % W == 0) {
    if (turn_a) product<true>(x, y, k, a, lda, b, ldb, adds, to, ld, alpha);
    else product<false>(x, y, k, a, lda, b, ldb, adds, to, ld, alpha);
    return;
  }
  const real beta = adds;
  GEMM(turn_b ? "T" : "N", turn_a ? "T" : "N", &y, &x, &k, &alpha, b, &ldb, a, &lda, &beta, to, &ld);
}
// Into a tile, whose rows have room for whole vectors, from columns that were turned before; few rows are not worth it.
constexpr long TURNED = 32;
inline long room(long length) { return (length + W - 1) / W * W + W; }
inline void multiply_turned(bool turned, bool turn_a, int x, int y, int k, const real* a, int lda, const real* b, int ldb,
                            const real* columns, long room, real* to, int ld, real alpha) {
  if (turned) multiply(turn_a, false, x, (y + W - 1) / W * W, k, a, lda, columns, room, false, to, ld, alpha);
  else multiply(turn_a, true, x, y, k, a, lda, b, ldb, false, to, ld, alpha);
}
inline void turn(real* to, const real* from, long step, long length, long width) {
  const long all = room(length);
  for (long first = 0; first < all; first += 2 * W) {
    const long last = first + 2 * W < length ? first + 2 * W : length, end = first + 2 * W < all ? first + 2 * W : all;
    for (long c = 0; c < width; ++c) {
      for (long j = first; j < last; ++j) to[c * all + j] = from[j * step + c];
      for (long j = last > first ? last : first; j < end; ++j) to[c * all + j] = 0;
    }
  }
}

inline long last_block(long end) { return end > 0 ? (end - 1) / KEYS * KEYS : -1; }
// The blocks from `begin` to `last`, those up to the `middle` backwards first; after the last one comes one beyond all.
inline long next_block(long start, long begin, long middle) {
  return start > middle ? start + KEYS : start > begin ? start - KEYS : middle + KEYS;
}
inline void fill(real* to, long count, real value) { for (long i = 0; i < count; ++i) to[i] = value; }
// The sums of a row up to each key, or from each key on, after what the blocks before it add up to; returns the last one.
// Two functions, because clang refuses scans in templates.
inline real running_on(real* to, long keys, real sum) {
  #pragma omp simd reduction(inscan, +:sum)
  for (long j = 0; j < keys; ++j) {
    sum += to[j];
    #pragma omp scan inclusive(sum)
    to[j] = sum;
  }
  return sum;
}
inline real running_back(real* to, long keys, real sum) {
  #pragma omp simd reduction(inscan, +:sum)
  for (long j = 0; j < keys; ++j) {
    sum += to[keys - 1 - j];
    #pragma omp scan inclusive(sum)
    to[keys - 1 - j] = sum;
  }
  return sum;
}
// The largest score of a row so far becomes `next`; returns what is subtracted from its scores.
inline real raised(real next, real& most, real& sum, real& alpha) {
  alpha = next == most ? real(1) : most == -INFINITY ? real(0) : exp_of(most - next);
  most = next;
  sum *= alpha;
  return next == -INFINITY ? real(0) : next;
}
inline void rescale(real* to, const real* alpha, long rows, int width) {
  for (long i = 0; i < rows; ++i) if (alpha[i] != 1) for (int c = 0; c < width; ++c) to[i * width + c] *= alpha[i];
}
inline void divide(real* to, const real* sum, long rows, int width) {
  for (long i = 0; i < rows; ++i) {
    const real one = sum[i] != 0 ? 1 / sum[i] : real(1);
    for (int c = 0; c < width; ++c) to[i * width + c] *= one;
  }
}
inline real inverse_of(real sum, real eps) { return sum + eps != 0 ? 1 / (sum + eps) : real(0); }
inline void divide(real* to, const real* sum, long rows, int width, real eps) {
  for (long i = 0; i < rows; ++i) {
    const real one = inverse_of(sum[i], eps);
    for (int c = 0; c < width; ++c) to[i * width + c] *= one;
  }
}
inline void begin_with(real sink, real& most, real& sum) { most = sink; sum = sink == -INFINITY ? 0 : 1; }
inline real log_of_row(real most, real sum) { return sum == 0 ? real(-1e15) : most + std::log(sum); }
inline real factor(real most, real largest, real rows) { return most == -INFINITY ? real(0) : exp_below(most - largest) * rows; }
inline void add_products(real* to, const real* a, const real* b, long rows, int width) {
  for (long i = 0; i < rows; ++i) {
    real part = 0;
    #pragma omp simd reduction(+:part)
    for (int c = 0; c < width; ++c) part += a[i * width + c] * b[i * width + c];
    to[i] += part;
  }
}
// Entries of a table at the distances first, first - 1, ... of the keys of a row; those beyond `reach` are its ends.
// Called once a row: where each call is inlined, the compiler takes four times as long.
[[gnu::noinline]] inline const real* entries(real* to, long keys, const real* table, long reach, long first) {
  const long far = tl::maximum(0L, tl::minimum(keys, first - reach)), near = tl::maximum(far, tl::minimum(keys, first + reach));
  for (long j = 0; j < far; ++j) to[j] = table[2 * reach];
  for (long j = far; j < near; ++j) to[j] = table[first - j + reach];
  for (long j = near; j < keys; ++j) to[j] = table[0];
  return to;
}
[[gnu::noinline]] inline void add_entries(real* table, const real* x, long keys, long reach, long first) {
  const long far = tl::maximum(0L, tl::minimum(keys, first - reach)), near = tl::maximum(far, tl::minimum(keys, first + reach));
  real before = 0, after = 0;
  #pragma omp simd reduction(+:before)
  for (long j = 0; j < far; ++j) before += x[j];
  for (long j = far; j < near; ++j) table[first - j + reach] += x[j];
  #pragma omp simd reduction(+:after)
  for (long j = near; j < keys; ++j) after += x[j];
  table[2 * reach] += before;
  table[0] += after;
}
// A table of a row with two zeros at each end, and what lies between two of its entries.
inline const real* table(real* to, const real* from, long step, int size) {
  to[0] = to[1] = to[size + 2] = to[size + 3] = 0;
  for (int c = 0; c < size; ++c) to[c + 2] = from[c * step];
  return to + 2;
}
struct Place { int low; real part; };
inline Place place(real x, int size) {
  const real near = x > -1 ? (x < size ? x : real(size)) : real(-1);
  const int low = (int)std::floor(near);
  return {low, near - (real)low};
}
inline real between(const real* own, real x, int size) {
  const Place at = place(x, size);
  const real a = own[at.low], b = own[at.low + 1], found = a + at.part * (b - a);
  return x == x ? found : x;
}
inline real incline(const real* own, real x, int size) {  // zero at an entry, as the derivatives of relu and abs are
  const Place at = place(x, size);
  return at.part != 0 ? own[at.low + 1] - own[at.low] : real(0);
}
inline void add_between(real* own, const real* x, const real* d, long keys, int size) {
  real sums[4][KEYS + 64] = {};  // neighbouring keys mostly add to the same entries
  for (long j = 0; j < keys; ++j) {
    const Place at = place(x[j], size);
    real* to = sums[j % 4] + at.low + 2;
    to[0] += d[j] * (1 - at.part);
    to[1] += d[j] * at.part;
  }
  for (int c = 0; c < size; ++c) own[c] += sums[0][c + 2] + sums[1][c + 2] + (sums[2][c + 2] + sums[3][c + 2]);
}
// Whether 0 times any product of two such numbers, summed over a width, is 0.
inline bool tame(const real* x, long rows, long step, long width) {
  bool found = true;
  for (long i = 0; i < rows; ++i)
    for (long c = 0; c < width; ++c) found &= std::fabs(x[i * step + c]) < real(1e15);
  return found;
}
// What numbers lie between; `most`: the sizes that roundings are relative to.
struct Range { double low, high, most; };
inline Range within(double low, double high) { return {low, high, tl::maximum(std::fabs(low), std::fabs(high))}; }
inline Range as_long_as(double size) { return within(-size, size); }
inline Range within_all(const real* x, long rows, long step, long width) {
  real low = *x, high = *x;
  for (long i = 0; i < rows; ++i)
    for (long c = 0; c < width; ++c) {
      low = tl::minimum(low, x[i * step + c]);
      high = tl::maximum(high, x[i * step + c]);
    }
  return within(low, high);
}
inline Range operator+(Range a, Range b) { return {a.low + b.low, a.high + b.high, a.most + b.most}; }
inline Range operator*(Range a, Range b) {
  const double p = a.low * b.low, q = a.low * b.high, r = a.high * b.low, s = a.high * b.high;
  return {tl::minimum(tl::minimum(p, q), tl::minimum(r, s)), tl::maximum(tl::maximum(p, q), tl::maximum(r, s)), a.most * b.most};
}
inline Range size_of(Range x) {
  const double high = tl::maximum(std::fabs(x.low), std::fabs(x.high));
  return {x.low <= 0 && x.high >= 0 ? 0 : tl::minimum(std::fabs(x.low), std::fabs(x.high)), high, x.most};
}
inline double longest(const real* x, long rows, long step, long width) {
  real most = 0;
  for (long i = 0; i < rows; ++i) {
    real sum = 0;
    #pragma omp simd reduction(+:sum)
    for (long c = 0; c < width; ++c) sum += x[i * step + c] * x[i * step + c];
    most = tl::maximum(most, sum);
  }
  return 1.0001 * std::sqrt((double)most);
}
// Whether exp of scores less than these is 0, given the least number that a row subtracts.
inline bool far(Range scores, const real* rows, long many) {
  double least = INFINITY;
  bool known = true;
  for (long i = 0; i < many; ++i) {
    known &= rows[i] == rows[i];
    least = tl::minimum(least, rows[i]);
  }
  return known && scores.high - least + 1e-5 * scores.most < (sizeof(real) == 4 ? -90 : -750);
}
