
#ifdef ON_HOPPER
// Convolutions of 3 x 3 taps and stride 1 that copy a pixel once for all taps. A tile is 8 x 8 pixels; the 10 x 10
// pixels around it (a patch) lie in shared memory, and a tap is the same patch read from another place, so that nine
// taps cost one copy, where hopper.cu copies the tile once for every tap.
//
// One instruction copies a whole box of a tensor, with zeros for what lies outside the image. A pixel's channels
// become one row of shared memory, whose vectors are swizzled by their address: eight neighbouring pixels are eight
// rows, wherever they begin, and the eight of the next image row are SIDE rows away.
//
// ptxas reports (C7515, C7518) where it has to wait for each product before it goes on to the next, which halves the
// speed; it reports none of these kernels.

struct __align__(64) Map { u64 words[16]; }; // what a copy has to know about a tensor: a CUtensorMap

struct Patch {
    Map a;               // forward, weight: x; input: dy: [images, height, width, K * channels]
    Map b;               // forward, input: w [K * outputs, 9, inputs]; weight: dy
    Map out;             // forward: y; input: dx
    Map add;             // forward, if `added`: what is added to y
    float* partial;      // forward: sums of y and of its squares, [views, parts, 2, K * outputs]; null: none
    void* sums;          // weight: float [parts, K, outputs, 9, inputs], or bf16 where there is one part
    i64 part;            // numbers in a part
    int inputs, outputs; // channels of a group
    int tiles, parts;
    int added;           // whether `add` is there
    int view_tiles;      // tiles of a view
    Div image, row;      // tiles of an image and of a row of tiles
};

const int SIDE = 10, CELLS = SIDE * SIDE;
const int PATCH_GROUPS = 3, PATCH_STAGES = 3;  // warp groups of a block with few channels, and patches that each of them has
const int WIDE_GROUPS = 2, WIDE_STAGES = 3;  // the same with many channels, and stages of weights
const int WEIGHT_STAGES = 5, SMALL_STAGES = 4; // of gradients of weights
const int COLUMN = 6 * 4 * 4; // pixels of a patch of small images for one column of taps

__device__ __forceinline__ Place place_of(const Patch& p, int tile) {
    int image = quotient(p.image, tile), inside = tile - image * p.image.divisor, down = quotient(p.row, inside);
    return {image, down * 8, (int)(inside - down * p.row.divisor) * 8};
}

__device__ __forceinline__ void barrier_init(u32 at, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals)); }
__device__ __forceinline__ void barrier_expect(u32 at, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory"); }
__device__ __forceinline__ void barrier_arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
__device__ __forceinline__ void barrier_wait(u32 at, int parity) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra out;\nbra again;\nout:\n}" ::"r"(at), "r"(parity) : "memory");
}
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void load_box(u32 to, const Map& map, u32 barrier, int c, int x, int y, int n) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(c), "r"(x), "r"(y), "r"(n) : "memory");
}
__device__ __forceinline__ void load_box(u32 to, const Map& map, u32 barrier, int c, int tap, int n) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(c), "r"(tap), "r"(n) : "memory");
}
__device__ __forceinline__ void store_box(u32 from, const Map& map, int c, int x, int y, int n) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"(&map), "r"(from), "r"(c), "r"(x), "r"(y), "r"(n) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
}
__device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_barrier(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id + 1) : "memory"); }

// Where a place lies in rows of VECTORS vectors, 2, 4 or 8 of 16 bytes: the hardware's swizzle exchanges bits of the address.
template <int VECTORS> __device__ __forceinline__ u32 swizzled_at(u32 offset) {
    return offset ^ (VECTORS == 8 ? (offset >> 3 & 0x70) : VECTORS == 4 ? (offset >> 3 & 0x30) : (offset >> 3 & 0x10));
}
// The descriptor of a tile with such rows; `along`: bytes to the next eight rows.
template <int VECTORS> __device__ __forceinline__ u64 rows_at(u32 address, u32 along, u32 across) {
    const u64 layout = VECTORS == 8 ? 1 : VECTORS == 4 ? 2 : 3;
    return layout << 62 | (u64)(along >> 4) << 32 | (u64)(across >> 4) << 16 | (address & 0x3ffff) >> 4;
}
__host__ __device__ constexpr int whole(int bytes) { return (bytes + 1023) / 1024 * 1024; }

template <int TA, int TB> __device__ __forceinline__ void warpgroup_multiply(float (&d)[8], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, %10, %11;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}

// 64 rows of results, bfloat16, in blocks of 64 columns (or fewer), swizzled as the output's map expects.
template <int BN> __device__ __forceinline__ void put_results(u32 results, const float (&acc)[BN / 2]) {
    const int WIDE = BN < 64 ? BN : 64;
    int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    #pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        u32 block = results + j / (WIDE / 8) * (64 * WIDE * 2);
        u32 at = row * WIDE * 2 + j % (WIDE / 8) * 16 + lane % 4 * 4, below = at + 8 * WIDE * 2;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(block + swizzled_at<WIDE / 8>(at)), "r"(pack(acc[j * 4], acc[j * 4 + 1])) : "memory");
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(block + swizzled_at<WIDE / 8>(below)), "r"(pack(acc[j * 4 + 2], acc[j * 4 + 3])) : "memory");
    }
}

// Adds what lies there, in the same order, to the results.
template <int BN> __device__ __forceinline__ void add_results(u32 from, float (&acc)[BN / 2]) {
    const int WIDE = BN < 64 ? BN : 64;
    int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    #pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        u32 block = from + j / (WIDE / 8) * (64 * WIDE * 2), at = row * WIDE * 2 + j % (WIDE / 8) * 16 + lane % 4 * 4;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 both;
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(both) : "r"(block + swizzled_at<WIDE / 8>(at + half * 8 * WIDE * 2)) : "memory");
            acc[j * 4 + half * 2] += low(both);
            acc[j * 4 + half * 2 + 1] += high(both);
        }
    }
}

// Two sums of the i-th column of a thread's results over the rows of its warp, to `scratch`: 4 x 2 x BN numbers of the warp group.
template <int BN> __device__ __forceinline__ void store_column(int i, float a, float b, float* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, column = i / 2 * 8 + lane * 2 + i % 2;
    #pragma unroll
    for (int d = 4; d < 32; d *= 2) {
        a += __shfl_xor_sync(~0u, a, d);
        b += __shfl_xor_sync(~0u, b, d);
    }
    if (lane < 4) {
        scratch[warp * 2 * BN + column] = a;
        scratch[(warp * 2 + 1) * BN + column] = b;
    }
}
// The sums of the four warps, the second ones `stride` numbers after the first.
template <int BN> __device__ __forceinline__ void store_warps(float* to, i64 stride, const float* scratch, int warpgroup) {
    warpgroup_barrier(warpgroup);
    for (int at = threadIdx.x % 128; at < 2 * BN; at += 128)
        to[at / BN * stride + at % BN] = scratch[at] + scratch[2 * BN + at] + scratch[4 * BN + at] + scratch[6 * BN + at];
    warpgroup_barrier(warpgroup);
}

// Up to 64 channels, from CH to BN of them: a block keeps all weights of a group, and each of its warp groups goes from
// tile to tile on its own. Grid: (blocks that share the tiles, 1, groups).
template <int CH, int BN, bool INPUT> __device__ void patch_convolve(const Patch& p) {
    const int V = CH / 8, NV = BN / 8, PATCH = whole(CELLS * CH * 2), TAP = whole(CH * BN * 2), RESULTS = whole(64 * BN * 2);
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[PATCH_GROUPS * (PATCH_STAGES + 1) + 1];
    __shared__ float scratches[INPUT ? 1 : PATCH_GROUPS * 8 * BN];
    int thread = threadIdx.x, warpgroup = thread / 128, group = blockIdx.z;
    // Patches of every warp group, weights, results of every warp group.
    u32 base = shared_address(memory), patches = base + warpgroup * PATCH_STAGES * PATCH, weights = base + PATCH_GROUPS * PATCH_STAGES * PATCH;
    u32 results = weights + 9 * TAP + warpgroup * RESULTS;
    u32 full = shared_address(barriers) + warpgroup * PATCH_STAGES * 8, weights_full = shared_address(barriers) + PATCH_GROUPS * PATCH_STAGES * 8;
    int first = blockIdx.x * PATCH_GROUPS + warpgroup, step = gridDim.x * PATCH_GROUPS;
    int count = first < p.tiles ? (p.tiles - first + step - 1) / step : 0;
    u32 add_full = weights_full + (1 + warpgroup) * 8;
    bool elected = thread % 128 == 0, added = !INPUT && p.added, summed = !INPUT && p.partial;
    if (thread == 0) {
        for (int i = 0; i <= PATCH_GROUPS * (PATCH_STAGES + 1); i++) barrier_init(shared_address(barriers) + i * 8, 1);
        barriers_ready();
        barrier_expect(weights_full, 9 * CH * BN * 2);
        for (int tap = 0; tap < 9; tap++) load_box(weights + tap * TAP, p.b, weights_full, 0, tap, group * p.outputs);
    }
    __syncthreads();
    auto load = [&](int i) {
        if (i >= count) return;
        Place at = place_of(p, first + i * step);
        u32 barrier = full + i % PATCH_STAGES * 8;
        barrier_expect(barrier, CELLS * CH * 2);
        load_box(patches + i % PATCH_STAGES * PATCH, p.a, barrier, group * CH, at.x - 1, at.y - 1, at.image);
    };
    if (elected)
        for (int i = 0; i < PATCH_STAGES; i++) load(i);
    barrier_wait(weights_full, 0);
    float sums[BN / 4] = {}, squares[BN / 4] = {}; // of the columns of this thread's results
    int view = 0, columns = gridDim.z * BN;
    auto store_sums = [&] { // once for every view: tiles come in the order of the views
        float* scratch = scratches + warpgroup * 8 * BN;
        #pragma unroll
        for (int j = 0; j < BN / 4; j++) {
            store_column<BN>(j, sums[j], squares[j], scratch);
            sums[j] = squares[j] = 0.f;
        }
        store_warps<BN>(p.partial + ((i64)view++ * step + first) * 2 * columns + group * BN, columns, scratch, warpgroup);
    };
    for (int i = 0; i < count; i++) {
        float acc[BN / 2];
        #pragma unroll
        for (int j = 0; j < BN / 2; j++) acc[j] = 0.f;
        barrier_wait(full + i % PATCH_STAGES * 8, i / PATCH_STAGES & 1);
        u32 patch = patches + i % PATCH_STAGES * PATCH;
        warpgroup_fence();
        #pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            int there = INPUT ? 8 - tap : tap;
            u32 rows = patch + (there / 3 * SIDE + there % 3) * CH * 2, w = weights + tap * TAP;
            #pragma unroll
            for (int ks = 0; ks < CH / 16; ks++)
                warpgroup_multiply<0, INPUT>(acc, rows_at<V>(rows + ks * 32, SIDE * CH * 2, 16),
                                             INPUT ? rows_at<NV>(w + ks * 16 * BN * 2, 8 * BN * 2, 0) : rows_at<V>(w + ks * 32, 8 * CH * 2, 16));
        }
        warpgroup_commit();
        Place at = place_of(p, first + i * step);
        if (elected) {
            stores_read(); // of the tile before
            if (added) {
                barrier_expect(add_full, 64 * BN * 2);
                load_box(results, p.add, add_full, group * BN, at.x, at.y, at.image);
            }
        }
        warpgroup_wait();
        warpgroup_barrier(warpgroup);
        if (elected) load(i + PATCH_STAGES);
        if (added) {
            barrier_wait(add_full, i & 1);
            add_results<BN>(results, acc);
        }
        if (summed) {
            while (first + i * step >= (view + 1) * p.view_tiles) store_sums();
            #pragma unroll
            for (int j = 0; j < BN / 4; j++) {
                float above = acc[j / 2 * 4 + j % 2], below = acc[j / 2 * 4 + j % 2 + 2];
                sums[j] += above + below;
                squares[j] += above * above + below * below;
            }
        }
        put_results<BN>(results, acc);
        publish();
        warpgroup_barrier(warpgroup);
        if (elected) store_box(results, p.out, group * BN, at.x, at.y, at.image);
    }
    if (summed)
        while (view * p.view_tiles < p.tiles) store_sums();
    if (elected) stores_read();
}

// 128 channels or more: a warp group has the patch of its tile, 64 channels at a time; the weights of a tap come in
// stages. Two warp groups multiply, a warp beside them loads. Grid: (tiles / 2, columns / BN, groups).
//
// SMALL images are 4 x 4 pixels, and four of them are a tile: rows are (y, x, image), so that a tap above or below
// is the same patch read from 16 rows away; one to the left or right has a patch of its own.
template <int BN, bool INPUT, bool SMALL> __device__ void patch_convolve_wide(const Patch& p) {
    const int PATCH_BYTES = (SMALL ? 3 * COLUMN : CELLS) * 128, PATCH = whole(PATCH_BYTES), B_BYTES = BN * 128;
    const int ALONG = SMALL ? 8 * 128 : SIDE * 128; // bytes to the next eight pixels
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * WIDE_STAGES + 4 + WIDE_GROUPS];
    __shared__ float scratches[INPUT || SMALL ? 1 : WIDE_GROUPS * 8 * BN];
    int thread = threadIdx.x, warp = thread / 32, group = blockIdx.z, n0 = blockIdx.y * BN;
    int channels = INPUT ? p.outputs : p.inputs, columns = INPUT ? p.inputs : p.outputs, chunks = channels / 64, steps = chunks * 9;
    u32 base = shared_address(memory), weights = base + WIDE_GROUPS * 2 * PATCH;
    u32 full = shared_address(barriers), empty = full + WIDE_STAGES * 8, patch_full = empty + WIDE_STAGES * 8, patch_empty = patch_full + 16, add_full = patch_empty + 16;
    if (thread == 0) {
        for (int i = 0; i < WIDE_STAGES; i++) {
            barrier_init(full + i * 8, 1);
            barrier_init(empty + i * 8, WIDE_GROUPS * 4);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(patch_full + i * 8, 1);
            barrier_init(patch_empty + i * 8, WIDE_GROUPS * 4);
        }
        for (int g = 0; g < WIDE_GROUPS; g++) barrier_init(add_full + g * 8, 1);
        barriers_ready();
    }
    __syncthreads();
    if (warp == WIDE_GROUPS * 4) {
        if (thread % 32) return;
        auto load_patches = [&](int chunk) {
            u32 barrier = patch_full + (chunk & 1) * 8;
            if (chunk >= 2) barrier_wait(patch_empty + (chunk & 1) * 8, (chunk / 2 - 1) & 1);
            barrier_expect(barrier, WIDE_GROUPS * PATCH_BYTES);
            for (int g = 0; g < WIDE_GROUPS; g++) {
                int tile = blockIdx.x * WIDE_GROUPS + g, channel = group * channels + chunk * 64;
                u32 to = base + (g * 2 + (chunk & 1)) * PATCH;
                Place at = place_of(p, tile);
                if (!SMALL) load_box(to, p.a, barrier, channel, at.x - 1, at.y - 1, at.image);
                for (int kw = 0; SMALL && kw < 3; kw++) load_box(to + kw * COLUMN * 128, p.a, barrier, channel, tile * 4, kw - 1, -1);
            }
        };
        load_patches(0);
        for (int step = 0, chunk = 0, tap = 0; step < steps; step++) {
            int stage = step % WIDE_STAGES;
            if (step >= WIDE_STAGES) barrier_wait(empty + stage * 8, (step / WIDE_STAGES - 1) & 1);
            u32 to = weights + stage * B_BYTES, barrier = full + stage * 8;
            barrier_expect(barrier, B_BYTES);
            if (INPUT) {
                for (int i = 0; i < BN / 64; i++) load_box(to + i * 8192, p.b, barrier, n0 + i * 64, tap, group * p.outputs + chunk * 64);
            } else {
                load_box(to, p.b, barrier, chunk * 64, tap, group * p.outputs + n0);
            }
            if (tap == 3 && chunk + 1 < chunks) load_patches(chunk + 1);
            if (++tap == 9) {
                tap = 0;
                chunk++;
            }
        }
        return;
    }
    int warpgroup = thread / 128;
    bool leader = thread % 32 == 0;
    u32 patches = base + warpgroup * 2 * PATCH;
    float acc[BN / 2];
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) acc[i] = 0.f;
    for (int step = 0, chunk = 0, tap = 0, stage = 0, phase = 0; step < steps; step++) {
        if (tap == 0) barrier_wait(patch_full + (chunk & 1) * 8, chunk / 2 & 1);
        barrier_wait(full + stage * 8, phase);
        int there = INPUT ? 8 - tap : tap;
        u32 rows = patches + (chunk & 1) * PATCH + (SMALL ? (there / 3 * 16 + there % 3 * COLUMN) * 128 : (there / 3 * SIDE + there % 3) * 128);
        u32 b = weights + stage * B_BYTES;
        warpgroup_fence();
        #pragma unroll
        for (int ks = 0; ks < 4; ks++)
            warpgroup_multiply<0, INPUT>(acc, rows_at<8>(rows + ks * 32, ALONG, 16), INPUT ? transposed_tile<BN>(b, ks) : straight_tile(b, ks));
        warpgroup_commit();
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); // the step before is done
        if (leader && step) {
            barrier_arrive(empty + (stage ? stage - 1 : WIDE_STAGES - 1) * 8);
            if (tap == 0) barrier_arrive(patch_empty + (~chunk & 1) * 8);
        }
        if (++tap == 9) {
            tap = 0;
            chunk++;
        }
        if (++stage == WIDE_STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    warpgroup_wait();
    warpgroup_barrier(warpgroup);
    int tile = blockIdx.x * WIDE_GROUPS + warpgroup;
    Place at = place_of(p, tile);
    if (!INPUT && p.added) {
        u32 barrier = add_full + warpgroup * 8;
        if (thread % 128 == 0) {
            barrier_expect(barrier, 64 * BN * 2);
            for (int i = 0; i < BN / 64; i++) {
                int column = group * columns + n0 + i * 64;
                if (SMALL) load_box(patches + i * 8192, p.add, barrier, column, tile * 4, 0, 0);
                else load_box(patches + i * 8192, p.add, barrier, column, at.x, at.y, at.image);
            }
        }
        barrier_wait(barrier, 0);
        add_results<BN>(patches, acc);
    }
    if (!INPUT && !SMALL && p.partial && tile < p.tiles) { // a slot per tile
        float* scratch = scratches + warpgroup * 8 * BN;
        #pragma unroll
        for (int j = 0; j < BN / 4; j++) {
            float above = acc[j / 2 * 4 + j % 2], below = acc[j / 2 * 4 + j % 2 + 2];
            store_column<BN>(j, above + below, above * above + below * below, scratch);
        }
        i64 all = (i64)gridDim.z * columns;
        store_warps<BN>(p.partial + tile * 2 * all + group * columns + n0, all, scratch, warpgroup);
    }
    put_results<BN>(patches, acc);
    publish();
    warpgroup_barrier(warpgroup);
    if (thread % 128 == 0) {
        for (int i = 0; i < BN / 64; i++) {
            int column = group * columns + n0 + i * 64;
            if (SMALL) store_box(patches + i * 8192, p.out, column, tile * 4, 0, 0);
            else store_box(patches + i * 8192, p.out, column, at.x, at.y, at.image);
        }
        stores_read();
    }
}

// The gradient of the weights. A block has CT channels of x and BN outputs, all nine taps, and every
// `parts`-th tile; each of three warp groups has a row of taps. Grid: (inputs / CT, outputs / BN, groups * parts).
template <int CT, int BN, bool SMALL> __device__ void patch_weight(const Patch& p) {
    const int NV = BN / 8, V = CT / 8, PIXEL = CT * 2, PATCH_BYTES = (SMALL ? 3 * COLUMN : CELLS) * PIXEL;
    const int X_BYTES = whole(PATCH_BYTES), STAGE = X_BYTES + whole(64 * BN * 2), STAGES = SMALL ? SMALL_STAGES : WEIGHT_STAGES;
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[STAGES];
    u32 base = shared_address(memory), full = shared_address(barriers);
    int thread = threadIdx.x, kh = thread / 128, group = blockIdx.z / p.parts, part = blockIdx.z % p.parts;
    int c0 = blockIdx.x * CT, n0 = blockIdx.y * BN;
    int mine = (p.tiles - part + p.parts - 1) / p.parts;
    auto load = [&](int step) {
        if (step >= mine) return;
        int tile = part + step * p.parts, channel = group * p.inputs + c0, output = group * p.outputs + n0;
        Place at = place_of(p, tile);
        u32 to = base + step % STAGES * STAGE, barrier = full + step % STAGES * 8;
        barrier_expect(barrier, PATCH_BYTES + 64 * BN * 2);
        if (SMALL) {
            for (int kw = 0; kw < 3; kw++) load_box(to + kw * COLUMN * PIXEL, p.a, barrier, channel, tile * 4, kw - 1, -1);
            load_box(to + X_BYTES, p.b, barrier, output, tile * 4, 0, 0);
        } else {
            load_box(to, p.a, barrier, channel, at.x - 1, at.y - 1, at.image);
            load_box(to + X_BYTES, p.b, barrier, output, at.x, at.y, at.image);
        }
    };
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + i * 8, 1);
        barriers_ready();
        for (int i = 0; i < STAGES - 2; i++) load(i);
    }
    float acc[3][BN / 2];
    #pragma unroll
    for (int kw = 0; kw < 3; kw++)
        #pragma unroll
        for (int i = 0; i < BN / 2; i++) acc[kw][i] = 0.f;
    int step = 0;
    do {
        __syncthreads();
        if (thread == 0) load(step + STAGES - 2); // where the products of two steps ago are done
        barrier_wait(full + step % STAGES * 8, step / STAGES & 1);
        u32 patch = base + step % STAGES * STAGE, gradient = patch + X_BYTES;
        warpgroup_fence();
        #pragma unroll
        for (int ks = 0; ks < 4; ks++)
            #pragma unroll
            for (int kw = 0; kw < 3; kw++) {
                // Of 32 channels the second half of the rows is read again, and thrown away below.
                u32 rows = patch + (SMALL ? kw * COLUMN + (ks + kh) * 16 : (ks * 2 + kh) * SIDE + kw) * PIXEL;
                warpgroup_multiply<1, 1>(acc[kw], rows_at<V>(rows, (SMALL ? 8 : SIDE) * PIXEL, 0), rows_at<NV>(gradient + ks * 16 * BN * 2, 8 * BN * 2, 0));
            }
        warpgroup_commit();
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); // the step before is done
    } while (++step < mine);
    warpgroup_wait();
    i64 before = part * p.part + (i64)group * p.outputs * 9 * p.inputs;
    int lane = thread % 32, r0 = thread % 128 / 32 * 16 + lane / 4;
    #pragma unroll
    for (int kw = 0; kw < 3; kw++)
        #pragma unroll
        for (int j = 0; j < BN / 8; j++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = r0 + i / 2 * 8, n = n0 + j * 8 + lane % 4 * 2 + i % 2;
                i64 to = before + ((i64)n * 9 + kh * 3 + kw) * p.inputs + c0 + c;
                if (c >= CT) continue;
                if (p.parts == 1) put((bf16*)p.sums + to, acc[kw][j * 4 + i]);
                else put((float*)p.sums + to, acc[kw][j * 4 + i]);
            }
}

#define PATCH_KERNEL(THREADS, BLOCKS, NAME, BODY) \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ Patch p) { BODY(p); }
#define PATCH(CH, BN)                                                                                         \
    PATCH_KERNEL(PATCH_GROUPS * 128, 1, patch_forward_##CH##_##BN, (patch_convolve<CH, BN, false>))           \
    PATCH_KERNEL(PATCH_GROUPS * 128, 1, patch_backward_##CH##_##BN, (patch_convolve<CH, BN, true>))
PATCH(16, 16)
PATCH(16, 32)
PATCH(32, 16)
PATCH(32, 32)
PATCH(64, 64)
#define PATCH_WIDE(BN)                                                                                        \
    PATCH_KERNEL(WIDE_GROUPS * 128 + 32, 2, patch_forward_wide_##BN, (patch_convolve_wide<BN, false, false>)) \
    PATCH_KERNEL(WIDE_GROUPS * 128 + 32, 2, patch_backward_wide_##BN, (patch_convolve_wide<BN, true, false>)) \
    PATCH_KERNEL(WIDE_GROUPS * 128 + 32, 1, patch_forward_small_##BN, (patch_convolve_wide<BN, false, true>)) \
    PATCH_KERNEL(WIDE_GROUPS * 128 + 32, 1, patch_backward_small_##BN, (patch_convolve_wide<BN, true, true>))
PATCH_WIDE(64)
PATCH_WIDE(128)
#define PATCH_WEIGHT(CT, BN) PATCH_KERNEL(384, 1, patch_weight_##CT##_##BN, (patch_weight<CT, BN, false>))
PATCH_WEIGHT(16, 16)
PATCH_WEIGHT(16, 32)
PATCH_WEIGHT(32, 32)
PATCH_WEIGHT(32, 64)
PATCH_WEIGHT(64, 64)
PATCH_KERNEL(384, 1, patch_weight_small, (patch_weight<64, 64, true>))
#endif
