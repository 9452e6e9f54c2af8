// The average over the pixels and heads with few outputs, as differentiable operations.

#pragma once

#include "launch.h"

namespace {

// As in head.cu.
struct Pool {
  void* x;
  float* pooled;
  int images, pixels, clients, channels;
};
struct Head {
  const float *x, *w, *b;
  float* y;
  const float* dy;
  float *dx, *dw, *db;
  int rows, from, to;
};

struct FusedPool : torch::autograd::Function<FusedPool> {
  // x [images, K * channels, H, W] to [K, images, channels].
  static Tensor forward(AutogradContext* ctx, Tensor x, int64_t clients) {
    x = packed(x);
    int64_t images = x.size(0), channels = x.size(1) / clients;
    Tensor pooled = at::empty({clients, images, channels}, x.options().dtype(at::kFloat));
    Pool p = describe(x, pooled);
    hold({x});
    launch(std::string("pool_") + suffix(x), dim3(static_cast<unsigned>(over(images * x.size(1) / 2, 128))), dim3(128), &p);
    ctx->saved_data["size"] = x.sizes().vec();
    ctx->saved_data["clients"] = clients;
    ctx->saved_data["device"] = x.device();
    ctx->saved_data["kind"] = static_cast<int64_t>(x.scalar_type());
    return pooled;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    no_second_derivative();
    const std::vector<int64_t> size = ctx->saved_data["size"].toIntVector();
    int64_t clients = ctx->saved_data["clients"].toInt();
    check_gradient(gradients[0], {clients, size[0], size[1] / clients}, ctx->saved_data["device"].toDevice(), "gradient of a pool");
    Tensor pooled = gradients[0].contiguous();
    if (!is_aligned(pooled)) pooled = pooled.clone();
    auto kind = static_cast<at::ScalarType>(ctx->saved_data["kind"].toInt());
    Tensor dx = at::empty(size, pooled.options().dtype(kind), at::MemoryFormat::ChannelsLast);
    Pool p = describe(dx, pooled);
    hold({pooled});
    launch(std::string("unpool_") + suffix(dx), dim3(static_cast<unsigned>(over(dx.numel() / 8, 256))), dim3(256), &p);
    return {dx, Tensor()};
  }

  static Pool describe(const Tensor& x, const Tensor& pooled) {
    Pool p = {};
    p.x = x.data_ptr();
    p.pooled = pooled.data_ptr<float>();
    p.images = static_cast<int>(x.size(0));
    p.pixels = static_cast<int>(x.size(2) * x.size(3));
    p.clients = static_cast<int>(pooled.size(0));
    p.channels = static_cast<int>(pooled.size(2));
    return p;
  }
};

struct FusedHead : torch::autograd::Function<FusedHead> {
  // x [K, rows, from], w [K, to, from], b [K, to]; to [K, rows, to].
  static Tensor forward(AutogradContext* ctx, Tensor x, Tensor w, Tensor b) {
    x = x.contiguous();
    Tensor y = at::empty({x.size(0), x.size(1), w.size(1)}, x.options());
    Head h = describe(x, w);
    h.b = b.data_ptr<float>();
    h.y = y.data_ptr<float>();
    hold({x, w, b});
    launch("head_forward", dim3(static_cast<unsigned>(h.rows), static_cast<unsigned>(x.size(0))), dim3(256), &h);
    ctx->save_for_backward({x, w});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    no_second_derivative();
    auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1];
    TORCH_CHECK(x.dim() == 3 && w.dim() == 3 && x.is_contiguous() && w.is_contiguous() && x.size(0) == w.size(0) && x.size(2) == w.size(2) &&
                    x.device() == w.device(),
                "the input of a head was changed before its gradient");
    check_gradient(gradients[0], {x.size(0), x.size(1), w.size(1)}, x.device(), "gradient of a head");
    Tensor dy = gradients[0].contiguous(), dw = at::empty(w.sizes(), w.options()), db = at::empty({w.size(0), w.size(1)}, w.options()), dx;
    Head h = describe(x, w);
    h.dy = dy.data_ptr<float>();
    h.dw = dw.data_ptr<float>();
    h.db = db.data_ptr<float>();
    if (ctx->needs_input_grad(0)) {
      dx = at::empty_like(x);
      h.dx = dx.data_ptr<float>();
    }
    hold({x, w, dy});
    dim3 grid(static_cast<unsigned>(over(h.from, 32)), static_cast<unsigned>(x.size(0)));
    launch("head_backward", grid, dim3(256), &h, static_cast<size_t>(h.rows) * h.to * sizeof(float));
    return {dx, dw, db};
  }

  static Head describe(const Tensor& x, const Tensor& w) {
    Head h = {};
    h.x = x.data_ptr<float>();
    h.w = w.data_ptr<float>();
    h.rows = static_cast<int>(x.size(1));
    h.from = static_cast<int>(x.size(2));
    h.to = static_cast<int>(w.size(1));
    return h;
  }
};

}  // namespace
