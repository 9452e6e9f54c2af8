// When and how the convolutions of patch.cu are used.

#pragma once

#include "shapes.h"

namespace {

// As in patch.cu.
struct Patch {
  const void *a, *b;
  void* out;
  long long part;
  int inputs, outputs, a_stride, b_stride, out_stride, tiles, height, width, parts;
  Div image, row;
};
const int PATCH_GROUPS = 4, PATCH_STAGES = 4;

int64_t over_128(int64_t bytes) { return over(bytes, 128) * 128; }

// As in patch.cu.
int64_t plane_of(int64_t cells, int64_t vectors) {
  int64_t wanted = vectors >= 8 ? 16 : vectors == 4 ? 32 : 64, bytes = cells * 16;
  while (bytes % 128 != wanted && bytes % 128 != 128 - wanted) bytes += 16;
  return bytes;
}
int64_t patch_bytes(int64_t channels) { return over_128(channels / 8 * plane_of(100, channels / 8)); }

// 3 x 3 taps, stride 1, images of whole tiles; a place in a patch is counted in 32 bits.
bool has_tiles(const Conv& c) {
  int64_t widest = static_cast<int64_t>(c.width) * std::max(c.a_stride, c.b_stride);
  return is_hopper() && c.taps == 9 && c.stride == 1 && c.padding == 1 && c.height % 8 == 0 && c.width % 8 == 0 &&
         10 * widest < std::numeric_limits<int>::max();
}

// How many blocks share the work where `others` blocks of different work run beside each of them, one block per
// processor: one or more for each processor, nearly evenly, or 0 where too many processors would be idle.
int64_t shares_of(int64_t others) {
  int64_t processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  for (int64_t waves = 1; waves <= 3; waves++) {
    int64_t shares = waves * processors / others;
    if (shares * others * 100 >= 85 * waves * processors) return shares;
  }
  return 0;
}

Patch patch_of(const Conv& c, int64_t images) {
  Patch p = {};
  p.a = c.a;
  p.b = c.b;
  p.out = c.out;
  p.inputs = c.inputs;
  p.outputs = c.outputs;
  p.a_stride = c.a_stride;
  p.b_stride = c.b_stride;
  p.out_stride = c.out_stride;
  p.height = c.height;
  p.width = c.width;
  unsigned down = static_cast<unsigned>(c.height / 8), across = static_cast<unsigned>(c.width / 8);
  p.image = Div(down * across);
  p.row = Div(across);
  p.tiles = static_cast<int>(images * down * across);
  return p;
}

// Forward and the gradient of the input, from `channels` to `columns` per group; false where hopper.cu is
// faster: a block copies all its weights first, which pays off if it has many tiles.
bool launch_patch(const char* direction, int64_t channels, int64_t columns, int64_t groups, int64_t images, const Conv& c) {
  if (!has_tiles(c) || channels < 16 || columns < 16 || channels > 64) return false;
  int64_t wide = channels == 64 ? 64 : 32, blocks_of_columns = over(columns, wide);
  Patch p = patch_of(c, images);
  bool forward = direction[0] == 'f';
  int64_t weights = forward ? 9 * channels / 8 * (wide + 1) * 16 : 9 * wide / 8 * (channels + 1) * 16;
  int64_t shared = PATCH_GROUPS * (2 * patch_bytes(channels) + 64 * (wide + 8) * 2) + weights;
  int64_t blocks = shares_of(groups * blocks_of_columns);
  if (blocks == 0 || p.tiles < 4 * blocks * PATCH_GROUPS) return false;
  dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(blocks_of_columns), static_cast<unsigned>(groups));
  launch("patch_" + std::string(direction) + std::to_string(channels) + "_" + std::to_string(wide), grid, dim3(PATCH_GROUPS * 128), &p, static_cast<size_t>(shared));
  return true;
}

// The gradient of the weights, in parts whose number is returned; 0 where hopper.cu is faster.
int64_t patch_parts(int64_t groups, int64_t images, const Conv& c) {
  if (!has_tiles(c) || c.inputs < 32 || c.outputs < c.inputs) return 0;
  int64_t blocks = over(c.inputs, 64) * over(c.outputs, 64) * groups;
  if (blocks > at::cuda::getCurrentDeviceProperties()->multiProcessorCount) return 0;
  int64_t parts = shares_of(blocks), tiles = patch_of(c, images).tiles;
  return tiles < 4 * parts ? 0 : parts;
}

void launch_patch_weight(int64_t groups, int64_t images, const Conv& c) {
  int64_t high = std::min(c.inputs, 64), wide = c.inputs >= 64 ? 64 : std::min(c.outputs, 64);
  Patch p = patch_of(c, images);
  p.part = c.part;
  p.parts = c.parts;
  // A warp group reads 64 channels also where a patch has 32: up to 32 more than there are in the last stage.
  int64_t shared = PATCH_STAGES * (patch_bytes(high) + over_128(wide / 8 * plane_of(64, wide / 8))) + (64 - high) / 8 * plane_of(100, high / 8);
  // Channels are 8 times a power of two.
  TORCH_CHECK(c.inputs % high == 0 && c.outputs % wide == 0, "weights of ", c.inputs, " and ", c.outputs, " channels");
  dim3 grid(static_cast<unsigned>(c.inputs / high), static_cast<unsigned>(c.outputs / wide), static_cast<unsigned>(groups * c.parts));
  launch("patch_weight_" + std::to_string(high) + "_" + std::to_string(wide), grid, dim3(384), &p, static_cast<size_t>(shared));
}

}  // namespace
