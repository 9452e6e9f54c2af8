// Grouped convolutions, as a differentiable operation.

#pragma once

#include "patch.h"
#include "stream.h"

namespace {

// As in conv.cu.
struct Parts {
  const float* from;
  void* to;
  long long count;
  int parts;
};

// Kernels count pixels, rounded up to a block, in 32 bits.
const int64_t PIXELS = std::numeric_limits<int>::max() - 256;

int log2_of(int64_t channels) {
  int64_t vectors = channels / 8;
  int log = 0;
  while ((1 << log) < vectors) log++;
  TORCH_CHECK(channels % 8 == 0 && (1 << log) == vectors, "the convolution wants 8, 16, 32, ... channels a group, not ", channels);
  return log;
}

void launch_conv(const std::string& name, dim3 grid, int bm, int bn, int wm, int wn, Conv& c) {
  size_t tiles = 4 * static_cast<size_t>(bm + bn) * 32 * 2, epilogue = static_cast<size_t>(bm) * (bn + 8) * 2;
  launch(name, grid, dim3(static_cast<unsigned>(bm / wm * (bn / wn) * 32)), &c, std::max(tiles, epilogue));
}

// Hopper's kernels: 128 rows by `columns` results a block.
void launch_hopper(const char* name, dim3 grid, int columns, Conv& c) {
  launch("hopper_" + std::string(name) + std::to_string(columns), grid, dim3(256), &c, static_cast<size_t>(hopper_bytes(columns)));
}

// Forward and the gradient of the input: rows x columns results a group.
void launch_rows(const char* direction, int64_t columns, int64_t groups, Conv& c) {
  int64_t processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  if (is_hopper()) {
    int64_t wide = columns >= 128 ? 128 : columns >= 64 ? 64 : 32;
    if (wide == 128 && over(c.rows, 128) * over(columns, 128) * groups < 2 * processors) wide = 64;
    // The gradient of the input of a convolution of stride 2 is computed parity by parity of the pixels.
    int64_t across = c.row.divisor, down = c.image.divisor / across, images = c.rows / c.image.divisor;
    bool halved = direction[0] == 'b' && c.stride == 2;
    int64_t blocks = halved ? 4 * over(images * over(down, 2) * over(across, 2), 128) : over(c.rows, 128);
    dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(over(columns, wide)), static_cast<unsigned>(groups));
    return launch_hopper(direction, grid, static_cast<int>(wide), c);
  }
  struct Tile { int bm, bn, wm, wn; };
  Tile tile = columns >= 128 ? Tile{128, 128, 64, 32} : columns >= 64 ? Tile{128, 64, 64, 32} : Tile{128, 32, 32, 32};
  auto blocks = [&](Tile t) { return over(c.rows, t.bm) * over(columns, t.bn) * groups; };
  if (columns >= 64 && blocks(tile) < 2 * processors) tile = Tile{64, 64, 32, 32};
  dim3 grid(static_cast<unsigned>(over(c.rows, tile.bm)), static_cast<unsigned>(over(columns, tile.bn)), static_cast<unsigned>(groups));
  launch_conv(std::string(direction) + std::to_string(tile.bm) + "x" + std::to_string(tile.bn), grid, tile.bm, tile.bn, tile.wm, tile.wn, c);
}

// The gradient of the weights by hopper.cu or conv.cu: its blocks, and the parts that the sum over pixels is cut into.
struct WeightBlocks {
  int bm, bn, wm, wn;  // of conv.cu
  int wide;            // of hopper.cu
  int64_t parts;
  dim3 grid;
  WeightBlocks(const Conv& c, int64_t groups) : wide(c.outputs >= 128 ? 128 : c.outputs >= 64 ? 64 : 32) {
    bool square = c.outputs >= 64;
    bm = square ? 64 : 32, bn = square ? 64 : 128, wm = wn = 32;
    if (c.outputs >= 128 && c.depth >= 128) bm = bn = 128, wm = 64;
    int64_t across = is_hopper() ? over(c.depth, 128) : over(c.outputs, bm), down = is_hopper() ? over(c.outputs, wide) : over(c.depth, bn);
    // Enough blocks to fill the GPU, each with eight steps or more, and none without any.
    int64_t steps = over(c.rows, is_hopper() ? 64 : 32), processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    parts = std::max<int64_t>(1, std::min(over(4 * processors, across * down * groups), steps / 8));
    parts = over(steps, over(steps, parts));
    grid = dim3(static_cast<unsigned>(across), static_cast<unsigned>(down), static_cast<unsigned>(groups * parts));
  }
  void launch(Conv& c) const {
    if (is_hopper()) return launch_hopper("weight_", grid, wide, c);
    launch_conv("weight_" + std::to_string(bm) + "x" + std::to_string(bn), grid, bm, bn, wm, wn, c);
  }
};

struct FusedConv : torch::autograd::Function<FusedConv> {
  // x [batch, K * inputs, H, W] channels last; w [K, outputs, inputs, k, k], inputs last in memory. Where
  // a group of x has more channels than w (an image's three, padded to eight), w is padded as well. Returns the
  // result with `add` added, and sums of it by view (see norm.h), or nothing where there are none.
  static variable_list forward(AutogradContext* ctx, Tensor x, Tensor w, int64_t stride, int64_t padding, std::optional<Tensor> add, int64_t views) {
    const auto format = at::MemoryFormat::ChannelsLast;
    x = packed(x);
    int64_t groups = w.size(0), outputs = w.size(1), given = w.size(2), kernel = w.size(3), inputs = x.size(1) / groups;
    Tensor weights = w.permute({0, 1, 3, 4, 2});  // [K, outputs, k, k, inputs]
    if (given != inputs) {
      Tensor padded = at::zeros({groups, outputs, kernel, kernel, inputs}, w.options());
      padded.narrow(4, 0, given).copy_(weights);
      weights = padded;
    } else {
      weights = weights.contiguous();
      if (!is_aligned(weights)) weights = weights.clone();
    }
    int64_t height = (x.size(2) + 2 * padding - kernel) / stride + 1, width = (x.size(3) + 2 * padding - kernel) / stride + 1;
    Tensor y = at::empty({x.size(0), groups * outputs, height, width}, x.options(), format);
    Conv c = {};
    c.a = x.data_ptr();
    c.b = weights.data_ptr();
    c.out = y.data_ptr();
    describe(c, x, y, groups, inputs, outputs, kernel, stride, padding);
    c.log_a = log2_of(inputs);
    c.image = Div(static_cast<unsigned>(height * width));
    c.row = Div(static_cast<unsigned>(width));
    c.rows = static_cast<int>(y.size(0) * height * width);
    c.a_stride = static_cast<int>(x.size(1));
    c.out_stride = static_cast<int>(y.size(1));
    hold({x, weights});
    if (add) {
      add = packed(*add);
      hold({*add});
    }
    Epilogue epilogue = {add ? &*add : nullptr, views, Tensor()};
    if (!launch_patch(true, x, weights, y, c, epilogue)) {
      launch_rows("forward_", outputs, groups, c);
      if (add) y.add_(*add);
    }
    Tensor sums = epilogue.sums.defined() ? epilogue.sums : at::empty({0}, x.options().dtype(at::kFloat));
    ctx->mark_non_differentiable({sums});
    ctx->set_materialize_grads(false);  // else every backward pass would fill one for the sums
    ctx->saved_data["add"] = add.has_value();
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["given"] = given;
    ctx->saved_data["weight"] = reinterpret_cast<int64_t>(w.data_ptr());
    // Who reads the gradient of the weights within the pass: the operation that made them, and what cuts off the padding.
    ctx->saved_data["read"] = !w.is_leaf() || weights.data_ptr() != w.data_ptr();
    ctx->save_for_backward({x, weights});
    return {y, sums};
  }

  static void describe(Conv& c, const Tensor& x, const Tensor& y, int64_t groups, int64_t inputs, int64_t outputs,
                       int64_t kernel, int64_t stride, int64_t padding) {
    // The gradient of the input counts the pixels of x, all else those of y.
    for (const Tensor& t : {x, y}) TORCH_CHECK(t.size(0) * t.size(2) * t.size(3) <= PIXELS, "too many pixels: ", t.sizes());
    c.inputs = static_cast<int>(inputs);
    c.outputs = static_cast<int>(outputs);
    c.taps = static_cast<int>(kernel * kernel);
    c.depth = static_cast<int>(kernel * kernel * inputs);
    c.stride = static_cast<int>(stride);
    c.padding = static_cast<int>(padding);
    c.height = static_cast<int>(x.size(2));
    c.width = static_cast<int>(x.size(3));
    c.parts = 1;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto format = at::MemoryFormat::ChannelsLast;
    if (!gradients[0].defined()) return variable_list(6);
    no_second_derivative();
    auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1];
    int64_t stride = ctx->saved_data["stride"].toInt(), padding = ctx->saved_data["padding"].toInt();
    int64_t given = ctx->saved_data["given"].toInt();
    int64_t groups = w.size(0), outputs = w.size(1), kernel = w.size(2), inputs = w.size(4);
    auto side = [&](int64_t of_x) { return (of_x + 2 * padding - kernel) / stride + 1; };
    TORCH_CHECK(x.is_contiguous(format) && is_aligned(x) && x.size(1) == groups * inputs && w.is_contiguous() && is_aligned(w),
                "the input of a convolution was changed before its gradient");
    const Tensor& given_dy = gradients[0];
    TORCH_CHECK(given_dy.sizes() == at::IntArrayRef({x.size(0), groups * outputs, side(x.size(2)), side(x.size(3))}) &&
                    given_dy.scalar_type() == at::kBFloat16 && given_dy.device() == x.device() && given_dy.data_ptr(),
                "the gradient of a convolution of ", x.sizes(), " does not fit: ", given_dy.sizes());
    Tensor dy = packed(given_dy);
    hold({x, w, dy});
    Tensor dx, dw;
    Conv both = {};
    describe(both, x, dy, groups, inputs, outputs, kernel, stride, padding);
    if (ctx->needs_input_grad(1)) {
      dw = at::empty({groups, outputs, kernel, kernel, inputs}, w.options());
      Conv c = both;
      c.a = x.data_ptr();
      c.b = dy.data_ptr();
      c.log_a = log2_of(inputs);
      c.image = Div(static_cast<unsigned>(dy.size(2) * dy.size(3)));
      c.row = Div(static_cast<unsigned>(dy.size(3)));
      c.rows = static_cast<int>(dy.size(0) * dy.size(2) * dy.size(3));
      c.a_stride = static_cast<int>(x.size(1));
      c.b_stride = static_cast<int>(dy.size(1));
      c.part = dw.numel();
      const WeightBlocks blocks(c, groups);
      const PatchWeight patches(c, groups, x.size(0));
      int64_t parts = patches.parts ? patches.parts : blocks.parts;
      c.parts = static_cast<int>(parts);
      Tensor sums;
      if (parts > 1) sums = at::empty({parts * dw.numel()}, w.options().dtype(at::kFloat));
      c.out = parts > 1 ? sums.data_ptr() : dw.data_ptr();
      const void* weight = reinterpret_cast<const void*>(ctx->saved_data["weight"].toInt());
      Beside::run(ctx->saved_data["read"].toBool(), weight, {x, dy, dw, sums}, [&] {
        if (patches.parts) {
          patches.launch(x, dy, groups, c);
        } else {
          blocks.launch(c);
        }
        if (sums.defined()) {
          Parts p = {sums.data_ptr<float>(), dw.data_ptr(), dw.numel(), static_cast<int>(parts)};
          launch("add_parts", dim3(static_cast<unsigned>(std::min<int64_t>(over(p.count, 4 * 256), 4096))), dim3(256), &p);
        }
      });
      if (given != inputs) dw = dw.narrow(4, 0, given).contiguous();
      dw = dw.permute({0, 1, 4, 2, 3});
    }
    if (ctx->needs_input_grad(0)) {
      dx = at::empty_like(x, x.options(), format);
      Conv d = both;
      d.a = dy.data_ptr();
      d.b = w.data_ptr();
      d.out = dx.data_ptr();
      d.log_a = log2_of(outputs);
      d.height = static_cast<int>(dy.size(2));
      d.width = static_cast<int>(dy.size(3));
      d.image = Div(static_cast<unsigned>(x.size(2) * x.size(3)));
      d.row = Div(static_cast<unsigned>(x.size(3)));
      d.rows = static_cast<int>(x.size(0) * x.size(2) * x.size(3));
      d.a_stride = static_cast<int>(dy.size(1));
      d.out_stride = static_cast<int>(x.size(1));
      Epilogue nothing;
      if (!launch_patch(false, dy, w, dx, d, nothing)) launch_rows("backward_", inputs, groups, d);
    }
    return {dx, dw, Tensor(), Tensor(), ctx->saved_data["add"].toBool() ? dy : Tensor(), Tensor()};
  }
};

}  // namespace
