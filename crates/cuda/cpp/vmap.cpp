// Runs for a cohort what is written for one client: libtorch's vmap, which the Rust bindings lack. Plain C functions, as in
// shim.cpp, but part of every build: nothing here needs a GPU.

#include "message.h"

#include <ATen/ATen.h>
#include <ATen/functorch/BatchedFallback.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/library.h>

using at::Tensor;
namespace functorch = at::functorch;

namespace {

// libtorch has no rule for the cross entropy of a cohort (PyTorch has one, in Python) and would loop over the clients.
std::tuple<Tensor, Tensor> nll_loss(const Tensor& log_probability, const Tensor& target, const std::optional<Tensor>& weight,
                                    int64_t reduction, int64_t ignored) {
  const int64_t last = log_probability.dim() - 1;
  const Tensor kept = target.ne(ignored);
  const Tensor label = at::where(kept, target, 0);
  Tensor share = kept.to(log_probability.scalar_type());
  if (weight && weight->defined()) share = share * weight->gather(0, label.reshape({-1})).reshape(label.sizes());
  const Tensor each = log_probability.gather(last, label.unsqueeze(last)).squeeze(last).neg() * share;
  const Tensor total = share.sum();
  if (reduction == at::Reduction::Mean) return {each.sum() / total, total};
  if (reduction == at::Reduction::Sum) return {each.sum(), total};
  return {each, total};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatchedDecomposition, library) { library.impl("nll_loss_forward", nll_loss); }

extern "C" {

// Until this thread leaves it, operations on tensors of `level` run for this many clients. Random numbers are refused:
// they would not be those of the run's seed.
const char* fa_vmap_enter(int64_t clients, int64_t* level) {
  return guarded([&] {
    // An operation without a rule is computed client by client: right, but not worth a warning in every step.
    functorch::setVmapFallbackWarningEnabled(false);
    *level = functorch::initAndPushDynamicLayer(functorch::TransformType::Vmap, c10::SymInt(clients), functorch::RandomnessType::Error);
  });
}
void fa_vmap_leave() {
  guarded([&] { functorch::popDynamicLayerAndDeleteMetadata(); });
}
// One client's view of a tensor with an axis of clients.
const char* fa_vmap_one(Tensor* all, int64_t level, Tensor** out) {
  return guarded([&] { *out = new Tensor(functorch::addBatchDim(*all, 0, level)); });
}
// The tensor with an axis of clients, of which one client's view was computed.
const char* fa_vmap_all(Tensor* one, int64_t clients, Tensor** out) {
  return guarded([&] {
    auto* batched = functorch::maybeGetBatchedImpl(*one);
    if (batched) {
      *out = new Tensor(batched->value().movedim(batched->bdim(), 0));
      return;
    }
    auto size = one->sizes().vec();
    size.insert(size.begin(), clients);
    *out = new Tensor(one->unsqueeze(0).expand(size));
  });
}

}  // extern "C"
