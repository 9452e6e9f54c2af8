// Grouped convolutions of a cohort as implicit matrix products on tensor cores: bfloat16 in and out,
// sums in single precision. cuDNN runs a grouped convolution by slicing and reordering around plain
// ones, and searches for its algorithm anew for every number of clients; here a group is one more
// dimension of the grid, and memory is read as it lies (channels last).
//
//   forward   y [m, n]  = sum over (tap, c) of x[pixel(m) + tap, c] w[n, tap, c]
//   input     dx[m, c]  = sum over (tap, n) of dy[pixel(m) - tap, n] w[n, tap, c]
//   weight    dw[n, (tap, c)] = sum over pixels m of dy[m, n] x[pixel(m) + tap, c]
//
// Blocks of BM x BN results, steps of 32 along the sum, four stages of asynchronous copies into
// shared memory, warps of WM x WN results in mma.m16n8k16. Rows of shared memory are swizzled so that
// ldmatrix meets no bank twice. Everything moves in vectors of eight channels, so a vector belongs to
// one tap; channels of a group are 8 times a power of two.

const int BK = 32, STAGES = 4;

struct Div { u32 multiplier, shift, divisor; };
__device__ __forceinline__ u32 quotient(const Div& f, u32 n) {
    return f.divisor == 1 ? n : __umulhi(n, f.multiplier) >> f.shift;
}

struct Conv {
    const bf16* a;      // forward, weight: x; input: dy
    const bf16* b;      // forward, input: w; weight: dy
    void* out;          // bf16, or for a weight gradient in several parts float [parts, ...]
    i64 part;           // numbers in a part
    int rows;           // pixels of the result (weight: of dy)
    int inputs, outputs; // channels of a group, in and out
    int a_stride, b_stride, out_stride; // channels of a pixel in all groups
    int depth;          // taps * inputs
    int log_a;          // log2 of the vectors of eight channels in a group of a
    int taps, stride, padding;
    int height, width;  // of a
    int parts;
    Div image, row;     // pixels of an image and of a row, of what `rows` counts
};

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// 16 bytes, or zeros.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool there) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }
__device__ __forceinline__ void matrices(u32 from, u32 r[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from));
}
__device__ __forceinline__ void matrices_transposed(u32 from, u32 r[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from));
}
__device__ __forceinline__ void multiply(float c[4], const u32 a[4], const u32 b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Place of a vector in a tile whose rows hold VECTORS of them.
template <int VECTORS> __device__ __forceinline__ int swizzled(int row, int vector) {
    return (row * VECTORS + (VECTORS == 4 ? vector ^ ((row >> 1) & 3) : vector ^ (row & 7))) * 16;
}

// kh and kw of a tap of a 3x3 (or 1x1) kernel.
__device__ __forceinline__ void tap_of(int tap, int& kh, int& kw) {
    kh = (tap * 11) >> 5;
    kw = tap - 3 * kh;
}

// One k-step of 16 for a warp: fragments of A and B, then all products.
template <int MT, int NT, bool A_TRANSPOSED, bool B_TRANSPOSED, int A_VECTORS, int B_VECTORS>
__device__ __forceinline__ void k_step(u32 a_tile, u32 b_tile, int wm, int wn, int ks, float acc[MT][NT][4]) {
    int lane = threadIdx.x % 32, id = lane >> 3, in = lane & 7;
    u32 a[MT][4], b[NT / 2][4];
    #pragma unroll
    for (int i = 0; i < MT; i++) {
        if (A_TRANSPOSED)
            matrices_transposed(a_tile + swizzled<A_VECTORS>(ks * 16 + (id >> 1) * 8 + in, (wm + i * 16) / 8 + (id & 1)), a[i]);
        else
            matrices(a_tile + swizzled<A_VECTORS>(wm + i * 16 + (lane & 15), ks * 2 + (lane >> 4)), a[i]);
    }
    #pragma unroll
    for (int j = 0; j < NT / 2; j++) {
        if (B_TRANSPOSED)
            matrices_transposed(b_tile + swizzled<B_VECTORS>(ks * 16 + (id & 1) * 8 + in, (wn + j * 16) / 8 + (id >> 1)), b[j]);
        else
            matrices(b_tile + swizzled<B_VECTORS>(wn + j * 16 + (id >> 1) * 8 + in, ks * 2 + (id & 1)), b[j]);
    }
    #pragma unroll
    for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < NT; j++) multiply(acc[i][j], a[i], &b[j / 2][(j & 1) * 2]);
}

// Forward, or with INPUT the gradient of the input.
template <int BM, int BN, int WM, int WN, bool INPUT> __device__ void convolve(const Conv& c) {
    const int THREADS = BM / WM * (BN / WN) * 32, MT = WM / 16, NT = WN / 8;
    const int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, A_LOADS = BM * 4 / THREADS, B_LOADS = BN * 4 / THREADS;
    const int B_VECTORS = INPUT ? BN / 8 : 4;
    extern __shared__ __align__(128) u8 memory[];
    u32 base = shared_address(memory);
    int thread = threadIdx.x, warp = thread / 32, group = blockIdx.z;
    int wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    int a_channels = 8 << c.log_a, columns = INPUT ? c.inputs : c.outputs;
    int sum = c.taps << (c.log_a + 3), steps = (sum + BK - 1) / BK;
    const bf16* a = c.a + group * a_channels;
    const bf16* w = c.b + (i64)group * c.outputs * c.depth;

    // The pixels whose rows of A this thread copies.
    int h0[A_LOADS], w0[A_LOADS];
    const bf16* row_at[A_LOADS];
    #pragma unroll
    for (int i = 0; i < A_LOADS; i++) {
        u32 m = m0 + thread / 4 + i * (THREADS / 4);
        u32 image = quotient(c.image, m), inside = m - image * c.image.divisor;
        int y = quotient(c.row, inside), x = inside - y * c.row.divisor;
        h0[i] = INPUT ? y + c.padding : y * c.stride - c.padding;
        w0[i] = INPUT ? x + c.padding : x * c.stride - c.padding;
        if (m >= (u32)c.rows) h0[i] = -(1 << 20); // out of every image
        row_at[i] = a + (i64)image * c.height * c.width * c.a_stride;
    }
    auto load = [&](int step, int stage) {
        u32 a_tile = base + stage * (A_BYTES + B_BYTES), b_tile = a_tile + A_BYTES;
        int vector = thread % 4, k = step * 4 + vector, tap = k >> c.log_a, kh, kw;
        int channel = (k & ((1 << c.log_a) - 1)) * 8;
        tap_of(tap, kh, kw);
        #pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            int h, x;
            bool there = tap < c.taps;
            if (INPUT) {
                h = h0[i] - kh;
                x = w0[i] - kw;
                if (c.stride == 2) {
                    there = there && !((h | x) & 1);
                    h >>= 1;
                    x >>= 1;
                }
            } else {
                h = h0[i] + kh;
                x = w0[i] + kw;
            }
            there = there && (u32)h < (u32)c.height && (u32)x < (u32)c.width;
            const bf16* from = there ? row_at[i] + ((i64)h * c.width + x) * c.a_stride + channel : c.a;
            copy16(a_tile + swizzled<4>(thread / 4 + i * (THREADS / 4), vector), from, there);
        }
        #pragma unroll
        for (int i = 0; i < (B_LOADS > 0 ? B_LOADS : 1); i++) {
            int at = thread + i * THREADS;
            if (B_LOADS == 0 && at >= BN * 4) break;
            if (INPUT) {
                int r = at / (BN / 8), v = at % (BN / 8), kk = step * BK + r;
                int t = kk >> (c.log_a + 3), n = kk & (a_channels - 1), column = n0 + v * 8;
                bool there = t < c.taps && column < c.inputs;
                const bf16* from = there ? w + (i64)n * c.depth + t * c.inputs + column : c.b;
                copy16(b_tile + swizzled<B_VECTORS>(r, v), from, there);
            } else {
                int n = at / 4, v = at % 4, kk = step * BK + v * 8;
                bool there = n0 + n < c.outputs && kk < c.depth;
                const bf16* from = there ? w + (i64)(n0 + n) * c.depth + kk : c.b;
                copy16(b_tile + swizzled<B_VECTORS>(n, v), from, there);
            }
        }
    };
    float acc[MT][NT][4] = {};
    #pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load(s, s);
        commit();
    }
    for (int step = 0; step < steps; step++) {
        wait<STAGES - 2>();
        __syncthreads();
        int next = step + STAGES - 1;
        if (next < steps) load(next, next % STAGES);
        commit();
        u32 a_tile = base + step % STAGES * (A_BYTES + B_BYTES), b_tile = a_tile + A_BYTES;
        #pragma unroll
        for (int ks = 0; ks < 2; ks++) k_step<MT, NT, false, INPUT, 4, B_VECTORS>(a_tile, b_tile, wm, wn, ks, acc);
    }
    wait<0>();
    __syncthreads();

    // Through shared memory, so that results leave in vectors too.
    const int WIDTH = BN + 8;
    bf16* tile = (bf16*)memory;
    int lane = thread % 32;
    #pragma unroll
    for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < NT; j++) {
            int r = wm + i * 16 + lane / 4, n = wn + j * 8 + lane % 4 * 2;
            *(u32*)(tile + r * WIDTH + n) = pack(acc[i][j][0], acc[i][j][1]);
            *(u32*)(tile + (r + 8) * WIDTH + n) = pack(acc[i][j][2], acc[i][j][3]);
        }
    __syncthreads();
    bf16* out = (bf16*)c.out + group * columns;
    #pragma unroll
    for (int at = thread; at < BM * BN / 8; at += THREADS) {
        int r = at / (BN / 8), v = at % (BN / 8);
        if (m0 + r < c.rows && n0 + v * 8 < columns)
            *(Words*)(out + (i64)(m0 + r) * c.out_stride + n0 + v * 8) = *(const Words*)(tile + r * WIDTH + v * 8);
    }
}

// The gradient of the weights; block z = group * parts + part sums over its share of the pixels.
template <int BM, int BN, int WM, int WN> __device__ void convolve_weight(const Conv& c) {
    const int THREADS = BM / WM * (BN / WN) * 32, MT = WM / 16, NT = WN / 8;
    const int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, A_VECTORS = BM / 8, B_VECTORS = BN / 8;
    extern __shared__ __align__(128) u8 memory[];
    u32 base = shared_address(memory);
    int thread = threadIdx.x, warp = thread / 32, group = blockIdx.z / c.parts, part = blockIdx.z % c.parts;
    int wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int n0 = blockIdx.x * BM, j0 = blockIdx.y * BN;
    int all = (c.rows + BK - 1) / BK, each = (all + c.parts - 1) / c.parts;
    int first = part * each, steps = min(all - first, each);
    const bf16* x = c.a + group * c.inputs;
    const bf16* dy = c.b + group * c.outputs;
    auto load = [&](int step, int stage) {
        u32 a_tile = base + stage * (A_BYTES + B_BYTES), b_tile = a_tile + A_BYTES;
        #pragma unroll
        for (int at = thread; at < BK * A_VECTORS; at += THREADS) {
            int r = at / A_VECTORS, v = at % A_VECTORS, m = (first + step) * BK + r;
            bool there = m < c.rows && n0 + v * 8 < c.outputs;
            copy16(a_tile + swizzled<A_VECTORS>(r, v), there ? dy + (i64)m * c.b_stride + n0 + v * 8 : c.b, there);
        }
        #pragma unroll
        for (int at = thread; at < BK * B_VECTORS; at += THREADS) {
            int r = at / B_VECTORS, v = at % B_VECTORS, m = (first + step) * BK + r;
            int k = j0 / 8 + v, tap = k >> c.log_a, channel = (k & ((1 << c.log_a) - 1)) * 8, kh, kw;
            tap_of(tap, kh, kw);
            u32 image = quotient(c.image, m), inside = m - image * c.image.divisor;
            int y = quotient(c.row, inside), at_x = inside - y * c.row.divisor;
            int h = y * c.stride - c.padding + kh, w = at_x * c.stride - c.padding + kw;
            bool there = m < c.rows && tap < c.taps && (u32)h < (u32)c.height && (u32)w < (u32)c.width;
            const bf16* from = there ? x + (((i64)image * c.height + h) * c.width + w) * c.a_stride + channel : c.a;
            copy16(b_tile + swizzled<B_VECTORS>(r, v), from, there);
        }
    };
    float acc[MT][NT][4] = {};
    #pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load(s, s);
        commit();
    }
    for (int step = 0; step < steps; step++) {
        wait<STAGES - 2>();
        __syncthreads();
        int next = step + STAGES - 1;
        if (next < steps) load(next, next % STAGES);
        commit();
        u32 a_tile = base + step % STAGES * (A_BYTES + B_BYTES), b_tile = a_tile + A_BYTES;
        #pragma unroll
        for (int ks = 0; ks < 2; ks++) k_step<MT, NT, true, true, A_VECTORS, B_VECTORS>(a_tile, b_tile, wm, wn, ks, acc);
    }
    wait<0>();
    int lane = thread % 32;
    #pragma unroll
    for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < NT; j++)
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                int n = n0 + wm + i * 16 + lane / 4 + half * 8, k = j0 + wn + j * 8 + lane % 4 * 2;
                if (n >= c.outputs || k >= c.depth) continue;
                i64 at = ((i64)group * c.outputs + n) * c.depth + k;
                float lo = acc[i][j][half * 2], hi = acc[i][j][half * 2 + 1];
                if (c.parts == 1) *(u32*)((bf16*)c.out + at) = pack(lo, hi);
                else *(float2*)((float*)c.out + part * c.part + at) = make_float2(lo, hi);
            }
}

#define CONVOLUTION(BM, BN, WM, WN)                                                                                   \
    extern "C" __global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)                                            \
        forward_##BM##x##BN(const __grid_constant__ Conv c) { convolve<BM, BN, WM, WN, false>(c); }                   \
    extern "C" __global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)                                            \
        backward_##BM##x##BN(const __grid_constant__ Conv c) { convolve<BM, BN, WM, WN, true>(c); }
CONVOLUTION(128, 128, 64, 32)
CONVOLUTION(128, 64, 64, 32)
CONVOLUTION(128, 32, 32, 32)
CONVOLUTION(64, 64, 32, 32)

#define WEIGHT(BM, BN, WM, WN)                                                                                        \
    extern "C" __global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)                                            \
        weight_##BM##x##BN(const __grid_constant__ Conv c) { convolve_weight<BM, BN, WM, WN>(c); }
WEIGHT(128, 128, 64, 32)
WEIGHT(64, 64, 32, 32)
WEIGHT(32, 128, 32, 32)

// Adds the parts of a weight gradient, in their order; several of them are on their way at once.
struct Parts {
    const float* from;
    bf16* to;
    i64 count;           // a multiple of four
    int parts;
};
extern "C" __global__ void __launch_bounds__(256) add_parts(Parts p) {
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4; at < p.count; at += (i64)gridDim.x * blockDim.x * 4) {
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        #pragma unroll 8
        for (int part = 0; part < p.parts; part++) {
            float4 v = *(const float4*)(p.from + part * p.count + at);
            sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
        }
        *(uint2*)(p.to + at) = make_uint2(pack(sum.x, sum.y), pack(sum.z, sum.w));
    }
}
