// What a convolution's kernels are told.

#pragma once

#include "launch.h"

namespace {

// As in conv.cu.
struct Div {
  unsigned multiplier, shift, divisor;
  Div() = default;
  // n / d for n below 2^31 is a multiplication and a shift.
  explicit Div(unsigned d) : multiplier(0), shift(0), divisor(d) {
    if (d == 1) return;
    unsigned p = 31;
    while ((1ull << (p - 31)) < d) p++;
    multiplier = static_cast<unsigned>(((1ull << p) + d - 1) / d);
    shift = p - 32;
  }
};
struct Conv {
  const void *a, *b;
  void* out;
  long long part;
  int rows, inputs, outputs, a_stride, b_stride, out_stride, depth, log_a, taps, stride, padding, height, width, parts;
  Div image, row;
};

}  // namespace
