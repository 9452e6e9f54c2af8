// Batch norm with what follows it, as a differentiable operation.

#pragma once

#include "launch.h"

namespace {

void check_kind(const Tensor& x) {
  TORCH_CHECK(x.is_cuda() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat),
              "the fused kernels want bfloat16 or float on a GPU");
}

// As in norm.cu.
struct Norm {
  const void *x, *residual;
  void* y;
  const void *dy, *dy2, *dpassed;
  void *g, *dx;
  const float *weight, *bias;
  float *running_mean, *running_var, *mean, *invstd, *scale, *shift, *dweight, *dbias, *partial;
  long long rows;
  int columns, views, chunks, parts, raw_sums, fixed;
  float momentum, epsilon;
};

enum { UPDATE = 0, BATCH = 1, RUNNING = 2 };

struct Shape {
  dim3 grid;
  void operator()(Norm& n, const Tensor& x, int64_t views, bool sums) {
    n.views = static_cast<int>(views);
    n.columns = static_cast<int>(x.size(1));
    n.rows = x.size(0) / views * x.size(2) * x.size(3);
    TORCH_CHECK(n.columns % 8 == 0, "the fused norm wants channels in eights, not ", n.columns);
    // Blocks with two rows or more per thread. With sums there are fewer: every block of the second launch adds them up.
    long long tiles = (n.columns + 63) / 64, most = std::max<long long>(1, n.rows / 64);
    if (sums) most = std::min<long long>(most, 128);
    long long blocks = 2 * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    n.chunks = n.parts = static_cast<int>(std::min(most, std::max<long long>(1, blocks / (tiles * views))));
    grid = dim3(static_cast<unsigned>(tiles), n.chunks, n.views);
  }
};

const dim3 NORM_BLOCK(8, 32);

struct FusedNorm : torch::autograd::Function<FusedNorm> {
  static const size_t ARGUMENTS = 13;
  // x [views * batch, columns, H, W]; returns y, and x where it is passed on, else y once more (with a gradient of its
  // own, so that two consumers cost no addition). `sums`: of x and its squares, [views, parts, 2, columns].
  static variable_list forward(AutogradContext* ctx, Tensor x, std::optional<Tensor> residual, std::optional<Tensor> sums, bool passes,
                               Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, bool relu, int64_t views, int64_t mode,
                               double momentum, double epsilon) {
    check_kind(x);
    const auto format = at::MemoryFormat::ChannelsLast;
    x = packed(x);
    Norm n = {};
    Shape shape;
    shape(n, x, views, mode != RUNNING);
    auto numbers = x.options().dtype(at::kFloat);
    Tensor y = at::empty_like(x, x.options(), format);
    Tensor table = at::empty({4, views, n.columns}, numbers);  // mean, invstd, scale, shift
    if (residual) {
      residual = packed(*residual);
      n.residual = residual->data_ptr();
    }
    n.x = x.data_ptr();
    n.y = y.data_ptr();
    n.weight = weight.data_ptr<float>();
    n.bias = bias.data_ptr<float>();
    float* numbers_at = table.data_ptr<float>();
    int64_t plane = views * n.columns;
    n.mean = numbers_at;
    n.invstd = numbers_at + plane;
    n.scale = numbers_at + 2 * plane;
    n.shift = numbers_at + 3 * plane;
    n.momentum = mode == UPDATE ? static_cast<float>(momentum) : -1.f;
    n.epsilon = static_cast<float>(epsilon);
    if (mode != BATCH) {
      n.running_mean = running_mean.data_ptr<float>();
      n.running_var = running_var.data_ptr<float>();
    }
    hold({x, residual.value_or(Tensor()), weight, bias, running_mean, running_var});
    const std::string kind = suffix(x);
    Tensor partial;
    if (mode != RUNNING && sums) {
      n.partial = sums->data_ptr<float>();
      n.parts = static_cast<int>(sums->size(1));
      n.raw_sums = 1;
      hold({*sums});
    } else if (mode != RUNNING) {
      partial = at::empty({views * n.chunks * 2 * n.columns}, numbers);
      n.partial = partial.data_ptr<float>();
      launch("statistics_" + kind, shape.grid, NORM_BLOCK, &n);
    }
    launch((relu ? "apply_relu_" : "apply_") + kind, shape.grid, NORM_BLOCK, &n);
    ctx->set_materialize_grads(false);  // an output nobody uses costs nothing
    ctx->saved_data["relu"] = relu;
    ctx->saved_data["views"] = views;
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["passes"] = passes;
    ctx->saved_data["residual"] = residual.has_value();
    ctx->save_for_backward({x, residual ? y : Tensor(), weight, table});
    const Tensor& once_more = passes ? x : y;
    Tensor again = at::empty({0}, x.options()).set_(once_more.storage(), once_more.storage_offset(), once_more.sizes(), once_more.strides());
    return {y, again};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &y = saved[1], &weight = saved[2], &table = saved[3];
    bool relu = ctx->saved_data["relu"].toBool();
    bool residual = ctx->saved_data["residual"].toBool(), passes = ctx->saved_data["passes"].toBool();
    int64_t views = ctx->saved_data["views"].toInt();
    if (passes && !gradients[0].defined()) { // what was passed on is all that counts
      variable_list alone(ARGUMENTS);
      alone[0] = gradients[1];
      return alone;
    }
    no_second_derivative();
    const auto format = at::MemoryFormat::ChannelsLast;
    TORCH_CHECK(x.is_contiguous(format) && is_aligned(x) && table.size(2) == x.size(1), "the input of a norm was changed before its gradient");
    TORCH_CHECK(weight.is_contiguous() && weight.numel() == x.size(1) && weight.device() == x.device(),
                "the weight of a norm was changed before its gradient");
    auto flat = [&](Tensor& gradient) {
      if (!gradient.defined()) return;
      check_like(gradient, x, "gradient of a norm");
      gradient = packed(gradient);
    };
    Tensor dy = gradients[0], other = gradients[1];
    flat(dy);
    flat(other);
    if (!dy.defined()) std::swap(dy, other);
    if (!dy.defined()) return variable_list(ARGUMENTS);
    Norm n = {};
    Shape shape;
    shape(n, x, views, true);
    auto numbers = x.options().dtype(at::kFloat);
    int64_t plane = views * n.columns;
    Tensor dx = at::empty_like(x, x.options(), format), g;
    Tensor dweight = at::empty_like(weight), dbias = at::empty_like(weight);
    Tensor partial = at::empty({views * n.chunks * 2 * n.columns}, numbers);
    n.fixed = ctx->saved_data["mode"].toInt() == RUNNING;
    n.x = x.data_ptr();
    n.dy = dy.data_ptr();
    if (other.defined()) (passes ? n.dpassed : n.dy2) = other.data_ptr();
    if (residual) {
      check_like(y, x, "output of a norm");
      TORCH_CHECK(y.is_contiguous(format), "the output of a norm was changed before its gradient");
      g = at::empty_like(x, x.options(), format);
      n.residual = n.y = y.data_ptr();
      n.g = g.data_ptr();
    }
    n.dx = dx.data_ptr();
    n.weight = weight.data_ptr<float>();
    float* numbers_at = table.data_ptr<float>();
    n.mean = numbers_at;
    n.invstd = numbers_at + plane;
    n.scale = numbers_at + 2 * plane;
    n.shift = numbers_at + 3 * plane;
    n.dweight = dweight.data_ptr<float>();
    n.dbias = dbias.data_ptr<float>();
    n.partial = partial.data_ptr<float>();
    hold({x, y, weight, table, dy, other});
    const std::string kind = suffix(x);
    launch((relu ? "sums_relu_" : "sums_") + kind, shape.grid, NORM_BLOCK, &n);
    launch((relu ? "input_relu_" : "input_") + kind, shape.grid, NORM_BLOCK, &n);
    Tensor none;
    return {dx, residual ? g : none, none, none, dweight, dbias, none, none, none, none, none, none, none};
  }
};

}  // namespace
