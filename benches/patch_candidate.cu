// A candidate for crates/graph/cpp/patch.cu, being tried and not used by the engine: `python3 benches/convolutions.py`
// times it.
// There, a tap reads pieces of 128 bytes that begin anywhere, which the multiplier seems to fetch in two parts; here,
// they begin at multiples of it. And batch norm has no passes of its own: it is applied to what a convolution has
// copied, and its sums are taken where a convolution writes.

#ifdef ON_HOPPER
// Convolutions of 3 x 3 taps and stride 1 that copy every pixel once. A tile is 8 x 8 pixels; the 10 x 10
// pixels around it (a patch) lie in shared memory, and a tap is the same patch read from another place,
// so that nine taps cost one copy, where hopper.cu copies the tile once for every tap.
//
// A pixel's channels are one row of a swizzled tile: 64 channels are 128 bytes, whose vectors are exchanged by
// the row's address. Eight neighbouring pixels are eight rows, wherever they begin, and the piece of the next
// image row is PITCH rows away.
//
// A block keeps its weights. Each of its warp groups goes from tile to tile on its own. While it multiplies one
// patch, it changes the next, which has been copied, in place: every thread changes what it copied itself.

// What may be tried: rows of a patch in shared memory from one image row to the next, warp groups of a block, patches
// that each of them keeps, and BASE_OFFSET, which tells the multiplier where in its pattern a tile begins.
#ifndef PITCH
#define PITCH 10
#endif
#ifndef GROUPS
#define GROUPS 2
#endif
#ifndef KEPT
#define KEPT 3
#endif
const int SIDE = 10, CELLS = SIDE * SIDE, ROOM = 9 * PITCH + SIDE; // rows of a patch in shared memory

struct Patch {
    const bf16* a;       // forward, weight: x; input: dy
    const bf16* b;       // forward, input: w [K, outputs, 9, inputs]; weight: dy
    void* out;           // forward: y; input: dx; weight: float [parts, K, outputs, 9, inputs]
    i64 part;            // numbers in a part
    int inputs, outputs; // channels of a group
    int a_stride, b_stride, out_stride; // channels of a pixel in all groups
    int tiles;           // of 8 x 8 pixels, in all images
    int height, width, parts;
    Div image, row;      // tiles of an image and of a row of tiles
    int images;          // of a view
    // Forward and weight, normalised: x stands for relu(x scale + shift), [views, K * inputs] each.
    const float *scale, *shift;
    // Input and weight, combined: dy stands for factor[0] dy + factor[1] other + factor[2], [views, K * outputs] each.
    const bf16* other;
    const float* factor[3];
    // Results: added to them, or null; and where sums over them go, or null: [views, slots, 2, columns].
    const bf16* add;
    float* partial;
    // Input: a result counts where gate gate_scale + gate_shift > 0, and the second sum is that of results times (gate -
    // gate_mean); [views, K * inputs] each. Forward: the second sum is that of squares.
    const bf16* gate;
    const float *gate_scale, *gate_shift, *gate_mean;
};

struct Place { int image, y, x; };
__device__ __forceinline__ Place place_of(const Patch& p, int tile) {
    int image = quotient(p.image, tile), inside = tile - image * p.image.divisor, down = quotient(p.row, inside);
    return {image, down * 8, (int)(inside - down * p.row.divisor) * 8};
}

// Rows of VECTORS vectors: 2, 4 or 8 of 16 bytes. The hardware's swizzle exchanges bits of the address.
template <int VECTORS> __device__ __forceinline__ u32 exchanged(u32 offset) {
    return offset ^ (VECTORS == 8 ? (offset >> 3 & 0x70) : VECTORS == 4 ? (offset >> 3 & 0x30) : (offset >> 3 & 0x10));
}
// The descriptor of a tile whose rows have VECTORS vectors; `along`: bytes to the next eight rows.
template <int VECTORS> __device__ __forceinline__ u64 rows_at(u32 address, u32 along, u32 across) {
    const u64 layout = VECTORS == 8 ? 1 : VECTORS == 4 ? 2 : 3;
    u64 found = layout << 62 | (u64)(along >> 4) << 32 | (u64)(across >> 4) << 16 | (address & 0x3ffff) >> 4;
#ifdef BASE_OFFSET
    found |= (u64)(address >> 7 & 7) << 49;
#endif
    return found;
}
__device__ __forceinline__ void warpgroup_barrier(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id + 1) : "memory"); }
__device__ __forceinline__ Words read_shared(u32 from) {
    Words x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3]) : "r"(from));
    return x;
}
__device__ __forceinline__ void write_shared(u32 to, const Words& x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.w[0]), "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3]) : "memory");
}

// Eight channels that stand for relu(x scale + shift), in place.
__device__ __forceinline__ void normalise(u32 at, const float scale[8], const float shift[8]) {
    Words x = read_shared(at);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = max(low(x.w[i]) * scale[2 * i] + shift[2 * i], 0.f), b = max(high(x.w[i]) * scale[2 * i + 1] + shift[2 * i + 1], 0.f);
        x.w[i] = pack(a, b);
    }
    write_shared(at, x);
}
// Eight channels that stand for f0 g + f1 z + f2, where z lies at `other`.
__device__ __forceinline__ void combine(u32 at, u32 other, const float f0[8], const float f1[8], const float f2[8]) {
    Words g = read_shared(at), z = read_shared(other);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = f0[2 * i] * low(g.w[i]) + (f1[2 * i] * low(z.w[i]) + f2[2 * i]);
        float b = f0[2 * i + 1] * high(g.w[i]) + (f1[2 * i + 1] * high(z.w[i]) + f2[2 * i + 1]);
        g.w[i] = pack(a, b);
    }
    write_shared(at, g);
}

// The copies of one thread for patches of VECTORS vectors per pixel, by THREADS threads. Which pixels and
// vectors they are is found once.
template <int VECTORS, int THREADS> struct PatchCopies {
    static const int COUNT = (CELLS * VECTORS + THREADS - 1) / THREADS;
    int offset[COUNT];
    u32 to[COUNT]; // in a patch that begins at a multiple of 1024
    u32 edges;     // four bits per copy: it lies in the patch's first or last row or column
    bool last;
    __device__ __forceinline__ PatchCopies(const Patch& p, int thread) {
        edges = 0;
        last = thread + (COUNT - 1) * THREADS < CELLS * VECTORS;
        #pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int cell = (thread + i * THREADS) / VECTORS, row = cell / SIDE, column = cell - row * SIDE;
            offset[i] = (row * p.width + column) * p.a_stride + thread % VECTORS * 8;
            to[i] = exchanged<VECTORS>((row * PITCH + column) * VECTORS * 16 + thread % VECTORS * 16);
            edges |= (u32)((row == 0) | (row == SIDE - 1) << 1 | (column == 0) << 2 | (column == SIDE - 1) << 3) << 4 * i;
        }
    }
    __device__ __forceinline__ u32 outside(const Patch& p, const Place& at) const {
        return (at.y == 0) | (at.y + 8 == p.height) << 1 | (at.x == 0) << 2 | (at.x + 8 == p.width) << 3;
    }
    __device__ __forceinline__ bool mine(int i) const { return i + 1 < COUNT || last; }
    __device__ __forceinline__ void copy(const Patch& p, u32 patch, const bf16* a, const Place& at) const {
        u32 out = outside(p, at);
        const bf16* first = a + ((i64)(at.image * p.height + at.y - 1) * p.width + at.x - 1) * p.a_stride;
        #pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (mine(i)) {
                bool there = !(edges >> 4 * i & out);
                copy16(patch + to[i], there ? first + offset[i] : a, there);
            }
    }
    // Pixels outside the image stay 0: the zeros stand for padding after the norm.
    __device__ __forceinline__ void normalise_all(const Patch& p, u32 patch, const Place& at, const float* scale, const float* shift) const {
        float a[8], b[8];
        load8(scale, a);
        load8(shift, b);
        u32 out = outside(p, at);
        #pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (mine(i) && !(edges >> 4 * i & out)) normalise(patch + to[i], a, b);
    }
    __device__ __forceinline__ void combine_all(const Patch& p, u32 patch, u32 other, const Place& at, i64 column) const {
        float f0[8], f1[8], f2[8];
        load8(p.factor[0] + column, f0);
        load8(p.factor[1] + column, f1);
        load8(p.factor[2] + column, f2);
        u32 out = outside(p, at);
        #pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (mine(i) && !(edges >> 4 * i & out)) combine(patch + to[i], other + to[i], f0, f1, f2);
    }
};
__host__ __device__ constexpr int whole(int bytes) { return (bytes + 1023) / 1024 * 1024; }

// Two sums over the rows of a warp group's results in a view, by column.
template <int BN> struct ColumnSums {
    static const int NT = BN / 8;
    float a[8], b[8];
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int i = 0; i < 8; i++) a[i] = b[i] = 0.f;
    }
    // Writes the first `count` columns of both sums, `stride` numbers apart, and begins anew. Threads with the same
    // `lane % NT` have the same columns. `room`: 4 x 2 x BN numbers of the warp group.
    __device__ __forceinline__ void leave(float* to, int stride, int count, float* room, int warpgroup) {
        int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
        #pragma unroll
        for (int i = 0; i < 8; i++)
            #pragma unroll
            for (int d = 16; d >= NT; d /= 2) {
                a[i] += __shfl_xor_sync(~0u, a[i], d);
                b[i] += __shfl_xor_sync(~0u, b[i], d);
            }
        if (lane < NT)
            #pragma unroll
            for (int i = 0; i < 8; i++) {
                room[(warp * 2) * BN + lane * 8 + i] = a[i];
                room[(warp * 2 + 1) * BN + lane * 8 + i] = b[i];
            }
        warpgroup_barrier(warpgroup);
        for (int at = thread; at < 2 * BN; at += 128) {
            int which = at / BN, n = at % BN;
            float total = 0.f;
            #pragma unroll
            for (int w = 0; w < 4; w++) total += room[(w * 2 + which) * BN + n];
            if (n < count) to[(i64)which * stride + n] = total;
        }
        warpgroup_barrier(warpgroup);
        clear();
    }
};

// Forward, or with INPUT the gradient of the input; CHANGED: what is copied stands for something else (normalised,
// combined). CH channels are copied at a time; grid: (blocks that share the tiles, columns / BN, groups).
template <int CH, int BN, bool INPUT, bool CHANGED> __device__ void patch_convolve(const Patch& p) {
    typedef PatchCopies<CH / 8, 128> Copies;
    const int V = CH / 8, NV = BN / 8, PATCH = whole(ROOM * CH * 2), NT = BN / 8, THREADS = GROUPS * 128, OUT = BN + 8;
    const int SLOT = PATCH * (INPUT && CHANGED ? 2 : 1); // a patch, and the one it is combined with
    const int KEEP = SLOT > 16384 ? 2 : KEPT;
    // A tile of weights is CH deep for one tap: forward BN rows of CH, input CH rows of BN.
    const int TILE = whole(CH * BN * 2);
    extern __shared__ __align__(1024) u8 memory[];
    int thread = threadIdx.x, warpgroup = thread / 128, group = blockIdx.z, n0 = blockIdx.y * BN;
    int channels = INPUT ? p.outputs : p.inputs, columns = INPUT ? p.inputs : p.outputs, chunks = channels / CH;
    int all_channels = gridDim.z * channels, all_columns = gridDim.z * columns;
    const bf16* a = p.a + group * channels;
    const bf16* w = p.b + (i64)group * p.outputs * 9 * p.inputs;
    // Shared memory: patches of each warp group, weights, results.
    u32 slots = shared_address(memory) + warpgroup * KEEP * SLOT, weights = shared_address(memory) + GROUPS * KEEP * SLOT;
    u8* after = memory + GROUPS * KEEP * SLOT + 9 * chunks * TILE;
    bf16* results = (bf16*)after + thread / 32 * 16 * OUT;
    float* room = (float*)(after + GROUPS * 64 * OUT * 2) + warpgroup * 8 * BN;
    int first = blockIdx.x * GROUPS + warpgroup, step = gridDim.x * GROUPS;
    int stages = first < p.tiles ? ((p.tiles - first + step - 1) / step) * chunks : 0;
    Copies copies(p, thread % 128);
    int next_chunk = 0, next_tile = first, next_stage = 0;
    auto load_next = [&]() {
        if (next_stage < stages) {
            u32 slot = slots + next_stage % KEEP * SLOT;
            Place at = place_of(p, next_tile);
            copies.copy(p, slot, a + next_chunk * CH, at);
            if (INPUT && CHANGED) copies.copy(p, slot + PATCH, p.other + group * channels + next_chunk * CH, at);
            if (++next_chunk == chunks) {
                next_chunk = 0;
                next_tile += step;
            }
            next_stage++;
        }
        commit();
    };
    auto change = [&](int stage, int chunk, int tile) {
        if (!CHANGED) return;
        Place at = place_of(p, tile);
        i64 column = (i64)(at.image >= p.images) * all_channels + group * channels + chunk * CH + thread % V * 8;
        u32 slot = slots + stage % KEEP * SLOT;
        if (INPUT) copies.combine_all(p, slot, slot + PATCH, at, column);
        else copies.normalise_all(p, slot, at, p.scale + column, p.shift + column);
    };
    for (int at = thread; at < 9 * chunks * CH * BN / 8; at += THREADS) {
        int tile = at / (CH * BN / 8), in = at % (CH * BN / 8), tap = tile / chunks, k0 = tile % chunks * CH;
        if (INPUT) {
            int k = in / NV, v = in % NV;
            copy16(weights + tile * TILE + exchanged<NV>(k * BN * 2 + v * 16), w + ((i64)(k0 + k) * 9 + tap) * p.inputs + n0 + v * 8, n0 + v * 8 < columns);
        } else {
            int n = in / V, v = in % V;
            copy16(weights + tile * TILE + exchanged<V>(n * CH * 2 + v * 16), w + ((i64)(n0 + n) * 9 + tap) * channels + k0 + v * 8, n0 + n < columns);
        }
    }
    #pragma unroll
    for (int s = 0; s < KEEP - 1; s++) load_next();
    float acc[BN / 2];
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) acc[i] = 0.f;
    ColumnSums<BN> sums;
    sums.clear();
    int view = 0, slot_of_sums = blockIdx.x * GROUPS + warpgroup, all_slots = gridDim.x * GROUPS;
    auto leave_sums = [&](int of_view) {
        float* to = p.partial + ((i64)of_view * all_slots + slot_of_sums) * 2 * all_columns + group * columns + n0;
        sums.leave(to, all_columns, columns - n0, room, warpgroup);
    };
    wait<KEEP - 2>();
    if (stages) change(0, 0, first);
    publish();
    __syncthreads();
    for (int stage = 0, chunk = 0, tile = first; stage < stages; stage++) {
        load_next(); // where the products of the stage before are done
        u32 patch = slots + stage % KEEP * SLOT;
        warpgroup_fence();
        #pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            int there = INPUT ? 8 - tap : tap; // the tap's place in the patch
            u32 rows = patch + (there / 3 * PITCH + there % 3) * CH * 2, tile_of_w = weights + (tap * chunks + chunk) * TILE;
            #pragma unroll
            for (int ks = 0; ks < CH / 16; ks++) {
                u64 of_a = rows_at<V>(rows + ks * 32, PITCH * CH * 2, 16);
                u64 of_b = INPUT ? rows_at<NV>(tile_of_w + ks * 16 * BN * 2, 8 * BN * 2, 0) : rows_at<V>(tile_of_w + ks * 32, 8 * CH * 2, 16);
                warpgroup_multiply<0, INPUT>(acc, of_a, of_b);
            }
        }
        warpgroup_commit();
        bool done = chunk + 1 == chunks;
        wait<KEEP - 2>(); // the next patch has come
        if (stage + 1 < stages) change(stage + 1, done ? 0 : chunk + 1, done ? tile + step : tile);
        publish();
        warpgroup_wait();
        if (!done) {
            chunk++;
            warpgroup_barrier(warpgroup);
            continue;
        }
        int lane = thread % 32, r0 = lane / 4;
        #pragma unroll
        for (int j = 0; j < NT; j++) {
            int n = j * 8 + lane % 4 * 2;
            *(u32*)(results + r0 * OUT + n) = pack(acc[j * 4], acc[j * 4 + 1]);
            *(u32*)(results + (r0 + 8) * OUT + n) = pack(acc[j * 4 + 2], acc[j * 4 + 3]);
            acc[j * 4] = acc[j * 4 + 1] = acc[j * 4 + 2] = acc[j * 4 + 3] = 0.f;
        }
        __syncwarp();
        Place at = place_of(p, tile);
        int of_view = at.image >= p.images;
        if (p.partial && of_view != view) { // tiles come in the order of the images: once at most
            leave_sums(view);
            view = of_view;
        }
        int v = lane % NT, row = at.y + thread % 128 / 32 * 2;
        i64 from = ((i64)(at.image * p.height + row) * p.width + at.x) * p.out_stride + group * columns + n0 + v * 8;
        i64 column = (i64)of_view * all_columns + group * columns + n0 + v * 8;
        if (n0 + v * 8 < columns) {
            #pragma unroll
            for (int i = 0; i < 16 * NT / 32; i++) {
                int r = (lane + i * 32) / NT;
                i64 place = from + (r / 8 * p.width + r % 8) * p.out_stride;
                float x[8], other[8];
                load8(results + r * OUT + v * 8, x);
                if (p.add) {
                    load8(p.add + place, other);
                    #pragma unroll
                    for (int c = 0; c < 8; c++) x[c] += other[c];
                }
                if (INPUT && p.gate) {
                    float scale[8], shift[8];
                    load8(p.gate + place, other);
                    load8(p.gate_scale + column, scale);
                    load8(p.gate_shift + column, shift);
                    #pragma unroll
                    for (int c = 0; c < 8; c++)
                        if (!(other[c] * scale[c] + shift[c] > 0.f)) x[c] = 0.f;
                }
                store8((bf16*)p.out + place, x);
                if (p.partial) { // of what was stored
                    float mean[8];
                    if (INPUT) load8(p.gate_mean + column, mean);
                    #pragma unroll
                    for (int c = 0; c < 8; c += 2) {
                        u32 stored = pack(x[c], x[c + 1]);
                        float lo = low(stored), hi = high(stored);
                        sums.a[c] += lo;
                        sums.a[c + 1] += hi;
                        sums.b[c] += lo * (INPUT ? other[c] - mean[c] : lo);
                        sums.b[c + 1] += hi * (INPUT ? other[c + 1] - mean[c + 1] : hi);
                    }
                }
            }
        }
        warpgroup_barrier(warpgroup);
        chunk = 0;
        tile += step;
    }
    if (p.partial) {
        leave_sums(view);
        if (view == 0 && p.images * (int)p.image.divisor < p.tiles) leave_sums(1); // nothing of the second view
    }
}

// The gradient of the weights. A block has CT channels of x and BN outputs, all nine taps, and every
// `parts`-th tile; each of three warp groups has a row of taps. Grid: (inputs / CT, outputs / BN, groups * parts).
template <int CT, int BN, bool NORMALISED, bool COMBINED> __device__ void patch_weight(const Patch& p) {
    const int THREADS = 384, DEEP = 4, NV = BN / 8, V = CT / 8;
    typedef PatchCopies<V, THREADS> Copies;
    const int X_BYTES = whole(ROOM * CT * 2), DY_BYTES = 64 * BN * 2, STAGE = X_BYTES + DY_BYTES * (COMBINED ? 2 : 1);
    extern __shared__ __align__(1024) u8 memory[];
    u32 base = shared_address(memory);
    int thread = threadIdx.x, kh = thread / 128, group = blockIdx.z / p.parts, part = blockIdx.z % p.parts;
    int c0 = blockIdx.x * CT, n0 = blockIdx.y * BN, groups = gridDim.z / p.parts;
    const bf16* x = p.a + group * p.inputs + c0;
    int mine = (p.tiles - part + p.parts - 1) / p.parts;
    Copies copies(p, thread);
    const int DY_COUNT = (64 * NV + THREADS - 1) / THREADS;
    int offset[DY_COUNT];
    #pragma unroll
    for (int i = 0; i < DY_COUNT; i++) {
        int pixel = (thread + i * THREADS) / NV;
        offset[i] = (pixel / 8 * p.width + pixel % 8) * p.b_stride + thread % NV * 8;
    }
    auto dy_place = [&](int i) { return exchanged<NV>((thread + i * THREADS) * 16); };
    auto dy_mine = [&](int i) { return i + 1 < DY_COUNT || thread + i * THREADS < 64 * NV; };
    auto load = [&](int step) {
        if (step < mine) {
            u32 to = base + step % DEEP * STAGE;
            Place at = place_of(p, part + step * p.parts);
            copies.copy(p, to, x, at);
            i64 first = ((i64)(at.image * p.height + at.y) * p.width + at.x) * p.b_stride + group * p.outputs + n0;
            #pragma unroll
            for (int i = 0; i < DY_COUNT; i++)
                if (dy_mine(i)) {
                    copy16(to + X_BYTES + dy_place(i), p.b + first + offset[i], true);
                    if (COMBINED) copy16(to + X_BYTES + DY_BYTES + dy_place(i), p.other + first + offset[i], true);
                }
        }
        commit();
    };
    auto change = [&](int step) {
        if (step >= mine || !(NORMALISED || COMBINED)) return;
        u32 to = base + step % DEEP * STAGE;
        Place at = place_of(p, part + step * p.parts);
        int view = at.image >= p.images;
        if (NORMALISED) {
            i64 column = (i64)view * groups * p.inputs + group * p.inputs + c0 + thread % V * 8;
            copies.normalise_all(p, to, at, p.scale + column, p.shift + column);
        }
        if (COMBINED) {
            i64 column = (i64)view * groups * p.outputs + group * p.outputs + n0 + thread % NV * 8;
            float f0[8], f1[8], f2[8];
            load8(p.factor[0] + column, f0);
            load8(p.factor[1] + column, f1);
            load8(p.factor[2] + column, f2);
            #pragma unroll
            for (int i = 0; i < DY_COUNT; i++)
                if (dy_mine(i)) combine(to + X_BYTES + dy_place(i), to + X_BYTES + DY_BYTES + dy_place(i), f0, f1, f2);
        }
    };
    float acc[3][BN / 2];
    #pragma unroll
    for (int kw = 0; kw < 3; kw++)
        #pragma unroll
        for (int i = 0; i < BN / 2; i++) acc[kw][i] = 0.f;
    #pragma unroll
    for (int s = 0; s < DEEP - 2; s++) load(s);
    wait<DEEP - 3>();
    change(0);
    for (int step = 0; step < mine; step++) {
        publish();
        __syncthreads();
        load(step + DEEP - 2); // where the products of two steps ago are done
        u32 patch = base + step % DEEP * STAGE, gradient = patch + X_BYTES;
        warpgroup_fence();
        #pragma unroll
        for (int ks = 0; ks < 4; ks++)
            #pragma unroll
            for (int kw = 0; kw < 3; kw++)
                // Of 32 channels the second half of the rows is read again, and thrown away below.
                warpgroup_multiply<1, 1>(acc[kw], rows_at<V>(patch + ((ks * 2 + kh) * PITCH + kw) * CT * 2, PITCH * CT * 2, 0),
                                         rows_at<NV>(gradient + ks * 16 * BN * 2, 8 * BN * 2, 0));
        warpgroup_commit();
        wait<DEEP - 3>(); // the next step has come
        change(step + 1);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    warpgroup_wait();
    float* out = (float*)p.out + part * p.part + (i64)group * p.outputs * 9 * p.inputs;
    int lane = thread % 32, r0 = thread % 128 / 32 * 16 + lane / 4;
    #pragma unroll
    for (int kw = 0; kw < 3; kw++)
        #pragma unroll
        for (int j = 0; j < BN / 8; j++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = r0 + i / 2 * 8, n = n0 + j * 8 + lane % 4 * 2 + i % 2;
                if (c < CT) out[((i64)n * 9 + kh * 3 + kw) * p.inputs + c0 + c] = acc[kw][j * 4 + i];
            }
}

#define KERNEL(THREADS, NAME, BODY) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ Patch p) { BODY(p); }
#define PATCH(CH, BN)                                                                                      \
    KERNEL(GROUPS * 128, patch_forward_##CH##_##BN, (patch_convolve<CH, BN, false, false>))                \
    KERNEL(GROUPS * 128, patch_backward_##CH##_##BN, (patch_convolve<CH, BN, true, false>))                \
    KERNEL(GROUPS * 128, patch_forward_normalised_##CH##_##BN, (patch_convolve<CH, BN, false, true>))      \
    KERNEL(GROUPS * 128, patch_backward_combined_##CH##_##BN, (patch_convolve<CH, BN, true, true>))
PATCH(16, 32)
PATCH(32, 32)
PATCH(64, 64)
#define PATCH_WEIGHT(CT, BN)                                                                               \
    KERNEL(384, patch_weight_##CT##_##BN, (patch_weight<CT, BN, false, false>))                            \
    KERNEL(384, patch_weight_normalised_##CT##_##BN, (patch_weight<CT, BN, true, false>))                  \
    KERNEL(384, patch_weight_combined_##CT##_##BN, (patch_weight<CT, BN, false, true>))                    \
    KERNEL(384, patch_weight_normalised_combined_##CT##_##BN, (patch_weight<CT, BN, true, true>))
PATCH_WEIGHT(32, 32)
PATCH_WEIGHT(32, 64)
PATCH_WEIGHT(64, 64)
#endif
