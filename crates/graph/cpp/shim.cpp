// What the Rust bindings of libtorch lack for the GPU: streams, graphs, TF32, pinned memory, and the
// fused kernels of kernels.cu as differentiable operations. Plain C functions; each returns null or a
// message that the caller frees. Tensors are borrowed unless a comment says otherwise.

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

template <class F> char* guarded(F body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("an unknown failure");
  }
}

void check(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// ------------------------------------------------------------------------------- kernels
// One library a device, compiled for its architecture.

struct Kernels {
  cudaLibrary_t library = nullptr;
  std::unordered_map<std::string, cudaKernel_t> known;
};
std::mutex kernels_lock;
std::unordered_map<int, Kernels> kernels;

// NVRTC comes with libtorch; its stub library knows where.
struct Nvrtc {
  void* handle;
  template <class F> F* find(const char* name) {
    void* symbol = dlsym(handle, name);
    TORCH_CHECK(symbol, "NVRTC has no ", name);
    return reinterpret_cast<F*>(symbol);
  }
  Nvrtc() {
    for (const char* name : {"libcaffe2_nvrtc.so", "libnvrtc.so.13"})
      if ((handle = dlopen(name, RTLD_NOW))) return;
    TORCH_CHECK(false, "cannot load NVRTC: ", dlerror());
  }
};

bool is_hopper() { return at::cuda::getCurrentDeviceProperties()->major == 9; }

std::vector<char> compile(const std::string& source) {
  Nvrtc nvrtc;
  typedef void* Program;
  auto create = nvrtc.find<int(Program*, const char*, const char*, int, const char**, const char**)>("nvrtcCreateProgram");
  auto build = nvrtc.find<int(Program, int, const char**)>("nvrtcCompileProgram");
  auto log_size = nvrtc.find<int(Program, size_t*)>("nvrtcGetProgramLogSize");
  auto log = nvrtc.find<int(Program, char*)>("nvrtcGetProgramLog");
  auto size = nvrtc.find<int(Program, size_t*)>("nvrtcGetCUBINSize");
  auto cubin = nvrtc.find<int(Program, char*)>("nvrtcGetCUBIN");
  auto destroy = nvrtc.find<int(Program*)>("nvrtcDestroyProgram");
  auto* properties = at::cuda::getCurrentDeviceProperties();
  std::string architecture = "--gpu-architecture=sm_" + std::to_string(properties->major * 10 + properties->minor);
  if (is_hopper()) architecture += "a";
  const char* options[] = {architecture.c_str(), "--std=c++17", is_hopper() ? "-DON_HOPPER" : "-DPLAIN"};
  Program program;
  TORCH_CHECK(create(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr) == 0, "NVRTC refused the kernels");
  bool built = build(program, 3, options) == 0;
  std::vector<char> out;
  size_t bytes = 0;
  if (built) {
    size(program, &bytes);
    out.resize(bytes);
    cubin(program, out.data());
  } else {
    log_size(program, &bytes);
    out.resize(bytes + 1);
    log(program, out.data());
  }
  destroy(&program);
  TORCH_CHECK(built, "the kernels do not compile: ", out.data());
  return out;
}

// Shared memory of a block of Hopper's convolutions, `columns` wide: three stages, or the results.
int hopper_bytes(int columns) { return std::max(3 * (128 + columns) * 64 * 2, (128 + 8) * columns * 4); }

cudaKernel_t kernel(const std::string& name) {
  int device = at::cuda::current_device();
  std::lock_guard<std::mutex> guard(kernels_lock);
  Kernels& here = kernels[device];
  TORCH_CHECK(here.library, "the kernels of GPU ", device, " are not loaded");
  cudaKernel_t& found = here.known[name];
  if (!found) {
    check(cudaLibraryGetKernel(&found, here.library, name.c_str()), name.c_str());
    // Convolutions use more shared memory than a kernel has without asking.
    const void* function = reinterpret_cast<const void*>(found);
    int most = is_hopper() ? 100 * 1024 : 80 * 1024;
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most), name.c_str());
  }
  return found;
}

void launch(const std::string& name, dim3 grid, dim3 block, void* argument, size_t shared = 0) {
  void* arguments[] = {argument};
  auto stream = at::cuda::getCurrentCUDAStream();
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel(name)), grid, block, arguments, shared, stream), name.c_str());
}

// Counters that kernels leave at zero. One set a stream: what runs on a stream runs in order.
Tensor counters() {
  static std::mutex lock;
  static std::unordered_map<int64_t, Tensor> all;
  auto stream = at::cuda::getCurrentCUDAStream();
  std::lock_guard<std::mutex> guard(lock);
  Tensor& mine = all[static_cast<int64_t>(stream.id()) * 64 + stream.device_index()];
  if (!mine.defined()) {
    TORCH_CHECK(c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None,
                "the first norm on a stream cannot be part of a graph");
    mine = at::zeros({4096}, at::TensorOptions().dtype(at::kInt).device(at::kCUDA, stream.device_index()));
  }
  return mine;
}

const char* suffix(const Tensor& x) { return x.scalar_type() == at::kBFloat16 ? "bf16" : "float"; }

void check_kind(const Tensor& x) {
  TORCH_CHECK(x.is_cuda() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat),
              "the fused kernels want bfloat16 or float on a GPU");
}

// ------------------------------------------------------------------------------- batch norm

// As in kernels.cu.
struct Norm {
  const void *x, *add;
  void* sum;
  const void* residual;
  void* y;
  const void *dy, *dy2, *dsum;
  void *g, *dx;
  const float *weight, *bias;
  float *running_mean, *running_var, *mean, *invstd, *scale, *shift, *coefficients, *dweight, *dbias, *partial;
  unsigned* counter;
  long long rows;
  int columns, views, chunks;
  float momentum, epsilon;
};

enum { UPDATE = 0, BATCH = 1, RUNNING = 2 };

struct Shape {
  dim3 grid;
  void operator()(Norm& n, const Tensor& x, int64_t views) {
    n.views = static_cast<int>(views);
    n.columns = static_cast<int>(x.size(1));
    n.rows = x.size(0) / views * x.size(2) * x.size(3);
    TORCH_CHECK(n.columns % 8 == 0, "the fused norm wants channels in eights, not ", n.columns);
    TORCH_CHECK(n.columns <= 4096 * 64, "too many channels for the fused norm: ", n.columns);
    long long tiles = (n.columns + 63) / 64, most = std::max<long long>(1, n.rows / 64);
    long long blocks = 4 * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    n.chunks = static_cast<int>(std::min(most, std::max<long long>(1, blocks / (tiles * views))));
    grid = dim3(static_cast<unsigned>(tiles), n.chunks, n.views);
  }
};

const dim3 NORM_BLOCK(8, 32);

struct FusedNorm : torch::autograd::Function<FusedNorm> {
  // x [views * batch, columns, H, W]; returns y, and x + add where add is given, else y once more
  // (with memory of its own gradient, so that two consumers cost no addition).
  static variable_list forward(AutogradContext* ctx, Tensor x, std::optional<Tensor> add, std::optional<Tensor> residual,
                               Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, bool relu,
                               int64_t views, int64_t mode, double momentum, double epsilon) {
    check_kind(x);
    const auto format = at::MemoryFormat::ChannelsLast;
    x = x.contiguous(format);
    Norm n = {};
    Shape shape;
    shape(n, x, views);
    auto numbers = x.options().dtype(at::kFloat);
    Tensor y = at::empty_like(x, x.options(), format);
    Tensor table = at::empty({4, views, n.columns}, numbers);  // mean, invstd, scale, shift
    Tensor sum = x;
    if (add) {
      add = add->contiguous(format);
      n.add = add->data_ptr();
      sum = at::empty_like(x, x.options(), format);
      n.sum = sum.data_ptr();
    }
    if (residual) {
      residual = residual->contiguous(format);
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
    const std::string kind = suffix(x);
    if (mode == RUNNING) {
      TORCH_CHECK(!add, "evaluation adds before the norm");
      launch("running_scale", dim3((n.columns + 127) / 128), dim3(128), &n);
    } else {
      Tensor partial = at::empty({views * n.chunks * 2 * n.columns}, numbers);
      Tensor counter = counters();
      n.partial = partial.data_ptr<float>();
      n.counter = reinterpret_cast<unsigned*>(counter.data_ptr<int>());
      launch("statistics_" + kind, shape.grid, NORM_BLOCK, &n);
    }
    launch((relu ? "apply_relu_" : "apply_") + kind, shape.grid, NORM_BLOCK, &n);
    ctx->set_materialize_grads(false);  // an output nobody uses costs nothing
    ctx->saved_data["relu"] = relu;
    ctx->saved_data["views"] = views;
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["add"] = add.has_value();
    ctx->saved_data["residual"] = residual.has_value();
    ctx->save_for_backward({sum, residual ? y : Tensor(), weight, table});
    if (add) return {y, sum};
    Tensor again = at::empty({0}, y.options()).set_(y.storage(), 0, y.sizes(), y.strides());
    return {y, again};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &y = saved[1], &weight = saved[2], &table = saved[3];
    bool relu = ctx->saved_data["relu"].toBool(), add = ctx->saved_data["add"].toBool();
    bool residual = ctx->saved_data["residual"].toBool();
    int64_t views = ctx->saved_data["views"].toInt();
    TORCH_CHECK(ctx->saved_data["mode"].toInt() != RUNNING, "no gradient through a norm by running statistics");
    const auto format = at::MemoryFormat::ChannelsLast;
    auto flat = [&](Tensor& gradient) {
      if (gradient.defined()) gradient = gradient.contiguous(format);
    };
    Tensor dy = gradients[0], other = gradients[1];
    flat(dy);
    flat(other);
    if (!dy.defined() && !add) std::swap(dy, other);
    if (!dy.defined() && !other.defined()) return variable_list(12);
    if (!dy.defined()) dy = at::zeros_like(x, x.options(), format);
    Norm n = {};
    Shape shape;
    shape(n, x, views);
    auto numbers = x.options().dtype(at::kFloat);
    int64_t plane = views * n.columns;
    Tensor dx = at::empty_like(x, x.options(), format), g;
    Tensor coefficients = at::empty({3 * plane}, numbers);
    Tensor dweight = at::empty_like(weight), dbias = at::empty_like(weight);
    Tensor partial = at::empty({views * n.chunks * 2 * n.columns}, numbers);
    Tensor counter = counters();
    n.x = x.data_ptr();
    n.dy = dy.data_ptr();
    if (other.defined()) (add ? n.dsum : n.dy2) = other.data_ptr();
    if (residual) {
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
    n.coefficients = coefficients.data_ptr<float>();
    n.dweight = dweight.data_ptr<float>();
    n.dbias = dbias.data_ptr<float>();
    n.partial = partial.data_ptr<float>();
    n.counter = reinterpret_cast<unsigned*>(counter.data_ptr<int>());
    const std::string kind = suffix(x);
    launch((relu ? "sums_relu_" : "sums_") + kind, shape.grid, NORM_BLOCK, &n);
    launch((relu ? "input_relu_" : "input_") + kind, shape.grid, NORM_BLOCK, &n);
    Tensor none;
    return {dx, add ? dx : none, residual ? g : none, dweight, dbias, none, none, none, none, none, none, none};
  }
};

// ------------------------------------------------------------------------------- convolution

// As in conv.cu.
struct Div {
  unsigned multiplier, shift, divisor;
  Div() = default;
  // n / d for n below 2^31 is a multiplication and a shift.
  explicit Div(unsigned d) : multiplier(0), shift(0), divisor(d) {
    if (d == 1) return;
    unsigned p = 31;
    while ((1ull << (p - 31)) < d) p++;
    multiplier = static_cast<unsigned>(((1ull << p) + d - 1) / d);
    shift = p - 32;
  }
};
struct Conv {
  const void *a, *b;
  void* out;
  long long part;
  int rows, inputs, outputs, a_stride, b_stride, out_stride, depth, log_a, taps, stride, padding, height, width, parts;
  Div image, row;
};
struct Parts {
  const float* from;
  void* to;
  long long count;
  int parts;
};

int log2_of(int64_t channels) {
  int64_t vectors = channels / 8;
  int log = 0;
  while ((1 << log) < vectors) log++;
  TORCH_CHECK(channels % 8 == 0 && (1 << log) == vectors, "the convolution wants 8, 16, 32, ... channels a group, not ", channels);
  return log;
}

int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
    dim3 grid(static_cast<unsigned>(over(c.rows, 128)), static_cast<unsigned>(over(columns, wide)), static_cast<unsigned>(groups));
    return launch_hopper(direction, grid, static_cast<int>(wide), c);
  }
  struct Tile { int bm, bn, wm, wn; };
  Tile tile = columns >= 128 ? Tile{128, 128, 64, 32} : columns >= 64 ? Tile{128, 64, 64, 32} : Tile{128, 32, 32, 32};
  auto blocks = [&](Tile t) { return over(c.rows, t.bm) * over(columns, t.bn) * groups; };
  if (columns >= 64 && blocks(tile) < 2 * processors) tile = Tile{64, 64, 32, 32};
  dim3 grid(static_cast<unsigned>(over(c.rows, tile.bm)), static_cast<unsigned>(over(columns, tile.bn)), static_cast<unsigned>(groups));
  launch_conv(std::string(direction) + std::to_string(tile.bm) + "x" + std::to_string(tile.bn), grid, tile.bm, tile.bn, tile.wm, tile.wn, c);
}

struct FusedConv : torch::autograd::Function<FusedConv> {
  // x [batch, K * inputs, H, W] channels last; w [K, outputs, inputs, k, k], inputs last in memory. Where
  // a group of x has more channels than w (an image's three, padded to eight), w is padded as well.
  static Tensor forward(AutogradContext* ctx, Tensor x, Tensor w, int64_t stride, int64_t padding) {
    const auto format = at::MemoryFormat::ChannelsLast;
    TORCH_CHECK(x.scalar_type() == at::kBFloat16 && w.scalar_type() == at::kBFloat16, "the convolution wants bfloat16");
    TORCH_CHECK(w.dim() == 5 && (w.size(3) == 3 || w.size(3) == 1) && w.size(3) == w.size(4) && (stride == 1 || stride == 2),
                "the convolution knows kernels of 1 and 3 and strides of 1 and 2");
    x = x.contiguous(format);
    int64_t groups = w.size(0), outputs = w.size(1), given = w.size(2), kernel = w.size(3), inputs = x.size(1) / groups;
    Tensor packed = w.permute({0, 1, 3, 4, 2});  // [K, outputs, k, k, inputs]
    if (given != inputs) {
      Tensor padded = at::zeros({groups, outputs, kernel, kernel, inputs}, w.options());
      padded.narrow(4, 0, given).copy_(packed);
      packed = padded;
    } else {
      packed = packed.contiguous();
    }
    int64_t height = (x.size(2) + 2 * padding - kernel) / stride + 1, width = (x.size(3) + 2 * padding - kernel) / stride + 1;
    Tensor y = at::empty({x.size(0), groups * outputs, height, width}, x.options(), format);
    Conv c = {};
    c.a = x.data_ptr();
    c.b = packed.data_ptr();
    c.out = y.data_ptr();
    describe(c, x, y, groups, inputs, outputs, kernel, stride, padding);
    c.log_a = log2_of(inputs);
    c.image = Div(static_cast<unsigned>(height * width));
    c.row = Div(static_cast<unsigned>(width));
    c.rows = static_cast<int>(y.size(0) * height * width);
    c.a_stride = static_cast<int>(x.size(1));
    c.out_stride = static_cast<int>(y.size(1));
    launch_rows("forward_", outputs, groups, c);
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["given"] = given;
    ctx->save_for_backward({x, packed});
    return y;
  }

  static void describe(Conv& c, const Tensor& x, const Tensor& y, int64_t groups, int64_t inputs, int64_t outputs,
                       int64_t kernel, int64_t stride, int64_t padding) {
    TORCH_CHECK(x.numel() < (1ll << 40) && y.size(0) * y.size(2) * y.size(3) < (1ll << 31), "too many pixels");
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
    auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1];
    int64_t stride = ctx->saved_data["stride"].toInt(), padding = ctx->saved_data["padding"].toInt();
    int64_t given = ctx->saved_data["given"].toInt();
    int64_t groups = w.size(0), outputs = w.size(1), kernel = w.size(2), inputs = w.size(4);
    Tensor dy = gradients[0].contiguous(format);
    Tensor dx, dw;
    Conv c = {};
    describe(c, x, dy, groups, inputs, outputs, kernel, stride, padding);
    if (ctx->needs_input_grad(0)) {
      dx = at::empty_like(x, x.options(), format);
      Conv d = c;
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
      launch_rows("backward_", inputs, groups, d);
    }
    if (ctx->needs_input_grad(1)) {
      dw = at::empty({groups, outputs, kernel, kernel, inputs}, w.options());
      c.a = x.data_ptr();
      c.b = dy.data_ptr();
      c.log_a = log2_of(inputs);
      c.image = Div(static_cast<unsigned>(dy.size(2) * dy.size(3)));
      c.row = Div(static_cast<unsigned>(dy.size(3)));
      c.rows = static_cast<int>(dy.size(0) * dy.size(2) * dy.size(3));
      c.a_stride = static_cast<int>(x.size(1));
      c.b_stride = static_cast<int>(dy.size(1));
      struct Tile { int bm, bn, wm, wn; };
      Tile tile = outputs >= 128 && c.depth >= 128 ? Tile{128, 128, 64, 32} : outputs >= 64 ? Tile{64, 64, 32, 32} : Tile{32, 128, 32, 32};
      int wide = outputs >= 128 ? 128 : outputs >= 64 ? 64 : 32, step = 32;
      dim3 grid(static_cast<unsigned>(over(outputs, tile.bm)), static_cast<unsigned>(over(c.depth, tile.bn)));
      if (is_hopper()) {
        grid = dim3(static_cast<unsigned>(over(c.depth, 128)), static_cast<unsigned>(over(outputs, wide)));
        step = 64;
      }
      // Enough blocks to fill the GPU, each with eight steps or more, and none without any.
      int64_t blocks = static_cast<int64_t>(grid.x) * grid.y * groups, all = over(c.rows, step);
      int64_t wanted = over(4 * at::cuda::getCurrentDeviceProperties()->multiProcessorCount, blocks);
      int64_t parts = std::max<int64_t>(1, std::min(wanted, all / 8));
      parts = over(all, over(all, parts));
      grid.z = static_cast<unsigned>(groups * parts);
      c.parts = static_cast<int>(parts);
      c.part = dw.numel();
      Tensor sums;
      if (parts > 1) sums = at::empty({parts * dw.numel()}, w.options().dtype(at::kFloat));
      c.out = parts > 1 ? sums.data_ptr() : dw.data_ptr();
      if (is_hopper()) {
        launch_hopper("weight_", grid, wide, c);
      } else {
        launch_conv("weight_" + std::to_string(tile.bm) + "x" + std::to_string(tile.bn), grid, tile.bm, tile.bn, tile.wm, tile.wn, c);
      }
      if (parts > 1) {
        Parts p = {sums.data_ptr<float>(), dw.data_ptr(), dw.numel(), static_cast<int>(parts)};
        launch("add_parts", dim3(static_cast<unsigned>(std::min<int64_t>(over(p.count, 8 * 256), 2048))), dim3(256), &p);
      }
      if (given != inputs) dw = dw.narrow(4, 0, given).contiguous();
      dw = dw.permute({0, 1, 4, 2, 3});
    }
    return {dx, dw, Tensor(), Tensor()};
  }
};

// ------------------------------------------------------------------------------- SGD

const int ENTRIES = 256, SPAN = 4096;
struct Entry {
  float *value, *momentum;
  const void* gradient;
  void* shadow;
  long long size;
  int work, half;
};
struct Sgd {
  Entry entries[ENTRIES];
  int count, pieces, clients;
  const float* lr;
  float* partial;
  float momentum, decay, clip;
  int nesterov;
};

struct Images {
  const uint8_t *fix, *first, *second;
  const float* lambda;
  void* out;
  long long count;
  int pixels, clients, channels, padded, batch;
  float scale[4], shift[4];
};

}  // namespace

extern "C" {

void fa_free(char* message) { free(message); }

// Whether the kernels of a GPU are loaded, and what tells apart GPUs that need other code.
char* fa_architecture(int device, int* loaded, int* architecture) {
  return guarded([&] {
    auto* properties = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
    *architecture = properties->major * 10 + properties->minor;
    std::lock_guard<std::mutex> lock(kernels_lock);
    *loaded = kernels[device].library != nullptr;
  });
}

// Compiles the kernels for a GPU; the caller frees the code.
char* fa_compile(const char* text, size_t length, int device, char** out, size_t* size) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    std::vector<char> code = compile(std::string(text, length));
    *out = static_cast<char*>(malloc(code.size()));
    memcpy(*out, code.data(), code.size());
    *size = code.size();
  });
}

// Loads compiled kernels.
char* fa_load(const char* code, int device) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    std::lock_guard<std::mutex> lock(kernels_lock);
    Kernels& here = kernels[device];
    if (!here.library) check(cudaLibraryLoadData(&here.library, code, nullptr, nullptr, 0, nullptr, nullptr, 0), "loading kernels");
  });
}

// Settings of the whole process: TF32 where it is wanted, and cuDNN's search for the fastest algorithm.
char* fa_allow(int tf32) {
  return guarded([&] {
    at::globalContext().setAllowTF32CuDNN(tf32 != 0);
    at::globalContext().setAllowTF32CuBLAS(tf32 != 0);
    at::globalContext().setBenchmarkCuDNN(true);
  });
}

// ---- streams and events

char* fa_stream_new(int device, c10::cuda::CUDAStream** out) {
  return guarded([&] { *out = new c10::cuda::CUDAStream(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device))); });
}
void fa_stream_free(c10::cuda::CUDAStream* stream) { delete stream; }
// Makes `stream` current on this thread and hands back the one that was.
char* fa_stream_enter(c10::cuda::CUDAStream* stream, c10::cuda::CUDAStream** before) {
  return guarded([&] {
    *before = new c10::cuda::CUDAStream(c10::cuda::getCurrentCUDAStream(stream->device_index()));
    c10::cuda::setCurrentCUDAStream(*stream);
  });
}
char* fa_stream_synchronize(c10::cuda::CUDAStream* stream) {
  return guarded([&] { stream->synchronize(); });
}

// ---- graphs

char* fa_graph_new(at::cuda::CUDAGraph** out) {
  return guarded([&] { *out = new at::cuda::CUDAGraph(); });
}
void fa_graph_free(at::cuda::CUDAGraph* graph) {
  guarded([&] { delete graph; });
}
// `share`: a graph whose memory this one may use, or null.
char* fa_graph_begin(at::cuda::CUDAGraph* graph, at::cuda::CUDAGraph* share) {
  return guarded([&] {
    at::cuda::MempoolId_t pool = {0, 0};
    if (share) pool = share->pool();
    graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  });
}
char* fa_graph_end(at::cuda::CUDAGraph* graph) {
  return guarded([&] { graph->capture_end(); });
}
char* fa_graph_replay(at::cuda::CUDAGraph* graph) {
  return guarded([&] { graph->replay(); });
}

// ---- pinned memory and the way up

// A batch on its way: filled in pinned memory, copied to a buffer on the GPU on one stream, and from
// there to where it is used on another.
struct fa_upload {
  void* host = nullptr;
  size_t size = 0;
  Tensor there;
  at::cuda::CUDAEvent arrived, taken;
};

char* fa_upload_new(int device, size_t size, fa_upload** out) {
  return guarded([&] {
    auto upload = std::make_unique<fa_upload>();
    upload->size = size;
    upload->there = at::empty({static_cast<int64_t>(size)},
                              at::TensorOptions().dtype(at::kByte).device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
    check(cudaHostAlloc(&upload->host, size, cudaHostAllocDefault), "allocating pinned memory");
    // The allocator may hand out memory that work queued on the current stream still reads; the first copy comes
    // on another stream and has to wait for that work.
    upload->taken.record(at::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)));
    *out = upload.release();
  });
}
void fa_upload_free(fa_upload* upload) {
  guarded([&] {
    upload->arrived.synchronize();
    upload->taken.synchronize();
    cudaFreeHost(upload->host);
    delete upload;
  });
}
void* fa_upload_memory(fa_upload* upload) { return upload->host; }
// Waits until the pinned memory may be written again.
char* fa_upload_wait(fa_upload* upload) {
  return guarded([&] { upload->arrived.synchronize(); });
}
// Copies the first `bytes` up on `stream`, once what was there has been taken.
char* fa_upload_start(fa_upload* upload, c10::cuda::CUDAStream* stream, size_t bytes) {
  return guarded([&] {
    TORCH_CHECK(bytes <= upload->size, "an upload of ", bytes, " bytes does not fit into ", upload->size);
    upload->taken.block(*stream);
    check(cudaMemcpyAsync(upload->there.data_ptr(), upload->host, bytes, cudaMemcpyHostToDevice, *stream), "uploading");
    upload->arrived.record(*stream);
  });
}
// Copies it to the contiguous tensor `to` on the current stream, once it has arrived.
char* fa_upload_take(fa_upload* upload, Tensor* to) {
  return guarded([&] {
    TORCH_CHECK(to->is_contiguous() && to->nbytes() <= upload->size, "an upload does not fit its tensor");
    auto stream = at::cuda::getCurrentCUDAStream(to->device().index());
    upload->arrived.block(stream);
    check(cudaMemcpyAsync(to->data_ptr(), upload->there.data_ptr(), to->nbytes(), cudaMemcpyDeviceToDevice, stream), "taking an upload");
    upload->taken.record(stream);
  });
}

// ---- memory

char* fa_peak_memory(int device, uint64_t* out) {
  return guarded([&] {
    auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    *out = static_cast<uint64_t>(stats.reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak);
  });
}
char* fa_empty_cache() {
  return guarded([&] { c10::cuda::CUDACachingAllocator::emptyCache(); });
}

// ---- operations; results belong to the caller

char* fa_norm(Tensor* x, Tensor* add, Tensor* residual, Tensor* weight, Tensor* bias, Tensor* mean, Tensor* variance,
              int relu, int64_t views, int mode, double momentum, double epsilon, Tensor** first, Tensor** second) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(x->device());
    auto option = [](Tensor* t) { return t ? std::optional<Tensor>(*t) : std::nullopt; };
    auto out = FusedNorm::apply(*x, option(add), option(residual), *weight, *bias, *mean, *variance, relu != 0, views,
                                static_cast<int64_t>(mode), momentum, epsilon);
    *first = new Tensor(out[0]);
    *second = new Tensor(out[1]);
  });
}

char* fa_conv(Tensor* x, Tensor* w, int64_t stride, int64_t padding, Tensor** out) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(x->device());
    *out = new Tensor(FusedConv::apply(*x, *w, stride, padding));
  });
}

char* fa_images(Tensor* fix, Tensor* first, Tensor* second, Tensor* lambda, const float* scale, const float* shift,
                int half, Tensor** out) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(fix->device());
    TORCH_CHECK(fix->dim() == 5 && fix->is_contiguous() && fix->size(4) <= 4, "images are [batch, K, H, W, C], C up to 4");
    int64_t batch = fix->size(0), clients = fix->size(1), channels = fix->size(4), views = first ? 2 : 1;
    auto kind = half ? at::kBFloat16 : at::kFloat;
    int64_t padded = half ? 8 : channels;
    *out = new Tensor(at::empty({views * batch, clients * padded, fix->size(2), fix->size(3)},
                                fix->options().dtype(kind), at::MemoryFormat::ChannelsLast));
    Images m = {};
    m.fix = fix->data_ptr<uint8_t>();
    if (first) {
      m.first = first->data_ptr<uint8_t>();
      m.second = second->data_ptr<uint8_t>();
      m.lambda = lambda->data_ptr<float>();
    }
    m.out = (*out)->data_ptr();
    m.padded = static_cast<int>(padded);
    m.count = fix->numel() / channels * padded;
    m.pixels = static_cast<int>(fix->size(2) * fix->size(3));
    m.clients = static_cast<int>(clients);
    m.channels = static_cast<int>(channels);
    m.batch = static_cast<int>(batch);
    for (int64_t c = 0; c < channels; c++) m.scale[c] = scale[c], m.shift[c] = shift[c];
    unsigned blocks = static_cast<unsigned>(std::min<int64_t>((m.count + 255) / 256, 4096));
    launch(half ? "images_bf16" : "images_float", dim3(blocks), dim3(256), &m);
  });
}

// values, gradients: n of each, [K, ...]; momenta, shadows: n of each, null where there is none.
char* fa_sgd(size_t n, Tensor** values, Tensor** momenta, Tensor** gradients, Tensor** shadows, Tensor* lr,
             double momentum, double decay, double clip, int nesterov) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(values[0]->device());
    TORCH_CHECK(n <= ENTRIES, "the fused step takes ", ENTRIES, " entries at most, not ", n);
    Sgd s = {};
    std::vector<Tensor> kept;
    int64_t clients = values[0]->size(0);
    for (size_t i = 0; i < n; i++) {
      Tensor gradient = *gradients[i];
      if (gradient.strides() != values[i]->strides()) {
        Tensor same = at::empty_strided(values[i]->sizes(), values[i]->strides(), gradient.options());
        same.copy_(gradient);
        gradient = same;
      }
      kept.push_back(gradient);
      Entry& e = s.entries[i];
      e.value = values[i]->data_ptr<float>();
      e.momentum = momenta[i] ? momenta[i]->data_ptr<float>() : nullptr;
      e.gradient = gradient.data_ptr();
      e.shadow = shadows[i] ? shadows[i]->data_ptr() : nullptr;
      e.size = values[i]->numel() / clients;
      e.work = s.pieces;
      e.half = gradient.scalar_type() == at::kBFloat16;
      s.pieces += static_cast<int>((e.size + SPAN - 1) / SPAN);
    }
    Tensor partial = at::empty({clients * s.pieces}, values[0]->options());
    s.count = static_cast<int>(n);
    s.clients = static_cast<int>(clients);
    s.lr = lr->data_ptr<float>();
    s.partial = partial.data_ptr<float>();
    s.momentum = static_cast<float>(momentum);
    s.decay = static_cast<float>(decay);
    s.clip = static_cast<float>(clip);
    s.nesterov = nesterov;
    dim3 grid(s.pieces, static_cast<unsigned>(clients));
    if (clip > 0) launch("square_sums", grid, dim3(256), &s);
    launch("sgd_step", grid, dim3(256), &s);
  });
}

}  // extern "C"
