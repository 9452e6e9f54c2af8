//! Pools and heads.

use super::*;

/// What the kernels count.
const MOST: i64 = i32::MAX as i64 - 128;

#[test]
fn a_pool_refuses_its_arguments() {
    let refused = |x: &Tensor, clients| pool(x, clients).unwrap_err();
    let size = [5, 48, 4, 4];
    assert_eq!(refused(&halves(&size), 3), not_on_gpu("x"));
    assert_eq!(refused(&floats(&size), 2), not_on_gpu("x"));
    let kinds = [Kind::Float, Kind::BFloat16];
    assert_eq!(refused(&bytes(&size), 3), wrong_kind("x", &kinds, Kind::Uint8));
    let four = Expected::Between(4, 4);
    assert_eq!(refused(&floats(&[5, 48]), 3), wrong_number("dimensions of x", four, 2));
    let multiple = |of| Expected::MultipleOf(of);
    assert_eq!(refused(&floats(&size), 4), wrong_number("columns of x", multiple(32), 48));
    let clients = |found| wrong_number("clients", Expected::Between(1, MOST), found);
    assert_eq!(refused(&floats(&size), 0), clients(0));
    assert_eq!(refused(&floats(&size), -1), clients(-1));
    assert_eq!(refused(&floats(&size), MOST + 1), clients(MOST + 1));
    let one = halves(&[1, 1, 1, 1]);
    let of = |size: [i64; 4]| one.expand(size, false);
    let columns = MOST / 8 * 8 + 8;
    let many = wrong_number("columns of x", Expected::Between(8, MOST), columns);
    assert_eq!(refused(&of([1, columns, 1, 1]), 1), many);
    let many = wrong_number("batch of x", Expected::Between(1, MOST), MOST + 1);
    assert_eq!(refused(&of([MOST + 1, 8, 1, 1]), 1), many);
    let many = wrong_number("pixels of an image", Expected::Between(1, 4096), 65 * 64);
    assert_eq!(refused(&of([1, 8, 65, 64]), 1), many);
    assert_eq!(refused(&of([1 << 20, 1 << 13, 64, 64]), 1), not_on_gpu("x")); // as many as are there
    assert_eq!(refused(&floats(&[5, 48, 0, 4]), 3), wrong_memory("x", "an empty one"));
}

#[test]
fn a_head_refuses_its_arguments() {
    let (x, weight, bias) = (floats(&[3, 5, 7]), floats(&[3, 2, 7]), floats(&[3, 2]));
    let refused = |x: &Tensor, weight: &Tensor, bias: &Tensor| head(x, weight, bias).unwrap_err();
    assert_eq!(refused(&x, &weight, &bias), not_on_gpu("x"));
    let float = [Kind::Float];
    let half = wrong_kind("x", &float, Kind::BFloat16);
    assert_eq!(refused(&halves(&[3, 5, 7]), &weight, &bias), half);
    let half = wrong_kind("weight", &float, Kind::BFloat16);
    assert_eq!(refused(&x, &halves(&[3, 2, 7]), &bias), half);
    let half = wrong_kind("bias", &float, Kind::BFloat16);
    assert_eq!(refused(&x, &weight, &halves(&[3, 2])), half);
    let other = wrong_size("weight", &[3, 2, 7], &[3, 2, 8]);
    assert_eq!(refused(&x, &floats(&[3, 2, 8]), &bias), other);
    let other = wrong_size("weight", &[3, 2, 7], &[1, 2, 7]);
    assert_eq!(refused(&x, &floats(&[1, 2, 7]), &bias), other);
    let other = wrong_size("bias", &[3, 2], &[3, 1]);
    assert_eq!(refused(&x, &weight, &floats(&[3, 1])), other);
    let turned = floats(&[3, 7, 2]).transpose(1, 2);
    assert_eq!(refused(&x, &turned, &bias), wrong_strides("weight", &[14, 7, 1], &[14, 1, 2]));
    let three = Expected::Between(3, 3);
    assert_eq!(
        refused(&x, &floats(&[2, 7]), &bias),
        wrong_number("dimensions of weight", three, 2)
    );
    let many = wrong_number("outputs of weight", Expected::Between(1, 64), 65);
    assert_eq!(refused(&x, &floats(&[3, 65, 7]), &floats(&[3, 65])), many);
    let three = Expected::Between(3, 3);
    let flat = wrong_number("dimensions of x", three, 2);
    assert_eq!(refused(&floats(&[3, 5]), &weight, &bias), flat);
    let turned = floats(&[2, 3]).tr();
    assert_eq!(refused(&x, &weight, &turned), wrong_strides("bias", &[2, 1], &[1, 3]));
    assert_eq!(refused(&x, &weight, &Tensor::new()), wrong_memory("bias", "an undefined one"));
    assert_eq!(refused(&x, &Tensor::new(), &bias), wrong_memory("weight", "an undefined one"));
    let many = wrong_number("clients of x", Expected::Between(1, 65_535), 65_536);
    assert_eq!(refused(&floats(&[65_536, 1, 1]), &weight, &bias), many);
    let wide = floats(&[1, 1, 1]).expand([1, 1, MOST + 1], false);
    let many = wrong_number("inputs of x", Expected::Between(1, MOST), MOST + 1);
    assert_eq!(refused(&wide, &weight, &bias), many);
    // The gradient of the output has to fit into shared memory.
    let many = wrong_number("batch of x", Expected::Between(1, 128), 129);
    let wide = (floats(&[1, 129, 7]), floats(&[1, 64, 7]), floats(&[1, 64]));
    assert_eq!(refused(&wide.0, &wide.1, &wide.2), many);
}
