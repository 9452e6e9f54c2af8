// The kernels of a GPU: compiled once, loaded, and launched by name.

#pragma once

#include "graph.h"

namespace {

// One library per device, compiled for its architecture.

struct Kernel {
  cudaKernel_t function = nullptr;
  size_t shared = 48 * 1024;  // bytes of shared memory it may have; more has to be asked for
};
struct Kernels {
  cudaLibrary_t library = nullptr;
  bool hopper = false;  // with those of hopper.cu and patch.cu
  std::unordered_map<std::string, Kernel> known;
};
std::mutex kernels_lock;
std::unordered_map<int, Kernels> kernels;

// NVRTC comes with libtorch; its stub library knows where.
struct Nvrtc {
  void* handle = nullptr;
  template <class F> F* find(const char* name) {
    void* symbol = dlsym(handle, name);
    TORCH_CHECK(symbol, "NVRTC has no ", name);
    return reinterpret_cast<F*>(symbol);
  }
  Nvrtc() {
    for (const char* name : {"libcaffe2_nvrtc.so", "libnvrtc.so.13"})
      if ((handle = dlopen(name, RTLD_NOW))) break;
    TORCH_CHECK(handle, "cannot load NVRTC: ", dlerror());
    // It loads a second library by name alone, which is found if it is there already.
    auto version = find<int(int*, int*)>("nvrtcVersion");
    int major = 0, minor = 0;
    Dl_info place = {};
    if (version(&major, &minor) == 0 && dladdr(reinterpret_cast<void*>(version), &place) && place.dli_fname) {
      std::string path = place.dli_fname;
      path = path.substr(0, path.rfind('/') + 1) + "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
      dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    }
  }
};

// Whether the kernels for Hopper are loaded.
bool is_hopper() {
  std::lock_guard<std::mutex> guard(kernels_lock);
  return kernels[at::cuda::current_device()].hopper;
}

// Compiles the kernels for an architecture, 80 or 90 for example; needs no GPU.
std::vector<char> compile(const std::string& source, int architecture, bool hopper) {
  Nvrtc nvrtc;
  typedef void* Program;
  auto create = nvrtc.find<int(Program*, const char*, const char*, int, const char**, const char**)>("nvrtcCreateProgram");
  auto build = nvrtc.find<int(Program, int, const char**)>("nvrtcCompileProgram");
  auto log_size = nvrtc.find<int(Program, size_t*)>("nvrtcGetProgramLogSize");
  auto log = nvrtc.find<int(Program, char*)>("nvrtcGetProgramLog");
  auto size = nvrtc.find<int(Program, size_t*)>("nvrtcGetCUBINSize");
  auto cubin = nvrtc.find<int(Program, char*)>("nvrtcGetCUBIN");
  auto destroy = nvrtc.find<int(Program*)>("nvrtcDestroyProgram");
  std::string target = "--gpu-architecture=sm_" + std::to_string(architecture) + (hopper ? "a" : "");
  const char* options[] = {target.c_str(), "--std=c++17", hopper ? "-DON_HOPPER" : "-DPLAIN"};
  Program program;
  TORCH_CHECK(create(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr) == 0, "NVRTC refused the kernels");
  bool built = build(program, 3, options) == 0;
  std::vector<char> out;
  size_t bytes = 0;
  bool complete = false;
  if (built && size(program, &bytes) == 0 && bytes > 0) {
    out.resize(bytes);
    complete = cubin(program, out.data()) == 0;
  } else if (!built) {
    log_size(program, &bytes);
    out.resize(bytes + 1); // ends with 0 whatever the log is
    log(program, out.data());
  }
  destroy(&program);
  TORCH_CHECK(built, "the kernels do not compile: ", out.data());
  TORCH_CHECK(complete, "NVRTC returned no code");
  return out;
}

// Shared memory of a block of Hopper's convolutions, `columns` wide: three stages, or the results.
int hopper_bytes(int columns) { return std::max(3 * (128 + columns) * 64 * 2, (128 + 8) * columns * 4); }

cudaKernel_t kernel(const std::string& name, size_t shared) {
  int device = at::cuda::current_device();
  std::lock_guard<std::mutex> guard(kernels_lock);
  Kernels& here = kernels[device];
  TORCH_CHECK(here.library, "the kernels of GPU ", device, " are not loaded");
  Kernel& found = here.known[name];
  if (!found.function) check(cudaLibraryGetKernel(&found.function, here.library, name.c_str()), name.c_str());
  if (shared > found.shared) {
    const void* function = reinterpret_cast<const void*>(found.function);
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), name.c_str());
    found.shared = shared;
  }
  return found.function;
}

void launch(const std::string& name, dim3 grid, dim3 block, void* argument, size_t shared = 0) {
  void* arguments[] = {argument};
  auto stream = at::cuda::getCurrentCUDAStream();
  const void* function = reinterpret_cast<const void*>(kernel(name, shared));
  check(cudaLaunchKernel(function, grid, block, arguments, shared, stream), name.c_str());
}

}  // namespace
