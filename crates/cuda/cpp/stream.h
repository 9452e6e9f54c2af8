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
    std::lock_guard<std::mutex> guard(lock());
    auto& free = idle()[{device, urgent}];
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
    std::lock_guard<std::mutex> guard(lock());
    idle()[{device, urgent}].push_back(handle);
  }
  c10::cuda::CUDAStream get() const { return c10::cuda::getStreamFromExternal(handle, device); }

 private:
  // Never destroyed: threads of libtorch may outlive static variables.
  static std::mutex& lock() {
    static auto& one = *new std::mutex;
    return one;
  }
  static std::map<std::pair<c10::DeviceIndex, bool>, std::vector<cudaStream_t>>& idle() {
    static auto& all = *new std::map<std::pair<c10::DeviceIndex, bool>, std::vector<cudaStream_t>>;
    return all;
  }
};

// Gradients of weights beside a backward pass: nothing in the pass reads them, and each leaves a part of the GPU idle, as
// do the norms. So they run on a second stream, beside the gradients of inputs, which the pass waits for.
class Beside {
 public:
  explicit Beside(const c10::cuda::CUDAStream& stream) : first(stream), second(stream.device_index(), false) {}

  // Begins a pass on the current stream.
  static Beside& begin() {
    Beside& pass = *at_current(true);
    std::lock_guard<std::mutex> guard(pass.lock);
    TORCH_CHECK(!pass.active, "a backward pass is in progress on this stream already");
    pass.active = true;
    return pass;
  }

  // What follows on the stream of the pass comes after all gradients.
  void end() {
    std::lock_guard<std::mutex> guard(lock);
    active = false;
    weights.clear();
    std::deque<Work> left = std::move(queued);  // gone even if waiting fails
    queued.clear();
    for (Work& work : left) work.done.block(first);
  }

  // Queues `work`, the gradient of `weight`, beside the pass that is in progress on the current stream; or on that stream
  // itself, if there is no pass or if something reads the gradient within it (`read`). `memory` is what the work uses.
  template <class F> static void run(bool read, const void* weight, std::vector<Tensor> memory, F work) {
    Beside* pass = at_current(false);
    if (!pass) return work();
    std::lock_guard<std::mutex> guard(pass->lock);
    if (!pass->active) return work();
    // libtorch adds the gradients of a weight that was used twice, on the stream of the pass.
    bool again = !pass->weights.insert(weight).second;
    if (read) work();
    else pass->queue(std::move(memory), work);
    pass->wait(again ? 0 : AHEAD);
  }

 private:
  // How many gradients may be outstanding. Their memory is not reusable until the pass has waited for them, and memory that
  // is reused soon is still in the L2 cache.
  static constexpr size_t AHEAD = 4;

  struct Work {
    at::cuda::CUDAEvent done;
    std::vector<Tensor> memory;
  };
  std::mutex lock;
  c10::cuda::CUDAStream first;
  OwnStream second;
  bool active = false;
  std::deque<Work> queued;
  std::unordered_set<const void*> weights;

  // That of the current stream, or null. Once made it stays: a second stream belongs to a capture until that capture ends.
  static Beside* at_current(bool make) {
    static auto& lock = *new std::mutex;
    static auto& all = *new std::map<std::pair<c10::DeviceIndex, cudaStream_t>, std::unique_ptr<Beside>>;
    auto stream = at::cuda::getCurrentCUDAStream();
    std::lock_guard<std::mutex> guard(lock);
    auto found = all.find({stream.device_index(), stream.stream()});
    if (found != all.end()) return found->second.get();
    if (!make) return nullptr;
    auto& made = all[{stream.device_index(), stream.stream()}];
    made = std::make_unique<Beside>(stream);
    return made.get();
  }

  template <class F> void queue(std::vector<Tensor> memory, F work) {
    auto there = second.get();
    at::cuda::CUDAEvent ready;
    ready.record(first);
    ready.block(there);
    Work& begun = queued.emplace_back();
    begun.memory = std::move(memory);
    std::exception_ptr failed;
    try {
      c10::cuda::CUDAStreamGuard guard(there);
      work();
    } catch (...) {
      failed = std::current_exception();
    }
    begun.done.record(there);  // after a failure, too: a part of it may be running
    if (failed) std::rethrow_exception(failed);
  }

  // Has the pass wait for all but the last `left`.
  void wait(size_t left) {
    for (; queued.size() > left; queued.pop_front()) queued.front().done.block(first);
  }
};

}  // namespace

struct fa_stream {
  std::shared_ptr<OwnStream> own;
  c10::cuda::CUDAStream stream;
};

// What was current before a stream was entered, which stays this one's while it may be current.
struct fa_entered {
  std::shared_ptr<OwnStream> own;
  c10::cuda::CUDAStream before;
  c10::DeviceIndex device;
};

struct fa_pass {
  Beside* pass;
};
