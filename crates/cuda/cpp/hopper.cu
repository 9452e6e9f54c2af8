
#ifdef ON_HOPPER
// The same three products with Hopper's own instructions: a group of four warps multiplies tiles that
// lie in shared memory, without loading them into registers first, which is what limits conv.cu. The
// tiles' swizzle is the one these instructions expect: rows of 128 bytes whose vectors are exchanged by
// the row's number (64 bytes where a tile is 32 wide).
//
// Blocks of 256 threads: two warp groups of 64 rows each. Steps of 64 along the sum, three stages; two
// blocks share a processor, so that one multiplies while the other waits.

typedef unsigned long long u64;

const int HK = 64, HSTAGES = 3, HM = 128, HTHREADS = 256;

__device__ __forceinline__ u64 tile_of(u32 address, u32 next_block, u32 next_eight, u32 layout) {
    return (u64)layout << 62 | (u64)(next_eight >> 4) << 32 | (u64)(next_block >> 4) << 16 | (address & 0x3ffff) >> 4;
}
__device__ __forceinline__ void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// d += a b for 64 x N x 16; TA, TB: whether the sum runs down the rows of the tile.
template <int TA, int TB> __device__ __forceinline__ void warpgroup_multiply(float (&d)[16], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%16, %17, 1, 1, 1, %18, %19;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TA, int TB> __device__ __forceinline__ void warpgroup_multiply(float (&d)[32], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, 1, 1, 1, %34, %35;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TA, int TB> __device__ __forceinline__ void warpgroup_multiply(float (&d)[64], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, 1, 1, 1, %66, %67;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}

// Place of a vector in a tile [rows][WIDTH] that is cut into blocks of 64 columns (or is 32 wide).
template <int WIDTH, int TALL> __device__ __forceinline__ int hopper_place(int row, int vector) {
    if (WIDTH == 32) return swizzled<4>(row, vector);
    return (vector / 8) * (TALL * 128) + swizzled<8>(row, vector % 8);
}

// The descriptor of 16 rows (TRANSPOSED: the sum runs down the rows) or 16 columns of a tile.
template <int WIDTH> __device__ __forceinline__ u64 transposed_tile(u32 tile, int ks) {
    return WIDTH == 32 ? tile_of(tile + ks * 16 * 64, 0, 512, 2) : tile_of(tile + ks * 16 * 128, HK * 128, 1024, 1);
}
__device__ __forceinline__ u64 straight_tile(u32 tile, int ks) { return tile_of(tile + ks * 32, 16, 1024, 1); }

struct Place { int image, y, x; }; // of a pixel

// Forward, or with INPUT the gradient of the input. With stride 2 a pixel of the input has met only the taps of its
// own parity: rows are taken parity by parity, so that a block has one, two or four of nine taps.
template <int BN, bool INPUT> __device__ void hopper_convolve(const Conv& c) {
    const int A_BYTES = HM * HK * 2, B_BYTES = BN * HK * 2, A_LOADS = HM * 8 / HTHREADS, NT = BN / 8;
    extern __shared__ __align__(1024) u8 memory[];
    u32 base = shared_address(memory);
    int thread = threadIdx.x, group = blockIdx.z, block = blockIdx.x, n0 = blockIdx.y * BN;
    int a_channels = 8 << c.log_a, columns = INPUT ? c.inputs : c.outputs;
    // The rows' pixels, and the taps of a block: those of the first row and column of the kernel that it has, and then
    // every `every`-th.
    bool halved = INPUT && c.stride == 2;
    int size = c.taps == 9 ? 3 : 1, every = halved ? 2 : 1, first_h = 0, first_w = 0, parity_h = 0, parity_w = 0;
    int across = c.row.divisor, down = c.image.divisor / across, images = c.rows / c.image.divisor;
    if (halved) {
        int blocks = gridDim.x / 4, parity = block / blocks;
        block -= parity * blocks;
        parity_h = parity / 2;
        parity_w = parity % 2;
        down = (down + 1 - parity_h) / 2;
        across = (across + 1 - parity_w) / 2;
        first_h = (parity_h + c.padding) & 1;
        first_w = (parity_w + c.padding) & 1;
    }
    int taps_w = (size - first_w + every - 1) / every, taps = (size - first_h + every - 1) / every * taps_w;
    int rows = images * down * across, m0 = block * HM;
    if (m0 >= rows) return;
    int sum = taps << (c.log_a + 3), steps = (sum + HK - 1) / HK;
    auto place_of_row = [&](int m) {
        int image = m / (down * across), inside = m - image * (down * across), y = inside / across;
        return Place{image, y, inside - y * across};
    };
    // Place of a tap among those of the block, and its number.
    auto tap_at = [&](int tap, int& h, int& w) {
        if (!halved) {
            tap_of(tap, h, w);
            return tap;
        }
        h = taps_w == 2 ? tap >> 1 : tap;
        w = taps_w == 2 ? tap & 1 : 0;
        return (first_h + 2 * h) * size + first_w + 2 * w;
    };
    const bf16* a = c.a + group * a_channels;
    const bf16* w = c.b + (i64)group * c.outputs * c.depth;
    // A row of A is a pixel: where its first tap lies, and which taps lie inside the image. Both are found
    // once; a copy then costs a shift and an addition. (Finding them for every copy took most of the
    // instructions, and instructions were what these kernels waited for.)
    int vector = thread % 8;
    const bf16* row_at[A_LOADS];
    u32 inside_taps[A_LOADS];
    #pragma unroll
    for (int i = 0; i < A_LOADS; i++) {
        int m = m0 + thread / 8 + i * (HTHREADS / 8);
        auto [image, y, x] = place_of_row(m);
        int h0 = y * c.stride - c.padding, w0 = x * c.stride - c.padding;
        if (INPUT) {
            h0 = halved ? (2 * y + parity_h + c.padding - first_h) >> 1 : y + c.padding;
            w0 = halved ? (2 * x + parity_w + c.padding - first_w) >> 1 : x + c.padding;
        }
        inside_taps[i] = 0;
        for (int tap = 0; tap < taps; tap++) {
            int dh, dw;
            tap_at(tap, dh, dw);
            int h = INPUT ? h0 - dh : h0 + dh, w = INPUT ? w0 - dw : w0 + dw;
            inside_taps[i] |= (u32)(m < rows && (u32)h < (u32)c.height && (u32)w < (u32)c.width) << tap;
        }
        row_at[i] = a + (((i64)image * c.height + h0) * c.width + w0) * c.a_stride;
    }
    u32 a_place = swizzled<8>(thread / 8, vector); // rows 32 apart are swizzled alike
    // Columns of B that this thread copies.
    const int B_ROWS = INPUT ? HTHREADS * 8 / BN : HTHREADS / 8; // rows of B between its copies
    int b_row = INPUT ? thread / (BN / 8) : thread / 8, b_vector = INPUT ? thread % (BN / 8) : vector;
    auto load = [&](int step, int stage) {
        u32 a_tile = base + stage * (A_BYTES + B_BYTES), b_tile = a_tile + A_BYTES;
        int k = step * 8 + vector, tap = k >> c.log_a, dh, dw;
        tap_at(tap, dh, dw);
        int way = dh * c.width + dw;
        i64 offset = (i64)(INPUT ? -way : way) * c.a_stride + (k & ((1 << c.log_a) - 1)) * 8;
        #pragma unroll
        for (int i = 0; i < A_LOADS; i++)
            copy16(a_tile + a_place + i * (HTHREADS / 8 * 128), row_at[i] + offset, inside_taps[i] >> tap & 1);
        #pragma unroll
        for (int i = 0; i < (BN * 8 + HTHREADS - 1) / HTHREADS; i++) {
            int r = b_row + i * B_ROWS;
            if (INPUT) {
                int kk = step * HK + r, t = kk >> (c.log_a + 3), n = kk & (a_channels - 1), column = n0 + b_vector * 8;
                int tap_h, tap_w, number = tap_at(t, tap_h, tap_w);
                const bf16* from = w + (i64)n * c.depth + number * c.inputs + column;
                copy16(b_tile + hopper_place<BN, HK>(r, b_vector), from, t < taps && column < c.inputs);
            } else {
                int kk = step * HK + vector * 8;
                const bf16* from = w + (i64)(n0 + r) * c.depth + kk;
                copy16(b_tile + swizzled<8>(r, vector), from, n0 + r < c.outputs && kk < c.depth);
            }
        }
    };
    float acc[BN / 2];
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) acc[i] = 0.f;
    #pragma unroll
    for (int s = 0; s < HSTAGES - 1; s++) {
        if (s < steps) load(s, s);
        commit();
    }
    int warpgroup = thread / 128, stage = 0;
    for (int step = 0; step < steps; step++) {
        wait<HSTAGES - 2>();
        publish();
        __syncthreads();
        int next = step + HSTAGES - 1;
        if (next < steps) load(next, stage == 0 ? HSTAGES - 1 : stage - 1);
        commit();
        u32 a_tile = base + stage * (A_BYTES + B_BYTES), b_tile = a_tile + A_BYTES;
        a_tile += warpgroup * 64 * 128;
        warpgroup_fence();
        #pragma unroll
        for (int ks = 0; ks < HK / 16; ks++)
            warpgroup_multiply<0, INPUT>(acc, straight_tile(a_tile, ks), INPUT ? transposed_tile<BN>(b_tile, ks) : straight_tile(b_tile, ks));
        warpgroup_commit();
        warpgroup_wait();
        stage = stage + 1 == HSTAGES ? 0 : stage + 1;
    }
    wait<0>();
    __syncthreads();

    const int WIDTH = BN + 8;
    bf16* tile = (bf16*)memory;
    int lane = thread % 32, r0 = thread / 32 * 16 + lane / 4;
    #pragma unroll
    for (int j = 0; j < NT; j++) {
        int n = j * 8 + lane % 4 * 2;
        *(u32*)(tile + r0 * WIDTH + n) = pack(acc[j * 4], acc[j * 4 + 1]);
        *(u32*)(tile + (r0 + 8) * WIDTH + n) = pack(acc[j * 4 + 2], acc[j * 4 + 3]);
    }
    __syncthreads();
    bf16* out = (bf16*)c.out + group * columns;
    #pragma unroll
    for (int at = thread; at < HM * BN / 8; at += HTHREADS) {
        int r = at / (BN / 8), v = at % (BN / 8), m = m0 + r;
        if (m >= rows || n0 + v * 8 >= columns) continue;
        if (halved) {
            auto [image, y, x] = place_of_row(m);
            m = image * c.image.divisor + (2 * y + parity_h) * c.row.divisor + 2 * x + parity_w;
        }
        *(Words*)(out + (i64)m * c.out_stride + n0 + v * 8) = *(const Words*)(tile + r * WIDTH + v * 8);
    }
}

// The gradient of the weights: rows are (tap, c), columns n, the sum runs over pixels.
template <int BN> __device__ void hopper_weight(const Conv& c) {
    const int A_BYTES = HM * HK * 2, B_BYTES = BN * HK * 2, LOADS = HK * HM / 8 / HTHREADS, NT = BN / 8;
    extern __shared__ __align__(1024) u8 memory[];
    u32 base = shared_address(memory);
    int thread = threadIdx.x, group = blockIdx.z / c.parts, part = blockIdx.z % c.parts;
    int j0 = blockIdx.x * HM, n0 = blockIdx.y * BN;
    int all = (c.rows + HK - 1) / HK, each = (all + c.parts - 1) / c.parts;
    int first = part * each, steps = min(all - first, each);
    const bf16* dy = c.b + group * c.outputs;
    // This thread copies four vectors of one pixel in every step: which tap and channels they are is
    // found once, where the pixel lies once a step.
    int row = thread / 4;
    i64 way[LOADS];
    int taps[LOADS];
    #pragma unroll
    for (int i = 0; i < LOADS; i++) {
        int k = j0 / 8 + thread % 4 + i * 4, kh, kw;
        taps[i] = min(k >> c.log_a, 31); // above the last tap: never inside
        tap_of(taps[i], kh, kw);
        way[i] = (i64)(kh * c.width + kw) * c.a_stride + (k & ((1 << c.log_a) - 1)) * 8;
    }
    const bf16* x = c.a + group * c.inputs;
    int size = c.taps == 9 ? 3 : 1;
    const int B_ROWS = HTHREADS * 8 / BN;
    int b_row = thread / (BN / 8), b_vector = thread % (BN / 8);
    auto load = [&](int step, int stage) {
        u32 a_tile = base + stage * (A_BYTES + B_BYTES), b_tile = a_tile + A_BYTES;
        int m = (first + step) * HK + row;
        u32 image = quotient(c.image, m), inside = m - image * c.image.divisor;
        int y = quotient(c.row, inside), h0 = y * c.stride - c.padding;
        int w0 = (int)(inside - y * c.row.divisor) * c.stride - c.padding;
        // Bit t: tap t lies inside. Rows first, then columns in every row.
        u32 rows = 0, columns = 0;
        #pragma unroll
        for (int d = 0; d < 3; d++) {
            if (d < size && (u32)(h0 + d) < (u32)c.height) rows |= 7u << 3 * d;
            if (d < size && (u32)(w0 + d) < (u32)c.width) columns |= 0111u << d;
        }
        u32 taps_inside = m < c.rows ? rows & columns : 0;
        const bf16* pixel = x + (((i64)image * c.height + h0) * c.width + w0) * c.a_stride;
        #pragma unroll
        for (int i = 0; i < LOADS; i++)
            copy16(a_tile + hopper_place<HM, HK>(row, thread % 4 + i * 4), pixel + way[i], taps_inside >> taps[i] & 1);
        #pragma unroll
        for (int i = 0; i < (BN * 8 + HTHREADS - 1) / HTHREADS; i++) {
            int r = b_row + i * B_ROWS, at = (first + step) * HK + r;
            copy16(b_tile + hopper_place<BN, HK>(r, b_vector), dy + (i64)at * c.b_stride + n0 + b_vector * 8,
                   at < c.rows && n0 + b_vector * 8 < c.outputs);
        }
    };
    float acc[BN / 2];
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) acc[i] = 0.f;
    #pragma unroll
    for (int s = 0; s < HSTAGES - 1; s++) {
        if (s < steps) load(s, s);
        commit();
    }
    int warpgroup = thread / 128, stage = 0;
    for (int step = 0; step < steps; step++) {
        wait<HSTAGES - 2>();
        publish();
        __syncthreads();
        int next = step + HSTAGES - 1;
        if (next < steps) load(next, stage == 0 ? HSTAGES - 1 : stage - 1);
        commit();
        u32 a_tile = base + stage * (A_BYTES + B_BYTES), b_tile = a_tile + A_BYTES;
        a_tile += warpgroup * HK * 128;
        warpgroup_fence();
        #pragma unroll
        for (int ks = 0; ks < HK / 16; ks++)
            warpgroup_multiply<1, 1>(acc, transposed_tile<HM>(a_tile, ks), transposed_tile<BN>(b_tile, ks));
        warpgroup_commit();
        warpgroup_wait();
        stage = stage + 1 == HSTAGES ? 0 : stage + 1;
    }
    wait<0>();
    __syncthreads();
    // Turned round in shared memory: weights are [n][(tap, c)].
    const int WIDTH = HM + 4;
    float* tile = (float*)memory;
    int lane = thread % 32, r0 = thread / 32 * 16 + lane / 4;
    #pragma unroll
    for (int j = 0; j < NT; j++) {
        int n = j * 8 + lane % 4 * 2;
        tile[n * WIDTH + r0] = acc[j * 4];
        tile[(n + 1) * WIDTH + r0] = acc[j * 4 + 1];
        tile[n * WIDTH + r0 + 8] = acc[j * 4 + 2];
        tile[(n + 1) * WIDTH + r0 + 8] = acc[j * 4 + 3];
    }
    __syncthreads();
    #pragma unroll
    for (int at = thread; at < BN * HM / 8; at += HTHREADS) {
        int n = at / (HM / 8), v = at % (HM / 8);
        if (n0 + n >= c.outputs || j0 + v * 8 >= c.depth) continue;
        float values[8];
        load8(tile + n * WIDTH + v * 8, values);
        i64 to = ((i64)group * c.outputs + n0 + n) * c.depth + j0 + v * 8;
        if (c.parts == 1) store8((bf16*)c.out + to, values);
        else store8((float*)c.out + part * c.part + to, values);
    }
}

#define HOPPER(BN)                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 2) hopper_forward_##BN(const __grid_constant__ Conv c) { hopper_convolve<BN, false>(c); } \
    extern "C" __global__ void __launch_bounds__(256, 2) hopper_backward_##BN(const __grid_constant__ Conv c) { hopper_convolve<BN, true>(c); } \
    extern "C" __global__ void __launch_bounds__(256, 2) hopper_weight_##BN(const __grid_constant__ Conv c) { hopper_weight<BN>(c); }
HOPPER(32)
HOPPER(64)
HOPPER(128)
#endif
