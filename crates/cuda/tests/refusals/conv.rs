//! Convolutions.

use super::*;

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
fn a_convolution_refuses_what_is_not_like_its_result() {
    // Two groups of 8 channels to 16, at stride 2: 5 x 5 pixels become 3 x 3.
    let (x, w) = (halves(&[4, 16, 5, 5]), halves(&[2, 16, 8, 3, 3]));
    let refused = |add: &Tensor, views| {
        conv_before_norm(&x, &w, 2, 1, Some(add), Some(views)).map(|(y, _)| y).unwrap_err()
    };
    let size = [4, 32, 3, 3];
    assert_eq!(refused(&halves(&size), 2), not_on_gpu("x"));
    assert_eq!(refused(&halves(&[1, 32, 3, 3]), 2), wrong_size("add", &size, &[1, 32, 3, 3]));
    assert_eq!(refused(&halves(&[4, 32, 5, 5]), 2), wrong_size("add", &size, &[4, 32, 5, 5]));
    let kinds = [Kind::BFloat16];
    assert_eq!(refused(&floats(&size), 2), wrong_kind("add", &kinds, Kind::Float));
    assert_eq!(refused(&Tensor::new(), 2), wrong_memory("add", "an undefined one"));
    let range = Expected::Between(1, 65_535);
    assert_eq!(refused(&halves(&size), 0), wrong_number("views", range, 0));
    let thirds = Expected::MultipleOf(3);
    assert_eq!(refused(&halves(&size), 3), wrong_number("batch of x", thirds, 4));
}
