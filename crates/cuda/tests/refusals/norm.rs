//! Norms.

use super::*;

/// The arguments of a norm that is right but for the device.
struct NormCase {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    other: Tensor,
    views: i64,
    statistics: Statistics,
}

impl Default for NormCase {
    fn default() -> Self {
        let one = || floats(&[8]);
        Self {
            x: floats(&[4, 8, 3, 3]),
            weight: one(),
            bias: one(),
            mean: one(),
            variance: one(),
            other: floats(&[4, 8, 3, 3]),
            views: 2,
            statistics: Statistics::Batch,
        }
    }
}

impl NormCase {
    fn norm(&self) -> Norm<'_> {
        Norm {
            weight: &self.weight,
            bias: &self.bias,
            mean: &self.mean,
            variance: &self.variance,
            statistics: self.statistics,
            views: self.views,
            epsilon: 1e-5,
            relu: true,
            sums: None,
        }
    }

    #[track_caller]
    fn is_refused(&self, expected: CudaError) {
        let norm = self.norm();
        for refused in [
            norm.forward(&self.x, None, false),
            norm.forward(&self.x, Some(&self.other), false),
            norm.forward(&self.x, None, true),
        ] {
            assert_eq!(refused.unwrap_err(), expected);
        }
    }
}

#[test]
fn a_norm_refuses_its_input() {
    let with = |x: Tensor| NormCase { x, ..NormCase::default() };
    NormCase::default().is_refused(not_on_gpu("x"));
    with(Tensor::new()).is_refused(wrong_memory("x", "an undefined one"));
    with(floats(&[0, 8, 3, 3])).is_refused(wrong_memory("x", "an empty one"));
    let sparse = floats(&[4, 8, 3, 3]).to_sparse_sparse_dim(4);
    with(sparse).is_refused(wrong_memory("x", "one in another memory format"));
    let zero = Tensor::internal_efficientzerotensor([4, 8, 3, 3], (Kind::Float, Device::Cpu));
    with(zero).is_refused(wrong_memory("x", "one without memory"));
    let kinds = [Kind::Float, Kind::BFloat16];
    with(zeros(&[4, 8, 3, 3], Kind::Double)).is_refused(wrong_kind("x", &kinds, Kind::Double));
    let four = Expected::Between(4, 4);
    with(floats(&[4, 8, 9])).is_refused(wrong_number("dimensions of x", four, 3));
    let eights = Expected::MultipleOf(8);
    with(floats(&[4, 12, 3, 3])).is_refused(wrong_number("columns of x", eights, 12));
    let many = floats(&[1]).expand([2, 8 + 4096 * 64, 1, 1], false);
    let range = Expected::Between(8, 4096 * 64);
    with(many).is_refused(wrong_number("columns of x", range, 8 + 4096 * 64));
}

#[test]
fn a_norm_refuses_views_that_do_not_divide_the_batch() {
    let with = |views| NormCase { views, ..NormCase::default() };
    let range = Expected::Between(1, 65_535);
    for views in [0, -1, i64::MIN, 65_536] {
        with(views).is_refused(wrong_number("views", range, views));
    }
    with(3).is_refused(wrong_number("batch of x", Expected::MultipleOf(3), 4));
    with(8).is_refused(wrong_number("batch of x", Expected::MultipleOf(8), 4));
}

#[test]
fn a_norm_refuses_parameters_that_are_not_its_columns() {
    type Put = fn(&mut NormCase, Tensor);
    let parameters: [(&str, Put); 4] = [
        ("weight", |case, tensor| case.weight = tensor),
        ("bias", |case, tensor| case.bias = tensor),
        ("mean", |case, tensor| case.mean = tensor),
        ("variance", |case, tensor| case.variance = tensor),
    ];
    for (name, put) in parameters {
        for statistics in [Statistics::Update(0.1), Statistics::Batch, Statistics::Running] {
            let is_refused = |tensor: Tensor, expected: CudaError| {
                let mut case = NormCase { statistics, ..NormCase::default() };
                put(&mut case, tensor);
                case.is_refused(expected);
            };
            is_refused(Tensor::new(), wrong_memory(name, "an undefined one"));
            is_refused(floats(&[7]), wrong_size(name, &[8], &[7]));
            is_refused(floats(&[16]), wrong_size(name, &[8], &[16]));
            is_refused(floats(&[8, 1]), wrong_size(name, &[8], &[8, 1]));
            is_refused(halves(&[8]), wrong_kind(name, &[Kind::Float], Kind::BFloat16));
            // Eight numbers by its size, one in memory.
            let one = floats(&[1]).expand([8], false);
            is_refused(one, wrong_strides(name, &[1], &[0]));
            is_refused(floats(&[8, 2]).select(1, 0), wrong_strides(name, &[1], &[2]));
        }
    }
}

#[test]
fn a_norm_refuses_residuals_that_are_not_like_its_input() {
    for statistics in [Statistics::Update(0.1), Statistics::Batch, Statistics::Running] {
        let is_refused = |other: Tensor, expected: CudaError| {
            let case = NormCase { other, statistics, ..NormCase::default() };
            let refused = case.norm().forward(&case.x, Some(&case.other), false);
            assert_eq!(refused.unwrap_err(), expected);
        };
        let (name, size) = ("residual", [4, 8, 3, 3]);
        // Sizes that libtorch would broadcast.
        is_refused(floats(&[1, 8, 3, 3]), wrong_size(name, &size, &[1, 8, 3, 3]));
        is_refused(floats(&[4, 8, 2, 3]), wrong_size(name, &size, &[4, 8, 2, 3]));
        is_refused(halves(&size), wrong_kind(name, &[Kind::Float], Kind::BFloat16));
        is_refused(Tensor::new(), wrong_memory(name, "an undefined one"));
    }
}
