
// Batch norm with what follows it.
//
// Two launches each way: the first leaves sums over its rows in memory, the second adds them up and
// applies them. Forward, the convolution before may have left the sums, and one launch is enough. Blocks of 8 x 32 threads: 64 columns (8 per thread) by 32 rows; grid: (columns / 64, chunks
// of the rows, views).

const int LANES = 8, ROWS = 32, TILE = 64;
const int FORWARD_BATCH = 4, BACKWARD_BATCH = 2;

// Where a norm reads and writes. `rows` is a view's; all are [views * rows, columns] in memory.
struct Norm {
    const void* x;         // input
    const void* residual;  // added after the norm, or null
    void* y;               // output
    const void* dy;        // gradient of y
    const void* dy2;       // a second gradient of y, or null
    const void* dpassed;   // gradient of x where it is passed on, or null
    void* g;               // masked gradient of y: gradient of the residual
    void* dx;              // gradient of x
    const float* weight;
    const float* bias;
    float* running_mean;
    float* running_var;
    float* mean;           // [views, columns], as are the next three
    float* invstd;
    float* scale;
    float* shift;
    float* dweight;        // [columns]
    float* dbias;
    float* partial;        // sums, [views, parts, 2, columns]; null: normalise by the running statistics
    i64 rows;
    int columns, views, chunks, parts;
    int raw_sums, fixed;   // they are of x and its squares, not of differences from the view's first row
    float momentum;        // of the running statistics; negative: leave them alone
    float epsilon;
};

// Eight neighbouring channels as they lie in memory, so that several can be on their way before the first is needed.
template <class T> struct Eight;
template <> struct Eight<bf16> { Words words; };
template <> struct Eight<float> { float4 low, high; };
__device__ __forceinline__ void unpack(const Eight<bf16>& e, float v[8]) {
    #pragma unroll
    for (int i = 0; i < 4; i++) { v[2 * i] = low(e.words.w[i]); v[2 * i + 1] = high(e.words.w[i]); }
}
__device__ __forceinline__ void unpack(const Eight<float>& e, float v[8]) {
    v[0] = e.low.x; v[1] = e.low.y; v[2] = e.low.z; v[3] = e.low.w; v[4] = e.high.x; v[5] = e.high.y; v[6] = e.high.z; v[7] = e.high.w;
}

// The rows of a chunk that a thread has, BATCH of them at a time: what is read at once keeps the memory busy, and
// takes registers.
template <int BATCH> struct Rows {
    i64 row, end, columns;
    __device__ __forceinline__ Rows(const Norm& n) {
        i64 each = (n.rows + n.chunks - 1) / n.chunks, from = each * blockIdx.y;
        end = min(from + each, n.rows);
        row = from + threadIdx.y;
        columns = n.columns;
    }
    __device__ __forceinline__ bool more() const { return row < end; }
    __device__ __forceinline__ void next() { row += BATCH * ROWS; }
    __device__ __forceinline__ bool has(int i) const { return row + i * ROWS < end; }
    __device__ __forceinline__ i64 at(int i) const { return (row + i * ROWS) * columns; }
    template <class T> __device__ __forceinline__ void read(const T* from, Eight<T> (&to)[BATCH]) const {
        #pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (has(i)) to[i] = *(const Eight<T>*)(from + at(i));
    }
};

// Adds two sums of eight columns over the block's rows and writes them to `partial`.
__device__ void leave_partial(const Norm& n, float a[8], float b[8]) {
    __shared__ float sums[2][ROWS * LANES / 32][TILE];
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
    if (thread >= 2 * TILE) return;
    int which = thread / TILE, column = blockIdx.x * TILE + thread % TILE;
    float total = 0.f;
    #pragma unroll
    for (int w = 0; w < ROWS * LANES / 32; w++) total += sums[which][w][thread % TILE];
    if (column < n.columns) n.partial[(((i64)blockIdx.z * n.parts + blockIdx.y) * 2 + which) * n.columns + column] = total;
}

// The two sums of a column in a view over all parts, for the block's 64 columns: four threads per
// column, each a quarter of the parts. All threads of the block call it; the first 64 get the sums.
__device__ __forceinline__ void total_of(const Norm& n, int view, float& a, float& b) {
    __shared__ float quarters[2][4][TILE];
    int thread = threadIdx.y * LANES + threadIdx.x, place = thread % TILE, quarter = thread / TILE;
    int column = blockIdx.x * TILE + place, each = (n.parts + 3) / 4;
    a = b = 0.f;
    if (column < n.columns) {
        const float* at = n.partial + ((i64)view * n.parts + quarter * each) * 2 * n.columns + column;
        int count = min(each, n.parts - quarter * each);
        #pragma unroll 8
        for (int part = 0; part < count; part++) {
            a += at[(i64)part * 2 * n.columns];
            b += at[((i64)part * 2 + 1) * n.columns];
        }
    }
    __syncthreads();
    quarters[0][quarter][place] = a;
    quarters[1][quarter][place] = b;
    __syncthreads();
    a = quarters[0][0][place] + quarters[0][1][place] + quarters[0][2][place] + quarters[0][3][place];
    b = quarters[1][0][place] + quarters[1][1][place] + quarters[1][2][place] + quarters[1][3][place];
}

// Sums by column and view of differences from the first row, which do not cancel, and of their squares.
template <class T> __device__ void statistics(const Norm& n) {
    int column = (blockIdx.x * LANES + threadIdx.x) * 8;
    const T* x = (const T*)n.x + (i64)blockIdx.z * n.rows * n.columns + column;
    float a[8] = {}, b[8] = {}, first[8], v[8];
    if (column < n.columns) {
        load8(x, first);
        for (Rows<FORWARD_BATCH> rows(n); rows.more(); rows.next()) {
            Eight<T> xs[FORWARD_BATCH];
            rows.read(x, xs);
            #pragma unroll
            for (int r = 0; r < FORWARD_BATCH; r++) {
                if (!rows.has(r)) break;
                unpack(xs[r], v);
                #pragma unroll
                for (int i = 0; i < 8; i++) {
                    float d = v[i] - first[i];
                    a[i] += d;
                    b[i] += d * d;
                }
            }
        }
    }
    leave_partial(n, a, b);
}

// Mean and variance of a column in a view, in the first 64 threads of a block; all threads call it. Raw sums cancel where
// the mean is a hundred times the spread, where bfloat16 has lost the spread already.
template <class T> __device__ __forceinline__ void moments_of(const Norm& n, int view, int column, bool mine, float& mean, float& variance) {
    float s, q, rows = (float)n.rows;
    total_of(n, view, s, q);
    if (!mine) return;
    mean = n.raw_sums ? 0.f : to_float(((const T*)n.x)[(i64)view * n.rows * n.columns + column]);
    s /= rows;
    mean += s;
    variance = max(q / rows - s * s, 0.f);
}

// Scale and shift of the block's columns, from the sums or from the running statistics. Of the blocks that have the
// same columns the first writes down what the gradient needs, and updates the running statistics, view after view.
template <class T> __device__ __forceinline__ void scale_of(const Norm& n, float (&scales)[TILE], float (&shifts)[TILE]) {
    int thread = threadIdx.y * LANES + threadIdx.x, column = blockIdx.x * TILE + thread;
    bool mine = thread < TILE && column < n.columns;
    float mean, variance;
    if (n.partial) {
        moments_of<T>(n, blockIdx.z, column, mine, mean, variance);
    } else if (mine) {
        mean = n.running_mean[column];
        variance = n.running_var[column];
    }
    if (mine) {
        float invstd = rsqrtf(variance + n.epsilon), scale = n.weight[column] * invstd;
        scales[thread] = scale;
        shifts[thread] = n.bias[column] - mean * scale;
        if (blockIdx.y == 0) {
            i64 at = (i64)blockIdx.z * n.columns + column;
            n.mean[at] = mean;
            n.invstd[at] = invstd;
            n.scale[at] = scale;
            n.shift[at] = shifts[thread];
        }
    }
    if (n.partial && n.momentum >= 0.f && blockIdx.y == 0 && blockIdx.z == 0) {
        float rows = (float)n.rows, unbiased = rows / max(rows - 1.f, 1.f);
        float running_mean = mine ? n.running_mean[column] : 0.f, running_var = mine ? n.running_var[column] : 0.f;
        for (int view = 0; view < n.views; view++) {
            if (view > 0) moments_of<T>(n, view, column, mine, mean, variance);
            running_mean += n.momentum * (mean - running_mean);
            running_var += n.momentum * (variance * unbiased - running_var);
        }
        if (mine) {
            n.running_mean[column] = running_mean;
            n.running_var[column] = running_var;
        }
    }
    __syncthreads();
}

// y = x scale + shift (+ residual), ReLU.
template <class T, bool RELU> __device__ void apply(const Norm& n) {
    __shared__ float scales[TILE], shifts[TILE];
    scale_of<T>(n, scales, shifts);
    int column = (blockIdx.x * LANES + threadIdx.x) * 8;
    if (column >= n.columns) return;
    i64 base = (i64)blockIdx.z * n.rows * n.columns + column;
    const T* x = (const T*)n.x + base;
    const T* residual = n.residual ? (const T*)n.residual + base : 0;
    T* y = (T*)n.y + base;
    float scale[8], shift[8], v[8], r[8];
    load8(scales + threadIdx.x * 8, scale);
    load8(shifts + threadIdx.x * 8, shift);
    for (Rows<FORWARD_BATCH> rows(n); rows.more(); rows.next()) {
        Eight<T> xs[FORWARD_BATCH], rs[FORWARD_BATCH];
        rows.read(x, xs);
        if (residual) rows.read(residual, rs);
        #pragma unroll
        for (int j = 0; j < FORWARD_BATCH; j++) {
            if (!rows.has(j)) break;
            unpack(xs[j], v);
            if (residual) unpack(rs[j], r);
            #pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = v[i] * scale[i] + shift[i];
                if (residual) v[i] += r[i];
                if (RELU) v[i] = max(v[i], 0.f);
            }
            store8(y + rows.at(j), v);
        }
    }
}

// The gradient of y where ReLU let y through: known from y where a residual was added, else from x.
template <class T, bool RELU> struct Gradient {
    const T *x, *dy, *dy2, *y, *dpassed; // the last three may be null
    bool masked;                      // dy is masked already
    float scale[8], shift[8];
    __device__ Gradient(const Norm& n, i64 base, int column) {
        x = (const T*)n.x + base;
        dy = (const T*)n.dy + base;
        dy2 = n.dy2 ? (const T*)n.dy2 + base : 0;
        y = RELU && n.residual ? (const T*)n.y + base : 0;
        dpassed = 0;
        masked = false;
        load8(n.scale + (i64)blockIdx.z * n.columns + column, scale);
        load8(n.shift + (i64)blockIdx.z * n.columns + column, shift);
    }
    // Calls use(place, x, g, dpassed) for every row of a batch. Where there is dpassed, there is neither dy2 nor y.
    template <class F> __device__ __forceinline__ void each(const Rows<BACKWARD_BATCH>& rows, F use) const {
        const T* other = dy2 ? dy2 : y ? y : dpassed;
        Eight<T> xs[BACKWARD_BATCH], gs[BACKWARD_BATCH], others[BACKWARD_BATCH];
        rows.read(x, xs);
        rows.read(dy, gs);
        if (other) rows.read(other, others);
        #pragma unroll
        for (int r = 0; r < BACKWARD_BATCH; r++) {
            if (!rows.has(r)) break;
            float v[8], g[8], o[8];
            unpack(xs[r], v);
            unpack(gs[r], g);
            if (other) unpack(others[r], o);
            if (dy2) {
                #pragma unroll
                for (int i = 0; i < 8; i++) g[i] += o[i];
                if (y) load8(y + rows.at(r), o);
            }
            if (RELU && !masked) {
                #pragma unroll
                for (int i = 0; i < 8; i++)
                    if (!((y ? o[i] : v[i] * scale[i] + shift[i]) > 0.f)) g[i] = 0.f;
            }
            use(rows.at(r), v, g, o);
        }
    }
};

// Sums of g and g (x - mean) by column and view.
template <class T, bool RELU> __device__ void backward_sums(const Norm& n) {
    int column = (blockIdx.x * LANES + threadIdx.x) * 8;
    float a[8] = {}, b[8] = {}, mean[8];
    if (column < n.columns) {
        i64 base = (i64)blockIdx.z * n.rows * n.columns + column;
        Gradient<T, RELU> gradient(n, base, column);
        T* kept = n.residual ? (T*)n.g + base : 0;
        load8(n.mean + (i64)blockIdx.z * n.columns + column, mean);
        for (Rows<BACKWARD_BATCH> rows(n); rows.more(); rows.next())
            gradient.each(rows, [&](i64 at, float v[8], float g[8], float[8]) {
                if (kept) store8(kept + at, g);
                #pragma unroll
                for (int i = 0; i < 8; i++) {
                    a[i] += g[i];
                    b[i] += g[i] * (v[i] - mean[i]);
                }
            });
    }
    leave_partial(n, a, b);
}

// dx = a g + b x + c, plus the gradient that reaches x where it is passed on.
template <class T, bool RELU> __device__ void backward_input(const Norm& n) {
    __shared__ float coefficients[3][TILE];
    int thread = threadIdx.y * LANES + threadIdx.x, column = blockIdx.x * TILE + thread;
    bool mine = thread < TILE && column < n.columns;
    float s, q, rows = (float)n.rows, dweight = 0.f, dbias = 0.f;
    total_of(n, blockIdx.z, s, q);
    if (mine) {
        i64 at = (i64)blockIdx.z * n.columns + column;
        float invstd = n.invstd[at], slope = n.weight[column] * invstd, of_x = n.fixed ? 0.f : -slope * (q * invstd / rows) * invstd;
        coefficients[0][thread] = slope;
        coefficients[1][thread] = of_x;
        coefficients[2][thread] = n.fixed ? 0.f : -slope * (s / rows) - of_x * n.mean[at];
    }
    if (blockIdx.y == 0 && blockIdx.z == 0) { // gradients of weight and bias: sums over all views
        for (int view = 0; view < n.views; view++) {
            if (view > 0) total_of(n, view, s, q);
            if (mine) dweight += q * n.invstd[(i64)view * n.columns + column];
            dbias += s;
        }
        if (mine) {
            n.dweight[column] = dweight;
            n.dbias[column] = dbias;
        }
    }
    __syncthreads();
    column = (blockIdx.x * LANES + threadIdx.x) * 8;
    if (column >= n.columns) return;
    i64 base = (i64)blockIdx.z * n.rows * n.columns + column;
    Gradient<T, RELU> gradient(n, base, column);
    if (n.residual) { // the sums have left it
        gradient.dy = (const T*)n.g + base;
        gradient.dy2 = gradient.y = 0;
        gradient.masked = true;
    }
    gradient.dpassed = n.dpassed ? (const T*)n.dpassed + base : 0;
    T* dx = (T*)n.dx + base;
    float a[8], b[8], c[8];
    load8(coefficients[0] + threadIdx.x * 8, a);
    load8(coefficients[1] + threadIdx.x * 8, b);
    load8(coefficients[2] + threadIdx.x * 8, c);
    for (Rows<BACKWARD_BATCH> rows(n); rows.more(); rows.next())
        gradient.each(rows, [&](i64 at, float v[8], float g[8], float d[8]) {
            #pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = a[i] * g[i] + (b[i] * v[i] + c[i]);
                if (gradient.dpassed) v[i] += d[i];
            }
            store8(dx + at, v);
        });
}

#define NORM_KERNEL(NAME, BODY) extern "C" __global__ void __launch_bounds__(256, 2) NAME(const __grid_constant__ Norm n) { BODY(n); }
#define NORM_KERNELS(T)                                   \
    NORM_KERNEL(statistics_##T, statistics<T>)            \
    NORM_KERNEL(apply_##T, (apply<T, false>))             \
    NORM_KERNEL(apply_relu_##T, (apply<T, true>))         \
    NORM_KERNEL(sums_##T, (backward_sums<T, false>))      \
    NORM_KERNEL(sums_relu_##T, (backward_sums<T, true>))  \
    NORM_KERNEL(input_##T, (backward_input<T, false>))    \
    NORM_KERNEL(input_relu_##T, (backward_input<T, true>))
NORM_KERNELS(bf16)
NORM_KERNELS(float)
