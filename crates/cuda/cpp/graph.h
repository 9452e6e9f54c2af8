// Captured work.

#pragma once

#include "common.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/record_function.h>

#include <unordered_set>

struct fa_graph;

namespace {

// Captures in progress, by CUDA's number of them: what they queue may come from another thread, where
// libtorch computes gradients.
std::mutex captures_lock;
std::unordered_map<unsigned long long, fa_graph*> captures;

std::unique_ptr<at::ObserverContext> before_operation(const at::RecordFunction& operation);
void after_operation(const at::RecordFunction& operation, at::ObserverContext*);

template <class F> void quietly(F body) {
  try {
    body();
  } catch (...) {
  }
}

}  // namespace

// libtorch's graph, with two differences. It holds the memory that its work uses and that was there before
// the work, so that a replay never meets memory that was given to others; memory allocated by the work
// itself belongs to the graph's pool. And a capture that fails leaves nothing behind: libtorch ends a
// capture, and what its allocators and generators know of it, on success alone.
struct fa_graph : at::cuda::CUDAGraph {
  ~fa_graph() {
    discard();
    // Others may get the memory once the replays queued so far are done.
    for (auto& each : held)
      quietly([&] { c10::cuda::CUDACachingAllocator::recordStream(each.second.storage.data_ptr(), capture_stream_); });
  }

  void begin(fa_graph* share) {
    auto stream = at::cuda::getCurrentCUDAStream();
    TORCH_CHECK(stream != at::cuda::getDefaultCUDAStream(), "the default stream cannot be captured");
    TORCH_CHECK(!is_capturing(stream), "the current stream is being captured already");
    at::cuda::MempoolId_t pool = NO_POOL;
    if (share) pool = share->pool();
    std::lock_guard<std::mutex> guard(captures_lock);
    for (auto& [id, other] : captures) TORCH_CHECK(other->mempool_id_ != pool, "the shared memory is being captured into already");
    try {
      capture_begin(pool, cudaStreamCaptureModeThreadLocal);
      open = true;
      captures.emplace(capture_id_, this);
      watch = at::addThreadLocalCallback(
          at::RecordFunctionCallback(before_operation, after_operation).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
    } catch (...) {
      captures.erase(capture_id_);
      close();
      throw;
    }
  }

  void end() {
    forget();
    c10::cuda::CUDAStreamGuard guard(capture_stream_);  // the work may have left another one current
    try {
      capture_end();
      open = false;
    } catch (...) {
      if (!capture_ended_) close();
      open = false;
      throw;
    }
  }

  void discard() {
    if (!open) return;
    forget();
    close();
  }

  void run() {
    TORCH_CHECK(at::cuda::getCurrentCUDAStream(capture_dev_) == capture_stream_, "a graph runs on the stream that it was captured on");
    for (auto& [key, memory] : held) TORCH_CHECK(memory.storage.data() == memory.start, "a tensor of a graph was resized after the capture");
    replay();
  }

  // Memory that work reads or writes, unless the work allocated it.
  void used(const Tensor& t) {
    if (!t.defined() || !t.has_storage()) return;
    std::lock_guard<std::mutex> guard(lock);
    const void* key = t.storage().unsafeGetStorageImpl();
    if (!own.count(key)) held.emplace(key, Memory{t.storage(), t.storage().data()});
  }

  // Memory that work returns: its own, unless it was there before.
  void made(const Tensor& t) {
    if (!t.defined() || !t.has_storage()) return;
    std::lock_guard<std::mutex> guard(lock);
    const void* key = t.storage().unsafeGetStorageImpl();
    if (!held.count(key)) own.insert(key);
  }

 private:
  static constexpr at::cuda::MempoolId_t NO_POOL = {0, 0};
  struct Memory {
    c10::Storage storage;
    const void* start;
  };
  bool open = false;
  at::CallbackHandle watch = 0;
  std::mutex lock;
  std::unordered_map<const void*, Memory> held;
  // Addresses of storages made by the work. Those that are gone by now left their address to others of the work.
  std::unordered_set<const void*> own;

  // The capture is over: nothing is watched any more.
  void forget() {
    quietly([&] { at::removeCallback(watch); });
    std::lock_guard<std::mutex> guard(captures_lock);
    captures.erase(capture_id_);
    own.clear();
  }

  // Ends whatever part of a capture is still open. Each step is tried: where the capture failed decides which of
  // them are due, and the others have no effect.
  void close() {
    if (open) {
      cudaGraph_t captured = nullptr;
      cudaStreamEndCapture(capture_stream_, &captured);
      if (captured) cudaGraphDestroy(captured);
      (void)cudaGetLastError();
      open = false;
    }
    for (auto& [state, increment] : captured_generator_states_) state->capturing_ = false;
    if (mempool_id_ == NO_POOL) return;
    quietly([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(capture_dev_, mempool_id_); });
    quietly([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(mempool_id_); });
    capture_ended_ = true;  // so that the destructor gives the pool back
  }
};

namespace {

// The graph that the current stream is being captured for, if any.
fa_graph* current_capture() {
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  auto stream = at::cuda::getCurrentCUDAStream();
  check(cudaStreamGetCaptureInfo(stream, &status, &id), "asking for a stream's capture");
  if (status != cudaStreamCaptureStatusActive) return nullptr;
  std::lock_guard<std::mutex> guard(captures_lock);
  auto found = captures.find(id);
  return found == captures.end() ? nullptr : found->second;
}

// For kernels that are launched here: only libtorch's own operations are watched.
void hold(at::TensorList tensors) {
  if (fa_graph* graph = current_capture())
    for (const Tensor& t : tensors) graph->used(t);
}

template <class F> void each_tensor(const c10::IValue& value, F f) {
  if (value.isTensor()) f(value.toTensor());
  else if (value.isList())
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, f);
}

std::unique_ptr<at::ObserverContext> before_operation(const at::RecordFunction& operation) {
  if (fa_graph* graph = current_capture())
    for (const c10::IValue& input : operation.inputs()) each_tensor(input, [&](const Tensor& t) { graph->used(t); });
  return nullptr;
}
void after_operation(const at::RecordFunction& operation, at::ObserverContext*) {
  if (fa_graph* graph = current_capture())
    for (const c10::IValue& output : operation.outputs()) each_tensor(output, [&](const Tensor& t) { graph->made(t); });
}

}  // namespace
