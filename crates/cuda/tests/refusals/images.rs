//! Images and mixtures.

use super::*;

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
    type Call<'a> = &'a dyn Fn(&Tensor) -> CudaError;
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
