// What all parts of the shim use: libtorch, failures as messages, and what kernels expect of memory.

#pragma once

#include "message.h"

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
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) (void)cudaGetLastError();  // or libtorch's next check would report it once more
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// Kernels move 16 bytes at a time.
bool is_aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0; }

// `t` as the kernels read it: channels last, from an aligned address. A copy unless it is so already.
Tensor packed(const Tensor& t) {
  const auto format = at::MemoryFormat::ChannelsLast;
  Tensor out = t.contiguous(format);
  return is_aligned(out) ? out : out.clone(format);
}

// What libtorch hands to a gradient is what the forward pass saved or returned, unless a tensor was changed
// since then by other means than an operation.
void check_like(const Tensor& t, const Tensor& like, const char* what) {
  TORCH_CHECK(t.sizes() == like.sizes() && t.scalar_type() == like.scalar_type() && t.device() == like.device() &&
                  t.data_ptr() != nullptr,
              what, ": expected ", like.toString(), " ", like.sizes(), " on ", like.device(), ", found ", t.toString(),
              " ", t.sizes(), " on ", t.device());
}

// The same for a gradient in single precision.
void check_gradient(const Tensor& t, at::IntArrayRef size, at::Device device, const char* what) {
  TORCH_CHECK(t.sizes() == size && t.scalar_type() == at::kFloat && t.device() == device && t.data_ptr() != nullptr, what, ": expected ", size, " on ",
              device, ", found ", t.toString(), " ", t.sizes(), " on ", t.device());
}

// The gradients computed here are numbers to libtorch: it would take them for constants.
void no_second_derivative() {
  TORCH_CHECK(!at::GradMode::is_enabled(), "the fused kernels have no second derivatives");
}

// How the names of kernels for this number format end.
const char* suffix(const Tensor& x) { return x.scalar_type() == at::kBFloat16 ? "bf16" : "float"; }

int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  check(cudaStreamIsCapturing(stream, &status), "asking whether a stream is being captured");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace
