// Batches on their way to the GPU.

#pragma once

#include "common.h"

// Filled in pinned memory, copied to a buffer on the GPU on one stream, and from there to where it is used
// on another. Neither copy can be part of a graph: a graph would read the pinned memory whenever it is
// replayed.
struct fa_upload {
  void* host = nullptr;
  Tensor there;
  at::cuda::CUDAEvent arrived, taken;

  fa_upload(c10::DeviceIndex device, size_t size) {
    there = at::empty({static_cast<int64_t>(size)}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA, device));
    // The allocator may hand out memory that work queued on the current stream still reads; the first copy comes
    // on another stream and has to wait for that work.
    taken.record(at::cuda::getCurrentCUDAStream(device));
    size_t bytes = std::max<size_t>(size, 1);  // never null
    check(cudaHostAlloc(&host, bytes, cudaHostAllocDefault), "allocating pinned memory");
    memset(host, 0, bytes);
  }
  fa_upload(const fa_upload&) = delete;
  ~fa_upload() { cudaFreeHost(host); }

  // Copies the first `bytes` up on `stream`, after the copy before this one, and once that was taken.
  void start(const c10::cuda::CUDAStream& stream, size_t bytes) {
    TORCH_CHECK(!is_capturing(stream), "an upload cannot be part of a graph");
    arrived.block(stream);
    taken.block(stream);
    check(cudaMemcpyAsync(there.data_ptr(), host, bytes, cudaMemcpyHostToDevice, stream), "uploading");
    arrived.record(stream);
  }

  // Copies as much as `to` holds to it on the current stream, once it has arrived and after what was taken before.
  void take(const Tensor& to) {
    auto stream = at::cuda::getCurrentCUDAStream(to.device().index());
    TORCH_CHECK(!is_capturing(stream), "an upload cannot be part of a graph");
    arrived.block(stream);
    taken.block(stream);
    check(cudaMemcpyAsync(to.data_ptr(), there.data_ptr(), to.nbytes(), cudaMemcpyDeviceToDevice, stream), "taking an upload");
    taken.record(stream);
  }
};
