//! Properties of all partitions, and those specific to each scheme.

#![allow(clippy::unwrap_used)]

use fedanchor_data::partition::{SMALLEST, Scheme, partition};
use fedanchor_data::{DataError, Partition};
use proptest::prelude::*;
use std::time::Instant;

/// `count` labels, class c for every i with i % classes == c.
fn even_labels(count: usize, classes: usize) -> Vec<u16> {
    (0..count).map(|index| (index % classes) as u16).collect()
}

fn whole(labels: &[u16]) -> Vec<u32> {
    (0..labels.len() as u32).collect()
}

fn all(scheme: Scheme, labels: &[u16], classes: usize, clients: usize, seed: u64) -> Partition {
    partition(scheme, labels, &whole(labels), classes, clients, seed).unwrap()
}

fn sizes(partition: &Partition) -> Vec<usize> {
    partition.clients.iter().map(Vec::len).collect()
}

fn equal_within_one(partition: &Partition) -> bool {
    let sizes = sizes(partition);
    sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1
}

/// Mean over clients of the share of the most frequent class: 1 / classes for perfectly even
/// clients, 1 for clients with a single class.
fn skew(partition: &Partition, labels: &[u16], classes: usize) -> f64 {
    let histogram = partition.histogram(labels, classes);
    let share = |counts: &Vec<u32>| {
        f64::from(*counts.iter().max().unwrap()) / f64::from(counts.iter().sum::<u32>())
    };
    histogram.iter().map(share).sum::<f64>() / histogram.len() as f64
}

fn any_scheme() -> impl Strategy<Value = Scheme> {
    let alpha = || prop_oneof![Just(1e-4), 0.01..1.0, Just(1000.0)];
    prop_oneof![
        Just(Scheme::Iid {}),
        alpha().prop_map(|alpha| Scheme::Lda { alpha }),
        alpha().prop_map(|alpha| Scheme::Dirichlet { alpha }),
        (1usize..6).prop_map(|per_client| Scheme::Classes { per_client }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn disjoint_complete_and_repeatable(
        scheme in any_scheme(),
        labels in prop::collection::vec(0u16..6, 1..400),
        clients in 1usize..30,
        keep in 1usize..4,
        seed in any::<u64>(),
    ) {
        // Some images are anchors: the pool is every keep-th image.
        let pool: Vec<u32> = whole(&labels).into_iter().step_by(keep).collect();
        match partition(scheme, &labels, &pool, 6, clients, seed) {
            Ok(parts) => {
                prop_assert_eq!(parts.clients.len(), clients);
                let mut handed_out = parts.clients.concat();
                handed_out.sort_unstable();
                prop_assert_eq!(handed_out, pool.clone());
                prop_assert!(parts.clients.iter().all(|client| !client.is_empty()));
                if matches!(scheme, Scheme::Iid {} | Scheme::Lda { .. }) {
                    prop_assert!(equal_within_one(&parts), "{:?}", sizes(&parts));
                }
                if let Scheme::Classes { per_client } = scheme {
                    for counts in parts.histogram(&labels, 6) {
                        let held = counts.iter().filter(|&&count| count > 0).count();
                        prop_assert_eq!(held, per_client);
                    }
                }
                let again = partition(scheme, &labels, &pool, 6, clients, seed).unwrap();
                prop_assert_eq!(parts, again);
            }
            // Only impossible requests may fail.
            Err(DataError::Unusable(why)) => {
                let may_fail = !matches!(scheme, Scheme::Iid {} | Scheme::Lda { .. });
                prop_assert!(may_fail || clients > pool.len(), "{why}");
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn another_seed_gives_another_partition() {
    let labels = even_labels(1000, 10);
    for scheme in [
        Scheme::Iid {},
        Scheme::Lda { alpha: 0.5 },
        Scheme::Dirichlet { alpha: 0.5 },
        Scheme::Classes { per_client: 2 },
    ] {
        let first = all(scheme, &labels, 10, 10, 1);
        assert_ne!(first, all(scheme, &labels, 10, 10, 2), "{scheme:?}");
    }
}

#[test]
fn large_alpha_is_near_iid_and_small_alpha_is_skewed() {
    let labels = even_labels(50_000, 10);
    let skew_of = |scheme| skew(&all(scheme, &labels, 10, 100, 7), &labels, 10);
    let even = skew_of(Scheme::Iid {});
    assert!((0.10..0.14).contains(&even), "{even}");
    let lda = skew_of(Scheme::Lda { alpha: 1000.0 });
    assert!((lda - even).abs() < 0.01, "{lda} against {even}");
    let dirichlet = skew_of(Scheme::Dirichlet { alpha: 1000.0 });
    assert!(dirichlet < 0.12, "{dirichlet}");
    // The largest of ten Dir(0.1) shares is 0.66 on average.
    let lda = skew_of(Scheme::Lda { alpha: 0.1 });
    assert!((0.55..0.80).contains(&lda), "{lda}");
    let dirichlet = skew_of(Scheme::Dirichlet { alpha: 0.1 });
    assert!((0.5..0.9).contains(&dirichlet), "{dirichlet}");
}

#[test]
fn a_tiny_alpha_gives_one_class_per_client() {
    // Gamma variates of shape 1e-4 underflow; with logarithms one class still dominates. Ten
    // clients with 100 images each and ten classes of 100: the first client gets all of one class.
    let labels = even_labels(1000, 10);
    let parts = all(Scheme::Lda { alpha: 1e-4 }, &labels, 10, 10, 3);
    let histogram = parts.histogram(&labels, 10);
    assert_eq!(histogram[0].iter().max(), Some(&100));
    assert!(all(Scheme::Lda { alpha: 1e-300 }, &labels, 10, 10, 3).clients.len() == 10);
}

#[test]
fn dirichlet_sizes_vary_above_the_minimum() {
    let labels = even_labels(50_000, 10);
    let sizes = sizes(&all(Scheme::Dirichlet { alpha: 0.1 }, &labels, 10, 100, 5));
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!(*least >= SMALLEST && *most > 600, "{least}..{most}");
}

#[test]
fn classes_per_client_are_exact_and_mixed() {
    // 100 clients with 2 of 10 classes: 20 shards of 25 images per class, 50 images per client.
    let labels = even_labels(5000, 10);
    let parts = all(Scheme::Classes { per_client: 2 }, &labels, 10, 100, 0);
    assert_eq!(sizes(&parts), vec![50; 100]);
    let mut pairs: Vec<Vec<usize>> = parts
        .histogram(&labels, 10)
        .iter()
        .map(|counts| (0..10).filter(|&class| counts[class] > 0).collect())
        .collect();
    pairs.sort();
    pairs.dedup();
    assert!(pairs.len() > 25, "only {} of 45 pairs of classes occur", pairs.len());
}

#[test]
fn a_frequent_class_is_cut_into_more_shards() {
    // 60, 20 and 20 images over 10 clients with one class each: 6, 2 and 2 shards of ten.
    let labels = [vec![0u16; 60], vec![1; 20], vec![2; 20]].concat();
    let parts = all(Scheme::Classes { per_client: 1 }, &labels, 3, 10, 0);
    assert_eq!(sizes(&parts), vec![10; 10]);
    let of_class_0 = parts.histogram(&labels, 3).iter().filter(|counts| counts[0] == 10).count();
    assert_eq!(of_class_0, 6);
}

#[test]
fn histograms_match_hand_computed_counts() {
    let parts = Partition { clients: vec![vec![0, 1, 3], vec![2]] };
    assert_eq!(parts.histogram(&[1, 0, 2, 1], 3), [[1, 2, 0], [0, 0, 1]]);
}

#[test]
fn impossible_partitions_are_errors_that_say_why() {
    let labels = even_labels(100, 10);
    let why = |scheme, clients| {
        partition(scheme, &labels, &whole(&labels), 10, clients, 0).unwrap_err().to_string()
    };
    assert_eq!(why(Scheme::Iid {}, 0), "a partition needs at least one client");
    assert!(why(Scheme::Iid {}, 101).contains("101 clients cannot share 100 samples"));
    for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(why(Scheme::Lda { alpha }, 5).contains("alpha must be a positive number"));
        assert!(why(Scheme::Dirichlet { alpha }, 5).contains("alpha must be a positive number"));
    }
    assert!(why(Scheme::Classes { per_client: 0 }, 5).contains("between 1 and 10, got 0"));
    assert!(why(Scheme::Classes { per_client: 11 }, 5).contains("between 1 and 10, got 11"));
    assert!(why(Scheme::Classes { per_client: 1 }, 5).contains("at most 5 of the 10 classes"));
    assert!(why(Scheme::Classes { per_client: 2 }, 100).contains("too few images"));
    let hopeless = why(Scheme::Dirichlet { alpha: 1e-3 }, 50);
    assert!(hopeless.contains("Dir(0.001)") && hopeless.contains("50 clients"), "{hopeless}");
    let unlabelled = partition(Scheme::Lda { alpha: 1.0 }, &[], &[0, 1], 2, 2, 0);
    assert!(unlabelled.unwrap_err().to_string().contains("image 0 of the pool has no label"));
    assert_eq!(sizes(&partition(Scheme::Iid {}, &[], &[4, 7, 9], 2, 2, 0).unwrap()), [2, 1]);
    let wrong = partition(Scheme::Lda { alpha: 1.0 }, &[5, 0], &[0, 1], 2, 2, 0);
    assert!(wrong.unwrap_err().to_string().contains("image 0 has label 5"));
}

#[test]
fn schemes_are_read_and_written() {
    let read = |text| serde_json::from_str::<Scheme>(text);
    assert_eq!(read(r#"{"kind":"iid"}"#).unwrap(), Scheme::Iid {});
    assert_eq!(read(r#"{"kind":"lda","alpha":0.1}"#).unwrap(), Scheme::Lda { alpha: 0.1 });
    let classes = Scheme::Classes { per_client: 2 };
    assert_eq!(serde_json::to_string(&classes).unwrap(), r#"{"kind":"classes","per_client":2}"#);
    assert!(read(r#"{"kind":"lda","alhpa":0.1}"#).is_err());
}

#[test]
fn a_hundred_thousand_clients_take_seconds() {
    let labels = even_labels(1_000_000, 10);
    for scheme in [
        Scheme::Iid {},
        Scheme::Lda { alpha: 0.1 },
        Scheme::Dirichlet { alpha: 100.0 },
        Scheme::Classes { per_client: 2 },
    ] {
        let start = Instant::now();
        assert_eq!(all(scheme, &labels, 10, 100_000, 1).clients.len(), 100_000);
        // A cost of clients times samples would take hours; the limit allows for a busy machine.
        let took = start.elapsed();
        assert!(took.as_secs() < 60, "{scheme:?} took {took:?}");
    }
}

/// Recorded runs depend on it: a balanced data set is partitioned as it always was, even if the
/// anchors were not drawn by class.
#[test]
fn lda_of_balanced_data_is_pinned() {
    let labels = even_labels(1000, 10);
    let pool: Vec<u32> = (0..1000).filter(|index| index % 7 != 0).collect();
    let partition = partition(Scheme::Lda { alpha: 0.3 }, &labels, &pool, 10, 13, 5).unwrap();
    let order = partition.clients.iter().flatten();
    let sum = order.fold(0u64, |sum, &index| sum.wrapping_mul(31).wrapping_add(u64::from(index)));
    assert_eq!(sum, 2_393_425_125_269_310_247);
}

#[test]
fn lda_with_a_large_alpha_is_close_to_iid_on_unbalanced_data() {
    let counts = [4000, 1000, 240];
    let labels: Vec<u16> =
        (0..3u16).flat_map(|class| vec![class; counts[usize::from(class)]]).collect();
    for clients in [20, 40] {
        let partition = all(Scheme::Lda { alpha: 1000.0 }, &labels, 3, clients, 1);
        assert!(equal_within_one(&partition));
        for (client, row) in partition.histogram(&labels, 3).iter().enumerate() {
            let size: u32 = row.iter().sum();
            for (class, &count) in row.iter().enumerate() {
                let share = f64::from(count) / f64::from(size);
                let expected = counts[class] as f64 / 5240.0;
                // Four standard deviations of a random draw.
                let most = 4.0 * (expected * (1.0 - expected) / f64::from(size)).sqrt();
                let off = (share - expected).abs();
                assert!(off < most, "client {client} of {clients}: {row:?}");
            }
        }
    }
}
