// The losses of both views, as a differentiable operation.

#pragma once

#include "launch.h"

namespace {

// As in loss.cu.
struct Loss {
  const float *logits, *adjustment;
  const int64_t* labels;
  const float* weights;
  const int64_t* mix_labels;
  const float *mix_weights, *lambda;
  float *terms, *total, *gradient;
  int batch, views, classes;
  float mix_weight;
};

struct FusedLoss : torch::autograd::Function<FusedLoss> {
  // logits [K, views * batch, classes]; returns their total [K], which has a gradient, and the terms [K, views].
  static variable_list forward(AutogradContext* ctx, Tensor logits, std::optional<Tensor> adjustment, Tensor labels, std::optional<Tensor> weights,
                               std::optional<Tensor> mix_labels, std::optional<Tensor> mix_weights, std::optional<Tensor> lambda,
                               double mix_weight) {
    logits = logits.contiguous();
    int64_t clients = logits.size(0), views = mix_labels ? 2 : 1;
    Tensor terms = at::empty({clients, views}, logits.options()), total = at::empty({clients}, logits.options()), gradient = at::empty_like(logits);
    auto numbers = [](const std::optional<Tensor>& t) { return t ? t->data_ptr<float>() : nullptr; };
    Loss l = {};
    l.logits = logits.data_ptr<float>();
    l.adjustment = numbers(adjustment);
    l.labels = labels.data_ptr<int64_t>();
    l.weights = numbers(weights);
    l.mix_labels = mix_labels ? mix_labels->data_ptr<int64_t>() : nullptr;
    l.mix_weights = numbers(mix_weights);
    l.lambda = numbers(lambda);
    l.terms = terms.data_ptr<float>();
    l.total = total.data_ptr<float>();
    l.gradient = gradient.data_ptr<float>();
    l.batch = static_cast<int>(labels.size(1));
    l.views = static_cast<int>(views);
    l.classes = static_cast<int>(logits.size(2));
    l.mix_weight = static_cast<float>(mix_weight);
    hold({logits, labels});
    for (const auto& given : {adjustment, weights, mix_labels, mix_weights, lambda})
      if (given) hold({*given});
    launch("fix_mix_loss", dim3(static_cast<unsigned>(clients)), dim3(256), &l);
    ctx->mark_non_differentiable({terms});
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({gradient});
    return {total, terms};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(8);
    no_second_derivative();
    variable_list out(8);
    out[0] = ctx->get_saved_variables()[0] * gradients[0].view({-1, 1, 1});
    return out;
  }
};

}  // namespace
