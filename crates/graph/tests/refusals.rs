//! Arguments that the kernels cannot work with are refused before anything reaches them. Where tensors live
//! is checked last, so tensors on a CPU meet every other check; what passes them all is refused for that.

#![allow(clippy::unwrap_used)]

use fedanchor_graph::{
    AVAILABLE, Expected, Graph, GraphError, Kernels, Mixture, Norm, Queue, Sgd, SgdEntry,
    Statistics, Upload, conv, images, peak_memory, setup, sgd,
};
use tch::{Device, Kind, Tensor};

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

fn not_on_gpu(tensor: &'static str) -> GraphError {
    GraphError::NotOnGpu { tensor, found: Device::Cpu }
}

fn wrong_size(tensor: &'static str, expected: &[i64], found: &[i64]) -> GraphError {
    GraphError::Size { tensor, expected: expected.to_vec(), found: found.to_vec() }
}

fn wrong_kind(tensor: &'static str, expected: &[Kind], found: Kind) -> GraphError {
    GraphError::Kind { tensor, expected: expected.to_vec(), found }
}

fn wrong_strides(tensor: &'static str, expected: &[i64], found: &[i64]) -> GraphError {
    GraphError::Strides { tensor, expected: expected.to_vec(), found: found.to_vec() }
}

fn wrong_number(what: &'static str, expected: Expected, found: i64) -> GraphError {
    GraphError::Number { what, expected, found }
}

fn wrong_memory(tensor: &'static str, found: &'static str) -> GraphError {
    GraphError::Memory { tensor, found }
}

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
        }
    }

    #[track_caller]
    fn is_refused(&self, expected: GraphError) {
        let norm = self.norm();
        for refused in [
            norm.forward(&self.x),
            norm.forward_residual(&self.x, &self.other),
            norm.forward_sum(&self.x, &self.other),
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
    with(sparse).is_refused(wrong_memory("x", "one in a format of its own"));
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
            let is_refused = |tensor: Tensor, expected: GraphError| {
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
fn a_norm_refuses_addends_that_are_not_like_its_input() {
    for statistics in [Statistics::Update(0.1), Statistics::Batch, Statistics::Running] {
        let is_refused = |other: Tensor, expected: fn(&'static str) -> GraphError| {
            let case = NormCase { other, statistics, ..NormCase::default() };
            let refused = case.norm().forward_residual(&case.x, &case.other);
            assert_eq!(refused.unwrap_err(), expected("residual"));
            let refused = case.norm().forward_sum(&case.x, &case.other);
            assert_eq!(refused.unwrap_err(), expected("add"));
        };
        // Sizes that libtorch would broadcast.
        is_refused(floats(&[1, 8, 3, 3]), |name| wrong_size(name, &[4, 8, 3, 3], &[1, 8, 3, 3]));
        is_refused(floats(&[4, 8, 2, 3]), |name| wrong_size(name, &[4, 8, 3, 3], &[4, 8, 2, 3]));
        is_refused(halves(&[4, 8, 3, 3]), |name| wrong_kind(name, &[Kind::Float], Kind::BFloat16));
        is_refused(Tensor::new(), |name| wrong_memory(name, "an undefined one"));
    }
}

#[test]
fn a_convolution_refuses_its_arguments() {
    let refused = |x: &Tensor, w: &Tensor| conv(x, w, 1, 1).unwrap_err();
    // [batch, K * inputs, H, W] and [K, outputs, inputs, k, k].
    let (x, w) = (halves(&[2, 3 * 8, 5, 5]), halves(&[3, 16, 8, 3, 3]));
    assert_eq!(refused(&x, &w), not_on_gpu("x"));
    let half = [Kind::BFloat16];
    assert_eq!(refused(&x.to_kind(Kind::Float), &w), wrong_kind("x", &half, Kind::Float));
    assert_eq!(refused(&x, &w.to_kind(Kind::Float)), wrong_kind("w", &half, Kind::Float));
    assert_eq!(refused(&x, &Tensor::new()), wrong_memory("w", "an undefined one"));
    assert_eq!(refused(&halves(&[0, 24, 5, 5]), &w), wrong_memory("x", "an empty one"));
    let (four, five) = (Expected::Between(4, 4), Expected::Between(5, 5));
    assert_eq!(refused(&halves(&[24, 5, 5]), &w), wrong_number("dimensions of x", four, 3));
    assert_eq!(refused(&x, &halves(&[48, 8, 3, 3])), wrong_number("dimensions of w", five, 4));
    let kernels = Expected::OneOf(&[1, 3]);
    let wide = halves(&[3, 16, 8, 5, 5]);
    assert_eq!(refused(&x, &wide), wrong_number("kernel of w", kernels, 5));
    let oblong = halves(&[3, 16, 8, 3, 1]);
    assert_eq!(refused(&x, &oblong), wrong_size("w", &[3, 16, 8, 3, 3], &[3, 16, 8, 3, 1]));

    let eights = Expected::EightDoubled;
    let (x, w) = (halves(&[2, 25, 5, 5]), halves(&[3, 16, 8, 3, 3]));
    assert_eq!(refused(&x, &w), wrong_number("channels of x", Expected::MultipleOf(3), 25));
    let x = halves(&[2, 36, 5, 5]);
    assert_eq!(refused(&x, &w), wrong_number("channels of a group of x", eights, 12));
    let x = halves(&[2, 24, 5, 5]);
    for outputs in [4, 12, 20, 24] {
        let w = halves(&[3, outputs, 8, 3, 3]);
        assert_eq!(refused(&x, &w), wrong_number("outputs of w", eights, outputs));
    }
    let w = halves(&[3, 16, 9, 3, 3]);
    assert_eq!(refused(&x, &w), wrong_number("inputs of w", Expected::Between(1, 8), 9));
    // Fewer inputs than channels are padded.
    assert_eq!(refused(&x, &halves(&[3, 16, 3, 3, 3])), not_on_gpu("x"));
}

#[test]
fn a_convolution_refuses_steps_and_images_that_give_no_result() {
    let x = halves(&[2, 8, 5, 5]);
    let refused = |x: &Tensor, kernel: i64, stride, padding| {
        conv(x, &halves(&[1, 8, 8, kernel, kernel]), stride, padding).unwrap_err()
    };
    for stride in [0, -1, 3] {
        let expected = wrong_number("stride", Expected::OneOf(&[1, 2]), stride);
        assert_eq!(refused(&x, 3, stride, 1), expected);
    }
    for padding in [-1, 3, i64::MAX] {
        let expected = wrong_number("padding", Expected::Between(0, 2), padding);
        assert_eq!(refused(&x, 3, 1, padding), expected);
    }
    let none = Expected::Between(0, 0);
    assert_eq!(refused(&x, 1, 1, 1), wrong_number("padding", none, 1));
    // (2 - 3) / 2 + 1 is 1 where division rounds to zero.
    let most = i64::from(i32::MAX) - 256;
    let small = halves(&[2, 8, 2, 5]);
    let least = Expected::Between(3, most);
    assert_eq!(refused(&small, 3, 2, 0), wrong_number("height of x", least, 2));
    let small = halves(&[2, 8, 5, 2]);
    assert_eq!(refused(&small, 3, 2, 0), wrong_number("width of x", least, 2));
    assert_eq!(refused(&small, 3, 2, 1), not_on_gpu("x"));
}

#[test]
fn a_convolution_counts_the_pixels_of_input_and_result() {
    let most = i64::from(i32::MAX) - 256;
    let w = halves(&[1, 8, 8, 3, 3]);
    let one = halves(&[1]);
    // A stride of two leaves a quarter: the result alone would pass.
    let x = one.expand([33_000, 8, 256, 256], false);
    let refused = conv(&x, &w, 2, 1).unwrap_err();
    assert_eq!(refused, wrong_number("pixels of x", Expected::Between(1, most), 33_000 << 16));
    // Padding adds pixels: the input alone would pass.
    let batch = 500_000_000;
    let x = one.expand([batch, 8, 1, 4], false);
    let refused = conv(&x, &w, 1, 2).unwrap_err();
    let expected = Expected::Between(1, most);
    assert_eq!(refused, wrong_number("pixels of the result", expected, batch * 3 * 6));
    let channels = Expected::Between(1, 1 << 26);
    let x = one.expand([1, 1 << 27, 1, 1], false);
    assert_eq!(conv(&x, &w, 1, 1).unwrap_err(), wrong_number("channels of x", channels, 1 << 27));
    let w = one.expand([1, 1 << 27, 8, 3, 3], false);
    let refused = conv(&halves(&[2, 8, 5, 5]), &w, 1, 1).unwrap_err();
    assert_eq!(refused, wrong_number("channels of the result", channels, 1 << 27));
    let w = one.expand([65_536, 8, 8, 3, 3], false);
    let refused = conv(&halves(&[2, 8, 5, 5]), &w, 1, 1).unwrap_err();
    assert_eq!(refused, wrong_number("groups of w", Expected::Between(1, 65_535), 65_536));
}

#[test]
fn images_refuse_their_arguments() {
    // [batch, K, H, W, C] and [K, batch].
    let size = [5, 3, 4, 4, 2];
    let refused = |fix: &Tensor| images(fix, None, &[1.0; 2], &[0.0; 2], false).unwrap_err();
    assert_eq!(refused(&bytes(&size)), not_on_gpu("fix"));
    assert_eq!(refused(&floats(&size)), wrong_kind("fix", &[Kind::Uint8], Kind::Float));
    assert_eq!(refused(&bytes(&[5, 3, 4, 4, 0])), wrong_memory("fix", "an empty one"));
    let five = Expected::Between(5, 5);
    assert_eq!(refused(&bytes(&[5, 3, 4, 2])), wrong_number("dimensions of fix", five, 4));
    assert_eq!(refused(&bytes(&[])), wrong_number("dimensions of fix", five, 0));
    let four = Expected::Between(1, 4);
    assert_eq!(refused(&bytes(&[5, 3, 4, 4, 5])), wrong_number("channels of fix", four, 5));
    let turned = bytes(&[5, 3, 4, 4, 2]).transpose(2, 3);
    assert_eq!(refused(&turned), wrong_strides("fix", &[96, 32, 8, 2, 1], &[96, 32, 2, 8, 1]));
    let same = bytes(&[1]).expand(size, false);
    assert_eq!(refused(&same), wrong_strides("fix", &[96, 32, 8, 2, 1], &[0; 5]));

    let numbers =
        |scale: &[f32], shift: &[f32]| images(&bytes(&size), None, scale, shift, true).unwrap_err();
    let two = Expected::Between(2, 2);
    assert_eq!(numbers(&[1.0], &[0.0; 2]), wrong_number("scales", two, 1));
    assert_eq!(numbers(&[1.0; 2], &[0.0; 3]), wrong_number("shifts", two, 3));
}

#[test]
fn a_mixture_is_like_the_images_it_follows() {
    let size = [5, 3, 4, 4, 2];
    let strides = [96, 32, 8, 2, 1];
    let fix = bytes(&size);
    let refused = |first: &Tensor, second: &Tensor, lambda: &Tensor| {
        let mixture = Mixture { first, second, lambda };
        images(&fix, Some(&mixture), &[1.0; 2], &[0.0; 2], false).unwrap_err()
    };
    let (good, lambda) = (bytes(&size), floats(&[3, 5]));
    assert_eq!(refused(&good, &good, &lambda), not_on_gpu("fix"));
    type Call<'a> = &'a dyn Fn(&Tensor) -> GraphError;
    let calls: [(&str, Call); 2] = [
        ("first", &|images| refused(images, &good, &lambda)),
        ("second", &|images| refused(&good, images, &lambda)),
    ];
    for (name, call) in calls {
        assert_eq!(call(&Tensor::new()), wrong_memory(name, "an undefined one"));
        assert_eq!(call(&floats(&size)), wrong_kind(name, &[Kind::Uint8], Kind::Float));
        let fewer = [4, 3, 4, 4, 2];
        assert_eq!(call(&bytes(&fewer)), wrong_size(name, &size, &fewer));
        let same = bytes(&[1]).expand(size, false);
        assert_eq!(call(&same), wrong_strides(name, &strides, &[0; 5]));
    }
    let call = |lambda: &Tensor| refused(&good, &good, lambda);
    assert_eq!(call(&Tensor::new()), wrong_memory("lambda", "an undefined one"));
    let double = zeros(&[3, 5], Kind::Double);
    assert_eq!(call(&double), wrong_kind("lambda", &[Kind::Float], Kind::Double));
    assert_eq!(call(&floats(&[5, 3])), wrong_size("lambda", &[3, 5], &[5, 3]));
    assert_eq!(call(&floats(&[15])), wrong_size("lambda", &[3, 5], &[15]));
    assert_eq!(call(&floats(&[5, 3]).tr()), wrong_strides("lambda", &[5, 1], &[1, 3]));
}

const PLAIN: Sgd = Sgd { momentum: 0.9, decay: 0.0, clip: 1.0, nesterov: false };

/// One entry after one that is right.
#[track_caller]
fn refused_entry(
    value: &Tensor,
    momentum: Option<&Tensor>,
    gradient: &Tensor,
    shadow: Option<&Tensor>,
) -> GraphError {
    let fine = floats(&[3, 5]);
    let good = SgdEntry { value: &fine, momentum: Some(&fine), gradient: &fine, shadow: None };
    let entries = [good, SgdEntry { value, momentum, gradient, shadow }];
    match sgd(PLAIN, &floats(&[1]), &entries).unwrap_err() {
        GraphError::Entry { entry: 1, error } => *error,
        other => other,
    }
}

#[test]
fn a_step_refuses_its_learning_rate() {
    let value = floats(&[3, 5]);
    let refused = |lr: &Tensor| {
        let entry = SgdEntry { value: &value, momentum: None, gradient: &value, shadow: None };
        sgd(PLAIN, lr, &[entry]).unwrap_err()
    };
    assert_eq!(refused(&floats(&[1])), not_on_gpu("value"));
    assert_eq!(refused(&Tensor::new()), wrong_memory("lr", "an undefined one"));
    assert_eq!(refused(&floats(&[0])), wrong_memory("lr", "an empty one"));
    assert_eq!(refused(&floats(&[2])), wrong_size("lr", &[1], &[2]));
    assert_eq!(refused(&floats(&[])), wrong_size("lr", &[1], &[]));
    let double = zeros(&[1], Kind::Double);
    assert_eq!(refused(&double), wrong_kind("lr", &[Kind::Float], Kind::Double));
    assert_eq!(sgd(PLAIN, &floats(&[2]), &[]), Ok(()), "nothing to do, nothing to refuse");
}

#[test]
fn a_step_refuses_more_entries_than_fit() {
    let value = floats(&[3, 5]);
    let entry = || SgdEntry { value: &value, momentum: None, gradient: &value, shadow: None };
    let entries = |count: usize| (0..count).map(|_| entry()).collect::<Vec<_>>();
    let refused = |count| sgd(PLAIN, &floats(&[1]), &entries(count)).unwrap_err();
    assert_eq!(refused(256), not_on_gpu("value"));
    assert_eq!(refused(257), wrong_number("entries", Expected::Between(1, 256), 257));
}

#[test]
fn a_step_refuses_values_that_are_not_one_block_per_client() {
    let refused = |value: &Tensor| {
        let gradient = floats(&value.size());
        refused_entry(value, None, &gradient, None)
    };
    assert_eq!(refused(&floats(&[3, 4, 2])), not_on_gpu("value"));
    let nothing = floats(&[3]);
    assert_eq!(
        refused_entry(&Tensor::new(), None, &nothing, None),
        wrong_memory("value", "an undefined one")
    );
    assert_eq!(refused(&halves(&[3, 4])), wrong_kind("value", &[Kind::Float], Kind::BFloat16));
    let three = Expected::Between(3, 3);
    assert_eq!(refused(&floats(&[2, 4])), wrong_number("clients of value", three, 2));
    assert_eq!(refused(&floats(&[])), wrong_number("clients of value", three, 0));
    // One number in memory, or every second one: the block reaches beyond.
    let same = floats(&[1]).expand([3, 4], false);
    assert_eq!(refused(&same), wrong_strides("value", &[4, 1], &[0, 0]));
    let gaps = floats(&[3, 4, 2]).select(2, 0);
    assert_eq!(refused(&gaps), wrong_strides("value", &[4, 1], &[8, 2]));
    let part = floats(&[3, 8]).narrow(1, 0, 4);
    assert_eq!(refused(&part), wrong_strides("value", &[4, 1], &[8, 1]));
    let clients_last = floats(&[4, 3]).tr();
    assert_eq!(refused(&clients_last), wrong_strides("value", &[4, 1], &[1, 3]));
    // The order of a client's numbers is its own affair, as are strides of dimensions of size 1.
    assert_eq!(refused(&floats(&[3, 2, 4, 5]).permute([0, 3, 1, 2])), not_on_gpu("value"));
    assert_eq!(refused(&floats(&[5, 4]).narrow(0, 1, 3)), not_on_gpu("value"));
    assert_eq!(refused(&floats(&[3, 4]).as_strided([3, 1, 4], [4, 99, 1], 0)), not_on_gpu("value"));
}

#[test]
fn a_step_refuses_more_clients_than_a_grid_has() {
    let value = floats(&[65_536, 1]);
    let entry = SgdEntry { value: &value, momentum: None, gradient: &value, shadow: None };
    let refused = sgd(PLAIN, &floats(&[1]), &[entry]).unwrap_err();
    let clients = Expected::Between(1, 65_535);
    let error = Box::new(wrong_number("clients of value", clients, 65_536));
    assert_eq!(refused, GraphError::Entry { entry: 0, error });
}

#[test]
fn a_step_refuses_what_is_not_like_its_value() {
    let value = floats(&[3, 2, 4]);
    let size = [3, 2, 4];
    let momentum = |tensor: &Tensor| refused_entry(&value, Some(tensor), &value, None);
    let shadow = |tensor: &Tensor| refused_entry(&value, None, &value, Some(tensor));
    let gradient = |tensor: &Tensor| refused_entry(&value, None, tensor, None);
    assert_eq!(momentum(&floats(&size)), not_on_gpu("value"));
    assert_eq!(shadow(&halves(&size)), not_on_gpu("value"));
    assert_eq!(gradient(&halves(&size)), not_on_gpu("value"));

    assert_eq!(momentum(&halves(&size)), wrong_kind("momentum", &[Kind::Float], Kind::BFloat16));
    assert_eq!(shadow(&floats(&size)), wrong_kind("shadow", &[Kind::BFloat16], Kind::Float));
    let kinds = [Kind::Float, Kind::BFloat16];
    let double = zeros(&size, Kind::Double);
    assert_eq!(gradient(&double), wrong_kind("gradient", &kinds, Kind::Double));
    for (name, call) in
        [("momentum", &momentum as &dyn Fn(&Tensor) -> GraphError), ("gradient", &gradient)]
    {
        assert_eq!(call(&Tensor::new()), wrong_memory(name, "an undefined one"));
        // The strides of the value with another size, and a size that libtorch would broadcast.
        assert_eq!(call(&floats(&[2, 2, 4])), wrong_size(name, &size, &[2, 2, 4]));
        assert_eq!(call(&floats(&[1, 2, 4])), wrong_size(name, &size, &[1, 2, 4]));
        assert_eq!(call(&floats(&[3, 8])), wrong_size(name, &size, &[3, 8]));
    }
    assert_eq!(shadow(&halves(&[2, 2, 4])), wrong_size("shadow", &size, &[2, 2, 4]));

    // Written in place, so in the order of the value; a gradient is copied to it.
    let turned = |tensor: Tensor| tensor.transpose(1, 2);
    let (strides, other) = ([8, 4, 1], [8, 1, 2]);
    let found = momentum(&turned(floats(&[3, 4, 2])));
    assert_eq!(found, wrong_strides("momentum", &strides, &other));
    let found = shadow(&turned(halves(&[3, 4, 2])));
    assert_eq!(found, wrong_strides("shadow", &strides, &other));
    let same = floats(&[1]).expand(size, false);
    assert_eq!(momentum(&same), wrong_strides("momentum", &strides, &[0, 0, 0]));
    assert_eq!(gradient(&turned(floats(&[3, 4, 2]))), not_on_gpu("value"));
}

#[test]
fn a_step_refuses_addresses_between_vectors() {
    // The first number of an allocation is aligned, the second is not.
    let shifted = |kind| zeros(&[25], kind).narrow(0, 1, 24).view([3, 8]);
    let unaligned = |tensor, found| GraphError::Alignment { tensor, expected: 16, found };
    let value = floats(&[3, 8]);
    let float = shifted(Kind::Float);
    assert_eq!(refused_entry(&float, None, &value, None), unaligned("value", 4));
    assert_eq!(refused_entry(&value, Some(&float), &value, None), unaligned("momentum", 4));
    let half = shifted(Kind::BFloat16);
    assert_eq!(refused_entry(&value, None, &value, Some(&half)), unaligned("shadow", 2));
    assert_eq!(refused_entry(&value, None, &float, None), not_on_gpu("value"));
    // Single numbers are read where a client does not have a multiple of eight.
    let seven = floats(&[22]).narrow(0, 1, 21).view([3, 7]);
    assert_eq!(refused_entry(&seven, Some(&seven), &seven, None), not_on_gpu("value"));
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
fn errors_say_what_was_expected_and_found() {
    for (error, text) in [
        (wrong_size("mean", &[8], &[7]), "mean: expected size [8], found [7]"),
        (
            wrong_kind("x", &[Kind::Float, Kind::BFloat16], Kind::Double),
            "x: expected Float or BFloat16, found Double",
        ),
        (wrong_kind("fix", &[Kind::Uint8], Kind::Float), "fix: expected Uint8, found Float"),
        (wrong_number("views", Expected::Between(1, 9), 0), "views: expected 1 to 9, found 0"),
        (wrong_number("shifts", Expected::Between(3, 3), 2), "shifts: expected 3, found 2"),
        (wrong_number("stride", Expected::OneOf(&[1, 2]), 3), "stride: expected 1 or 2, found 3"),
        (
            wrong_number("outputs of w", Expected::EightDoubled, 12),
            "outputs of w: expected 8, 16, 32 and so on, found 12",
        ),
        (
            GraphError::Entry { entry: 3, error: Box::new(not_on_gpu("value")) },
            "entry 3: value: expected a tensor on a GPU, found one on Cpu",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

/// Without a GPU, or without CUDA, everything that needs one is an error with a reason.
#[test]
fn without_a_gpu_there_is_an_error_with_a_reason() {
    if AVAILABLE && tch::Cuda::is_available() {
        return;
    }
    let errors = [
        Queue::new(0).map(drop),
        Upload::new(0, 8).map(drop),
        setup(0, None, Kernels::Fitting),
        peak_memory(0).map(drop),
        Graph::capture(None, || Ok::<_, GraphError>(())).map(drop),
    ];
    for error in errors {
        let Err(GraphError::Failed(reason)) = error else { panic!("{error:?}") };
        assert!(!reason.is_empty());
        if !AVAILABLE {
            assert!(reason.contains("make libtorch CUDA=1"), "{reason}");
        }
    }
}
