//! Arguments that the kernels cannot work with are refused before anything reaches them. Where tensors live
//! is checked last, so tensors on a CPU meet every other check; what passes them all is refused for that.

#![allow(clippy::unwrap_used)]

mod conv;
mod head;
mod images;
mod loss;
mod norm;
mod sgd;

use fedanchor_cuda::{
    CudaError, Expected, FixMixLoss, Graph, Kernels, Labels, MixLabels, Mixture, Norm, Queue, Sgd,
    SgdEntry, Statistics, Upload, conv_before_norm, head, images, is_available,
    overlap_weight_grads, peak_memory, pool, setup, sgd,
};
use tch::{Device, Kind, Tensor};

/// A convolution alone.
fn conv(x: &Tensor, w: &Tensor, stride: i64, padding: i64) -> Result<Tensor, CudaError> {
    conv_before_norm(x, w, stride, padding, None, None).map(|(y, _)| y)
}

fn zeros(size: &[i64], kind: Kind) -> Tensor {
    Tensor::zeros(size, (kind, Device::Cpu))
}

fn floats(size: &[i64]) -> Tensor {
    zeros(size, Kind::Float)
}

fn halves(size: &[i64]) -> Tensor {
    zeros(size, Kind::BFloat16)
}

fn bytes(size: &[i64]) -> Tensor {
    zeros(size, Kind::Uint8)
}

fn not_on_gpu(tensor: &'static str) -> CudaError {
    CudaError::refused(tensor, "a tensor on a GPU", "one on Cpu")
}

fn wrong_size(tensor: &'static str, expected: &[i64], found: &[i64]) -> CudaError {
    CudaError::refused(tensor, format!("size {expected:?}"), format!("{found:?}"))
}

fn wrong_kind(tensor: &'static str, expected: &[Kind], found: Kind) -> CudaError {
    let expected: Vec<String> = expected.iter().map(|kind| format!("{kind:?}")).collect();
    CudaError::refused(tensor, expected.join(" or "), format!("{found:?}"))
}

fn wrong_strides(tensor: &'static str, expected: &[i64], found: &[i64]) -> CudaError {
    CudaError::refused(tensor, format!("strides {expected:?}"), format!("{found:?}"))
}

fn wrong_number(what: &'static str, expected: Expected, found: i64) -> CudaError {
    CudaError::refused(what, expected, found)
}

fn wrong_memory(tensor: &'static str, found: &'static str) -> CudaError {
    CudaError::refused(tensor, "a dense tensor with at least one number", found)
}

#[test]
fn numbers_of_gpus_do_not_wrap() {
    // 256 is 0 in the 8 bits in which libtorch counts them.
    for device in [128, 256, usize::MAX] {
        let found = i64::try_from(device).unwrap_or(i64::MAX);
        let expected = wrong_number("number of the GPU", Expected::Between(0, 127), found);
        assert_eq!(Queue::new(device).unwrap_err(), expected);
        assert_eq!(Upload::new(device, 8).unwrap_err(), expected);
        assert_eq!(peak_memory(device).unwrap_err(), expected);
        assert_eq!(setup(device, None, Kernels::Fitting).unwrap_err(), expected);
    }
}

#[test]
fn errors_say_what_was_expected_and_what_it_got() {
    for (error, text) in [
        (wrong_size("mean", &[8], &[7]), "mean: expected size [8], got [7]"),
        (
            wrong_kind("x", &[Kind::Float, Kind::BFloat16], Kind::Double),
            "x: expected Float or BFloat16, got Double",
        ),
        (wrong_kind("fix", &[Kind::Uint8], Kind::Float), "fix: expected Uint8, got Float"),
        (wrong_number("views", Expected::Between(1, 9), 0), "views: expected 1 to 9, got 0"),
        (wrong_number("shifts", Expected::Between(3, 3), 2), "shifts: expected 3, got 2"),
        (wrong_number("stride", Expected::OneOf(&[1, 2]), 3), "stride: expected 1 or 2, got 3"),
        (
            wrong_number("outputs of w", Expected::EightDoubled, 12),
            "outputs of w: expected 8, 16, 32 and so on, got 12",
        ),
        (
            not_on_gpu("entry 3: value"),
            "entry 3: value: expected a tensor on a GPU, got one on Cpu",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

/// Without a GPU, or without CUDA, everything that needs one is an error with a reason.
#[test]
fn without_a_gpu_there_is_an_error_with_a_reason() {
    if is_available() && tch::Cuda::is_available() {
        return;
    }
    let errors = [
        Queue::new(0).map(drop),
        Upload::new(0, 8).map(drop),
        setup(0, None, Kernels::Fitting),
        peak_memory(0).map(drop),
        Graph::capture(None, || Ok::<_, CudaError>(())).map(drop),
        overlap_weight_grads(|| Ok(())),
    ];
    for error in errors {
        let Err(CudaError::Failed(reason)) = error else { panic!("{error:?}") };
        assert!(!reason.is_empty());
        if !is_available() {
            assert!(reason.contains("make libtorch CUDA=1"), "{reason}");
        }
    }
}
