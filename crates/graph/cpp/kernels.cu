// The fused kernels of a cohort's training step, compiled for the GPU at hand when the program first
// needs them (NVRTC), so that building needs no CUDA compiler. No header is included for the same
// reason: bfloat16 is two shifts and one instruction.
//
// Activations are channels last: a matrix of rows (view, sample, pixel) by columns (client, channel).
// A cohort's batch norm is a sum over the rows of each column, once for each view. Every sum is taken
// in a fixed order (block sums to memory, the last block adds them up), so results repeat exactly.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;

struct bf16 { u16 bits; };
struct __align__(16) Words { u32 w[4]; };

__device__ __forceinline__ float low(u32 w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high(u32 w) { return __uint_as_float(w & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float lo, float hi) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(hi), "f"(lo));
    return both;
}
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ void put(bf16* to, float x) { to->bits = (u16)(pack(x, 0.f) & 0xffffu); }
__device__ __forceinline__ void put(float* to, float x) { *to = x; }

// Eight neighbouring channels at a time: 16 bytes of bfloat16, 32 of float.
__device__ __forceinline__ void load8(const bf16* p, float v[8]) {
    Words x = *(const Words*)p;
    #pragma unroll
    for (int i = 0; i < 4; i++) { v[2 * i] = low(x.w[i]); v[2 * i + 1] = high(x.w[i]); }
}
__device__ __forceinline__ void load8(const float* p, float v[8]) {
    float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
    v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
__device__ __forceinline__ void store8(bf16* p, const float v[8]) {
    Words x;
    #pragma unroll
    for (int i = 0; i < 4; i++) x.w[i] = pack(v[2 * i], v[2 * i + 1]);
    *(Words*)p = x;
}
__device__ __forceinline__ void store8(float* p, const float v[8]) {
    ((float4*)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4*)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// ---------------------------------------------------------------------------------- batch norm
// Every kernel here runs blocks of 8 x 32 threads: 64 columns (8 a thread) by 32 rows.

const int LANES = 8, ROWS = 32, TILE = 64;

// Where a norm reads and writes. `rows` is a view's; all are [views * rows, columns] in memory.
struct Norm {
    const void* x;         // input
    const void* add;       // to be added to x first, or null
    void* sum;             // x + add, where add is given
    const void* residual;  // added after the norm, or null
    void* y;               // output
    const void* dy;        // gradient of y
    const void* dy2;       // a second gradient of y, or null
    const void* dsum;      // gradient of x + add, or null
    void* g;               // masked gradient of y: gradient of the residual
    void* dx;              // gradient of x (and of add)
    const float* weight;
    const float* bias;
    float* running_mean;
    float* running_var;
    float* mean;           // [views, columns], as are the next five
    float* invstd;
    float* scale;
    float* shift;
    float* coefficients;   // [3, views, columns]: dx = a g + b x + c
    float* dweight;        // [columns]
    float* dbias;
    float* partial;        // [views, chunks, 2, columns]
    u32* counter;          // [column tiles], zero between launches
    i64 rows;
    int columns, views, chunks;
    float momentum;        // of the running statistics; negative: leave them alone
    float epsilon;
};

__device__ __forceinline__ void chunk_of(const Norm& n, i64& from, i64& to) {
    i64 each = (n.rows + n.chunks - 1) / n.chunks;
    from = each * blockIdx.y;
    to = min(from + each, n.rows);
}

// Adds two sums of eight columns over the block's rows and writes them to `partial`; true in the
// block that is last to do so for its columns.
__device__ bool leave_partial(const Norm& n, float a[8], float b[8]) {
    __shared__ float sums[2][ROWS * LANES / 32][TILE];
    __shared__ bool last;
    int lane = threadIdx.x, thread = threadIdx.y * LANES + lane, warp = thread / 32;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        a[i] += __shfl_xor_sync(~0u, a[i], 8);
        a[i] += __shfl_xor_sync(~0u, a[i], 16);
        b[i] += __shfl_xor_sync(~0u, b[i], 8);
        b[i] += __shfl_xor_sync(~0u, b[i], 16);
    }
    if (thread % 32 < LANES)
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            sums[0][warp][lane * 8 + i] = a[i];
            sums[1][warp][lane * 8 + i] = b[i];
        }
    __syncthreads();
    if (thread < 2 * TILE) {
        int which = thread / TILE, column = blockIdx.x * TILE + thread % TILE;
        float total = 0.f;
        #pragma unroll
        for (int w = 0; w < ROWS * LANES / 32; w++) total += sums[which][w][thread % TILE];
        if (column < n.columns)
            n.partial[(((i64)blockIdx.z * n.chunks + blockIdx.y) * 2 + which) * n.columns + column] = total;
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) last = atomicAdd(&n.counter[blockIdx.x], 1u) == (u32)(n.chunks * n.views - 1);
    __syncthreads();
    if (last) {
        __threadfence();
        if (thread == 0) n.counter[blockIdx.x] = 0;
    }
    return last;
}

// The two sums of a column in a view over all blocks, for the block's 64 columns: four threads a
// column, each a quarter of the blocks. All threads of the block call it; the first 64 get the sums.
__device__ __forceinline__ void total_of(const Norm& n, int view, float& a, float& b) {
    __shared__ float quarters[2][4][TILE];
    int thread = threadIdx.y * LANES + threadIdx.x, place = thread % TILE, quarter = thread / TILE;
    int column = blockIdx.x * TILE + place, each = (n.chunks + 3) / 4;
    a = b = 0.f;
    if (column < n.columns) {
        const float* at = n.partial + ((i64)view * n.chunks + quarter * each) * 2 * n.columns + column;
        int count = min(each, n.chunks - quarter * each);
        #pragma unroll 8
        for (int chunk = 0; chunk < count; chunk++) {
            a += __ldcg(at + (i64)chunk * 2 * n.columns);
            b += __ldcg(at + ((i64)chunk * 2 + 1) * n.columns);
        }
    }
    __syncthreads();
    quarters[0][quarter][place] = a;
    quarters[1][quarter][place] = b;
    __syncthreads();
    a = quarters[0][0][place] + quarters[0][1][place] + quarters[0][2][place] + quarters[0][3][place];
    b = quarters[1][0][place] + quarters[1][1][place] + quarters[1][2][place] + quarters[1][3][place];
}

// Mean and variance of every column in every view, by sums of differences from the first row, which
// do not cancel; then what the apply kernel needs, and the running statistics, view after view.
template <class T> __device__ void statistics(const Norm& n) {
    int column = (blockIdx.x * LANES + threadIdx.x) * 8;
    i64 base = (i64)blockIdx.z * n.rows * n.columns;
    const T* x = (const T*)n.x + base + column;
    const T* add = n.add ? (const T*)n.add + base + column : 0;
    T* sum = n.add ? (T*)n.sum + base + column : 0;
    float a[8] = {}, b[8] = {}, first[8], v[8], w[8];
    if (column < n.columns) {
        load8(x, first);
        if (add) {
            load8(add, w);
            #pragma unroll
            for (int i = 0; i < 8; i++) first[i] += w[i];
        }
        i64 from, to;
        chunk_of(n, from, to);
        #pragma unroll 4
        for (i64 row = from + threadIdx.y; row < to; row += ROWS) {
            load8(x + row * n.columns, v);
            if (add) {
                load8(add + row * n.columns, w);
                #pragma unroll
                for (int i = 0; i < 8; i++) v[i] += w[i];
                store8(sum + row * n.columns, v);
            }
            #pragma unroll
            for (int i = 0; i < 8; i++) {
                float d = v[i] - first[i];
                a[i] += d;
                b[i] += d * d;
            }
        }
    }
    if (!leave_partial(n, a, b)) return;
    int thread = threadIdx.y * LANES + threadIdx.x;
    column = blockIdx.x * TILE + thread;
    bool mine = thread < TILE && column < n.columns;
    float rows = (float)n.rows;
    float running_mean = mine && n.momentum >= 0.f ? n.running_mean[column] : 0.f;
    float running_var = mine && n.momentum >= 0.f ? n.running_var[column] : 0.f;
    for (int view = 0; view < n.views; view++) {
        float s, q;
        total_of(n, view, s, q);
        if (!mine) continue;
        i64 start = (i64)view * n.rows * n.columns + column;
        float origin = to_float(((const T*)n.x)[start]);
        if (n.add) origin += to_float(((const T*)n.add)[start]);
        s /= rows;
        float mean = origin + s, variance = max(q / rows - s * s, 0.f);
        float invstd = rsqrtf(variance + n.epsilon);
        i64 at = (i64)view * n.columns + column;
        float scale = n.weight[column] * invstd;
        n.mean[at] = mean;
        n.invstd[at] = invstd;
        n.scale[at] = scale;
        n.shift[at] = n.bias[column] - mean * scale;
        if (n.momentum >= 0.f) {
            running_mean += n.momentum * (mean - running_mean);
            running_var += n.momentum * (variance * rows / max(rows - 1.f, 1.f) - running_var);
        }
    }
    if (mine && n.momentum >= 0.f) {
        n.running_mean[column] = running_mean;
        n.running_var[column] = running_var;
    }
}

// Scale and shift from the running statistics: evaluation.
extern "C" __global__ void running_scale(Norm n) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= n.columns) return;
    float scale = n.weight[column] * rsqrtf(n.running_var[column] + n.epsilon);
    float shift = n.bias[column] - n.running_mean[column] * scale;
    for (int view = 0; view < n.views; view++) {
        n.scale[(i64)view * n.columns + column] = scale;
        n.shift[(i64)view * n.columns + column] = shift;
    }
}

// y = x scale + shift (+ residual), ReLU.
template <class T, bool RELU> __device__ void apply(const Norm& n) {
    int column = (blockIdx.x * LANES + threadIdx.x) * 8;
    if (column >= n.columns) return;
    i64 base = (i64)blockIdx.z * n.rows * n.columns + column;
    const T* x = (const T*)(n.add ? n.sum : n.x) + base;
    const T* residual = n.residual ? (const T*)n.residual + base : 0;
    T* y = (T*)n.y + base;
    float scale[8], shift[8], v[8], r[8];
    load8(n.scale + (i64)blockIdx.z * n.columns + column, scale);
    load8(n.shift + (i64)blockIdx.z * n.columns + column, shift);
    i64 from, to;
    chunk_of(n, from, to);
    #pragma unroll 4
    for (i64 row = from + threadIdx.y; row < to; row += ROWS) {
        load8(x + row * n.columns, v);
        if (residual) load8(residual + row * n.columns, r);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = v[i] * scale[i] + shift[i];
            if (residual) v[i] += r[i];
            if (RELU) v[i] = max(v[i], 0.f);
        }
        store8(y + row * n.columns, v);
    }
}

// The gradient of y where ReLU let y through: known from y where a residual was added, else from x.
template <class T, bool RELU> struct Masked {
    const T *x, *y, *dy, *dy2;
    float scale[8], shift[8];
    __device__ Masked(const Norm& n, i64 base, int column) {
        x = (const T*)(n.add ? n.sum : n.x) + base;
        y = n.residual ? (const T*)n.y + base : 0;
        dy = (const T*)n.dy + base;
        dy2 = n.dy2 ? (const T*)n.dy2 + base : 0;
        load8(n.scale + (i64)blockIdx.z * n.columns + column, scale);
        load8(n.shift + (i64)blockIdx.z * n.columns + column, shift);
    }
    __device__ __forceinline__ void read(i64 at, float v[8], float g[8]) const {
        load8(x + at, v);
        load8(dy + at, g);
        float other[8];
        if (dy2) {
            load8(dy2 + at, other);
            #pragma unroll
            for (int i = 0; i < 8; i++) g[i] += other[i];
        }
        if (RELU) {
            if (y) load8(y + at, other);
            #pragma unroll
            for (int i = 0; i < 8; i++)
                if (!((y ? other[i] : v[i] * scale[i] + shift[i]) > 0.f)) g[i] = 0.f;
        }
    }
};

// Sums of g and g (x - mean) by column and view; then the gradients of weight and bias, and the
// coefficients of dx = a g + b x + c.
template <class T, bool RELU> __device__ void backward_sums(const Norm& n) {
    int column = (blockIdx.x * LANES + threadIdx.x) * 8;
    float a[8] = {}, b[8] = {}, v[8], g[8], mean[8];
    if (column < n.columns) {
        i64 base = (i64)blockIdx.z * n.rows * n.columns + column;
        Masked<T, RELU> masked(n, base, column);
        T* kept = n.residual ? (T*)n.g + base : 0;
        load8(n.mean + (i64)blockIdx.z * n.columns + column, mean);
        i64 from, to;
        chunk_of(n, from, to);
        #pragma unroll 2
        for (i64 row = from + threadIdx.y; row < to; row += ROWS) {
            masked.read(row * n.columns, v, g);
            if (kept) store8(kept + row * n.columns, g);
            #pragma unroll
            for (int i = 0; i < 8; i++) {
                a[i] += g[i];
                b[i] += g[i] * (v[i] - mean[i]);
            }
        }
    }
    if (!leave_partial(n, a, b)) return;
    int thread = threadIdx.y * LANES + threadIdx.x;
    column = blockIdx.x * TILE + thread;
    bool mine = thread < TILE && column < n.columns;
    float dweight = 0.f, dbias = 0.f, rows = (float)n.rows;
    i64 plane = (i64)n.views * n.columns;
    for (int view = 0; view < n.views; view++) {
        float s, q;
        total_of(n, view, s, q);
        if (!mine) continue;
        i64 at = (i64)view * n.columns + column;
        float invstd = n.invstd[at], slope = n.weight[column] * invstd;
        q *= invstd; // sum of g times the normalised x
        dweight += q;
        dbias += s;
        float of_x = -slope * (q / rows) * invstd;
        n.coefficients[at] = slope;
        n.coefficients[plane + at] = of_x;
        n.coefficients[2 * plane + at] = -slope * (s / rows) - of_x * n.mean[at];
    }
    if (mine) {
        n.dweight[column] = dweight;
        n.dbias[column] = dbias;
    }
}

// dx = a g + b x + c, plus the gradient that reaches x + add by the shortcut.
template <class T, bool RELU> __device__ void backward_input(const Norm& n) {
    int column = (blockIdx.x * LANES + threadIdx.x) * 8;
    if (column >= n.columns) return;
    i64 base = (i64)blockIdx.z * n.rows * n.columns + column;
    i64 plane = (i64)n.views * n.columns, at = (i64)blockIdx.z * n.columns + column;
    Masked<T, RELU> masked(n, base, column);
    const T* kept = n.residual ? (const T*)n.g + base : 0;
    const T* dsum = n.dsum ? (const T*)n.dsum + base : 0;
    T* dx = (T*)n.dx + base;
    float a[8], b[8], c[8], v[8], g[8], d[8];
    load8(n.coefficients + at, a);
    load8(n.coefficients + plane + at, b);
    load8(n.coefficients + 2 * plane + at, c);
    i64 from, to;
    chunk_of(n, from, to);
    #pragma unroll 2
    for (i64 row = from + threadIdx.y; row < to; row += ROWS) {
        if (kept) {
            load8(masked.x + row * n.columns, v);
            load8(kept + row * n.columns, g);
        } else {
            masked.read(row * n.columns, v, g);
        }
        if (dsum) load8(dsum + row * n.columns, d);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = a[i] * g[i] + (b[i] * v[i] + c[i]);
            if (dsum) v[i] += d[i];
        }
        store8(dx + row * n.columns, v);
    }
}

#define NORM_KERNELS(T)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) statistics_##T(Norm n) { statistics<T>(n); }          \
    extern "C" __global__ void __launch_bounds__(256) apply_##T(Norm n) { apply<T, false>(n); }             \
    extern "C" __global__ void __launch_bounds__(256) apply_relu_##T(Norm n) { apply<T, true>(n); }         \
    extern "C" __global__ void __launch_bounds__(256) sums_##T(Norm n) { backward_sums<T, false>(n); }      \
    extern "C" __global__ void __launch_bounds__(256) sums_relu_##T(Norm n) { backward_sums<T, true>(n); }  \
    extern "C" __global__ void __launch_bounds__(256) input_##T(Norm n) { backward_input<T, false>(n); }    \
    extern "C" __global__ void __launch_bounds__(256) input_relu_##T(Norm n) { backward_input<T, true>(n); }
NORM_KERNELS(bf16)
NORM_KERNELS(float)

// ---------------------------------------------------------------------------------- images
// 8-bit pixels [batch, K, pixels, C] to the network's input [views * batch, pixels, K * padded]: the
// first view normalised, the second a mixture of two images of which lambda [K, batch] is the share of
// the first. Channels above C are 0.

struct Images {
    const u8* fix;
    const u8* first;   // null: one view
    const u8* second;
    const float* lambda;
    void* out;
    i64 count;         // batch * pixels * K * padded
    int pixels, clients, channels, padded, batch;
    float scale[4], shift[4];
};

template <class T> __device__ void images(const Images& m) {
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < m.count; at += (i64)gridDim.x * blockDim.x) {
        // at counts the output: (sample, pixel, client, channel).
        int channel = at % m.padded, client = at / m.padded % m.clients;
        i64 place = at / m.padded / m.clients;
        int pixel = place % m.pixels, sample = place / m.pixels;
        i64 from = (((i64)sample * m.clients + client) * m.pixels + pixel) * m.channels + channel;
        bool there = channel < m.channels;
        float scale = m.scale[channel & 3], shift = m.shift[channel & 3];
        put((T*)m.out + at, there ? m.fix[from] * scale - shift : 0.f);
        if (m.first) {
            float a = 0.f, b = 0.f;
            if (there) {
                a = m.first[from] * scale - shift;
                b = m.second[from] * scale - shift;
            }
            put((T*)m.out + m.count + at, b + m.lambda[client * m.batch + sample] * (a - b));
        }
    }
}
extern "C" __global__ void images_bf16(Images m) { images<bf16>(m); }
extern "C" __global__ void images_float(Images m) { images<float>(m); }

// ---------------------------------------------------------------------------------- SGD
// All entries of a cohort in two launches: sums of squares by client, then the step. An entry is
// [K, size] in memory; `work` counts the pieces of SPAN numbers before it.

const int SPAN = 4096, ENTRIES = 256;

struct Entry {
    float* value;
    float* momentum;     // null: none
    const void* gradient;
    bf16* shadow;        // the value in bfloat16, or null
    i64 size;
    int work;
    int half;            // the gradient is bfloat16
};
struct Sgd {
    Entry entries[ENTRIES];
    int count, pieces, clients;
    const float* lr;     // one number, on the device: it changes from replay to replay
    float* partial;      // [K, pieces]
    float momentum, decay, clip;
    int nesterov;
};

__device__ __forceinline__ const Entry& entry_of(const Sgd& s, int piece, i64& from, i64& to) {
    int at = 0;
    while (at + 1 < s.count && s.entries[at + 1].work <= piece) at++;
    const Entry& e = s.entries[at];
    from = (i64)(piece - e.work) * SPAN;
    to = min(from + SPAN, e.size);
    return e;
}
__device__ __forceinline__ float gradient_at(const Entry& e, i64 at) {
    return e.half ? to_float(((const bf16*)e.gradient)[at]) : ((const float*)e.gradient)[at];
}
__device__ __forceinline__ void gradient8(const Entry& e, i64 at, float g[8]) {
    if (e.half) load8((const bf16*)e.gradient + at, g);
    else load8((const float*)e.gradient + at, g);
}
__device__ float block_sum(float x) {
    __shared__ float sums[8];
    __shared__ float total;
    #pragma unroll
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0.f;
        for (int i = 0; i < 8; i++) total += sums[i];
    }
    __syncthreads();
    return total;
}

extern "C" __global__ void __launch_bounds__(256) square_sums(const __grid_constant__ Sgd s) {
    i64 from, to;
    const Entry& e = entry_of(s, blockIdx.x, from, to);
    i64 client = (i64)blockIdx.y * e.size;
    float sum = 0.f, g[8];
    if (e.size % 8 == 0) {
        #pragma unroll 2
        for (i64 at = from + threadIdx.x * 8; at < to; at += 256 * 8) {
            gradient8(e, client + at, g);
            #pragma unroll
            for (int i = 0; i < 8; i++) sum += g[i] * g[i];
        }
    } else {
        for (i64 at = from + threadIdx.x; at < to; at += 256) {
            float x = gradient_at(e, client + at);
            sum += x * x;
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) s.partial[(i64)blockIdx.y * s.pieces + blockIdx.x] = sum;
}

__device__ __forceinline__ void descend(const Sgd& s, float lr, float scale, float g, float& value, float& momentum) {
    float step = s.decay * value + scale * g;
    momentum = s.momentum * momentum + step;
    if (s.momentum > 0.f) step = s.nesterov ? step + s.momentum * momentum : momentum;
    value -= lr * step;
}

extern "C" __global__ void __launch_bounds__(256) sgd_step(const __grid_constant__ Sgd s) {
    i64 from, to;
    const Entry& e = entry_of(s, blockIdx.x, from, to);
    i64 client = (i64)blockIdx.y * e.size;
    float scale = 1.f, lr = *s.lr;
    if (s.clip > 0.f) {
        float sum = 0.f;
        for (int i = threadIdx.x; i < s.pieces; i += 256) sum += s.partial[(i64)blockIdx.y * s.pieces + i];
        scale = min(1.f, s.clip / (sqrtf(block_sum(sum)) + 1e-6f));
    }
    if (e.size % 8 == 0) {
        #pragma unroll 2
        for (i64 at = from + threadIdx.x * 8; at < to; at += 256 * 8) {
            float g[8], value[8], momentum[8] = {};
            gradient8(e, client + at, g);
            load8(e.value + client + at, value);
            if (e.momentum) load8(e.momentum + client + at, momentum);
            #pragma unroll
            for (int i = 0; i < 8; i++) descend(s, lr, scale, g[i], value[i], momentum[i]);
            store8(e.value + client + at, value);
            if (e.momentum) store8(e.momentum + client + at, momentum);
            if (e.shadow) store8(e.shadow + client + at, value);
        }
    } else {
        for (i64 at = client + from + threadIdx.x; at < client + to; at += 256) {
            float value = e.value[at], momentum = e.momentum ? e.momentum[at] : 0.f;
            descend(s, lr, scale, gradient_at(e, at), value, momentum);
            e.value[at] = value;
            if (e.momentum) e.momentum[at] = momentum;
            if (e.shadow) put(e.shadow + at, value);
        }
    }
}
