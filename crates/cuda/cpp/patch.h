// When and how the convolutions of patch.cu are used.

#pragma once

#include "shapes.h"

#include <cuda.h>

namespace {

// As in patch.cu.
struct Patch {
  CUtensorMap a, b, out, add;
  float* partial;
  void* sums;
  long long part;
  int inputs, outputs, tiles, parts, added, view_tiles;
  Div image, row;
};
const int64_t PATCH_GROUPS = 3, PATCH_STAGES = 3, WIDE_GROUPS = 2, WIDE_STAGES = 3, WEIGHT_STAGES = 5, SMALL_STAGES = 4;
const int64_t CELLS = 10 * 10, SMALL_CELLS = 3 * 6 * 4 * 4;  // pixels of a patch

int64_t whole(int64_t bytes) { return over(bytes, 1024) * 1024; }

// How boxes of a tensor in bfloat16 are copied: its sizes, its strides from the second axis on, and a box's sizes,
// beginning with the channels, of which a box has 16, 32 or 64.
CUtensorMap map_of(const Tensor& t, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, const std::vector<int64_t>& box) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult outcome;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &outcome), "cuTensorMapEncodeTiled");
    TORCH_CHECK(found && outcome == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const std::vector<cuuint64_t> all(sizes.begin(), sizes.end());
  const std::vector<cuuint32_t> boxes(box.begin(), box.end()), every(box.size(), 1);
  std::vector<cuuint64_t> bytes;
  for (int64_t stride : strides) bytes.push_back(2 * static_cast<cuuint64_t>(stride));
  CUtensorMapSwizzle swizzle = box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
  CUtensorMap map;
  CUresult outcome = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(sizes.size()), t.data_ptr(), all.data(), bytes.data(),
                            boxes.data(), every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TORCH_CHECK(outcome == CUDA_SUCCESS, "the copy of a box of ", box[0], " channels cannot be described: CUDA error ", static_cast<int>(outcome));
  return map;
}

// Boxes of `channels` by side x side pixels of an image tensor.
CUtensorMap map_of_images(const Tensor& x, int64_t channels, int64_t side) {
  int64_t all = x.size(1), height = x.size(2), width = x.size(3);
  return map_of(x, {all, width, height, x.size(0)}, {all, width * all, height * width * all}, {channels, side, side, 1});
}

// The same of four images of 4 x 4 pixels, `high` rows of them.
CUtensorMap map_of_small_images(const Tensor& x, int64_t high) {
  int64_t all = x.size(1);
  return map_of(x, {all, x.size(0), 4, 4}, {16 * all, all, 4 * all}, {64, 4, 4, high});
}

// Boxes of one tap of weights [K, outputs, 3, 3, inputs].
CUtensorMap map_of_weights(const Tensor& w, int64_t inputs, int64_t outputs) {
  return map_of(w, {w.size(4), 9, w.size(0) * w.size(1)}, {w.size(4), 9 * w.size(4)}, {inputs, 1, outputs});
}

// 3 x 3 taps and stride 1.
bool is_plain(const Conv& c) { return is_hopper() && c.taps == 9 && c.stride == 1 && c.padding == 1; }
bool has_tiles(const Conv& c) { return is_plain(c) && c.height % 8 == 0 && c.width % 8 == 0; }
bool is_small(const Conv& c) { return is_plain(c) && c.height == 4 && c.width == 4; }

Patch patch_of(const Conv& c, int64_t images) {
  Patch p = {};
  p.inputs = c.inputs;
  p.outputs = c.outputs;
  p.parts = c.parts;
  unsigned down = static_cast<unsigned>(over(c.height, 8)), across = static_cast<unsigned>(over(c.width, 8));
  p.image = Div(down * across);
  p.row = Div(across);
  p.tiles = static_cast<int>(images * down * across);
  return p;
}

// How many blocks share a piece of work where there are `others` such pieces and one block per processor: as many as
// fill the processors, once or, if that leaves too many of them idle, up to three times.
int64_t shares_of(int64_t others) {
  int64_t processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount, best = 1;
  double fullest = 0;
  for (int64_t waves = 1; waves <= 3 && fullest < 0.85; waves++) {
    int64_t shares = std::max<int64_t>(1, waves * processors / others), blocks = shares * others;
    double full = static_cast<double>(blocks) / static_cast<double>(over(blocks, processors) * processors);
    if (full > fullest) {
      fullest = full;
      best = shares;
    }
  }
  return best;
}

// What a convolution does beside multiplying: add to its result, or null, and leave sums of it for the norm that follows.
struct Epilogue {
  const Tensor* add = nullptr;
  int64_t views = 0;  // 0: no sums
  Tensor sums;        // [views, parts, 2, columns], where a kernel has left them
};

// Room for the sums, `parts` per view. Every block of the norm reads all of them: with too many, it is better off
// without.
void prepare_sums(Patch& p, Epilogue& epilogue, int64_t parts, const Tensor& y) {
  if (!epilogue.views || parts > 128) return;
  epilogue.sums = at::empty({epilogue.views, parts, 2, y.size(1)}, y.options().dtype(at::kFloat));
  p.partial = epilogue.sums.data_ptr<float>();
  p.view_tiles = static_cast<int>(p.tiles / epilogue.views);
}

// Forward (from x to y) and the gradient of the input (from dy to dx); false where there is no kernel for them.
bool launch_patch(bool forward, const Tensor& from, const Tensor& w, const Tensor& to, const Conv& c, Epilogue& epilogue) {
  const std::string name = forward ? "patch_forward_" : "patch_backward_";
  int64_t groups = w.size(0), channels = forward ? c.inputs : c.outputs, columns = forward ? c.outputs : c.inputs;
  bool narrow = channels >= 16 && columns >= 16 && ((channels <= 32 && columns <= 32) || (channels == 64 && columns == 64));
  Patch p = patch_of(c, from.size(0));
  p.added = epilogue.add != nullptr;
  if (has_tiles(c) && narrow) {
    p.a = map_of_images(from, channels, 10);
    p.b = map_of_weights(w, c.inputs, c.outputs);
    p.out = map_of_images(to, columns, 8);
    if (epilogue.add) p.add = map_of_images(*epilogue.add, columns, 8);
    int64_t shared = PATCH_GROUPS * (PATCH_STAGES * whole(CELLS * channels * 2) + whole(64 * columns * 2)) + 9 * whole(channels * columns * 2);
    int64_t blocks = std::min(shares_of(groups), over(p.tiles, PATCH_GROUPS));
    prepare_sums(p, epilogue, blocks * PATCH_GROUPS, to);
    dim3 grid(static_cast<unsigned>(blocks), 1, static_cast<unsigned>(groups));
    launch(name + std::to_string(channels) + "_" + std::to_string(columns), grid, dim3(PATCH_GROUPS * 128), &p, static_cast<size_t>(shared));
    return true;
  }
  bool small = is_small(c);
  if ((!small && !has_tiles(c)) || channels % 64 != 0 || columns % 64 != 0) return false;
  int64_t pairs = over(small ? over(from.size(0), 4) : p.tiles, WIDE_GROUPS), processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  int64_t wide = columns % 128 == 0 && 2 * pairs * (columns / 128) * groups > processors ? 128 : 64;
  p.a = small ? map_of_small_images(from, 6) : map_of_images(from, 64, 10);
  p.b = map_of_weights(w, 64, forward ? wide : 64);
  p.out = small ? map_of_small_images(to, 4) : map_of_images(to, 64, 8);
  if (epilogue.add) p.add = small ? map_of_small_images(*epilogue.add, 4) : map_of_images(*epilogue.add, 64, 8);
  if (!small && epilogue.views) prepare_sums(p, epilogue, p.tiles / epilogue.views, to);
  int64_t patch = small ? SMALL_CELLS : CELLS, shared = 2 * WIDE_GROUPS * whole(patch * 64 * 2) + WIDE_STAGES * wide * 64 * 2;
  dim3 grid(static_cast<unsigned>(pairs), static_cast<unsigned>(columns / wide), static_cast<unsigned>(groups));
  launch(name + (small ? "small_" : "wide_") + std::to_string(wide), grid, dim3(WIDE_GROUPS * 128 + 32), &p, static_cast<size_t>(shared));
  return true;
}

// The gradient of the weights.
struct PatchWeight {
  int64_t high, wide;  // inputs and outputs of a block
  int64_t parts = 0;   // that the sum over pixels is cut into; 0 where there is no kernel for it
  bool small;
  PatchWeight(const Conv& c, int64_t groups, int64_t images) : high(std::min(c.inputs, 64)), wide(std::min<int64_t>(c.outputs, high == 64 ? 64 : 2 * high)) {
    small = is_small(c) && high == 64 && wide == 64;
    if ((!has_tiles(c) && !small) || high < 16 || wide < high || c.inputs % high != 0 || c.outputs % wide != 0) return;
    parts = std::min<int64_t>(shares_of(c.inputs / high * (c.outputs / wide) * groups), tiles(c, images));
  }
  int64_t tiles(const Conv& c, int64_t images) const { return small ? over(images, 4) : patch_of(c, images).tiles; }
  void launch(const Tensor& x, const Tensor& dy, int64_t groups, const Conv& c) const {
    Patch p = patch_of(c, x.size(0));
    p.tiles = static_cast<int>(tiles(c, x.size(0)));
    p.a = small ? map_of_small_images(x, 6) : map_of_images(x, high, 10);
    p.b = small ? map_of_small_images(dy, 4) : map_of_images(dy, wide, 8);
    p.sums = c.out;
    p.part = c.part;
    int64_t patch = small ? SMALL_CELLS : CELLS, stages = small ? SMALL_STAGES : WEIGHT_STAGES;
    int64_t shared = stages * (whole(patch * high * 2) + whole(64 * wide * 2));
    dim3 grid(static_cast<unsigned>(c.inputs / high), static_cast<unsigned>(c.outputs / wide), static_cast<unsigned>(groups * c.parts));
    const std::string size = small ? "small" : std::to_string(high) + "_" + std::to_string(wide);
    ::launch("patch_weight_" + size, grid, dim3(384), &p, static_cast<size_t>(shared));
  }
};

}  // namespace
