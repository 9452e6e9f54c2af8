// Streams, and a second one beside a backward pass.

#pragma once

#include "common.h"

#include <deque>
#include <unordered_set>

namespace {

// A stream that nobody else has while it lives. libtorch hands out the same 32 in turn, and one that is being captured
// must not get the work of others. Streams are reused, because libtorch's allocator caches memory per stream.
struct OwnStream {
  c10::DeviceIndex device;
  bool urgent;  // work on it goes before work on others
  cudaStream_t handle = nullptr;

  OwnStream(c10::DeviceIndex on, bool is_urgent) : device(on), urgent(is_urgent) {
    std::lock_guard<std::mutex> guard(lock);
    auto& free = idle[{device, urgent}];
    if (!free.empty()) {
      handle = free.back();
      free.pop_back();
      return;
    }
    c10::cuda::CUDAGuard here(device);
    int least = 0, most = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &most), "asking for the priorities of streams");
    check(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, urgent ? most : least), "creating a stream");
  }
  OwnStream(const OwnStream&) = delete;
  ~OwnStream() {
    std::lock_guard<std::mutex> guard(lock);
    idle[{device, urgent}].push_back(handle);
  }
  c10::cuda::CUDAStream get() const { return c10::cuda::getStreamFromExternal(handle, device); }

 private:
  static inline std::mutex lock;
  static inline std::map<std::pair<c10::DeviceIndex, bool>, std::vector<cudaStream_t>> idle;
};

// Gradients of weights beside a backward pass: nothing in the pass reads them, and each leaves a part of the GPU idle, as
// do the norms. So they run on a second stream, beside the gradients of inputs, which the pass waits for.
class Beside {
 public:
  // Begins on the current stream.
  static void begin() {
    auto stream = at::cuda::getCurrentCUDAStream();
    Beside& pass = of(stream);
    TORCH_CHECK(!pass.active, "a backward pass is in progress on this stream already");
    pass.active = true;
  }

  // What follows on the current stream comes after all gradients.
  static void end() {
    auto stream = at::cuda::getCurrentCUDAStream();
    Beside& pass = of(stream);
    pass.active = false;
    pass.weights.clear();
    std::deque<Work> left = std::move(pass.queued);  // gone even if waiting fails
    pass.queued.clear();
    for (Work& work : left) work.done.block(stream);
  }

  // Queues `work`, the gradient of `weight`, beside the pass that is in progress on the current stream; or on that stream
  // itself, if there is no pass or if something reads the gradient within it (`read`). `memory` is what the work uses.
  template <class F> static void run(bool read, const void* weight, std::vector<Tensor> memory, F work) {
    auto stream = at::cuda::getCurrentCUDAStream();
    Beside& pass = of(stream);
    if (read || !pass.active) return work();
    at::cuda::CUDAEvent ready;
    ready.record(stream);
    auto there = pass.second.get();
    ready.block(there);
    {
      c10::cuda::CUDAStreamGuard guard(there);
      work();
    }
    Work& queued = pass.queued.emplace_back();
    queued.memory = std::move(memory);
    queued.done.record(there);
    // libtorch adds the gradients of a weight that was used twice.
    bool again = !pass.weights.insert(weight).second;
    pass.wait(stream, again ? 0 : AHEAD);
  }

  explicit Beside(c10::DeviceIndex device) : second(device, false) {}

 private:
  // How many gradients may be outstanding. Their memory is not reusable until the pass has waited for them, and memory that
  // is reused soon is still in the L2 cache.
  static constexpr size_t AHEAD = 4;

  struct Work {
    at::cuda::CUDAEvent done;
    std::vector<Tensor> memory;
  };
  OwnStream second;
  bool active = false;
  std::deque<Work> queued;
  std::unordered_set<const void*> weights;

  // One per stream, for good: a second stream belongs to a capture until that capture ends. One thread at a time works on
  // a stream, either its owner or libtorch's thread for gradients.
  static Beside& of(const c10::cuda::CUDAStream& stream) {
    static std::mutex lock;
    static std::unordered_map<cudaStream_t, std::unique_ptr<Beside>> all;
    std::lock_guard<std::mutex> guard(lock);
    auto& found = all[stream];
    if (!found) found = std::make_unique<Beside>(stream.device_index());
    return *found;
  }

  // Has the pass wait for all but the last `left`.
  void wait(const c10::cuda::CUDAStream& pass, size_t left) {
    for (; queued.size() > left; queued.pop_front()) queued.front().done.block(pass);
  }
};

}  // namespace

struct fa_stream {
  std::unique_ptr<OwnStream> own;  // null: somebody else's
  c10::cuda::CUDAStream stream;
};
