
#ifdef ON_HOPPER
// Convolutions of 3 x 3 taps and stride 1 that copy a pixel once for all taps. A tile is 8 x 8 pixels; the 10 x 10
// pixels around it (a patch) lie in shared memory, and a tap is the same patch read from another place,
// so that nine taps cost one copy, where hopper.cu copies the tile once for every tap. That works because
// a tile without swizzle is made of pieces of eight rows of 16 bytes each: a patch is planes of eight
// channels, [channels / 8][100] vectors of 16 bytes; eight neighbouring pixels are such a piece, and the
// piece of the next image row is one row of the patch away.
//
// A block keeps its weights. Each of its warp groups goes from tile to tile on its own and copies the
// next patch while it multiplies one, so that one group multiplies while another waits or writes.

const int SIDE = 10, CELLS = SIDE * SIDE;

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

// Bytes between two planes of N pixels, such that threads that write the vectors of one or a few pixels
// meet no bank twice.
__host__ __device__ constexpr int plane_of(int cells, int vectors) {
    int wanted = vectors >= 8 ? 16 : vectors == 4 ? 32 : 64; // of 128, or the same going down
    int bytes = cells * 16;
    while (bytes % 128 != wanted && bytes % 128 != 128 - wanted) bytes += 16;
    return bytes;
}

// The copies of one thread for patches of VECTORS vectors per pixel, by THREADS threads. Which pixels and
// vectors they are is found once.
template <int VECTORS, int THREADS> struct PatchCopies {
    static const int COUNT = (CELLS * VECTORS + THREADS - 1) / THREADS, PLANE = plane_of(CELLS, VECTORS);
    int offset[COUNT];
    u32 edges, place; // four bits per copy: it lies in the patch's first or last row or column
    bool last;
    __device__ __forceinline__ PatchCopies(const Patch& p, int thread) {
        edges = 0;
        place = thread % VECTORS * PLANE + thread / VECTORS * 16;
        last = thread + (COUNT - 1) * THREADS < CELLS * VECTORS;
        #pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int cell = (thread + i * THREADS) / VECTORS, row = cell / SIDE, column = cell - row * SIDE;
            offset[i] = (row * p.width + column) * p.a_stride + thread % VECTORS * 8;
            edges |= (u32)((row == 0) | (row == SIDE - 1) << 1 | (column == 0) << 2 | (column == SIDE - 1) << 3) << 4 * i;
        }
    }
    __device__ __forceinline__ void operator()(const Patch& p, u32 to, const bf16* a, int tile) const {
        Place at = place_of(p, tile);
        u32 outside = (at.y == 0) | (at.y + 8 == p.height) << 1 | (at.x == 0) << 2 | (at.x + 8 == p.width) << 3;
        const bf16* first = a + ((i64)(at.image * p.height + at.y - 1) * p.width + at.x - 1) * p.a_stride;
        #pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i + 1 < COUNT || last) {
                bool there = !(edges >> 4 * i & outside);
                copy16(to + place + i * (THREADS / VECTORS * 16), there ? first + offset[i] : a, there);
            }
    }
};

// A tile without swizzle; `along`: bytes to the next eight along the sum, `across`: to the next eight
// rows of A or columns of B.
__device__ __forceinline__ u64 bare_tile(u32 address, u32 along, u32 across) { return tile_of(address, along, across, 0); }
__device__ __forceinline__ void warpgroup_barrier(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id + 1) : "memory"); }

// Forward, or with INPUT the gradient of the input. CH channels are copied at a time by each of GROUPS
// warp groups; grid: (blocks that share the tiles, columns / BN, groups).
template <int CH, int BN, int GROUPS, bool INPUT> __device__ void patch_convolve(const Patch& p) {
    typedef PatchCopies<CH / 8, 128> Copies;
    const int PATCH = (CH / 8 * Copies::PLANE + 127) / 128 * 128, NT = BN / 8, THREADS = GROUPS * 128, OUT = BN + 8;
    extern __shared__ __align__(1024) u8 memory[];
    int thread = threadIdx.x, warpgroup = thread / 128, group = blockIdx.z, n0 = blockIdx.y * BN;
    int channels = INPUT ? p.outputs : p.inputs, columns = INPUT ? p.inputs : p.outputs, chunks = channels / CH;
    const bf16* a = p.a + group * channels;
    const bf16* w = p.b + (i64)group * p.outputs * 9 * p.inputs;
    // Shared memory: two patches for each warp group, results, weights.
    u32 patches = shared_address(memory) + warpgroup * 2 * PATCH;
    bf16* results = (bf16*)(memory + GROUPS * 2 * PATCH) + thread / 32 * 16 * OUT;
    u32 weights = shared_address(memory) + GROUPS * (2 * PATCH + 64 * OUT * 2);
    // Weights: forward [9 * channels / 8] planes of BN vectors, input [9][BN / 8] planes of `channels` vectors.
    const int W_PLANE = (BN + 1) * 16;
    int w_plane = INPUT ? (channels + 1) * 16 : W_PLANE;
    int first = blockIdx.x * GROUPS + warpgroup, step = gridDim.x * GROUPS;
    int stages = first < p.tiles ? ((p.tiles - first + step - 1) / step) * chunks : 0;
    Copies copies(p, thread % 128);
    if (stages) copies(p, patches, a, first);
    for (int third = 0; third < 3; third++) { // three taps at a time, so that the first can be used early
        if (INPUT) {
            for (int at = thread; at < 3 * channels * NT; at += THREADS) {
                int v = at % NT, k = at / NT % channels, tap = third * 3 + at / NT / channels;
                copy16(weights + (tap * NT + v) * w_plane + k * 16, w + ((i64)k * 9 + tap) * p.inputs + n0 + v * 8, n0 + v * 8 < columns);
            }
        } else {
            int wide = 3 * channels / 8;
            for (int at = thread; at < wide * BN; at += THREADS) {
                int k = third * wide + at % wide, n = at / wide;
                copy16(weights + k * W_PLANE + n * 16, w + (i64)(n0 + n) * 9 * channels + k * 8, n0 + n < columns);
            }
        }
        commit();
    }
    float acc[BN / 2];
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) acc[i] = 0.f;
    auto multiply_taps = [&](u32 patch, int k0, int from, int to) {
        warpgroup_fence();
        #pragma unroll
        for (int tap = from; tap < to; tap++) {
            int there = INPUT ? 8 - tap : tap; // the tap's place in the patch
            #pragma unroll
            for (int ks = 0; ks < CH / 16; ks++) {
                u64 of_a = bare_tile(patch + ks * 2 * Copies::PLANE + (there / 3 * SIDE + there % 3) * 16, Copies::PLANE, SIDE * 16);
                int k = k0 + ks * 16;
                u64 of_b = INPUT ? bare_tile(weights + tap * NT * w_plane + k * 16, 128, w_plane)
                                 : bare_tile(weights + (tap * channels + k) / 8 * W_PLANE, W_PLANE, 128);
                warpgroup_multiply<0, INPUT>(acc, of_a, of_b);
            }
        }
        warpgroup_commit();
    };
    wait<2>();
    publish();
    __syncthreads();
    if (stages) multiply_taps(patches, 0, 0, 3);
    wait<1>();
    publish();
    __syncthreads();
    if (stages) multiply_taps(patches, 0, 3, 6);
    wait<0>();
    publish();
    __syncthreads();
    for (int stage = 0, chunk = 0, tile = first; stage < stages; stage++) {
        u32 patch = patches + (stage & 1) * PATCH;
        if (stage) {
            wait<0>();
            publish();
            warpgroup_barrier(warpgroup);
        }
        bool done = chunk + 1 == chunks;
        if (stage + 1 < stages) copies(p, patches + (~stage & 1) * PATCH, a + (done ? 0 : chunk + 1) * CH, done ? tile + step : tile);
        commit();
        if (stage) multiply_taps(patch, chunk * CH, 0, 9);
        else multiply_taps(patch, 0, 6, 9);
        warpgroup_wait();
        if (!done) {
            chunk++;
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
    const int THREADS = 384, DEEP = 4, NT = BN / 8;
    typedef PatchCopies<CT / 8, THREADS> Copies;
    const int X_BYTES = (CT / 8 * Copies::PLANE + 127) / 128 * 128, DY_PLANE = plane_of(64, NT), STAGE = X_BYTES + (NT * DY_PLANE + 127) / 128 * 128;
    extern __shared__ __align__(1024) u8 memory[];
    u32 base = shared_address(memory);
    int thread = threadIdx.x, kh = thread / 128, group = blockIdx.z / p.parts, part = blockIdx.z % p.parts;
    int c0 = blockIdx.x * CT, n0 = blockIdx.y * BN;
    const bf16* x = p.a + group * p.inputs + c0;
    const bf16* dy = p.b + group * p.outputs + n0;
    int mine = (p.tiles - part + p.parts - 1) / p.parts;
    Copies copies(p, thread);
    const int DY_COUNT = (64 * NT + THREADS - 1) / THREADS;
    int offset[DY_COUNT];
    #pragma unroll
    for (int i = 0; i < DY_COUNT; i++) {
        int pixel = (thread + i * THREADS) / NT;
        offset[i] = (pixel / 8 * p.width + pixel % 8) * p.b_stride + thread % NT * 8;
    }
    auto load = [&](int step) {
        int tile = part + step * p.parts;
        u32 to = base + step % DEEP * STAGE;
        copies(p, to, x, tile);
        Place at = place_of(p, tile);
        const bf16* first = dy + ((i64)(at.image * p.height + at.y) * p.width + at.x) * p.b_stride;
        #pragma unroll
        for (int i = 0; i < DY_COUNT; i++)
            if (i + 1 < DY_COUNT || thread + i * THREADS < 64 * NT)
                copy16(to + X_BYTES + thread % NT * DY_PLANE + (thread / NT + i * (THREADS / NT)) * 16, first + offset[i], true);
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
                warpgroup_multiply<1, 1>(acc[kw], bare_tile(patch + ((ks * 2 + kh) * SIDE + kw) * 16, SIDE * 16, Copies::PLANE),
                                         bare_tile(gradient + ks * 256, 128, DY_PLANE));
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
    extern "C" __global__ void __launch_bounds__(512) patch_forward_##CH##_##BN(const __grid_constant__ Patch p) { patch_convolve<CH, BN, 4, false>(p); } \
    extern "C" __global__ void __launch_bounds__(512) patch_backward_##CH##_##BN(const __grid_constant__ Patch p) { patch_convolve<CH, BN, 4, true>(p); }
PATCH(16, 32)
PATCH(32, 32)
PATCH(64, 64)
#define PATCH_WEIGHT(CT, BN, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(384, BLOCKS) patch_weight_##CT##_##BN(const __grid_constant__ Patch p) { patch_weight<CT, BN>(p); }
PATCH_WEIGHT(32, 32, 2)
PATCH_WEIGHT(32, 64, 1)
PATCH_WEIGHT(64, 64, 1)
#endif
