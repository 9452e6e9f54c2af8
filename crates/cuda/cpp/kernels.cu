// The fused kernels of a cohort's training step, compiled for the GPU at hand when the program first
// needs them (NVRTC), so that building needs no CUDA compiler. No header is included for the same
// reason: bfloat16 is two shifts and one instruction.
//
// Activations are channels last: a matrix of rows (view, sample, pixel) by columns (client, channel).
// A cohort's batch norm is a sum over the rows of each column, once for each view. Every sum is taken
// in a fixed order (blocks leave their sums in memory, the next launch adds them up), so results repeat exactly.

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
__device__ __forceinline__ float2 load2(const bf16* p) {
    u32 x = *(const u32*)p;
    return make_float2(low(x), high(x));
}
__device__ __forceinline__ float2 load2(const float* p) { return *(const float2*)p; }
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

__device__ __forceinline__ float warp_sum(float x) {
    #pragma unroll
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    #pragma unroll
    for (int d = 16; d; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
    return x;
}

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
    i64 count;         // batch * pixels * K
    int pixels, clients, channels, padded, batch;
    float scale[4], shift[4];
};

// A pixel of a client in bfloat16 has eight channels, in float as many as it was given.
__device__ __forceinline__ void put_pixel(bf16* to, const float v[8], int) { store8(to, v); }
__device__ __forceinline__ void put_pixel(float* to, const float v[8], int channels) {
    #pragma unroll
    for (int c = 0; c < 4; c++)
        if (c < channels) to[c] = v[c];
}

template <class T> __device__ void images(const Images& m) {
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < m.count; at += (i64)gridDim.x * blockDim.x) {
        // at counts the pixels of the output: (sample, pixel, client).
        i64 place = at / m.clients;
        int client = at - place * m.clients, sample = place / m.pixels, pixel = place - (i64)sample * m.pixels;
        i64 from = (((i64)sample * m.clients + client) * m.pixels + pixel) * m.channels;
        float v[8] = {}, w[8] = {};
        float lambda = m.first ? m.lambda[client * m.batch + sample] : 0.f;
        #pragma unroll
        for (int c = 0; c < 4; c++) {
            if (c >= m.channels) continue;
            v[c] = m.fix[from + c] * m.scale[c] - m.shift[c];
            if (m.first) {
                float a = m.first[from + c] * m.scale[c] - m.shift[c], b = m.second[from + c] * m.scale[c] - m.shift[c];
                w[c] = b + lambda * (a - b);
            }
        }
        put_pixel((T*)m.out + at * m.padded, v, m.channels);
        if (m.first) put_pixel((T*)m.out + (m.count + at) * m.padded, w, m.channels);
    }
}
extern "C" __global__ void images_bf16(Images m) { images<bf16>(m); }
extern "C" __global__ void images_float(Images m) { images<float>(m); }

// ---------------------------------------------------------------------------------- SGD
// All entries of a cohort at once: sums of squares by client, from them how much shorter each client's
// gradient has to be, then the step. An entry is [K, size] in memory; `work` counts the pieces of `span`
// numbers before it.

const int ENTRIES = 256;

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
    int count, pieces, span;
    const float* lr;     // one number, on the device: it changes from replay to replay
    float* partial;      // [K, pieces]
    float* scale;        // [K]; null: no limit
    float momentum, decay, clip;
    int nesterov;
};

__device__ __forceinline__ const Entry& entry_of(const Sgd& s, int piece, i64& from, i64& to) {
    int at = 0, after = s.count; // the last entry with no more work before it
    while (at + 1 < after) {
        int middle = (at + after) / 2;
        if (s.entries[middle].work <= piece) at = middle;
        else after = middle;
    }
    const Entry& e = s.entries[at];
    from = (i64)(piece - e.work) * s.span;
    to = min(from + s.span, e.size);
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
    x = warp_sum(x);
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

extern "C" __global__ void __launch_bounds__(256) clip_scales(const __grid_constant__ Sgd s) {
    float sum = 0.f;
    #pragma unroll 8
    for (int i = threadIdx.x; i < s.pieces; i += 256) sum += s.partial[(i64)blockIdx.x * s.pieces + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) s.scale[blockIdx.x] = min(1.f, s.clip / (sqrtf(sum) + 1e-6f));
}

__device__ __forceinline__ void descend(const Sgd& s, float lr, float scale, float g, float& value, float& momentum) {
    float step = s.decay * value + scale * g;
    momentum = s.momentum * momentum + step;
    if (s.momentum > 0.f) step = s.nesterov ? step + s.momentum * momentum : momentum;
    value -= lr * step;
}

// The step of numbers [from, to), in fours: neighbouring threads have neighbouring fours, so that every access is of
// whole sectors, and AHEAD of them are read before the first is needed.
template <bool HALF> __device__ __forceinline__ void step_fours(const Sgd& s, const Entry& e, float lr, float scale, i64 from, i64 to) {
    const int AHEAD = 4, STRIDE = 256 * 4;
    const float* momenta = e.momentum ? e.momentum : e.value; // read, and not used, where there is no momentum
    for (i64 first = from + threadIdx.x * 4; first < to; first += AHEAD * STRIDE) {
        float4 values[AHEAD], before[AHEAD], gradients[AHEAD];
        uint2 halves[AHEAD];
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            i64 at = first + i * STRIDE;
            if (at >= to) break;
            if (HALF) halves[i] = *(const uint2*)((const bf16*)e.gradient + at);
            else gradients[i] = *(const float4*)((const float*)e.gradient + at);
            values[i] = *(const float4*)(e.value + at);
            before[i] = *(const float4*)(momenta + at);
        }
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            i64 at = first + i * STRIDE;
            if (at >= to) break;
            float4 g = HALF ? make_float4(low(halves[i].x), high(halves[i].x), low(halves[i].y), high(halves[i].y)) : gradients[i];
            float4 value = values[i], momentum = e.momentum ? before[i] : make_float4(0.f, 0.f, 0.f, 0.f);
            descend(s, lr, scale, g.x, value.x, momentum.x);
            descend(s, lr, scale, g.y, value.y, momentum.y);
            descend(s, lr, scale, g.z, value.z, momentum.z);
            descend(s, lr, scale, g.w, value.w, momentum.w);
            *(float4*)(e.value + at) = value;
            if (e.momentum) *(float4*)(e.momentum + at) = momentum;
            if (e.shadow) *(uint2*)(e.shadow + at) = make_uint2(pack(value.x, value.y), pack(value.z, value.w));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 3) sgd_step(const __grid_constant__ Sgd s) {
    i64 from, to;
    const Entry& e = entry_of(s, blockIdx.x, from, to);
    i64 client = (i64)blockIdx.y * e.size;
    float scale = s.scale ? s.scale[blockIdx.y] : 1.f, lr = *s.lr;
    from += client;
    to += client;
    if (e.size % 8 == 0) {
        if (e.half) step_fours<true>(s, e, lr, scale, from, to);
        else step_fours<false>(s, e, lr, scale, from, to);
        return;
    }
    for (i64 at = from + threadIdx.x; at < to; at += 256) {
        float value = e.value[at], momentum = e.momentum ? e.momentum[at] : 0.f;
        descend(s, lr, scale, gradient_at(e, at), value, momentum);
        e.value[at] = value;
        if (e.momentum) e.momentum[at] = momentum;
        if (e.shadow) put(e.shadow + at, value);
    }
}
