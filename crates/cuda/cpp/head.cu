
// What follows the last convolution: the average over the pixels, and heads with few outputs.

struct Pool {
    void* x;       // [images, pixels, K * channels]; written by the gradient
    float* pooled; // [K, images, channels]
    int images, pixels, clients, channels;
};

// A thread has two columns of an image.
template <class T> __device__ void pool(const Pool& p) {
    int columns = p.clients * p.channels;
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 2;
    if (at >= (i64)p.images * columns) return;
    int image = at / columns, column = at - (i64)image * columns, client = column / p.channels;
    const T* from = (const T*)p.x + (i64)image * p.pixels * columns + column;
    float first = 0.f, second = 0.f;
    #pragma unroll 8
    for (int i = 0; i < p.pixels; i++) {
        float2 two = load2(from + (i64)i * columns);
        first += two.x;
        second += two.y;
    }
    float* to = p.pooled + ((i64)client * p.images + image) * p.channels + (column - client * p.channels);
    *(float2*)to = make_float2(first / p.pixels, second / p.pixels);
}
// The gradient: eight columns of a pixel each.
template <class T> __device__ void unpool(const Pool& p) {
    int columns = p.clients * p.channels;
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8, pixel = at / columns;
    if (pixel >= (i64)p.images * p.pixels) return;
    int image = pixel / p.pixels, column = at - pixel * columns, client = column / p.channels;
    float v[8];
    load8(p.pooled + ((i64)client * p.images + image) * p.channels + (column - client * p.channels), v);
    #pragma unroll
    for (int i = 0; i < 8; i++) v[i] /= p.pixels;
    store8((T*)p.x + at, v);
}
extern "C" __global__ void __launch_bounds__(128) pool_bf16(const __grid_constant__ Pool p) { pool<bf16>(p); }
extern "C" __global__ void __launch_bounds__(128) pool_float(const __grid_constant__ Pool p) { pool<float>(p); }
extern "C" __global__ void __launch_bounds__(256) unpool_bf16(const __grid_constant__ Pool p) { unpool<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256) unpool_float(const __grid_constant__ Pool p) { unpool<float>(p); }

struct Head {
    const float* x;      // [K, rows, from]
    const float* w;      // [K, to, from]
    const float* b;      // [K, to]
    float* y;            // [K, rows, to]
    const float* dy;     // the gradients; dx may be null
    float *dx, *dw, *db;
    int rows, from, to;
};

// Grid: (rows, K). A warp has every eighth output.
extern "C" __global__ void __launch_bounds__(256) head_forward(const __grid_constant__ Head h) {
    int lane = threadIdx.x % 32;
    i64 client = blockIdx.y, row = client * h.rows + blockIdx.x;
    const float* x = h.x + row * h.from;
    for (int o = threadIdx.x / 32; o < h.to; o += 8) {
        const float* w = h.w + (client * h.to + o) * h.from;
        float sum = 0.f;
        #pragma unroll 4
        for (int f = lane; f < h.from; f += 32) sum += x[f] * w[f];
        sum = warp_sum(sum);
        if (lane == 0) h.y[row * h.to + o] = sum + h.b[client * h.to + o];
    }
}
// All gradients. Grid: (from / 32, K). A thread has one input and, with its warp, every eighth row of dx and of dw.
extern "C" __global__ void __launch_bounds__(256) head_backward(const __grid_constant__ Head h) {
    extern __shared__ float dy[]; // [rows, to]
    int f = blockIdx.x * 32 + threadIdx.x % 32, warp = threadIdx.x / 32;
    i64 client = blockIdx.y;
    for (int i = threadIdx.x; i < h.rows * h.to; i += 256) dy[i] = h.dy[client * h.rows * h.to + i];
    __syncthreads();
    const float* x = h.x + client * h.rows * h.from;
    const float* w = h.w + client * h.to * h.from;
    for (int o = warp; o < h.to && f < h.from; o += 8) {
        float sum = 0.f;
        for (int r = 0; r < h.rows; r++) sum += dy[r * h.to + o] * x[(i64)r * h.from + f];
        h.dw[(client * h.to + o) * h.from + f] = sum;
    }
    for (int r = warp; h.dx && r < h.rows && f < h.from; r += 8) {
        float sum = 0.f;
        for (int o = 0; o < h.to; o++) sum += dy[r * h.to + o] * w[(i64)o * h.from + f];
        h.dx[(client * h.rows + r) * h.from + f] = sum;
    }
    if (blockIdx.x == 0 && threadIdx.x < h.to) {
        float sum = 0.f;
        for (int r = 0; r < h.rows; r++) sum += dy[r * h.to + threadIdx.x];
        h.db[client * h.to + threadIdx.x] = sum;
    }
}
