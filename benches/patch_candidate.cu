// A candidate for crates/graph/cpp/patch.cu, not used by the engine: `python3 benches/convolutions.py` times it.
// There, a tap reads pieces of 128 bytes that begin anywhere, which the multiplier seems to fetch in two parts; here,
// they begin at multiples of it.

#ifdef ON_HOPPER
// Convolutions of 3 x 3 taps and stride 1 that copy every pixel once. A tile is 8 x 8 pixels; the 10 x 10
// pixels around it (a patch) lie in shared memory, and a tap is the same patch read from another place,
// so that nine taps cost one copy, where hopper.cu copies the tile once for every tap.
//
// A pixel's channels are one row of a swizzled tile: 64 channels are 128 bytes, whose vectors are exchanged by
// the row's address. Eight neighbouring pixels are eight rows, wherever they begin, and the piece of the next
// image row is PITCH rows away.
//
// A block keeps its weights. Each of its warp groups goes from tile to tile on its own and copies the
// next patch while it multiplies one, so that one group multiplies while another waits or writes.

// What may be tried: rows of a patch in shared memory from one image row to the next, warp groups of a block, patches
// that each of them keeps, and BASE_OFFSET, which tells the multiplier where in its pattern a tile begins.
#ifndef PITCH
#define PITCH 10
#endif
#ifndef GROUPS
#define GROUPS 4
#endif
#ifndef KEPT
#define KEPT 2
#endif
const int SIDE = 10, CELLS = SIDE * SIDE, ROOM = 9 * PITCH + SIDE; // rows of a patch in shared memory

struct Patch {
    const bf16* a;       // forward: x; input: dy; weight: x
    const bf16* b;       // forward, input: w [K, outputs, 9, inputs]; weight: dy
    void* out;           // weight: float [parts, K, outputs, 9, inputs]
    i64 part;            // numbers in a part
    int inputs, outputs; // channels of a group
    int a_stride, b_stride, out_stride; // channels of a pixel in all groups
    int tiles;           // of 8 x 8 pixels, in all images
    int height, width, parts;
    Div image, row;      // tiles of an image and of a row of tiles
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
// The descriptor of a tile whose rows have VECTORS vectors; `along`: bytes to the next eight rows (straight: of A or of
// the columns of B; turned: along the sum), `across`: turned and wider than a row: bytes to the next columns.
template <int VECTORS> __device__ __forceinline__ u64 rows_at(u32 address, u32 along, u32 across) {
    const u64 layout = VECTORS == 8 ? 1 : VECTORS == 4 ? 2 : 3;
    u64 found = layout << 62 | (u64)(along >> 4) << 32 | (u64)(across >> 4) << 16 | (address & 0x3ffff) >> 4;
#ifdef BASE_OFFSET
    found |= (u64)(address >> 7 & 7) << 49;
#endif
    return found;
}
__device__ __forceinline__ void warpgroup_barrier(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id + 1) : "memory"); }

// The copies of one thread for patches of VECTORS vectors a pixel, by THREADS threads. Which pixels and
// vectors they are is found once.
template <int VECTORS, int THREADS> struct PatchCopies {
    static const int COUNT = (CELLS * VECTORS + THREADS - 1) / THREADS;
    int offset[COUNT];
    u32 to[COUNT]; // in a patch that begins at a multiple of 1024
    u32 edges;     // four bits a copy: it lies in the patch's first or last row or column
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
    __device__ __forceinline__ void operator()(const Patch& p, u32 patch, const bf16* a, int tile) const {
        Place at = place_of(p, tile);
        u32 outside = (at.y == 0) | (at.y + 8 == p.height) << 1 | (at.x == 0) << 2 | (at.x + 8 == p.width) << 3;
        const bf16* first = a + ((i64)(at.image * p.height + at.y - 1) * p.width + at.x - 1) * p.a_stride;
        #pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i + 1 < COUNT || last) {
                bool there = !(edges >> 4 * i & outside);
                copy16(patch + to[i], there ? first + offset[i] : a, there);
            }
    }
};
__host__ __device__ constexpr int whole(int bytes) { return (bytes + 1023) / 1024 * 1024; }

// Forward, or with INPUT the gradient of the input. CH channels are copied at a time by each of GROUPS
// warp groups; grid: (blocks that share the tiles, columns / BN, groups).
template <int CH, int BN, bool INPUT> __device__ void patch_convolve(const Patch& p) {
    typedef PatchCopies<CH / 8, 128> Copies;
    const int V = CH / 8, NV = BN / 8, PATCH = whole(ROOM * CH * 2), NT = BN / 8, THREADS = GROUPS * 128, OUT = BN + 8;
    // A tile of weights is CH deep for one tap: forward BN rows of CH, input CH rows of BN.
    const int TILE = whole(CH * BN * 2);
    extern __shared__ __align__(1024) u8 memory[];
    int thread = threadIdx.x, warpgroup = thread / 128, group = blockIdx.z, n0 = blockIdx.y * BN;
    int channels = INPUT ? p.outputs : p.inputs, columns = INPUT ? p.inputs : p.outputs, chunks = channels / CH;
    const bf16* a = p.a + group * channels;
    const bf16* w = p.b + (i64)group * p.outputs * 9 * p.inputs;
    // Shared memory: patches of each warp group, weights, results.
    u32 patches = shared_address(memory) + warpgroup * KEPT * PATCH, weights = shared_address(memory) + GROUPS * KEPT * PATCH;
    bf16* results = (bf16*)(memory + GROUPS * KEPT * PATCH + 9 * chunks * TILE) + thread / 32 * 16 * OUT;
    int first = blockIdx.x * GROUPS + warpgroup, step = gridDim.x * GROUPS;
    int stages = first < p.tiles ? ((p.tiles - first + step - 1) / step) * chunks : 0;
    Copies copies(p, thread % 128);
    int next_chunk = 0, next_tile = first, next_stage = 0;
    auto load_next = [&]() {
        if (next_stage < stages) {
            copies(p, patches + next_stage % KEPT * PATCH, a + next_chunk * CH, next_tile);
            if (++next_chunk == chunks) {
                next_chunk = 0;
                next_tile += step;
            }
            next_stage++;
        }
        commit();
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
    for (int s = 0; s < KEPT - 1; s++) load_next();
    float acc[BN / 2];
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) acc[i] = 0.f;
    for (int stage = 0, chunk = 0, tile = first; stage < stages || stage == 0; stage++) {
        wait<KEPT - 2>();
        publish();
        if (stage) warpgroup_barrier(warpgroup);
        else __syncthreads();
        if (stage >= stages) break;
        load_next(); // where the products of the stage before are done
        u32 patch = patches + stage % KEPT * PATCH;
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
        warpgroup_wait();
        if (++chunk < chunks) continue;
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
        int row = at.y + thread % 128 / 32 * 2;
        bf16* out = (bf16*)p.out + ((i64)(at.image * p.height + row) * p.width + at.x) * p.out_stride + group * columns + n0;
        #pragma unroll
        for (int i = 0; i < 16 * NT / 32; i++) {
            int r = (lane + i * 32) / NT, v = lane % NT;
            if (n0 + v * 8 < columns)
                *(Words*)(out + (r / 8 * p.width + r % 8) * p.out_stride + v * 8) = *(const Words*)(results + r * OUT + v * 8);
        }
        __syncwarp();
        chunk = 0;
        tile += step;
    }
}

// The gradient of the weights. A block has CT channels of x and BN outputs, all nine taps, and every
// `parts`-th tile; each of three warp groups has a row of taps. Grid: (inputs / CT, outputs / BN, groups * parts).
template <int CT, int BN> __device__ void patch_weight(const Patch& p) {
    const int THREADS = 384, DEEP = 4, NV = BN / 8, V = CT / 8;
    typedef PatchCopies<V, THREADS> Copies;
    const int X_BYTES = whole(ROOM * CT * 2), DY_BYTES = 64 * BN * 2, STAGE = X_BYTES + DY_BYTES;
    extern __shared__ __align__(1024) u8 memory[];
    u32 base = shared_address(memory);
    int thread = threadIdx.x, kh = thread / 128, group = blockIdx.z / p.parts, part = blockIdx.z % p.parts;
    int c0 = blockIdx.x * CT, n0 = blockIdx.y * BN;
    const bf16* x = p.a + group * p.inputs + c0;
    const bf16* dy = p.b + group * p.outputs + n0;
    int mine = (p.tiles - part + p.parts - 1) / p.parts;
    Copies copies(p, thread);
    const int DY_COUNT = (64 * NV + THREADS - 1) / THREADS;
    int offset[DY_COUNT];
    #pragma unroll
    for (int i = 0; i < DY_COUNT; i++) {
        int pixel = (thread + i * THREADS) / NV;
        offset[i] = (pixel / 8 * p.width + pixel % 8) * p.b_stride + thread % NV * 8;
    }
    auto load = [&](int step) {
        int tile = part + step * p.parts;
        u32 to = base + step % DEEP * STAGE;
        copies(p, to, x, tile);
        Place at = place_of(p, tile);
        const bf16* first = dy + ((i64)(at.image * p.height + at.y) * p.width + at.x) * p.b_stride;
        #pragma unroll
        for (int i = 0; i < DY_COUNT; i++)
            if (i + 1 < DY_COUNT || thread + i * THREADS < 64 * NV)
                copy16(to + X_BYTES + exchanged<NV>((thread + i * THREADS) * 16), first + offset[i], true);
    };
    float acc[3][BN / 2];
    #pragma unroll
    for (int kw = 0; kw < 3; kw++)
        #pragma unroll
        for (int i = 0; i < BN / 2; i++) acc[kw][i] = 0.f;
    #pragma unroll
    for (int s = 0; s < DEEP - 2; s++) {
        if (s < mine) load(s);
        commit();
    }
    for (int step = 0; step < mine; step++) {
        wait<DEEP - 3>();
        publish();
        __syncthreads();
        if (step + DEEP - 2 < mine) load(step + DEEP - 2); // where the products of two steps ago are done
        commit();
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

#define PATCH(CH, BN)                                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128) patch_forward_##CH##_##BN(const __grid_constant__ Patch p) { patch_convolve<CH, BN, false>(p); } \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128) patch_backward_##CH##_##BN(const __grid_constant__ Patch p) { patch_convolve<CH, BN, true>(p); }
PATCH(16, 32)
PATCH(32, 32)
PATCH(64, 64)
PATCH(64, 32)
#define PATCH_WEIGHT(CT, BN, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(384, BLOCKS) patch_weight_##CT##_##BN(const __grid_constant__ Patch p) { patch_weight<CT, BN>(p); }
PATCH_WEIGHT(32, 32, 2)
PATCH_WEIGHT(32, 64, 1)
PATCH_WEIGHT(64, 64, 1)
#endif
