// Captured work.

#pragma once

#include "common.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

struct fa_graph;

namespace {

// Graphs whose capture is in progress.
std::mutex captures_lock;
std::unordered_map<unsigned long long, fa_graph*> captures;

template <class F> void quietly(F body) {
  try {
    body();
  } catch (...) {
  }
}

}  // namespace

// libtorch's graph, except that a capture that fails leaves nothing behind: libtorch ends a capture, and what
// its allocators and generators know of it, on success alone.
struct fa_graph : at::cuda::CUDAGraph {
  ~fa_graph() { discard(); }

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
    replay();
  }

 private:
  static constexpr at::cuda::MempoolId_t NO_POOL = {0, 0};
  bool open = false;

  void forget() {
    std::lock_guard<std::mutex> guard(captures_lock);
    captures.erase(capture_id_);
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
