// What the Rust bindings of libtorch lack for the GPU: streams, graphs, TF32, pinned memory, and the
// fused kernels of kernels.cu as differentiable operations. Plain C functions; each returns null or a
// message that the thread's next call overwrites. Tensors are borrowed unless a comment says otherwise.
//
// The caller has checked all arguments (src/checks.rs): nothing here looks again at their sizes, strides,
// kinds and devices.

#include "conv.h"
#include "graph.h"
#include "head.h"
#include "loss.h"
#include "norm.h"
#include "upload.h"

namespace {

std::optional<Tensor> option(Tensor* t) { return t ? std::optional<Tensor>(*t) : std::nullopt; }

const int ENTRIES = 256;
struct Entry {
  float *value, *momentum;
  const void* gradient;
  void* shadow;
  long long size;
  int work, half;
};
struct Sgd {
  Entry entries[ENTRIES];
  int count, pieces, span;
  const float* lr;
  float *partial, *scale;
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

void fa_free(char* code) { free(code); }

// Whether the kernels of a GPU are loaded, and what tells apart GPUs that need other code.
const char* fa_architecture(int device, int* loaded, int* architecture) {
  return guarded([&] {
    auto* properties = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
    *architecture = properties->major * 10 + properties->minor;
    std::lock_guard<std::mutex> lock(kernels_lock);
    *loaded = kernels[device].library != nullptr;
  });
}

// Compiles the kernels for an architecture, with those for Hopper or without; the caller frees the code.
const char* fa_compile(const char* text, size_t length, int architecture, int hopper, char** out, size_t* size) {
  return guarded([&] {
    std::vector<char> code = compile(std::string(text, length), architecture, hopper != 0);
    *out = static_cast<char*>(malloc(code.size()));
    TORCH_CHECK(*out, "no memory for the kernels' code");
    memcpy(*out, code.data(), code.size());
    *size = code.size();
  });
}

// Loads compiled kernels.
const char* fa_load(const char* code, int device, int hopper) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    std::lock_guard<std::mutex> lock(kernels_lock);
    Kernels& here = kernels[device];
    if (here.library) return;
    check(cudaLibraryLoadData(&here.library, code, nullptr, nullptr, 0, nullptr, nullptr, 0), "loading kernels");
    here.hopper = hopper != 0;
  });
}

// Whether a kernel has been launched on a GPU.
const char* fa_launched(int device, const char* name, size_t length, int* found) {
  return guarded([&] {
    std::lock_guard<std::mutex> lock(kernels_lock);
    *found = kernels[device].known.count(std::string(name, length)) > 0;
  });
}

// Settings of the whole process: TF32 where it is wanted, and cuDNN's search for the fastest algorithm or algorithms that
// repeat themselves.
const char* fa_products(int tf32, int search) {
  return guarded([&] {
    at::globalContext().setAllowTF32CuDNN(tf32 != 0);
    at::globalContext().setAllowTF32CuBLAS(tf32 != 0);
    at::globalContext().setBenchmarkCuDNN(search != 0);
    at::globalContext().setDeterministicCuDNN(search == 0);
  });
}

// ---- streams

const char* fa_stream_new(int device, fa_stream** out) {
  return guarded([&] {
    auto own = std::make_shared<OwnStream>(static_cast<c10::DeviceIndex>(device), true);
    auto stream = own->get();
    *out = new fa_stream{std::move(own), stream};
  });
}
void fa_stream_free(fa_stream* stream) {
  guarded([&] { delete stream; });
}
// Makes `stream` and its GPU current on this thread; the same thread leaves it.
const char* fa_stream_enter(fa_stream* stream, fa_entered** out) {
  return guarded([&] {
    auto device = stream->stream.device_index();
    auto entered = std::make_unique<fa_entered>(fa_entered{stream->own, c10::cuda::getCurrentCUDAStream(device), c10::cuda::current_device()});
    c10::cuda::set_device(device);
    c10::cuda::setCurrentCUDAStream(stream->stream);
    *out = entered.release();
  });
}
void fa_stream_leave(fa_entered* entered) {
  guarded([&] {
    std::unique_ptr<fa_entered> gone(entered);
    c10::cuda::setCurrentCUDAStream(entered->before);
    c10::cuda::set_device(entered->device);
  });
}
const char* fa_stream_synchronize(fa_stream* stream) {
  return guarded([&] { stream->stream.synchronize(); });
}

// ---- backward passes

// Begins one on the current stream; whoever began it ends it.
const char* fa_backward_begin(fa_pass** out) {
  return guarded([&] { *out = new fa_pass{&Beside::begin()}; });
}
const char* fa_backward_end(fa_pass* pass) {
  return guarded([&] {
    std::unique_ptr<fa_pass> gone(pass);
    pass->pass->end();
  });
}

// ---- graphs

const char* fa_graph_new(fa_graph** out) {
  return guarded([&] { *out = new fa_graph(); });
}
void fa_graph_free(fa_graph* graph) {
  guarded([&] { delete graph; });
}
// `share`: a graph whose memory this one may use, or null. If it succeeds, the same thread ends or discards
// the capture.
const char* fa_graph_begin(fa_graph* graph, fa_graph* share) {
  return guarded([&] { graph->begin(share); });
}
// If it fails, the capture is discarded.
const char* fa_graph_end(fa_graph* graph) {
  return guarded([&] { graph->end(); });
}
void fa_graph_discard(fa_graph* graph) {
  guarded([&] { graph->discard(); });
}
const char* fa_graph_replay(fa_graph* graph) {
  return guarded([&] { graph->run(); });
}

// ---- pinned memory and the way up

const char* fa_upload_new(int device, size_t size, fa_upload** out) {
  return guarded([&] { *out = new fa_upload(static_cast<c10::DeviceIndex>(device), size); });
}
// Waits for copies in progress; memory that they may still use, because waiting fails, is never freed.
void fa_upload_free(fa_upload* upload) {
  guarded([&] {
    upload->arrived.synchronize();
    upload->taken.synchronize();
    delete upload;
  });
}
void* fa_upload_memory(fa_upload* upload) { return upload->host; }
// Waits until the pinned memory may be written again.
const char* fa_upload_wait(fa_upload* upload) {
  return guarded([&] { upload->arrived.synchronize(); });
}
const char* fa_upload_start(fa_upload* upload, fa_stream* stream, size_t bytes) {
  return guarded([&] { upload->start(stream->stream, bytes); });
}
// `to`: contiguous bytes on the same GPU, as many as were started or fewer.
const char* fa_upload_take(fa_upload* upload, Tensor* to) {
  return guarded([&] { upload->take(*to); });
}

// ---- memory

const char* fa_peak_memory(int device, uint64_t* out) {
  return guarded([&] {
    auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    *out = static_cast<uint64_t>(stats.reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak);
  });
}
const char* fa_empty_cache() {
  return guarded([&] { c10::cuda::CUDACachingAllocator::emptyCache(); });
}

// ---- operations; results belong to the caller

const char* fa_norm(Tensor* x, Tensor* residual, Tensor* sums, int passes, Tensor* weight, Tensor* bias, Tensor* mean, Tensor* variance,
              int relu, int64_t views, int mode, double momentum, double epsilon, Tensor** first, Tensor** second) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(x->device());
    auto out = FusedNorm::apply(*x, option(residual), option(sums), passes != 0, *weight, *bias, *mean, *variance, relu != 0, views,
                                static_cast<int64_t>(mode), momentum, epsilon);
    *first = new Tensor(out[0]);
    *second = new Tensor(out[1]);
  });
}

const char* fa_conv(Tensor* x, Tensor* w, int64_t stride, int64_t padding, Tensor* add, int64_t views, Tensor** out, Tensor** sums) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(x->device());
    auto found = FusedConv::apply(*x, *w, stride, padding, option(add), views);
    *out = new Tensor(found[0]);
    *sums = found[1].numel() > 0 ? new Tensor(found[1]) : nullptr;
  });
}

const char* fa_fix_mix_loss(Tensor* logits, Tensor* adjustment, Tensor* labels, Tensor* weights, Tensor* mix_labels, Tensor* mix_weights,
                            Tensor* lambda, double mix_weight, Tensor** total, Tensor** terms) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(logits->device());
    auto found = FusedLoss::apply(*logits, option(adjustment), *labels, option(weights), option(mix_labels), option(mix_weights), option(lambda), mix_weight);
    *total = new Tensor(found[0]);
    *terms = new Tensor(found[1]);
  });
}

const char* fa_pool(Tensor* x, int64_t clients, Tensor** out) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(x->device());
    *out = new Tensor(FusedPool::apply(*x, clients));
  });
}

const char* fa_head(Tensor* x, Tensor* w, Tensor* b, Tensor** out) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(x->device());
    *out = new Tensor(FusedHead::apply(*x, *w, *b));
  });
}

const char* fa_images(Tensor* fix, Tensor* first, Tensor* second, Tensor* lambda, const float* scale, const float* shift,
                int half, Tensor** out) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(fix->device());
    int64_t batch = fix->size(0), clients = fix->size(1), channels = fix->size(4), views = first ? 2 : 1;
    auto kind = half ? at::kBFloat16 : at::kFloat;
    int64_t padded = half ? 8 : channels;
    Tensor x = at::empty({views * batch, clients * padded, fix->size(2), fix->size(3)}, fix->options().dtype(kind),
                         at::MemoryFormat::ChannelsLast);
    Images m = {};
    hold({*fix});
    m.fix = fix->data_ptr<uint8_t>();
    if (first) {
      hold({*first, *second, *lambda});
      m.first = first->data_ptr<uint8_t>();
      m.second = second->data_ptr<uint8_t>();
      m.lambda = lambda->data_ptr<float>();
    }
    m.out = x.data_ptr();
    m.padded = static_cast<int>(padded);
    m.count = fix->numel() / channels;
    m.pixels = static_cast<int>(fix->size(2) * fix->size(3));
    m.clients = static_cast<int>(clients);
    m.channels = static_cast<int>(channels);
    m.batch = static_cast<int>(batch);
    for (int64_t c = 0; c < channels; c++) m.scale[c] = scale[c], m.shift[c] = shift[c];
    unsigned blocks = static_cast<unsigned>(std::min<int64_t>((m.count + 255) / 256, 4096));
    launch(half ? "images_bf16" : "images_float", dim3(blocks), dim3(256), &m);
    *out = new Tensor(x);
  });
}

// values, gradients: n of each, [K, ...]; momenta, shadows: n of each, null where there is none.
const char* fa_sgd(size_t n, Tensor** values, Tensor** momenta, Tensor** gradients, Tensor** shadows, Tensor* lr,
             double momentum, double decay, double clip, int nesterov) {
  return guarded([&] {
    c10::cuda::CUDAGuard guard(values[0]->device());
    Sgd s = {};
    std::vector<Tensor> kept = {*lr};
    int64_t clients = values[0]->size(0), all = 0, processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    for (size_t i = 0; i < n; i++) all += values[i]->numel();
    // Some 16 pieces per processor, of 4,096 numbers at a time; a block of a longer one would finish late.
    s.span = static_cast<int>(4096 * std::min<int64_t>(4, 1 + all / (16 * processors * 4096)));
    for (size_t i = 0; i < n; i++) {
      Tensor gradient = *gradients[i];
      if (gradient.strides() != values[i]->strides() || !is_aligned(gradient)) {
        Tensor same = at::empty_strided(values[i]->sizes(), values[i]->strides(), gradient.options());
        same.copy_(gradient);
        gradient = same;
      }
      kept.insert(kept.end(), {*values[i], momenta[i] ? *momenta[i] : Tensor(), gradient, shadows[i] ? *shadows[i] : Tensor()});
      Entry& e = s.entries[i];
      e.value = values[i]->data_ptr<float>();
      e.momentum = momenta[i] ? momenta[i]->data_ptr<float>() : nullptr;
      e.gradient = gradient.data_ptr();
      e.shadow = shadows[i] ? shadows[i]->data_ptr() : nullptr;
      e.size = values[i]->numel() / clients;
      e.work = s.pieces;
      e.half = gradient.scalar_type() == at::kBFloat16;
      s.pieces += static_cast<int>((e.size + s.span - 1) / s.span);
    }
    hold(kept);
    Tensor partial = at::empty({clients * s.pieces}, values[0]->options()), scale = at::empty({clients}, values[0]->options());
    s.count = static_cast<int>(n);
    s.lr = lr->data_ptr<float>();
    s.partial = partial.data_ptr<float>();
    s.scale = clip > 0 ? scale.data_ptr<float>() : nullptr;
    s.momentum = static_cast<float>(momentum);
    s.decay = static_cast<float>(decay);
    s.clip = static_cast<float>(clip);
    s.nesterov = nesterov;
    dim3 grid(s.pieces, static_cast<unsigned>(clients));
    if (clip > 0) {
      launch("square_sums", grid, dim3(256), &s);
      launch("clip_scales", dim3(static_cast<unsigned>(clients)), dim3(256), &s);
    }
    launch("sgd_step", grid, dim3(256), &s);
  });
}

}  // extern "C"
