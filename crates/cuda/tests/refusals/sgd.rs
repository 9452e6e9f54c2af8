//! Steps of SGD.

use super::*;

const PLAIN: Sgd = Sgd { momentum: 0.9, decay: 0.0, clip: 1.0, nesterov: false };

/// One entry after one that is right.
#[track_caller]
fn refused_entry(
    value: &Tensor,
    momentum: Option<&Tensor>,
    gradient: &Tensor,
    shadow: Option<&Tensor>,
) -> CudaError {
    let fine = floats(&[3, 5]);
    let good = SgdEntry { value: &fine, momentum: Some(&fine), gradient: &fine, shadow: None };
    let entries = [good, SgdEntry { value, momentum, gradient, shadow }];
    match sgd(PLAIN, &floats(&[1]), &entries).unwrap_err() {
        CudaError::Refused { argument, expected, got } => CudaError::refused(
            argument.strip_prefix("entry 1: ").unwrap_or(&argument),
            expected,
            got,
        ),
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
    assert_eq!(refused, wrong_number("entry 0: clients of value", clients, 65_536));
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
        [("momentum", &momentum as &dyn Fn(&Tensor) -> CudaError), ("gradient", &gradient)]
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
    let unaligned = |tensor, rest| {
        CudaError::refused(tensor, "an address divisible by 16", format!("a remainder of {rest}"))
    };
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
